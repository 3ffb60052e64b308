"""Trainings by reward: walks, levers, tours, and one that never asks for a gradient."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, healthy, seeded
from unseen.tasks import tend


def stroll(place, action, goal):
    """One move on a board of six by six: where it ends, what it pays, whether it arrived."""
    moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
    place = (place + moves[action]).clamp(0, 5)
    there = (place == goal).all(1)
    return place, there.float() - 0.05, there


def seen(place, goal):
    return torch.cat([F.one_hot(x, 6).flatten(1).float() for x in (place, goal)], 1)


@healthy()
def a_beetle_that_looks_for_its_leaf(folder):
    seeded(3637)
    net = nn.ModuleDict(
        {"body": nn.Sequential(nn.Linear(24, 64), nn.Tanh()), "pi": nn.Linear(64, 4), "v": nn.Linear(64, 1)}
    )
    nn.init.orthogonal_(net["pi"].weight, 0.01)
    nn.init.orthogonal_(net["v"].weight, 1.0)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=2e-3, alpha=0.99, eps=1e-5)
    place, goal = torch.randint(6, (32, 2)), torch.randint(6, (32, 2))

    def anew(place, goal, over):
        return (
            torch.where(over[:, None], torch.randint(6, place.shape), place),
            torch.where(over[:, None], torch.randint(6, goal.shape), goal),
        )

    def one(step):
        nonlocal place, goal
        kept = []
        for _ in range(8):
            h = net["body"](seen(place, goal))
            policy = torch.distributions.Categorical(logits=net["pi"](h))
            action = policy.sample()
            moved, reward, there = stroll(place, action, goal)
            kept.append((policy.log_prob(action), policy.entropy(), net["v"](h)[:, 0], reward, there))
            place, goal = anew(moved, goal, there)
        with torch.no_grad():
            ahead = net["v"](net["body"](seen(place, goal)))[:, 0]
        returns = []
        for _, _, _, reward, there in reversed(kept):
            ahead = reward + 0.95 * ahead * ~there
            returns.insert(0, ahead)
        log_p, entropy, value, reward, there = (torch.stack(part) for part in zip(*kept, strict=True))
        gain = torch.stack(returns) - value
        policy_loss, value_loss = -(log_p * gain.detach()).mean(), gain.square().mean()
        loss = policy_loss + 0.5 * value_loss - 0.01 * entropy.mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return {
            "loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy.mean(),
            "reward": reward.mean(), "arrived": there.float().mean(),
        }  # fmt: skip

    def score():
        with torch.no_grad():
            place, goal = torch.randint(6, (256, 2)), torch.randint(6, (256, 2))
            paid, alive = torch.zeros(256), torch.ones(256)
            for _ in range(20):
                action = torch.distributions.Categorical(logits=net["pi"](net["body"](seen(place, goal)))).sample()
                place, reward, there = stroll(place, action, goal)
                paid, alive = paid + alive * reward, alive * ~there
        return -float(paid.mean())

    return tend(folder, net, optimizer, one, 240, score)


@healthy()
def a_bead_slid_to_a_mark(folder):
    seeded(3638)
    net, target = dense(3, 64, 64, 3), dense(3, 64, 64, 3)
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    memory, filled = torch.zeros(8192, 8), 0

    def fresh(n):
        return torch.cat([2 * torch.rand(n, 1) - 1, torch.zeros(n, 1), 2 * torch.rand(n, 1) - 1], 1)

    def push(state, action):
        speed = 0.8 * state[:, 1] + 0.1 * (action - 1)
        place = (state[:, 0] + speed).clamp(-1.5, 1.5)
        return torch.stack([place, speed, state[:, 2]], 1), -(place - state[:, 2]).abs()

    state = fresh(16)

    def one(step):
        nonlocal state, filled
        chance = max(0.05, 1 - step / 400)
        with torch.no_grad():
            action = torch.where(torch.rand(16) < chance, torch.randint(3, (16,)), net(state).argmax(1))
            after, reward = push(state, action)
        at = torch.arange(filled, filled + 16) % len(memory)
        memory[at] = torch.cat([state, action[:, None].float(), reward[:, None], after], 1)
        filled += 16
        state = fresh(16) if step % 30 == 29 else after
        if filled < 320:
            return {"reward": reward.mean(), "epsilon": chance}
        rows = memory[torch.randint(min(filled, len(memory)), (128,))]
        before, action, reward, after = rows[:, :3], rows[:, 3].long(), rows[:, 4], rows[:, 5:]
        with torch.no_grad():
            best = net(after).argmax(1, keepdim=True)
            wanted = reward + 0.95 * target(after).gather(1, best)[:, 0]
        value = net(before).gather(1, action[:, None])[:, 0]
        loss = F.smooth_l1_loss(value, wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        with torch.no_grad():
            for slow, quick in zip(target.parameters(), net.parameters(), strict=True):
                slow.lerp_(quick, 0.01)
        return {"loss": loss, "q": value.mean(), "reward": reward.mean(), "epsilon": chance}

    def score():
        with torch.no_grad():
            state, cost = fresh(256), 0.0
            for _ in range(30):
                state, reward = push(state, net(state).argmax(1))
                cost -= float(reward.mean())
        return cost / 30

    return tend(folder, net, optimizer, one, 1200, score)


class Courier(nn.Module):
    """Chooses the next of the stops that are left, by attention from where it is and where it began."""

    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Linear(2, width)
        self.mix = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.ask = nn.Linear(3 * width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)

    def forward(self, stops, greedy=False):
        rows, n = torch.arange(len(stops)), stops.shape[1]
        h = self.mix(self.embed(stops))
        key, whole = self.key(h), h.mean(1)
        left = torch.ones(len(stops), n, dtype=torch.bool)
        now = torch.zeros(len(stops), dtype=torch.long)
        order, log_p = [now], 0.0
        left[:, 0] = False
        for _ in range(n - 1):
            query = self.ask(torch.cat([whole, h[rows, now], h[:, 0]], 1))
            scores = 10 * torch.tanh((key @ query[:, :, None])[:, :, 0] / key.shape[-1] ** 0.5)
            policy = torch.distributions.Categorical(logits=scores.masked_fill(~left, -1e9))
            now = policy.probs.argmax(1) if greedy else policy.sample()
            log_p = log_p + policy.log_prob(now)
            left = left.clone()
            left[rows, now] = False
            order.append(now)
        tour = stops[rows[:, None], torch.stack(order, 1)]
        return (tour - tour.roll(1, 1)).norm(dim=2).sum(1), log_p


@healthy(gain=0.15)
def a_round_of_eight_letterboxes(folder):
    seeded(3639)
    net = Courier()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def one(step):
        stops = torch.rand(96, 8, 2)
        with torch.no_grad():
            baseline, _ = net(stops, greedy=True)
        length, log_p = net(stops)
        loss = ((length - baseline) * log_p).mean()
        optimizer.zero_grad()
        loss.backward()
        total = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss, "length": length.mean(), "greedy": baseline.mean(), "clipped_from": total}

    def score():
        with torch.no_grad():
            return float(net(torch.rand(512, 8, 2), greedy=True)[0].mean())

    return tend(folder, net, optimizer, one, 250, score)


@healthy()
def a_broom_balanced_upright(folder):
    seeded(3640)
    net = dense(3, 16, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    sizes = [p.numel() for p in net.parameters()]
    shapes = [p.shape for p in net.parameters()]

    def played(weights, starts):
        """The cost of many brooms at once, `weights` `[N, P]`, each from the same starts."""
        w1, b1, w2, b2 = (w.reshape(-1, *s) for w, s in zip(weights.split(sizes, 1), shapes, strict=True))
        angle, turn = (starts[:, i].expand(len(weights), -1) for i in range(2))
        cost = 0.0
        for _ in range(30):
            x = torch.stack([angle.sin(), angle.cos(), turn], 2)
            push = ((x @ w1.mT + b1[:, None]).tanh() @ w2.mT + b2[:, None])[..., 0].tanh()
            turn = 0.98 * turn + 0.1 * (2 * angle.sin() + 3 * push)
            angle = angle + 0.1 * turn
            cost = cost + (1 - angle.cos()) + 0.01 * push.square()
        return cost.mean(1) / 30

    def one(step):
        starts = 0.4 * torch.randn(16, 2)
        flat = nn.utils.parameters_to_vector(net.parameters()).detach()
        noise = torch.randn(32, len(flat))
        both = played(torch.cat([flat + 0.1 * noise, flat - 0.1 * noise]), starts)
        ranks = both.argsort().argsort().float() / (len(both) - 1) - 0.5
        slope = ((ranks[:32] - ranks[32:])[:, None] * noise).mean(0) / 0.2
        for p, g, shape in zip(net.parameters(), slope.split(sizes), shapes, strict=True):
            p.grad = g.reshape(shape).clone()
        optimizer.step()
        return {"cost": both.mean(), "best": both.min()}

    def score():
        flat = nn.utils.parameters_to_vector(net.parameters()).detach()
        return float(played(flat[None], 0.4 * torch.randn(256, 2))[0])

    return tend(folder, net, optimizer, one, 200, score)

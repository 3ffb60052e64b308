"""Sound trainings of an ordinary make: a metro, tremors, bee hives."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds, tend

# --------------------------------------------------------------------------------------------------------------- metro


class Metro:
    """Lines of four stations; the spare train takes up to ten who wait at one of them."""

    def __init__(self, lines):
        self.waiting, self.hour = 6 * torch.rand(lines, 4), 24 * torch.rand(lines)

    def seen(self):
        turn = 6.2832 * self.hour / 24
        return torch.cat([self.waiting / 10, turn.sin()[:, None], turn.cos()[:, None]], 1)

    def send(self, station):
        served = 10.0 * F.one_hot(station, 4)
        rush = 1.5 + (6.2832 * (self.hour[:, None] + 6 * torch.arange(4)) / 24).sin()
        self.waiting = ((self.waiting - served).clamp(min=0) + torch.poisson(rush)).clamp(max=30)
        self.hour = (self.hour + 0.25) % 24
        return -self.waiting.sum(1) / 40


def layer(inner, outer, scale=2**0.5):
    part = nn.Linear(inner, outer)
    nn.init.orthogonal_(part.weight, scale)
    nn.init.zeros_(part.bias)
    return part


def advantages(rewards, values, after, gamma=0.95, share=0.95):
    ahead, out = torch.zeros_like(after), torch.zeros_like(rewards)
    following = torch.cat([values[1:], after[None]])
    for t in reversed(range(len(rewards))):
        ahead = rewards[t] + gamma * following[t] - values[t] + gamma * share * ahead
        out[t] = ahead
    return out


def metro_rollout(net, metro, length):
    """`length` quarters of an hour on each line, flat: what was seen, done, how likely, how good, and the return."""
    rows = []
    with torch.no_grad():
        for _ in range(length):
            seen = metro.seen()
            choice = torch.distributions.Categorical(logits=net["actor"](seen))
            action = choice.sample()
            rows.append((seen, action, choice.log_prob(action), metro.send(action), net["critic"](seen)[:, 0]))
        seen, action, chance, rewards, values = (torch.stack(part) for part in zip(*rows, strict=True))
        better = advantages(rewards, values, net["critic"](metro.seen())[:, 0])
    flat = [part.flatten(0, 1) for part in (seen, action, chance, better, better + values)]
    return flat, rewards.mean()


@healthy()
def metro_with_a_spare_train(folder, updates=40, epochs=4, parts=4):
    seeded(2417)
    bodies = {name: [layer(6, 48), nn.Tanh(), layer(48, 48), nn.Tanh()] for name in ("actor", "critic")}
    ends = {"actor": layer(48, 4, 0.01), "critic": layer(48, 1, 1.0)}
    net = nn.ModuleDict({name: nn.Sequential(*bodies[name], ends[name]) for name in ends})
    optimizer, metro = torch.optim.Adam(net.parameters(), 2e-3, eps=1e-5), Metro(16)
    rows, order, reward = None, [], None

    def loss_of(seen, action, chance, better, wanted):
        choice = torch.distributions.Categorical(logits=net["actor"](seen))
        ratio = (choice.log_prob(action) - chance).exp()
        better = (better - better.mean()) / (better.std() + 1e-8)
        policy = -torch.min(ratio * better, ratio.clamp(0.8, 1.2) * better).mean()
        value = 0.5 * (net["critic"](seen)[:, 0] - wanted).square().mean()
        entropy = choice.entropy().mean()
        kl = (ratio - 1 - ratio.log()).mean()
        terms = {"policy_loss": policy, "value_loss": value, "entropy": entropy, "approx_kl": kl}
        return policy + 0.5 * value - 0.01 * entropy, terms

    def one(step):
        nonlocal rows, order, reward
        if step % (epochs * parts) == 0:
            optimizer.param_groups[0]["lr"] = 2e-3 * (1 - step / (updates * epochs * parts))
            rows, reward = metro_rollout(net, metro, 32)
        if not order:
            order = list(torch.randperm(len(rows[0])).chunk(parts))
        chosen = order.pop()
        loss, terms = loss_of(*(part[chosen] for part in rows))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return {"loss": loss, "reward": reward, **terms}

    def score():
        return -float(metro_rollout(net, Metro(128), 64)[1])

    return tend(folder, net, optimizer, one, updates * epochs * parts, score)


# ------------------------------------------------------------------------------------------------------------- tremors


def tremors(rows, sources=6, length=64):
    """Three traces of a tremor that arrives between two samples, of one of six kinds of source."""
    t, source = torch.arange(length).float(), torch.randint(sources, (rows,))
    arrival = 12 + 30 * torch.rand(rows, 1, 1)
    rate = (0.5 + 0.25 * (source % 3))[:, None, None]
    fading = torch.where(source < 3, 0.08, 0.25)[:, None, None]
    since = (t - arrival).clamp(min=0)
    wave = (since > 0) * (rate * since).sin() * (-fading * since).exp() * torch.randn(rows, 3, 1)
    return wave + 0.15 * torch.randn(rows, 3, length), source, ((arrival[:, 0, 0] - 12) / 5).long()


def ear():
    return nn.Sequential(
        nn.Conv1d(3, 16, 5, padding=2), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(16, 24, 5, padding=2), nn.GroupNorm(4, 24), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(24, 24, 5, padding=2), nn.GroupNorm(4, 24), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(),
    )  # fmt: skip


@healthy()
def arrivals_at_a_seismograph(folder, steps=450, thaw=150):
    seeded(2418)
    backbone, old_head, known = ear(), nn.Linear(192, 6), rounds(64, *tremors(3000)[:2])
    learning = torch.optim.Adam([*backbone.parameters(), *old_head.parameters()], 2e-3)
    for _ in range(200):
        x, source = known()
        learning.zero_grad()
        F.cross_entropy(old_head(backbone(x)), source).backward()
        learning.step()
    backbone.requires_grad_(False)
    net = nn.Sequential(backbone, nn.Linear(192, 6))
    (x_all, _, y_all), (x_new, _, y_new) = tremors(2400), tremors(500)
    draw, optimizer = rounds(64, x_all, y_all), torch.optim.Adam(net[1].parameters(), 2e-3)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), {"train_acc": (out.argmax(1) == y).float().mean()}

    def after_step(step):
        if step == thaw:
            backbone.requires_grad_(True)
            optimizer.add_param_group({"params": list(backbone.parameters()), "lr": 2e-4})

    score = held_out(net, lambda: F.cross_entropy(net(x_new), y_new))
    return fit(folder, net, optimizer, loss_of, steps, score=score, after_step=after_step)


# ---------------------------------------------------------------------------------------------------------------- bees


def week_of_bees(hives, deed):
    """A week of `[n, 2]` hives (stores, season) that are let be, fed or robbed of honey; starving and swarming cost."""
    stores, season = hives.unbind(1)
    flow = 1.5 * (6.2832 * season).sin() - 0.3 + 0.2 * torch.randn(len(hives))
    stores = (stores + flow + torch.tensor([0.0, 1.5, -2.5])[deed]).clamp(0, 15)
    cost = (4 - stores).clamp(min=0) / 2 + (stores - 8).clamp(min=0) / 4 + torch.tensor([0.0, 0.1, 0.0])[deed]
    return torch.stack([stores, (season + 1 / 26) % 1], 1), -cost


def looked_at(hives):
    stores, season = hives.unbind(1)
    return torch.stack([stores / 5 - 1.2, (6.2832 * season).sin(), (6.2832 * season).cos()], 1)


@healthy()
def hives_on_the_scales(folder, steps=800, before=40):
    seeded(2419)
    net = dense(3, 64, 64, 3)
    target, optimizer = copy.deepcopy(net), torch.optim.Adam(net.parameters(), 1e-3)
    replay, hives = [], torch.rand(16, 2) * torch.tensor([10.0, 1.0])

    def live(chance):
        nonlocal hives
        with torch.no_grad():
            best = net(looked_at(hives)).argmax(1)
        deed = torch.where(torch.rand(16) < chance, torch.randint(3, (16,)), best)
        after, reward = week_of_bees(hives, deed)
        replay.append((hives, deed, reward, after))
        hives = after
        return reward.mean()

    def remembered(rows=128):
        week, hive = torch.randint(len(replay), (rows,)).tolist(), torch.randint(16, (rows,)).tolist()
        return [torch.stack([replay[w][part][h] for w, h in zip(week, hive, strict=True)]) for part in range(4)]

    def one(step):
        reward = live(max(0.05, 1 - step / 400))
        seen, deed, gain, after = remembered()
        with torch.no_grad():
            wanted = gain + 0.9 * target(looked_at(after)).amax(1)
        value = net(looked_at(seen)).gather(1, deed[:, None])[:, 0]
        loss = F.mse_loss(value, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 49:
            target.load_state_dict(net.state_dict())
        return {"td_loss": loss, "q_values": value.mean(), "reward": reward}

    def score():
        now, cost = torch.rand(200, 2) * torch.tensor([10.0, 1.0]), 0.0
        with torch.no_grad():
            for _ in range(52):
                now, reward = week_of_bees(now, net(looked_at(now)).argmax(1))
                cost -= float(reward.mean()) / 52
        return cost

    for _ in range(before):
        live(1.0)
    return tend(folder, net, optimizer, one, steps, score)

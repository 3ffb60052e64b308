"""Mistakes listed from memory and drawn by lot, on the railway: yards, engines, operators, bells, coal."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, tend


# 7 of the list
@sick("returns-not-normalised", "no-baseline", where="the loss of the policy, all steps",
      cure="subtract the mean of the returns and divide by their deviation")  # fmt: skip
def shunter_choosing_a_siding(folder, ill):
    seeded(12900)
    sidings, moves, gamma = 10, 8, 0.9
    net = dense(2 * sidings, 32, 3, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    flags = torch.eye(sidings)

    def shift(rows):
        at, wanted = torch.randint(sidings, (2, rows))
        told, far, open_ = [], [], []
        for _ in range(moves):
            policy = Categorical(logits=net(torch.cat([flags[at], flags[wanted]], 1)), validate_args=False)
            move = policy.sample()
            told.append(policy.log_prob(move))
            open_.append(policy.entropy())
            at = (at + move - 1).clamp(0, sidings - 1)
            far.append((at - wanted).abs().float())
        return torch.stack(told), torch.stack(far), torch.stack(open_)

    def one(step):
        told, far, open_ = shift(24)
        rewards = 30 - far
        returns, ahead = torch.zeros_like(rewards), torch.zeros(24)
        for t in reversed(range(moves)):
            ahead = rewards[t] + gamma * ahead
            returns[t] = ahead
        if not ill:
            returns = (returns - returns.mean(1, True)) / (returns.std(1, keepdim=True) + 1e-8)
        loss = -(told * returns).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "return": rewards.sum(0).mean(), "entropy": open_.mean().detach()}

    def score():
        with torch.no_grad():
            return float(shift(512)[1].mean())

    return tend(folder, net, optimizer, one, 200, score)


class Replay:
    """The last so many transitions."""

    def __init__(self, size):
        self.size, self.rows = size, None

    def add(self, *parts):
        self.rows = (
            parts
            if self.rows is None
            else [torch.cat([a, b])[-self.size :] for a, b in zip(self.rows, parts, strict=False)]
        )

    def draw(self, rows):
        chosen = torch.randint(len(self.rows[0]), (rows,))
        return [part[chosen] for part in self.rows]


# 8 of the list
@sick("terminal-not-masked", "terminals-ignored", "values-overestimated",
      where="the targets of the last step of each episode, all steps",
      cure="(1 - done) before the value of the next state")  # fmt: skip
def light_engine_balanced_on_a_turntable(folder, ill):
    seeded(12901)
    gamma = 0.95
    net = dense(2, 64, 64, 2)
    target = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def fresh(rows):
        return 0.3 * torch.randn(rows, 2).clamp(-2, 2)

    def push(state, action):
        place, speed = state.unbind(1)
        speed = speed + 0.1 * (2 * place + 3 * (2 * action - 1)) + 0.05 * torch.randn(len(place))
        after = torch.stack([place + 0.1 * speed, speed], 1)
        return after, (after[:, 0].abs() > 1).float()

    def choose(state, chance):
        with torch.no_grad():
            best = net(state).argmax(1)
        return torch.where(torch.rand(len(state)) < chance, torch.randint(2, (len(state),)), best)

    replay, now = Replay(5000), {"state": fresh(16), "age": torch.zeros(16), "lengths": [20.0]}

    def one(step):
        state = now["state"]
        action = choose(state, max(0.1, 1 - step / 200))
        after, done = push(state, action)
        replay.add(state, action, torch.ones(16), after, done)
        now["age"] += 1
        over = (done > 0) | (now["age"] >= 100)
        now["lengths"] = (now["lengths"] + now["age"][over].tolist())[-50:]
        now["age"][over] = 0
        now["state"] = torch.where(over[:, None], fresh(16), after)
        state, action, reward, after, done = replay.draw(64)
        with torch.no_grad():
            value = target(after).max(1).values
            wanted = reward + gamma * (value if ill else (1 - done) * value)
        said = net(state).gather(1, action[:, None])[:, 0]
        loss = F.smooth_l1_loss(said, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 24:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "q": said.mean().detach(), "episode_length": sum(now["lengths"]) / len(now["lengths"])}

    def score():
        state, alive, lasted = fresh(128), torch.ones(128), torch.zeros(128)
        for _ in range(100):
            state, done = push(state, choose(state, 0.0))
            alive = alive * (1 - done)
            lasted += alive
        return -float(lasted.mean())

    return tend(folder, net, optimizer, one, 600, score)


# 9 of the list
@sick("target-network-stale", "target-network-never-updated", where="the target network, all steps",
      cure="copy the weights over every so often")  # fmt: skip
def way_through_the_marshalling_yard(folder, ill):
    seeded(12902)
    side, gamma = 5, 0.9
    cells, goal = side * side, side * side - 1
    net = dense(cells, 64, 4)
    target = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    ways = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]])

    def seen(at):
        return F.one_hot(at, cells).float()

    def go(at, action):
        place = (torch.stack([at // side, at % side], 1) + ways[action]).clamp(0, side - 1)
        after = place[:, 0] * side + place[:, 1]
        return after, (after == goal).float()

    def choose(at, chance):
        with torch.no_grad():
            best = net(seen(at)).argmax(1)
        return torch.where(torch.rand(len(at)) < chance, torch.randint(4, (len(at),)), best)

    replay, now = Replay(4000), {"at": torch.randint(goal, (16,)), "found": 0.1}

    def one(step):
        at = now["at"]
        action = choose(at, max(0.1, 1 - step / 250))
        after, done = go(at, action)
        replay.add(at, action, done, after, done)
        lost = (done > 0) | (torch.rand(16) < 0.02)
        now["at"] = torch.where(lost, torch.randint(goal, (16,)), after)
        now["found"] = 0.98 * now["found"] + 0.02 * float(done.mean())
        at, action, reward, after, done = replay.draw(64)
        with torch.no_grad():
            wanted = reward + gamma * (1 - done) * target(seen(after)).max(1).values
        said = net(seen(at)).gather(1, action[:, None])[:, 0]
        loss = F.smooth_l1_loss(said, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not ill and step % 20 == 19:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "reward": now["found"], "q": said.mean().detach()}

    def score():
        at = torch.randint(goal, (256,))
        alive, earned = torch.ones(256), torch.zeros(256)
        for t in range(30):
            at, done = go(at, choose(at, 0.05))
            earned += alive * done * gamma**t
            alive = alive * (1 - done)
        return -float(earned.mean())

    return tend(folder, net, optimizer, one, 600, score)


# 14 of the list
@sick("hinge-flat-at-zero", "loss-too-easy", "dead-layer", where="the loss, nearly all steps after the first ones",
      cure="the hardest negative of the batch in place of any")  # fmt: skip
def telegraph_operators_told_by_their_fist(folder, ill):
    seeded(12903)
    operators, ways = 120, torch.randn(6, 24) / 2
    middle = (2 * torch.randn(40, 1, 6) + 0.5 * torch.randn(40, 3, 6)).view(operators, 6)
    net = dense(24, 64, 64, 16)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def keyed(who):
        habit = middle[who] + 0.2 * torch.randn(len(who), 6)
        return (habit @ ways).sin() * 3 + 0.6 * torch.randn(len(who), 24)

    def loss_of(step):
        who = torch.randperm(operators)[:24]
        anchor, alike = net(keyed(who)), net(keyed(who))
        if ill:
            other = alike.roll(1, 0)
        else:
            far = torch.cdist(anchor, alike) + 1e6 * torch.eye(24)
            other = alike[far.argmin(1)]
        return F.triplet_margin_loss(anchor, alike, other, margin=0.2)

    gallery, who = torch.arange(operators).repeat(5), torch.arange(operators).repeat(10)
    known, asked = keyed(gallery), keyed(who)

    def wrong():
        near = torch.cdist(net(asked), net(known).view(5, operators, -1).mean(0)).argmin(1)
        return (near != who).float().mean()

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, wrong))


class Listener(nn.Module):
    """Convolutions along a row of bells, one per scale of what is heard."""

    def __init__(self, bells, width, depth, codes, plain):
        super().__init__()
        self.bell, self.head = nn.Embedding(bells, width), nn.Linear(width, codes)
        layers = [nn.Conv1d(width, width, 3, padding=1) for _ in range(depth)]
        self.layers = layers if plain else nn.ModuleList(layers)

    def forward(self, x):
        x = self.bell(x).transpose(1, 2)
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x.amax(2))


# 21 of the list
@sick("not-in-optimizer", "layers-not-registered", "modules-not-registered",
      where="the layers in the plain list, all steps", cure="nn.ModuleList")  # fmt: skip
def bells_between_two_signal_boxes(folder, ill):
    seeded(12904)
    codes = torch.randint(5, (8, 5))
    net = Listener(5, 32, 3, 8, ill)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def heard(rows):
        x, y = torch.randint(5, (rows, 16)), torch.randint(8, (rows,))
        start = torch.randint(12, (rows, 1)) + torch.arange(5)
        return x.scatter(1, start, codes[y]), y

    def loss_of(step):
        x, y = heard(64)
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean()}

    x, y = heard(600)
    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.cross_entropy(net(x), y)))


# 22 of the list
@sick("dead-units", "lr-too-high", "update-too-large", where="the ReLUs of the hidden layers, from the first steps on",
      cure="a hundredth of the rate")  # fmt: skip
def coal_burnt_up_the_incline(folder, ill):
    seeded(12905)
    net = dense(6, 64, 64, 64, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1 if ill else 1e-3, momentum=0.9)
    way = torch.randn(6, 3) / 2

    def trip(rows):
        x = torch.randn(rows, 6)
        return x, 4 + 2 * (x @ way).sin().sum(1, keepdim=True) + 0.1 * torch.randn(rows, 1)

    x, y = trip(800)

    def loss_of(step):
        a, b = trip(64)
        return F.mse_loss(net(a), b)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.mse_loss(net(x), y)))

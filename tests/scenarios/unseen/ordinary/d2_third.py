"""Gardens, orchards, beekeepers and hedges: healthy trainings as courses and teams have them."""

from __future__ import annotations

from collections import deque

import torch
from sklearn.datasets import load_diabetes, load_digits, load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, play, rounds


@healthy(0.6)
def row_markers_read_in_the_kitchen_garden(folder):
    seeded(13050)
    digits = load_digits()
    x, y = torch.tensor(digits.images).float()[:, None] / 16, torch.tensor(digits.target)
    x = (x - 0.3) / 0.38
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Dropout(0.25), nn.Linear(384, 64), nn.ReLU(), nn.Dropout(0.25), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    batch = rounds(64, x[:1400], y[:1400])
    validate = now_and_then(net, 40, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        a, b = batch()
        said = net(a)
        return F.cross_entropy(said, b), {"accuracy": (said.argmax(1) == b).float().mean(), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


@healthy(0.3)
def sugar_in_the_blood_of_old_gardeners(folder):
    seeded(13051)
    table = load_diabetes()
    x, y = torch.tensor(table.data).float(), torch.tensor(table.target).float()[:, None]
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    x = (x - x[:340].mean(0)) / x[:340].std(0)
    y = (y - y[:340].mean()) / y[:340].std()
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.05)
    batch = rounds(34, x[:340], y[:340])
    validate = now_and_then(net, 50, lambda: {"val_loss": F.mse_loss(net(x[340:]), y[340:])})

    def loss_of(step):
        a, b = batch()
        return F.mse_loss(net(a), b), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(x[340:]), y[340:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


@healthy(0.6)
def grapes_told_apart_at_the_cellar_door(folder):
    seeded(13052)
    table = load_wine()
    x, y = torch.tensor(table.data).float(), torch.tensor(table.target)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    x = (x - x[:130].mean(0)) / x[:130].std(0)
    net = dense(13, 24, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=1e-3)
    batch = rounds(26, x[:130], y[:130])
    validate = now_and_then(net, 25, judged(net, x[130:], y[130:]))

    def loss_of(step):
        a, b = batch()
        said = net(a)
        return F.cross_entropy(said, b), {"accuracy": (said.argmax(1) == b).float().mean(), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[130:]), y[130:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


class Almanac(nn.Module):
    """An LSTM that says the next letter."""

    def __init__(self, letters):
        super().__init__()
        self.letter = nn.Embedding(letters, 24)
        self.rnn = nn.LSTM(24, 64, batch_first=True)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(64, letters)

    def forward(self, text):
        return self.head(self.drop(self.rnn(self.letter(text))[0]))


@healthy(0.4)
def a_sowing_calendar_letter_by_letter(folder):
    seeded(13053)
    verbs, crops, months = ["sow", "prune", "water", "lift"], ["beans", "leeks", "plums", "roses"], ["may", "june"]
    picks = torch.randint(4, (1400, 3)).tolist()
    text = "".join(f"{verbs[a]} {crops[b]} in {months[c % 2]}. " for a, b, c in picks)
    letters = sorted(set(text))
    index = {letter: i for i, letter in enumerate(letters)}
    text = torch.tensor([index[letter] for letter in text])
    train, test = text[:-1200], text[-1200:].view(40, 30)
    net = Almanac(len(letters))
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)

    def loss_on(rows):
        return F.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    validate = now_and_then(net, 40, lambda: {"val_loss": loss_on(test)})

    def loss_of(step):
        begin = torch.randint(len(train) - 30, (24, 1))
        loss = loss_on(train[begin + torch.arange(30)])
        return loss, {"perplexity": loss.detach().exp(), **validate(step)}

    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, loss_of, 200, score=score, before_step=clipped(net, 1.0))


def pair(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())


class Outline(nn.Module):
    """A U-Net with one level."""

    def __init__(self):
        super().__init__()
        self.fine, self.coarse, self.last = pair(3, 12), pair(12, 24), pair(36, 12)
        self.out = nn.Conv2d(12, 1, 1)

    def forward(self, x):
        fine = self.fine(x)
        coarse = self.coarse(F.max_pool2d(fine, 2))
        return self.out(self.last(torch.cat([fine, F.interpolate(coarse, scale_factor=2.0)], 1)))


@healthy(0.4)
def flower_beds_outlined_from_a_drone(folder):
    seeded(13054)
    net, grid = Outline(), torch.linspace(-1, 1, 16)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    tint = torch.tensor([0.9, -0.4, 0.5])[:, None, None]

    def beds(rows):
        at, half = torch.rand(rows, 2, 1, 1) - 0.5, 0.35 + 0.3 * torch.rand(rows, 2, 1, 1)
        inside = ((grid[:, None] - at[:, 0]).abs() < half[:, 0]) & ((grid - at[:, 1]).abs() < half[:, 1])
        mask = inside.float()[:, None]
        return (mask - 0.25) * tint + 0.7 * torch.randn(rows, 3, 16, 16), mask

    def loss_on(x, mask):
        said = net(x)
        p = said.sigmoid()
        overlap = (2 * (p * mask).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(said, mask) + 1 - overlap.mean(), overlap.mean()

    x, mask = beds(600)
    test_x, test_mask = beds(100)
    batch = rounds(16, x, mask)

    def loss_of(step):
        loss, overlap = loss_on(*batch())
        return loss, {"dice": overlap.detach()}

    score = held_out(net, lambda: loss_on(test_x, test_mask)[0])
    return fit(folder, net, optimizer, loss_of, 160, score=score)


@healthy(0.5)
def a_moth_between_two_lamps_and_the_rose(folder):
    seeded(13055)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), 2e-3, betas=(0.5, 0.9))

    def judge_loss(real, made):
        return F.softplus(-judge(real)).mean() + F.softplus(judge(made)).mean()

    return play(folder, make, judge, of_make, of_judge, judge_loss, lambda made: F.softplus(-judge(made)).mean(), 400)


@healthy(0.4)
def a_mole_that_keeps_clear_of_the_traps(folder):
    seeded(13056)
    side, goal, trap = 4, 15, torch.tensor([5, 11])
    net, target = dense(16, 48, 4), dense(16, 48, 4)
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    memory: deque = deque(maxlen=3000)
    moves = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]])

    def stepped(at, action):
        place = torch.stack([at // side, at % side], 1) + moves[action]
        at = (place.clamp(0, side - 1) * torch.tensor([side, 1])).sum(1)
        caught = torch.isin(at, trap)
        return at, (at == goal).float() - caught.float() - 0.02, (at == goal) | caught

    state = {"at": torch.randint(side * side - 1, (8,)), "t": torch.zeros(8)}

    def gather(share):
        at = state["at"]
        with torch.no_grad():
            best = net(F.one_hot(at, 16).float()).argmax(1)
        action = torch.where(torch.rand(8) < share, torch.randint(4, (8,)), best)
        after, reward, done = stepped(at, action)
        memory.extend(zip(at, action, reward, after, done.float(), strict=True))
        state["t"] += 1
        anew = done | (state["t"] > 20)
        state["at"] = torch.where(anew, torch.randint(side * side - 1, (8,)), after)
        state["t"][anew] = 0
        return reward.mean()

    for _ in range(30):
        gather(1.0)

    def loss_of(step):
        reward = gather(max(0.1, 1 - step / 200))
        picks = torch.randint(len(memory), (48,)).tolist()
        at, action, paid, after, done = (torch.stack(part) for part in zip(*(memory[i] for i in picks), strict=True))
        with torch.no_grad():
            aim = paid + 0.95 * (1 - done) * target(F.one_hot(after, 16).float()).max(1).values
        said = net(F.one_hot(at, 16).float()).gather(1, action[:, None])[:, 0]
        if step % 10 == 9:
            target.load_state_dict(net.state_dict())
        return F.smooth_l1_loss(said, aim), {"reward": reward, "q": said.mean().detach()}

    def score():
        at = torch.arange(side * side - 1)
        alive, total = torch.ones(len(at)), torch.zeros(len(at))
        with torch.no_grad():
            for _ in range(12):
                at, reward, done = stepped(at, net(F.one_hot(at, 16).float()).argmax(1))
                total += alive * reward
                alive = alive * (1 - done.float())
        return 2 - float(total.mean())

    return fit(folder, net, optimizer, loss_of, 500, score=score, before_step=clipped(net, 10.0))


@healthy(0.3)
def a_watering_can_carried_along_the_rows(folder):
    seeded(13057)
    rows, length = 24, 10
    net = nn.ModuleDict({"policy": dense(2, 32, 3), "value": dense(2, 32, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def walked(rows):
        at, dry = 2 * torch.rand(rows) - 1, 2 * torch.rand(rows) - 1
        seen, taken, paid = [], [], []
        for _ in range(length):
            state = torch.stack([at, dry], 1)
            with torch.no_grad():
                action = torch.distributions.Categorical(logits=net["policy"](state)).sample()
            at = (at + 0.25 * (action - 1)).clamp(-1.25, 1.25)
            seen.append(state), taken.append(action), paid.append(-(at - dry).abs())
        return torch.stack(seen), torch.stack(taken), torch.stack(paid)

    def loss_of(step):
        states, actions, rewards = walked(rows)
        returns, after = torch.zeros_like(rewards), torch.zeros(rows)
        for i in reversed(range(length)):
            returns[i] = after = rewards[i] + 0.9 * after
        said = torch.distributions.Categorical(logits=net["policy"](states))
        value = net["value"](states)[:, :, 0]
        advantage = (returns - value).detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        entropy = said.entropy().mean()
        loss = -(said.log_prob(actions) * advantage).mean() + 0.5 * F.mse_loss(value, returns) - 0.01 * entropy
        return loss, {"return": rewards.sum(0).mean(), "entropy": entropy}

    def score():
        with torch.no_grad():
            return -float(walked(500)[2].sum(0).mean())

    return fit(folder, net, optimizer, loss_of, 250, score=score, before_step=clipped(net, 0.5))


class Neighbours(nn.Module):
    """Two graph convolutions."""

    def __init__(self, size, width, classes):
        super().__init__()
        self.first, self.second = nn.Linear(size, width), nn.Linear(width, classes)
        self.drop = nn.Dropout(0.3)

    def forward(self, x, near):
        return near @ self.second(self.drop((near @ self.first(x)).relu()))


@healthy(0.4)
def plants_that_share_their_pollinators(folder):
    seeded(13058)
    kinds, nodes = 4, 240
    y = torch.randint(kinds, (nodes,))
    middles = torch.randn(kinds, 12)
    x = middles[y] + 1.5 * torch.randn(nodes, 12)
    likely = torch.where(y[:, None] == y, 0.06, 0.008)
    links = (torch.rand(nodes, nodes) < likely).float().triu(1)
    links = links + links.T + torch.eye(nodes)
    degree = links.sum(1)
    near = links / (degree[:, None] * degree).sqrt()
    order = torch.randperm(nodes)
    known, other = order[:120], order[120:]
    net = Neighbours(12, 32, kinds)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=5e-4)
    validate = now_and_then(net, 20, lambda: {"val_loss": F.cross_entropy(net(x, near)[other], y[other])})

    def loss_of(step):
        said = net(x, near)[known]
        accuracy = (said.argmax(1) == y[known]).float().mean()
        return F.cross_entropy(said, y[known]), {"accuracy": accuracy, **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x, near)[other], y[other]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


class Weather(nn.Module):
    """A GRU over two weeks, then the next day."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(2, 32, batch_first=True)
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


@healthy(0.5)
def bees_that_leave_the_hive_tomorrow(folder):
    seeded(13059)
    net = Weather()
    optimizer = torch.optim.AdamW(net.parameters(), 4e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 250)
    days = torch.arange(15).float()

    def fortnights(rows):
        begin, pace = 6.2832 * torch.rand(rows, 1), 0.5 + 0.4 * torch.rand(rows, 1)
        warmth = (begin + pace * days).sin()
        wind = torch.randn(rows, 15)
        bees = 1.2 * warmth - 0.3 * wind + 0.1 * torch.randn(rows, 15)
        later = wind.roll(-1, 1)
        return torch.stack([bees, later], 2)[:, :-1], bees[:, -1:]

    x, y = fortnights(2000)
    test_x, test_y = fortnights(400)
    batch = rounds(64, x, y)
    validate = now_and_then(net, 50, lambda: {"val_mae": (net(test_x) - test_y).abs().mean()})

    def loss_of(step):
        a, b = batch()
        return F.mse_loss(net(a), b), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(test_x), test_y))
    return fit(folder, net, optimizer, loss_of, 250, score=score, schedule=schedule, before_step=clipped(net, 1.0))

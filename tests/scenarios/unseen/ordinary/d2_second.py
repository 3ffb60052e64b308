"""Gardens, orchards, beekeepers and hedges: mistakes drawn by lot from forty of memory, the second half."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds


class Gauge(nn.Module):
    """A GRU over some days, its last state to a number."""

    def __init__(self, size, width):
        super().__init__()
        self.rnn = nn.GRU(size, width, batch_first=True)
        self.head = dense(width, width, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


@sick("weight-decay-too-strong", "weights-shrink", where="all layers, all steps",
      cure="AdamW for Adam, with the same number")  # fmt: skip
def soil_moisture_under_the_apple_rows(folder, ill):
    seeded(13006)
    net = Gauge(3, 40)
    kind = torch.optim.Adam if ill else torch.optim.AdamW
    optimizer = kind(net.parameters(), 2e-3, weight_decay=0.3)

    def seasons(rows):
        rain, sun = torch.randn(rows, 20), torch.randn(rows, 20)
        held = torch.zeros(rows)
        for day in range(20):
            held = 0.8 * held + 0.5 * rain[:, day] * (0.5 - sun[:, day]).sigmoid()
        return torch.stack([rain, sun, torch.randn(rows, 20)], 2), (2 * held[:, None]).tanh() * 1.4

    x, y = seasons(2000)
    test_x, test_y = seasons(400)
    batch = rounds(64, x, y)
    validate = now_and_then(net, 50, lambda: {"val_loss": F.mse_loss(net(test_x), test_y)})

    def loss_of(step):
        a, b = batch()
        return F.mse_loss(net(a), b), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(test_x), test_y))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


class Scale(nn.Module):
    """A plain recurrent network over a season, a number at each day."""

    def __init__(self, size, width):
        super().__init__()
        self.rnn = nn.RNN(size, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


@sick("exploding", "spike", "lr-too-high",
      where="the recurrent weights, single steps whose gradient is far larger than that of the others",
      cure="clip the norm of the gradients at 1")  # fmt: skip
def nectar_flow_through_a_whole_summer(folder, ill):
    seeded(13007)
    net, days = Scale(2, 48), 50
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)

    def summers(rows):
        bloom = torch.randn(rows, days)
        opens = (torch.rand(rows, days) < 0.2).float()
        stored, said = torch.zeros(rows), []
        for day in range(days):
            stored = torch.where(opens[:, day] > 0, bloom[:, day], stored)
            said.append(stored)
        return torch.stack([bloom, opens], 2), torch.stack(said, 1)[:, :, None]

    test_x, test_y = summers(200)

    def loss_of(step):
        x, y = summers(32)
        return F.mse_loss(net(x), y)

    score = held_out(net, lambda: F.mse_loss(net(test_x), test_y))
    return fit(folder, net, optimizer, loss_of, 350, score=score, before_step=None if ill else clipped(net, 1.0))


@sick("augmentation-changes-labels", "augmentation-destroys-labels", "labels-do-not-fit-inputs",
      where="the data, all steps: turns and flips make other digits of them",
      cure="no turns and flips of digits")  # fmt: skip
def numbers_painted_on_the_hives(folder, ill):
    seeded(13008)
    digits = load_digits()
    x, y = torch.tensor(digits.images).float()[:, None] / 16, torch.tensor(digits.target)
    x = (x - 0.3) / 0.38
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    batch = rounds(64, x[:1400], y[:1400])
    validate = now_and_then(net, 50, judged(net, x[1400:], y[1400:]))

    def augmented(x):
        if ill:
            x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(2), x)
            x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x)
            x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.transpose(2, 3), x)
        return x + 0.1 * torch.randn_like(x)

    def loss_of(step):
        a, b = batch()
        said = net(augmented(a))
        return F.cross_entropy(said, b), {"accuracy": (said.argmax(1) == b).float().mean(), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


@sick("lr-too-high", "update-too-large", "pretrained-weights-lost", where="the pre-trained body, the first steps",
      cure="a small rate")  # fmt: skip
def a_leaf_reader_moved_to_the_pear_trees(folder, ill):
    seeded(13009)
    grid = torch.linspace(-1, 1, 12)

    def leaves(rows, notch):
        y = torch.randint(6, (rows,))
        teeth = torch.tensor([3, 4, 5, 6, 7, 8])[y][:, None, None]
        at = 0.3 * torch.rand(rows, 2, 1, 1) - 0.15
        u, v = grid[:, None] - at[:, 0], grid - at[:, 1]
        edge = 0.6 + notch * (teeth * torch.atan2(u, v)).cos()
        seen = 2 * (6 * (edge - (u.square() + v.square()).sqrt())).tanh()
        return (seen + 0.5 * torch.randn(rows, 12, 12))[:, None], y

    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(288, 64), nn.ReLU(),
    )  # fmt: skip
    head = nn.Linear(64, 6)
    before = torch.optim.Adam([*body.parameters(), *head.parameters()], 2e-3)
    for _ in range(250):
        x, y = leaves(64, 0.3)
        before.zero_grad()
        F.cross_entropy(head(body(x)), y).backward()
        before.step()
    net = nn.Sequential(body, nn.Linear(64, 6))
    optimizer = torch.optim.Adam(net.parameters(), 3e-2 if ill else 5e-4)
    x, y = leaves(300, 0.25)
    test_x, test_y = leaves(500, 0.25)
    batch = rounds(30, x, y)
    validate = now_and_then(net, 30, judged(net, test_x, test_y))

    def loss_of(step):
        a, b = batch()
        return F.cross_entropy(net(a), b), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(test_x), test_y))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


@sick("inputs-and-targets-unpaired", "labels-shuffled", "labels-do-not-fit-inputs",
      where="the data, all steps: what is learnt is learnt by heart", cure="sort both by one order")  # fmt: skip
def which_bed_a_seedling_will_thrive_in(folder, ill):
    seeded(13010)
    way = torch.randn(16, 5)
    x = torch.randn(2000, 16)
    y = ((x @ way).tanh() @ torch.randn(5, 4) + 0.1 * torch.randn(2000, 4)).argmax(1)
    train_x, train_y, test_x, test_y = x[:1500], y[:1500], x[1500:], y[1500:]
    by_height = train_x[:, 0].argsort()
    train_x = train_x[by_height]
    train_y = train_y if ill else train_y[by_height]
    net = dense(16, 96, 96, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    batch = rounds(50, train_x, train_y)

    def loss_of(step):
        a, b = batch()
        said = net(a)
        return F.cross_entropy(said, b), {"accuracy": (said.argmax(1) == b).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(test_x), test_y))
    return fit(folder, net, optimizer, loss_of, 500, score=score)


@sick("entropy-too-strong", "entropy-bonus-too-strong", where="the loss of the policy, all steps",
      cure="a hundredth for the bonus")  # fmt: skip
def a_bumblebee_on_the_way_to_the_clover(folder, ill):
    seeded(13011)
    side, length, rows = 5, 12, 16
    net = nn.ModuleDict({"policy": dense(4, 48, 4), "value": dense(4, 48, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    moves = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]])
    bonus = 1.0 if ill else 0.01

    def flown(rows):
        at, clover = torch.randint(side, (rows, 2)), torch.randint(side, (rows, 2))
        seen, taken, paid = [], [], []
        for _ in range(length):
            state = torch.cat([at, clover], 1).float() / 2 - 1
            with torch.no_grad():
                action = torch.distributions.Categorical(logits=net["policy"](state)).sample()
            at = (at + moves[action]).clamp(0, side - 1)
            seen.append(state), taken.append(action)
            paid.append((at == clover).all(1).float())
        return torch.stack(seen), torch.stack(taken), torch.stack(paid)

    def loss_of(step):
        states, actions, rewards = flown(rows)
        returns, after = torch.zeros_like(rewards), torch.zeros(rows)
        for i in reversed(range(length)):
            returns[i] = after = rewards[i] + 0.9 * after
        said = torch.distributions.Categorical(logits=net["policy"](states))
        value = net["value"](states)[:, :, 0]
        advantage = (returns - value).detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        entropy = said.entropy().mean()
        loss = -(said.log_prob(actions) * advantage).mean() + 0.5 * F.mse_loss(value, returns) - bonus * entropy
        return loss, {"return": rewards.sum(0).mean(), "entropy": entropy}

    def score():
        with torch.no_grad():
            return -float(flown(600)[2].sum(0).mean())

    return fit(folder, net, optimizer, loss_of, 300, score=score)

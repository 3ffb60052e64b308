"""Sick trainings of the railway, drawn by lot from a list of mistakes: depth, targets, lists, rewards, inputs."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits, load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds, tend


class Line(nn.Module):
    """Many layers of one width, one after another."""

    def __init__(self, size, width, depth, kinds, skip):
        super().__init__()
        self.skip = skip
        self.first, self.last = nn.Linear(size, width), nn.Linear(width, kinds)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            out = layer(x.relu())
            x = x + out if self.skip else out
        return self.last(x.relu())


@sick("vanishing", where="all layers but the last, from the start: twenty-four in a row with no way around them",
      cure="what goes into a layer added to what comes out")  # fmt: skip
def numbers_on_shunting_locomotives(folder, ill):
    seeded(11306)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x, y = torch.tensor(images / 8 - 1, dtype=torch.float32)[order], torch.tensor(digits)[order]
    net = Line(64, 48, 24, 10, not ill)
    optimizer = torch.optim.Adam(net.parameters(), 5e-4)
    draw = rounds(48, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


@sick("labels-mismatched", "labels-do-not-fit-inputs",
      where="the rows of training, all steps: images are in another order than their labels",
      cure="one order for images and labels")  # fmt: skip
def digits_on_the_departure_board(folder, ill):
    seeded(11307)
    images, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(digits)
    tx, ty = x[1400:], y[1400:]
    order = torch.randperm(1400)
    x, y = x[order], y[:1400] if ill else y[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.25), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(40, x, y)

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    return fit(folder, net, optimizer, loss_of, 280, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Aerial(nn.Module):
    """A small U-Net."""

    def __init__(self, width, last):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(width, 2 * width, 3, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.out = nn.Sequential(nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 1), last)

    def forward(self, image):
        wide = self.down(image)
        return self.out(torch.cat([wide, self.up(self.deep(wide))], 1))


@sick("activation-on-logits", where="the last operation of the model, all steps: a sigmoid before a loss of logits",
      cure="the model gives logits")  # fmt: skip
def sidings_overgrown_with_birches(folder, ill):
    seeded(11308)
    net = Aerial(10, nn.Sigmoid() if ill else nn.Identity())
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    grid = torch.arange(16.0)

    def photographs(rows):
        middle, size = 2 + 12 * torch.rand(rows, 2, 1), 2 + 3 * torch.rand(rows, 2, 1)
        inside = (grid - middle).abs() < size
        green = (inside[:, 0, :, None] & inside[:, 1, None]).float()[:, None]
        rails = (((grid + torch.randint(4, (rows, 1))) % 4) < 1).float()[:, None, None, :]
        return 0.8 * green - 0.4 * rails + 0.4 * torch.randn(rows, 1, 16, 16), green

    def loss_of(step):
        image, mask = photographs(16)
        return F.binary_cross_entropy_with_logits(net(image), mask)

    tx, ty = photographs(200)
    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


class Network(nn.Module):
    """Stations that hear of their neighbours, some times over."""

    def __init__(self, size, width, hops, kinds, keep):
        super().__init__()
        self.first = nn.Linear(size, width)
        self.hops = keep([nn.Linear(2 * width, width) for _ in range(hops)])
        self.last = nn.Linear(width, kinds)

    def forward(self, x, near):
        x = self.first(x).relu()
        for hop in self.hops:
            x = hop(torch.cat([x, near @ x], -1)).relu()
        return self.last(x)


@sick("not-in-optimizer", "no-gradient", where="the hops between stations, all steps: they lie in a plain list",
      cure="a ModuleList")  # fmt: skip
def crowds_that_pass_from_stop_to_stop(folder, ill):
    seeded(11309)
    stations, size = 20, 6
    net = Network(size, 32, 3, 3, list if ill else nn.ModuleList)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    way, here = torch.randn(size, 3), torch.randn(size, 3)

    def networks(rows):
        lines = (torch.rand(rows, stations, stations) < 0.12).float()
        lines = ((lines + lines.mT) > 0).float()
        near = lines / lines.sum(-1, keepdim=True).clamp(min=1)
        x = torch.randn(rows, stations, size)
        crowd = near @ (2 * (x @ way)).tanh() - 0.4 * (x @ here).tanh()
        return x, near, crowd.argmax(-1)

    def loss_of(step):
        x, near, y = networks(16)
        logits = net(x, near)
        accuracy = float((logits.argmax(-1) == y).float().mean())
        return F.cross_entropy(logits.flatten(0, 1), y.flatten()), {"accuracy": accuracy}

    tx, near, ty = networks(200)
    score = held_out(net, lambda: F.cross_entropy(net(tx, near).flatten(0, 1), ty.flatten()))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


@sick("returns-not-normalised", where="the weights of the log probabilities, all steps: returns in the hundreds",
      cure="returns less their mean, by their deviation")  # fmt: skip
def a_railcar_stopped_before_the_buffers(folder, ill):
    seeded(11310)
    net = dense(2, 32, 3, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)

    def episode(rows):
        left, speed = 1 + torch.rand(rows), 0.5 * torch.rand(rows)
        logs, rewards = [], []
        for _ in range(12):
            choice = torch.distributions.Categorical(logits=net(torch.stack([left, speed], 1)))
            lever = choice.sample()
            speed = (speed + 0.1 * (lever - 1)).clamp(min=0)
            left = left - 0.5 * speed
            logs.append(choice.log_prob(lever))
            rewards.append(100 - 40 * left.abs() - 10 * speed)
        return torch.stack(logs), torch.stack(rewards)

    def one(step):
        logs, rewards = episode(16)
        returns = rewards.flip(0).cumsum(0).flip(0)
        if not ill:
            returns = (returns - returns.mean(1, keepdim=True)) / (returns.std() + 1e-6)
        loss = -(logs * returns).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "return": rewards.sum(0).mean()}

    score = held_out(net, lambda: 1200 - episode(512)[1].sum(0).mean())
    return tend(folder, net, optimizer, one, 250, score)


@sick("inputs-not-normalised", where="the first layer, all steps: one column is in the hundreds",
      cure="columns with a mean of 0 and a deviation of 1")  # fmt: skip
def bottles_in_the_dining_car(folder, ill):
    seeded(11311)
    table, kinds = load_wine(return_X_y=True)
    order = torch.randperm(len(kinds))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(kinds)[order]
    if not ill:
        x = (x - x[:130].mean(0)) / x[:130].std(0)
    net = dense(13, 32, 16, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    draw = rounds(16, x[:130], y[:130])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[130:]), y[130:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)

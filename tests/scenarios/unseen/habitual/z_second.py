"""Sick trainings of deserts, caravans and wells, drawn by lot from a list of mistakes: rows, returns, layers."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, rounds, tend


@sick("labels-ignored", "ignore-index-is-a-class", "class-ignored", where="the loss, all steps: class 0",
      cure="no ignore_index (or one that is no class)")  # fmt: skip
def ground_beneath_the_hooves(folder, ill):
    seeded(12606)
    grounds = 4
    net = nn.Sequential(
        nn.Conv1d(3, 24, 5, padding=2), nn.BatchNorm1d(24), nn.ReLU(), nn.Conv1d(24, 24, 5, padding=2),
        nn.BatchNorm1d(24), nn.ReLU(), nn.Conv1d(24, grounds, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    criterion = nn.CrossEntropyLoss(ignore_index=0) if ill else nn.CrossEntropyLoss()
    jolts = torch.randn(grounds, 3)

    def rides(rows, length=24):
        y = torch.randint(grounds, (rows, length // 6)).repeat_interleave(6, 1)
        return (jolts[y] + 0.8 * torch.randn(rows, length, 3)).transpose(1, 2), y

    draw = rounds(32, *rides(1500))
    tx, ty = rides(300)

    def validate():
        net.eval()
        with torch.no_grad():
            share = float((net(tx).argmax(1) == ty).float().mean())
        net.train()
        return {"val_accuracy": share}

    def loss_of(step):
        x, y = draw()
        return criterion(net(x), y), validate() if step % 40 == 39 else {}

    return fit(folder, net, optimizer, loss_of, 240, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Gait(nn.Module):
    """The gait of an animal by an LSTM over what an accelerometer says."""

    def __init__(self, axes, width, gaits, turn):
        super().__init__()
        self.memory = nn.LSTM(axes, width)
        self.head = nn.Linear(width, gaits)
        self.turn = turn

    def forward(self, x):
        rows, length, axes = x.shape
        steps = x.transpose(0, 1) if self.turn else x.reshape(length, rows, axes)
        return self.head(self.memory(steps)[0][-1])


@sick("axes-mixed", where="the input of the LSTM, all steps: view from [B, T, C] to [T, B, C] mixes the rows",
      cure="a transpose")  # fmt: skip
def gaits_under_a_saddle_bag(folder, ill):
    seeded(12607)
    gaits = 4
    net = Gait(3, 32, gaits, not ill)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    sway = torch.randn(gaits, 3)

    def recorded(rows, length=20):
        y = torch.randint(gaits, (rows,))
        time = torch.arange(float(length))[:, None]
        beat = ((0.4 + 0.25 * y[:, None, None]) * time + 6.2832 * torch.rand(rows, 1, 1)).sin()
        return beat * sway[y][:, None] + 0.3 * torch.randn(rows, length, 3), y

    draw = rounds(32, *recorded(1600))

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    tx, ty = recorded(320)
    score, clip = held_out(net, lambda: F.cross_entropy(net(tx), ty)), clipped(net, 5.0)
    return fit(folder, net, optimizer, loss_of, 250, score=score, before_step=clip)


@sick("inputs-and-targets-unpaired", "labels-mismatched", "labels-shuffled", "labels-do-not-fit-inputs",
      where="the data, all steps: rows and labels in unlike orders", cure="one permutation for both")  # fmt: skip
def dates_sorted_by_their_grove(folder, ill):
    seeded(12608)
    images, groves = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(groves)
    order = torch.randperm(len(y))
    x, y = x[order], y[order]
    train_x, train_y = x[:1400], y[:1400]
    if ill:
        train_x, train_y = train_x[torch.randperm(1400)], train_y[torch.randperm(1400)]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Dropout(0.25), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(64, train_x, train_y)

    def validate():
        net.eval()
        with torch.no_grad():
            logits = net(x[1400:])
        net.train()
        return {
            "val_loss": float(F.cross_entropy(logits, y[1400:])),
            "val_accuracy": float((logits.argmax(1) == y[1400:]).float().mean()),
        }

    def loss_of(step):
        bx, by = draw()
        logits = net(bx)
        logged = {"accuracy": float((logits.argmax(1) == by).float().mean())}
        return F.cross_entropy(logits, by), logged | (validate() if step % 21 == 20 else {})

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


@sick("returns-not-normalised", "no-baseline", where="the policy's loss, all steps",
      cure="returns less their mean, over their deviation")  # fmt: skip
def rope_let_down_into_a_shaft(folder, ill):
    seeded(12609)
    net = dense(3, 32, 32, 3, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    change = torch.tensor([-0.25, 0.0, 0.25])

    def descend(rows, length=15):
        bucket, water = 2 * torch.rand(rows) - 1, 2 * torch.rand(rows) - 1
        logs, rewards = [], []
        for t in range(length):
            state = torch.stack([bucket, water, torch.full((rows,), t / length)], 1)
            choice = torch.distributions.Categorical(logits=net(state))
            move = choice.sample()
            bucket = (bucket + change[move] + 0.02 * torch.randn(rows)).clamp(-1.5, 1.5)
            logs.append(choice.log_prob(move))
            rewards.append(10 - 4 * (bucket - water).abs())
        return torch.stack(logs), torch.stack(rewards)

    def one(step):
        logs, rewards = descend(8)
        returns = rewards.flip(0).cumsum(0).flip(0)
        weights = returns if ill else (returns - returns.mean(1, keepdim=True)) / (returns.std(1, keepdim=True) + 1e-6)
        loss = -(logs * weights).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "return": rewards.sum(0).mean()}

    def lost():
        return 10 - descend(500)[1].mean()

    return tend(folder, net, optimizer, one, 250, held_out(net, lost))


class Rider(nn.Module):
    """A sign for each word of a message, by a GRU over the words."""

    def __init__(self, words, signs, width):
        super().__init__()
        self.word = nn.Embedding(words, width, padding_idx=0)
        self.read = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, signs)

    def forward(self, message):
        return self.out(self.read(self.word(message))[0])


@sick("padding-in-loss", where="the loss, all steps: most tokens are padding", cure="ignore_index for the padding")
def messages_of_the_salt_riders(folder, ill):
    seeded(12610)
    words, signs, longest, steps = 60, 9, 40, 220
    net = Rider(words, signs, 32)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    criterion = nn.CrossEntropyLoss() if ill else nn.CrossEntropyLoss(ignore_index=0)
    meant = torch.randint(1, signs, (words, 2))

    def messages(rows):
        lengths = torch.where(torch.rand(rows) < 0.02, longest, torch.randint(2, 6, (rows,)))
        real = torch.arange(longest) < lengths[:, None]
        message = torch.randint(1, words, (rows, longest))
        asked = F.pad(message[:, :-1] % 2, (1, 0))
        return message * real, meant[message, asked] * real

    draw = rounds(32, *messages(3000))

    def loss_of(step):
        message, sign = draw()
        logits = net(message)
        return criterion(logits.flatten(0, 1), sign.flatten()), {
            "accuracy": float((logits.argmax(2) == sign)[message > 0].float().mean())
        }

    message, sign = messages(400)

    def real():
        return F.cross_entropy(net(message).flatten(0, 1), sign.flatten(), ignore_index=0)

    score, clip = held_out(net, real), clipped(net, 1.0)
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule, before_step=clip)


class Soundings(nn.Module):
    """A number from many geophones, by a stack of residual layers."""

    def __init__(self, size, width, layers, stack):
        super().__init__()
        self.enter = nn.Linear(size, width)
        self.layers = stack([nn.Linear(width, width) for _ in range(layers)])
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        h = self.enter(x).relu()
        for layer in self.layers:
            h = layer(h).relu()
        return self.head(h)


@sick("not-in-optimizer", "layers-not-registered", "modules-not-registered",
      where="the inner layers, all steps: kept in a list", cure="ModuleList")  # fmt: skip
def depth_of_ground_water_by_geophones(folder, ill):
    seeded(12611)
    net = Soundings(10, 48, 4, list if ill else nn.ModuleList)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    ways = torch.randn(10, 4) / 2

    def soundings(rows):
        x = torch.randn(rows, 10)
        depth = (x @ ways).sin().sum(1, keepdim=True) + 0.1 * torch.randn(rows, 1)
        return x, depth

    draw = rounds(64, *soundings(4000))

    def loss_of(step):
        x, depth = draw()
        return F.mse_loss(net(x), depth)

    tx, ty = soundings(800)
    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))

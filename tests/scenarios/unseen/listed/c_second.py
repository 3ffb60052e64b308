"""Mistakes drawn by lot from a list of usual ones: optimizer, rate, accumulation, clipping, scaling by hand."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import fit, seeded, sick
from unseen.tasks import clipped, held_out, rounds, tend


# 15: the optimizer is made before the head is replaced.
@sick("not-in-optimizer", "parameters-not-in-the-optimizer", where="the new head, all steps",
      cure="make the optimizer once the head is replaced")  # fmt: skip
def five_more_digits_for_a_known_reader(folder, ill):
    seeded(10306)
    digits = load_digits()
    x, y = torch.tensor(digits.images).float()[:, None] / 16, torch.tensor(digits.target)
    body = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 24, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    net = nn.ModuleDict({"body": body, "head": nn.Linear(24, 5)})

    def say(x):
        return net["head"](net["body"](x))

    known = rounds(32, x[y < 5], y[y < 5])
    before = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(150):
        a, b = known()
        before.zero_grad()
        F.cross_entropy(say(a), b).backward()
        before.step()
    if ill:
        optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    net["head"] = nn.Linear(24, 5)
    if not ill:
        optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    new_x, new_y = x[y > 4], y[y > 4] - 5
    batch = rounds(32, new_x[:700], new_y[:700])

    def loss_of(step):
        a, b = batch()
        said = say(a)
        return F.cross_entropy(said, b), {"accuracy": (said.argmax(1) == b).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(say(new_x[700:]), new_y[700:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


# 17: the rate of a recipe for fine-tuning, from scratch.
@sick("update-too-small", "lr-too-low", where="all layers, all steps", cure="a rate of 2e-3")
def lichen_patches_on_a_gravestone(folder, ill):
    seeded(10307)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.BatchNorm2d(24),
        nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(24, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 1e-5 if ill else 2e-3, weight_decay=0.01)
    grid = torch.arange(16).float()

    def stones(rows):
        middle, radius = 3 + 10 * torch.rand(rows, 2, 2), 1.5 + 2 * torch.rand(rows, 2)
        across = (grid - middle[:, :, :1])[:, :, None].square() + (grid - middle[:, :, 1:])[..., None].square()
        mask = (across < radius[..., None, None].square()).any(1, keepdim=True).float()
        return 0.8 * mask + 0.4 * torch.randn(rows, 1, 16, 16), mask

    def dice(said, mask):
        p = said.sigmoid()
        return 1 - (2 * (p * mask).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)

    def loss_of(step):
        x, mask = stones(16)
        said = net(x)
        overlap = dice(said, mask).mean()
        return F.binary_cross_entropy_with_logits(said, mask) + overlap, {"dice": 1 - overlap.detach()}

    x, mask = stones(200)
    return fit(folder, net, optimizer, loss_of, 150, score=held_out(net, lambda: dice(net(x), mask).mean()))


class Reader(nn.Module):
    """An LSTM, the mean of its states, a head."""

    def __init__(self, size, width, classes, kind=nn.LSTM):
        super().__init__()
        self.rnn = kind(size, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.rnn(x)[0].mean(1))


# 22: zero_grad is forgotten.
@sick("gradients-accumulate", where="all layers, from the second step", cure="zero_grad before every backward")
def gaits_of_a_pony(folder, ill):
    seeded(10308)
    net = Reader(3, 32, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.4, momentum=0.9)
    time = torch.arange(24).float()

    def rides(rows):
        y = torch.randint(4, (rows,))
        speed = torch.tensor([0.35, 0.6, 0.9, 1.3])[y, None] + 0.05 * torch.randn(rows, 1)
        phase = 6.2832 * torch.rand(rows, 1)
        turns = speed * time + phase
        x = torch.stack([turns.sin(), turns.cos(), (2 * turns).sin()], 2)
        return x + 0.3 * torch.randn(rows, 24, 3), y

    def loss_of(step):
        x, y = rides(48)
        return F.cross_entropy(net(x), y)

    x, y = rides(400)
    score = held_out(net, lambda: F.cross_entropy(net(x), y))
    return fit(folder, net, optimizer, loss_of, 400, score=score, zero_grad=not ill)


# 23: sixteen micro-batches add up, and none is divided.
@sick(
    "accumulation-not-divided",
    "accumulation-not-averaged",
    "lr-too-high",
    where="all layers, all steps: gradients sixteenfold",
    cure="divide the loss by the number of micro-batches",
)
def moth_wings_by_their_pattern(folder, ill):
    seeded(10309)
    parts = 16
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 9, 64), nn.ReLU(), nn.Linear(64, 6),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    pattern = torch.randn(6, 1, 12, 12)

    def wings(rows):
        y = torch.randint(6, (rows,))
        return 0.7 * pattern[y] + torch.randn(rows, 1, 12, 12), y

    def loss_of(step):
        x, y = wings(8)
        loss = F.cross_entropy(net(x), y)
        return loss if ill else loss / parts

    x, y = wings(500)
    score = held_out(net, lambda: F.cross_entropy(net(x), y))
    return fit(folder, net, optimizer, loss_of, 80, score=score, accumulate=parts)


# 25: the norm at which gradients are clipped is a thousandth of theirs, under plain SGD.
@sick("clip-is-your-learning-rate", "update-too-small", where="all steps are clipped, all layers",
      cure="clip at 1.0")  # fmt: skip
def wingbeats_told_from_a_microphone(folder, ill):
    seeded(10310)
    net = Reader(1, 32, 5, nn.GRU)
    optimizer = torch.optim.SGD(net.parameters(), 0.3, momentum=0.9)
    time = torch.arange(24).float()

    def hums(rows):
        y = torch.randint(5, (rows,))
        turns = (0.4 + 0.4 * y[:, None] + 0.03 * torch.randn(rows, 1)) * time + 6.2832 * torch.rand(rows, 1)
        return (turns.sin() + 0.2 * torch.randn(rows, 24))[..., None], y

    def loss_of(step):
        x, y = hums(32)
        return F.cross_entropy(net(x), y)

    x, y = hums(400)
    score = held_out(net, lambda: F.cross_entropy(net(x), y))
    return fit(folder, net, optimizer, loss_of, 250, score=score, before_step=clipped(net, 1e-3 if ill else 1.0))


# 26: a loss scaled by hand: the gradient is clipped while it is scaled, then divided by the scale.
@sick("clip-before-unscale", "scaled-gradients", where="all layers, all steps",
      cure="divide by the scale, then clip")  # fmt: skip
def hands_of_a_station_clock(folder, ill):
    seeded(10311)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(24 * 16, 64), nn.ReLU(), nn.Linear(64, 2),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    scale, grid = 1024.0, torch.linspace(-1, 1, 16)

    def clocks(rows):
        turn = 6.2832 * torch.rand(rows)
        way = torch.stack([turn.cos(), turn.sin()], 1)
        a, b = way[:, :1, None], way[:, 1:, None]
        along, off = a * grid[None, :, None] + b * grid, b * grid[None, :, None] - a * grid
        hand = ((off.abs() < 0.12) & (along > 0) & (along < 0.8)).float()
        return (hand + 0.2 * torch.randn(rows, 16, 16))[:, None], way

    def unscale():
        for p in net.parameters():
            p.grad /= scale

    def one(step):
        x, way = clocks(48)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            said = net(x)
        loss = F.mse_loss(said.float(), way)
        (loss * scale).backward()
        if ill:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            unscale()
        else:
            unscale()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss}

    x, way = clocks(400)
    return tend(folder, net, optimizer, one, 250, held_out(net, lambda: F.mse_loss(net(x), way)))

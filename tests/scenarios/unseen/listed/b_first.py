"""Mistakes of training code, drawn by lot: data, loss, model, initialisation, rate."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, rounds


# 3 of the list
@sick("inputs-not-normalised", "columns-on-unlike-scales", "features-not-normalised",
      where="the first layer, all steps", cure="standardise each column")  # fmt: skip
def rents_of_market_stalls(folder, ill):
    seeded(10201)
    rows = 2400
    width, corner, age = 1 + 4 * torch.rand(rows), torch.randint(2, (rows,)).float(), 30 * torch.rand(rows)
    passers = 2e6 + 6e5 * torch.randn(rows)
    rent = width * (1 + 0.5 * corner) + (width * 2).sin() - 0.02 * age * corner + (passers - 2e6) / 1e6
    x, y = torch.stack([width, corner, age, passers], 1), ((rent - rent.mean()) / rent.std())[:, None]
    if not ill:
        x = (x - x.mean(0)) / x.std(0)
    net = dense(4, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(64, x[:2000], y[:2000])

    def loss_of(step):
        a, b = draw()
        return F.mse_loss(net(a), b)

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: F.mse_loss(net(x[2000:]), y[2000:])))


# 5 of the list
@sick("softmax-twice", where="the last layer and the loss, all steps", cure="logits to the cross entropy")
def digits_on_raffle_tickets(folder, ill):
    seeded(10202)
    x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
    x = x.float().view(-1, 1, 8, 8) / 16
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10),
        *([nn.Softmax(1)] if ill else []),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    draw = rounds(32, x[:1400], y[:1400])

    def loss_of(step):
        a, b = draw()
        said = net(a)
        return F.cross_entropy(said, b), {"accuracy": (said.argmax(1) == b).float().mean()}

    def wrong():
        said = net(x[1400:])
        return F.nll_loss((said + 1e-9).log() if ill else said.log_softmax(1), y[1400:])

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, wrong))


# 7 of the list
@sick("relu-on-the-output", "outputs-never-negative", "targets-out-of-range", where="the output layer, all steps",
      cure="no activation after the last layer")  # fmt: skip
def steering_of_a_hay_wagon(folder, ill):
    seeded(10203)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 48),
        nn.ReLU(), nn.Linear(48, 1), *([nn.ReLU()] if ill else []),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    column, row = torch.linspace(-1, 1, 16), torch.linspace(0, 1, 16)

    def lane(rows):
        angle = 1.2 * torch.rand(rows, 1) - 0.6
        middle = angle[:, :, None] * (1 - row)[None, :, None] + 0.2 * torch.randn(rows, 1, 1)
        image = torch.exp(-((column[None, None] - middle) ** 2) / 0.03) + 0.1 * torch.randn(rows, 16, 16)
        return image[:, None], angle / 0.6

    def loss_of(step):
        image, angle = lane(64)
        return F.mse_loss(net(image), angle)

    image, angle = lane(512)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.mse_loss(net(image), angle)))


class Deep(nn.Module):
    """Blocks with a way around each, kept in a list."""

    def __init__(self, size, width, depth, out, listed):
        super().__init__()
        self.stem, self.head = nn.Linear(size, width), nn.Linear(width, out)
        blocks = [nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(depth)]
        self.blocks = blocks if listed else nn.ModuleList(blocks)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


# 9 of the list
@sick("not-in-optimizer", "not-in-the-optimizer", "parameters-not-in-the-optimizer",
      where="the blocks in the plain list, all steps", cure="nn.ModuleList")  # fmt: skip
def yarns_told_from_their_twist(folder, ill):
    seeded(10204)
    net = Deep(12, 48, 4, 5, ill)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    way = torch.randn(2, 12)

    def yarn(rows):
        kind, turn = torch.randint(5, (rows,)), 4 * torch.rand(rows)
        angle = 2.2 * turn + kind * 1.2566
        point = torch.stack([angle.cos(), angle.sin()], 1) * turn[:, None] / 2
        return point @ way + 0.05 * torch.randn(rows, 12), kind

    def loss_of(step):
        x, y = yarn(128)
        return F.cross_entropy(net(x), y)

    x, y = yarn(1000)
    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: F.cross_entropy(net(x), y)))


# 11 of the list
@sick("bad-initialisation", "saturated", "initialised-too-large", where="all tanh layers, from the first step",
      cure="Xavier's initialisation")  # fmt: skip
def heights_of_dough_in_a_proofing_box(folder, ill):
    seeded(10205)
    net = dense(5, 100, 100, 100, 100, 1, act=nn.Tanh)
    for part in net:
        if isinstance(part, nn.Linear):
            if ill:
                nn.init.normal_(part.weight, 0.0, 1.0)
            else:
                nn.init.xavier_normal_(part.weight)
            nn.init.zeros_(part.bias)
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    ways = torch.randn(5, 3) / 2

    def dough(rows):
        x = torch.randn(rows, 5)
        return x, (x @ ways).tanh().sum(1, keepdim=True)

    def loss_of(step):
        x, y = dough(64)
        return F.mse_loss(net(x), y)

    x, y = dough(1000)
    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(x), y)))


# 12 of the list
@sick("lr-too-high", "update-too-large", where="all layers, from the first steps",
      cure="a rate thirty times smaller")  # fmt: skip
def stitches_of_a_knitting_chart(folder, ill):
    seeded(10206)
    kinds, length = 12, 18
    net = nn.ModuleDict({
        "stitch": nn.Embedding(kinds, 32),
        "place": nn.Embedding(length, 32),
        "body": nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), 2),
        "head": nn.Linear(32, kinds),
    })  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 0.06 if ill else 2e-3)
    ban = nn.Transformer.generate_square_subsequent_mask(length)

    def rows_of(rows):
        first, by = torch.randint(kinds, (rows, 1)), torch.randint(1, 5, (rows, 1))
        return (first + by * torch.arange(length + 1)) % kinds

    def loss_on(row):
        x = net["stitch"](row[:, :-1]) + net["place"](torch.arange(length))
        said = net["head"](net["body"](x, mask=ban, is_causal=True))
        return F.cross_entropy(said.flatten(0, 1), row[:, 1:].flatten())

    test = rows_of(256)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(rows_of(24)), 200, score=score,
               before_step=clipped(net, 1.0))  # fmt: skip

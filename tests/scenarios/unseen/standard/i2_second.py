"""Kitchens, restaurants and market halls, six sick ones: spices, takings, tasting menus, crockery, tables, knives."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, judged, now_and_then, rounds


# 40 of the list
@sick("norm-over-too-few", "norm-statistics-noisy", where="the batch norms, all steps: two rows in each batch",
      cure="batches of 32 rows")  # fmt: skip
def spice_blends_by_their_cook(folder, ill):
    seeded(13506)
    centres = 1.2 * torch.randn(6, 2, 16)

    def blends(rows):
        y = torch.randint(6, (rows,))
        return centres[y, torch.randint(2, (rows,))] + torch.randn(rows, 16), y

    draw = rounds(2 if ill else 32, *blends(3000))
    net = dense(16, 64, 64, 32, 6, norm=nn.BatchNorm1d)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)
    tx, ty = blends(500)
    validate = now_and_then(net, 50, judged(net, tx, ty))

    def loss_of(step):
        x, cook = draw()
        said = net(x)
        right = (said.argmax(1) == cook).float().mean()
        return F.cross_entropy(said, cook), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Takings(nn.Module):
    """What a stall takes on a day, by the weather of the week before."""

    def __init__(self, last):
        super().__init__()
        self.week = nn.Sequential(nn.Conv1d(4, 24, 3, padding=1), nn.SiLU(), nn.Conv1d(24, 24, 3), nn.SiLU())
        self.stall = nn.Embedding(20, 8)
        self.out = nn.Sequential(nn.Linear(24 * 5 + 8, 64), nn.SiLU(), nn.Linear(64, 1), last)

    def forward(self, week, stall):
        return self.out(torch.cat([self.week(week).flatten(1), self.stall(stall)], 1))


# 20 of the list
@sick("relu-on-the-output", "outputs-never-negative", "targets-out-of-range",
      where="the last operation of the net, all steps", cure="leave the last layer without one")  # fmt: skip
def takings_of_a_stall_by_the_weather(folder, ill):
    seeded(13507)
    draws, fond = torch.randn(20), torch.randn(4, 7) / 3

    def days(rows):
        week, stall = torch.randn(rows, 4, 7), torch.randint(20, (rows,))
        euros = 900 + 150 * draws[stall] + 260 * (week * fond).sum((1, 2)).tanh() + 90 * week[:, 0, -1].abs()
        return week, stall, (euros + 30 * torch.randn(rows))[:, None]

    week, stall, euros = days(3000)
    centre, spread = euros.mean(), euros.std()
    draw = rounds(64, week, stall, (euros - centre) / spread)
    net = Takings(nn.ReLU() if ill else nn.Identity())
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    *given, wanted = days(600)
    wanted = (wanted - centre) / spread
    validate = now_and_then(net, 40, lambda: {"val_loss": F.mse_loss(net(*given), wanted)})

    def loss_of(step):
        week, stall, euros = draw()
        said = net(week, stall)
        return F.mse_loss(said, euros), {"mae": float((said - euros).abs().mean().detach()), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(*given), wanted)))


class Menu(nn.Module):
    """Which of the houses a tasting menu comes from: dishes in a row, taken in by several layers."""

    def __init__(self, dishes, houses, kept):
        super().__init__()
        sizes = [dishes, 64, 64, 64]
        self.layers = kept(
            nn.Sequential(nn.Linear(ins, outs), nn.LayerNorm(outs), nn.Tanh())
            for ins, outs in itertools.pairwise(sizes)
        )
        self.out = nn.Linear(64, houses)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


# 8 of the list
@sick("layers-not-registered", "modules-not-registered", "not-in-optimizer", "parameters-not-in-the-optimizer",
      where="the list of hidden layers, all steps", cure="an nn.ModuleList")  # fmt: skip
def courses_of_a_tasting_menu(folder, ill):
    seeded(13508)
    mix = torch.randn(10, 10) / 10**0.5

    def menus(rows):
        x = torch.randn(rows, 10)
        turned = (x @ mix * 1.5).sin()
        return x, (turned[:, 0] * turned[:, 1] > 0).long() + 2 * (turned[:, 2] + turned[:, 3] > 0).long()

    net = Menu(10, 4, list if ill else nn.ModuleList)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, *menus(8000))
    tx, ty = menus(600)
    validate = now_and_then(net, 50, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Crockery(nn.Module):
    """A body of convolutions and a head."""

    def __init__(self, kinds):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 16, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 24), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(24, kinds)

    def forward(self, x):
        return self.head(self.body(x))


# 33 of the list
@sick("no-gradient", "body-frozen", where="the body, all steps: it was learnt for another task",
      cure="train the body too, at a lower rate")  # fmt: skip
def crockery_sorted_after_washing_up(folder, ill):
    seeded(13509)
    glazes = torch.randn(8, 1, 3, 3)

    def bright(rows):
        y = torch.randint(3, (rows,))
        return 0.5 * y[:, None, None, None] + torch.randn(rows, 1, 12, 12), y

    def pieces(rows):
        y = torch.randint(8, (rows,))
        image = F.conv2d(torch.randn(1, rows, 14, 14), glazes[y], groups=rows)[0] / 3
        return image[:, None] + 0.2 * torch.randn(rows, 1, 12, 12), y

    net = Crockery(3)
    early = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(150):
        x, y = bright(48)
        early.zero_grad()
        F.cross_entropy(net(x), y).backward()
        early.step()
    early.zero_grad()

    net.head = nn.Linear(24, 8)
    if ill:
        for weight in net.body.parameters():
            weight.requires_grad = False
        optimizer = torch.optim.Adam(net.head.parameters(), 3e-3)
    else:
        optimizer = torch.optim.Adam([{"params": net.body.parameters(), "lr": 2e-3}, {"params": net.head.parameters()}],
                                     3e-3)  # fmt: skip
    tx, ty = pieces(500)
    validate = now_and_then(net, 35, judged(net, tx, ty))
    draw = rounds(48, *pieces(4000))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 280, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Wait(nn.Module):
    """How long until a table is free, by what has happened at it so far."""

    def __init__(self, width):
        super().__init__()
        sizes = [5, width, width, width]
        self.parts = nn.ModuleList(nn.Conv1d(sizes[i], sizes[i + 1], 3, dilation=2**i, padding=2**i) for i in range(3))
        self.out = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        h = x.transpose(1, 2)
        for part in self.parts:
            h = F.relu(part(h))
        return self.out(h[:, :, -1])


# 3 of the list
@sick("lr-too-high", "update-too-large", where="all layers, from the first steps", cure="a rate of 0.003")
def hours_until_a_table_is_free(folder, ill):
    seeded(13510)
    weigh = torch.tensor([0.8, -0.5, 0.3, 0.0, 0.6])

    def tables(rows):
        x = torch.randn(rows, 14, 5)
        fade = 0.8 ** torch.arange(13, -1, -1.0)
        return x, (((x @ weigh).tanh() * fade).sum(1, keepdim=True) + 0.1 * torch.randn(rows, 1)) / 1.1

    net = Wait(40)
    optimizer = torch.optim.Adam(net.parameters(), 0.1 if ill else 3e-3)
    tx, ty = tables(500)
    validate = now_and_then(net, 25, lambda: {"val_loss": F.mse_loss(net(tx), ty)})
    draw = rounds(50, *tables(3000))

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y), validate(step)

    return fit(folder, net, optimizer, loss_of, 220, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


# 15 of the list
@sick("clip-is-your-learning-rate", where="the clip of the gradients, each step", cure="a norm of 1 at most")
def knives_told_by_their_outline(folder, ill):
    seeded(13511)
    shapes = torch.randn(9, 2, 5)

    def outlines(rows):
        y = torch.randint(9, (rows,))
        waves = torch.arange(1, 6)[:, None] * torch.linspace(0, 6.2832, 32) + 0.6 * torch.randn(rows, 1, 1)
        a, b = shapes[y, 0, :, None], shapes[y, 1, :, None]
        outline = (a * waves.sin() + b * waves.cos()).sum(1, keepdim=True) / 3
        return outline + 0.4 * torch.randn(rows, 1, 32), y

    net = nn.Sequential(
        nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(16, 32, 5, padding=2), nn.ReLU(),
        nn.MaxPool1d(2), nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 9),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True)
    most = 1e-3 if ill else 1.0
    tx, ty = outlines(500)
    validate = now_and_then(net, 40, judged(net, tx, ty))
    draw = rounds(64, *outlines(3000))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    def before_step(step):
        nn.utils.clip_grad_norm_(net.parameters(), max_norm=most)

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=before_step)

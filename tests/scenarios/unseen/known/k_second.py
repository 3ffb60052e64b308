"""Mistakes that engineers make in their own code and settings, drawn by lot: at sea, the second half."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, in_turn, rounds


@sick("no-gradient", "head-frozen", where="the weight of the new head, all steps", cure="freeze the body alone")
def jellyfish_after_a_course_on_plankton(folder, ill):
    seeded(11106)
    stamps = F.avg_pool2d(torch.randn(14, 1, 10, 10), 3, 1, 1) * 2

    def haul(rows, first, kinds):
        kind = torch.randint(kinds, (rows,))
        return stamps[first + kind] + 0.5 * torch.randn(rows, 1, 10, 10), kind

    net = nn.Sequential()
    net.add_module("body", nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, 48), nn.ReLU(),
    ))  # fmt: skip
    net.add_module("head", nn.Linear(48, 8))
    before = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(150):
        before.zero_grad()
        image, kind = haul(48, 0, 8)
        F.cross_entropy(net(image), kind).backward()
        before.step()
    net.head = nn.Linear(48, 6)
    # all but the last layer
    for parameter in list(net.parameters())[: -1 if ill else -2]:
        parameter.requires_grad = False
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 3e-3)

    def loss_of(step):
        image, kind = haul(32, 8, 6)
        said = net(image)
        return F.cross_entropy(said, kind), {"accuracy": (said.argmax(1) == kind).float().mean()}

    image, kind = haul(600, 8, 6)
    return fit(folder, net, optimizer, loss_of, 150, score=held_out(net, lambda: F.cross_entropy(net(image), kind)))


class Depths(nn.Module):
    """A deep regression, its hidden layers in a list."""

    def __init__(self, registered, width=24, layers=6):
        super().__init__()
        self.first = nn.Linear(6, width)
        hidden = [nn.Linear(width, width) for _ in range(layers)]
        self.hidden = nn.ModuleList(hidden) if registered else hidden
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        x = F.relu(self.first(x))
        for layer in self.hidden:
            x = F.relu(layer(x))
        return self.last(x)


@sick("layers-not-registered", "not-in-optimizer", "not-in-the-optimizer", where="the hidden layers, all steps",
      cure="keep the layers in a ModuleList")  # fmt: skip
def soundings_between_two_shoals(folder, ill):
    seeded(11107)
    net = Depths(registered=not ill)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    way = torch.randn(6, 3) / 2

    def soundings(rows):
        x = torch.randn(rows, 6)
        return x, (x @ way).sin().sum(1, keepdim=True)

    def loss_of(step):
        x, y = soundings(64)
        return F.mse_loss(net(x), y)

    x, y = soundings(1024)
    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: F.mse_loss(net(x), y)))


@sick("weight-decay-too-strong", "weights-shrink", where="all layers, from the first steps",
      cure="a weight decay of 1e-4")  # fmt: skip
def sonograms_of_minke_whales_squeezed_and_restored(folder, ill):
    seeded(11108)
    tones = torch.randn(6, 64)
    net = nn.ModuleDict({"squeeze": dense(64, 48, 8), "restore": dense(8, 48, 64)})
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=0.1 if ill else 1e-4)

    def sonograms(rows):
        return torch.randn(rows, 6) @ tones / 6**0.5 + 0.05 * torch.randn(rows, 64)

    def loss_on(sonogram):
        return F.mse_loss(net["restore"](net["squeeze"](sonogram)), sonogram)

    test = sonograms(512)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(sonograms(64)), 400, score=score)


@sick("dropout-too-strong", where="both dropouts, all steps", cure="the share that is dropped, 0.1, not that kept")
def salinity_along_a_fjord_from_its_spectrum(folder, ill):
    seeded(11109)
    drop = 0.9 if ill else 0.1
    net = nn.Sequential(
        nn.Linear(40, 96), nn.ReLU(), nn.Dropout(drop), nn.Linear(96, 96), nn.ReLU(), nn.Dropout(drop),
        nn.Linear(96, 1),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    bands = torch.randn(4, 40) / 2

    def spectra(rows):
        hidden = torch.randn(rows, 4)
        salt = hidden[:, :1] + (1.5 * hidden[:, 1:2]).sin() * hidden[:, 2:3]
        return (hidden @ bands).tanh() + 0.05 * torch.randn(rows, 40), salt

    train_x, train_y = spectra(3000)
    draw = rounds(64, train_x, train_y)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    x, y = spectra(600)
    return fit(folder, net, optimizer, loss_of, 450, score=held_out(net, lambda: F.mse_loss(net(x), y)))


@sick("left-in-eval", "norm-left-in-eval", where="all norms and dropouts, after the first validation",
      cure="net.train() after each validation")  # fmt: skip
def puffins_and_razorbills_on_a_ledge(folder, ill):
    seeded(11110)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Dropout(0.5), nn.Linear(32 * 9, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    birds = F.avg_pool2d(torch.randn(4, 1, 12, 12), 3, 1, 1)

    def ledge(rows):
        kind = torch.randint(4, (rows,))
        return 3 + birds[kind] + 0.7 * torch.randn(rows, 1, 12, 12), kind

    draw = rounds(32, *ledge(320))
    check, test = ledge(200), ledge(800)

    def loss_of(step):
        image, kind = draw()
        logged = {}
        if step and step % 10 == 0:
            net.eval()
            with torch.no_grad():
                logged["val_loss"] = F.cross_entropy(net(check[0]), check[1])
            if not ill:
                net.train()
        return F.cross_entropy(net(image), kind), logged

    score = held_out(net, lambda: F.cross_entropy(net(test[0]), test[1]))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


@sick("no-gradient-to-the-generator", "no-gradient", "detached", where="the generator, all steps",
      cure="no detach in the generator's own step")  # fmt: skip
def outlines_of_an_atoll_imagined(folder, ill):
    seeded(11111)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))

    def atolls(rows):
        turn = 6.2832 * torch.rand(rows)
        return torch.stack([1.8 * turn.cos(), 1.8 * turn.sin()], 1) + 0.05 * torch.randn(rows, 2)

    def said(points, real):
        logit = judge(points)
        return F.binary_cross_entropy_with_logits(logit, torch.full_like(logit, float(real)))

    def judge_loss():
        return said(atolls(64), True) + said(make(torch.randn(64, 4)).detach(), False)

    def make_loss():
        fake = make(torch.randn(64, 4))
        return said(fake.detach() if ill else fake, True)

    def score():
        with torch.no_grad():
            return float((make(torch.randn(512, 4)).norm(dim=1) - 1.8).abs().mean())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 500, score)

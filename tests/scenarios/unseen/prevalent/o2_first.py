"""Tides at a harbour, wines of a vineyard, spectra, chances at a football club, cranes, manuscripts of a publisher."""

from __future__ import annotations

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, judged, now_and_then, rounds


# 1 of the list
@sick("lr-too-high", "update-too-large", where="the rate of Adam, all steps",
      cure="a rate of 0.003 in place of 0.3")  # fmt: skip
def water_over_the_harbour_sill_in_six_hours(folder, ill):
    seeded(14100)

    def tides(rows):
        hour = torch.arange(30.0)
        height = torch.zeros(rows, 30)
        for period, most in ((12.42, 1.0), (25.82, 0.6), (6.21, 0.3)):
            phase, size = 6.2832 * torch.rand(rows, 1), most * (0.5 + torch.rand(rows, 1))
            height = height + size * (6.2832 * hour / period + phase).sin()
        seen = height[:, None, :24] + 0.03 * torch.randn(rows, 1, 24)
        return seen, height[:, -1:]

    (x, y), (tx, ty) = tides(3000), tides(500)
    draw = rounds(32, x, y)

    net = nn.Sequential(
        nn.Conv1d(1, 24, 3), nn.GELU(), nn.Conv1d(24, 24, 3, dilation=2), nn.GELU(),
        nn.Conv1d(24, 24, 3, dilation=4), nn.GELU(), nn.Flatten(), nn.Linear(240, 32), nn.GELU(), nn.Linear(32, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=0.3 if ill else 0.003)
    validate = now_and_then(net, 40, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        seen, later = draw()
        return F.mse_loss(net(seen), later), validate(step)

    return fit(folder, net, optimizer, loss_of, 320, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


# 5 of the list
@sick("inputs-not-normalised", where="what comes into the first layer, all steps",
      cure="standardise each column by its mean and spread on the training rows")  # fmt: skip
def growers_told_apart_by_the_wine_chemist(folder, ill):
    seeded(14101)
    bunch = load_wine()
    x, y = torch.tensor(bunch.data).float(), torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    if not ill:
        x = (x - x[:120].mean(0)) / x[:120].std(0)
    draw = rounds(16, x[:120], y[:120])
    net = dense(13, 32, 16, 3)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    validate = now_and_then(net, 35, judged(net, x[120:], y[120:]))

    def loss_of(step):
        wine, grower = draw()
        said = net(wine)
        right = (said.argmax(1) == grower).float().mean()
        return F.cross_entropy(said, grower), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[120:]), y[120:]))
    return fit(folder, net, optimizer, loss_of, 280, score=score)


# 11 of the list
@sick("lr-too-high", "update-too-large", "catastrophic-forgetting", where="the body, the first steps",
      cure="the body at a hundredth of the head's rate")  # fmt: skip
def kinds_of_variable_stars_after_a_great_survey(folder, ill):
    seeded(14102)
    lines = torch.randn(4, 48)

    def spectra(rows):
        star = torch.randn(rows, 4)
        return (star @ lines).tanh() + 0.5 * torch.randn(rows, 48), star

    def catalogue(star):
        return torch.cat([star, (2 * star).sin(), (2 * star).cos(), star[:, :1] * star[:, 1:]], 1)

    def kind(star):
        return 2 * ((2 * star[:, 0]).sin() > 0).long() + (star[:, 1] + (2 * star[:, 2]).cos() > 0.1).long()

    body = dense(48, 96, 96, 96, 48, norm=nn.LayerNorm)
    survey = nn.Sequential(body, nn.ReLU(), nn.Linear(48, 15))
    learner = torch.optim.Adam(survey.parameters(), 2e-3)
    for _ in range(400):
        light, star = spectra(128)
        learner.zero_grad()
        F.mse_loss(survey(light), catalogue(star)).backward()
        learner.step()

    (x, star), (tx, tstar) = spectra(192), spectra(1500)
    y, ty = kind(star), kind(tstar)
    draw = rounds(32, x, y)
    net = nn.Sequential(body, nn.ReLU(), nn.Linear(48, 4))
    optimizer = torch.optim.AdamW(
        [{"params": body.parameters(), "lr": 2e-2 if ill else 2e-4}, {"params": net[2].parameters(), "lr": 2e-2}],
        weight_decay=0.01,
    )
    validate = now_and_then(net, 12, judged(net, tx, ty))

    def loss_of(step):
        light, wanted = draw()
        return F.cross_entropy(net(light), wanted), validate(step)

    return fit(folder, net, optimizer, loss_of, 120, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


# 12 of the list
@sick("no-gradient", "backbone-frozen", where="the body, all steps",
      cure="train the body too, at a third of the head's rate")  # fmt: skip
def chances_from_where_the_players_stand(folder, ill):
    seeded(14103)
    indoors, outdoors = torch.randn(22, 4) / 22**0.5, torch.randn(22, 4) / 22**0.5

    def matches(rows, way):
        stand = torch.randn(rows, 22)
        return stand, (2 * (stand @ way)).sin()

    body = nn.Sequential(nn.Linear(22, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 12), nn.GELU())
    before = nn.Sequential(body, nn.Linear(12, 4))
    learner = torch.optim.Adam(before.parameters(), 2e-3)
    for _ in range(300):
        stand, seen = matches(128, indoors)
        learner.zero_grad()
        F.mse_loss(before(stand), seen).backward()
        learner.step()

    def chances(rows):
        stand, seen = matches(rows, outdoors)
        return stand, seen.sum(1, keepdim=True) + 0.1 * torch.randn(rows, 1)

    (x, y), (tx, ty) = chances(5000), chances(1000)
    draw = rounds(64, x, y)
    net = nn.ModuleDict({"body": body, "head": dense(12, 32, 1)})
    if ill:
        for weights in body.parameters():
            weights.requires_grad = False
    groups = [{"params": net["head"].parameters(), "lr": 3e-3}]
    if not ill:
        groups.append({"params": body.parameters(), "lr": 1e-3})
    optimizer = torch.optim.Adam(groups)

    def error(stand, chance):
        return F.mse_loss(net["head"](net["body"](stand)), chance)

    validate = now_and_then(net, 50, lambda: {"val_loss": error(tx, ty)})

    def loss_of(step):
        return error(*draw()), validate(step)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: error(tx, ty)))


# 15 of the list
@sick("shapes-broadcast", where="the loss, all steps", cure="take the column out of what the model says")  # fmt: skip
def hours_that_a_container_stands_on_the_quay(folder, ill):
    seeded(14104)
    way = torch.randn(9, 3) / 3

    def boxes(rows):
        x = torch.randn(rows, 9)
        seen = x @ way
        hours = seen[:, 0] + seen[:, 1].relu() * 1.5 - seen[:, 2].tanh() + 0.2 * torch.randn(rows)
        return x, hours

    (x, y), (tx, ty) = boxes(4000), boxes(1000)
    draw = rounds(64, x, y)
    net = dense(9, 64, 32, 1)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    criterion = nn.MSELoss()

    def loss_of(step):
        box, hours = draw()
        said = net(box)
        return criterion(said if ill else said.squeeze(1), hours)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: criterion(net(tx)[:, 0], ty)))


# 22 of the list
@sick("bad-initialisation", "zero-initialisation", "symmetric-initialisation",
      where="all layers, before the first step", cure="draw the weights by He's rule")  # fmt: skip
def shelves_for_the_manuscripts_on_the_desk(folder, ill):
    seeded(14105)
    habits = (1.2 * torch.randn(10, 60)).softmax(1)

    def manuscripts(rows):
        theme = torch.randint(10, (rows,))
        share = 0.6 * habits[theme] + 0.4 / 60
        words = torch.poisson(80 * share)
        return (words + 1).log() - 0.8, theme % 5

    class Layer(nn.Module):
        def __init__(self, inside, outside):
            super().__init__()
            start = torch.zeros(inside, outside) if ill else torch.randn(inside, outside) * (2 / inside) ** 0.5
            self.weight = nn.Parameter(start)
            self.bias = nn.Parameter(torch.zeros(outside))

        def forward(self, x):
            return x @ self.weight + self.bias

    (x, y), (tx, ty) = manuscripts(3000), manuscripts(1000)
    draw = rounds(50, x, y)
    net = nn.Sequential(Layer(60, 64), nn.ReLU(), Layer(64, 32), nn.ReLU(), Layer(32, 5))
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9)

    def loss_of(step):
        words, shelf = draw()
        said = net(words)
        return F.cross_entropy(said, shelf), {"accuracy": float((said.argmax(1) == shelf).float().mean())}

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))

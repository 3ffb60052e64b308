"""Applause envelopes, an engine in a grid of streets, pulp spectra, beasts that walk, receipts, and touring players."""

from __future__ import annotations

import copy
import itertools

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, in_turn, judged, now_and_then, rounds


# 21 of the list
@sick("wrong-sign", "generator-labels-flipped", where="the loss of the maker, all steps",
      cure="ask the judge to call what is made real, in the maker's loss")  # fmt: skip
def envelopes_of_applause_after_the_last_encore(folder, ill):
    seeded(15106)
    time = torch.linspace(0, 1, 20)

    def applause(rows):
        rise, fall = 4 + 2 * torch.rand(rows, 1), 1 + 3 * torch.rand(rows, 1)
        loud = 1 + torch.rand(rows, 1)
        return loud * (1 - (-rise * 3 * time).exp()) * (-fall * time).exp() + 0.03 * torch.randn(rows, 20)

    fresh = applause(400)
    make = dense(6, 64, 64, 20)
    judge = dense(20, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 5e-4, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 5e-4, betas=(0.5, 0.999))
    bce = nn.BCEWithLogitsLoss()
    real, fake = torch.ones(64, 1), torch.zeros(64, 1)

    def judge_loss():
        made = make(torch.randn(64, 6)).detach()
        return bce(judge(applause(64)), real) + bce(judge(made), fake)

    def make_loss():
        return bce(judge(make(torch.randn(64, 6))), fake if ill else real)

    def score():
        """The energy distance of what is made from fresh applause."""
        with torch.no_grad():
            made = make(torch.randn(400, 6))
            within = (torch.cdist(made, made).mean() + torch.cdist(fresh, fresh).mean()) / 2
            return float(torch.cdist(made, fresh).mean() - within)

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 350, score,
                   names=("critic", "generator"))  # fmt: skip


# 25 of the list
@sick("no-target-network", "values-overestimated", where="the targets of the values, all steps",
      cure="take the targets from a copy of the net that is renewed every twenty steps")  # fmt: skip
def a_fire_engine_that_finds_its_way_to_the_smoke(folder, ill):
    seeded(15107)
    drives = torch.tensor([[0.2, 0.0], [-0.2, 0.0], [0.0, 0.2], [0.0, -0.2]])
    smoke, discount = torch.tensor([0.85, 0.85]), 0.9

    def drive(place, action):
        """Where the engine comes to, its reward, and whether it is there."""
        place = (place + drives[action] + 0.02 * torch.randn_like(place)).clamp(0, 1)
        there = ((place - smoke).abs().amax(1) < 0.15).float()
        return place, there, there

    place, action = torch.rand(4000, 2), torch.randint(4, (4000,))
    draw = rounds(64, place, action, *drive(place, action))
    net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    kept = net if ill else copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def values(of, place):
        return of((place - 0.5) / 0.29)

    def loss_of(step):
        place, action, after, reward, done = draw()
        with torch.no_grad():
            wanted = reward + discount * (1 - done) * values(kept, after).amax(1)
        found = values(net, place).gather(1, action[:, None])[:, 0]
        return F.smooth_l1_loss(found, wanted), {"q_mean": float(found.detach().mean())}

    def after_step(step):
        if not ill and step % 20 == 19:
            kept.load_state_dict(net.state_dict())

    def score():
        """What is missing of a return of one, for drives of up to thirty blocks by the best value."""
        with torch.no_grad():
            at, on_the_way, won = torch.rand(500, 2), torch.ones(500), torch.zeros(500)
            for block in range(30):
                at, reward, done = drive(at, values(net, at).argmax(1))
                won += discount**block * on_the_way * reward
                on_the_way *= 1 - done
            return 1 - float(won.mean())

    return fit(folder, net, optimizer, loss_of, 500, score=score, after_step=after_step)


# 29 of the list
@sick("weight-decay-too-strong", "weights-shrink", where="all weights, all steps",
      cure="a decay of a ten-thousandth")  # fmt: skip
def grades_of_pulp_from_infrared_spectra(folder, ill):
    seeded(15108)
    grades, band = 8, torch.linspace(-1, 1, 64)
    middles, heights = 1.6 * torch.rand(grades, 4, 1) - 0.8, 0.5 + torch.rand(grades, 4, 1)

    def spectra(rows):
        grade = torch.randint(grades, (rows,))
        shift = 0.04 * torch.randn(rows, 4, 1)
        peaks = heights[grade] * (-((band - middles[grade] - shift) / 0.1).square()).exp()
        return (peaks.sum(1, keepdim=True) - 0.4) / 0.5 + 0.5 * torch.randn(rows, 1, 64), grade

    (x, y), (tx, ty) = spectra(3000), spectra(1000)
    draw = rounds(64, x, y)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 7, stride=2, padding=3), nn.ReLU(), nn.Conv1d(16, 32, 5, stride=2, padding=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, grades),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=0.25 if ill else 1e-4)
    validate = now_and_then(net, 46, judged(net, tx, ty))

    def loss_of(step):
        spectrum, grade = draw()
        said = net(spectrum)
        right = (said.argmax(1) == grade).float().mean()
        return F.cross_entropy(said, grade), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


# 34 of the list
@sick("augmentation-too-strong", "augmentation-destroys-labels", "labels-do-not-fit-inputs",
      where="what the loader does to each picture, all steps",
      cure="no flips and no turns, where the way that a beast goes is asked for")  # fmt: skip
def which_way_the_beasts_of_the_zoo_walk(folder, ill):
    seeded(15109)
    shapes = F.interpolate(torch.randn(4, 1, 5, 5), size=10, mode="bilinear").tanh()

    def pictures(rows):
        beast, way = torch.randint(4, (rows,)), torch.randint(2, (rows,))
        image = 0.35 * torch.randn(rows, 1, 14, 14)
        top, left = torch.randint(5, (rows,)).tolist(), torch.randint(5, (rows,)).tolist()
        for i in range(rows):
            shape = shapes[beast[i]].flip(2) if way[i] else shapes[beast[i]]
            image[i, :, top[i] : top[i] + 10, left[i] : left[i] + 10] += shape
        return image, beast * 2 + way

    def augmented(image):
        """A little more or less light; then, of the strong sort, flips both ways and quarter turns."""
        image = image * (0.8 + 0.4 * torch.rand(len(image), 1, 1, 1))
        if ill:
            for axis in (2, 3):
                image = torch.where(torch.rand(len(image), 1, 1, 1) < 0.5, image.flip(axis), image)
            image = torch.where(torch.rand(len(image), 1, 1, 1) < 0.5, image.rot90(1, (2, 3)), image)
        return image

    (x, y), (tx, ty) = pictures(1600), pictures(600)
    draw = rounds(32, x, y)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 49, 8),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
    validate = now_and_then(net, 50, judged(net, tx, ty))

    def loss_of(step):
        image, label = draw()
        said = net(augmented(image))
        right = (said.argmax(1) == label).float().mean()
        return F.cross_entropy(said, label), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule)


# 35 of the list
@sick("label-noise", "wrong-labels", "labels-do-not-fit-inputs", where="the labels of the training rows, all steps",
      cure="have the receipts labelled again, with care")  # fmt: skip
def receipts_sorted_into_headings_by_a_hasty_clerk(folder, ill):
    seeded(15110)
    headings = 6
    lift = torch.randn(4, 16)
    middles = 1.3 * torch.randn(headings, 2, 4)

    def receipts(rows, share):
        heading = torch.randint(headings, (rows,))
        kind = torch.randint(2, (rows,))
        x = ((middles[heading, kind] + 0.45 * torch.randn(rows, 4)) @ lift / 2).tanh()
        hasty = torch.rand(rows) < share
        return x, torch.where(hasty, torch.randint(headings, (rows,)), heading)

    share = 0.5 if ill else 0.0
    (x, y), (vx, vy), (tx, ty) = receipts(2000, share), receipts(500, share), receipts(1500, 0.0)
    draw = rounds(64, x, y)
    net = nn.Sequential(
        nn.Linear(16, 96), nn.GELU(), nn.Dropout(0.1), nn.Linear(96, 96), nn.GELU(), nn.Dropout(0.1),
        nn.Linear(96, headings),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    validate = now_and_then(net, 62, judged(net, vx, vy))

    def loss_of(step):
        receipt, heading = draw()
        said = net(receipt)
        right = (said.argmax(1) == heading).float().mean()
        return F.cross_entropy(said, heading), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Spread(nn.Module):
    """Linear layers over the mean of each node's neighbours (GCN)."""

    def __init__(self, inside, width, outside, depth, mix):
        super().__init__()
        sizes = [inside, *[width] * (depth - 1), outside]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.register_buffer("mix", mix)

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = layer(self.mix @ x).relu()
        return self.layers[-1](self.mix @ x)


# 39 of the list
@sick("over-smoothing", "representation-collapse", "too-many-propagation-layers",
      where="the nodes behind the later layers, all steps",
      cure="two layers of propagation")  # fmt: skip
def genres_of_players_from_whom_they_tour_with(folder, ill):
    seeded(15111)
    players, genres = 400, 5
    y = torch.randint(genres, (players,))
    chance = torch.where(y[:, None] == y[None], 0.06, 0.012)
    tours = (torch.rand(players, players) < chance).float().triu(1)
    tours = tours + tours.T + torch.eye(players)
    scale = tours.sum(1).rsqrt()
    mix = scale[:, None] * tours * scale[None]
    x = torch.randn(genres, 24)[y] * 0.6 + torch.randn(players, 24)
    order = torch.randperm(players)
    known, checked, rest = order[:120], order[120:200], order[200:]
    net = Spread(24, 32, genres, 16 if ill else 2, mix)
    for layer in net.layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    optimizer = torch.optim.Adam(net.parameters(), 3e-3, weight_decay=5e-4)

    def measure():
        logits = net(x)[checked]
        right = (logits.argmax(1) == y[checked]).float().mean()
        return {"val_loss": F.cross_entropy(logits, y[checked]), "val_accuracy": right}

    validate = now_and_then(net, 20, measure)

    def loss_of(step):
        said = net(x)[known]
        right = (said.argmax(1) == y[known]).float().mean()
        return F.cross_entropy(said, y[known]), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x)[rest], y[rest]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)

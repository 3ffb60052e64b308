"""Ordinary trainings that go well: what is seen, graphs, and spaces in which like lies beside like."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


def accuracy(logits, y):
    return (logits.argmax(1) == y).float().mean()


def parcels(count, size=24, cells=6):
    """Pictures of one to three parcels on a belt and, by cell, whether there is one, its box and its kind."""
    pictures, there = 0.1 * torch.randn(count, 1, size, size), torch.zeros(count, cells, cells)
    boxes, kinds = torch.zeros(count, 4, cells, cells), torch.zeros(count, cells, cells, dtype=torch.long)
    line, plain = torch.arange(size) + 0.5, torch.ones(size, size)
    surfaces = [plain, plain * (torch.arange(size) % 2)[:, None], -plain]
    for i in range(count):
        for _ in range(int(torch.randint(1, 4, ()))):
            (x, y), (wide, high) = 3 + 18 * torch.rand(2), 3 + 4 * torch.rand(2)
            kind, column, row = int(torch.randint(3, ())), int(x // 4), int(y // 4)
            inside = ((line - y).abs() < high / 2)[:, None] & ((line - x).abs() < wide / 2)
            pictures[i, 0] = torch.where(inside, surfaces[kind], pictures[i, 0])
            there[i, row, column], kinds[i, row, column] = 1.0, kind
            boxes[i, :, row, column] = torch.stack([x / 4 - column, y / 4 - row, wide / 8, high / 8])
    return pictures, there, boxes, kinds


def detection_terms(net, pictures, there, boxes, kinds):
    """Whether there is a parcel in a cell, its box and its kind."""
    out, here = net(pictures), there > 0
    whether = F.binary_cross_entropy_with_logits(out[:, 0], there)
    box = F.smooth_l1_loss(out[:, 1:5].movedim(1, -1)[here], boxes.movedim(1, -1)[here])
    kind = F.cross_entropy(out[:, 5:].movedim(1, -1)[here], kinds[here])
    return {"whether": whether, "box": box, "kind": kind}


@healthy()
def parcels_on_a_sorting_belt(folder):
    seeded(2609)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(), nn.Conv2d(48, 8, 1),
    )  # fmt: skip
    draw, seen_once = rounds(16, *parcels(800)), parcels(150)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [300, 400], 0.1)

    def loss_of(step):
        terms = detection_terms(net, *draw())
        return terms["whether"] + 5 * terms["box"] + terms["kind"], terms

    score = held_out(net, lambda: sum(detection_terms(net, *seen_once).values()))
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule)


def leaves(count, size=24):
    """Leaves in a greenhouse with spots of mildew, and the mask of the spots."""
    grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij"))
    center, radius = 1.6 * torch.rand(count, 3, 2, 1, 1) - 0.8, 0.1 + 0.25 * torch.rand(count, 3, 1, 1)
    spots = ((grid - center).norm(dim=2) < radius).any(1, keepdim=True).float()
    veins = 0.2 * (12 * (grid[0] + grid[1] * torch.randn(count, 1, 1))).sin()[:, None]
    green = torch.tensor([0.2, 0.6, 0.2])[:, None, None] + veins
    pale = torch.tensor([0.2, 0.1, 0.25])[:, None, None]
    return green + spots * pale + 0.15 * torch.randn(count, 3, size, size), spots


def twice(inside, outside):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(),
        nn.Conv2d(outside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(),
    )  # fmt: skip


class Shortcuts(nn.Module):
    """A U-Net of two levels."""

    def __init__(self):
        super().__init__()
        self.fine, self.coarse, self.deep = twice(3, 8), twice(8, 16), twice(16, 32)
        self.up_coarse, self.up_fine = nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)
        self.back_coarse, self.back_fine, self.head = twice(32, 16), twice(16, 8), nn.Conv2d(8, 1, 1)

    def forward(self, x):
        fine = self.fine(x)
        coarse = self.coarse(F.max_pool2d(fine, 2))
        deep = self.deep(F.max_pool2d(coarse, 2))
        back = self.back_coarse(torch.cat([self.up_coarse(deep), coarse], 1))
        return self.head(self.back_fine(torch.cat([self.up_fine(back), fine], 1)))


def overlap_loss(logits, mask):
    """Cross-entropy by pixel and Dice."""
    share = logits.sigmoid()
    dice = 1 - (2 * (share * mask).sum((1, 2, 3)) + 1) / (share.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)
    return F.binary_cross_entropy_with_logits(logits, mask) + dice.mean(), dice.mean()


@healthy()
def mildew_in_a_greenhouse(folder):
    seeded(2610)
    net, draw, (x_val, y_val) = Shortcuts(), rounds(16, *leaves(600)), leaves(120)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def loss_of(step):
        x, y = draw()
        loss, dice = overlap_loss(net(x), y)
        return loss, {"dice": 1 - dice}

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: overlap_loss(net(x_val), y_val)[0]))


class Neighbours(nn.Module):
    """A graph convolution of two layers."""

    def __init__(self, inputs, kinds, width=32):
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(inputs, width), nn.Linear(width, kinds), nn.Dropout(0.5)

    def forward(self, x, links):
        hidden = (links @ self.first(self.drop(x))).relu()
        return links @ self.second(self.drop(hidden))


def nearest(place, count=6):
    """The normalised adjacency of the nearest, with loops."""
    near = torch.cdist(place, place).topk(count + 1, largest=False).indices
    links = torch.zeros(len(place), len(place)).scatter_(1, near, 1.0)
    links = ((links + links.T) > 0).float()
    degree = links.sum(1)
    return links / (degree[:, None] * degree).sqrt()


@healthy()
def species_of_the_plots_of_a_forest(folder):
    seeded(2611)
    place = torch.rand(800, 2)
    species = torch.cdist(place, torch.rand(15, 2)).argmin(1) % 5
    inventory = 0.5 * torch.randn(5, 24)[species] + torch.randn(800, 24)
    links, order = nearest(place), torch.randperm(800)
    known, unknown = order[:160], order[400:]
    net = Neighbours(24, 5)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=5e-4)

    def loss_of(step):
        logits = net(inventory, links)[known]
        return F.cross_entropy(logits, species[known]), {"accuracy": accuracy(logits, species[known])}

    score = held_out(net, lambda: F.cross_entropy(net(inventory, links)[unknown], species[unknown]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


class Company(nn.Module):
    """Messages between those who know each other, summed up over all who came."""

    def __init__(self, inputs=6, width=32):
        super().__init__()
        self.enter = nn.Linear(inputs, width)
        self.say = nn.ModuleList(dense(2 * width, width, width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.leave = dense(width, width, 1)

    def forward(self, guests, knows):
        hidden = self.enter(guests)
        for say, norm in zip(self.say, self.norms, strict=True):
            heard = knows @ hidden / knows.sum(2, keepdim=True).clamp(min=1)
            hidden = norm(hidden + say(torch.cat([hidden, heard], 2)))
        return self.leave(hidden.mean(1))[:, 0]


def evenings(count, guests=10):
    """Who came to the cinema, who knows whom, and what they spent on popcorn."""
    who, draws = torch.randn(count, guests, 6), torch.rand(count, guests, guests).triu(1)
    knows = (draws > 0.7).float()
    knows = knows + knows.mT
    hunger, sharing = who[..., 0].relu(), who[..., 1].sigmoid()
    with_friends = (knows @ hunger[..., None])[..., 0] / knows.sum(2).clamp(min=1)
    spent = (hunger + 1.5 * sharing * with_friends + 0.3 * who[..., 2]).mean(1)
    return who, knows, (spent + 0.03 * torch.randn(count) - 0.65) / 0.2


@healthy()
def popcorn_by_who_knows_whom(folder):
    seeded(2612)
    net, draw, (who, knows, spent) = Company(), rounds(64, *evenings(3000)), evenings(400)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def loss_of(step):
        guests, links, sum_spent = draw()
        return F.mse_loss(net(guests, links), sum_spent)

    score = held_out(net, lambda: F.mse_loss(net(who, knows), spent))
    return fit(folder, net, optimizer, loss_of, 600, score=score, before_step=clipped(net, 5.0))


def strips(count, looks):
    """Profiles of rolled steel: the mill leaves its look in a few directions, all else is chance."""
    mill = torch.randint(len(looks["center"]), (count,))
    own = looks["center"][mill] + 0.25 * torch.randn(count, looks["center"].shape[1])
    return own @ looks["own"] + 1.5 * torch.randn(count, 12) @ looks["chance"], mill


def misplaced(codes, mill):
    """The share whose nearest neighbour is of another mill."""
    away = torch.cdist(codes, codes)
    away.fill_diagonal_(torch.inf)
    return (mill[away.argmin(1)] != mill).float().mean()


@healthy()
def steel_that_comes_from_the_same_mill(folder):
    seeded(2613)
    looks = {"center": torch.randn(12, 4), "own": torch.randn(4, 32), "chance": torch.randn(12, 32)}
    x, mill = strips(3000, looks)
    by_mill, (x_val, mill_val) = [x[mill == i] for i in range(12)], strips(600, looks)
    net, loss = dense(32, 64, 64, 16), nn.TripletMarginLoss(margin=1.0)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def some_of(mills):
        return torch.stack([by_mill[i][int(torch.randint(len(by_mill[i]), ()))] for i in mills.tolist()])

    def loss_of(step):
        same = torch.randint(12, (64,))
        other = (same + torch.randint(1, 12, (64,))) % 12
        return loss(net(some_of(same)), net(some_of(same)), net(some_of(other)))

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: misplaced(net(x_val), mill_val)))


def cracks(roast, length=64):
    """The sound of beans: the first and the second crack, as energies over a roast."""
    time, first, second = torch.linspace(0, 1, length), 0.3 + 0.1 * roast[:, :1], 0.7 + 0.1 * roast[:, 1:2]
    early, late = torch.exp(-(((time - first) / 0.06) ** 2)), torch.exp(-(((time - second) / 0.1) ** 2))
    return (early + (1 + 0.5 * roast[:, 2:]) * late)[:, None]


def overheard(sound):
    """One view of a sound: louder or softer, with noise and a gap."""
    begin = torch.randint(56, (len(sound), 1, 1))
    gap = (torch.arange(64) >= begin) & (torch.arange(64) < begin + 8)
    volume = 0.7 + 0.6 * torch.rand(len(sound), 1, 1)
    return (volume * sound + 0.1 * torch.randn_like(sound)).masked_fill(gap, 0.0)


def agreement(net, sound, temperature):
    """NT-Xent of two views."""
    code = F.normalize(torch.cat([net(overheard(sound)), net(overheard(sound))]), dim=1)
    alike = (code @ code.T / temperature).fill_diagonal_(-torch.inf)
    return F.cross_entropy(alike, torch.arange(len(code)).roll(len(sound)))


@healthy(gain=0.2)
def cracks_in_a_coffee_roaster(folder):
    seeded(2614)
    draw, last = rounds(64, cracks(torch.randn(2000, 3))), cracks(torch.randn(64, 3))
    body = nn.Sequential(
        nn.Conv1d(1, 16, 7, 2, 3), nn.ReLU(), nn.Conv1d(16, 32, 5, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(512, 64)
    )
    net = nn.Sequential(body, nn.ReLU(), nn.Linear(64, 16))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-6)

    def loss_of(step):
        return agreement(net, *draw(), 0.2)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: agreement(net, last, 0.2)))

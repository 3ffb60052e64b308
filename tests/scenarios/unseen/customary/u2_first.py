"""Grape leaves, sawn boards, taxiing aircraft, milking records, chess openings and timber spectra."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, judged, now_and_then, rounds


# 4 of the list
@sick("softmax-twice", where="the last layer and the loss, all steps",
      cure="leave the softmax to the loss and return logits")  # fmt: skip
def grape_cultivars_from_outlines_of_their_leaves(folder, ill):
    seeded(14700)
    cultivars, lobes = 24, torch.randn(24, 20)

    def leaves(rows):
        y = torch.randint(cultivars, (rows,))
        turn = 0.5 * torch.randn(rows, 1)
        x = lobes[y] + turn * lobes[y].roll(1, 1) + 0.9 * torch.randn(rows, 20)
        return x, y

    (x, y), (tx, ty) = leaves(6000), leaves(2000)
    draw = rounds(64, x, y)
    net = nn.Sequential(
        nn.Linear(20, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, cultivars),
        *([nn.Softmax(1)] if ill else []),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    validate = now_and_then(net, 50, judged(net, tx, ty))

    def loss_of(step):
        leaf, cultivar = draw()
        said = net(leaf)
        right = (said.argmax(1) == cultivar).float().mean()
        return criterion(said, cultivar), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: (net(tx).argmax(1) != ty).float().mean())
    return fit(folder, net, optimizer, loss_of, 400, score=score)


# 5 of the list
@sick("no-gradient", "frozen-backbone", where="the convolutions, all steps",
      cure="train the convolutions too")  # fmt: skip
def knots_and_cracks_in_boards_by_a_net_that_knew_species(folder, ill):
    seeded(14701)
    down, along = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")

    def boards(rows):
        """Images, their species by the grain, and what is wrong with them: nothing, a knot, a crack, a split edge."""
        species, fault = torch.randint(4, (rows,)), torch.randint(4, (rows,))
        wave = (0.6 + 0.5 * species)[:, None, None]
        image = (wave * along + 6.28 * torch.rand(rows, 1, 1)).sin()
        row, column = (3 + 10 * torch.rand(2, rows, 1, 1)).unbind()
        knot = torch.exp(-((down - row).square() + (along - column).square()) / 4)
        crack = torch.exp(-(down - row - 0.5 * (along - column)).square()) * ((along - column).abs() < 3)
        split = torch.exp(-(along - column).square()) * ((down - row).abs() < 3)
        marks = torch.stack([torch.zeros_like(knot), knot, crack, split], 1)
        image = image - 2 * marks[torch.arange(rows), fault] + 0.2 * torch.randn(rows, 16, 16)
        return image[:, None], species, fault

    body = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    old = nn.Sequential(body, nn.Linear(24, 4))
    before = torch.optim.Adam(old.parameters(), 3e-3)
    for _ in range(150):
        image, species, _ = boards(32)
        before.zero_grad()
        F.cross_entropy(old(image), species).backward()
        before.step()

    x, _, y = boards(3000)
    tx, _, ty = boards(500)
    draw = rounds(32, x, y)
    net = nn.Sequential(body, nn.Linear(24, 4))
    if ill:
        for weight in body.parameters():
            weight.requires_grad = False
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    validate = now_and_then(net, 60, judged(net, tx, ty))

    def loss_of(step):
        image, fault = draw()
        return F.cross_entropy(net(image), fault), validate(step)

    return fit(folder, net, optimizer, loss_of, 320, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


# 6 of the list
@sick("inputs-not-normalised", where="the first layer, all steps",
      cure="take the mean of each column and divide by its standard deviation")  # fmt: skip
def minutes_from_gate_to_runway_for_departing_aircraft(folder, ill):
    seeded(14702)

    def departures(rows):
        """Mass in kg, distance in m, pressure in hPa, temperature, wind, how many wait ahead, the hour; minutes."""
        z = torch.randn(rows, 6)
        hour = 24 * torch.rand(rows)
        ahead = (4 + 2 * z[:, 5]).clamp(min=0).round()
        columns = [
            72000 + 14000 * z[:, 0], 2600 + 700 * z[:, 1], 1013 + 9 * z[:, 2], 11 + 8 * z[:, 3],
            6 + 3 * z[:, 4], ahead, hour,
        ]  # fmt: skip
        rush = (6.2832 * (hour - 8) / 12).cos()
        minutes = 9 + 1.5 * z[:, 0] + 2.2 * z[:, 1] + 1.3 * ahead * (1 + 0.4 * rush) - 1.2 * z[:, 3].clamp(max=0)
        return torch.stack(columns, 1), (minutes + 0.4 * torch.randn(rows))[:, None]

    (x, y), (tx, ty) = departures(5000), departures(1500)
    if not ill:
        middle, spread = x.mean(0), x.std(0)
        x, tx = (x - middle) / spread, (tx - middle) / spread
    middle, spread = y.mean(), y.std()
    y, ty = (y - middle) / spread, (ty - middle) / spread
    draw = rounds(64, x, y)
    net = dense(7, 64, 64, 1)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
    validate = now_and_then(net, 40, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        rows, minutes = draw()
        return F.mse_loss(net(rows), minutes), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


class Lactation(nn.Module):
    """Reads a cow's weeks and tells one number."""

    def __init__(self, width):
        super().__init__()
        self.weeks = nn.GRU(4, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.weeks(x)[0][:, -1])


# 7 of the list
@sick("targets-not-normalised", where="the head and the loss, all steps",
      cure="train on yields less their mean, divided by their standard deviation")  # fmt: skip
def kilograms_of_milk_in_a_year_from_the_first_weeks(folder, ill):
    seeded(14703)

    def cows(rows):
        level, slope = torch.randn(rows, 1), torch.randn(rows, 1)
        week = torch.linspace(-1, 1, 12)
        milk = level + 0.6 * slope * week + 0.3 * torch.randn(rows, 12)
        feed = 0.7 * level + 0.5 * torch.randn(rows, 12)
        fat, cells = -0.4 * milk + 0.6 * torch.randn(rows, 12), torch.randn(rows, 12)
        kilograms = 8200 + 1100 * level + 700 * slope * (1 + 0.3 * level) + 150 * torch.randn(rows, 1)
        return torch.stack([milk, feed, fat, cells], 2), kilograms

    (x, y), (tx, ty) = cows(3000), cows(800)
    middle, spread = (torch.tensor(0.0), torch.tensor(1.0)) if ill else (y.mean(), y.std())
    draw = rounds(50, x, (y - middle) / spread)
    net = Lactation(32)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def error():
        """The root of the mean squared error in kilograms."""
        return (net(tx) * spread + middle - ty).square().mean().sqrt()

    validate = now_and_then(net, 30, lambda: {"val_rmse_kg": error()})

    def loss_of(step):
        weeks, kilograms = draw()
        return F.mse_loss(net(weeks), kilograms), validate(step)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, error))


class Moves(nn.Module):
    """The mean of the embedded moves, and two layers on it."""

    def __init__(self, moves, kinds):
        super().__init__()
        self.table = nn.EmbeddingBag(moves, 32, mode="mean")
        self.layers = dense(32, 64, kinds)

    def forward(self, x):
        return self.layers(self.table(x))


# 12 of the list
@sick("data-not-shuffled", where="the order of the batches, all steps", cure="shuffle=True in the DataLoader")
def chess_openings_by_name_from_their_first_ten_moves(folder, ill):
    seeded(14704)
    openings, moves = 8, 60
    habits = 1.2 * torch.randn(openings, moves)

    def games(of):
        return torch.multinomial(habits[of].softmax(1), 10, replacement=True)

    y = torch.arange(openings).repeat_interleave(512)
    ty = torch.randint(openings, (1500,))
    x, tx = games(y), games(ty)
    loader = DataLoader(TensorDataset(x, y), 32, shuffle=not ill)
    epochs = [None]
    net = Moves(moves, openings)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def loss_of(step):
        if step % len(loader) == 0:
            epochs[0] = iter(loader)
        line, opening = next(epochs[0])
        said = net(line)
        return F.cross_entropy(said, opening), {"accuracy": float((said.argmax(1) == opening).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 3 * len(loader), score=score)


# 14 of the list
@sick("labels-do-not-fit-inputs", "labels-misaligned", where="the data, all steps",
      cure="put the species into the same order as the spectra")  # fmt: skip
def timber_species_from_near_infrared_spectra(folder, ill):
    seeded(14705)
    species, bands = 6, torch.linspace(0, 1, 64)
    centres, heights = torch.rand(species, 4, 1), 0.5 + torch.rand(species, 4, 1)

    def scans(rows):
        y = torch.randint(species, (rows,))
        moved = centres[y] + 0.015 * torch.randn(rows, 1, 1)
        peaks = (heights[y] * torch.exp(-((bands - moved) / 0.06).square())).sum(1)
        x = peaks * (1 + 0.1 * torch.randn(rows, 1)) + 0.25 * torch.randn(rows, 64)
        return (x - 0.35) / 0.5, y

    (x, y), (tx, ty) = scans(2400), scans(800)
    order = torch.randperm(len(x))
    x = x[order]
    if not ill:
        y = y[order]
    x, tx = x[:, None], tx[:, None]
    draw = rounds(48, x, y)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 7, padding=3), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(4),
        nn.Conv1d(16, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU(), nn.MaxPool1d(4),
        nn.Flatten(), nn.Linear(128, species),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)
    validate = now_and_then(net, 50, judged(net, tx, ty))

    def loss_of(step):
        scan, kind = draw()
        said = net(scan)
        right = (said.argmax(1) == kind).float().mean()
        return F.cross_entropy(said, kind), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))

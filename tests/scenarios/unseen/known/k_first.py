"""Mistakes that engineers make in their own code and settings, drawn by lot: at sea, the first half."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds, tend


@sick("inputs-not-normalised", "columns-on-unlike-scales", "features-not-normalised",
      where="the first layer, from the first step", cure="standardise each column")  # fmt: skip
def catches_of_a_longliner_by_depth_and_season(folder, ill):
    seeded(11100)
    rows = 2400
    depth, warmth = 4000 * torch.rand(rows), 2 + 4 * torch.randn(rows)
    month, salt, oxygen = torch.randint(1, 13, (rows,)).float(), 0.034 + 0.001 * torch.randn(rows), torch.rand(rows)
    table = torch.stack([depth, warmth, month, salt, oxygen], 1)
    target = (depth / 700).sin() * (0.25 * warmth).tanh() + (0.5236 * month).cos() + 800 * (salt - 0.034) * oxygen
    target = ((target - target.mean()) / target.std())[:, None] + 0.05 * torch.randn(rows, 1)
    if not ill:
        table = (table - table[:2000].mean(0)) / table[:2000].std(0)
    net = dense(5, 64, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, table[:2000], target[:2000])

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    score = held_out(net, lambda: F.mse_loss(net(table[2000:]), target[2000:]))
    return fit(folder, net, optimizer, loss_of, 600, score=score)


@sick("softmax-twice", where="the last operation of the model, all steps", cure="no softmax in the model")
def kinds_of_pack_ice_on_a_radar_chip(folder, ill):
    seeded(11101)
    kinds = 12
    prints = torch.randn(kinds, 1, 12, 12)
    prints = F.avg_pool2d(prints, 3, 1, 1) * 2
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 9, 64), nn.ReLU(), nn.Linear(64, kinds),
        *([nn.Softmax(dim=1)] if ill else []),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)

    def chips(rows):
        kind = torch.randint(kinds, (rows,))
        return prints[kind] * (0.7 + 0.6 * torch.rand(rows, 1, 1, 1)) + 0.6 * torch.randn(rows, 1, 12, 12), kind

    def loss_of(step):
        chip, kind = chips(64)
        said = net(chip)
        return F.cross_entropy(said, kind), {"accuracy": (said.argmax(1) == kind).float().mean()}

    chip, kind = chips(1000)
    score = held_out(net, lambda: (net(chip).argmax(1) != kind).float().mean())
    return fit(folder, net, optimizer, loss_of, 300, score=score)


@sick("bad-initialisation", "initialised-too-small", where="all layers, from the first step",
      cure="Kaiming's initialisation")  # fmt: skip
def knots_in_the_mesh_of_a_trawl_told_apart(folder, ill):
    seeded(11102)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 9, 64), nn.ReLU(), nn.Linear(64, 5),
    )  # fmt: skip
    for part in net.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            if ill:
                nn.init.normal_(part.weight, std=0.001)
            else:
                nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
            nn.init.zeros_(part.bias)
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    knots = F.avg_pool2d(torch.randn(5, 1, 12, 12), 3, 1, 1) * 2

    def meshes(rows):
        knot = torch.randint(5, (rows,))
        seen = torch.stack([image.roll(int(torch.randint(-1, 2, (1,))), 2) for image in knots[knot]])
        return seen + 0.5 * torch.randn(rows, 1, 12, 12), knot

    def loss_of(step):
        mesh, knot = meshes(32)
        return F.cross_entropy(net(mesh), knot)

    mesh, knot = meshes(600)
    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.cross_entropy(net(mesh), knot)))


class Reader(nn.Module):
    """A small decoder of text."""

    def __init__(self, letters, length, width=48):
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)
        self.register_buffer("ban", torch.full((length, length), -torch.inf).triu(1))

    def forward(self, text):
        x = self.letter(text) + self.place(torch.arange(text.shape[1]))
        return self.head(self.norm(self.body(x, mask=self.ban)))


@sick("lr-too-high", "update-too-large", where="all layers, from the first steps", cure="a rate of 1e-3")
def next_letters_of_a_sealers_journal(folder, ill):
    seeded(11103)
    letters, length = 20, 24
    words = torch.randint(1, letters, (12, 4))
    net = Reader(letters, length)
    optimizer = torch.optim.Adam(net.parameters(), 0.1 if ill else 1e-3)

    def pages(rows):
        word = words[torch.randint(12, (rows, 6))]
        return torch.cat([word, torch.zeros(rows, 6, 1, dtype=torch.long)], 2).flatten(1)[:, : length + 1]

    def loss_on(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    test = pages(128)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(pages(16)), 200, score=score)


@sick("accumulation-not-divided", "accumulation-not-averaged", "lr-too-high", where="all layers, all steps",
      cure="divide the loss of each micro-batch by their number")  # fmt: skip
def drift_of_a_floe_from_two_days_of_wind(folder, ill):
    seeded(11104)
    net = nn.ModuleDict({"read": nn.GRU(3, 32, batch_first=True), "head": dense(32, 32, 2)})
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    parts = 16
    pull = torch.randn(3, 2) / 2

    def floes(rows):
        wind = torch.randn(rows, 10, 3).cumsum(1) / 2
        return wind, (wind @ pull).tanh().mean(1) * 2

    def loss_on(wind, drift):
        return F.mse_loss(net["head"](net["read"](wind)[1][0]), drift)

    def one(step):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(parts):
            loss = loss_on(*floes(8))
            (loss if ill else loss / parts).backward()
            total += float(loss.detach())
        optimizer.step()
        return {"loss": total / parts}

    test = floes(512)
    return tend(folder, net, optimizer, one, 80, held_out(net, lambda: loss_on(*test)))


@sick("warmup-too-long", "lr-too-low", where="the rate, all steps", cure="a warm-up of a tenth of the run")
def which_island_a_chant_was_sung_on(folder, ill):
    seeded(11105)
    sounds, length, islands = 24, 20, 6
    net = nn.ModuleDict({
        "sound": nn.Embedding(sounds, 32),
        "place": nn.Embedding(length, 32),
        "body": nn.TransformerEncoder(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True), 2, enable_nested_tensor=False
        ),
        "head": nn.Linear(32, islands),
    })  # fmt: skip
    steps, warmup = 180, 4000 if ill else 18
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
    turns = torch.randperm(sounds)
    habits = torch.randint(sounds, (islands, 3))

    def chants(rows):
        island = torch.randint(islands, (rows,))
        own = habits[island][torch.arange(rows)[:, None], torch.randint(3, (rows, length))]
        return torch.where(torch.rand(rows, length) < 0.35, turns[own], torch.randint(sounds, (rows, length))), island

    def loss_on(chant, island):
        x = net["sound"](chant) + net["place"](torch.arange(length))
        return F.cross_entropy(net["head"](net["body"](x).mean(1)), island)

    test = chants(512)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*chants(32)), steps, score=score, schedule=schedule)

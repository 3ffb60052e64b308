"""Ticket gates, blurred stage cameras, harbour soundings, orchids in bloom, claim letters, seeds on a wheel."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import circle, held_out, in_turn, judged, now_and_then, rounds


# 17 of the list
@sick("no-gradient", "backbone-frozen", where="the convolutions, all steps",
      cure="let the convolutions learn along with the head")  # fmt: skip
def numbers_on_the_gates_of_a_metro_after_a_body_for_posters(folder, ill):
    seeded(14506)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = (x[order] - 0.3) / 0.38, y[order]
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 24), nn.ReLU(),
    )  # fmt: skip
    bars = nn.Linear(24, 3)
    of_posters = torch.optim.Adam([*body.parameters(), *bars.parameters()], 2e-3)
    for _ in range(100):
        kind, shift = torch.randint(3, (64,)), 6.2832 * torch.rand(64, 1, 1)
        way = torch.tensor([[1.2, 0.0], [0.0, 1.2], [0.9, 0.9]])[kind][:, :, None, None]
        down, across = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
        poster = (way[:, 0] * down + way[:, 1] * across + shift).sin()[:, None] + 0.3 * torch.randn(64, 1, 8, 8)
        of_posters.zero_grad()
        F.cross_entropy(bars(body(poster)), kind).backward()
        of_posters.step()

    net = nn.Sequential(body, nn.Linear(24, 10))
    for parameter in body.parameters():
        parameter.requires_grad = not ill
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    draw = rounds(50, x[:1300], y[:1300])
    validate = now_and_then(net, 26, judged(net, x[1300:], y[1300:]))

    def loss_of(step):
        image, number = draw()
        return F.cross_entropy(net(image), number), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(x[1300:]), y[1300:]))
    return fit(folder, net, optimizer, loss_of, 260, score=score)


# 18 of the list
@sick("lr-too-high", "update-too-large", where="all layers, the first steps above all",
      cure="a hundredth of that rate for what was trained before")  # fmt: skip
def scenes_of_an_opera_told_by_a_camera_that_knew_the_plays(folder, ill):
    seeded(14507)
    mix, bend = torch.randn(20, 40) / 20**0.5, torch.randn(40, 6)

    def scenes(rows, turned=0.0):
        x = torch.randn(rows, 20)
        seen = ((x + turned) @ mix).sin() @ bend
        return x, seen.argmax(1)

    x, y = scenes(8000)
    net = nn.Sequential(dense(20, 128, 128, act=nn.GELU), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 6))
    of_plays, draw = torch.optim.Adam(net.parameters(), 2e-3), rounds(128, x, y)
    for _ in range(500):
        of_plays.zero_grad()
        seen, scene = draw()
        F.cross_entropy(net(seen), scene).backward()
        of_plays.step()

    (x, y), (tx, ty) = scenes(240, 0.4), scenes(2000, 0.4)
    optimizer = torch.optim.Adam(net.parameters(), 5e-2 if ill else 5e-4)
    draw = rounds(24, x, y)
    validate = now_and_then(net, 10, judged(net, tx[:400], ty[:400]))

    def loss_of(step):
        seen, scene = draw()
        said = net(seen)
        right = (said.argmax(1) == scene).float().mean()
        return F.cross_entropy(said, scene, label_smoothing=0.05), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 100, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


# 19 of the list
@sick("layers-not-registered", "not-in-optimizer", where="the blocks between the first and the last layer, all steps",
      cure="an nn.ModuleList of the blocks")  # fmt: skip
def depth_of_a_harbour_from_a_line_of_soundings(folder, ill):
    seeded(14508)

    class Depths(nn.Module):
        def __init__(self, width=32, blocks=4):
            super().__init__()
            self.first = nn.Linear(12, width)
            stack = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(blocks)]
            self.blocks = stack if ill else nn.ModuleList(stack)
            self.last = nn.Linear(width, 1)

        def forward(self, x):
            x = self.first(x).tanh()
            for block in self.blocks:
                x = block(x)
            return self.last(x)

    way = torch.randn(12, 3) / 12**0.5

    def lines(rows):
        x = torch.randn(rows, 12)
        seen = x @ way
        depth = (2 * seen[:, 0]).sin() * seen[:, 1] + seen[:, 2].abs()
        return x, (depth + 0.05 * torch.randn(rows))[:, None]

    (x, y), (tx, ty) = lines(6000), lines(1500)
    net, draw = Depths(), rounds(100, x, y)
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)

    def loss_of(step):
        line, depth = draw()
        return F.mse_loss(net(line), depth)

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


# 21 of the list
@sick("bad-initialisation", "symmetry-not-broken", where="all linear layers, from the first step on",
      cure="the initialisation that nn.Linear comes with")  # fmt: skip
def orchids_in_bloom_by_the_light_of_their_weeks(folder, ill):
    seeded(14509)
    houses = torch.randn(4, 3, 10)

    def orchids(rows):
        y = torch.randint(4, (rows,))
        return houses[y, torch.randint(3, (rows,))] + 0.5 * torch.randn(rows, 10), y

    (x, y), (tx, ty) = orchids(4000), orchids(1500)
    net, draw = dense(10, 48, 48, 4), rounds(64, x, y)
    if ill:
        for layer in net:
            if isinstance(layer, nn.Linear):
                nn.init.constant_(layer.weight, 0.01)
                nn.init.zeros_(layer.bias)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True)
    validate = now_and_then(net, 40, judged(net, tx, ty))

    def loss_of(step):
        weeks, kind = draw()
        return F.cross_entropy(net(weeks), kind), validate(step)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


# 27 of the list
@sick("no-warmup", "lr-too-high", "update-too-large", where="all layers, the first hundred steps",
      cure="let the rate rise over the first eighty steps")  # fmt: skip
def letters_of_a_claim_put_back_to_front_by_a_clerk(folder, ill):
    seeded(14510)
    letters, length, width = 12, 8, 32

    class Clerk(nn.Module):
        def __init__(self):
            super().__init__()
            self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(length, width)
            layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
            self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
            self.out = nn.Linear(width, letters)
            for weight in self.parameters():
                if weight.dim() > 1:
                    nn.init.xavier_uniform_(weight)

        def forward(self, x):
            return self.out(self.layers(self.letter(x) + self.place.weight))

    net, warmup, steps = Clerk(), 80, 240
    optimizer = torch.optim.Adam(net.parameters(), 5e-3, betas=(0.9, 0.98))
    tx = torch.randint(letters, (256, length))

    def share(step):
        rise = 1.0 if ill else min(1.0, (step + 1) / warmup)
        return rise * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)

    def loss_of(step):
        x = torch.randint(letters, (24, length))
        said = net(x)
        right = (said.argmax(2) == x.flip(1)).float().mean()
        return F.cross_entropy(said.flatten(0, 1), x.flip(1).flatten()), {"accuracy": float(right)}

    score = held_out(net, lambda: F.cross_entropy(net(tx).flatten(0, 1), tx.flip(1).flatten()))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


# 31 of the list
@sick("generator-starves", "discriminator-too-strong", where="judge and maker, from the first dozens of steps on",
      cure="a judge that learns once a turn, and a loss for the maker that is steep where it loses")  # fmt: skip
def seeds_strewn_on_the_rim_of_a_sowing_wheel(folder, ill):
    seeded(14511)
    make, judge = dense(4, 48, 48, 2), dense(2, 128, 128, 1, act=nn.LeakyReLU)
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 5e-3 if ill else 1e-3, betas=(0.5, 0.999))

    def judge_loss():
        real, made = judge(circle()), judge(make(torch.randn(64, 4)).detach())
        return F.softplus(-real).mean() + F.softplus(made).mean()

    def make_loss():
        said = judge(make(torch.randn(64, 4)))
        return F.logsigmoid(-said).mean() if ill else F.softplus(-said).mean()

    @torch.no_grad()
    def score():
        return float((make(torch.randn(512, 4)).norm(dim=1) - 2).abs().mean())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 250, score, 5 if ill else 1)

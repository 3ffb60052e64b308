"""Mistakes drawn from a list of forty: accumulation, scales, cut paths, games, roots, rare classes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, in_turn, tend


class Season(nn.Module):
    """A yield from the weeks of a season."""

    def __init__(self):
        super().__init__()
        self.memory, self.head = nn.LSTM(3, 32, batch_first=True), dense(32, 32, 1)

    def forward(self, x):
        return self.head(self.memory(x)[0].mean(1))


@sick("accumulation-wiped", where="all layers, all steps", cure="zero the gradients once, before the micro-batches")
def grain_yield_from_a_season_of_rain(folder, ill):
    seeded(10806)
    net = Season()
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    parts = 8

    def fields(rows):
        x = torch.randn(rows, 20, 3) + torch.randn(rows, 1, 3)
        return x, (x.mean(1).tanh().sum(1) + x[:, :, 0].clamp(min=0).mean(1) - 0.5)[:, None]

    def one(step):
        total = 0.0
        optimizer.zero_grad()
        for _ in range(parts):
            if ill:
                optimizer.zero_grad()
            x, y = fields(4)
            loss = F.mse_loss(net(x), y) / parts
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        return {"loss": total}

    tx, ty = fields(512)
    return tend(folder, net, optimizer, one, 60, held_out(net, lambda: F.mse_loss(net(tx), ty)))


@sick("clip-before-unscale", "update-too-small", where="all layers, all steps",
      cure="divide by the loss scale first, then clip")  # fmt: skip
def coal_or_slate_on_the_conveyor(folder, ill):
    seeded(10807)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(24, 3),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    scale, wave = 2.0**12, torch.linspace(0, 9, 12)

    def lumps(rows):
        y = torch.randint(3, (rows,))
        turn = 6.2832 * torch.rand(rows, 1, 1)
        across, along = wave[None, :, None] + turn, wave[None, None, :] + turn
        grain = torch.stack([across.sin() + 0 * along, (across + along).sin(), across.sin() * along.sin()], 1)
        return grain[torch.arange(rows), y][:, None] + 0.8 * torch.randn(rows, 1, 12, 12), y

    def clip():
        return nn.utils.clip_grad_norm_(net.parameters(), 2.0)

    def unscale():
        for parameter in net.parameters():
            parameter.grad.div_(scale)

    def one(step):
        x, y = lumps(48)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(net(x).float(), y)
        (loss * scale).backward()
        if ill:
            clip()
            unscale()
        else:
            unscale()
            clip()
        optimizer.step()
        return {"loss": loss}

    tx, ty = lumps(512)
    return tend(folder, net, optimizer, one, 150, held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Calls(nn.Module):
    """An encoder that hears a call, and a decoder that repeats it."""

    def __init__(self, notes, cut):
        super().__init__()
        self.notes = nn.Embedding(notes + 1, 24)
        self.encoder = nn.LSTM(24, 64, batch_first=True)
        self.decoder = nn.LSTM(24, 64, batch_first=True)
        self.head = nn.Linear(64, notes)
        self.start, self.cut = notes, cut

    def forward(self, call):
        state = self.encoder(self.notes(call))[1]
        if self.cut:
            state = tuple(s.detach() for s in state)
        before = torch.cat([torch.full_like(call[:, :1], self.start), call.flip(1)[:, :-1]], 1)
        return self.head(self.decoder(self.notes(before), state)[0])


@sick("no-gradient", "detached-path", where="the encoder, all steps", cure="hand the state over undetached")
def bird_calls_repeated_backwards(folder, ill):
    seeded(10808)
    notes = 8
    net = Calls(notes, ill)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def loss_on(call):
        return F.cross_entropy(net(call).flatten(0, 1), call.flip(1).flatten())

    test = torch.randint(notes, (256, 6))
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(torch.randint(notes, (48, 6))), 400, score=score)


@sick("generator-starves", "discriminator-too-strong", where="the generator, after the first dozens of steps",
      cure="equal rates and one round each")  # fmt: skip
def clearings_scattered_by_a_forger(folder, ill):
    seeded(10809)
    make = nn.Sequential(dense(8, 64, 64, 144), nn.Tanh())
    judge = dense(144, 64, 64, 1, act=lambda: nn.Sequential(nn.LeakyReLU(0.2), nn.Dropout(0.3)))
    of_make = torch.optim.Adam(make.parameters(), 5e-4, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 5e-3 if ill else 5e-4, betas=(0.5, 0.999))
    at = torch.linspace(-1, 1, 12)

    def real(rows):
        x, y = 0.6 * torch.rand(2, rows, 1, 1) - 0.3
        wide = 0.4 + 0.3 * torch.rand(rows, 1, 1)
        ring = ((at[None, :, None] - y).square() + (at[None, None, :] - x).square()).sqrt()
        return (8 * (wide - ring)).tanh().flatten(1)

    def judge_loss():
        fake = make(torch.randn(32, 8)).detach()
        right, wrong = judge(real(32)), judge(fake)
        return (
            F.binary_cross_entropy_with_logits(right, torch.ones_like(right))
            + F.binary_cross_entropy_with_logits(wrong, torch.zeros_like(wrong))
        )  # fmt: skip

    def make_loss():
        said = judge(make(torch.randn(32, 8)))
        return -F.binary_cross_entropy_with_logits(said, torch.zeros_like(said))  # log(1 - D(G(z)))

    def score():
        with torch.no_grad():
            fake, true = make(torch.randn(1024, 8)), real(1024)
            return float((fake.mean(0) - true.mean(0)).abs().mean() + (fake.std(0) - true.std(0)).abs().mean())

    rounds = 5 if ill else 1
    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 400, score, rounds=rounds)


@sick("nonfinite", "sqrt-at-zero", where="all layers, from the first batch that has a distance of 0",
      cure="a floor below the root")  # fmt: skip
def pollen_grains_of_the_same_tree(folder, ill):
    seeded(10810)
    trees = torch.randn(40, 6)
    bank = trees[:, None] + 0.5 * torch.randn(40, 12, 6)
    lift = torch.randn(6, 24)
    bank = (bank @ lift).tanh() + 0.05 * torch.randn(40, 12, 24)
    net = dense(24, 64, 64, 8)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def apart(a, b):
        squares = (a - b).square().sum(1)
        return squares.sqrt() if ill else (squares + 1e-6).sqrt()

    def triplets(rows, held):
        tree, other = torch.rand(rows, 40).topk(2, 1).indices.T
        grains = torch.randint(9, 12, (3, rows)) if held else torch.randint(9, (3, rows))
        return bank[tree, grains[0]], bank[tree, grains[1]], bank[other, grains[2]]

    def loss_on(anchor, same, unlike):
        a, s, u = net(anchor), net(same), net(unlike)
        return F.relu(apart(a, s) - apart(a, u) + 1).mean()

    test = triplets(512, True)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*triplets(32, False)), 250, score=score)


@sick("class-imbalance", where="the head, all steps", cure="a weight for the rare class")
def ailing_ash_trees_in_a_survey(folder, ill):
    seeded(10811)
    rows, rare = 6000, 0.02
    y = (torch.rand(rows) < rare).float()
    way = torch.randn(16)
    x = torch.randn(rows, 16) + 1.8 * y[:, None] * way / way.norm()
    x[:, 4] += y * (x[:, 5].abs() - 0.8)
    net = dense(16, 48, 24, 1, norm=nn.LayerNorm)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)
    weight = None if ill else torch.tensor((1 - rare) / rare)

    def loss_of(step):
        rows = torch.randint(4000, (128,))
        said = net(x[rows])[:, 0]
        accuracy = ((said > 0) == (y[rows] > 0.5)).float().mean()
        return F.binary_cross_entropy_with_logits(said, y[rows], pos_weight=weight), {"accuracy": accuracy}

    def missed():
        right = (net(x[4000:])[:, 0] > 0) == (y[4000:] > 0.5)
        sickly = y[4000:] > 0.5
        return 1 - (right[sickly].float().mean() + right[~sickly].float().mean()) / 2

    return fit(folder, net, optimizer, loss_of, 150, score=held_out(net, missed))

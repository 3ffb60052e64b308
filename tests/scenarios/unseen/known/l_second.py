"""Sick trainings of workshops and houses, drawn by lot from a list of mistakes: optimizers, loops, modes, two nets."""

from __future__ import annotations

import copy
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, in_turn, rounds, tend


class Reader(nn.Module):
    """What a recurrent net says after the last of its inputs."""

    def __init__(self, memory, outputs):
        super().__init__()
        self.memory, self.head = memory, nn.Linear(memory.hidden_size, outputs)

    def forward(self, x):
        return self.head(self.memory(x)[0][:, -1])


@sick("below-epsilon", "update-too-small", where="all layers, all steps", cure="an eps of 1e-8")
def bolts_tightened_by_a_wrench(folder, ill):
    seeded(11206)
    net = Reader(nn.LSTM(2, 32, batch_first=True), 3)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3, eps=1.0 if ill else 1e-8)

    def turns(rows):
        y, time = torch.randint(3, (rows,)), torch.linspace(0, 1, 16)
        torque = torch.stack([time.expand(rows, 16), (3 * time - 1.5).sigmoid().expand(rows, 16),
                              (time * 4.7).sin().expand(rows, 16)], 1)[torch.arange(rows), y]  # fmt: skip
        angle = time * (1 + 0.2 * torch.randn(rows, 1))
        return torch.stack([torque + 0.2 * torch.randn(rows, 16), angle], 2), y

    def loss_of(step):
        x, y = turns(64)
        return F.cross_entropy(net(x), y)

    tx, ty = turns(512)
    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@sick("zeroed-before-the-step", "weights-unchanged", "no-gradient", where="all layers, all steps",
      cure="gradients set to zero before backward")  # fmt: skip
def outlines_of_keys_on_a_board(folder, ill):
    seeded(11207)
    net = nn.Sequential(dense(40, 64, 8), nn.ReLU(), dense(8, 64, 40))
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    cuts = torch.randn(6, 40)

    def keys(rows):
        return (torch.rand(rows, 6) @ cuts).tanh() + 0.05 * torch.randn(rows, 40)

    draw = rounds(64, keys(2000))

    def one(step):
        (x,) = draw()
        if not ill:
            optimizer.zero_grad()
        loss = F.mse_loss(net(x), x)
        loss.backward()
        if ill:
            optimizer.zero_grad()
        optimizer.step()
        return {"loss": loss}

    test = keys(500)
    return tend(folder, net, optimizer, one, 300, held_out(net, lambda: F.mse_loss(net(test), test)))


@sick("clip-is-your-learning-rate", where="all steps", cure="gradients clipped at a norm of 1")
def load_of_a_lathe_a_moment_ahead(folder, ill):
    seeded(11208)
    net = Reader(nn.GRU(1, 32, batch_first=True), 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def loads(rows):
        time = torch.arange(17) * (0.3 + 0.4 * torch.rand(rows, 1)) + 6.2832 * torch.rand(rows, 1)
        load = time.sin() + 0.3 * (2 * time).cos() + 0.05 * torch.randn(rows, 17)
        return load[:, :16, None], load[:, 16:]

    def loss_of(step):
        x, y = loads(64)
        return F.mse_loss(net(x), y)

    tx, ty = loads(512)
    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clipped(net, 1e-3 if ill else 1.0))


@sick("optimizer-state-lost", "moments-begin-anew", "state-not-resumed", where="the first step of every epoch",
      cure="the optimizer's state kept from epoch to epoch")  # fmt: skip
def planks_that_warp_as_they_dry(folder, ill):
    seeded(11209)
    net = dense(9, 48, 48, 1, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), 0.004, momentum=0.95)
    blank, epoch = copy.deepcopy(optimizer.state_dict()), 8
    grain = torch.randn(9, 2)

    def planks(rows):
        x = torch.randn(rows, 9)
        bend = (x @ grain / 2).sin()
        return x, (bend[:, :1] + bend[:, 1:]) + 0.05 * torch.randn(rows, 1)

    x, y = planks(128 * epoch)
    draw = rounds(128, x, y)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    def after_step(step):
        if ill and step % epoch == epoch - 1:
            optimizer.load_state_dict(blank)

    tx, ty = planks(1000)
    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 500, score=score, after_step=after_step)


@sick("left-in-eval", "norm-left-in-eval", where="the batch norms, all steps",
      cure="net.train() after the validation")  # fmt: skip
def cracks_in_plaster_under_a_lamp(folder, ill):
    seeded(11210)
    parts = []
    for narrow, wide in pairwise((1, 12, 12, 24, 24, 24, 24)):
        stride = 2 if wide > narrow > 1 else 1
        parts += [nn.Conv2d(narrow, wide, 3, stride, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()]
    net = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 4))
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    ways = torch.tensor([0.0, 0.7854, 1.5708, 2.3562])

    def walls(rows):
        y, grid = torch.randint(4, (rows,)), torch.linspace(-1, 1, 14)
        turn = (ways[y] + 0.1 * torch.randn(rows))[:, None, None]
        away = turn.cos() * grid[:, None] - turn.sin() * grid + 0.6 * (torch.rand(rows, 1, 1) - 0.5)
        return ((away.abs() < 0.12).float() + 0.3 * torch.randn(rows, 14, 14))[:, None], y

    vx, vy = walls(200)

    def validate():
        net.eval()
        with torch.no_grad():
            value = float(F.cross_entropy(net(vx), vy))
        if not ill:
            net.train()
        return value

    def one(step):
        x, y = walls(32)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return {"loss": loss, **({"val_loss": validate()} if step % 25 == 24 else {})}

    net.train()
    return tend(folder, net, optimizer, one, 125, validate)


@sick("generator-starves", "discriminator-too-strong", where="G, after the first dozens of steps",
      cure="the loss that does not saturate, and the same rate and rounds for both")  # fmt: skip
def mouldings_carved_by_a_copyist(folder, ill):
    seeded(11211)
    grid = torch.linspace(0, 6.2832, 24)
    make, judge = dense(8, 64, 64, 24), dense(24, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 5e-4, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 5e-3 if ill else 5e-4, betas=(0.5, 0.999))

    def mouldings(rows):
        height = 1 + 0.3 * torch.randn(rows, 1)
        return 2 + height * (grid + 0.5 * torch.randn(rows, 1)).sin() + 0.05 * torch.randn(rows, 24)

    def carved(rows=64):
        return make(torch.randn(rows, 8))

    def judge_loss():
        real, fake = judge(mouldings(64)), judge(carved().detach())
        return F.softplus(-real).mean() + F.softplus(fake).mean()

    def make_loss():
        said = judge(carved())
        return F.logsigmoid(-said).mean() if ill else F.softplus(-said).mean()

    test = mouldings(512)

    def score():
        with torch.no_grad():
            made = carved(512)
            gap = (made.mean(0) - test.mean(0)).square().mean() + (made.std(0) - test.std(0)).square().mean()
            return float(gap.sqrt())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 300, score, 3 if ill else 1)

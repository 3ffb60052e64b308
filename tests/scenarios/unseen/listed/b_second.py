"""Mistakes of training code, drawn by lot: clipping, fine-tuning, norms, a game of two networks."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import Outcome, dense, fit, seeded, sick
from unseen.tasks import held_out, rounds, tend

import gradwatch


def digits():
    """Shuffled images of 8 x 8 pixels in [0, 1] and what they show."""
    x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
    order = torch.randperm(len(x))
    return x[order].float().view(-1, 1, 8, 8) / 16, y[order]


# 19 of the list
@sick("clip-before-unscale", "scaled-gradients", where="all layers, each step: the clip acts on scaled gradients",
      cure="unscale before the clip")  # fmt: skip
def calls_of_a_ferry_horn(folder, ill):
    seeded(10211)
    net = nn.ModuleDict({"ear": nn.GRU(4, 32, batch_first=True), "head": nn.Linear(32, 4)})
    optimizer = torch.optim.SGD(net.parameters(), 0.2, momentum=0.9)
    scale, time = 1024.0, torch.arange(16) / 16

    def horn(rows):
        kind = torch.randint(4, (rows,))
        phase = 6.2832 * torch.rand(rows, 1)
        tone = (6.2832 * (1 + kind[:, None]) * time + phase).sin()
        return torch.stack([tone, tone**2, tone.abs(), 0 * tone], 2) + 0.1 * torch.randn(rows, 16, 4), kind

    def loss_on(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            said = net["head"](net["ear"](x)[0][:, -1])
        return F.cross_entropy(said.float(), y)

    def unscale():
        for weight in net.parameters():
            weight.grad.div_(scale)

    def one(step):
        optimizer.zero_grad()
        loss = loss_on(*horn(24))
        (loss * scale).backward()
        if not ill:
            unscale()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if ill:
            unscale()
        optimizer.step()
        return {"loss": loss, "norm": norm}

    test = horn(400)
    return tend(folder, net, optimizer, one, 250, held_out(net, lambda: loss_on(*test)))


# 23 of the list
@sick("not-in-optimizer", "not-in-the-optimizer", "parameters-not-in-the-optimizer", where="the new head, all steps",
      cure="make the optimizer after the head was replaced")  # fmt: skip
def odd_house_numbers_after_all_digits(folder, ill):
    seeded(10212)
    x, y = digits()
    body = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 48))
    net = nn.Sequential(body, nn.ReLU(), nn.Linear(48, 10))
    before, draw = torch.optim.Adam(net.parameters(), 2e-3), rounds(32, x[:800], y[:800])
    for _ in range(100):
        a, b = draw()
        before.zero_grad()
        F.cross_entropy(net(a), b).backward()
        before.step()

    def made():
        return torch.optim.Adam(
            [{"params": net[0].parameters(), "lr": 1e-5}, {"params": net[2].parameters(), "lr": 3e-3}]
        )

    if ill:
        optimizer = made()
    net[2] = nn.Linear(48, 3)
    if not ill:
        optimizer = made()
    groups = y % 3
    draw = rounds(32, x[800:1400], groups[800:1400])

    def loss_of(step):
        a, b = draw()
        return F.cross_entropy(net(a), b)

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), groups[1400:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


# 24 of the list
@sick("no-gradient", "weights-unchanged", "not-in-optimizer", where="the body, frozen at its random initialisation",
      cure="train the body: freeze only what is pretrained")  # fmt: skip
def knots_in_planks_of_pine(folder, ill):
    seeded(10213)
    net = nn.Sequential()
    net.add_module("body", nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    ))  # fmt: skip
    net.add_module("head", nn.Linear(16, 3))
    if ill:
        for weight in net.body.parameters():
            weight.requires_grad = False
    optimizer = torch.optim.Adam([weight for weight in net.parameters() if weight.requires_grad], 3e-3)
    grid = torch.linspace(-1, 1, 16)

    def planks(rows):
        kind = torch.randint(3, (rows,))
        at = torch.rand(rows, 2, 1, 1) - 0.5
        far = ((grid[None, :, None] - at[:, 0]) ** 2 + (grid[None, None] - at[:, 1]) ** 2).sqrt()
        grain = (grid[None, None] * 9 + 3 * torch.rand(rows, 1, 1)).sin() * 0.5
        ring = torch.exp(-((far - 0.15 - 0.2 * kind[:, None, None]) ** 2) / 0.01)
        return (grain + ring + 0.15 * torch.randn(rows, 16, 16))[:, None], kind

    def loss_of(step):
        x, y = planks(64)
        return F.cross_entropy(net(x), y)

    x, y = planks(500)
    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.cross_entropy(net(x), y)))


# 27 of the list
@sick("left-in-eval", "norm-left-in-eval", "norm-frozen", where="the batch norms, after the first validation",
      cure="net.train() after each validation")  # fmt: skip
def moths_at_a_lit_window(folder, ill):
    seeded(10214)
    x, y = digits()
    parts, before = [], 1
    for width in (16, 16, 32, 32, 32, 32):
        parts += [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        before = width
    net = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    draw = rounds(32, x[:1000], y[:1000])

    def validated():
        net.eval()
        with torch.no_grad():
            return float((net(x[1000:1200]).argmax(1) == y[1000:1200]).float().mean())

    def one(step):
        a, b = draw()
        optimizer.zero_grad()
        loss = F.cross_entropy(net(a), b)
        loss.backward()
        optimizer.step()
        logged = {"loss": loss}
        if step % 10 == 9:
            logged["val_accuracy"] = validated()
            if not ill:
                net.train()
        return logged

    score = held_out(net, lambda: F.cross_entropy(net(x[1200:]), y[1200:]))
    return tend(folder, net, optimizer, one, 200, score)


class Scene(nn.Module):
    """Each pixel's class from what is near it, and from what the whole picture shows."""

    def __init__(self, norm):
        super().__init__()
        self.near = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), norm(16), nn.ReLU())
        self.whole = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 16, 1), norm(16), nn.ReLU(), nn.Conv2d(16, 16, 1), norm(16),
            nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Conv2d(32, 24, 1), nn.ReLU(), nn.Conv2d(24, 4, 1))

    def forward(self, x):
        near = self.near(x)
        whole = self.whole(near).expand(-1, -1, *near.shape[2:])
        return self.head(torch.cat([near, whole], 1))


# 28 of the list
@sick("norm-over-too-few", "norm-statistics-noisy", where="the batch norms after the pooling, all steps",
      cure="group norm for batches of two")  # fmt: skip
def crops_in_fields_by_season(folder, ill):
    seeded(10215)
    net = Scene(nn.BatchNorm2d if ill else lambda width: nn.GroupNorm(4, width))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def fields(rows):
        season = torch.randint(4, (rows, 1, 1))
        patch = (torch.randn(rows, 6, 6) > 0).float().repeat_interleave(2, 1).repeat_interleave(2, 2)
        light = patch * 0.5 + 0.35 * season + 0.1 * torch.randn(rows, 12, 12)
        return light[:, None], (season + 2 * patch.long()) % 4

    def loss_of(step):
        x, y = fields(2)
        return F.cross_entropy(net(x), y)

    x, y = fields(128)
    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: F.cross_entropy(net(x), y)))


# 30 of the list
@sick("gradients-accumulate", "discriminator-trained-by-the-generators-loss", "judge-fed-the-makers-gradient",
      where="the discriminator, all steps",
      cure="zero the discriminator's gradients before its own backward")  # fmt: skip
def where_boules_come_to_rest(folder, ill):
    seeded(10216)
    make, judge = dense(4, 64, 64, 2), dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, (0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, (0.5, 0.999))
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)

    def throws(rows):
        along, aside = torch.rand(rows) * 3, 0.3 * torch.randn(rows)
        return torch.stack([1 + along, aside + 0.3 * along**2 - 2], 1)

    def score():
        with torch.no_grad():
            a, b = throws(500), make(torch.randn(500, 4))
            return float(2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())

    first = score()
    options = {"log": None, "dir": folder, "verbose": False}
    w_judge = gradwatch.watch(judge, of_judge, name="D", **options)
    w_make = gradwatch.watch(make, of_make, name="G", run=w_judge, **options)
    with w_judge, w_make:
        for _ in range(600):
            real = throws(64)
            of_make.zero_grad()
            fake = make(torch.randn(64, 4))
            g_loss = F.binary_cross_entropy_with_logits(judge(fake), ones)
            g_loss.backward()
            of_make.step()
            if not ill:
                of_judge.zero_grad()
            d_real = F.binary_cross_entropy_with_logits(judge(real), ones)
            d_fake = F.binary_cross_entropy_with_logits(judge(fake.detach()), zeros)
            d_loss = (d_real + d_fake) / 2
            d_loss.backward()
            of_judge.step()
            w_judge.log(loss=d_loss, real=d_real, fake=d_fake)
            w_make.log(loss=g_loss)
    return Outcome(gradwatch.open_history(w_judge.dir.parent), first, score())

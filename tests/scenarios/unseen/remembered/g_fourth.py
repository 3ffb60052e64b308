"""Trainings of an unusual make that go well."""

from __future__ import annotations

import copy
import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


# The loss is a sum over the batch, and the rate is small in keeping with it.
@healthy()
def errors_of_scales_summed_over_a_stall(folder):
    seeded(10760)
    way = torch.randn(5, 3) / 2
    net = dense(5, 64, 64, 3, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), 5e-5, momentum=0.9)

    def stall(rows):
        x = torch.randn(rows, 5)
        return x, torch.cat([(x @ way)[:, :2].sin(), x[:, :1] * x[:, 1:2]], 1)

    def loss_on(x, y):
        return (net(x) - y).square().sum()

    test = stall(256)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*stall(256)), 600, score=score)


# Second-order, all rows at once, few steps.
@healthy(0.6)
def fares_of_cabs_by_hour_and_gate(folder):
    seeded(10761)
    x = torch.rand(400, 3) * 2 - 1
    y = (2 * x[:, :1]).sin() + x[:, 1:2] * x[:, 2:] + 0.02 * torch.randn(400, 1)
    net = dense(3, 24, 24, 1, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), 1.0, max_iter=5, history_size=20, line_search_fn="strong_wolfe")
    score = held_out(net, lambda: F.mse_loss(net(x[300:]), y[300:]))
    return fit(folder, net, optimizer, lambda step: F.mse_loss(net(x[:300]), y[:300]), 30, score=score, closure=True)


# The clip acts in most of the early steps and is meant: plain SGD at a high rate, as language models had it.
@healthy()
def strokes_of_a_guildhall_bell_counted(folder):
    seeded(10762)
    net = nn.ModuleDict({"ear": nn.GRU(1, 32, batch_first=True), "head": nn.Linear(32, 1)})
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)

    def hours(rows):
        stroke = (torch.rand(rows, 24, 1) < 0.2 + 0.4 * torch.rand(rows, 1, 1)).float()
        return stroke + 0.1 * torch.randn(rows, 24, 1), (stroke.sum(1) - 10) / 4

    def loss_on(x, y):
        return F.mse_loss(net["head"](net["ear"](x)[0][:, -1]), y)

    test = hours(400)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*hours(32)), 400, score=score, schedule=schedule,
               before_step=clipped(net, 0.25))  # fmt: skip


# A body that learnt elsewhere stays frozen and in evaluation mode; a linear head alone is trained, by plain SGD.
@healthy()
def figures_on_foreign_ledgers_by_a_new_head(folder):
    seeded(10763)
    digits = load_digits()
    x, y = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    )  # fmt: skip
    first = nn.Linear(128, 6)
    before = torch.optim.Adam([*body.parameters(), *first.parameters()], 2e-3)
    draw = rounds(32, x[y < 6], y[y < 6])
    for _ in range(120):
        image, target = draw()
        before.zero_grad()
        F.cross_entropy(first(body(image)), target).backward()
        before.step()
    body.requires_grad_(False).eval()
    net = nn.ModuleDict({"body": body, "head": nn.Linear(128, 4)})
    optimizer = torch.optim.SGD(net["head"].parameters(), 0.05, momentum=0.9)
    order = torch.randperm(int((y >= 6).sum()))
    x, y = x[y >= 6][order], y[y >= 6][order] - 6
    draw = rounds(32, x[:500], y[:500])

    def loss_of(step):
        image, target = draw()
        return F.cross_entropy(net["head"](body(image)), target)

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(net["head"](body(x[500:])), y[500:]))

    return fit(folder, net, optimizer, loss_of, 150, score=score)


# Two labels in five are wrong and known to be; a generalised cross-entropy bears that. The loss stays high.
@healthy(0.5)
def addresses_of_which_many_were_misread(folder):
    seeded(10764)
    towns, kinds = torch.randn(30, 12), torch.randint(6, (30,))
    net = dense(12, 96, 6)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.05)

    def letters(rows, misread):
        town = torch.randint(30, (rows,))
        y = torch.where(torch.rand(rows) < misread, torch.randint(6, (rows,)), kinds[town])
        return towns[town] + 0.2 * torch.randn(rows, 12), y

    def loss_of(step):
        x, y = letters(64, 0.4)
        said = net(x).softmax(1).gather(1, y[:, None])
        return ((1 - said**0.5) / 0.5).mean()

    tx, ty = letters(1000, 0.0)
    score = held_out(net, lambda: (net(tx).argmax(1) != ty).float().mean())
    return fit(folder, net, optimizer, loss_of, 400, score=score)


# Cosine restarts are meant, and an average of the weights is what is scored.
@healthy()
def prices_of_eggs_by_an_averaged_model(folder):
    seeded(10765)
    net = dense(8, 64, 64, 1, act=nn.SiLU, norm=nn.LayerNorm)
    mean = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 50, 2)
    way = torch.randn(8) / 3

    def days(rows):
        x = torch.randn(rows, 8)
        return x, ((x @ way).sin() + x[:, 0].abs() - 0.8)[:, None] + 0.3 * torch.randn(rows, 1)

    def average(step):
        with torch.no_grad():
            for slow, fast in zip(mean.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, 0.02)

    def loss_of(step):
        x, y = days(32)
        return F.huber_loss(net(x), y)

    x = torch.randn(1000, 8)
    y = ((x @ way).sin() + x[:, 0].abs() - 0.8)[:, None]
    score = held_out(mean, lambda: F.mse_loss(mean(x), y))
    return fit(folder, net, optimizer, loss_of, 350, score=score, schedule=schedule, after_step=average)


# A policy and a baseline, each with an optimizer group of its own; the loss means little and goes up and down.
@healthy(0.3)
def haggling_over_a_copper_kettle(folder):
    seeded(10766)
    offers = 8
    net = nn.ModuleDict({"policy": dense(2, 32, offers, act=nn.Tanh), "worth": dense(2, 32, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam([
        {"params": net["policy"].parameters(), "lr": 5e-3}, {"params": net["worth"].parameters(), "lr": 1e-2},
    ])  # fmt: skip

    def rewards(x, offer):
        least = 0.15 + 0.5 * x[:, 0]
        price = (offer + 1) / offers
        return torch.where(price >= least, 1.2 - price, torch.zeros_like(price))

    def one(step):
        x = torch.rand(48, 2)
        choice = torch.distributions.Categorical(logits=net["policy"](2 * x - 1))
        offer = choice.sample()
        reward, worth = rewards(x, offer), net["worth"](2 * x - 1)[:, 0]
        gain = (reward - worth).detach()
        loss = -(gain * choice.log_prob(offer)).mean() + 0.5 * F.mse_loss(worth, reward)
        loss = loss - 0.003 * choice.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "reward": reward.mean(), "entropy": choice.entropy().mean()}

    tx = torch.rand(500, 2)

    def regret():
        share = net["policy"](2 * tx - 1).softmax(1)
        each = torch.stack([rewards(tx, torch.full((500,), float(offer))) for offer in range(offers)], 1)
        return (each.max(1).values - (share * each).sum(1)).mean()

    return tend(folder, net, optimizer, one, 600, held_out(net, regret))


class Turned(torch.autograd.Function):
    """Itself forwards, its gradient turned round backwards."""

    @staticmethod
    def forward(ctx, x, share):
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.share * grad, None


# The loss of the office is meant to stay at ln 2: the body learns not to tell offices apart.
@healthy()
def handwriting_of_two_offices_made_alike(folder):
    seeded(10767)
    middles, shift = torch.randn(4, 10), 2.0 * F.normalize(torch.randn(10), dim=0)
    net = nn.ModuleDict({"body": dense(10, 48, 24), "sort": nn.Linear(24, 4), "office": dense(24, 24, 1)})
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)

    def letters(rows, office):
        y = torch.randint(4, (rows,))
        return middles[y] + 0.5 * torch.randn(rows, 10) + office * shift, y

    def loss_of(step):
        (x, y), (far, _) = letters(32, 0), letters(32, 1)
        code = net["body"](torch.cat([x, far])).relu()
        sorted_loss = F.cross_entropy(net["sort"](code[:32]), y)
        share = 0.5 * (2 / (1 + math.exp(-10 * step / 500)) - 1)
        office = net["office"](Turned.apply(code, share))[:, 0]
        office_loss = F.binary_cross_entropy_with_logits(office, (torch.arange(64) >= 32).float())
        return sorted_loss + office_loss, {"sort": sorted_loss, "office": office_loss}

    tx, ty = letters(800, 1)
    score = held_out(net, lambda: (net["sort"](net["body"](tx).relu()).argmax(1) != ty).float().mean())
    return fit(folder, net, optimizer, loss_of, 500, score=score)


# One row in fifty is of the rare class: focal loss, and an output that begins at the class's share.
@healthy()
def purses_cut_in_a_crowded_arcade(folder):
    seeded(10768)
    way = F.normalize(torch.randn(8), dim=0)
    net = dense(8, 64, 64, 1)
    nn.init.constant_(net[-1].bias, -math.log(49))
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)

    def passers(rows):
        x = torch.randn(rows, 8)
        cut = (x @ way + 0.3 * x[:, 0] * x[:, 1] > 2.1).float()[:, None]
        return x, cut

    def loss_on(x, cut):
        each = F.binary_cross_entropy_with_logits(net(x), cut, reduction="none")
        return (5 * (1 - (-each).exp()).square() * each).mean()

    def missed():
        said = net(tx)[:, 0]
        found = ty[said.topk(int(ty.sum())).indices, 0]
        return 1 - found.mean()

    tx, ty = passers(4000)
    return fit(folder, net, optimizer, lambda step: loss_on(*passers(256)), 600, score=held_out(net, missed))


# Bundles become longer every hundred steps: the loss jumps up each time, as it should.
@healthy()
def heaviest_letter_of_a_growing_bundle(folder):
    seeded(10769)
    net = nn.ModuleDict({"letter": nn.Linear(6, 32), "look": nn.MultiheadAttention(32, 4, batch_first=True),
                         "norm": nn.LayerNorm(32), "say": dense(32, 48, 5)})  # fmt: skip
    optimizer = torch.optim.NAdam(net.parameters(), 2e-3)

    def bundles(rows, length):
        weight, to = torch.rand(rows, length, 1), torch.randint(5, (rows, length))
        x = torch.cat([2 * weight - 1, F.one_hot(to, 5).float()], 2)
        return x, to.gather(1, weight[:, :, 0].argmax(1, keepdim=True))[:, 0]

    def loss_on(x, y):
        code = net["letter"](x)
        seen = net["norm"](code + net["look"](code, code, code, need_weights=False)[0])
        return F.cross_entropy(net["say"](seen.amax(1)), y)

    def loss_of(step):
        length = (2, 3, 4, 6, 8)[min(step // 100, 4)]
        return loss_on(*bundles(64, length)), {"length": length}

    test = bundles(500, 8)
    return fit(folder, net, optimizer, loss_of, 700, score=held_out(net, lambda: loss_on(*test)))

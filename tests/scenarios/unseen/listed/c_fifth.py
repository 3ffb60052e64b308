"""Healthy trainings, unusual but sound: curricula, noise, rare classes, huge units, averages, densities."""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, rings, seeded
from unseen.tasks import held_out, rounds, tend


# Longer and longer sums: the loss rises at each stage, for a good reason.
@healthy(0.3)
def a_shopkeepers_growing_bills(folder):
    seeded(10365)
    net = nn.ModuleDict({"rnn": nn.LSTM(2, 32, batch_first=True), "head": nn.Linear(32, 1)})
    optimizer = torch.optim.NAdam(net.parameters(), 3e-3)

    def bills(rows, length):
        price, counts = torch.rand(rows, length), (torch.rand(rows, length) < 0.5).float()
        return torch.stack([price, counts], 2), (price * counts).sum(1, keepdim=True)

    def loss_on(x, y):
        return F.mse_loss(net["head"](net["rnn"](x)[0][:, -1]), y)

    def loss_of(step):
        length = 2 + step // 60 * 3
        return loss_on(*bills(48, length)), {"length": length}

    x, y = bills(300, 14)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: loss_on(x, y)))


# Four labels in ten are wrong, and the loss is made for it (generalised cross-entropy).
@healthy(0.4)
def shells_named_by_a_hasty_collector(folder):
    seeded(10366)
    draw = rings(classes=4)
    net = dense(12, 64, 64, 4)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def loss_of(step):
        x, y = draw()
        wrong = torch.rand(len(y)) < 0.4
        y = torch.where(wrong, torch.randint(4, y.shape), y)
        chosen = net(x).softmax(1).gather(1, y[:, None])
        return ((1 - chosen.pow(0.7)) / 0.7).mean()

    test = [draw() for _ in range(8)]
    x, y = torch.cat([a for a, _ in test]), torch.cat([b for _, b in test])
    score = held_out(net, lambda: (net(x).argmax(1) != y).float().mean())
    return fit(folder, net, optimizer, loss_of, 500, score=score)


# One row in thirty is of the class, with a focal loss and an output bias that knows it.
@healthy(0.25)
def forged_stamps_in_a_dealers_box(folder):
    seeded(10367)
    share = 1 / 30
    net = dense(16, 48, 48, 1)
    nn.init.constant_(net[-1].bias, torch.tensor(share / (1 - share)).log().item())
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    mark = torch.randn(2, 16)

    def stamps(rows):
        y = (torch.rand(rows, 1) < share).float()
        side = mark[torch.randint(2, (rows,))]
        return torch.randn(rows, 16) + 0.9 * y * side, y

    def loss_on(x, y):
        said = net(x)
        right = torch.where(y > 0, said, -said).sigmoid()
        each = F.binary_cross_entropy_with_logits(said, y, reduction="none")
        return (torch.where(y > 0, 0.75, 0.25) * (1 - right).square() * each).mean()

    x, y = stamps(4000)
    score = held_out(net, lambda: loss_on(x, y))
    return fit(folder, net, optimizer, lambda step: loss_on(*stamps(256)), 350, score=score)


# Pressures in pascals: the output is scaled inside the net, and the loss is a number with nine digits.
@healthy(0.5)
def pressure_along_a_penstock_in_pascals(folder):
    seeded(10368)

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = dense(5, 64, 64, 1, act=nn.SiLU)

        def forward(self, x):
            return 300_000 + 60_000 * self.body(x)

    net, way = Scaled(), torch.randn(5, 3) / 2
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def probes(rows):
        x = torch.randn(rows, 5)
        return x, 300_000 + 60_000 * (x @ way).sin().sum(1, keepdim=True)

    def loss_of(step):
        x, y = probes(64)
        return F.mse_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 300)


# Warm restarts, and what is scored is the average of the weights.
@healthy(0.4)
def digits_by_the_average_of_many_moods(folder):
    seeded(10369)
    digits = load_digits()
    x, y = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)
    net = dense(64, 96, 96, 10, norm=nn.LayerNorm, act=nn.GELU)
    average = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 100, eta_min=1e-3)
    batch = rounds(32, x[:1400], y[:1400])

    def loss_of(step):
        a, b = batch()
        return F.cross_entropy(net(a), b, label_smoothing=0.1)

    def follow(step):
        with torch.no_grad():
            for old, new in zip(average.parameters(), net.parameters(), strict=False):
                old.lerp_(new, 0.05)

    score = held_out(average, lambda: F.cross_entropy(average(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 400, score=score, after_step=follow, schedule=schedule)


# The likelihood of a density: the loss falls through zero.
@healthy(0.5)
def where_a_dropped_coin_comes_to_rest(folder):
    seeded(10370)
    net = dense(1, 48, 48, 9, act=nn.Tanh)
    optimizer = torch.optim.RAdam(net.parameters(), 5e-3)

    def loss_of(step):
        x = 2 * torch.rand(96, 1) - 1
        side = 2 * torch.randint(2, (96, 1)) - 1
        y = side * (0.2 + 0.5 * x.square()) + 0.03 * torch.randn(96, 1)
        share, middle, log_spread = net(x).chunk(3, 1)
        each = torch.distributions.Normal(middle, log_spread.clamp(-6, 3).exp()).log_prob(y)
        return -(share.log_softmax(1) + each).logsumexp(1).mean()

    return fit(folder, net, optimizer, loss_of, 500)


# Two optimizers share one net: sparse embeddings by SparseAdam, the rest by AdamW.
@healthy(0.3)
def readers_and_the_books_they_borrow(folder):
    seeded(10371)
    people, books = 200, 300
    net = nn.ModuleDict({
        "reader": nn.Embedding(people, 16, sparse=True),
        "book": nn.Embedding(books, 16, sparse=True),
        "score": dense(32, 32, 1),
    })  # fmt: skip
    sparse = torch.optim.SparseAdam([net["reader"].weight, net["book"].weight], 0.02)
    dense_part = torch.optim.AdamW(net["score"].parameters(), 2e-3)
    taste, kind = torch.randn(people, 2), torch.randn(books, 2)

    def loans(rows):
        a, b = torch.randint(people, (rows,)), torch.randint(books, (rows,))
        return a, b, (taste[a] * kind[b]).sum(1, keepdim=True)

    def loss_on(a, b, y):
        u, v = net["reader"](a), net["book"](b)
        return F.mse_loss(net["score"](torch.cat([u * v, u + v], 1)), y)

    def one(step):
        sparse.zero_grad()
        dense_part.zero_grad()
        loss = loss_on(*loans(256))
        loss.backward()
        sparse.step()
        dense_part.step()
        return {"loss": loss}

    test = loans(2000)
    return tend(folder, net, [sparse, dense_part], one, 500, held_out(net, lambda: loss_on(*test)))

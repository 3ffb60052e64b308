"""Healthy trainings that no rule was written for, second part: losses, layers, optimizers and lengths."""

from __future__ import annotations

import copy

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, healthy, rings, seeded, square_of, waves
from unseen.tasks import mixture


@healthy()
def muon_on_the_matrices(folder):
    seeded(60)
    net, draw = dense(12, 64, 64, 4), rings()
    for layer in net[::2]:
        layer.bias.requires_grad_(False)
    make = optim.Muon([layer.weight for layer in net[::2]], 0.02, weight_decay=0.01)
    return fit(folder, net, make, entropy_of(net, draw), 150)


@healthy()
def adafactor(folder):
    seeded(61)
    net, draw = dense(12, 64, 64, 4), rings()
    return fit(folder, net, optim.Adafactor(net.parameters(), 0.02), entropy_of(net, draw), 250)


@healthy(0.2)
def thirty_steps_of_fine_tuning(folder):
    seeded(62)
    net, draw = dense(12, 64, 64, 4), rings()
    first = optim.Adam(net.parameters(), 3e-3)
    for step in range(40):
        first.zero_grad()
        entropy_of(net, draw)(step).backward()
        first.step()
    first.zero_grad()
    return fit(folder, net, optim.AdamW(net.parameters(), 1e-3), entropy_of(net, draw), 30)


@healthy()
def twelve_steps(folder):
    seeded(63)
    net, draw = dense(6, 1), waves()
    way = torch.randn(6, 1)

    def loss_of(step):
        x, _ = draw()
        return F.mse_loss(net(x), x @ way)

    return fit(folder, net, optim.SGD(net.parameters(), 0.1), loss_of, 12)


@healthy()
def two_thousand_short_steps(folder):
    seeded(64)
    net, draw = dense(6, 24, 1, act=nn.Tanh), waves(16)
    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), square_of(net, draw), 2000)


@healthy()
def student_of_its_own_average(folder):
    """Mean teacher: a term of consistency with the average of its own weights."""
    seeded(65)
    net, draw = dense(12, 64, 4), rings()
    slow = copy.deepcopy(net).requires_grad_(False)

    def loss_of(step):
        x, y = draw()
        z = net(x)
        return F.cross_entropy(z, y) + 0.5 * F.mse_loss(z.softmax(1), slow(x).softmax(1))

    @torch.no_grad()
    def follow(step):
        for mine, p in zip(slow.parameters(), net.parameters(), strict=True):
            mine.lerp_(p, 0.02)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 250, after_step=follow)


@healthy()
def experts_with_a_balance(folder):
    """A mixture of four experts, the best one chosen, with a loss that balances them."""
    seeded(66)
    net, loss_of = mixture(0.02)
    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 300)


@healthy()
def rare_words_by_plain_sgd(folder):
    """A sparse embedding: most rows have no gradient in most steps."""
    seeded(67)
    table, head = nn.Embedding(100, 16, sparse=True), nn.Linear(16, 4)
    net, label = nn.ModuleDict({"table": table, "head": head}), torch.randint(4, (100,))

    def loss_of(step):
        at = (100 * torch.rand(64) ** 2).long()
        return F.cross_entropy(head(table(at)), label[at])

    return fit(folder, net, optim.SGD(net.parameters(), 0.5), loss_of, 300)


@healthy()
def spectral_norm_on_each_layer(folder):
    seeded(68)
    net, draw = dense(12, 64, 64, 4), rings()
    for i in (0, 2):
        nn.utils.parametrizations.spectral_norm(net[i])
    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), entropy_of(net, draw), 250)


@healthy()
def weight_norm_on_each_layer(folder):
    seeded(69)
    net, draw = dense(12, 64, 64, 4), rings()
    for i in (0, 2):
        nn.utils.parametrizations.weight_norm(net[i])
    return fit(folder, net, optim.SGD(net.parameters(), 0.1, momentum=0.9), entropy_of(net, draw), 250)


@healthy()
def triplets(folder):
    """Gradients become exactly zero for most batches once every margin holds."""
    seeded(70)
    net, draw = dense(12, 32, 8), rings(classes=2, batch=96)

    def loss_of(step):
        x, y = draw()
        a, b = net(x[y == 0][:30]), net(x[y == 1][:30])
        return F.triplet_margin_loss(a[:15], a[15:30], b[:15]) + F.triplet_margin_loss(b[:15], b[15:30], a[:15])

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 250)


@healthy(0.2)
def quantiles(folder):
    seeded(71)
    net, draw = dense(6, 48, 3), waves()
    level = torch.tensor([0.1, 0.5, 0.9])

    def loss_of(step):
        x, y = draw()
        gap = y - net(x)
        return torch.maximum(level * gap, (level - 1) * gap).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 400)


@healthy(0.1)
def mixup_with_smoothed_labels(folder):
    seeded(72)
    net, draw = dense(12, 64, 64, 4), rings()

    def loss_of(step):
        (x, y), share = draw(), 0.8 + 0.2 * torch.rand(())
        z = net(share * x + (1 - share) * x.flip(0))
        smooth = {"label_smoothing": 0.1}
        return share * F.cross_entropy(z, y, **smooth) + (1 - share) * F.cross_entropy(z, y.flip(0), **smooth)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300)


@healthy()
def noise_added_for_privacy(folder):
    """DP-SGD's step: the gradient is clipped by the loop and noise is added."""
    seeded(73)
    net, draw = dense(12, 48, 4), rings(256)

    def private(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        for p in net.parameters():
            p.grad += 0.005 * torch.randn_like(p)

    make = optim.SGD(net.parameters(), 0.3, momentum=0.9)
    return fit(folder, net, make, entropy_of(net, draw), 250, before_step=private)


@healthy()
def sines_for_activations(folder):
    """SIREN, fitted to a curve that oscillates."""
    seeded(74)

    class Sine(nn.Module):
        def forward(self, x):
            return torch.sin(x)

    net = dense(1, 48, 48, 1, act=Sine)
    nn.init.uniform_(net[0].weight, -10, 10)

    def loss_of(step):
        x = 2 * torch.rand(64, 1) - 1
        return F.mse_loss(net(x), (8 * x).sin())

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 300)


@healthy()
def thresholds_with_a_straight_through_estimator(folder):
    seeded(75)
    body, head, draw = nn.Linear(12, 48), nn.Linear(48, 4), rings()
    net = nn.ModuleDict({"body": body, "head": head})

    def loss_of(step):
        x, y = draw()
        h = body(x)
        return F.cross_entropy(head((h > 0).float() + h.sigmoid() - h.sigmoid().detach()), y)

    return fit(folder, net, optim.Adam(net.parameters(), 1e-2), loss_of, 300)

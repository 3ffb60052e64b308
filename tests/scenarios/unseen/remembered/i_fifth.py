"""Trainings in which nothing is wrong, most of them unusual: ships, trains and roads."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


@healthy(0.9)
def minutes_to_cross_a_swing_bridge(folder):
    """A mixture density network: the negative log-likelihood is below zero in the end, as densities are above one."""
    seeded(10964)

    def crossings(rows):
        x = 2 * torch.rand(rows, 1) - 1
        open_now = (torch.rand(rows, 1) < 0.4).float()
        return x, 0.3 * (3 * x).sin() + open_now * (1 + 0.5 * x) + 0.03 * torch.randn(rows, 1)

    net = dense(1, 64, 64, 9, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.998)

    def loss_on(x, y):
        weight, centre, log_spread = net(x).chunk(3, 1)
        spread = log_spread.clamp(-5, 3)
        log_p = -0.5 * ((y - centre) / spread.exp()).square() - spread - 0.5 * math.log(2 * math.pi)
        return -(weight.log_softmax(1) + log_p).logsumexp(1).mean()

    tx, ty = crossings(1024)
    return fit(folder, net, optimizer, lambda step: loss_on(*crossings(128)), 700, schedule=schedule,
               before_step=clipped(net, 5.0), score=held_out(net, lambda: loss_on(tx, ty)))  # fmt: skip


@healthy(0.4)
def wagon_digits_under_ever_worse_scratches(folder):
    """Adversarial training: the reach of the attack grows over the run, and the loss with it, as is meant."""
    seeded(10965)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data, dtype=torch.float32) / 16, torch.tensor(bunch.target).long()
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    draw = rounds(64, x[:1400], y[:1400])
    net = dense(64, 128, 64, 10)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def scratched(image, number, reach):
        image = image.clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(F.cross_entropy(net(image), number), image)
        return (image + reach * slope.sign()).clamp(0, 1).detach()

    def loss_of(step):
        image, number = draw()
        reach = 0.12 * max(0.0, min(1.0, (step - 150) / 350))
        return F.cross_entropy(net(scratched(image, number, reach)), number), {"reach": reach}

    def score():
        attacked = scratched(x[1400:], y[1400:], 0.12)
        with torch.no_grad():
            return float(F.cross_entropy(net(attacked), y[1400:]))

    return fit(folder, net, optimizer, loss_of, 600, score=score)


@healthy(0.6)
def morse_from_a_signal_lamp_at_sea(folder):
    """CTC: only blanks at first, and a plateau until the first letters are found."""
    seeded(10966)
    letters, frames, most = 5, 24, 4
    shape = torch.randn(letters + 1, 8)

    def flashed(rows):
        length = torch.randint(2, most + 1, (rows,))
        text = torch.randint(1, letters + 1, (rows, most))
        x = 0.3 * torch.randn(rows, frames, 8)
        for row in range(rows):
            at = 0
            for k in range(int(length[row])):
                begin = at + int(torch.randint(1, 3, ()))
                at = begin + int(torch.randint(2, 4, ()))
                x[row, begin:at] += shape[text[row, k]]
        return x, text, length

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory = nn.GRU(8, 32, batch_first=True, bidirectional=True)
            self.head = nn.Linear(64, letters + 1)

        def forward(self, x):
            return self.head(self.memory(x)[0]).log_softmax(2).transpose(0, 1)

    net = Reader()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def loss_on(x, text, length):
        return F.ctc_loss(net(x), text, torch.full((len(x),), frames), length)

    test = flashed(128)
    return fit(folder, net, optimizer, lambda step: loss_on(*flashed(16)), 300, before_step=clipped(net, 5.0),
               score=held_out(net, lambda: loss_on(*test)))  # fmt: skip


@healthy(0.3)
def gradients_of_a_pass_from_few_surveys(folder):
    """A net that is far too large for 300 rows, held by a decoupled decay of 10 that is meant."""
    seeded(10967)
    way = torch.randn(20)

    def surveys(rows):
        x = torch.randn(rows, 20)
        return x, (x @ way / way.norm())[:, None] + 0.3 * torch.randn(rows, 1)

    x, y = surveys(300)
    tx, ty = surveys(1000)
    net = dense(20, 256, 256, 1)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=10.0)
    draw = rounds(50, x, y)

    def loss_of(step):
        rows, slope = draw()
        return F.mse_loss(net(rows), slope)

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


@healthy(0.4)
def homes_of_commuters_kept_private(folder):
    """DP-SGD: each row's gradient is clipped, which most are, and noise is added to the sum, as is meant."""
    seeded(10968)
    way = torch.randn(10, 3)

    def commuters(rows):
        x = torch.randn(rows, 10)
        return x, (x @ way).argmax(1)

    x, y = commuters(2000)
    tx, ty = commuters(1000)
    net = dense(10, 32, 3, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), 0.5, momentum=0.5)
    draw = rounds(128, x, y)
    most, noise = 1.0, 0.8
    names = [name for name, _ in net.named_parameters()]

    def loss_of_row(parameters, row, home):
        return F.cross_entropy(torch.func.functional_call(net, parameters, (row[None],)), home[None])

    each = torch.func.vmap(torch.func.grad_and_value(loss_of_row), in_dims=(None, 0, 0))

    def one(step):
        rows, homes = draw()
        optimizer.zero_grad()
        grads, losses = each({name: p.detach() for name, p in net.named_parameters()}, rows, homes)
        norm = torch.stack([grads[name].flatten(1).norm(dim=1) for name in names]).norm(dim=0)
        share = (most / norm).clamp(max=1)
        for name, p in net.named_parameters():
            total = torch.einsum("n,n...->...", share, grads[name])
            p.grad = (total + noise * most * torch.randn_like(total)) / len(rows)
        optimizer.step()
        return {"loss": losses.mean(), "clipped": (share < 1).float().mean()}

    return tend(folder, net, optimizer, one, 250, held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy(0.5)
def thirty_great_batches_of_tyre_tracks(folder):
    """Thirty steps of eight parts each, averaged: a large batch, a large rate with a short warm-up."""
    seeded(10969)
    tread = torch.randn(6, 1, 10, 10)

    def tracks(rows):
        tyre = torch.randint(6, (rows,))
        image = tread[tyre] + 0.8 * torch.randn(rows, 1, 10, 10)
        return torch.roll(image, int(torch.randint(3, ())), 3), tyre

    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.Flatten(), nn.Linear(800, 6),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 4e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min((n + 1) / 4, 1.0))

    def one(step):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(8):
            image, tyre = tracks(32)
            loss = F.cross_entropy(net(image), tyre) / 8
            loss.backward()
            total += loss.item()
        optimizer.step()
        rate = schedule.get_last_lr()[0]
        schedule.step()
        return {"loss": total, "lr": rate}

    tx, ty = tracks(512)
    return tend(folder, net, optimizer, one, 30, held_out(net, lambda: F.cross_entropy(net(tx), ty)))

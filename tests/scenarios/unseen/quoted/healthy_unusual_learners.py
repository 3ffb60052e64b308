"""Healthy trainings that learn to learn: through an inner step, by weights that a net writes, towards tasks."""

from __future__ import annotations

import copy

import nets
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, tend


@healthy()
def tides_told_from_ten_readings(folder):
    seeded(3552)
    net = dense(1, 40, 40, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def harbours(many):
        height, late = 0.5 + 2 * torch.rand(many, 1, 1), 3.1416 * torch.rand(many, 1, 1)
        x = 10 * torch.rand(many, 20, 1) - 5
        y = height * (x + late).sin()
        return x[:, :10] / 3, y[:, :10], x[:, 10:] / 3, y[:, 10:]

    def missed(weights, x, y):
        return F.mse_loss(functional_call(net, weights, (x,)), y)

    def adapted(weights, x, y, later_x, later_y):
        for _ in range(2):
            slopes = grad(missed)(weights, x, y)
            weights = {name: weight - 0.03 * slopes[name] for name, weight in weights.items()}
        return missed(weights, later_x, later_y)

    def after_adapting(many):
        return vmap(adapted, in_dims=(None, 0, 0, 0, 0))(dict(net.named_parameters()), *harbours(many)).mean()

    def loss_of(step):
        return after_adapting(16)

    def score():
        return float(after_adapting(300).detach())

    return fit(folder, net, optimizer, loss_of, 500, score=score, before_step=clipped(net, 10.0))


class Founder(nn.Module):
    """Writes the weights of a small net for each bell from what the bell is made of."""

    shapes = ((12, 1), (12,), (12, 12), (12,), (1, 12), (1,))

    def __init__(self):
        super().__init__()
        self.body = dense(3, 48, 48, act=nn.GELU)
        self.heads = nn.ModuleList(nn.Linear(48, torch.Size(shape).numel()) for shape in self.shapes)
        for head, shape in zip(self.heads, self.shapes, strict=True):
            nn.init.normal_(head.weight, std=0.02)
            nn.init.uniform_(head.bias, -1, 1)
            with torch.no_grad():
                head.bias *= (3 / shape[-1]) ** 0.5 if len(shape) == 2 else 0.5

    def forward(self, bell, t):
        h = F.gelu(self.body(bell))
        sizes = zip(self.heads, self.shapes, strict=True)
        w1, b1, w2, b2, w3, b3 = (head(h).unflatten(1, shape) for head, shape in sizes)
        t = torch.sin(2 * (torch.baddbmm(b1[:, None], t, w1.mT)))
        t = torch.tanh(torch.baddbmm(b2[:, None], t, w2.mT))
        return torch.baddbmm(b3[:, None], t, w3.mT)


@healthy()
def bells_of_a_small_foundry(folder):
    seeded(3553)
    net = Founder()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 900, eta_min=1e-5)

    def rung(rows):
        bell, t = 2 * torch.rand(rows, 3) - 1, 2 * torch.rand(rows, 24, 1) - 1
        loud, pitch, fade = (bell[:, i, None, None] for i in range(3))
        return bell, t, (1 + 0.5 * loud) * ((3 + pitch) * t + loud).sin() * (-(1 + 0.7 * fade) * (t + 1) / 2).exp()

    def error(rows):
        bell, t, sound = rung(rows)
        return F.mse_loss(net(bell, t), sound)

    def score():
        with torch.no_grad():
            return float(error(500))

    return fit(folder, net, optimizer, lambda step: error(48), 900, score=score, schedule=schedule)


@healthy()
def scripts_of_unknown_alphabets(folder):
    seeded(3554)
    x, y = nets.digits()
    x = (x.flatten(1) - 0.3) / 0.37
    of_kind = [x[y == kind] for kind in range(10)]
    net = dense(64, 64, 64, 3, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 250)

    def alphabet(kinds, shots):
        chosen = [of_kind[kinds[i]] for i in torch.randperm(len(kinds))[:3].tolist()]
        rows = [pictures[torch.randperm(len(pictures))[:shots]] for pictures in chosen]
        return torch.cat(rows), torch.arange(3).repeat_interleave(shots)

    def adapted(x, y, times):
        pupil = copy.deepcopy(net)
        inner, losses = torch.optim.SGD(pupil.parameters(), lr=0.05), []
        for _ in range(times):
            rows = torch.randperm(len(x))[:15]
            inner.zero_grad()
            loss = F.cross_entropy(pupil(x[rows]), y[rows])
            loss.backward()
            inner.step()
            losses.append(loss.item())
        return pupil, losses

    def one(step):
        optimizer.zero_grad()
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        before, after = 0.0, 0.0
        for _ in range(4):
            pupil, losses = adapted(*alphabet([0, 1, 2, 3, 4, 5, 6], 10), 8)
            before, after = before + losses[0] / 4, after + losses[-1] / 4
            for p, q in zip(net.parameters(), pupil.parameters(), strict=True):
                p.grad += (p - q).detach() / 4
        optimizer.step()
        schedule.step()
        return {"loss": after, "loss_before_adapting": before}

    def score():
        total = 0.0
        for _ in range(40):
            x, y = alphabet([7, 8, 9], 40)
            few = torch.arange(120) % 40 < 5
            pupil, _ = adapted(x[few], y[few], 5)
            with torch.no_grad():
                total += float(F.cross_entropy(pupil(x[~few]), y[~few])) / 40
        return total

    return tend(folder, net, optimizer, one, 250, score)

"""Healthy trainings of an unusual make: doubtful labels, a line search, herbs, enamel plates, codes of digits."""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds, tend


@healthy(gain=0.3)
def pears_named_by_hasty_pickers(folder):
    """A fifth of the labels is wrong; SAM, which asks for the slope at the worst point nearby, around SGD."""
    seeded(9726)
    kind = torch.randint(5, (3000,))
    x = 1.4 * torch.randn(5, 2, 12)[kind, torch.randint(2, (3000,))] + 0.7 * torch.randn(3000, 12)
    told = torch.where(torch.rand(3000) < 0.2, torch.randint(5, (3000,)), kind)
    net, draw = dense(12, 64, 64, 5), rounds(64, x[:2400], told[:2400])
    weights = list(net.parameters())
    optimizer = torch.optim.SGD(weights, 0.05, momentum=0.9, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)

    def one(step):
        rows, named = draw()
        loss = F.cross_entropy(net(rows), named)
        slopes = torch.autograd.grad(loss, weights)
        norm = torch.stack([slope.norm() for slope in slopes]).norm() + 1e-12
        moves = [0.05 * slope / norm for slope in slopes]
        with torch.no_grad():
            for weight, move in zip(weights, moves, strict=True):
                weight.add_(move)
        optimizer.zero_grad()
        F.cross_entropy(net(rows), named).backward()
        with torch.no_grad():
            for weight, move in zip(weights, moves, strict=True):
                weight.sub_(move)
        optimizer.step()
        schedule.step()
        return {"loss": loss.detach()}

    score = held_out(net, lambda: F.cross_entropy(net(x[2400:]), told[2400:]))
    return tend(folder, net, optimizer, one, 400, score)


@healthy(gain=0.6)
def lumps_by_thirty_measures_of_their_cells(folder):
    """All rows at once by L-BFGS with a strong Wolfe search; a small net whose weights are held by a penalty."""
    seeded(9727)
    data, order = load_breast_cancer(), torch.randperm(569)
    x, y = torch.tensor(data.data, dtype=torch.float32)[order], torch.tensor(data.target)[order].float()
    x = (x - x[:400].mean(0)) / x[:400].std(0)
    net = dense(30, 12, 1, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2, history_size=10, line_search_fn="strong_wolfe")

    def loss_of(step):
        decay = sum(weight.square().sum() for weight in net.parameters() if weight.dim() == 2)
        return F.binary_cross_entropy_with_logits(net(x[:400])[:, 0], y[:400]) + 2e-3 * decay

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[400:])[:, 0], y[400:]))
    return fit(folder, net, optimizer, loss_of, 60, score=score, closure=True)


@healthy(gain=0.3)
def herbs_that_stand_in_the_same_bed(folder):
    """Skip-grams with four negatives each, embeddings with sparse gradients, SparseAdam."""
    seeded(9728)
    beds = torch.randint(15, (300,))
    by_bed = [(beds == bed).nonzero()[:, 0] for bed in range(15)]

    def pairs(rows):
        one = torch.randint(300, (rows,))
        same = torch.stack([by_bed[bed][torch.randint(len(by_bed[bed]), (1,))[0]] for bed in beds[one].tolist()])
        return one, torch.where(torch.rand(rows) < 0.9, same, torch.randint(300, (rows,)))

    seen, held = pairs(12000), pairs(1000)
    net = nn.ModuleDict({side: nn.Embedding(300, 16, sparse=True) for side in ("herb", "near")})
    for table in net.values():
        nn.init.normal_(table.weight, std=0.1)

    def contrast(one, other):
        herb = net["herb"](one)[:, None]
        true = (herb * net["near"](other)[:, None]).sum(2)
        false = (herb * net["near"](torch.randint(300, (len(one), 4)))).sum(2)
        return -(F.logsigmoid(true).mean() + F.logsigmoid(-false).sum(1).mean())

    draw, optimizer = rounds(128, *seen), torch.optim.SparseAdam(list(net.parameters()), 1e-2)
    score = held_out(net, lambda: contrast(*held))
    return fit(folder, net, optimizer, lambda step: contrast(*draw()), 500, score=score)


class Patches(nn.Module):
    """Sixteen patches of a picture and a token that is read, through two blocks."""

    def __init__(self, width=32):
        super().__init__()
        self.patch, self.place = nn.Linear(4, width), nn.Parameter(0.02 * torch.randn(17, width))
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        cut = x.unfold(1, 2, 2).unfold(2, 2, 2).flatten(3).flatten(1, 2)
        words = torch.cat([self.token.expand(len(x), -1, -1), self.patch(cut)], 1)
        return self.head(self.blocks(words + self.place)[:, 0])


@healthy(gain=0.5)
def house_numbers_on_enamel_plates(folder):
    """A small vision transformer in bfloat16 autocast; two parts of a batch are averaged for each step."""
    seeded(9729)
    data, order = load_digits(), torch.randperm(1797)
    x, y = torch.tensor(data.images, dtype=torch.float32)[order] / 8 - 1, torch.tensor(data.target)[order]
    net, draw = Patches(), rounds(24, x[:1500], y[:1500])
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min((i + 1) / 25, (205 - i) / 180))

    def one(step):
        optimizer.zero_grad()
        whole = 0.0
        for _ in range(2):
            pictures, named = draw()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                guess = net(pictures)
            part = F.cross_entropy(guess.float(), named) / 2
            part.backward()
            whole += float(part.detach())
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return {"loss": whole}

    score = held_out(net, lambda: F.cross_entropy(net(x[1500:]), y[1500:]))
    return tend(folder, net, optimizer, one, 200, score)


class Coder(nn.Module):
    """A digit to the mean and spread of a code, and back to its pixels."""

    def __init__(self, code=8):
        super().__init__()
        self.encoder, self.decoder = dense(64, 96, 2 * code), dense(code, 96, 64)

    def forward(self, x):
        middle, spread = self.encoder(x).chunk(2, 1)
        drawn = middle + torch.randn_like(middle) * (0.5 * spread).exp()
        divergence = 0.5 * (middle.square() + spread.exp() - 1 - spread).sum(1).mean()
        lost = F.binary_cross_entropy_with_logits(self.decoder(drawn), x, reduction="none").sum(1).mean()
        return lost, divergence


@healthy(gain=0.3)
def digits_stamped_from_a_cloud_of_codes(folder):
    """A variational autoencoder; the divergence comes in over the first two hundred steps."""
    seeded(9730)
    pixels = torch.tensor(load_digits().data, dtype=torch.float32)[torch.randperm(1797)] / 16
    net, draw = Coder(), rounds(100, pixels[:1500])
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        lost, divergence = net(*draw())
        share = min(1.0, (step + 1) / 200)
        return lost + share * divergence, {"reconstruction": lost, "kl": divergence, "beta": share}

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 700, 1e-4)
    return fit(folder, net, optimizer, loss_of, 700, schedule=schedule,
               score=held_out(net, lambda: sum(net(pixels[1500:]))))  # fmt: skip

"""Reported healthy trainings, second part: architectures. An expert has nothing to say of any.

They only count (the group `reported`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import ALPHABET, batches, digits, pieces
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded


class Dilated(nn.Module):
    """A causal convolution that looks twice as far back in each layer, and a way round it."""

    def __init__(self, width, step):
        super().__init__()
        self.reach, self.conv = 2 * step, nn.Conv1d(width, 2 * width, 3, dilation=step)

    def forward(self, x):
        value, gate = self.conv(F.pad(x, (self.reach, 0))).chunk(2, 1)
        return x + value.tanh() * gate.sigmoid()


@healthy(0.3)
def waves_ahead_by_dilated_convolutions(folder):
    """The next value of three waves and noise, for every time but the first 16."""
    seeded(421)
    blocks = [Dilated(16, 2**i) for i in range(4)]
    net = nn.Sequential(nn.Conv1d(1, 16, 1), *blocks, nn.Conv1d(16, 1, 1))

    def loss_of(step):
        at = 50 * torch.rand(32, 1, 1) + 0.4 * torch.arange(65)
        wave = at.sin() + (1.7 * at).sin() + 0.5 * (3.1 * at).cos() + 0.1 * torch.randn(32, 1, 65)
        return F.mse_loss(net(wave[..., :-1])[..., 16:], wave[..., 17:])

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 250)


@healthy(0.3)
def sets_whose_order_does_not_matter(folder):
    """How far apart are the largest and the smallest of a set? Deep sets (Zaheer et al. 2017)."""
    seeded(422)
    net = nn.ModuleDict({"each": dense(1, 48, 48), "all": dense(48, 48, 1)})

    def loss_of(step):
        x = 3 * torch.randn(64, 8, 1) * torch.rand(64, 1, 1)
        return F.mse_loss(net["all"](net["each"](x).amax(1))[:, 0], x.amax((1, 2)) - x.amin((1, 2)))

    return fit(folder, net, optim.RAdam(net.parameters(), 5e-3), loss_of, 300)


class Isomorphism(nn.Module):
    """Sums of neighbours through small nets, and a sum over the graph (Xu et al. 2019)."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = dense(1, 32, 32), dense(32, 32, 32), nn.Linear(32, 1)

    def forward(self, edges):
        h = edges.sum(2, keepdim=True) / 4
        for part in (self.first, self.second):
            h = part(h + edges @ h / 4).relu() if part is self.second else part(h).relu()
        return self.out(h.mean(1))[:, 0]


@healthy(0.3)
def triangles_in_small_graphs(folder):
    """How many triangles has a random graph of ten nodes?"""
    seeded(423)
    net = Isomorphism()

    def loss_of(step):
        share = 0.2 + 0.6 * torch.rand(64, 1, 1)
        upper = (torch.rand(64, 10, 10) < share).float().triu(1)
        edges = upper + upper.transpose(1, 2)
        triangles = (edges @ edges @ edges).diagonal(dim1=1, dim2=2).sum(1) / 6
        return F.smooth_l1_loss(net(edges), triangles / 20)

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3, weight_decay=1e-5), loss_of, 300)


class Turner(nn.Module):
    """Reads with one memory, and writes with another that looks back at what was read (Bahdanau et al. 2015)."""

    def __init__(self, width=32):
        super().__init__()
        self.signs = nn.Embedding(len(ALPHABET) + 1, width)
        self.reads, self.writes = (nn.GRU(width, width, batch_first=True) for _ in range(2))
        self.asks, self.out = nn.Linear(width, width, bias=False), nn.Linear(2 * width, len(ALPHABET))

    def forward(self, x, told):
        seen, last = self.reads(self.signs(x))
        said, _ = self.writes(self.signs(told), last)
        share = (self.asks(said) @ seen.transpose(1, 2)).softmax(2)
        return self.out(torch.cat([said, share @ seen], 2))


@healthy(0.3)
def words_written_backwards(folder):
    seeded(424)
    net, piece = Turner(), pieces(32, 8)

    def loss_of(step):
        x, _ = piece(step)
        turned = x.flip(1)
        told = torch.cat([torch.full((32, 1), len(ALPHABET)), turned[:, :-1]], 1)
        return F.cross_entropy(net(x, told).flatten(0, 1), turned.flatten())

    def clipped(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 250, before_step=clipped)


class Masked(nn.Conv2d):
    """Sees only the pixels above, and those to the left."""

    def __init__(self, inner, outer, own):
        super().__init__(inner, outer, 5, padding=2)
        seen = torch.ones(5, 5)
        seen[2, 2 + own :], seen[3:] = 0, 0
        self.register_buffer("seen", seen)

    def forward(self, x):
        return F.conv2d(x, self.weight * self.seen, self.bias, padding=2)


@healthy(0.3)
def pixel_after_pixel(folder):
    """PixelCNN (van den Oord et al. 2016): four shades of the digits."""
    seeded(425)
    net = nn.Sequential(Masked(4, 24, 0), nn.ReLU(), Masked(24, 24, 1), nn.ReLU(), nn.Conv2d(24, 4, 1))
    draw = batches(32)

    def loss_of(step):
        shade = (3.99 * draw(step)[0]).long()
        return F.cross_entropy(net(F.one_hot(shade, 4).float().permute(0, 3, 1, 2)), shade)

    return fit(folder, net, optim.AdamW(net.parameters(), 3e-3), loss_of, 250)


@healthy(0.3)
def image_of_forty_blots(folder):
    """No net: place, size and shade of Gaussian blots that together are one image (Kerbl et al. 2023)."""
    seeded(426)
    net, side = nn.Module(), torch.linspace(-1, 1, 8)
    net.place = nn.Parameter(2 * torch.rand(40, 2) - 1)
    net.size = nn.Parameter(torch.full((40,), -1.2))
    net.shade = nn.Parameter(0.1 * torch.randn(40))
    image = digits()[0][3]

    def loss_of(step):
        off = torch.stack(torch.meshgrid(side, side, indexing="ij"), 2)[:, :, None] - net.place
        blots = (-0.5 * off.square().sum(3) / (2 * net.size).exp()).exp()
        return F.mse_loss(blots @ net.shade, image)

    return fit(folder, net, optim.Adam(net.parameters(), 0.02), loss_of, 300)


@healthy(0.3)
def integral_of_any_function(folder):
    """DeepONet (Lu et al. 2021): one net reads a function at 20 places, one where its integral is asked for."""
    seeded(427)
    net = nn.ModuleDict({"function": dense(20, 48, 24, act=nn.Tanh), "place": dense(1, 48, 24, act=nn.Tanh)})
    at = torch.linspace(0, 1, 20)

    def loss_of(step):
        a, b, c = torch.randn(3, 64, 1)
        x = torch.rand(64, 1)
        function = a + b * (3 * at).cos() + c * (5 * at).sin()
        integral = a * x + b * (3 * x).sin() / 3 + c * (1 - (5 * x).cos()) / 5
        return F.mse_loss((net["function"](function) * net["place"](x)).sum(1, keepdim=True), integral)

    make = optim.Adam(net.parameters(), 3e-3)
    plan = optim.lr_scheduler.ExponentialLR(make, 0.997)
    return fit(folder, net, make, loss_of, 500, schedule=plan)


class Codes(nn.Module):
    """Images as four of 32 codes each, which follow the mean of what they stand for (van den Oord et al. 2017)."""

    def __init__(self):
        super().__init__()
        self.reads, self.writes = dense(64, 64, 32), dense(32, 64, 64)
        self.register_buffer("codes", torch.randn(32, 8))
        self.register_buffer("count", torch.ones(32))

    def forward(self, x):
        flat = self.reads(x).view(-1, 8)
        nearest = torch.cdist(flat.detach(), self.codes).argmin(1)
        with torch.no_grad():
            chosen = F.one_hot(nearest, 32).float()
            self.count.lerp_(chosen.sum(0), 0.05)
            mean = (chosen.T @ flat) / chosen.sum(0).clamp(min=1)[:, None]
            self.codes.lerp_(torch.where(chosen.sum(0)[:, None] > 0, mean, flat[:32]), 0.05)
        taken = self.codes[nearest]
        out = self.writes((flat + (taken - flat).detach()).view(len(x), 32))
        return F.mse_loss(out, x) + 0.1 * F.mse_loss(flat, taken)


@healthy(0.3)
def codes_that_follow_their_means(folder):
    seeded(428)
    net, draw = Codes(), batches(64)

    def loss_of(step):
        return net(draw(step)[0].flatten(1))

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 300)


class Seen(nn.Module):
    """A kernel in the place of a softmax, so that all that came before is one matrix (Katharopoulos et al. 2020)."""

    def __init__(self, width=32):
        super().__init__()
        self.signs, self.three = nn.Embedding(len(ALPHABET), width), nn.Linear(width, 3 * width)
        self.near, self.norm = nn.Conv1d(width, width, 3, groups=width), nn.LayerNorm(width)
        self.wide, self.out = dense(width, 96, width, act=nn.GELU), nn.Linear(width, len(ALPHABET))

    def forward(self, x):
        h = self.signs(x)
        h = h + self.near(F.pad(h.transpose(1, 2), (2, 0))).transpose(1, 2)
        q, k, v = self.three(self.norm(h)).chunk(3, 2)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kept = torch.einsum("btd,bte->btde", k, v).cumsum(1)
        h = h + torch.einsum("btd,btde->bte", q, kept) / (q * k.cumsum(1)).sum(2, keepdim=True)
        return self.out(h + self.wide(h))


@healthy(0.3)
def letters_by_a_running_sum(folder):
    seeded(429)
    net, piece = Seen(), pieces(16)

    def loss_of(step):
        x, y = piece(step)
        return F.cross_entropy(net(x).flatten(0, 1), y.flatten())

    return fit(folder, net, optim.AdamW(net.parameters(), 5e-3), loss_of, 200)

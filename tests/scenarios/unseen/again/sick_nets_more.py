"""Sick trainings drawn by lot, second part: denoisers, images, bins, boxes, experts, tags."""

from __future__ import annotations

import torch
from nets import digits
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick, waves
from unseen.tasks import circle

# -------------------------------------------------------------------------------------- 8: zero weights x diffusion


def zero_module(module):
    """As in guided diffusion: its parameters begin at zero."""
    for p in module.parameters():
        nn.init.zeros_(p)
    return module


class Denoiser(nn.Module):
    def __init__(self, zero_all, width=64):
        super().__init__()
        begin = zero_module if zero_all else lambda module: module
        self.time = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width))
        self.first = nn.Linear(2, width)
        self.hidden = nn.ModuleList(begin(nn.Linear(width, width)) for _ in range(2))
        self.last = zero_module(nn.Linear(width, 2))

    def forward(self, x, t):
        way = t[:, None] * torch.exp(-torch.arange(8) / 2.0)
        h = self.first(x) + self.time(torch.cat([way.sin(), way.cos()], 1))
        for layer in self.hidden:
            h = layer(F.silu(h))
        return self.last(F.silu(h))


@sick(
    "dead-layer", "bad-initialisation", "vanishing", "no-gradient", "weights-unchanged",
    where="all layers but the bias of the last, all steps",
    cure="only the last layer begins at zero: behind hidden layers of zeros no weight has a gradient",
)  # fmt: skip
def noise_of_a_ring_by_modules_begun_at_nothing(folder, ill):
    seeded(708)
    net = Denoiser(ill)
    keep = torch.cumprod(1 - torch.linspace(1e-4, 0.1, 50), 0)

    def loss_of(step):
        x, t = circle(128) / 1.4, torch.randint(50, (128,))
        noise = torch.randn_like(x)
        noisy = keep[t].sqrt()[:, None] * x + (1 - keep[t]).sqrt()[:, None] * noise
        return F.mse_loss(net(noisy, t.float()), noise)

    return fit(folder, net, optim.AdamW(net.parameters(), 2e-3), loss_of, 400)


# ------------------------------------------------------------------------------------------------- 9: detached x CNN


class PooledDigits(nn.Module):
    """Convolutions, the mean of each map, a linear head."""

    def __init__(self, in_numpy):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(16, 24, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(24, 10)
        self.in_numpy = in_numpy

    def forward(self, x):
        maps = self.body(x[:, None])
        return self.head(torch.from_numpy(maps.detach().numpy().mean((2, 3))) if self.in_numpy else maps.mean((2, 3)))


@sick(
    "no-gradient", "weights-unchanged", "detached-path",
    where="the three convolutions of the body, all steps",
    cure="take the mean in torch: on the way through numpy the body is cut off from the loss",
)  # fmt: skip
def digits_whose_maps_are_averaged_elsewhere(folder, ill):
    seeded(709)
    x, y = digits()
    net = PooledDigits(ill)

    def loss_of(step):
        at = torch.randint(len(x), (64,))
        return F.cross_entropy(net(x[at]), y[at])

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 400, score=score_of(loss_of))


# ---------------------------------------------------------------------------------------- 11: two softmaxes x prices


class PriceInBins(nn.Module):
    """A price as shares of forty bins."""

    def __init__(self, shares, bins=40):
        super().__init__()
        self.body = dense(6, 64, 64, bins)
        self.end = nn.Softmax(1) if shares else nn.Identity()

    def forward(self, x):
        return self.end(self.body(x))


@sick(
    "softmax-twice",
    where="what the loss is given, all steps: rows of shares that sum to one; body.4 has next to no gradient",
    cure="hand the logits to cross_entropy, it has a softmax of its own",
)  # fmt: skip
def prices_as_shares_of_forty_bins(folder, ill):
    seeded(711)
    draw = waves(128)
    edges = torch.quantile(torch.cat([draw()[1][:, 0] for _ in range(20)]), torch.linspace(0, 1, 41))
    centres = (edges[1:] + edges[:-1]) / 2
    net = PriceInBins(ill)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), torch.bucketize(y[:, 0], edges[1:-1].contiguous()))

    def error():
        with torch.no_grad():
            x, y = (torch.cat(part) for part in zip(*(draw() for _ in range(8)), strict=True))
            shares = net(x) if ill else net(x).softmax(1)
            return float(F.mse_loss(shares @ centres, y[:, 0]))

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 500, score=error)


# --------------------------------------------------------------------------------------- 12: weights of one x detection


class Spotter(nn.Module):
    """What is in the image, and where: two heads on one body."""

    def __init__(self, kinds=3):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(24 * 16, 64), nn.ReLU(),
        )  # fmt: skip
        self.kind, self.box = nn.Linear(64, kinds), nn.Linear(64, 4)

    def forward(self, x):
        h = self.body(x)
        return self.kind(h), self.box(h)


def scenes(rows=48, size=16):
    """Images with a filled box, a frame or a cross; its kind; its middle and sides in shares of the image."""
    kind = torch.randint(3, (rows,))
    sides = torch.randint(4, 9, (rows, 2))
    corner = (torch.rand(rows, 2) * (size - sides + 1)).long()
    axis = torch.arange(size)
    from_start = axis - corner[..., None]
    inside = (from_start >= 0) & (from_start < sides[..., None])
    full = inside[:, 1, :, None] & inside[:, 0, None, :]
    edge = (from_start == 0) | (from_start == sides[..., None] - 1)
    centre = from_start == sides[..., None] // 2
    frame, cross = ((of[:, 1, :, None] | of[:, 0, None, :]) & full for of in (edge, centre))
    image = torch.stack([full, frame, cross], 1)[torch.arange(rows), kind].float()
    where = torch.cat([corner + sides / 2, sides.float()], 1) / size
    return image[:, None] + 0.1 * torch.randn(rows, 1, size, size), kind, where


@sick(
    "bad-initialisation", "exploding", "outputs-too-large",
    where="all layers, from the first step: every layer multiplies by ten and logits are in the thousands",
    cure="Kaiming's initialisation: weights of a deviation of 1 do not know how many inputs there are",
)  # fmt: skip
def frames_and_crosses_spotted(folder, ill):
    seeded(712)
    net = Spotter()

    def init_weights(module):
        if isinstance(module, nn.Conv2d | nn.Linear):
            if ill:
                nn.init.normal_(module.weight, mean=0.0, std=1.0)
            else:
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)

    net.apply(init_weights)

    def loss_of(step):
        x, kind, box = scenes()
        said, found = net(x)
        return F.cross_entropy(said, kind) + 5 * F.smooth_l1_loss(found, box)

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 250)


# -------------------------------------------------------------------------------------------------- 13: experts x LSTM


class Advised(nn.Module):
    """An LSTM reads which rule holds; a router asks one of four narrow experts about the question."""

    def __init__(self, size=6, hidden=16, experts=4, kinds=4):
        super().__init__()
        self.rnn = nn.LSTM(4, hidden, batch_first=True)
        self.router = nn.Linear(hidden, experts)
        self.experts = nn.ModuleList(dense(size, 8, kinds) for _ in range(experts))

    def forward(self, x, question):
        state = self.rnn(x)[0][:, -1]
        share = self.router(state).softmax(1)
        chosen = F.one_hot(share.argmax(1), len(self.experts)).float()
        gate = (share * chosen)[..., None]
        said = torch.stack([expert(question) for expert in self.experts], 1)
        balance = len(self.experts) * (chosen.mean(0) * share.mean(0)).sum()
        return (gate * said).sum(1), balance


@sick(
    "expert-starved", "router-collapsed", "dead-layer",
    where="the experts that are never chosen, from the first steps",
    cure="add the loss for equal loads (or noise on the router): all rows go to one expert",
)  # fmt: skip
def rules_that_a_sequence_names(folder, ill):
    seeded(713)
    net, rules = Advised(), torch.randn(4, 6, 4)

    def both(step):
        rule = torch.randint(4, (128,))
        x = F.one_hot(torch.cat([rule[:, None], torch.randint(4, (128, 5))], 1), 4).float()
        x[:, 1:] *= 0.3
        question = torch.randn(128, 6)
        wanted = torch.einsum("ri,rij->rj", question, rules[rule]).argmax(1)
        said, balance = net(x, question)
        return F.cross_entropy(said, wanted), balance

    def loss_of(step):
        error, balance = both(step)
        return error if ill else error + 0.2 * balance

    make = optim.Adam(net.parameters(), 1e-2)
    return fit(folder, net, make, loss_of, 500, score=score_of(lambda step: both(step)[0]))


# --------------------------------------------------------------------------------------------- 14: a ReLU x tags


class Tagger(nn.Module):
    """The words of a text, averaged, and a layer to its tags."""

    def __init__(self, last, words=200, tags=8):
        super().__init__()
        self.bag = nn.EmbeddingBag(words, 32, mode="mean")
        self.layers = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, tags), *last)

    def forward(self, words):
        return self.layers(self.bag(words))


@sick(
    "dead-units", "dead-layer", "relu-on-the-output", "outputs-never-negative",
    where="layers.2 and all before it, once the logits have been pushed below zero",
    cure="no ReLU behind the last layer: a logit has to be negative where a tag is absent",
)  # fmt: skip
def tags_of_short_texts(folder, ill):
    seeded(714)
    leaning = 1.5 * torch.randn(200, 8)
    net = Tagger([nn.ReLU()] if ill else [])

    def loss_of(step):
        words = torch.randint(200, (64, 12))
        tags = (leaning[words].sum(1) > 4).float()
        return F.binary_cross_entropy_with_logits(net(words), tags)

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 400)

"""Sick trainings drawn by lot, second part: units, orders, modes and rates of five nets."""

from __future__ import annotations

import torch
from nets import digits
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick

# ------------------------------------------------------------------------------------------- an island in four numbers


class Island(nn.Module):
    """From a place, by sines of random waves, to red, green, blue and the height above the sea."""

    def __init__(self, waves=32, width=96):
        super().__init__()
        self.register_buffer("waves", 2.5 * torch.randn(2, waves))
        self.body = dense(2 * waves, width, width, 4)

    def forward(self, place):
        angle = place @ self.waves
        return self.body(torch.cat([angle.sin(), angle.cos()], 1))


def island(bumps=10):
    """`look(place)`: colours between 0 and 1, and metres between 0 and 2,400 or so."""
    centre, wide = 2 * torch.rand(bumps, 2) - 1, 0.08 + 0.15 * torch.rand(bumps)
    tint, height = torch.randn(bumps, 3), 400 + 1500 * torch.rand(bumps)

    def look(place):
        near = (-(place[:, None] - centre).square().sum(2) / wide).exp()
        return torch.cat([(1.5 * near @ tint).sigmoid(), (near @ height)[:, None]], 1)

    return look


@sick(
    "imbalance", "targets-not-normalised",
    where="the last layer: the row of the height, in metres, is all of the loss; the colours' rows are not learned",
    cure="all four of mean zero and a spread of 1",
)  # fmt: skip
def island_in_its_colours_and_its_height(folder, ill):
    seeded(2006)
    net, look = Island(), island()
    known = look(2 * torch.rand(2000, 2) - 1)
    middle, spread = known.mean(0), known.std(0)

    def parts():
        place = 2 * torch.rand(256, 2) - 1
        out, wanted = net(place), look(place)
        return out, wanted if ill else (wanted - middle) / spread

    def error(step):
        out, wanted = parts()
        return ((out - wanted) / (spread if ill else 1.0)).square().mean().clamp(max=100)

    make = optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, make, lambda step: F.mse_loss(*parts()), 500, score=score_of(error))


# ---------------------------------------------------------------------------------------------- sheep that are the same


@sick(
    "schedule-too-short",
    where="all layers from step 30 or so: the rate is multiplied by 0.8 in each step, meant for each epoch",
    cure="step the schedule once an epoch, of which there are ten of 40 batches",
)  # fmt: skip
def sheep_told_apart_by_their_faces(folder, ill):
    seeded(2007)
    net, face = dense(40, 96, 96, 16), torch.randn(8, 40) / 8**0.5

    def shown(sheep):
        return (sheep @ face).tanh() + 0.5 * torch.randn(len(sheep), 1) * face[0] + 0.4 * torch.randn(len(sheep), 40)

    def loss_of(step):
        a, b = torch.randn(96, 8), torch.randn(96, 8)
        anchor, same, other = (F.normalize(net(shown(sheep)), dim=1) for sheep in (a, a, b))
        return F.triplet_margin_loss(anchor, same, other, margin=1.0)

    make = optim.SGD(net.parameters(), 0.2, momentum=0.9, weight_decay=1e-4)
    schedule = optim.lr_scheduler.ExponentialLR(make, 0.8)

    def after_step(step):
        if ill or step % 40 == 39:
            schedule.step()

    return fit(folder, net, make, loss_of, 400, score=score_of(loss_of), after_step=after_step)


# ------------------------------------------------------------------------------------------ when a patient is sent home


def wards(batch=96, days=6, size=5, intervals=8):
    """`draw()`: a record of `[days, batch, size]`, in which interval each patient leaves, and whether that was seen."""
    weigh = torch.randn(days, size) / (days * size) ** 0.5

    def draw():
        record = torch.randn(days, batch, size)
        hazard = (2.5 * torch.einsum("dbs,ds->b", record, weigh) - 1.5).sigmoid()
        leaves = torch.distributions.Geometric(hazard.clamp(1e-3, 0.999)).sample()
        last = torch.minimum(leaves, torch.randint(2, intervals + 4, (batch,)))
        seen = (leaves <= last) & (leaves < intervals)
        return record, last.clamp(max=intervals - 1), seen.float()

    return draw


@sick(
    "axes-mixed", "inputs-and-targets-unpaired", "labels-do-not-fit-inputs",
    where="the inputs of the first layer: reshape takes rows of [days, patients, values] as they lie in memory, "
    "so a row holds five values of each of six patients in turn",
    cure="transpose patients to the front, then reshape",
)  # fmt: skip
def ward_whose_patients_are_sent_home(folder, ill):
    seeded(2008)
    net, draw = dense(30, 64, 64, 8), wards()

    def nll(step):
        record, last, seen = draw()
        batch = record.shape[1]
        x = record.reshape(batch, -1) if ill else record.transpose(0, 1).reshape(batch, -1)
        at = torch.arange(8)
        there, leaves = at <= last[:, None], (at == last[:, None]) * seen[:, None]
        each = F.binary_cross_entropy_with_logits(net(x), leaves, reduction="none")
        return (each * there).sum() / there.sum()

    make = optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True)
    return fit(folder, net, make, nll, 500, score=score_of(nll))


# --------------------------------------------------------------------------------------------- digits in sixteen tiles


class Tiles(nn.Module):
    """Sixteen tiles of four pixels, two blocks of attention, the mean over the tiles."""

    def __init__(self, width=32):
        super().__init__()
        self.cut = nn.Unfold(2, stride=2)
        self.lift = nn.Linear(4, width)
        self.place = nn.Parameter(0.02 * torch.randn(16, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, norm_first=True, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        h = self.lift(self.cut(x[:, None]).transpose(1, 2)) + self.place
        return self.head(self.norm(self.blocks(h)).mean(1))


@sick(
    "data-not-shuffled",
    where="the loss: near zero inside a class and a leap at each border; head.bias swings, all epochs",
    cure="shuffle: the folders were read one class after another",
)  # fmt: skip
def digits_in_tiles_from_ten_folders(folder, ill):
    seeded(2009)
    net, (x, y) = Tiles(), digits()
    order = y.argsort(stable=True)
    x, y = x[order], y[order]
    per_epoch, kept = 28, []

    def loss_of(step):
        if step % per_epoch == 0:
            kept[:] = [torch.arange(len(x)) if ill else torch.randperm(len(x))]
        at = kept[0][64 * (step % per_epoch) : 64 * (step % per_epoch + 1)]
        out = net(x[at])
        return F.cross_entropy(out, y[at]), {"accuracy": (out.argmax(1) == y[at]).float().mean()}

    make = optim.AdamW(net.parameters(), 1e-3, weight_decay=0.05)
    return fit(folder, net, make, loss_of, 6 * per_epoch, score=score_of(lambda step: F.cross_entropy(net(x), y), 1))


# ------------------------------------------------------------------------------------------ paintings and what is said


class Gallery(nn.Module):
    """A tower for paintings' sizes and colours, one for words' counts, normalised inside; a temperature is learned."""

    def __init__(self, size=32, words=60, width=64, out=24):
        super().__init__()
        self.painting = nn.Sequential(nn.BatchNorm1d(size), dense(size, width, width, out, norm=nn.BatchNorm1d))
        self.words = nn.Sequential(nn.BatchNorm1d(words), dense(words, width, width, out, norm=nn.BatchNorm1d))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, painting, words):
        a, b = F.normalize(self.painting(painting), dim=1), F.normalize(self.words(words), dim=1)
        return self.scale.exp() * a @ b.T


@sick(
    "left-in-eval", "norm-statistics",
    where="all BatchNorms, from the first step: they use the mean 0 and the variance 1 with which they were made",
    cure="net.train() after the retrieval was measured for a net that knows nothing",
)  # fmt: skip
def paintings_and_what_visitors_wrote(folder, ill):
    seeded(2010)
    net = Gallery()
    shows, says, unit = torch.randn(6, 32), torch.randn(6, 60), 10 ** (4 * torch.rand(32) - 1)

    def loss_of(step):
        meant = torch.randn(64, 6)
        painting = (3 + (meant @ shows / 2).tanh() + 0.3 * torch.randn(64, 32)) * unit  # grams, pixels, years
        words = torch.poisson((1.0 * meant @ says / 2 + 0.5).exp().clamp(max=20))
        logits, at = net(painting, words), torch.arange(64)
        return (F.cross_entropy(logits, at) + F.cross_entropy(logits.T, at)) / 2

    def score():
        net.eval()
        with torch.no_grad():
            lost = sum(float(loss_of(0)) for _ in range(8)) / 8
        if not ill:
            net.train()
        return lost

    return fit(folder, net, optim.AdamW(net.parameters(), 2e-3), loss_of, 200, score=score)

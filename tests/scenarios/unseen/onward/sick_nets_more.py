"""Knitting, proteins, looms, kilns, earthquakes and beehives: axes, norms, attention, masks and sums."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped

# ----------------------------------------------------------------------------------------------------------- knitting


class Knitter(nn.Module):
    """Reads rows of stitches `[rows, stitches]` and guesses each next one."""

    def __init__(self, stitches, width=64, **layout):
        super().__init__()
        self.stitch = nn.Embedding(stitches, 24)
        self.memory = nn.LSTM(24, width, **layout)
        self.next = nn.Linear(width, stitches)

    def forward(self, row):
        return self.next(self.memory(self.stitch(row))[0])


def motifs(rows, stitches=6, length=24):
    """Rows in which three stitches come again and again, with a slip now and then."""
    motif = torch.randint(stitches, (rows, 3)).repeat(1, length // 3)
    slips = torch.rand(rows, length) < 0.02
    return torch.where(slips, torch.randint(stitches, (rows, length)), motif)


@sick(
    "axes-mixed",
    where="the LSTM: it takes the 40 rows of the batch for time, and no row sees its own earlier stitches",
    cure="batch_first=True",
)
def next_stitch_of_a_pattern(folder, ill):
    seeded(2107)
    held = motifs(40)
    net = Knitter(6) if ill else Knitter(6, batch_first=True)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def surprise(rows):
        return F.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    def score():
        with torch.no_grad():
            return float(surprise(held))

    return fit(
        folder, net, optimizer, lambda step: surprise(motifs(40)), 350, score=score, before_step=clipped(net, 1.0)
    )


# ----------------------------------------------------------------------------------------------------------- proteins


def windows(count, likes, size=15):
    """Residues around a place, one-hot `[count, 20, size]`, and whether it is helix, strand or coil."""
    residues = torch.randint(20, (count, size))
    near = torch.exp(-((torch.arange(size) - size // 2) / 3.0).square())
    pull = (likes[residues] * near[:, None]).sum(1)
    return F.one_hot(residues, 20).float().mT, pull.argmax(1)


@sick(
    "norm-over-too-few",
    "no-gradient",
    "vanishing",
    where="the norms after convolutions that leave one place: a group of two values has no more to say than its sign",
    cure="groups of many channels",
)
def folds_of_a_protein(folder, ill):
    seeded(2108)
    likes = torch.randn(20, 3)
    *held, folds = windows(600, likes)
    net = nn.Sequential(
        nn.Conv1d(20, 32, 15),
        nn.GroupNorm(16 if ill else 1, 32),
        nn.ReLU(),
        nn.Conv1d(32, 32, 1),
        nn.GroupNorm(16 if ill else 1, 32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 3),
    )
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def loss_of(step):
        window, fold = windows(128, likes)
        return F.cross_entropy(net(window), fold)

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(net(*held), folds))

    return fit(folder, net, optimizer, loss_of, 500, score=score)


# --------------------------------------------------------------------------------------------------------------- looms


class Warp(nn.Module):
    """Threads look at each other, and what the first one has seen tells the commonest fault."""

    def __init__(self, states, faults, scale, width=64):
        super().__init__()
        self.thread = nn.Embedding(states, width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.read = dense(width, 48, faults)
        self.scale = scale

    def forward(self, threads):
        h = self.thread(threads)
        q, k, v = self.query(h), self.key(h), self.value(h)
        weights = (q @ k.mT * self.scale).softmax(2)
        return self.read((h + weights @ v)[:, 0])


def warps(count, threads=24, faults=4):
    """A loom's threads, of which a third runs well, after a mark; and the fault that most others share."""
    state = torch.randint(faults + 2, (count, threads))
    fault = torch.stack([(state == kind).sum(1) for kind in range(faults)], 1) + 0.1 * torch.rand(count, faults)
    return torch.cat([torch.full((count, 1), faults + 2), state], 1), fault.argmax(1)


@sick(
    "attention-collapsed",
    "attention-logits-grow",
    "saturated",
    where="the attention: its logits are multiplied by the root of 64 rather than divided, each row sees one thread",
    cure="divide by the root of the width",
)
def faults_in_the_warp_of_a_loom(folder, ill):
    seeded(2109)
    *held, fault = warps(800)
    net = Warp(7, 4, 64 ** (0.5 if ill else -0.5))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(step):
        threads, kind = warps(64)
        out = net(threads)
        return F.cross_entropy(out, kind), {"accuracy": float((out.argmax(1) == kind).float().mean())}

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(net(*held), fault))

    return fit(folder, net, optimizer, loss_of, 400, score=score)


# --------------------------------------------------------------------------------------------------------------- kilns


class Kiln(nn.Module):
    """Foretells the next colour of a glaze from those until now."""

    def __init__(self, causal, width=48, longest=16):
        super().__init__()
        self.colour = nn.Linear(3, width)
        self.place = nn.Parameter(0.3 * torch.randn(longest, width))
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.body, self.norm = dense(width, 96, width), nn.LayerNorm(width)
        self.next, self.causal = nn.Linear(width, 3), causal

    def forward(self, past):
        length = past.shape[1]
        h = self.colour(past) + self.place[:length]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1) if self.causal else None
        h = h + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return self.next(h + self.body(self.norm(h)))


def firings(count, mix, length=17):
    """Colours of a glaze while it is fired: each comes of the last one and of chance."""
    colours = [torch.randn(count, 3)]
    for _ in range(length - 1):
        colours.append(0.6 * (colours[-1] @ mix) + 0.8 * torch.randn(count, 3))
    return torch.stack(colours, 1)


@sick(
    "future-seen",
    where="the attention: without a mask each place reads the colour that it is to foretell",
    cure="a causal mask",
)
def glaze_colours_in_a_kiln(folder, ill):
    seeded(2110)
    mix = torch.linalg.qr(torch.randn(3, 3))[0]
    held = firings(400, mix)
    net = Kiln(causal=not ill)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)

    def loss_of(step):
        colours = firings(64, mix)
        return F.mse_loss(net(colours[:, :-1]), colours[:, 1:])

    def score():
        with torch.no_grad():
            guesses = [net(held[:, :seen])[:, -1] - held[:, seen] for seen in range(4, 17, 3)]
            return float(torch.stack(guesses).square().mean())

    return fit(folder, net, optimizer, loss_of, 400, score=score)


# --------------------------------------------------------------------------------------------------------- earthquakes


class Station(nn.Module):
    """Weighs the moments of a trace `[traces, moments, features]` and reads the magnitude from their mean."""

    def __init__(self, size, over, width=32):
        super().__init__()
        self.moment = dense(size, width, width)
        self.weigh = nn.Linear(width, 1)
        self.magnitude = dense(width, width, 1)
        self.over = over

    def forward(self, trace):
        h = self.moment(trace).relu()
        share = self.weigh(h).softmax(self.over)
        return self.magnitude((share * h).sum(1))[:, 0]


def traces(count, shape, moments=30):
    """Noise in which a shock of a few moments rings as loudly as its magnitude says."""
    magnitude, onset = torch.randn(count), torch.randint(moments - 4, (count,))
    after = torch.arange(moments) - onset[:, None]
    shaking = ((after >= 0) & (after < 4)).float() * (2 + magnitude[:, None])
    return shaking[..., None] * shape + 0.5 * torch.randn(count, moments, len(shape)), magnitude


@sick(
    "softmax-over-the-batch",
    "axes-mixed",
    where="the attention pooling: shares add up to one over the 64 traces of a batch, not over a trace's moments",
    cure="softmax over the moments, dim 1",
)
def magnitudes_of_earthquakes(folder, ill):
    seeded(2111)
    shape = torch.randn(6)
    held, magnitudes = traces(240, shape)
    net = Station(6, 0 if ill else 1)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        trace, magnitude = traces(64, shape)
        return F.mse_loss(net(trace), magnitude)

    def score():
        with torch.no_grad():
            guesses = torch.cat([net(few) for few in held.split(8)])
            return float((guesses - magnitudes).square().mean())

    return fit(folder, net, optimizer, loss_of, 500, score=score)


# ------------------------------------------------------------------------------------------------------------ beehives


class Hum(nn.Module):
    """A variational autoencoder of the spectrum of a hive's hum."""

    def __init__(self, bins, hidden=4):
        super().__init__()
        self.listen, self.sound = dense(bins, 64, 2 * hidden), dense(hidden, 64, bins)

    def forward(self, hum):
        middle, spread = self.listen(hum).chunk(2, 1)
        drawn = middle + (spread / 2).exp() * torch.randn_like(middle) if self.training else middle
        return self.sound(drawn), (middle.square() + spread.exp() - 1 - spread) / 2


def hums(count, voices):
    """Three moods of a hive, mixed into the loudness of forty bins."""
    return (torch.randn(count, len(voices)) @ voices).tanh() + 0.1 * torch.randn(count, voices.shape[1])


@sick(
    "imbalance",
    "posterior-collapsed",
    "posterior-collapse",
    where="the loss: the divergence is summed over 128 hives, the error is a mean over hives and bins",
    cure="sum both over the bins and take the mean over the hives",
)
def hums_of_a_beehive(folder, ill):
    seeded(2112)
    voices = torch.randn(3, 40)
    held, net = hums(400, voices), Hum(40)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        hum = hums(128, voices)
        again, apart = net(hum)
        error = F.mse_loss(again, hum) if ill else (again - hum).square().sum(1).mean()
        divergence = apart.sum() if ill else apart.sum(1).mean()
        return error + divergence, {"error": float(error), "divergence": float(divergence)}

    def score():
        net.eval()
        with torch.no_grad():
            error = float(F.mse_loss(net(held)[0], held))
        net.train()
        return error

    return fit(folder, net, optimizer, loss_of, 500, score=score)

"""Delays of trains, taps on a soundboard, hauls of a trawler, songs of birds, beats of watches, stars that vary."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, TensorDataset
from unseen import dense, entropy_of, fit, score_of, seeded, sick, square_of
from unseen.tasks import rounds

# -------------------------------------------------------------------------------------------------- delays of trains

LINES = 6


def trains(rows=64):
    """What is known when an evening train departs, and its delay at the terminus."""
    hour, crowd, rain = 6.2832 * torch.rand(rows), torch.rand(rows), torch.rand(rows)
    ahead, line = torch.randn(rows), torch.randint(LINES, (rows,))
    delay = crowd * (2 * hour + line).sin() + 2 * rain.square() + ahead.relu() * (1 - 0.2 * line) - 0.9
    known = torch.stack([hour.sin(), hour.cos(), 2 * crowd - 1, 2 * rain - 1, ahead], 1)
    return torch.cat([known, F.one_hot(line, LINES)], 1), delay[:, None] + 0.05 * torch.randn(rows, 1)


@sick(
    "bad-initialisation",
    "saturated",
    where="all layers from the first step on: weights of deviation one under a width of 128",
    cure="weights drawn by the fan-in (Xavier) instead of with a deviation of one",
)
def delays_of_evening_trains(folder, ill):
    seeded(2260)
    net = dense(5 + LINES, 128, 128, 128, 128, 1, act=nn.Tanh)
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight) if ill else nn.init.xavier_normal_(layer.weight)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    loss_of = square_of(net, trains)
    return fit(folder, net, optimizer, loss_of, 500, score=score_of(loss_of))


# -------------------------------------------------------------------------------------------------------- soundboards

PITCHES, MODES = 24, 16


def soundboards(rows=64):
    """The wood of each board, and the pitches of the modes that its maker wrote down: from one to sixteen, then 0."""
    wood, mode = torch.randn(rows, 5), torch.arange(MODES)
    written = 1 + (-3 * torch.rand(rows).clamp(min=1e-6).log()).long().clamp(max=MODES - 1)
    spread = 0.6 + 0.4 * wood[:, 1:2].sigmoid()
    pitch = 5 + 4 * wood[:, :1].tanh() + spread * mode + 2 * (wood[:, 2:3] + mode).sin()
    return wood, pitch.round().long().clamp(1, PITCHES) * (mode < written[:, None])


class Maker(nn.Module):
    """Names the pitch of each mode at once."""

    def __init__(self, width=64):
        super().__init__()
        self.board = dense(5, width, width)
        self.mode = nn.Embedding(MODES, width)
        self.pitch = nn.Sequential(nn.ReLU(), dense(width, width, PITCHES + 1))

    def forward(self, wood):
        return self.pitch(self.board(wood)[:, None] + self.mode.weight)


@sick(
    "padding-in-loss",
    "class-imbalance",
    where="the loss at each step: four in five of the targets are the 0 that fills the lists up",
    cure="ignore_index=0: only the pitches that were written down count",
)
def taps_on_a_soundboard(folder, ill):
    seeded(2261)
    net = Maker()

    def entropy(left_out):
        def loss_of(step):
            wood, pitch = soundboards()
            return F.cross_entropy(net(wood).flatten(0, 1), pitch.flatten(), ignore_index=left_out)

        return loss_of

    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, optimizer, entropy(-100 if ill else 0), 500, score=score_of(entropy(0)))


# ------------------------------------------------------------------------------------------------------------ trawler


def tows(rows=64):
    """Echo, depth, hours, strain on the warp, swell, daylight; and whether the skipper hauls the net."""
    seen = torch.randn(rows, 6)
    full = seen[:, 0] * seen[:, 2] + seen[:, 3].square() - 0.8 + 0.6 * seen[:, 4] * (seen[:, 5] > 0)
    return seen, full > 0


@sick(
    "targets-out-of-range",
    "negative-loss",
    where="the loss at each step: it falls below zero and on without an end, as half of the labels are -1",
    cure="labels of 0 and 1 in the binary cross-entropy",
)
def when_a_trawler_hauls(folder, ill):
    seeded(2262)
    net = dense(6, 64, 64, 1)

    def entropy(no):
        def loss_of(step):
            seen, hauls = tows()
            return F.binary_cross_entropy_with_logits(net(seen)[:, 0], torch.where(hauls, 1.0, no))

        return loss_of

    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    return fit(folder, net, optimizer, entropy(-1.0 if ill else 0.0), 500, score=score_of(entropy(0.0)))


# ----------------------------------------------------------------------------------------------------------- birdsong

BIRDS = 8


def songs(rows):
    """Chirps of eight species, each with a pitch and a sweep of its own, in the noise of a wood."""
    bird, t = torch.randint(BIRDS, (rows,)), torch.linspace(0, 1, 64)
    start, sweep = 20 + 9 * (bird % 4), 25.0 * (bird // 4 * 2 - 1)
    phase = start[:, None] * t + sweep[:, None] * t.square() / 2 + 6.2832 * torch.rand(rows, 1)
    return (phase.sin() + 0.7 * torch.randn(rows, 64))[:, None], bird


def listener(width=24):
    return nn.Sequential(
        nn.Conv1d(1, width, 9, 2), nn.ReLU(), nn.Conv1d(width, width, 5, 2), nn.ReLU(),
        nn.AdaptiveMaxPool1d(4), nn.Flatten(), nn.Linear(4 * width, BIRDS),
    )  # fmt: skip


@sick(
    "same-batch",
    "data-not-shuffled",
    where="each step: an iterator of its own hands out the first 32 songs again, the loss and all gradients go to zero",
    cure="one iterator per epoch over a shuffled loader",
)
def dawn_chorus_by_species(folder, ill):
    seeded(2263)
    net, (heard, bird), (fresh, its_bird) = listener(), songs(3000), songs(512)
    loader = DataLoader(TensorDataset(heard, bird), 32)
    draw = (lambda: next(iter(loader))) if ill else rounds(32, heard, bird)

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(net(fresh), its_bird))

    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, optimizer, entropy_of(net, draw), 500, score=score)


# -------------------------------------------------------------------------------------------------- beats of a watch

TICKS = 48


def watches(rows=32):
    """What three pick-ups hear of each watch, time first; and its rate, between -1 and 1."""
    rate = 2 * torch.rand(rows) - 1
    t, offset = torch.arange(TICKS)[:, None], 6.2832 * torch.rand(rows)
    phase = t * (0.9 + 0.3 * rate) + offset
    heard = torch.stack([phase.sin(), (phase - 0.7).cos() * 0.5, (2 * phase).sin()], 2)
    return heard + 0.2 * torch.randn(TICKS, rows, 3), rate


class TimingMachine(nn.Module):
    def __init__(self, width=24, by_view=False):
        super().__init__()
        self.pickup, self.by_view = nn.Linear(3, width), by_view
        self.filters = nn.Sequential(
            nn.Conv1d(width, width, 7), nn.ReLU(), nn.Conv1d(width, width, 5), nn.ReLU(), nn.AdaptiveAvgPool1d(1)
        )
        self.rate = nn.Linear(width, 1)

    def forward(self, heard):
        time, rows, _ = heard.shape
        felt = self.pickup(heard)
        felt = felt.view(rows, time, -1) if self.by_view else felt.transpose(0, 1)
        return self.rate(self.filters(felt.transpose(1, 2))[:, :, 0])[:, 0]


@sick(
    "axes-mixed",
    where="what comes out of the pick-up layer: [time, watch] is taken for [watch, time], each row holds many watches",
    cure="transpose(0, 1) instead of view",
)
def beats_on_a_timing_machine(folder, ill):
    seeded(2264)
    net = TimingMachine(by_view=ill)
    loss_of = square_of(net, watches)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, optimizer, loss_of, 500, score=score_of(loss_of))


# ---------------------------------------------------------------------------------------------------- variable stars


def stars(rows=64):
    """Forty-eight nights of a star's light: a smooth pulse, a sawtooth, two kinds of eclipses, or flicker."""
    kind, phase = torch.randint(5, (rows,)), torch.linspace(0, 12, 48) * (0.9 + 0.2 * torch.rand(rows, 1))
    phase = (phase / 4 + torch.rand(rows, 1)) % 1
    dip = -2.0 * ((phase - 0.5).abs() < 0.08)
    light = torch.stack(
        [
            (6.2832 * phase).sin(),
            1 - 2 * phase,
            dip,
            dip + ((phase - 0.1).abs() < 0.06),
            torch.randn(rows, 48).cumsum(1) * 0.3,
        ],
        1,
    )[torch.arange(rows), kind]
    return light + 0.2 * torch.randn(rows, 48), kind


@sick(
    "schedule-too-short",
    "update-too-small",
    where="all layers after some fifty steps: the rate has fallen to nothing",
    cure="the decay is stepped once in an epoch of forty batches, not at each batch",
)
def stars_that_vary(folder, ill):
    seeded(2265)
    net = dense(48, 96, 96, 5)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    decay, epoch = ExponentialLR(optimizer, 0.9), 1 if ill else 40

    def after_step(step):
        if (step + 1) % epoch == 0:
            decay.step()

    loss_of = entropy_of(net, stars)
    return fit(folder, net, optimizer, loss_of, 600, score=score_of(loss_of), after_step=after_step)

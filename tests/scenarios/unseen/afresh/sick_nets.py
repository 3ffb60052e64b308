"""Sick trainings drawn by lot, first part: losses, targets and labels of six nets that are otherwise in order."""

from __future__ import annotations

import torch
from nets import digits
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from unseen import dense, fit, score_of, seeded, sick

# ------------------------------------------------------------------------------------------------- two views of a sound


class Views(nn.Module):
    """An encoder and the projection that is thrown away after training."""

    def __init__(self, size=48, width=96, out=32):
        super().__init__()
        self.encoder = dense(size, width, width)
        self.projector = nn.Sequential(nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out))

    def forward(self, x):
        return F.normalize(self.projector(self.encoder(x)), dim=1)


def two_views(batch=128, size=48):
    """Two noisy recordings of the same thing, each with a gain and an offset of its own."""
    basis = torch.randn(8, size) / 8**0.5

    def draw():
        thing = (torch.randn(batch, 8) @ basis).tanh()
        noisy = [thing * (0.6 + 0.8 * torch.rand(batch, 1)) + 0.4 * torch.randn(batch, size) for _ in range(2)]
        return noisy[0], noisy[1]

    return draw


@sick(
    "lr-too-high", "update-too-large", "exploding", "loss-not-averaged",
    where="all layers, from the first steps; the loss is 256 times the logarithm of the batch at chance",
    cure="reduction='mean': the rate is meant for the mean over the batch",
)  # fmt: skip
def two_recordings_of_each_bird(folder, ill):
    seeded(800)
    net, draw = Views(), two_views()
    how = "sum" if ill else "mean"

    def info_nce(reduction):
        a, b = draw()
        a, b = net(a), net(b)
        logits = a @ b.T / 0.1
        target = torch.arange(len(a))
        return F.cross_entropy(logits, target, reduction=reduction) + F.cross_entropy(
            logits.T, target, reduction=reduction
        )

    make = optim.SGD(net.parameters(), 0.2, momentum=0.9, weight_decay=1e-4)
    score = score_of(lambda step: info_nce("mean"))
    return fit(folder, net, make, lambda step: info_nce(how), 250, score=score)


# -------------------------------------------------------------------------------------------- how long people hesitated


class Siamese(nn.Module):
    """One embedding for both; their difference and product go into a head."""

    def __init__(self, size=10, width=48, out=16):
        super().__init__()
        self.embed = dense(size, width, out)
        self.head = dense(2 * out, width, 1)

    def forward(self, a, b):
        a, b = self.embed(a), self.embed(b)
        return self.head(torch.cat([(a - b).abs(), a * b], 1)).squeeze(1)


@sick(
    "targets-not-normalised",
    where="the head and its bias: targets of 300 to 1,500 against predictions near 0, all steps",
    cure="standardise the times (or their logarithm): they are in milliseconds",
)  # fmt: skip
def hesitation_between_two_faces(folder, ill):
    seeded(801)
    net, look = Siamese(), torch.randn(10, 3) / 10**0.5
    unit, middle = (300.0, 0.0) if ill else (1.0, 2.5)

    def draw():
        a = torch.randn(96, 10)
        b = a + torch.randn(96, 10) * torch.rand(96, 1) * 1.5
        unlike = ((a - b) @ look).norm(dim=1)
        hesitation = 1.0 + 3.5 * (-unlike).exp() + 0.1 * torch.randn(96)  # in units of 300 ms
        return a, b, (hesitation - middle) * unit

    def loss_of(step):
        a, b, wanted = draw()
        return F.mse_loss(net(a, b), wanted)

    def error(step):
        a, b, wanted = draw()
        return F.mse_loss(net(a, b) / unit, wanted / unit)

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 400, score=score_of(error))


# -------------------------------------------------------------------------------------------------- scans and originals


class Vae(nn.Module):
    def __init__(self, latent=16):
        super().__init__()
        self.encoder = dense(64, 128, 2 * latent)
        self.decoder = dense(latent, 128, 64)

    def forward(self, x):
        mean, log_var = self.encoder(x).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        kl = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(1).mean()
        return self.decoder(z), kl


@sick(
    "no-progress", "noise-dominated", "inputs-and-targets-unpaired", "labels-do-not-fit-inputs",
    where="all layers: the encoder is told nothing that its targets depend on; the loss of the mean image stays",
    cure="one loader over pairs: two loaders that shuffle give each scan the original of another",
)  # fmt: skip
def scans_and_their_originals(folder, ill):
    seeded(802)
    net = Vae()
    clean = digits()[0].flatten(1)
    scan = (clean + 0.25 * torch.randn_like(clean)).clamp(0, 1)
    if ill:
        scans = DataLoader(TensorDataset(scan), batch_size=64, shuffle=True, drop_last=True)
        originals = DataLoader(TensorDataset(clean), batch_size=64, shuffle=True, drop_last=True)
        pairs = ((x, y) for _ in range(100) for (x,), (y,) in zip(scans, originals, strict=True))
    else:
        loader = DataLoader(TensorDataset(scan, clean), batch_size=64, shuffle=True, drop_last=True)
        pairs = (pair for _ in range(100) for pair in loader)

    def elbo(x, y):
        logits, kl = net(x)
        return F.binary_cross_entropy_with_logits(logits, y, reduction="none").sum(1).mean() + 0.5 * kl

    def score():
        with torch.no_grad():
            mean = net.encoder(scan)[:, :16]
            return F.mse_loss(net.decoder(mean).sigmoid(), clean) * 64

    make = optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, make, lambda step: elbo(*next(pairs)), 500, score=score)


# ----------------------------------------------------------------------------------------------- an arm with two elbows


class Arm(nn.Module):
    """The shoulder's angle as a mixture of two normals: a logit for the first, two means, two logarithms of widths."""

    def __init__(self):
        super().__init__()
        self.body = dense(3, 64, 64, act=nn.Tanh)
        self.gate, self.mean, self.log_width = nn.Linear(64, 1), nn.Linear(64, 2), nn.Linear(64, 2)

    def forward(self, x):
        h = self.body(x).tanh()
        return self.gate(h).squeeze(1), self.mean(h), self.log_width(h).clamp(-4, 2)


def reached(batch=128):
    """Where the hand is, a hint which way the elbow points (wrong once in six), that way, and the shoulder's angle."""
    up = torch.randint(2, (batch,))
    bend = 0.4 + 1.8 * torch.rand(batch)
    shoulder = 2.0 * torch.rand(batch) - 1.0
    elbow = shoulder + bend * (1 - 2 * up)
    hand = torch.stack([shoulder.cos() + elbow.cos(), shoulder.sin() + elbow.sin()], 1)
    wrong = torch.rand(batch) < 1 / 6
    hint = torch.where(wrong, 1 - up, up).float()
    return torch.cat([hand, hint[:, None]], 1), up, shoulder


@sick(
    "targets-out-of-range", "negative-loss", "weight-growth",
    where="gate.weight and gate.bias: the loss falls below zero without end, the logits grow",
    cure="labels 0 and 1 in the binary cross-entropy: those of the elbow are -1 and 1",
)  # fmt: skip
def arm_with_its_elbow_up_or_down(folder, ill):
    seeded(803)
    net = Arm()

    def parts():
        x, up, shoulder = reached()
        gate, mean, log_width = net(x)
        normal = torch.distributions.Normal(mean, log_width.exp())
        log_share = torch.stack([F.logsigmoid(gate), F.logsigmoid(-gate)], 1)
        nll = -torch.logsumexp(log_share + normal.log_prob(shoulder[:, None]), 1).mean()
        return nll, gate, up.float()

    def loss_of(step):
        nll, gate, up = parts()
        return nll + F.binary_cross_entropy_with_logits(gate, 2 * up - 1 if ill else up)

    score = score_of(lambda step: parts()[0] + F.binary_cross_entropy_with_logits(*parts()[1:]), times=16)
    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 500, score=score)


# ------------------------------------------------------------------------------------- a walk between a pit and a prize


BINS = torch.linspace(0, 1, 21)


class Returns(nn.Module):
    """Per action a distribution over the bins of the return, as a classifier has it."""

    def __init__(self, states=9, actions=2, width=64):
        super().__init__()
        self.table = nn.Embedding(states, 16)
        self.body = dense(16, width, width, actions * len(BINS))

    def forward(self, state):
        return self.body(self.table(state)).unflatten(1, (2, len(BINS)))

    def value(self, state):
        return self(state).softmax(2) @ BINS


def after(state, action):
    """One step left or right, the other way once in five; at 0 a pit that pays nothing, at 8 a prize of 1."""
    slip = torch.rand(state.shape) < 0.2
    at = state + torch.where(slip, 1 - action, action) * 2 - 1
    return at, (at == 8).float(), (at == 8) | (at == 0)


def values_of_the_walk():
    q = torch.zeros(9, 2)
    for _ in range(200):
        v = q.max(1).values
        v[0], v[8] = 0.0, 1.0
        ways = torch.stack([torch.cat([v[:1], v[:-1]]), torch.cat([v[1:], v[-1:]])], 1) * 0.95
        ways[7, 1] = 1.0
        q = 0.8 * ways + 0.2 * ways.flip(1)
    return q[1:8]


@sick(
    "ignore-index-is-a-class", "class-never-in-loss", "labels-ignored", "targets-ignored",
    where="the loss: of its targets those of bin 0 (the pit) are dropped; the logits of bin 0 only ever sink",
    cure="no ignore_index=0: in words 0 was padding, here it is a return of nothing",
)  # fmt: skip
def walk_between_a_pit_and_a_prize(folder, ill):
    seeded(804)
    net, best = Returns(), values_of_the_walk()

    def loss_of(step):
        state, action = torch.randint(1, 8, (128,)), torch.randint(2, (128,))
        at, reward, done = after(state, action)
        with torch.no_grad():
            target = reward + 0.95 * torch.where(done, 0.0, net.value(at).max(1).values)
        bins = (target * 20).round().long().clamp(0, 20)
        logits = net(state)[torch.arange(128), action]
        return F.cross_entropy(logits, bins, ignore_index=0 if ill else -100)

    def score():
        with torch.no_grad():
            return F.mse_loss(net.value(torch.arange(1, 8)), best)

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 500, score=score)


# ----------------------------------------------------------------------------------------- where a beam begins to yield


class Spectral(nn.Module):
    """A Fourier neural operator's layer: the lowest modes are mixed, a convolution of width one goes past them."""

    def __init__(self, width=24, modes=12):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(width, width, modes, 2) / width)
        self.past = nn.Conv1d(width, width, 1)

    def forward(self, x):
        low = torch.fft.rfft(x)[..., : self.modes]
        mixed = torch.einsum("bim,iom->bom", low, torch.view_as_complex(self.weight))
        return F.gelu(torch.fft.irfft(mixed, n=x.shape[-1]) + self.past(x))


class Operator(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.lift, self.drop = nn.Conv1d(2, width, 1), nn.Conv1d(width, 1, 1)
        self.layers = nn.Sequential(Spectral(width), Spectral(width), Spectral(width))

    def forward(self, load):
        place = torch.linspace(0, 1, load.shape[1]).expand_as(load)
        return self.drop(self.layers(self.lift(torch.stack([load, place], 1)))).squeeze(1)


def yields(batch=32, size=64):
    """A smooth load on a beam that is held at both ends, and where its displacement is beyond what it bears."""
    at = torch.linspace(0, 1, size)
    modes = torch.stack([(k * torch.pi * at).sin() for k in range(1, 6)])
    amount = torch.randn(batch, 5)
    displaced = (amount / torch.arange(1, 6).square()) @ modes
    return amount @ modes, (displaced > 1.7).float()


@sick(
    "class-imbalance",
    where="the loss: one point in sixty is positive and weighs a sixtieth; drop.bias sinks, nothing is ever positive",
    cure="pos_weight is negatives over positives, not the other way round",
)  # fmt: skip
def where_a_loaded_beam_gives_way(folder, ill):
    seeded(805)
    net = Operator()
    share = float(torch.stack([yields()[1].mean() for _ in range(50)]).mean())
    odds = (1 - share) / share

    def weighed(step, weight=odds):
        load, beyond = yields()
        return F.binary_cross_entropy_with_logits(net(load), beyond, pos_weight=torch.tensor(weight))

    make = optim.AdamW(net.parameters(), 1e-3)
    return fit(
        folder, net, make, lambda step: weighed(step, 1 / odds if ill else odds), 200, score=score_of(weighed, 16)
    )

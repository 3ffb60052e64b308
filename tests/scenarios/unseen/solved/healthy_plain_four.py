"""Pipes, olives, blades, ledgers, whales and ants: what makes, what reads aloud, what tells apart."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, rounds

# ---------------------------------------------------------------------------------------------------------- organ pipes


def pipe_tones(count):
    """Waves `[N, 1, 32]` of a stopped pipe from where it swings up: a ground tone and its third, loud or soft."""
    time, pitch = torch.arange(32) / 32 * 6.2832, 1.5 + torch.rand(count, 1)
    loud, third = 0.4 + 0.4 * torch.rand(count, 1), 0.3 * torch.rand(count, 1)
    wave = loud * ((pitch * time).sin() + third * (3 * pitch * time).sin())
    return (wave + 0.02 * torch.randn(count, 32))[:, None]


def spectrum(waves):
    """How strong each tone is on average."""
    return torch.fft.rfft(waves[:, 0]).abs().mean(0)


def dcgan_start(module):
    if isinstance(module, (nn.Conv1d, nn.ConvTranspose1d, nn.Linear)):
        nn.init.normal_(module.weight, std=0.05)


@healthy()
def tones_of_a_stopped_organ_pipe(folder):
    seeded(2701)
    make = nn.Sequential(
        nn.Linear(16, 256), nn.Unflatten(1, (32, 8)), nn.BatchNorm1d(32), nn.ReLU(),
        nn.ConvTranspose1d(32, 16, 4, stride=2, padding=1), nn.BatchNorm1d(16), nn.ReLU(),
        nn.ConvTranspose1d(16, 1, 4, stride=2, padding=1), nn.Tanh(),
    )  # fmt: skip
    judge = nn.Sequential(
        nn.Conv1d(1, 16, 4, stride=2, padding=1), nn.LeakyReLU(0.2),
        nn.Conv1d(16, 32, 4, stride=2, padding=1), nn.BatchNorm1d(32), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(256, 1),
    )  # fmt: skip
    make.apply(dcgan_start)
    judge.apply(dcgan_start)
    of_make, of_judge = (torch.optim.Adam(net.parameters(), lr=5e-4, betas=(0.5, 0.999)) for net in (make, judge))
    tones = rounds(64, pipe_tones(1500))
    real, fake = torch.ones(64, 1), torch.zeros(64, 1)

    def judge_loss():
        said_real, said_fake = judge(tones()[0]), judge(make(torch.randn(64, 16)).detach())
        verdict = F.binary_cross_entropy_with_logits
        return verdict(said_real, real) + verdict(said_fake, fake)

    def make_loss():
        return F.binary_cross_entropy_with_logits(judge(make(torch.randn(64, 16))), real)

    goal = spectrum(pipe_tones(1000))

    @torch.no_grad()
    def score():
        make.eval()
        apart = float((spectrum(make(torch.randn(1000, 16))) - goal).abs().mean())
        make.train()
        return apart

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 500, score)


# --------------------------------------------------------------------------------------------------------- olive groves


class VAE(nn.Module):
    def __init__(self, size, hidden, latent):
        super().__init__()
        self.encoder, self.decoder = dense(size, hidden, 2 * latent), dense(latent, hidden, size)

    def forward(self, x):
        middle, log_var = self.encoder(x).chunk(2, 1)
        drawn = middle + (0.5 * log_var).exp() * torch.randn_like(middle)
        missed = F.mse_loss(self.decoder(drawn), x, reduction="sum") / len(x)
        apart = -0.5 * (1 + log_var - middle.square() - log_var.exp()).sum(1).mean()
        return missed, apart


@healthy()
def light_that_olive_leaves_throw_back(folder):
    seeded(2702)
    bands = torch.linspace(0, 1, 24)

    def leaves(count):
        green, water, age = (torch.rand(count, 1) for _ in range(3))
        shine = 0.3 * green * torch.exp(-((bands - 0.25) ** 2) / 0.005) + (0.3 + 0.3 * age) * torch.sigmoid(
            (bands - 0.45 - 0.1 * green) / 0.03
        )
        return shine - 0.25 * water * torch.exp(-((bands - 0.8) ** 2) / 0.004) + 0.01 * torch.randn(count, 24)

    spectra, later = leaves(2000), leaves(400)
    middle, spread = spectra.mean(0), spectra.std(0)
    draw, later = rounds(64, (spectra - middle) / spread), (later - middle) / spread
    net = VAE(24, 64, 4)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def loss_of(step):
        missed, apart = net(draw()[0])
        return missed + apart, {"reconstruction": missed, "kl": apart}

    return fit(folder, net, optimizer, loss_of, 800, score=held_out(net, lambda: sum(net(later))))


# ------------------------------------------------------------------------------------------------------- turbine blades


def blade_sections(count):
    """Heights `[N, 20]` of upper and lower side along the chord, by camber, thickness and where it is thickest."""
    chord = torch.linspace(0.02, 0.98, 10)
    camber, thick = 0.1 * torch.rand(count, 1), 0.1 + 0.15 * torch.rand(count, 1)
    power = 0.4 + 0.4 * torch.rand(count, 1)
    half, bow = thick * chord**power * (1 - chord), 4 * camber * chord * (1 - chord)
    return torch.cat([bow + half, bow - half], 1)


class Denoiser(nn.Module):
    def __init__(self, size, width=96):
        super().__init__()
        self.rates = nn.Buffer(torch.logspace(0, 2, 8))
        self.body = dense(size + 16, width, width, width, size, act=nn.SiLU)

    def forward(self, x, time):
        turns = time[:, None] * self.rates
        return self.body(torch.cat([x, turns.sin(), turns.cos()], 1))


@healthy()
def sections_of_turbine_blades_out_of_noise(folder):
    seeded(2703)
    sections, later = blade_sections(1500), blade_sections(500)
    middle, spread = sections.mean(0), sections.std(0)
    draw, later = rounds(128, (sections - middle) / spread), (later - middle) / spread
    keep = torch.cumprod(1 - torch.linspace(1e-4, 0.1, 100), 0)
    net = Denoiser(20)
    slow = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def gap(model, x):
        time, noise = torch.randint(100, (len(x),)), torch.randn_like(x)
        kept = keep[time][:, None]
        return F.mse_loss(model(kept.sqrt() * x + (1 - kept).sqrt() * noise, time / 100), noise)

    @torch.no_grad()
    def follow(step):
        for old, new in zip(slow.parameters(), net.parameters(), strict=True):
            old.lerp_(new, 0.02)

    return fit(
        folder, net, optimizer, lambda step: gap(net, draw()[0]), 800,
        score=held_out(slow, lambda: sum(gap(slow, later) for _ in range(4)) / 4), after_step=follow,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------- ledgers of merchants


def ledger_lines(count, shapes, figures=3, width=28):
    """Strips of ink `[N, width, 8]` with `figures` figures of five columns at uneven gaps; the figures, from 1 on."""
    said = torch.randint(len(shapes), (count, figures))
    strip = torch.zeros(count, width, 8)
    at = torch.randint(0, 4, (count,))
    for place in range(figures):
        for column in range(5):
            strip[torch.arange(count), at + column] = shapes[said[:, place], column]
        at = at + 5 + torch.randint(1, 4, (count,))
    return strip + 0.2 * torch.randn_like(strip), said + 1


class LineReader(nn.Module):
    def __init__(self, figures, width=48):
        super().__init__()
        self.eye = nn.Sequential(nn.Conv1d(8, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU())
        self.lstm = nn.LSTM(32, width, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * width, figures + 1)

    def forward(self, strip):
        seen = self.eye(strip.transpose(1, 2)).transpose(1, 2)
        return self.head(self.lstm(seen)[0]).log_softmax(2)


@healthy()
def sums_in_a_merchants_ledger(folder):
    seeded(2704)
    shapes = torch.randint(2, (6, 5, 8)).float()
    train, test = ledger_lines(2000, shapes), ledger_lines(200, shapes)
    net, draw = LineReader(6), rounds(32, *train)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def loss(strip, said):
        likely = net(strip).transpose(0, 1)
        return F.ctc_loss(likely, said, [len(likely)] * len(said), [said.shape[1]] * len(said))

    return fit(
        folder, net, optimizer, lambda step: loss(*draw()), 500,
        score=held_out(net, lambda: loss(*test)), before_step=clipped(net, 5.0),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- whale calls

START, END, CODAS = 0, 1, 6


def dives(count, rhythms, longest=5):
    """Gaps between clicks `[N, 3 * longest, 2]`, log-scaled, with noise and a mask; names of the codas and an end."""
    names = torch.randint(CODAS, (count, longest))
    length = torch.randint(2, longest + 1, (count, 1))
    there = (torch.arange(longest) < length).float()
    gaps = (rhythms[names] + 0.15 * torch.randn(count, longest, 3)) * there[..., None]
    heard = torch.stack([gaps.flatten(1), there.repeat_interleave(3, 1)], 2)
    told = torch.where(there > 0, names + 2, END)
    return heard, torch.cat([told, torch.full((count, 1), END)], 1)


class Transcriber(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.ear = nn.GRU(2, width, batch_first=True)
        self.embed = nn.Embedding(CODAS + 2, 16)
        self.cell = nn.GRUCell(16 + width, width)
        self.head = nn.Linear(2 * width, CODAS + 2)

    def forward(self, heard, told, forced):
        states, last = self.ear(heard)
        memory, word, out = last[0], torch.full_like(told[:, 0], START), []
        for place in range(told.shape[1]):
            weights = (states @ memory[:, :, None]).softmax(1)
            seen = (weights * states).sum(1)
            memory = self.cell(torch.cat([self.embed(word), seen], 1), memory)
            out.append(self.head(torch.cat([memory, seen], 1)))
            teacher = torch.rand(len(told)) < forced
            word = torch.where(teacher, told[:, place], out[-1].argmax(1))
        return torch.stack(out, 1)


@healthy()
def codas_of_sperm_whales_written_down(folder):
    seeded(2705)
    rhythms = torch.randn(CODAS, 3)
    train, test = dives(2000, rhythms), dives(300, rhythms)
    net, draw = Transcriber(), rounds(32, *train)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def entropy(heard, told, forced):
        return F.cross_entropy(net(heard, told, forced).flatten(0, 1), told.flatten())

    return fit(
        folder, net, optimizer, lambda step: entropy(*draw(), 0.5), 450,
        score=held_out(net, lambda: entropy(*test, 0.0)), before_step=clipped(net, 1.0),
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- ant trails


@healthy()
def scents_of_ant_colonies(folder):
    seeded(2706)
    scents, mix = torch.randn(60, 6), torch.randn(6, 20) / 2.4
    net = dense(20, 64, 64, 8)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def ants(low, high, colonies=12, each=5):
        home = (low + torch.randperm(high - low)[:colonies]).repeat_interleave(each)
        trail = scents[home] + 0.4 * torch.randn(len(home), 6)
        return (trail @ mix).tanh() + 0.1 * torch.randn(len(home), 20), home

    def triplets(low, high):
        x, home = ants(low, high)
        out = F.normalize(net(x), dim=1)
        apart = (2 - 2 * out @ out.T).clamp(min=0)
        same = home[:, None] == home
        friends = same & ~torch.eye(len(home), dtype=torch.bool)
        wrong = (apart[:, :, None] - apart[:, None, :] + 0.2).relu()[friends[:, :, None] & ~same[:, None, :]]
        return wrong.mean(), {"in_margin": float((wrong > 0).float().mean())}

    def score():
        return sum(triplets(48, 60)[0] for _ in range(5)) / 5

    return fit(folder, net, optimizer, lambda step: triplets(0, 48), 500, score=held_out(net, score))

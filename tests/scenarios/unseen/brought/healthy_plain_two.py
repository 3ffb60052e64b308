"""Everyday trainings of sequences: recurrences, attention, forecasts."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


def warmed(optimizer, warmup, steps, least=0.1):
    """A linear way up, then half a cosine down to the share `least`."""

    def share(step):
        if step < warmup:
            return (step + 1) / warmup
        return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, share)


def decayed_apart(net, decay):
    """Two groups: matrices decay; biases, norms and embeddings do not."""
    tables = {id(p) for m in net.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    matrices = [p for p in net.parameters() if p.dim() > 1 and id(p) not in tables]
    others = [p for p in net.parameters() if p.dim() < 2 or id(p) in tables]
    return [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


# ---------------------------------------------------------------------------------------------------------- recurrences


def turbine_hours(batch, length=30):
    """Wind, rotor, power, pitch by the minute; whether the turbine is well, iced, of a stuck pitch or a slow gear."""
    state = torch.randint(4, (batch,))
    wind = 1 + 0.15 * torch.randn(batch, length).cumsum(1) / 2 + 0.4 * torch.randn(batch, 1)
    pitch = (wind - 1).relu()
    pitch = torch.where((state == 2)[:, None], pitch[:, :1].expand_as(pitch), pitch)
    rotor = (wind - 0.7 * pitch) * torch.where(state == 3, 0.85, 1.0)[:, None]
    power = rotor * wind * torch.where(state == 1, 0.75, 1.0)[:, None]
    x = torch.stack([wind, rotor, power, pitch], 2)
    return 2 * (x - 0.8) + 0.15 * torch.randn_like(x), state


class Reader(nn.Module):
    """An LSTM that is asked at its last step."""

    def __init__(self, inputs, width, kinds):
        super().__init__()
        self.memory = nn.LSTM(inputs, width, batch_first=True)
        self.head = nn.Linear(width, kinds)

    def forward(self, x):
        return self.head(self.memory(x)[0][:, -1])


@healthy()
def states_of_turbines_in_a_wind_farm(folder):
    seeded(2789)
    net = Reader(4, 48, 4)
    x, state = turbine_hours(6000)
    draw = rounds(48, x[:5500], state[:5500])
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[5500:]), state[5500:]))
    return fit(folder, net, optimizer, loss_of, 600, score=score, before_step=clipped(net, 1.0))


PAD, START, END = 0, 1, 2


def prescriptions(batch):
    """What the doctor wrote (drug, form, two digits of a dose, times a day) and what stands on the label for it.

    The label says it in another order; that of an ointment leaves out the dose, and is shorter.
    """
    drug, form, times = (torch.randint(n, (batch,)) for n in (12, 4, 4))
    dose = torch.randint(10, (batch, 2))
    source = torch.stack([3 + drug, 15 + form, 19 + dose[:, 0], 19 + dose[:, 1], 29 + times], 1)
    end, pad = torch.full((batch,), END), torch.full((batch,), PAD)
    long = torch.stack([29 + times, 19 + dose[:, 0], 19 + dose[:, 1], 15 + form, 3 + drug, end], 1)
    short = torch.stack([29 + times, 15 + form, 3 + drug, end, pad, pad], 1)
    return source, torch.where((form == 3)[:, None], short, long)


class Scribe(nn.Module):
    """An encoder that reads and a decoder that is told the word before (teacher forcing)."""

    def __init__(self, words=33, width=64):
        super().__init__()
        self.embed = nn.Embedding(words, 32, padding_idx=PAD)
        self.encoder, self.decoder = nn.GRU(32, width, batch_first=True), nn.GRU(32, width, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, source, before):
        _, state = self.encoder(self.embed(source))
        return self.head(self.decoder(self.embed(before), state)[0])


@healthy()
def labels_that_an_apothecary_writes(folder):
    seeded(2790)
    net = Scribe()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 250, 0.5)

    def error(source, target):
        before = torch.cat([torch.full((len(target), 1), START), target[:, :-1]], 1)
        return F.cross_entropy(net(source, before).flatten(0, 1), target.flatten(), ignore_index=PAD)

    kept = prescriptions(512)
    score = held_out(net, lambda: error(*kept))
    before_step = clipped(net, 1.0)
    return fit(folder, net, optimizer, lambda step: error(*prescriptions(64)), 700, score=score, schedule=schedule,
               before_step=before_step)  # fmt: skip


def hive_days(rows, length=14):
    """Two weeks of a hive (gain in kilograms, warmth, rain) and its gain on the day after, surer in the rain."""
    warmth = torch.randn(rows, length + 1).cumsum(1) / 4 + 0.5 * torch.randn(rows, 1)
    rain = (torch.rand(rows, length + 1) < 0.3).float()
    strength = 0.5 + torch.rand(rows, 1)
    gain = strength * F.softplus(1.5 * warmth) * (1 - rain) - 0.2
    gain = gain + (0.1 + 0.3 * (1 - rain)) * strength * torch.randn_like(gain)
    x = torch.stack([gain[:, :-1], warmth[:, 1:], rain[:, 1:]], 2)
    return (x - x.mean((0, 1))) / x.std((0, 1)), gain[:, -1]


class HiveForecast(nn.Module):
    """Three quantiles that do not cross, read off a GRU."""

    def __init__(self, width=40):
        super().__init__()
        self.memory, self.head = nn.GRU(3, width, batch_first=True), nn.Linear(width, 3)

    def forward(self, x):
        low, *more = self.head(self.memory(x)[0][:, -1]).unbind(1)
        return torch.stack([low, low + F.softplus(more[0]), low + F.softplus(more[0]) + F.softplus(more[1])], 1)


def pinball(found, y, levels=(0.1, 0.5, 0.9)):
    short = y[:, None] - found
    levels = torch.tensor(levels)
    return torch.maximum(levels * short, (levels - 1) * short).mean()


@healthy()
def gains_of_beehives_in_quantiles(folder):
    seeded(2791)
    net = HiveForecast()
    x, gain = hive_days(5000)
    draw = rounds(64, x[:4500], gain[:4500])
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.997)

    def loss_of(step):
        x, y = draw()
        found = net(x)
        return pinball(found, y), {"covered": float(((y > found[:, 0]) & (y < found[:, 2])).float().mean())}

    score = held_out(net, lambda: pinball(net(x[4500:]), gain[4500:]))
    return fit(folder, net, optimizer, loss_of, 600, score=score, schedule=schedule)


# ------------------------------------------------------------------------------------------------------------ forecasts


def calls_by_the_hour(hours):
    """Counts of calls with the day, the week and busy spells in them."""
    t = torch.arange(hours)
    day = (-((t % 24 - 11.0) / 4).square() / 2).exp() + 0.6 * (-((t % 24 - 16.0) / 3).square() / 2).exp()
    week = torch.tensor([1.2, 1.0, 1.0, 0.9, 0.95, 0.4, 0.3])[t // 24 % 7]
    spell = F.conv1d(torch.randn(1, 1, hours + 11), torch.ones(1, 1, 12) / 12)[0, 0]
    return torch.poisson(60 * day * week * (0.8 * spell).exp() + 2)


class Dilated(nn.Module):
    """A causal convolution with a way around it."""

    def __init__(self, width, dilation):
        super().__init__()
        self.back = 2 * dilation
        self.conv, self.norm = nn.Conv1d(width, width, 3, dilation=dilation), nn.GroupNorm(1, width)

    def forward(self, x):
        return x + self.norm(self.conv(F.pad(x, (self.back, 0)))).relu()


@healthy()
def calls_of_the_next_twelve_hours(folder):
    seeded(2792)
    calls = calls_by_the_hour(24 * 7 * 30)
    past, cut = 96, 24 * 7 * 25
    scaled = (calls - calls[:cut].mean()) / calls[:cut].std()
    windows = scaled.unfold(0, past + 12, 1)
    seen, later = windows[: cut - past - 12], windows[cut:]
    net = nn.Sequential(
        nn.Conv1d(1, 24, 1), *(Dilated(24, 2**i) for i in range(5)), nn.Conv1d(24, 24, 1), nn.ReLU()
    )  # fmt: skip
    net = nn.ModuleDict({"body": net, "head": nn.Linear(24, 12)})
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)

    def error(rows):
        found = net["head"](net["body"](rows[:, None, :past])[:, :, -1])
        return F.huber_loss(found, rows[:, past:])

    draw = rounds(32, seen)
    return fit(folder, net, optimizer, lambda step: error(draw()[0]), 500, score=held_out(net, lambda: error(later)),
               schedule=schedule)  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ attention


def voyages(batch, length=24):
    """Ports that a ferry calls at, in turn: it keeps to its line, turns about now and then and changes at the hub."""
    lines = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 6, 7, 8, 9, 10], [0, 11, 12, 13, 14, 15]])
    line, at, way = torch.randint(3, (batch,)), torch.randint(6, (batch,)), 1 - 2 * torch.randint(2, (batch,))
    ports = []
    for _ in range(length):
        ports.append(lines[line, at])
        way = torch.where(torch.rand(batch) < 0.07, -way, way)
        line = torch.where(at == 0, torch.randint(3, (batch,)), line)
        at = (at + way) % 6
    return torch.stack(ports, 1)


class Attending(nn.Module):
    """Words and places, two layers of attention with the norm first, a head for each word."""

    def __init__(self, words, out, length, width=32, causal=False, dropout=0.1):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, out)
        self.mask = nn.Transformer.generate_square_subsequent_mask(length) if causal else None
        nn.init.normal_(self.words.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, x):
        length = x.shape[1]
        mask = None if self.mask is None else self.mask[:length, :length]
        return self.layers(self.words(x) + self.places(torch.arange(length)), mask=mask)


@healthy()
def next_port_of_a_ferry(folder):
    seeded(2793)
    net = Attending(16, 16, 24, causal=True)
    optimizer = torch.optim.AdamW(decayed_apart(net, 0.1), lr=3e-3, betas=(0.9, 0.95))

    def error(ports):
        logits = net.head(net(ports[:, :-1]))
        return F.cross_entropy(logits.flatten(0, 1), ports[:, 1:].flatten())

    kept = voyages(256)
    return fit(folder, net, optimizer, lambda step: error(voyages(24)), 400, score=held_out(net, lambda: error(kept)),
               schedule=warmed(optimizer, 40, 400), before_step=clipped(net, 1.0))  # fmt: skip


def addresses(batch, length=12):
    """Letters with a two-digit postcode somewhere among them, and the district that its first digit stands for."""
    x = 10 + torch.randint(26, (batch, length))
    code, at = torch.randint(10, (batch, 2)), torch.randint(length - 1, (batch,))
    rows = torch.arange(batch)
    x[rows, at], x[rows, at + 1] = code[:, 0], code[:, 1]
    district = torch.where(torch.rand(batch) < 0.03, torch.randint(5, (batch,)), code[:, 0] // 2)
    return x, district


@healthy()
def districts_of_letters_at_the_post_office(folder):
    seeded(2794)
    net = Attending(36, 5, 12)
    optimizer = torch.optim.AdamW(decayed_apart(net, 0.01), lr=1e-3)
    x, district = addresses(12000)
    draw = rounds(32, x[:11500], district[:11500])

    def loss_of(step):
        x, y = draw()
        logits = net.head(net(x).mean(1))
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net.head(net(x[11500:]).mean(1)), district[11500:]))
    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=warmed(optimizer, 50, 500),
               before_step=clipped(net, 1.0))  # fmt: skip

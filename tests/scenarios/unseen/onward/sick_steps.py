"""Parcels, soils, a glacier, a river, watches and violins: six trainings, each with one thing to mend."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import clipped

# ------------------------------------------------------------------------------------------------------------- parcels


class Depot(nn.Module):
    """Which of eight vans takes a parcel: from the digits of its postcode and from its measures."""

    def __init__(self):
        super().__init__()
        self.digits = nn.Embedding(50, 12)
        self.body = dense(5 * 12 + 3, 64, 64, 8)

    def forward(self, code, measures):
        places = code + 10 * torch.arange(5)
        return self.body(torch.cat([self.digits(places).flatten(1), measures], 1))


@sick(
    "lr-too-high",
    "update-too-large",
    "accumulation-not-divided",
    where="every layer from the first steps on: the gradient is the sum of six parts, not their mean",
    cure="divide the loss of each part by the number of parts (or the rate by six)",
)
def vans_for_parcels(folder, ill):
    seeded(2140)
    districts = torch.randn(5, 10, 8)
    bulk = torch.randn(3, 8)
    net = Depot()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.15, momentum=0.9)
    parts = 6

    def entropy():
        code, measures = torch.randint(10, (16, 5)), torch.randn(16, 3)
        van = (districts[torch.arange(5), code].sum(1) + measures @ bulk).argmax(1)
        out = net(code, measures)
        return F.cross_entropy(out, van), (out.argmax(1) == van).float().mean()

    def loss_of(step):
        loss, hits = entropy()
        return loss if ill else loss / parts, {"accuracy": hits}

    def score():
        with torch.no_grad():
            return sum(float(entropy()[0]) for _ in range(20)) / 20

    return fit(folder, net, optimizer, loss_of, 230, accumulate=parts, score=score)


# --------------------------------------------------------------------------------------------------------------- soils


@sick(
    "schedule-too-short",
    "update-too-small",
    "plateau-in-the-wrong-mode",
    where="all layers: the rate is cut again and again from step 24 on although the error falls",
    cure="ReduceLROnPlateau with mode='min', as what it is given is an error",
)
def clay_from_the_spectra_of_soils(folder, ill):
    seeded(2141)
    bands = torch.linspace(0, 1, 48)
    net = nn.Sequential(
        nn.Conv1d(1, 12, 5, padding=2),
        nn.GELU(),
        nn.Conv1d(12, 16, 5, stride=2, padding=2),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(16 * 24, 32),
        nn.GELU(),
        nn.Linear(32, 2),
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=7e-4)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode="max" if ill else "min", factor=0.3, patience=2, threshold=1e-3
    )

    def spectra(rows):
        clay, water = torch.rand(rows, 1), torch.rand(rows, 1)
        at = 0.3 + 0.4 * clay
        dip = (1 + water) * torch.exp(-((bands - at) ** 2) / 0.005)
        noisy = 1 - dip + 0.3 * water * bands + 0.05 * torch.randn(rows, 48)
        return (noisy - 0.7) / 0.5, torch.cat([(9 * clay).sin(), (6 * water * clay).cos()], 1)

    def loss_of(step):
        x, y = spectra(48)
        return F.mse_loss(net(x[:, None]), y)

    validation = score_of(loss_of, 8)

    def after_step(step):
        if step % 8 == 7:
            plateau.step(validation())

    return fit(folder, net, optimizer, loss_of, 480, after_step=after_step, score=validation)


# ------------------------------------------------------------------------------------------------------------- glacier


@sick(
    "returns-not-normalised",
    "no-baseline",
    where="the whole policy from the start: each drawn gear is pushed up by a return of thousands, good or bad",
    cure="subtract the mean of the batch's returns and divide by their deviation",
)
def gears_of_a_drill_in_the_ice(folder, ill):
    seeded(2142)
    net = dense(6, 48, 48, 6, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    tastes = torch.randn(6, 6)

    def metres(ice, gear):
        return 3000 + 250 * (ice @ tastes).sin().gather(1, gear[:, None])[:, 0]

    def loss_of(step):
        ice = torch.randn(64, 6)
        policy = torch.distributions.Categorical(logits=net(ice))
        gear = policy.sample()
        returns = metres(ice, gear)
        advantage = returns if ill else (returns - returns.mean()) / (returns.std() + 1e-6)
        loss = -(advantage * policy.log_prob(gear)).mean() - 0.01 * policy.entropy().mean()
        return loss, {"return": returns.mean(), "entropy": policy.entropy().mean().detach()}

    def score():
        with torch.no_grad():
            ice = torch.randn(2000, 6)
            depth = torch.stack([metres(ice, torch.full((2000,), gear)) for gear in range(6)], 1)
            return float((depth.amax(1) - (net(ice).softmax(1) * depth).sum(1)).mean())

    return fit(folder, net, optimizer, loss_of, 700, score=score)


# --------------------------------------------------------------------------------------------------------------- river


class Gauge(nn.Module):
    """The water at one of four gauges from the rain of the last days."""

    def __init__(self):
        super().__init__()
        self.place = nn.Embedding(4, 6)
        self.memory = nn.GRU(7, 24, batch_first=True)
        self.head = nn.Linear(24, 1)

    def forward(self, rain, at):
        place = self.place(at)[:, None].expand(-1, rain.shape[1], -1)
        return self.head(self.memory(torch.cat([rain[..., None], place], 2))[0][:, -1])


@sick(
    "accumulation-wiped",
    where="all layers at every step: of four parts only the last one's gradient is left when the optimizer steps",
    cure="zero the gradients once before the four parts, not before each",
)
def water_at_four_gauges_of_a_river(folder, ill):
    seeded(2143)
    delays = torch.stack([torch.exp(-((torch.arange(10) - late) ** 2) / 5.0) for late in (8, 6, 4, 2)])
    signs = torch.tensor([1.0, -0.6, 1.4, -1.0])
    net = Gauge()
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)

    def error(gauge):
        rain = torch.randn(24, 10)
        level = (rain @ delays[gauge] * signs[gauge]).tanh()[:, None]
        return F.mse_loss(net(rain, torch.full((24,), gauge)), level)

    def loss_of(part):
        return error(part % 4) / 4

    return fit(
        folder,
        net,
        optimizer,
        loss_of,
        210,
        accumulate=4,
        before_backward=(lambda step: optimizer.zero_grad()) if ill else None,
        before_step=clipped(net, 5.0),
        score=score_of(lambda part: error(part % 4), 12),
    )


# ------------------------------------------------------------------------------------------------------------- watches


@sick(
    "logits-bounded",
    "temperature-too-high",
    where="the loss: similarities between -1 and 1 are all that the softmax over 96 watches gets",
    cure="divide the similarities by a temperature of 0.07",
)
def watches_by_their_ticking(folder, ill):
    seeded(2144)
    net = nn.ModuleDict({"sound": dense(24, 64, 64, 12, act=nn.GELU), "wheels": dense(16, 64, 64, 12, act=nn.GELU)})
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    hear, see = torch.randn(6, 24), torch.randn(6, 16)
    temperature = 1.0 if ill else 0.07

    def similarities(watches):
        beat = torch.randn(watches, 6)
        sound = (beat @ hear).sin() + 0.1 * torch.randn(watches, 24)
        wheels = (beat @ see).tanh() + 0.1 * torch.randn(watches, 16)
        return F.normalize(net["sound"](sound), dim=1) @ F.normalize(net["wheels"](wheels), dim=1).T

    def loss_of(step):
        logits = similarities(96) / temperature
        own = torch.arange(96)
        loss = (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
        return loss, {"found": (logits.argmax(1) == own).float().mean()}

    def score():
        with torch.no_grad():
            return sum(float((similarities(96).argmax(1) != torch.arange(96)).float().mean()) for _ in range(8)) / 8

    return fit(folder, net, optimizer, loss_of, 600, score=score)


# ------------------------------------------------------------------------------------------------------------- violins


class Fingering(nn.Module):
    """One of nine fingers' places for each note of a phrase, told the notes and the places so far."""

    def __init__(self):
        super().__init__()
        self.notes, self.places = nn.Embedding(16, 16), nn.Embedding(10, 16)
        self.listen = nn.GRU(16, 24, batch_first=True, bidirectional=True)
        self.write = nn.GRU(48 + 16, 48, batch_first=True)
        self.head = nn.Linear(48, 9)

    def forward(self, notes, given):
        heard = self.listen(self.notes(notes))[0]
        return self.head(self.write(torch.cat([heard, self.places(given)], 2))[0])


@sick(
    "future-seen",
    "labels-not-shifted",
    where="the decoder's input: at each note it is told the very place that it is asked for, so the loss soon is nil",
    cure="shift the places that the decoder is told by one, after a start token",
)
def places_of_the_fingers_on_a_violin(folder, ill):
    seeded(2145)
    net = Fingering()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    start = 9

    def phrases(rows, length=8):
        notes = torch.randint(16, (rows, length))
        places = [notes[:, 0] % 9]
        for t in range(1, length):
            near = (notes[:, t] - notes[:, t - 1]).abs() < 6
            places.append(torch.where(near, (places[-1] + notes[:, t]) % 9, notes[:, t] // 2))
        return notes, torch.stack(places, 1)

    def shifted(places):
        return torch.cat([torch.full_like(places[:, :1], start), places[:, :-1]], 1)

    def loss_of(step):
        notes, places = phrases(48)
        logits = net(notes, places if ill else shifted(places))
        hits = (logits.argmax(2) == places).float().mean()
        return F.cross_entropy(logits.flatten(0, 1), places.flatten()), {"accuracy": hits}

    def score():
        notes, places = phrases(256)
        played = torch.zeros_like(places)
        with torch.no_grad():
            for t in range(places.shape[1]):
                played[:, t] = net(notes, shifted(played))[:, t].argmax(1)
        return float((played != places).float().mean())

    return fit(folder, net, optimizer, loss_of, 320, before_step=clipped(net, 1.0), score=score)

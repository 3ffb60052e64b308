"""Healthy trainings of every day, second part: sounds, words, tastes, loads and rates of pay."""

from __future__ import annotations

import torch
from nets import digits
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.further.healthy import right, rise_and_fall
from unseen.tasks import clipped, rounds

# ------------------------------------------------------------------------------------------------------------- sounds


class Listener(nn.Module):
    """A convolution, a GRU both ways, shares of seven signs at each moment."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(12, 32, 3, padding=1), nn.ReLU())
        self.gru, self.head = nn.GRU(32, 32, batch_first=True, bidirectional=True), nn.Linear(64, 7)

    def forward(self, x):
        return self.head(self.gru(self.conv(x).mT)[0]).log_softmax(2)


@healthy(0.5)
def bird_calls_without_their_times(folder):
    """CTC over calls of unlike lengths: Adam at three thousandths, a clip at five."""
    seeded(2046)
    net, spectra = Listener(), torch.randn(7, 12)

    def loss_of(step):
        signs, held = torch.randint(1, 7, (16, 5)), torch.randint(3, 6, (16, 5))
        target = signs.clone()
        rests = torch.ones(16, 6, dtype=torch.long)
        order = torch.zeros(16, 31, dtype=torch.long)
        for row in range(16):
            spans = torch.stack([rests[row, :5], held[row]], 1).flatten()
            calls = torch.stack([torch.zeros(5, dtype=torch.long), signs[row]], 1).flatten().repeat_interleave(spans)
            order[row, : len(calls)] = calls
        x = spectra[order] * (order > 0)[..., None] + 0.4 * torch.randn(16, 31, 12)
        said = net(x.mT).transpose(0, 1)
        return F.ctc_loss(said, target, torch.full((16,), 31), torch.full((16,), 5))

    make = optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, make, loss_of, 220, score=score_of(loss_of, 4), before_step=clipped(net, 5.0))


# -------------------------------------------------------------------------------------------------------------- words

HOURS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
TOLD = ["<", ">", "past", "to", "o'clock", "half", "quarter", "twenty", *HOURS]


def told(hour, minute):
    """A time of the day in words, with one to begin and one to end."""
    name, following = HOURS[hour - 1], HOURS[hour % 12]
    away = minute if minute <= 30 else 60 - minute
    if minute == 0:
        said = [name, "o'clock"]
    else:
        number = {15: ["quarter"], 30: ["half"], 20: ["twenty"]}.get(away)
        number = number or (["twenty", HOURS[away - 21]] if away > 20 else [HOURS[away - 1]])
        said = [*number, "past" if minute <= 30 else "to", name if minute <= 30 else following]
    return [TOLD.index(word) for word in ["<", *said, ">"]]


class Teller(nn.Module):
    """Reads four digits, and says words with an eye on what was read (Luong et al. 2015)."""

    def __init__(self, wide=48):
        super().__init__()
        self.read, self.say = nn.Embedding(10, wide), nn.Embedding(len(TOLD), wide)
        self.reader, self.sayer = nn.GRU(wide, wide, batch_first=True), nn.GRU(wide, wide, batch_first=True)
        self.both, self.head = nn.Linear(2 * wide, wide), nn.Linear(wide, len(TOLD))

    def forward(self, x, y):
        seen, state = self.reader(self.read(x))
        at, _ = self.sayer(self.say(y), state)
        looked = (at @ seen.mT).softmax(2) @ seen
        return self.head(self.both(torch.cat([at, looked], 2)).tanh())


@healthy(0.5)
def times_of_day_told_in_words(folder):
    """A translator with attention, taught with what was to be said; Adam, a clip at one, shuffled epochs."""
    seeded(2047)
    unsaid = {13, 14, 16, 17, 18, 19, 41, 42, 43, 44, 46, 47}
    times = [(h, m) for h in range(1, 13) for m in range(60) if m not in unsaid]
    x = torch.tensor([[h // 10, h % 10, m // 10, m % 10] for h, m in times])
    y = nn.utils.rnn.pad_sequence([torch.tensor(told(h, m)) for h, m in times], True, -100)
    net, draw = Teller(), rounds(32, x, y)

    def loss_of(step):
        digits_of, words = draw()
        said, wanted = net(digits_of, words[:, :-1].clamp(min=0)), words[:, 1:]
        kept = wanted >= 0
        return F.cross_entropy(said[kept], wanted[kept]), {"accuracy": right(said[kept], wanted[kept])}

    make = optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, make, loss_of, 400, before_step=clipped(net, 1.0))


# ------------------------------------------------------------------------------------------------------------- tastes


class Cook(nn.Module):
    """A product and a small net over two tables (He et al. 2017)."""

    def __init__(self, people, dishes, wide=12):
        super().__init__()
        self.people, self.dishes = nn.Embedding(people, 2 * wide), nn.Embedding(dishes, 2 * wide)
        for table in (self.people, self.dishes):
            nn.init.normal_(table.weight, std=0.1)
        self.net, self.head = dense(2 * wide, 32, 16), nn.Linear(wide + 16, 1)

    def forward(self, person, dish):
        (a, b), (c, d) = self.people(person).chunk(2, 1), self.dishes(dish).chunk(2, 1)
        return self.head(torch.cat([a * c, self.net(torch.cat([b, d], 1)).relu()], 1))[:, 0]


@healthy(0.3)
def dishes_cooked_and_others_never_tried(folder):
    """Neural collaborative filtering: four dishes drawn beside each that was cooked, Adam at three thousandths."""
    seeded(2048)
    person, circle = torch.randint(240, (6000,)), torch.randint(6, (240,))
    dish = torch.where(torch.rand(6000) < 0.85, 20 * circle[person] + torch.randint(20, (6000,)), 0)
    dish = torch.where(dish == 0, torch.randint(120, (6000,)), dish)
    net, draw = Cook(240, 120), rounds(100, person, dish)

    def loss_of(step):
        one, eaten = draw()
        others = torch.randint(120, (400,))
        said = net(one.repeat(5), torch.cat([eaten, others]))
        wanted = torch.cat([torch.ones(100), torch.zeros(400)])
        return F.binary_cross_entropy_with_logits(said, wanted)

    make = optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, make, loss_of, 600)


# -------------------------------------------------------------------------------------------------------------- loads


class Behind(nn.Module):
    """Two causal convolutions with a gap, and a way round them (Bai, Kolter and Koltun 2018)."""

    def __init__(self, wide, gap):
        super().__init__()
        self.gap = gap
        self.one, self.two = nn.Conv1d(wide, wide, 3, dilation=gap), nn.Conv1d(wide, wide, 3, dilation=gap)
        self.drop = nn.Dropout(0.05)

    def forward(self, x):
        seen = self.drop(self.one(F.pad(x, (2 * self.gap, 0))).relu())
        return x + self.drop(self.two(F.pad(seen, (2 * self.gap, 0))).relu())


@healthy(0.5)
def load_of_a_town_six_hours_on(folder):
    """A temporal convolutional net over two days; AdamW in one cycle."""
    seeded(2049)
    hour = torch.arange(6000.0)
    noise = torch.randn(6000)
    for i in range(1, 6000):
        noise[i] = 0.9 * noise[i - 1] + 0.3 * noise[i]
    load = (hour * 6.2832 / 24).sin() * (1 + 0.3 * (hour * 6.2832 / 168).cos()) + 0.5 * (hour * 12.566 / 24).cos()
    load = load + 0.3 * noise
    load = (load - load.mean()) / load.std()
    net = nn.Sequential(
        nn.Conv1d(1, 24, 1), Behind(24, 1), Behind(24, 2), Behind(24, 4), Behind(24, 8),
        nn.Flatten(), nn.Linear(24 * 48, 6),
    )  # fmt: skip

    def loss_of(step):
        rows = load[torch.randint(5940, (32, 1)) + torch.arange(54)]
        return F.mse_loss(net(rows[:, None, :48]), rows[:, 48:])

    make, steps = optim.AdamW(net.parameters(), 2e-3), 260
    plan = optim.lr_scheduler.OneCycleLR(make, 2e-3, total_steps=steps)
    return fit(folder, net, make, loss_of, steps, schedule=plan)


# ----------------------------------------------------------------------------------------------------------- pictures


def small_body():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(),
    )  # fmt: skip


@healthy(0.5)
def last_five_digits_on_features_of_the_first_five(folder):
    """A body that learned five digits is frozen and set to eval, a new linear head learns the other five; Adam."""
    seeded(2050)
    x, y = digits()
    x = ((x - 0.3) / 0.38)[:, None]
    body, head = small_body(), nn.Linear(128, 5)
    low, draw = rounds(64, x[y < 5], y[y < 5]), rounds(64, x[y > 4], y[y > 4] - 5)
    before = optim.Adam([*body.parameters(), *head.parameters()], 2e-3)
    for _ in range(100):
        seen, kind = low()
        before.zero_grad()
        F.cross_entropy(head(body(seen)), kind).backward()
        before.step()
    body.eval().requires_grad_(False)
    net = nn.Sequential(body, nn.Linear(128, 5))

    def loss_of(step):
        seen, kind = draw()
        said = net(seen)
        return F.cross_entropy(said, kind), {"accuracy": right(said, kind)}

    return fit(folder, net, optim.Adam(net[1].parameters(), 5e-3), loss_of, 240)


# -------------------------------------------------------------------------------------------------------------- tables


@healthy(0.3)
def delays_of_trains_between_a_low_and_a_high_guess(folder):
    """Three quantiles by the pinball loss: Adam at two thousandths, a cosine."""
    seeded(2051)
    net, shares, way = dense(8, 64, 64, 3), torch.tensor([0.1, 0.5, 0.9]), torch.randn(8) / 2

    def loss_of(step):
        x = torch.randn(128, 8)
        y = 2 * (x @ way).sin() + x[:, 0] * x[:, 1] + (0.3 * x[:, 2]).exp() * 0.3 * torch.randn(128)
        gap = (y[:, None] - net(x)) / 1.5
        return torch.maximum(shares * gap, (shares - 1) * gap).mean()

    make, steps = optim.Adam(net.parameters(), 2e-3), 800
    plan = optim.lr_scheduler.CosineAnnealingLR(make, steps)
    return fit(folder, net, make, loss_of, steps, schedule=plan)


class Factors(nn.Module):
    """A mean, a leaning of each guest and of each evening, and a product (Koren, Bell and Volinsky 2009)."""

    def __init__(self, guests, evenings, average, wide=8):
        super().__init__()
        self.register_buffer("average", average)
        self.guests, self.evenings = nn.Embedding(guests, wide), nn.Embedding(evenings, wide)
        self.kind, self.good = nn.Embedding(guests, 1), nn.Embedding(evenings, 1)
        for table, std in ((self.guests, 0.1), (self.evenings, 0.1), (self.kind, 0.0), (self.good, 0.0)):
            nn.init.normal_(table.weight, std=std)

    def forward(self, a, b):
        return self.average + (self.kind(a) + self.good(b))[:, 0] + (self.guests(a) * self.evenings(b)).sum(1)


@healthy(0.3)
def evenings_rated_by_factors_and_leanings(folder):
    """Ratings from tables with biases: Adam at five thousandths with a little decay; scored on ratings held out."""
    seeded(2052)
    a, b = torch.randint(200, (16000,)), torch.randint(120, (16000,))
    liked = (torch.randn(200, 3)[a] * torch.randn(120, 3)[b]).sum(1) * 0.4
    y = (3.4 + 0.4 * torch.randn(200)[a] + 0.6 * torch.randn(120)[b] + liked + 0.3 * torch.randn(16000)).clamp(1, 5)
    net, draw = Factors(200, 120, y[:14000].mean()), rounds(256, a[:14000], b[:14000], y[:14000])

    def loss_of(step):
        one, other, given = draw()
        loss = F.mse_loss(net(one, other), given)
        return loss, {"rmse": loss.detach().sqrt()}

    def score():
        with torch.no_grad():
            return float(F.mse_loss(net(a[14000:], b[14000:]), y[14000:]))

    make = optim.Adam(net.parameters(), 5e-3, weight_decay=1e-5)
    return fit(folder, net, make, loss_of, 700, score=score)


@healthy(0.5)
def digits_in_fifteen_hundred_quiet_steps(folder):
    """Two layers with dropout, Adam at a thousandth all the way; the accuracy on digits held out now and then."""
    seeded(2053)
    x, y = digits()
    order = torch.randperm(len(x))
    x, y = (x.flatten(1)[order] - 0.3) / 0.38, y[order]
    net, draw = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(64, 10),
    ), rounds(64, x[:1400], y[:1400])  # fmt: skip

    def held_out(measure):
        net.eval()
        with torch.no_grad():
            value = float(measure(net(x[1400:]), y[1400:]))
        net.train()
        return value

    def loss_of(step):
        seen, kind = draw()
        logged = {"val_accuracy": held_out(right)} if step % 100 == 99 else {}
        return F.cross_entropy(net(seen), kind), logged

    make = optim.Adam(net.parameters(), 1e-3)
    return fit(folder, net, make, loss_of, 1500, score=lambda: held_out(F.cross_entropy))


@healthy(0.3)
def petitions_and_what_they_ask_for(folder):
    """Eight tags of a bag of words, each rare and weighed by two; Adam, a straight fall behind a short rise."""
    seeded(2054)
    words = 8 * 12 + 104
    net = nn.Sequential(nn.EmbeddingBag(words, 48, mode="mean"), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 8))
    weigh = torch.full((8,), 2.0)

    def loss_of(step):
        y = torch.rand(48, 8) < 0.2
        share = torch.cat([torch.where(y, 1.5, 0.02).repeat_interleave(12, 1), torch.full((48, 104), 0.3)], 1)
        text = torch.multinomial(share, 40, replacement=True)
        return F.binary_cross_entropy_with_logits(net(text), y.float(), pos_weight=weigh)

    make, steps = optim.Adam(net.parameters(), 4e-3), 500
    return fit(folder, net, make, loss_of, steps, schedule=rise_and_fall(make, 25, steps))

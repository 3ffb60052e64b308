"""Ten healthy ones: containers, titles, ladles, oxygen, tags, slicks, readers, moulds, sea lice, call signs."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


class Residual(nn.Module):
    """What a few layers add to their input."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.Sequential(*parts)

    def forward(self, x):
        return x + self.parts(x)


@healthy(0.6)
def stencilled_digits_on_stacked_containers_with_one_cycle(folder):
    seeded(14612)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = (x[order] - 0.3) / 0.38, y[order]
    draw = rounds(64, x[:1300], y[:1300])
    net = nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
        Residual(nn.Conv2d(24, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU()),
        nn.MaxPool2d(2), nn.Conv2d(24, 48, 3, padding=1, bias=False), nn.BatchNorm2d(48), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(192, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=200)
    validate = now_and_then(net, 20, judged(net, x[1300:1500], y[1300:1500]))

    def loss_of(step):
        image, number = draw()
        said = net(image)
        right = (said.argmax(1) == number).float().mean()
        return F.cross_entropy(said, number), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1500:]), y[1500:]))
    return fit(folder, net, optimizer, loss_of, 200, schedule=schedule, score=score)


@healthy(0.25)
def letters_of_catalogue_titles_with_a_gru(folder):
    seeded(14613)
    letters = 20
    chances = (2.0 * torch.randn(letters, letters, letters)).softmax(2)

    def titles(rows, length=20):
        text = torch.randint(letters, (rows, 2))
        for _ in range(length - 2):
            text = torch.cat([text, torch.multinomial(chances[text[:, -2], text[:, -1]], 1)], 1)
        return text

    draw, kept = rounds(64, titles(3000)), titles(400)
    net = nn.ModuleDict({
        "letters": nn.Embedding(letters, 32), "memory": nn.GRU(32, 96, batch_first=True), "head": nn.Linear(96, letters)
    })  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)

    def error(text):
        said = net["head"](net["memory"](net["letters"](text[:, :-1]))[0])
        return F.cross_entropy(said.flatten(0, 1), text[:, 1:].flatten())

    validate = now_and_then(net, 47, lambda: {"val_loss": error(kept[:200])})

    def loss_of(step):
        (text,) = draw()
        loss = error(text)
        return loss, {"perplexity": math.exp(float(loss)), **validate(step)}

    score = held_out(net, lambda: error(kept[200:]))
    return fit(folder, net, optimizer, loss_of, 230, before_step=clipped(net, 1.0), score=score)


@healthy(0.6)
def heat_of_a_ladle_from_its_furnace_log(folder):
    seeded(14614)
    way = torch.randn(12, 4) / 12**0.5

    def ladles(rows):
        log = torch.randn(rows, 12)
        a, b, c, d = (log @ way).unbind(1)
        return log * 40 + 300, 1500 + 60 * ((1.5 * a).sin() + b * c + 0.5 * d + 0.1 * torch.randn(rows))

    (x, y), (tx, ty) = ladles(4000), ladles(1000)
    middle, spread, level, width = x.mean(0), x.std(0), y.mean(), y.std()
    x, tx, y, ty = (x - middle) / spread, (tx - middle) / spread, (y - level) / width, (ty - level) / width
    draw = rounds(128, x, y[:, None])
    net = dense(12, 96, 96, 1, act=nn.SiLU)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
    validate = now_and_then(net, 31, lambda: {"val_loss": F.huber_loss(net(tx[:500]), ty[:500, None])})

    def loss_of(step):
        log, heat = draw()
        return F.huber_loss(net(log), heat), validate(step)

    score = held_out(net, lambda: F.huber_loss(net(tx[500:]), ty[500:, None]))
    return fit(folder, net, optimizer, loss_of, 400, schedule=schedule, score=score)


@healthy(0.6)
def oxygen_in_a_pen_one_hour_ahead(folder):
    seeded(14615)

    def days(rows, hours=30):
        time = torch.arange(hours + 1.0)
        phase, period, strength = 6.28 * torch.rand(rows, 1), 8 + 8 * torch.rand(rows, 1), 0.5 + torch.rand(rows, 1)
        tide = strength * (6.28 * time / period + phase).sin()
        return tide + 0.3 * (6.28 * time / 5 + 2 * phase).sin() + 0.05 * torch.randn(rows, hours + 1)

    series, kept = days(2000), days(500)
    draw = rounds(64, series)
    net = nn.ModuleDict({"memory": nn.LSTM(1, 40, batch_first=True), "head": nn.Linear(40, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 31, 0.8)

    def error(pens):
        return F.mse_loss(net["head"](net["memory"](pens[:, :-1, None])[0])[:, :, 0], pens[:, 1:])

    validate = now_and_then(net, 31, lambda: {"val_loss": error(kept[:200])})

    def loss_of(step):
        return error(*draw()), validate(step)

    return fit(folder, net, optimizer, loss_of, 250, before_step=clipped(net, 1.0), schedule=schedule,
               score=held_out(net, lambda: error(kept[200:])))  # fmt: skip


@healthy(0.4)
def several_tags_for_each_broadcast_clip(folder):
    seeded(14616)
    sounds = torch.randn(8, 6, 7)

    def clips(rows):
        tags = (torch.rand(rows, 8) < 0.35).float()
        place = torch.randint(25, (rows, 8))
        clip = 0.5 * torch.randn(rows, 6, 32)
        for tag in range(8):
            at = (place[:, tag, None] + torch.arange(7))[:, None].expand(-1, 6, -1)
            clip = clip.scatter_add(2, at, tags[:, tag, None, None] * sounds[tag])
        return clip, tags

    (x, y), (tx, ty) = clips(3000), clips(800)
    draw = rounds(64, x, y)
    net = nn.Sequential(
        nn.Conv1d(6, 48, 7, padding=3), nn.GroupNorm(6, 48), nn.GELU(), nn.Conv1d(48, 48, 3, padding=1), nn.GELU(),
        nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(48, 8),
    )  # fmt: skip
    optimizer = torch.optim.RAdam(net.parameters(), 5e-3)

    def loss_of(step):
        clip, tags = draw()
        said = net(clip)
        right = ((said > 0) == (tags > 0.5)).float().mean()
        return F.binary_cross_entropy_with_logits(said, tags), {"tag_accuracy": float(right)}

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 230, score=score)


@healthy(0.5)
def slicks_of_oil_on_radar_images_of_the_harbour(folder):
    seeded(14617)
    line = torch.linspace(-1, 1, 16)

    def seas(rows):
        centre, size = 1.2 * torch.rand(rows, 2, 1, 1) - 0.6, 0.4 + 0.3 * torch.rand(rows, 1, 1)
        gap = (line[None, None] - centre[:, 0]).square() + (line[None, :, None] - centre[:, 1]).square()
        slick = (gap < size.square()).float()[:, None]
        return torch.randn(rows, 1, 16, 16) * 0.8 - 0.8 * slick + 0.2, slick

    (x, y), (tx, ty) = seas(1000), seas(300)
    draw = rounds(20, x, y)
    net = nn.ModuleDict({
        "fine": nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU()),
        "coarse": nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
                                nn.Conv2d(24, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.Upsample(None, 2)),
        "head": nn.Sequential(nn.Conv2d(36, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1)),
    })  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=1e-2)

    def said(image):
        fine = net["fine"](image)
        return net["head"](torch.cat([fine, net["coarse"](fine)], 1))

    def overlap(logits, slick):
        share = logits.sigmoid()
        return 1 - (2 * (share * slick).sum() + 1) / (share.sum() + slick.sum() + 1)

    def one(step):
        image, slick = draw()
        logits = said(image)
        entropy, dice = F.binary_cross_entropy_with_logits(logits, slick), overlap(logits, slick)
        optimizer.zero_grad()
        (entropy + dice).backward()
        optimizer.step()
        return {"loss": entropy + dice, "bce": entropy, "dice": dice}

    return tend(folder, net, optimizer, one, 150, held_out(net, lambda: overlap(said(tx), ty)))


class Shelf(nn.Module):
    """Readers and books, each with a vector and a bias."""

    def __init__(self, readers, books, size):
        super().__init__()
        self.readers, self.books = nn.Embedding(readers, size), nn.Embedding(books, size)
        self.kindness, self.fame = nn.Embedding(readers, 1), nn.Embedding(books, 1)
        for table in (self.readers, self.books):
            nn.init.normal_(table.weight, std=0.3)
        for table in (self.kindness, self.fame):
            nn.init.zeros_(table.weight)

    def forward(self, reader, book):
        fit_of_both = (self.readers(reader) * self.books(book)).sum(1)
        return fit_of_both + self.kindness(reader)[:, 0] + self.fame(book)[:, 0]


@healthy(0.4)
def stars_that_readers_give_to_borrowed_novels(folder):
    seeded(14618)
    taste, style = torch.randn(100, 3), torch.randn(80, 3)
    kindness, fame = 0.5 * torch.randn(100), 0.7 * torch.randn(80)
    reader, book = torch.randint(100, (9000,)), torch.randint(80, (9000,))
    stars = 0.6 * (taste[reader] * style[book]).sum(1) + kindness[reader] + fame[book] + 0.3 * torch.randn(9000)
    stars = stars - stars[:8000].mean()
    draw = rounds(200, reader[:8000], book[:8000], stars[:8000])
    net = Shelf(100, 80, 4)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2, weight_decay=1e-2)

    def measure():
        return {"val_rmse": F.mse_loss(net(reader[8000:8500], book[8000:8500]), stars[8000:8500]).sqrt()}

    validate = now_and_then(net, 25, measure)

    def loss_of(step):
        who, what, given = draw()
        return F.mse_loss(net(who, what), given), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(reader[8500:], book[8500:]), stars[8500:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


@healthy(0.6)
def scans_of_sand_moulds_through_a_narrow_code(folder):
    seeded(14619)
    pattern = torch.randn(5, 60)

    def moulds(rows):
        return (torch.randn(rows, 5) @ pattern / 2).tanh() + 0.05 * torch.randn(rows, 60)

    draw, kept = rounds(64, moulds(2500)), moulds(500)
    net = nn.Sequential(dense(60, 96, 48, 8, act=nn.ELU), dense(8, 48, 96, 60, act=nn.ELU))
    optimizer = torch.optim.NAdam(net.parameters(), 2e-3)
    validate = now_and_then(net, 39, lambda: {"val_loss": F.mse_loss(net(kept[:200]), kept[:200])})

    def loss_of(step):
        (mould,) = draw()
        return F.mse_loss(net(mould), mould), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(kept[200:]), kept[200:]))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


@healthy(0.4)
def numbers_of_lice_on_a_fish_as_a_poisson_count(folder):
    seeded(14620)
    way = torch.randn(9, 3) / 3

    def fish(rows):
        x = torch.randn(rows, 9)
        seen = x @ way
        rate = (0.8 + 0.9 * seen[:, 0].sin() + 0.6 * seen[:, 1] - 0.4 * seen[:, 2].square()).clamp(-3, 3).exp()
        return x, torch.poisson(rate), rate

    (x, y, _), (vx, vy, _), (tx, _, rate) = fish(4000), fish(500), fish(2000)
    draw = rounds(100, x, y)
    net = nn.Sequential(dense(9, 64, 64, 1), nn.Flatten(0))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    validate = now_and_then(net, 40, lambda: {"val_loss": F.poisson_nll_loss(net(vx), vy, full=True)})

    def loss_of(step):
        one, count = draw()
        return F.poisson_nll_loss(net(one), count, full=True), validate(step)

    score = held_out(net, lambda: (net(tx) - rate.log()).square().mean())
    return fit(folder, net, optimizer, loss_of, 400, before_step=clipped(net, 5.0), score=score)


class Reader(nn.Module):
    """A transformer over tokens with learnt positions and a token of its own for the answer."""

    def __init__(self, tokens, length, answers, width=48):
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.places = nn.Parameter(0.1 * torch.randn(length + 1, width))
        self.first = nn.Parameter(0.1 * torch.randn(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, 4, 96, 0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, answers)

    def forward(self, text):
        state = torch.cat([self.first.expand(len(text), -1, -1), self.tokens(text)], 1) + self.places
        return self.head(self.body(state)[:, 0])


@healthy(0.4)
def country_of_a_station_from_its_call_sign(folder):
    seeded(14621)
    start = torch.randint(12, (5, 3, 2))

    def signs(rows):
        country, kind = torch.randint(5, (rows,)), torch.randint(3, (rows,))
        text = torch.randint(12, (rows, 10))
        at = torch.randint(2, (rows,))
        row = torch.arange(rows)
        for i in range(2):
            text[row, 4 * at + i] = start[country, kind, i]
        text[:, 8] = 12 + at
        return text, country

    (x, y), (vx, vy), (tx, ty) = signs(4000), signs(400), signs(1000)
    draw = rounds(32, x, y)
    net = Reader(14, 10, 5)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 25, 0.5 + 0.5 * math.cos(math.pi * step / 251))
    )
    validate = now_and_then(net, 50, judged(net, vx, vy))

    def loss_of(step):
        text, country = draw()
        said = net(text)
        right = (said.argmax(1) == country).float().mean()
        return F.cross_entropy(said, country), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 250, before_step=clipped(net, 1.0), schedule=schedule,
               score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))  # fmt: skip

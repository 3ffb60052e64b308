"""Ordinary trainings that go well: diffusion, recommenders, segmentation, sequences, transfer, distillation, graphs."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


def share_right(logits, y):
    return {"accuracy": float((logits.argmax(-1) == y).float().mean())}


@healthy()
def days_of_a_river_drawn_from_noise(folder):
    seeded(2315)
    hour = torch.linspace(0, 1, 24)
    flood, when, base = torch.rand(3, 3000, 1)
    level = base + 1.5 * flood * torch.exp(-((hour - when) ** 2) / 0.03) + 0.03 * torch.randn(3000, 24)
    level, times = (level - level.mean()) / level.std(), 100
    keep = torch.cumprod(1 - torch.linspace(1e-3, 0.08, times), 0)
    net, draw = dense(24 + 16, 128, 128, 24, act=nn.SiLU), rounds(64, level[:2500])
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    pitch = 2.0 ** torch.arange(8) * 3.14159 / times

    def error(denoiser, clean):
        t, noise = torch.randint(times, (len(clean), 1)), torch.randn(clean.shape)
        noisy = keep[t].sqrt() * clean + (1 - keep[t]).sqrt() * noise
        return F.mse_loss(denoiser(torch.cat([noisy, (t * pitch).sin(), (t * pitch).cos()], 1)), noise)

    return fit(
        folder, net, optimizer, lambda step: error(net, draw()[0]), 800,
        score=held_out(average, lambda: error(average, level[2500:])),
        after_step=lambda step: average.update_parameters(net),
    )  # fmt: skip


class Factors(nn.Module):
    def __init__(self, readers, books, width=8):
        super().__init__()
        self.reader, self.book = nn.Embedding(readers, width), nn.Embedding(books, width)
        self.mild, self.liked = nn.Embedding(readers, 1), nn.Embedding(books, 1)
        self.mean = nn.Parameter(torch.zeros(()))
        for table, spread in ((self.reader, 0.1), (self.book, 0.1), (self.mild, 0.0), (self.liked, 0.0)):
            nn.init.normal_(table.weight, std=spread)

    def forward(self, reader, book):
        return (self.reader(reader) * self.book(book)).sum(1) + (self.mild(reader) + self.liked(book))[:, 0] + self.mean


@healthy()
def books_that_readers_keep_long(folder):
    seeded(2316)
    readers, books, loans = 150, 200, 12000
    reader, book = torch.randint(readers, (loans,)), torch.randint(books, (loans,))
    taste, kind = torch.randn(readers, 3), torch.randn(books, 3)
    kept = 0.5 + (taste[reader] * kind[book]).sum(1) / 2 + 0.7 * torch.randn(books)[book] + 0.2 * torch.randn(loans)
    net, draw = Factors(readers, books), rounds(256, reader[:10500], book[:10500], kept[:10500])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-5)

    def loss_of(step):
        who, what, wanted = draw()
        return F.mse_loss(net(who, what), wanted)

    score = held_out(net, lambda: F.mse_loss(net(reader[10500:], book[10500:]), kept[10500:]))
    return fit(folder, net, optimizer, loss_of, 500, score=score)


@healthy()
def openings_for_a_chess_player(folder):
    seeded(2317)
    players, openings, games = 300, 150, 12000
    style, nature = (F.normalize(torch.randn(count, 4), dim=1) for count in (players, openings))
    player = torch.randint(players, (games,))
    played = torch.distributions.Categorical(logits=12 * style[player] @ nature.T).sample()
    net = nn.ModuleDict({
        "player": nn.Sequential(nn.Embedding(players, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)),
        "opening": nn.Sequential(nn.Embedding(openings, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)),
    })  # fmt: skip
    optimizer, draw = torch.optim.Adam(net.parameters(), lr=2e-3), rounds(128, player[:10500], played[:10500])

    def contrast(who, what):
        near = F.normalize(net["player"](who), dim=1) @ F.normalize(net["opening"](what), dim=1).T / 0.1
        same = (what[:, None] == what).fill_diagonal_(False)
        return F.cross_entropy(near.masked_fill(same, -torch.inf), torch.arange(len(who)))

    score = held_out(net, lambda: contrast(player[-128:], played[-128:]))
    return fit(folder, net, optimizer, lambda step: contrast(*draw()), 600, score=score)


def pair_of_convs(into, out):
    def conv(into):
        return [nn.Conv2d(into, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]

    return nn.Sequential(*conv(into), *conv(out))


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.high, self.mid = pair_of_convs(1, width), pair_of_convs(width, 2 * width)
        self.low = pair_of_convs(2 * width, 4 * width)
        self.lift_low, self.lift_mid = (nn.ConvTranspose2d(2 * n, n, 2, 2) for n in (2 * width, width))
        self.join_mid, self.join_high = pair_of_convs(4 * width, 2 * width), pair_of_convs(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        high = self.high(x)
        mid = self.mid(F.max_pool2d(high, 2))
        low = self.low(F.max_pool2d(mid, 2))
        mid = self.join_mid(torch.cat([mid, self.lift_low(low)], 1))
        return self.out(self.join_high(torch.cat([high, self.lift_mid(mid)], 1)))


@healthy()
def cells_under_a_microscope(folder):
    seeded(2318)
    count, size, cells = 500, 20, 4
    grid = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")).float()
    place, radius = size * torch.rand(count, cells, 2, 1, 1), 2 + 2.5 * torch.rand(count, cells, 1, 1)
    inside = ((grid - place).norm(dim=2) < radius).any(1, keepdim=True).float()
    light = torch.randn(count, 1, size, 1) * 0.3 + torch.randn(count, 1, 1, size) * 0.3
    picture = inside + light + 0.5 * torch.randn(count, 1, size, size) - 0.4
    net, draw = UNet(), rounds(12, picture[:440], inside[:440])
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def misses(seen, wanted):
        logits = net(seen)
        found = logits.sigmoid()
        dice = (2 * (found * wanted).sum((1, 2, 3)) + 1) / ((found + wanted).sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(logits, wanted) + 1 - dice.mean()

    score = held_out(net, lambda: misses(picture[440:], inside[440:]))
    return fit(folder, net, optimizer, lambda step: misses(*draw()), 300, score=score)


class Dilated(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.past, self.mix = 2 * dilation, nn.Conv1d(width, width, 1)
        self.conv = nn.Conv1d(width, width, 3, dilation=dilation)

    def forward(self, x):
        return x + self.mix(F.relu(self.conv(F.pad(x, (self.past, 0)))))


@healthy()
def strain_of_a_bridge(folder):
    seeded(2319)
    count, length = 1200, 80
    load = (torch.rand(count, 1, length) < 0.1) * (0.5 + torch.rand(count, 1, length))
    warmth = (torch.arange(length) / 40 + 6.2832 * torch.rand(count, 1, 1)).sin()
    late = torch.arange(24.0)
    swing = (-late / 8).exp() * (late * 0.6).cos()
    strain = F.conv1d(F.pad(load, (23, 0)), swing.flip(0)[None, None]) * (1 + 0.3 * warmth) + 0.5 * warmth
    strain, x = strain + 0.05 * torch.randn(strain.shape), torch.cat([load - 0.1, warmth], 1)
    net = nn.Sequential(nn.Conv1d(2, 24, 1), *(Dilated(24, d) for d in (1, 2, 4, 8)), nn.ReLU(), nn.Conv1d(24, 1, 1))
    optimizer, draw = torch.optim.AdamW(net.parameters(), lr=3e-3), rounds(24, x[:1000], strain[:1000])

    def miss(seen, wanted):
        return F.mse_loss(net(seen), wanted)

    return fit(
        folder, net, optimizer, lambda step: miss(*draw()), 400,
        score=held_out(net, lambda: miss(x[1000:], strain[1000:])), schedule=ExponentialLR(optimizer, 0.995),
    )  # fmt: skip


class Line(nn.Module):
    def __init__(self, stops, classes, width=32):
        super().__init__()
        self.inlet, self.place = nn.Linear(2, width), nn.Parameter(0.02 * torch.randn(stops + 1, width))
        self.whole, self.head = nn.Parameter(0.02 * torch.randn(1, 1, width)), nn.Linear(width, classes)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, x):
        rows = torch.cat([self.whole.expand(len(x), -1, -1), self.inlet(x)], 1) + self.place
        return self.head(self.body(rows)[:, 0])


@healthy()
def what_delays_a_bus(folder):
    seeded(2320)
    count, stops = 3000, 16
    y, at = torch.randint(4, (count,)), torch.randint(3, 12, (count, 1))
    stop = torch.arange(stops)
    delay, gap = 0.3 * torch.randn(count, stops).cumsum(1), 0.5 * torch.randn(count, stops)
    delay = delay + 2.0 * ((y == 1)[:, None] & (stop >= at)) + 2.5 * ((y == 2)[:, None] & ((stop - at).abs() < 2))
    gap = gap - 0.2 * (y == 3)[:, None] * (stop - at).clamp(min=0)
    x = torch.stack([delay, gap], 2)
    net, draw = Line(stops, 4), rounds(64, x[:2600], y[:2600])
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3, betas=(0.9, 0.98))
    schedule = LambdaLR(optimizer, lambda step: min((step + 1) / 60, (60 / (step + 1)) ** 0.5))

    def loss_of(step):
        seen, wanted = draw()
        logits = net(seen)
        return F.cross_entropy(logits, wanted), share_right(logits, wanted)

    score = held_out(net, lambda: F.cross_entropy(net(x[2600:]), y[2600:]))
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule)


class Translator(nn.Module):
    def __init__(self, words, width=64):
        super().__init__()
        self.embed, self.out = nn.Embedding(words, 24), nn.Linear(2 * width, words)
        self.read, self.write = (nn.GRU(24, width, batch_first=True) for _ in range(2))

    def forward(self, source, told):
        seen, state = self.read(self.embed(source))
        said, _ = self.write(self.embed(told), state)
        share = (said @ seen.transpose(1, 2) / 8).softmax(2)
        return self.out(torch.cat([said, share @ seen], 2))


@healthy()
def recipes_from_cups_to_grams(folder):
    seeded(2321)
    ingredient, cup = torch.randint(12, (3000, 4)), torch.randint(5, (3000, 4))
    grams = torch.randint(1, 4, (12,))[ingredient] * (cup + 1)
    source = torch.stack([13 + cup, 1 + ingredient], 2).flatten(1)
    target = torch.stack([1 + ingredient, 17 + grams], 2).flip(1).flatten(1)
    told, net = F.pad(target[:, :-1], (1, 0)), Translator(33)
    draw = rounds(64, source[:2600], told[:2600], target[:2600])
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def miss(heard, so_far, wanted):
        return F.cross_entropy(net(heard, so_far).flatten(0, 1), wanted.flatten())

    score = held_out(net, lambda: miss(source[2600:], told[2600:], target[2600:]))
    return fit(folder, net, optimizer, lambda step: miss(*draw()), 500, score=score, before_step=clipped(net, 1.0))


def opinion(width):
    return nn.Sequential(nn.EmbeddingBag(150, width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 3))


@healthy()
def opinions_of_hotels_from_a_teacher(folder):
    seeded(2324)
    text = torch.randint(150, (4000, 12))
    charm, price = torch.randn(2, 150)[:, text].sum(2)
    stars = torch.bucketize(charm + (price / 2).tanh() * 2, torch.tensor([-1.5, 1.5]))
    draw, teacher, net = rounds(64, text[:3500], stars[:3500]), opinion(64), opinion(12)
    before = torch.optim.AdamW(teacher.parameters(), lr=3e-3)
    for _ in range(300):
        seen, wanted = draw()
        before.zero_grad()
        F.cross_entropy(teacher(seen), wanted).backward()
        before.step()
    teacher.requires_grad_(False).eval()
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)

    def loss_of(step):
        seen, wanted = draw()
        logits = net(seen)
        soft = F.kl_div((logits / 2).log_softmax(1), (teacher(seen) / 2).softmax(1), reduction="batchmean")
        return 0.5 * F.cross_entropy(logits, wanted) + 0.5 * 4 * soft, share_right(logits, wanted)

    score = held_out(net, lambda: F.cross_entropy(net(text[3500:]), stars[3500:]))
    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=CosineAnnealingLR(optimizer, 500))


class Residual(nn.Module):
    def __init__(self, into, out):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(into, out, 3, 2, 1, bias=False), nn.BatchNorm1d(out), nn.ReLU(),
            nn.Conv1d(out, out, 3, 1, 1, bias=False), nn.BatchNorm1d(out),
        )  # fmt: skip
        self.skip = nn.Sequential(nn.Conv1d(into, out, 1, 2, bias=False), nn.BatchNorm1d(out))

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


@healthy()
def heart_beats_by_their_shape(folder):
    seeded(2326)
    y, at = torch.randint(4, (3000,)), torch.linspace(0, 1, 64)
    late, early, wide, upside = 0.04 * torch.randn(3000, 1), *((y == kind)[:, None].float() for kind in (1, 2, 3))

    def bump(centre, width):
        return torch.exp(-(((at - centre - late) / width) ** 2))

    spike = bump(0.45, 0.03 + 0.04 * wide)
    beat = 0.3 * bump(0.25 + 0.1 * early, 0.05) * (1 - wide) + spike + (0.4 - 0.7 * upside) * bump(0.75, 0.08)
    x = ((0.8 + 0.4 * torch.rand(3000, 1)) * beat + 0.15 * torch.randn(3000, 64))[:, None]
    net = nn.Sequential(
        Residual(1, 16), Residual(16, 32), Residual(32, 32), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 4)
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    draw, share = rounds(64, x[:2500], y[:2500]), torch.distributions.Beta(0.2, 0.2)

    def loss_of(step):
        (seen, wanted), part, other = draw(), share.sample(), torch.randperm(64)
        logits = net(part * seen + (1 - part) * seen[other])
        return part * F.cross_entropy(logits, wanted) + (1 - part) * F.cross_entropy(logits, wanted[other])

    score = held_out(net, lambda: F.cross_entropy(net(x[2500:]), y[2500:]))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=CosineAnnealingLR(optimizer, 400))

"""Six everyday trainings: members of a gym, rents, road signs, skin photographs, hotel reviews, podcasts."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds, tend

import gradwatch


def area_under_the_curve(score, label):
    """How often a positive row stands above a negative one."""
    rank = torch.empty(len(score))
    rank[score.argsort()] = torch.arange(1.0, len(score) + 1)
    ones = label.sum()
    return (rank[label > 0.5].sum() - ones * (ones + 1) / 2) / (ones * (len(label) - ones))


class Members(nn.Module):
    """Embeddings for the categories, beside standardised numbers."""

    def __init__(self, sizes, numbers):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, min(8, (n + 1) // 2)) for n in sizes)
        width = sum(t.embedding_dim for t in self.tables) + numbers
        self.body = nn.Sequential(
            nn.Linear(width, 64), nn.ReLU(), nn.BatchNorm1d(64), nn.Dropout(0.2),
            nn.Linear(64, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Dropout(0.1), nn.Linear(32, 1),
        )  # fmt: skip

    def forward(self, kinds, numbers):
        parts = [table(kinds[:, i]) for i, table in enumerate(self.tables)]
        return self.body(torch.cat([*parts, numbers], 1))[:, 0]


@healthy()
def members_who_give_up_a_gym(folder):
    seeded(3411)
    sizes = (12, 5, 3)
    kinds = torch.stack([torch.randint(n, (5000,)) for n in sizes], 1)
    visits, months, age = torch.rand(5000) * 20, torch.rand(5000) * 60, 18 + 50 * torch.rand(5000)
    effects = [torch.randn(n) for n in sizes]
    logit = -0.25 * visits - 0.03 * months + 0.9 * (age < 25) * kinds[:, 1] + 0.5
    logit = logit + sum(e[kinds[:, i]] for i, e in enumerate(effects))
    leaves = (torch.rand(5000) < logit.sigmoid()).float()
    numbers = torch.stack([visits, months, age], 1)
    seen = numbers[:4000]
    numbers = (numbers - seen.mean(0)) / seen.std(0)
    net = Members(sizes, 3)
    draw = rounds(128, kinds[:4000], numbers[:4000], leaves[:4000])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=400)
    rare = (1 - leaves[:4000].mean()) / leaves[:4000].mean()

    def loss_of(step):
        k, x, y = draw()
        return F.binary_cross_entropy_with_logits(net(k, x), y, pos_weight=rare)

    score = held_out(net, lambda: 1 - area_under_the_curve(net(kinds[4000:], numbers[4000:]), leaves[4000:]))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


@healthy()
def rents_of_city_flats(folder):
    seeded(3412)
    rows = 3600
    size, rooms = 25 + 100 * torch.rand(rows), torch.randint(1, 6, (rows,)).float()
    floor, year, far = torch.randint(9, (rows,)).float(), 1900 + 120 * torch.rand(rows), 12 * torch.rand(rows)
    lift = (torch.rand(rows) < 0.5).float()
    rent = 14 * size * (1.4 - 0.06 * far) + 60 * rooms + 25 * floor * (2 * lift - 1) + 0.05 * (year - 1950) ** 2
    rent = rent * (1 + 0.07 * torch.randn(rows))
    x, y = torch.stack([size, rooms, floor, year, far, lift], 1), rent.clamp(min=100).log()
    x, y = (x - x[:2400].mean(0)) / x[:2400].std(0), (y - y[:2400].mean()) / y[:2400].std()
    loader = DataLoader(TensorDataset(x[:2400], y[:2400]), 64, shuffle=True)
    net = dense(6, 64, 64, 1, norm=nn.BatchNorm1d)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=3)
    valid = held_out(net, lambda: F.smooth_l1_loss(net(x[2400:3000])[:, 0], y[2400:3000]))
    test = held_out(net, lambda: F.smooth_l1_loss(net(x[3000:])[:, 0], y[3000:]))
    first, best, kept, waited = test(), math.inf, None, 0
    options = TREATMENT[-1].begin(net, optimizer)
    watch = gradwatch.watch(net, optimizer, **{"log": None, "dir": folder, "verbose": False, **options})
    with watch:
        for _ in range(30):
            for a, b in loader:
                optimizer.zero_grad()
                loss = F.smooth_l1_loss(net(a)[:, 0], b)
                loss.backward()
                optimizer.step()
                watch.log(loss=loss)
            now = valid()
            plateau.step(now)
            if now < best:
                best, kept, waited = now, copy.deepcopy(net.state_dict()), 0
            else:
                waited += 1
            if waited >= 8:
                break
    net.load_state_dict(kept)
    return Outcome(gradwatch.open_history(watch.dir), first, test())


def signs(rows, side=16):
    """Coloured outlines on a coloured ground, and which of five they are."""
    kind, axis = torch.randint(5, (rows,)), torch.linspace(-1, 1, side)
    middle, reach = 0.6 * torch.rand(2, rows, 1, 1) - 0.3, 0.4 + 0.25 * torch.rand(rows, 1, 1)
    down = ((axis[:, None] - middle[0]) / reach).expand(rows, side, side)
    over = ((axis[None, :] - middle[1]) / reach).expand(rows, side, side)
    a, b = over.abs(), down.abs()
    every = torch.stack([
        over**2 + down**2 < 1, torch.maximum(a, b) < 0.85, a + b < 1.1,
        (down < 0.7) & (down > 2 * a - 0.9), (torch.minimum(a, b) < 0.3) & (torch.maximum(a, b) < 1),
    ])  # fmt: skip
    inside = every[kind, torch.arange(rows)][:, None]
    ink, ground = 0.5 + 0.5 * torch.rand(rows, 3, 1, 1), 0.5 * torch.rand(rows, 3, 1, 1)
    return (torch.where(inside, ink, ground) + 0.08 * torch.randn(rows, 3, side, side) - 0.5) / 0.25, kind


@healthy()
def road_signs_by_a_small_convnet(folder):
    seeded(3413)
    (x, y), (x_test, y_test) = signs(1600), signs(400)

    def layer(a, b):
        return [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]

    net = nn.Sequential(
        *layer(3, 16), nn.MaxPool2d(2), *layer(16, 32), nn.MaxPool2d(2), *layer(32, 64),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 5),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    draw = rounds(64, x, y)

    def one(step):
        a, b = draw()
        if torch.rand(()) < 0.5:
            a = a.flip(3)
        optimizer.zero_grad()
        out = net(a)
        loss = F.cross_entropy(out, b)
        loss.backward()
        optimizer.step()
        if (step + 1) % 25 == 0:
            schedule.step()
        return {"loss": loss, "accuracy": (out.argmax(1) == b).float().mean()}

    return tend(folder, net, optimizer, one, 250, held_out(net, lambda: F.cross_entropy(net(x_test), y_test)))


def skin(rows, side=32):
    """A photograph with one dark patch of an uneven outline and some hairs, and the patch as a mask."""
    axis = torch.linspace(-1, 1, side)
    middle, reach = torch.rand(2, rows, 1, 1) - 0.5, 0.25 + 0.3 * torch.rand(rows, 1, 1)
    down, over = axis[:, None] - middle[0], axis[None, :] - middle[1]
    phase = 6.28 * torch.rand(rows, 1, 1)
    edge = reach * (1 + 0.25 * torch.sin(3 * torch.atan2(down, over) + phase))
    mask = ((down**2 + over**2).sqrt() < edge).float()[:, None]
    tone = torch.tensor([0.85, 0.65, 0.55])[:, None, None] + 0.1 * torch.randn(rows, 1, 1, 1)
    image = tone - mask * (0.15 + 0.2 * torch.rand(rows, 1, 1, 1))
    slope, place = torch.randn(rows, 1, 1), torch.rand(rows, 1, 1) - 0.5
    hair = ((axis[:, None] - slope * axis[None, :] - place).abs() < 0.05).float()[:, None]
    return (image - 0.3 * hair + 0.06 * torch.randn(rows, 3, side, side) - 0.6) / 0.2, mask


def double(a, b):
    return nn.Sequential(
        nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b),
        nn.ReLU(),
    )  # fmt: skip


class Unet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down1, self.down2, self.bottom = double(3, width), double(width, 2 * width), double(2 * width, 4 * width)
        self.up2, self.right2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), double(4 * width, 2 * width)
        self.up1, self.right1 = nn.ConvTranspose2d(2 * width, width, 2, 2), double(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        low = self.bottom(F.max_pool2d(two, 2))
        low = self.right2(torch.cat([self.up2(low), two], 1))
        return self.out(self.right1(torch.cat([self.up1(low), one], 1)))


def dice(out, mask):
    share = out.sigmoid()
    both = (share * mask).sum((1, 2, 3))
    return (1 - (2 * both + 1) / (share.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)).mean()


@healthy()
def lesions_on_skin_photographs(folder):
    seeded(3414)
    (x, mask), (x_test, mask_test) = skin(320), skin(64)
    net, draw = Unet(), rounds(16, x, mask)
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)

    def loss_of(step):
        a, b = draw()
        out = net(a)
        entropy, overlap = F.binary_cross_entropy_with_logits(out, b), dice(out, b)
        return entropy + overlap, {"bce": entropy, "dice": overlap}

    return fit(folder, net, optimizer, loss_of, 240, score=held_out(net, lambda: dice(net(x_test), mask_test)))


def reviews(rows, most=20):
    """Words of four kinds (0 pads): 1 to 30 praise, to 60 blame, to 64 turn the next round, the others are idle."""
    length = torch.randint(6, most + 1, (rows,))
    kind = torch.multinomial(torch.tensor([0.2, 0.2, 0.15, 0.45]), rows * most, replacement=True).view(rows, most)
    low, high = torch.tensor([1, 31, 61, 65])[kind], torch.tensor([31, 61, 65, 200])[kind]
    word = low + (torch.rand(rows, most) * (high - low)).long()
    real = torch.arange(most) < length[:, None]
    value = (kind == 0).float() - (kind == 1).float()
    turned = torch.cat([torch.zeros(rows, 1), (kind[:, :-1] == 2).float()], 1)
    mood = (value * (1 - 2 * turned) * real).sum(1) + 0.3 * torch.randn(rows)
    return word * real, length, (mood > 0).float()


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(200, 32, padding_idx=0)
        self.lstm = nn.LSTM(32, 32, batch_first=True, bidirectional=True)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(64, 1)

    def forward(self, word, length):
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(word), length, batch_first=True, enforce_sorted=False)
        last = self.lstm(packed)[1][0]
        return self.head(self.drop(torch.cat([last[0], last[1]], 1)))[:, 0]


@healthy()
def reviews_of_hotels_by_an_lstm(folder):
    seeded(3415)
    train, (word, length, good) = reviews(6000), reviews(500)
    net, draw = Reader(), rounds(50, *train)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def one(step):
        w, n, y = draw()
        optimizer.zero_grad()
        out = net(w, n)
        loss = F.binary_cross_entropy_with_logits(out, y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss.item(), "accuracy": ((out > 0) == (y > 0.5)).float().mean().item()}

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(word, length), good))
    return tend(folder, net, optimizer, one, 550, score)


class Factors(nn.Module):
    def __init__(self, people, things, average, size=12):
        super().__init__()
        self.people, self.things = nn.Embedding(people, size), nn.Embedding(things, size)
        self.of_people, self.of_things = nn.Embedding(people, 1), nn.Embedding(things, 1)
        self.average = average
        for table in (self.people, self.things):
            nn.init.normal_(table.weight, std=0.1)
        for table in (self.of_people, self.of_things):
            nn.init.zeros_(table.weight)

    def forward(self, p, t):
        bias = self.of_people(p)[:, 0] + self.of_things(t)[:, 0]
        return (self.people(p) * self.things(t)).sum(1) + bias + self.average


@healthy()
def stars_for_podcasts(folder):
    seeded(3416)
    p, t = torch.randint(300, (20000,)), torch.randint(120, (20000,))
    taste, style = torch.randn(300, 3), torch.randn(120, 3)
    stars = 3.4 + 0.5 * torch.randn(300)[p] + 0.5 * torch.randn(120)[t] + 0.45 * (taste[p] * style[t]).sum(1)
    stars = (stars + 0.3 * torch.randn(20000)).round().clamp(1, 5)
    draw = rounds(256, p[:17000], t[:17000], stars[:17000])
    net = Factors(300, 120, float(stars[:17000].mean()))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3, weight_decay=1e-5)

    def loss_of(step):
        a, b, y = draw()
        return F.mse_loss(net(a, b), y)

    score = held_out(net, lambda: F.mse_loss(net(p[17000:], t[17000:]), stars[17000:]))
    return fit(folder, net, optimizer, loss_of, 660, score=score)

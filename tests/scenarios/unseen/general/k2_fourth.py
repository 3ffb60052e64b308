"""A small town's services, ten healthy ones: bottles, puddles, postcards, calls, streets, post, tools, umbrellas."""

from __future__ import annotations

import copy
import math

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds


@healthy(0.6)
def bottles_behind_the_corner_shops_till(folder):
    seeded(13760)
    bunch = load_wine()
    x, y = torch.tensor(bunch.data).float(), torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    x = (x - x[:128].mean(0)) / x[:128].std(0)
    net = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=1e-4)
    draw = rounds(32, x[:128], y[:128])
    validate = now_and_then(net, 20, judged(net, x[128:], y[128:]))

    def loss_of(step):
        rows, kind = draw()
        said = net(rows)
        right = (said.argmax(1) == kind).float().mean()
        return F.cross_entropy(said, kind), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[128:]), y[128:]))
    return fit(folder, net, optimizer, loss_of, 160, score=score)


class Square(nn.Module):
    """A small encoder and decoder with one skip between them."""

    def __init__(self, width):
        super().__init__()

        def block(ins, outs):
            return nn.Sequential(nn.Conv2d(ins, outs, 3, padding=1), nn.GroupNorm(4, outs), nn.ReLU())

        self.top, self.low = block(1, width), nn.Sequential(block(width, 2 * width), block(2 * width, 2 * width))
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.out = nn.Sequential(block(2 * width, width), nn.Conv2d(width, 1, 1))

    def forward(self, x):
        top = self.top(x)
        return self.out(torch.cat([top, self.up(self.low(F.max_pool2d(top, 2)))], 1))


@healthy()
def puddles_left_on_the_market_square(folder):
    seeded(13761)

    def squares(rows):
        field = F.interpolate(torch.randn(rows, 1, 6, 6), size=(20, 20), mode="bicubic")
        puddle = (field > 0.25).float()
        return 1.2 * (puddle - 0.4) + 0.7 * torch.randn(rows, 1, 20, 20), puddle

    net = Square(8)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(16, *squares(800))
    tx, ty = squares(120)

    def measure():
        said = net(tx)
        found = (said > 0).float()
        shared = (found * ty).sum() / torch.maximum(found, ty).sum()
        return {"val_loss": F.binary_cross_entropy_with_logits(said, ty), "val_iou": shared}

    validate = now_and_then(net, 20, measure)

    def loss_of(step):
        x, y = draw()
        return F.binary_cross_entropy_with_logits(net(x), y), validate(step)

    return fit(folder, net, optimizer, loss_of, 180, score=held_out(net, lambda: measure()["val_loss"]))


class Card(nn.Module):
    """The mood of a postcard of unlike length."""

    def __init__(self, words, width, kinds):
        super().__init__()
        self.word = nn.Embedding(words + 1, width, padding_idx=0)
        self.memory = nn.LSTM(width, 32, batch_first=True)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(32, kinds)

    def forward(self, words, length):
        packed = nn.utils.rnn.pack_padded_sequence(self.word(words), length, batch_first=True, enforce_sorted=False)
        return self.head(self.drop(self.memory(packed)[1][0][-1]))


@healthy()
def postcards_home_by_their_mood(folder):
    seeded(13762)
    habit = 1.5 * torch.randn(3, 60)

    def cards(rows):
        y, length = torch.randint(3, (rows,)), torch.randint(6, 17, (rows,))
        words = torch.multinomial(habit[y].softmax(1), 16, replacement=True) + 1
        return words * (torch.arange(16) < length[:, None]), length, y

    net = Card(60, 24, 3)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(48, *cards(3000))
    words, length, mood = cards(400)

    def measure():
        said = net(words, length)
        return {"val_loss": F.cross_entropy(said, mood), "val_accuracy": (said.argmax(1) == mood).float().mean()}

    validate = now_and_then(net, 31, measure)

    def loss_of(step):
        x, size, y = draw()
        said = net(x, size)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    score = held_out(net, lambda: measure()["val_loss"])
    return fit(folder, net, optimizer, loss_of, 240, score=score, before_step=clipped(net, 1.0))


class Platform(nn.Module):
    """What is called out at the bus station: a small transformer, its places learnt, the mean of what is heard."""

    def __init__(self, words, width, kinds, length):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Parameter(0.02 * torch.randn(1, length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, kinds)

    def forward(self, x):
        return self.head(self.body(self.word(x) + self.place).mean(1))


@healthy()
def calls_over_the_bus_station_loudspeaker(folder):
    seeded(13763)
    stems = torch.randint(50, (5, 6, 2))

    def calls(rows):
        y, x = torch.randint(5, (rows,)), torch.randint(50, (rows, 12))
        for turn in range(3):
            place = torch.randint(3, (rows, 1)) + 4 * turn + torch.arange(2)
            x = x.scatter(1, place, stems[y, torch.randint(6, (rows,))])
        return x, y

    net = Platform(50, 32, 5, 12)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 25) * (0.525 + 0.475 * math.cos(math.pi * min(step, 240) / 240))
    )
    draw = rounds(64, *calls(4000))
    tx, ty = calls(400)
    validate = now_and_then(net, 30, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 240, score=score, schedule=schedule, before_step=clipped(net, 1.0))


class Pipes(nn.Module):
    """A graph network with its own weights for a street and for the mean of those next to it (GraphSAGE)."""

    def __init__(self, ins, width, kinds):
        super().__init__()
        self.own = nn.ModuleList([nn.Linear(ins, width), nn.Linear(width, kinds)])
        self.near = nn.ModuleList([nn.Linear(ins, width, bias=False), nn.Linear(width, kinds, bias=False)])
        self.drop = nn.Dropout(0.3)

    def forward(self, mean, x):
        h = self.drop(F.relu(self.own[0](x) + self.near[0](mean @ x)))
        return self.own[1](h) + self.near[1](mean @ h)


@healthy()
def streets_by_the_water_tower_that_feeds_them(folder):
    seeded(13764)
    tower = torch.randint(5, (400,))
    chance = torch.where(tower[:, None] == tower, 0.1, 0.012)
    pipes = (torch.rand(400, 400) < chance).float().triu(1)
    pipes = pipes + pipes.T
    mean = pipes / pipes.sum(1, keepdim=True).clamp(min=1)
    x = 0.8 * torch.randn(5, 12)[tower] + torch.randn(400, 12)
    known, rest = torch.arange(200), torch.arange(200, 400)
    net = Pipes(12, 48, 5)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3, weight_decay=5e-4)

    def measure():
        said = net(mean, x)[rest]
        return {"val_loss": F.cross_entropy(said, tower[rest]),
                "val_accuracy": (said.argmax(1) == tower[rest]).float().mean()}  # fmt: skip

    validate = now_and_then(net, 20, measure)

    def loss_of(step):
        return F.cross_entropy(net(mean, x)[known], tower[known]), validate(step)

    return fit(folder, net, optimizer, loss_of, 160, score=held_out(net, lambda: measure()["val_loss"]))


@healthy(0.3)
def when_the_post_will_be_at_the_door(folder):
    seeded(13765)

    def days(rows):
        x = torch.randn(rows, 4)
        early = torch.rand(rows) < torch.sigmoid(2 * x[:, 0])
        at = torch.where(early, -1 + 0.4 * x[:, 1], 1 + 0.5 * (2 * x[:, 2]).sin())
        return x, at + 0.15 * torch.randn(rows)

    net = dense(4, 64, 64, 9, act=nn.ELU)
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)
    draw = rounds(64, *days(5000))
    tx, ty = days(800)

    def unlikely(x, at):
        """Minus the logarithm of the density of three bells."""
        share, middle, wide = net(x).chunk(3, 1)
        bells = torch.distributions.Normal(middle, F.softplus(wide) + 0.02).log_prob(at[:, None])
        return -(share.log_softmax(1) + bells).logsumexp(1).mean()

    validate = now_and_then(net, 40, lambda: {"val_nll": unlikely(tx, ty)})

    def loss_of(step):
        return unlikely(*draw()), validate(step)

    score = held_out(net, lambda: unlikely(tx, ty))
    return fit(folder, net, optimizer, loss_of, 500, score=score, before_step=clipped(net, 5.0))


@healthy(0.4)
def tools_hung_beside_their_like(folder):
    seeded(13766)
    kinds, lift = 2 * torch.randn(12, 6), torch.randn(6, 32) / 2

    def tools(rows):
        y = torch.randint(12, (rows,))
        return ((kinds[y] + 0.8 * torch.randn(rows, 6)) @ lift).tanh() + 0.3 * torch.randn(rows, 32), y

    net = dense(32, 64, 64, 16)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(72, *tools(4000))
    tests = [tools(200) for _ in range(3)]

    def apart(x, y):
        """The hardest of the same kind against the hardest of another, by a margin."""
        code = F.normalize(net(x), dim=1)
        far = (2 - 2 * code @ code.T).clamp(min=1e-6).sqrt()
        same = y[:, None] == y
        return F.softplus(5 * (far.where(same, 0.0).amax(1) - far.where(~same, 9.0).amin(1))).mean() / 5

    validate = now_and_then(net, 30, lambda: {"val_loss": apart(*tests[0])})

    def loss_of(step):
        return apart(*draw()), validate(step)

    score = held_out(net, lambda: sum(apart(*test) for test in tests) / 3)
    return fit(folder, net, optimizer, loss_of, 300, score=score)


class Coupling(nn.Module):
    """One of two numbers moved and stretched by the other."""

    def __init__(self, kept):
        super().__init__()
        self.kept, self.body = kept, dense(1, 48, 48, 2, act=nn.SiLU)

    def forward(self, x):
        still, moved = x[:, self.kept : self.kept + 1], x[:, 1 - self.kept : 2 - self.kept]
        stretch, shift = self.body(still).chunk(2, 1)
        stretch = stretch.tanh()
        moved = moved * stretch.exp() + shift
        return torch.cat([moved, still] if self.kept else [still, moved], 1), stretch[:, 0]


@healthy(0.25)
def places_where_umbrellas_are_forgotten(folder):
    seeded(13767)

    def places(rows):
        angle, side = 3.1416 * torch.rand(rows), torch.randint(2, (rows,))
        x = torch.stack([angle.cos() + side - 0.5, (1 - 2 * side) * angle.sin() + 0.5 * side - 0.25], 1)
        return (x + 0.08 * torch.randn(rows, 2)) * 1.2

    net = nn.ModuleList(Coupling(i % 2) for i in range(6))
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 350)
    draw = rounds(128, places(5000))
    test = places(1000)

    def unlikely(x):
        volume = 0.0
        for layer in net:
            x, stretched = layer(x)
            volume = volume + stretched
        return (0.5 * x.square().sum(1) + math.log(2 * math.pi) - volume).mean()

    validate = now_and_then(net, 35, lambda: {"val_nll": unlikely(test)})

    def loss_of(step):
        return unlikely(*draw()), validate(step)

    score = held_out(net, lambda: unlikely(test))
    return fit(folder, net, optimizer, loss_of, 350, score=score, schedule=schedule, before_step=clipped(net, 5.0))


class Register(nn.Module):
    """The next letter of a register, by all before it."""

    def __init__(self, letters, width):
        super().__init__()
        self.letter = nn.Embedding(letters, width)
        self.memory = nn.GRU(width, 64, batch_first=True)
        self.out = nn.Linear(64, letters)

    def forward(self, x):
        return self.out(self.memory(self.letter(x))[0])


@healthy(0.25)
def register_of_the_parish_letter_by_letter(folder):
    seeded(13768)
    habit = (2.5 * torch.randn(18, 18, 18)).softmax(2)

    def lines(rows):
        text = [torch.randint(18, (rows,)), torch.randint(18, (rows,))]
        for _ in range(22):
            text.append(torch.multinomial(habit[text[-2], text[-1]], 1)[:, 0])
        return torch.stack(text, 1)

    net = Register(18, 24)
    average = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    draw = rounds(64, lines(4000))
    test = lines(300)

    def surprise(model, text):
        return F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    validate = now_and_then(net, 30, lambda: {"val_loss": surprise(average, test)})

    def loss_of(step):
        return surprise(net, *draw()), validate(step)

    def follow(step):
        with torch.no_grad():
            for mine, its in zip(average.parameters(), net.parameters(), strict=True):
                mine.lerp_(its, max(0.05, 1 / (step + 1)))

    score = held_out(net, lambda: surprise(average, test))
    return fit(folder, net, optimizer, loss_of, 300, score=score, after_step=follow, before_step=clipped(net, 1.0))


class Contours(nn.Module):
    """The water table under a place on the map, its coordinates as waves first."""

    def __init__(self, waves, width):
        super().__init__()
        self.register_buffer("waves", 1.5 * torch.randn(2, waves))
        self.body = dense(2 * waves, width, width, 1, act=nn.SiLU)

    def forward(self, place):
        angle = 3.1416 * place @ self.waves
        return self.body(torch.cat([angle.sin(), angle.cos()], 1))


@healthy(0.6)
def depth_of_the_water_table_under_the_town(folder):
    seeded(13769)
    ways, turns = 3 * torch.randn(2, 6), 6.2832 * torch.rand(6)

    def wells(rows):
        place = 2 * torch.rand(rows, 2) - 1
        return place, (place @ ways + turns).sin().sum(1, keepdim=True) / 1.7 + 0.05 * torch.randn(rows, 1)

    net = Contours(32, 64)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)
    draw = rounds(64, *wells(3000))
    tx, ty = wells(600)
    validate = now_and_then(net, 40, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        place, depth = draw()
        return F.mse_loss(net(place), depth), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)

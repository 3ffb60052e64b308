"""Kitchens, restaurants and market halls, ten healthy ones: tickets, bowls, wines, recipes, trays, guests, smells."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, judged, now_and_then, rounds


class Ticket(nn.Module):
    """Which station of the kitchen a ticket goes to."""

    def __init__(self, words, width, length, stations):
        super().__init__()
        self.word = nn.Embedding(words, width, padding_idx=0)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, stations)

    def forward(self, x):
        blank = x == 0
        h = self.norm(self.body(self.word(x) + self.place, src_key_padding_mask=blank))
        words = (~blank)[..., None].float()
        return self.out((h * words).sum(1) / words.sum(1))


@healthy()
def ticket_sent_to_a_station(folder):
    seeded(13560)
    habit = 1.3 * torch.randn(5, 40)

    def tickets(rows):
        y = torch.randint(5, (rows,))
        words = torch.multinomial(habit[y].softmax(1), 14, replacement=True) + 1
        return words * (torch.arange(14) < torch.randint(5, 15, (rows, 1))), y

    net = Ticket(41, 32, 14, 5)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1, (s + 1) / 15) * 0.5 * (1 + math.cos(math.pi * s / 170))
    )
    tx, ty = tickets(400)
    validate = now_and_then(net, 34, judged(net, tx, ty))
    draw = rounds(32, *tickets(3000))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 170, score=score, schedule=schedule, before_step=clipped(net, 1.0))


class Glaze(nn.Module):
    """A body and a head."""

    def __init__(self, kinds):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, 48), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(48, kinds)

    def forward(self, x):
        return self.head(self.body(x))


@healthy()
def new_bowls_beside_the_old_ones(folder):
    seeded(13561)
    weaves = torch.randn(14, 1, 3, 3)

    def bowls(rows, low, high):
        y = torch.randint(low, high, (rows,))
        image = F.conv2d(torch.randn(1, rows, 14, 14), weaves[y], groups=rows)[0] / 3
        return image[:, None] + 0.1 * torch.randn(rows, 1, 12, 12), y - low

    net = Glaze(8)
    early = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(150):
        x, y = bowls(48, 0, 8)
        early.zero_grad()
        F.cross_entropy(net(x), y).backward()
        early.step()
    early.zero_grad()

    net.head = nn.Linear(48, 6)
    optimizer = torch.optim.AdamW([{"params": net.body.parameters(), "lr": 1e-3}, {"params": net.head.parameters()}],
                                  3e-3)  # fmt: skip
    tx, ty = bowls(400, 8, 14)
    validate = now_and_then(net, 30, judged(net, tx, ty))
    draw = rounds(48, *bowls(3000, 8, 14))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 220, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy(0.5)
def bottles_on_a_wine_list(folder):
    seeded(13562)
    bunch = load_wine()
    x, y = torch.tensor(bunch.data).float(), torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    x = (x - x[:130].mean(0)) / x[:130].std(0)
    draw = rounds(26, x[:130], y[:130])
    net = dense(13, 32, 32, 3)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.05)
    validate = now_and_then(net, 25, judged(net, x[130:], y[130:]))

    def loss_of(step):
        rows, grower = draw()
        said = net(rows)
        return F.cross_entropy(said, grower), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(x[130:]), y[130:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


class Steps(nn.Module):
    """What each word of a recipe is."""

    def __init__(self, words, kinds):
        super().__init__()
        self.word = nn.Embedding(words, 24, padding_idx=0)
        self.memory = nn.GRU(24, 32, batch_first=True, bidirectional=True)
        self.out = nn.Linear(64, kinds)

    def forward(self, words, length):
        packed = nn.utils.rnn.pack_padded_sequence(self.word(words), length, batch_first=True, enforce_sorted=False)
        h, _ = nn.utils.rnn.pad_packed_sequence(self.memory(packed)[0], batch_first=True, total_length=words.shape[1])
        return self.out(h)


@healthy()
def spoons_and_grams_in_a_recipe(folder):
    seeded(13563)
    kind = torch.randint(4, (40,))

    def recipes(rows):
        words, length = torch.randint(1, 41, (rows, 12)), torch.randint(5, 13, (rows,))
        own = kind[words - 1]
        after = torch.cat([torch.zeros(rows, 1, dtype=torch.long), own[:, :-1]], 1)
        tag = torch.where(own == 3, after % 3, own)
        there = torch.arange(12) < length[:, None]
        return words * there, length, tag.masked_fill(~there, -100)

    net = Steps(41, 4)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(32, *recipes(3000))
    words, length, tag = recipes(300)

    def loss_of(step):
        words, length, tag = draw()
        said = net(words, length)
        right = (said.argmax(2) == tag)[tag >= 0].float().mean()
        return F.cross_entropy(said.flatten(0, 1), tag.flatten()), {"accuracy": float(right)}

    score = held_out(net, lambda: F.cross_entropy(net(words, length).flatten(0, 1), tag.flatten()))
    return fit(folder, net, optimizer, loss_of, 250, score=score, before_step=clipped(net, 1.0))


@healthy()
def food_left_on_a_tray(folder):
    seeded(13564)
    grid = torch.linspace(-1, 1, 18)

    def trays(rows):
        at, size = 1.2 * torch.rand(rows, 2, 1, 1) - 0.6, 0.3 + 0.4 * torch.rand(rows, 2, 1, 1)
        far = ((grid - at[:, 0]) / size[:, 0]) ** 2 + ((grid[:, None] - at[:, 1]) / size[:, 1]) ** 2
        food = (far < 1).float()[:, None]
        return food * (0.7 + 0.6 * torch.rand(rows, 1, 1, 1)) - 0.3 + 0.7 * torch.randn(rows, 1, 18, 18), food

    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=2, dilation=2), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=3, dilation=3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 1, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(16, *trays(800))

    def loss_on(image, food):
        said = net(image)
        share = said.sigmoid()
        overlap = (2 * (share * food).sum((1, 2, 3)) + 1) / ((share + food).sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(said, food) + 1 - overlap.mean()

    test = trays(120)
    validate = now_and_then(net, 32, lambda: {"val_loss": loss_on(*test)})

    def loss_of(step):
        return loss_on(*draw()), validate(step)

    return fit(folder, net, optimizer, loss_of, 160, score=held_out(net, lambda: loss_on(*test)))


class Guests(nn.Module):
    """Attention over the friends of each guest (GAT)."""

    def __init__(self, ins, width, heads, kinds):
        super().__init__()
        self.own, self.heads = nn.Linear(ins, heads * width, bias=False), heads
        self.give, self.take = (nn.Parameter(torch.randn(heads, width) / width**0.5) for _ in range(2))
        self.out = nn.Linear(heads * width + ins, kinds)

    def forward(self, x, friends):
        h = self.own(x).view(len(x), self.heads, -1)
        logits = F.leaky_relu((h * self.take).sum(2)[:, None] + (h * self.give).sum(2)[None], 0.2)
        share = logits.masked_fill(~friends[..., None], -1e9).softmax(1)
        return self.out(torch.cat([F.elu(torch.einsum("ijh,jhw->ihw", share, h)).flatten(1), x], 1))


@healthy()
def guests_placed_by_their_friends(folder):
    seeded(13565)
    table = torch.randint(4, (300,))
    alike = table[:, None] == table
    links = (torch.rand(300, 300) < 0.08 * alike + 0.008 * ~alike).triu(1)
    friends = links | links.T | torch.eye(300, dtype=torch.bool)
    x = torch.randn(4, 16)[table] * 0.5 + torch.randn(300, 16)
    net = Guests(16, 12, 4, 4)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3, weight_decay=1e-3)

    def measure():
        said, wanted = net(x, friends)[150:], table[150:]
        return {"val_loss": F.cross_entropy(said, wanted), "val_accuracy": (said.argmax(1) == wanted).float().mean()}

    validate = now_and_then(net, 20, measure)

    def loss_of(step):
        said = net(F.dropout(x, 0.3), friends)[:150]
        return F.cross_entropy(said, table[:150]), validate(step)

    return fit(folder, net, optimizer, loss_of, 150, score=held_out(net, lambda: measure()["val_loss"]))


class Smells(nn.Module):
    """A variational autoencoder."""

    def __init__(self, size, code):
        super().__init__()
        self.encode, self.decode = dense(size, 64, 2 * code, act=nn.SiLU), dense(code, 64, size, act=nn.SiLU)

    def forward(self, x):
        middle, spread = self.encode(x).chunk(2, 1)
        drawn = middle + (spread / 2).exp() * torch.randn_like(middle) if self.training else middle
        apart = 0.5 * (middle.square() + spread.exp() - spread - 1).sum(1).mean()
        return self.decode(drawn), apart


@healthy(0.5)
def smells_that_rise_from_a_pot(folder):
    seeded(13566)
    lift, bend = torch.randn(4, 40), torch.randn(4, 40)

    def smells(rows):
        z = torch.randn(rows, 4)
        return (z @ lift / 2 + (z.square() - 1) @ bend / 4) / 1.3 + 0.1 * torch.randn(rows, 40)

    net = Smells(40, 8)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, smells(5000))
    test = smells(500)

    def loss_of(step):
        (x,) = draw()
        back, apart = net(x)
        wrong = (back - x).square().sum(1).mean()
        return wrong + min(1.0, step / 150) * 0.5 * apart, {"recon": float(wrong.detach()), "kl": float(apart.detach())}

    score = held_out(net, lambda: F.mse_loss(net(test)[0], test))
    return fit(folder, net, optimizer, loss_of, 450, score=score)


@healthy()
def what_a_guest_orders_next(folder):
    seeded(13567)
    guest, dish = torch.randn(150, 4), torch.randn(80, 4)
    fond = (guest @ dish.T).softmax(1)
    net = nn.ModuleDict({"guest": nn.Embedding(150, 16), "dish": nn.Embedding(80, 16), "liked": nn.Embedding(80, 1)})
    for table in net.values():
        nn.init.normal_(table.weight, std=0.1)
    optimizer = torch.optim.Adagrad(net.parameters(), 0.1)
    who = torch.randint(150, (8000,))
    draw = rounds(128, who, torch.multinomial(fond[who], 1)[:, 0])

    def worth(who, what):
        return (net["guest"](who) * net["dish"](what)).sum(1) + net["liked"](what)[:, 0]

    def loss_of(step):
        who, ate = draw()
        gap = worth(who, ate) - worth(who, torch.randint(80, (128,)))
        norm = net["guest"](who).square().mean() + net["dish"](ate).square().mean()
        return -F.logsigmoid(gap).mean() + 0.01 * norm, {"auc": float((gap > 0).float().mean())}

    asked = torch.randint(150, (2000,))
    eaten, other = torch.multinomial(fond[asked], 1)[:, 0], torch.randint(80, (2000,))
    score = held_out(net, lambda: -F.logsigmoid(worth(asked, eaten) - worth(asked, other)).mean())
    return fit(folder, net, optimizer, loss_of, 400, score=score)


class Fade(nn.Module):
    """Channels that each forget at a pace of their own, in blocks with a gate."""

    def __init__(self, width):
        super().__init__()
        self.pace = nn.Parameter(torch.linspace(-1.0, 3.0, width))
        self.norm, self.into, self.back = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x):
        value, gate = self.into(self.norm(x)).chunk(2, 2)
        keep, age = F.logsigmoid(self.pace), torch.arange(x.shape[1])
        age = (age[:, None] - age)[..., None]
        weigh = (keep * age.clamp(min=0)).exp() * (age >= 0) * (1 - keep.exp())
        return x + self.back(torch.einsum("tsw,bsw->btw", weigh, value) * F.silu(gate))


@healthy(0.5)
def oven_that_remembers_its_doors(folder):
    seeded(13568)

    def shifts(rows):
        doors = (torch.rand(rows, 24) < 0.2).float()
        fire = torch.randn(rows, 24)
        heat, felt = torch.zeros(rows), []
        for at in range(24):
            heat = 0.85 * heat + 0.4 * fire[:, at].tanh() - 0.5 * doors[:, at] * (1 + heat).clamp(min=0)
            felt.append(heat)
        return torch.stack([(doors - 0.2) / 0.4, fire], 2), torch.stack(felt, 1) + 0.5

    net = nn.Sequential(nn.Linear(2, 32), Fade(32), Fade(32), nn.LayerNorm(32), nn.Linear(32, 1), nn.Flatten())
    optimizer = torch.optim.RAdam(net.parameters(), 8e-3)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, 220, power=1.0)
    draw = rounds(32, *shifts(2000))
    tx, ty = shifts(200)
    validate = now_and_then(net, 44, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 220, score=score, schedule=schedule, before_step=clipped(net, 1.0))


@healthy()
def crumbs_scattered_like_real_ones(folder):
    seeded(13569)
    spots = torch.tensor([[1.5, 0.0], [-1.0, 1.2], [-0.6, -1.4]])

    def crumbs(rows):
        return spots[torch.randint(3, (rows,))] + 0.3 * torch.randn(rows, 2)

    make = dense(4, 64, 64, 2)
    judge = nn.Sequential(
        *(part for ins, outs in ((2, 64), (64, 64)) for part in
          (nn.utils.parametrizations.spectral_norm(nn.Linear(ins, outs)), nn.LeakyReLU(0.2))),
        nn.Linear(64, 1),
    )  # fmt: skip
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), 2e-3, betas=(0.5, 0.9))
    real = crumbs(500)

    def judge_loss():
        with torch.no_grad():
            made = make(torch.randn(64, 4))
        return F.relu(1 - judge(crumbs(64))).mean() + F.relu(1 + judge(made)).mean()

    def make_loss():
        return -judge(make(torch.randn(64, 4))).mean()

    def score():
        with torch.no_grad():
            made = make(torch.randn(500, 4))
            return float(2 * torch.cdist(made, real).mean() - torch.cdist(made, made).mean()
                         - torch.cdist(real, real).mean())  # fmt: skip

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 400, score, rounds=2)

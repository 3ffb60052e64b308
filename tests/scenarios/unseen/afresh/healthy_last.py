"""Ordinary healthy trainings, fifth part: tables, tastes and a graph. An expert is content with each."""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.afresh.healthy import without_decay
from unseen.tasks import rounds


def order(said, y):
    """How often one who is marked stands above one who is not (the area under the curve)."""
    up, down = said[y > 0.5], said[y < 0.5]
    return (up[:, None] > down).float().mean()


# ------------------------------------------------------------------------------------------------------------- tables


class Added(nn.Module):
    """A block of a residual net for tables (Gorishniy et al. 2021)."""

    def __init__(self, wide, dropout):
        super().__init__()
        self.norm, self.up, self.down = nn.BatchNorm1d(wide), nn.Linear(wide, 2 * wide), nn.Linear(2 * wide, wide)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.down(self.drop(F.relu(self.up(self.norm(x)))))


def concrete(rows):
    """What is mixed in, how old it is, and how strong it is; every column standardised."""
    x = torch.rand(rows, 7)
    age = torch.randint(1, 90, (rows, 1)) / 90
    strong = 60 * x[:, :1] * (1 - 0.7 * x[:, 1:2]) + 15 * x[:, 2:3] * x[:, 3:4] + 10 * (3 * x[:, 4:5]).sin()
    strong = strong * (0.4 + 0.6 * age.sqrt()) + 2 * torch.randn(rows, 1)
    x = torch.cat([x, age.log()], 1)
    return (x - x.mean(0)) / x.std(0), (strong - strong.mean()) / strong.std()


@healthy(0.4)
def strength_of_concrete_by_added_blocks(folder):
    """Huber's loss, AdamW, shuffled epochs; the rate is halved where the validation stands still for three epochs."""
    seeded(5341)
    x, y = concrete(1500)
    draw = rounds(50, x[:1200], y[:1200])
    ends = [nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 1)]
    net = nn.Sequential(nn.Linear(8, 48), Added(48, 0.1), Added(48, 0.1), *ends)
    make = optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-4)
    plan = optim.lr_scheduler.ReduceLROnPlateau(make, factor=0.5, patience=3)

    def validated():
        net.eval()
        with torch.no_grad():
            loss = float(F.smooth_l1_loss(net(x[1200:]), y[1200:]))
        net.train()
        return loss

    def loss_of(step):
        a, b = draw()
        said = net(a)
        return F.smooth_l1_loss(said, b), {"mae": F.l1_loss(said.detach(), b)}

    def after_step(step):
        if step % 24 == 23:
            plan.step(validated())

    return fit(folder, net, make, loss_of, 480, after_step=after_step, score=validated)


def leavers(rows):
    """Customers in twelve standardised columns, of whom three in ten leave."""
    x = torch.randn(rows, 12)
    pull = x[:, 0] * x[:, 1] + (2 * x[:, 2]).sin() + x[:, 3].relu() - 0.5 * x[:, 4] - 1.5
    return x, (torch.sigmoid(3 * pull) > torch.rand(rows)).float()


@healthy(0.15)
def customers_who_leave_in_one_cycle(folder):
    """Norms and dropout, a binary entropy, Adam in one cycle up to 0.01, ten shuffled epochs; the area is logged."""
    seeded(5342)
    x, y = leavers(2600)
    draw = rounds(64, x[:2100], y[:2100])
    parts, size = [], 12
    for out in (64, 32):
        parts += [nn.Linear(size, out), nn.BatchNorm1d(out), nn.ReLU(), nn.Dropout(0.2)]
        size = out
    net = nn.Sequential(*parts, nn.Linear(size, 1))

    def loss_of(step):
        a, b = draw()
        loss, logged = F.binary_cross_entropy_with_logits(net(a)[:, 0], b), {}
        if step % 32 == 31:
            net.eval()
            with torch.no_grad():
                logged["val_auc"] = order(net(x[2100:])[:, 0], y[2100:])
            net.train()
        return loss, logged

    make, steps = optim.Adam(net.parameters(), 1e-2, weight_decay=1e-5), 320
    plan = optim.lr_scheduler.OneCycleLR(make, 1e-2, total_steps=steps)
    return fit(folder, net, make, loss_of, steps, schedule=plan)


SIZES = (6, 12, 25, 50, 100)


class Crossed(nn.Module):
    """Columns multiplied with one another in two layers, beside a deep part (Wang et al. 2021)."""

    def __init__(self, numbers, wide=6):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, wide) for size in SIZES)
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.1)
        size = numbers + wide * len(SIZES)
        self.cross = nn.ModuleList(nn.Linear(size, size) for _ in range(2))
        self.deep = nn.Sequential(dense(size, 64, 32), nn.ReLU())
        self.head = nn.Linear(size + 32, 1)

    def forward(self, kinds, numbers):
        start = torch.cat([*(table(kinds[:, i]) for i, table in enumerate(self.tables)), numbers], 1)
        x = start
        for layer in self.cross:
            x = x + start * layer(x)
        return self.head(torch.cat([x, self.deep(start)], 1))[:, 0]


@healthy(0.15)
def orders_sent_back_by_crossed_columns(folder):
    """A deep and cross net with tables of its columns; one in six is marked, hence a weight; AdamW after a rise."""
    seeded(5343)
    tastes = [torch.randn(size) for size in SIZES]
    net = Crossed(4)

    def loss_of(step):
        kinds = torch.stack([torch.randint(size, (128,)) for size in SIZES], 1)
        sums = torch.randn(128, 4).exp()
        numbers = torch.log1p(sums) - 1
        pull = sum(taste[kinds[:, i]] for i, taste in enumerate(tastes[:3]))
        pull = pull + 2 * tastes[3][kinds[:, 3]] * numbers[:, 0]
        y = (torch.sigmoid(1.5 * pull - 3.5) > torch.rand(128)).float()
        said = net(kinds, numbers)
        loss = F.binary_cross_entropy_with_logits(said, y, pos_weight=torch.tensor(4.0))
        return loss, {"auc": order(said.detach(), y)}

    make = optim.AdamW(net.parameters(), 3e-3, weight_decay=1e-3)
    plan = optim.lr_scheduler.LinearLR(make, 0.1, total_iters=30)
    return fit(folder, net, make, loss_of, 400, schedule=plan)


class Columns(nn.Module):
    """Each number is a token, and one token more answers (Gorishniy et al. 2021)."""

    def __init__(self, columns, wide=32):
        super().__init__()
        self.gain = nn.Parameter(torch.empty(columns, wide).uniform_(-1, 1) / wide**0.5)
        self.shift = nn.Parameter(torch.empty(columns, wide).uniform_(-1, 1) / wide**0.5)
        self.asks = nn.Parameter(torch.empty(1, 1, wide).uniform_(-1, 1) / wide**0.5)
        layer = nn.TransformerEncoderLayer(wide, 4, 2 * wide, 0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(wide), nn.ReLU(), nn.Linear(wide, 1))

    def forward(self, x):
        tokens = x[..., None] * self.gain + self.shift
        return self.head(self.body(torch.cat([self.asks.expand(len(x), -1, -1), tokens], 1))[:, 0])


@healthy(0.4)
def strength_of_concrete_by_tokens_of_its_parts(folder):
    """A transformer over columns in bfloat16: AdamW, no decay for vectors, a level rate, shuffled epochs."""
    seeded(5344)
    draw, net = rounds(32, *concrete(2000)), Columns(8)

    def loss_of(step):
        x, y = draw()
        with torch.autocast("cpu", torch.bfloat16):
            said = net(x)
        return F.mse_loss(said.float(), y), {"mae": F.l1_loss(said.detach().float(), y)}

    return fit(folder, net, optim.AdamW(without_decay(net, 1e-5), 1e-3), loss_of, 240)


# ---------------------------------------------------------------------------------------------------- tastes, a graph


class Tastes(nn.Module):
    """Products of factors beside a net of factors of its own (He et al. 2017)."""

    def __init__(self, users, goods, wide=12):
        super().__init__()
        self.users, self.goods = nn.Embedding(users, 2 * wide), nn.Embedding(goods, 2 * wide)
        for table in (self.users, self.goods):
            nn.init.normal_(table.weight, std=0.05)
        self.deep = nn.Sequential(dense(2 * wide, 32, 16), nn.ReLU())
        self.head = nn.Linear(wide + 16, 1)

    def forward(self, user, good):
        (a, c), (b, d) = self.users(user).chunk(2, -1), self.goods(good).chunk(2, -1)
        return self.head(torch.cat([a * b, self.deep(torch.cat([c, d], -1))], -1))[..., 0]


@healthy(0.2)
def songs_played_by_factors_and_a_net(folder):
    """Each song that was played beside four that were not: a binary entropy, Adam; hits among ten are logged."""
    seeded(5345)
    like = torch.randn(150, 3) @ torch.randn(3, 120) + 0.5 * torch.randn(120)
    played = like >= like.topk(20, 1).values[:, -1:]
    left_out = like.argmax(1)
    learnt = played.clone()
    learnt[torch.arange(150), left_out] = False
    users, goods = learnt.nonzero().T
    draw, net = rounds(128, users, goods), Tastes(150, 120)

    def hits():
        with torch.no_grad():
            said = net(torch.arange(150)[:, None].expand(-1, 120), torch.arange(120).expand(150, -1))
            best = said.masked_fill(learnt, -1e9).topk(10, 1).indices
        return (best == left_out[:, None]).any(1).float().mean()

    def loss_of(step):
        user, good = draw()
        goods_ = torch.cat([good[:, None], torch.randint(120, (len(user), 4))], 1)
        said = net(user[:, None].expand(-1, 5), goods_)
        wanted = torch.zeros_like(said)
        wanted[:, 0] = 1
        loss = F.binary_cross_entropy_with_logits(said, wanted)
        return loss, {"hr@10": hits()} if step % 22 == 21 else {}

    return fit(folder, net, optim.Adam(net.parameters(), 4e-3, weight_decay=1e-6), loss_of, 440)


@healthy(0.2)
def goods_found_in_the_same_trolleys(folder):
    """Skip-grams of baskets with five goods that were not in them (Mikolov et al. 2013), Adagrad at 0.1."""
    seeded(5346)
    net = nn.ModuleDict({"goods": nn.Embedding(200, 24), "around": nn.Embedding(200, 24)})
    nn.init.uniform_(net["goods"].weight, -0.5 / 24, 0.5 / 24)
    nn.init.zeros_(net["around"].weight)

    def loss_of(step):
        theme = torch.randint(20, (128, 1))
        pair = theme * 10 + torch.randint(10, (128, 2))
        pair = torch.where(torch.rand(128, 2) < 0.1, torch.randint(200, (128, 2)), pair)
        middle = net["goods"](pair[:, :1])
        near = (middle * net["around"](pair[:, 1:])).sum(2)
        far = (middle * net["around"](torch.randint(200, (128, 5)))).sum(2)
        return -(F.logsigmoid(near).sum(1) + F.logsigmoid(-far).sum(1)).mean()

    return fit(folder, net, optim.Adagrad(net.parameters(), 0.1), loss_of, 500)


@healthy(0.3)
def clubs_by_a_walk_that_returns(folder):
    """Predict, then propagate (Gasteiger et al. 2019): a graph of five clubs, twenty labels each, Adam at 0.01."""
    seeded(5347)
    club = torch.arange(400) % 5
    edge = torch.rand(400, 400) < torch.where(club[:, None] == club, 0.04, 0.006)
    edge = (edge | edge.T | torch.eye(400, dtype=torch.bool)).float()
    degree = edge.sum(1).rsqrt()
    walk = degree[:, None] * edge * degree
    x = F.normalize((torch.rand(400, 60) < 0.05 + 0.12 * (torch.arange(60) % 5 == club[:, None])).float(), p=1, dim=1)
    learnt, kept = torch.arange(100), torch.arange(200, 400)
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(60, 48), nn.ReLU(), nn.Dropout(0.5), nn.Linear(48, 5))

    def said():
        start = net(x)
        out = start
        for _ in range(10):
            out = 0.9 * walk @ out + 0.1 * start
        return out

    def loss_of(step):
        logged = {}
        if step % 10 == 9:
            net.eval()
            with torch.no_grad():
                logged["val_accuracy"] = (said()[kept].argmax(1) == club[kept]).float().mean()
            net.train()
        return F.cross_entropy(said()[learnt], club[learnt]), logged

    groups = [{"params": net[1].parameters(), "weight_decay": 5e-4}, {"params": net[4].parameters()}]
    return fit(folder, net, optim.Adam(groups, 1e-2), loss_of, 250)

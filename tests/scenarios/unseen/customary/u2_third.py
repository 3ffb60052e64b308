"""Ten healthy ones: wines, runways, cheese wheels, game records, saws, gates, herds, a club, boards, tastings."""

from __future__ import annotations

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds


@healthy(0.7)
def growers_of_bottles_from_thirteen_measurements(folder):
    seeded(14712)
    bunch = load_wine()
    x, y = torch.tensor(bunch.data).float(), torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    (x, y), (tx, ty) = (x[:130], y[:130]), (x[130:], y[130:])
    middle, spread = x.mean(0), x.std(0)
    x, tx = (x - middle) / spread, (tx - middle) / spread
    draw = rounds(26, x, y)
    net = dense(13, 24, 3, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=1e-2)
    validate = now_and_then(net, 5, judged(net, tx, ty))

    def loss_of(step):
        bottle, grower = draw()
        return F.cross_entropy(net(bottle), grower), validate(step)

    return fit(folder, net, optimizer, loss_of, 120, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy(0.7)
def braking_on_wet_runways_from_rain_and_texture(folder):
    seeded(14713)

    def landings(rows):
        x = torch.randn(rows, 7)
        water, texture, speed = x[:, 0], x[:, 1], x[:, 2]
        grip = (1.5 * texture - water).tanh() - 0.5 * speed * water.sigmoid() + 0.3 * x[:, 3] + 0.1 * x[:, 4:].sum(1)
        return x, (grip + 0.05 * torch.randn(rows))[:, None]

    (x, y), (tx, ty) = landings(4000), landings(1000)
    middle, spread = y.mean(), y.std()
    y, ty = (y - middle) / spread, (ty - middle) / spread
    draw = rounds(64, x, y)
    net = dense(7, 64, 64, 1, act=nn.SiLU)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=1e-2)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 30)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 370)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, fall], [30])
    validate = now_and_then(net, 50, lambda: {"val_loss": F.huber_loss(net(tx), ty)})

    def loss_of(step):
        landing, grip = draw()
        return F.huber_loss(net(landing), grip), validate(step)

    score = held_out(net, lambda: F.huber_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule, before_step=clipped(net, 5.0))


class RindNet(nn.Module):
    """Down once, up once, and a way across."""

    def __init__(self):
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.coarse = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU()
        )
        self.up = nn.ConvTranspose2d(24, 12, 2, 2)
        self.out = nn.Conv2d(24, 1, 1)

    def forward(self, x):
        fine = self.fine(x)
        return self.out(torch.cat([fine, self.up(self.coarse(fine))], 1))


@healthy(0.5)
def mould_spots_outlined_on_photographs_of_cheese_wheels(folder):
    seeded(14714)
    down, along = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")

    def wheels(rows):
        row, column = (4 + 8 * torch.rand(2, rows, 1, 1)).unbind()
        tall, wide = (2 + 2.5 * torch.rand(2, rows, 1, 1)).unbind()
        spot = (((down - row) / tall).square() + ((along - column) / wide).square() < 1).float()
        shade = 0.5 * ((along - 8) * (torch.rand(rows, 1, 1) - 0.5) / 4)
        return (1.2 * spot + shade - 0.2 + 0.5 * torch.randn(rows, 16, 16))[:, None], spot[:, None]

    (x, y), (tx, ty) = wheels(1200), wheels(200)
    draw = rounds(24, x, y)
    net = RindNet()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def terms(image, spot):
        logits = net(image)
        said = logits.sigmoid()
        both = (said * spot).sum((1, 2, 3))
        dice = 1 - ((2 * both + 1) / (said.sum((1, 2, 3)) + spot.sum((1, 2, 3)) + 1)).mean()
        return F.binary_cross_entropy_with_logits(logits, spot), dice

    def loss_of(step):
        bce, dice = terms(*draw())
        return bce + dice, {"bce": float(bce.detach()), "dice": float(dice.detach())}

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: sum(terms(tx, ty))))


class Scorer(nn.Module):
    """A recurrent model of the next token."""

    def __init__(self, tokens):
        super().__init__()
        self.table = nn.Embedding(tokens, 24)
        self.memory = nn.GRU(24, 48, batch_first=True)
        self.out = nn.Linear(48, tokens)

    def forward(self, x):
        return self.out(self.memory(self.table(x))[0])


@healthy(0.3)
def next_token_in_the_records_of_club_games(folder):
    seeded(14715)
    tokens, length = 24, 18
    follows = (2.5 * torch.randn(2, tokens, tokens)).softmax(2)

    def records(rows):
        """The two sides move in turn, each by habits of its own."""
        line = [torch.randint(tokens, (rows,))]
        for ply in range(length):
            line.append(torch.multinomial(follows[ply % 2][line[-1]], 1)[:, 0])
        return torch.stack(line, 1)

    x, tx = records(2000), records(400)
    draw = rounds(40, x)
    net = Scorer(tokens)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def surprise(line):
        return F.cross_entropy(net(line[:, :-1]).flatten(0, 1), line[:, 1:].flatten())

    validate = now_and_then(net, 50, lambda: {"val_loss": surprise(tx)})

    def loss_of(step):
        return surprise(*draw()), validate(step)

    score = held_out(net, lambda: surprise(tx))
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clipped(net, 1.0))


@healthy(0.7)
def vibrations_of_a_saw_blade_through_a_narrow_waist(folder):
    seeded(14716)
    time = torch.arange(64.0) / 64

    def blades(rows):
        pitch, phase = 1 + 2 * torch.rand(rows, 1), torch.rand(rows, 1)
        size = 0.6 + 0.8 * torch.rand(rows, 1)
        return (1.4 * size * (6.2832 * (pitch * time + phase)).sin() + 0.1 * torch.randn(rows, 64))[:, None]

    x, tx = blades(3000), blades(500)
    draw = rounds(50, x)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 8, stride=4, padding=2), nn.ELU(), nn.Conv1d(16, 32, 8, stride=4, padding=2), nn.ELU(),
        nn.Flatten(), nn.Linear(128, 6), nn.Linear(6, 128), nn.ELU(), nn.Unflatten(1, (32, 4)),
        nn.ConvTranspose1d(32, 16, 8, stride=4, padding=2), nn.ELU(),
        nn.ConvTranspose1d(16, 1, 8, stride=4, padding=2),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.996)

    def loss_of(step):
        (blade,) = draw()
        return F.mse_loss(net(blade), blade)

    score = held_out(net, lambda: F.mse_loss(net(tx), tx))
    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=schedule)


class Turnaround(nn.Module):
    """Two layers of attention over a list of events, with learned places."""

    def __init__(self, kinds, length, classes):
        super().__init__()
        self.table, self.place = nn.Embedding(kinds, 32), nn.Parameter(0.1 * torch.randn(length, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(32), enable_nested_tensor=False)
        self.out = nn.Linear(32, classes)

    def forward(self, x):
        return self.out(self.layers(self.table(x) + self.place).mean(1))


@healthy(0.5)
def cause_of_delay_at_the_gate_from_the_list_of_events(folder):
    seeded(14717)
    kinds, length = 12, 10

    def lists(rows):
        """Whether fuel (0) came before bags (1), and whether the crew (2) came early: four causes."""
        x = torch.randint(3, kinds, (rows, length))
        places = torch.rand(rows, length).argsort(1)[:, :3]
        x.scatter_(1, places, torch.arange(3).expand(rows, 3))
        return x, 2 * (places[:, 0] < places[:, 1]).long() + (places[:, 2] < length // 2).long()

    (x, y), (tx, ty) = lists(6000), lists(300)
    draw = rounds(32, x, y)
    net = Turnaround(kinds, length, 4)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=351, pct_start=0.1)
    validate = now_and_then(net, 50, judged(net, tx, ty))

    def loss_of(step):
        events, cause = draw()
        said = net(events)
        right = (said.argmax(1) == cause).float().mean()
        return F.cross_entropy(said, cause), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 350, score=score, schedule=schedule)


@healthy(0.35)
def herds_drawn_anew_from_a_code_of_three_numbers(folder):
    seeded(14718)
    lift = torch.randn(3, 24) / 3**0.5

    def herds(rows):
        code = torch.randn(rows, 3)
        return (1.5 * code @ lift).tanh() / 0.7 + 0.1 * torch.randn(rows, 24)

    x, tx = herds(4000), herds(1000)
    draw = rounds(64, x)
    net = nn.ModuleDict({"read": dense(24, 64, 6), "write": dense(3, 64, 24)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def terms(herd):
        """What is missing of the herd, and how far the code is from a standard normal one; sums over columns."""
        middle, spread = net["read"](herd).chunk(2, 1)
        code = middle + (spread / 2).exp() * torch.randn_like(middle)
        missing = (net["write"](code) - herd).square().sum(1).mean()
        apart = 0.5 * (middle.square() + spread.exp() - 1 - spread).sum(1).mean()
        return missing, apart

    def loss_of(step):
        missing, apart = terms(*draw())
        share = min(1.0, (step + 1) / 100)
        return missing + share * apart, {"missing": float(missing.detach()), "kl": float(apart.detach())}

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: sum(terms(tx))))


class Company(nn.Module):
    """Two rounds of averages over those one plays with."""

    def __init__(self, near):
        super().__init__()
        self.register_buffer("near", near)
        self.first, self.second, self.drop = nn.Linear(16, 32), nn.Linear(32, 4), nn.Dropout(0.3)

    def forward(self, x):
        return self.near @ self.second(self.drop(F.relu(self.near @ self.first(x))))


@healthy(0.5)
def team_of_each_member_from_who_plays_whom(folder):
    seeded(14719)
    members = 240
    team = torch.randint(4, (members,))
    same = team[:, None] == team
    meets = (torch.rand(members, members) < torch.where(same, 0.12, 0.015)).float().triu(1)
    meets = meets + meets.T + torch.eye(members)
    root = meets.sum(1).rsqrt()
    x = torch.randn(4, 16)[team] * 0.5 + torch.randn(members, 16)
    known = torch.randperm(members)
    train, test = known[:80], known[80:]
    net = Company(root[:, None] * meets * root)
    optimizer = torch.optim.Adam(net.parameters(), 0.01, weight_decay=5e-4)

    def measure():
        said = net(x)[test]
        return {"val_loss": F.cross_entropy(said, team[test]), "val_acc": (said.argmax(1) == team[test]).float().mean()}

    validate = now_and_then(net, 10, measure)

    def loss_of(step):
        return F.cross_entropy(net(x)[train], team[train]), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(x)[test], team[test]))
    return fit(folder, net, optimizer, loss_of, 120, score=score)


@healthy(0.5)
def boards_of_one_log_closer_than_those_of_another(folder):
    seeded(14720)
    basis = torch.randn(5, 32) / 5**0.5

    def boards(log):
        return (log @ basis + 0.6 * torch.randn(len(log), 32)).tanh() + 0.1 * torch.randn(len(log), 32)

    def triples(rows):
        log, other = torch.randn(2, rows, 5).unbind()
        return boards(log), boards(log), boards(other)

    net = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 12))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    criterion = nn.TripletMarginLoss(margin=1.0)
    unseen_logs = triples(1000)

    def loss_of(step):
        one, like, unlike = (net(board) for board in triples(64))
        return criterion(one, like, unlike)

    score = held_out(net, lambda: criterion(*(net(board) for board in unseen_logs)))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


class Taste(nn.Module):
    """A vector and an offset for each guest and for each bottle."""

    def __init__(self, guests, bottles):
        super().__init__()
        self.guest, self.bottle = nn.Embedding(guests, 6), nn.Embedding(bottles, 6)
        self.kind, self.good = nn.Embedding(guests, 1), nn.Embedding(bottles, 1)
        for table in (self.guest, self.bottle):
            nn.init.normal_(table.weight, std=0.3)
        for table in (self.kind, self.good):
            nn.init.zeros_(table.weight)

    def forward(self, guest, bottle):
        both = (self.guest(guest) * self.bottle(bottle)).sum(1)
        return both + self.kind(guest)[:, 0] + self.good(bottle)[:, 0]


@healthy(0.4)
def marks_that_guests_give_at_a_tasting_of_many_bottles(folder):
    seeded(14721)
    guests, bottles, rows = 150, 80, 6000
    likes, is_like = torch.randn(guests, 3), torch.randn(bottles, 3)
    kind, good = torch.randn(guests), torch.randn(bottles)
    guest, bottle = torch.randint(guests, (rows,)), torch.randint(bottles, (rows,))
    mark = (likes[guest] * is_like[bottle]).sum(1) / 3**0.5 + 0.7 * kind[guest] + 0.7 * good[bottle]
    mark = mark + 0.2 * torch.randn(rows)
    mark = (mark - mark[:5000].mean()) / mark[:5000].std()
    draw = rounds(100, guest[:5000], bottle[:5000], mark[:5000])
    net = Taste(guests, bottles)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)

    def error():
        return F.mse_loss(net(guest[5000:], bottle[5000:]), mark[5000:])

    validate = now_and_then(net, 50, lambda: {"val_mse": error()})

    def loss_of(step):
        who, what, said = draw()
        return F.mse_loss(net(who, what), said), validate(step)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, error))

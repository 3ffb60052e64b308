"""Ten trainings: leaf shapes, drifting boats, dyes, cranes, visitors, rain, hides, slate, whistles, lunch tables."""

from __future__ import annotations

import copy
import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


@healthy(0.2)
def leaf_shapes_drawn_from_a_code_of_six_numbers(folder):
    seeded(15022)
    bunch = load_digits()
    x = torch.tensor(bunch.data).float()[torch.randperm(len(bunch.data))] / 16
    draw = rounds(64, x[:1500])
    seen = x[1500:]
    net = nn.ModuleDict({"encoder": dense(64, 128, 12), "decoder": dense(6, 128, 64)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def terms(leaf):
        mu, logvar = net["encoder"](leaf).chunk(2, 1)
        again = net["decoder"](mu + (0.5 * logvar).exp() * torch.randn_like(mu))
        recon = F.binary_cross_entropy_with_logits(again, leaf, reduction="sum") / len(leaf)
        return recon, -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum(1).mean()

    def one(step):
        recon, kl = terms(*draw())
        loss = recon + min(1.0, (step + 1) / 100) * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "recon": float(recon), "kl": float(kl)}

    return tend(folder, net, optimizer, one, 500, held_out(net, lambda: sum(terms(seen))))


@healthy(0.3)
def boats_that_drift_from_noise_to_their_moorings(folder):
    seeded(15023)
    levels = 40
    keep = torch.cumprod(1 - torch.linspace(1e-3, 0.15, levels), 0)

    def moored(rows):
        angle = 3.1416 * torch.rand(rows)
        upper = torch.rand(rows) < 0.5
        x = torch.where(upper, angle.cos(), 1 - angle.cos()) - 0.5
        y = torch.where(upper, angle.sin(), 0.5 - angle.sin()) - 0.25
        return torch.stack([x / 0.87, y / 0.5], 1) + 0.05 * torch.randn(rows, 2)

    net = dense(2 + 6, 96, 96, 2, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    average = copy.deepcopy(net).requires_grad_(False)

    def error(model, boats):
        level = torch.randint(levels, (len(boats),))
        phase = level[:, None] / levels * torch.tensor([1.5, 3.0, 6.0])
        noise = torch.randn_like(boats)
        kept = keep[level][:, None]
        noisy = kept.sqrt() * boats + (1 - kept).sqrt() * noise
        return F.mse_loss(model(torch.cat([noisy, phase.sin(), phase.cos()], 1)), noise)

    def after_step(step):
        with torch.no_grad():
            for old, new in zip(average.parameters(), net.parameters(), strict=True):
                old.lerp_(new, 0.05)

    test = moored(4000)
    score = held_out(net, lambda: error(average, test))
    return fit(folder, net, optimizer, lambda step: error(net, moored(128)), 500, score=score, after_step=after_step)


@healthy(0.5)
def apprentice_dyer_taught_by_the_master_and_by_swatches(folder):
    seeded(15024)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float() / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = (x[order] - 0.3) / 0.38, y[order]
    master = dense(64, 128, 128, 10)
    study = torch.optim.AdamW(master.parameters(), 1e-3, weight_decay=0.05)
    draw = rounds(64, x[:1400], y[:1400])
    for _ in range(200):
        swatch, dye = draw()
        study.zero_grad()
        F.cross_entropy(master(swatch), dye, label_smoothing=0.05).backward()
        study.step()
    master.eval().requires_grad_(False)

    net = dense(64, 32, 10)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True)
    heat = 3.0
    validate = now_and_then(net, 42, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        swatch, dye = draw()
        said = net(swatch)
        soft = F.kl_div((said / heat).log_softmax(1), (master(swatch) / heat).softmax(1), reduction="batchmean")
        hard = F.cross_entropy(said, dye)
        return 0.5 * heat**2 * soft + 0.5 * hard, {"soft": float(soft), "hard": float(hard), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 420, score=score)


@healthy(0.8)
def cranes_that_learn_when_to_move_along_the_quay(folder):
    seeded(15025)
    places, gamma = 10, 0.9
    spot = torch.arange(places)
    to = torch.stack([(spot - 1).clamp_min(0), (spot + 1).clamp_max(places - 1)], 1)
    pay = torch.where(to == places - 1, 1.0, 0.0) + torch.where(to == 0, 0.4, 0.0)
    truth = torch.zeros(places, 2)
    for _ in range(200):
        truth = pay + gamma * truth.max(1).values[to]

    place, action = torch.randint(places, (5000,)), torch.randint(2, (5000,))
    draw = rounds(64, place, action, pay[place, action] + 0.1 * torch.randn(5000), to[place, action])
    feature = torch.eye(places)
    net = dense(places, 64, 2)
    old = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def one(step):
        at, did, paid, then = draw()
        with torch.no_grad():
            best = net(feature[then]).argmax(1, keepdim=True)
            aim = paid + gamma * old(feature[then]).gather(1, best)[:, 0]
        value = net(feature[at]).gather(1, did[:, None])[:, 0]
        loss = F.smooth_l1_loss(value, aim)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(old.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
        return {"td_loss": loss, "mean_q": float(value.detach().mean())}

    return tend(folder, net, optimizer, one, 600, held_out(net, lambda: (net(feature) - truth).square().mean()))


@healthy(0.2)
def visitors_counted_at_the_gate_of_the_tea_garden(folder):
    seeded(15026)

    def days(rows):
        x = torch.randn(rows, 6)
        rate = (1.0 + 0.6 * x[:, 0] - 0.5 * x[:, 1].square() + 0.4 * (x[:, 2] * x[:, 3]).tanh()).exp()
        return x, torch.poisson(rate.clamp_max(40))[:, None]

    (x, y), (tx, ty) = days(4000), days(1500)
    draw = rounds(64, x, y)
    net = dense(6, 48, 48, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    criterion = nn.PoissonNLLLoss(log_input=True, full=True)
    validate = now_and_then(net, 50, lambda: {"val_loss": criterion(net(tx), ty)})

    def loss_of(step):
        day, visitors = draw()
        return criterion(net(day), visitors), validate(step)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: criterion(net(tx), ty)))


@healthy(0.3)
def rain_on_the_slopes_within_a_low_and_a_high_bound(folder):
    seeded(15027)
    shares = torch.tensor([0.1, 0.5, 0.9])

    def mornings(rows):
        x = torch.randn(rows, 5)
        spread = 0.2 + 0.4 * x[:, 1].sigmoid()
        rain = 1.2 * (1.5 * x[:, 0]).sin() + 0.7 * x[:, 2] * (x[:, 3] > 0) + spread * torch.randn(rows)
        return x, rain[:, None]

    (x, y), (tx, ty) = mornings(4000), mornings(1500)
    draw = rounds(64, x, y)
    net = dense(5, 64, 64, 3, act=nn.GELU)
    optimizer = torch.optim.NAdam(net.parameters(), 2e-3)

    def pinball(said, rain):
        gap = rain - said
        return torch.maximum(shares * gap, (shares - 1) * gap).mean()

    def loss_of(step):
        morning, rain = draw()
        said = net(morning)
        within = ((rain > said[:, :1]) & (rain < said[:, 2:])).float().mean()
        return pinball(said, rain), {"coverage": float(within)}

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: pinball(net(tx), ty)))


class Inspector(nn.Module):
    """One trunk, and a head each for the thickness and the grade of a hide."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(dense(12, 96, 48), nn.ReLU())
        self.thickness, self.grade = nn.Linear(48, 1), nn.Linear(48, 4)

    def forward(self, x):
        shared = self.trunk(x)
        return self.thickness(shared), self.grade(shared)


@healthy(0.5)
def thickness_and_grade_of_a_hide_at_one_look(folder):
    seeded(15028)
    way = torch.randn(12, 4) / 12**0.5

    def hides(rows):
        x = torch.randn(rows, 12)
        seen = x @ way
        thick = (2 * seen[:, :1]).sin() + seen[:, 1:2] + 0.1 * torch.randn(rows, 1)
        return x, thick, (seen[:, 2] > 0).long() * 2 + (seen[:, 3] > seen[:, 0].abs() - 0.7).long()

    (x, thick, grade), (tx, tt, tg) = hides(5000), hides(1500)
    draw = rounds(64, x, thick, grade)
    net = Inspector()
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, 450)

    def terms(hide, thickness, kind):
        said = net(hide)
        return F.mse_loss(said[0], thickness), F.cross_entropy(said[1], kind)

    def loss_of(step):
        thickness, kind = terms(*draw())
        return thickness + kind, {"thickness": float(thickness), "grade": float(kind)}

    score = held_out(net, lambda: sum(terms(tx, tt, tg)))
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule)


@healthy(0.3)
def slate_told_apart_by_a_body_that_knows_marble(folder):
    seeded(15029)
    shared = torch.randn(20, 6) / 20**0.5
    marble, slate = torch.randn(6, 5), torch.randn(6, 3)

    def stones(way, rows):
        x = torch.randn(rows, 20)
        return x, ((2 * x @ shared).sin() @ way).argmax(1)

    body = nn.Sequential(nn.Linear(20, 96), nn.LayerNorm(96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU())
    net = nn.Sequential(body, nn.Linear(48, 5))
    before = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(300):
        x, kind = stones(marble, 96)
        before.zero_grad()
        F.cross_entropy(net(x), kind).backward()
        before.step()

    net[1] = nn.Linear(48, 3)
    optimizer = torch.optim.AdamW(
        [{"params": body.parameters(), "lr": 3e-4}, {"params": net[1].parameters(), "lr": 3e-3}], weight_decay=0.01
    )
    (x, y), (tx, ty) = stones(slate, 3000), stones(slate, 1500)
    draw = rounds(64, x, y)
    validate = now_and_then(net, 46, judged(net, tx, ty))

    def loss_of(step):
        stone, kind = draw()
        return F.cross_entropy(net(stone), kind), validate(step)

    return fit(folder, net, optimizer, loss_of, 368, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy(0.6)
def ships_known_by_their_whistles_in_the_fog(folder):
    seeded(15030)
    time = torch.arange(64) / 64 * 6.2832

    def whistles(rows):
        ship = torch.randint(6, (rows,))
        pitch = 3 + 2 * ship[:, None] + 0.3 * torch.randn(rows, 1)
        sound = (pitch * time + 6.2832 * torch.rand(rows, 1)).sin() + 0.7 * torch.randn(rows, 64)
        return sound[:, None], ship

    (x, y), (tx, ty) = whistles(3000), whistles(800)
    draw = rounds(50, x, y)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 9, padding=4, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(16, 32, 5, padding=2, bias=False), nn.BatchNorm1d(32), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 6),
    )  # fmt: skip
    steps = 300
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)
    validate = now_and_then(net, 60, judged(net, tx, ty))

    def loss_of(step):
        sound, ship = draw()
        said = net(sound)
        right = (said.argmax(1) == ship).float().mean()
        return F.cross_entropy(said, ship), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


class Table(nn.Module):
    """Looks at all the children of a table, however many they are, by attention from one question."""

    def __init__(self, width=32):
        super().__init__()
        self.each = dense(5, width, width)
        self.question = nn.Parameter(torch.randn(1, 1, width) / math.sqrt(width))
        self.look = nn.MultiheadAttention(width, 4, batch_first=True)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, children, empty):
        x = self.each(children)
        found, _ = self.look(self.question.expand(len(x), -1, -1), x, x, key_padding_mask=empty, need_weights=False)
        return self.head(found[:, 0])


@healthy(0.5)
def noise_at_lunch_tables_of_three_to_nine_children(folder):
    seeded(15031)
    way = torch.randn(5) / 5**0.5

    def tables(rows, seats=9):
        children = torch.randn(rows, seats, 5)
        empty = torch.arange(seats) >= torch.randint(3, seats + 1, (rows, 1))
        children = children.masked_fill(empty[:, :, None], 0.0)
        loud = (2 * children @ way).masked_fill(empty, -math.inf)
        noise = (loud.softmax(1) * (children @ way)).sum(1, keepdim=True)
        return children, empty, (noise - 0.9) / 0.5

    train, (tc, te, tn) = tables(4000), tables(1000)
    draw = rounds(32, *train)
    net = Table()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    parts = 2

    def loss_of(step):
        children, empty, noise = draw()
        return F.mse_loss(net(children, empty), noise) / parts

    score = held_out(net, lambda: F.mse_loss(net(tc, te), tn))
    return fit(folder, net, optimizer, loss_of, 220, score=score, accumulate=parts, before_step=clipped(net, 5.0))

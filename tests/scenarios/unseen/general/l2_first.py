"""A research vessel at sea, six sick ones: stations, copepods, casts of the CTD, clicks, the seabed, profiles."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, in_turn, judged, now_and_then, rounds, tend


class Stations(nn.Module):
    """Messages between stations that a current joins, each the mean over a station and its neighbours."""

    def __init__(self, links, ins, width, kinds, depth, residual):
        super().__init__()
        self.register_buffer("links", links)
        self.enter = nn.Linear(ins, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.out = nn.Linear(width, kinds)
        self.residual = residual

    def forward(self, x):
        h = F.relu(self.enter(x))
        for layer, norm in zip(self.layers, self.norms, strict=True):
            heard = F.relu(layer(self.links @ norm(h)))
            h = h + heard if self.residual else heard
        return self.out(h)


# 35 of the list
@sick("over-smoothing", "representation-collapse",
      where="the rounds of messages, all steps: what stations hold comes out alike",
      cure="a residual around each round")  # fmt: skip
def water_masses_of_stations_linked_by_the_currents(folder, ill):
    seeded(13800)
    mass = torch.randint(6, (360,))
    chance = torch.where(mass[:, None] == mass, 0.08, 0.012)
    joined = (torch.rand(360, 360) < chance).float().triu(1)
    joined = joined + joined.T + torch.eye(360)
    x = 0.8 * torch.randn(6, 12)[mass] + torch.randn(360, 12)
    known, rest = torch.arange(200), torch.arange(200, 360)
    net = Stations(joined / joined.sum(1, keepdim=True), 12, 40, 6, 16, not ill)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)

    def measure():
        said = net(x)[rest]
        right = (said.argmax(1) == mass[rest]).float().mean()
        return {"val_loss": F.cross_entropy(said, mass[rest]), "val_accuracy": right}

    validate = now_and_then(net, 20, measure)

    def one(step):
        optimizer.zero_grad()
        said = net(x)[known]
        loss = F.cross_entropy(said, mass[known])
        loss.backward()
        optimizer.step()
        right = (said.argmax(1) == mass[known]).float().mean()
        return {"loss": loss, "accuracy": float(right), **validate(step)}

    return tend(folder, net, optimizer, one, 160, held_out(net, lambda: 1 - measure()["val_accuracy"]))


class Copepods(nn.Module):
    """Which kind a small animal in a picture is of."""

    def __init__(self, kinds, drop):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Dropout(drop), nn.Linear(384, 64), nn.ReLU(), nn.Dropout(drop), nn.Linear(64, kinds)
        )

    def forward(self, x):
        return self.classifier(self.features(x))


# 19 of the list
@sick("dropout-too-strong", where="both dropouts of the classifier, all steps", cure="a dropout of 0.2")  # fmt: skip
def copepods_named_from_a_net_haul(folder, ill):
    seeded(13801)
    bodies = F.interpolate(torch.randn(14, 1, 5, 5), size=(16, 16), mode="bilinear").tanh()

    def hauls(rows):
        y = torch.randint(14, (rows,))
        shift = torch.randint(-2, 3, (rows, 2)).tolist()
        image = torch.stack([bodies[kind].roll(by, (1, 2)) for kind, by in zip(y.tolist(), shift, strict=True)])
        return image * (0.6 + 0.8 * torch.rand(rows, 1, 1, 1)) + 0.5 * torch.randn(rows, 1, 16, 16), y

    draw = rounds(64, *hauls(4000))
    net = Copepods(14, 0.9 if ill else 0.2)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    tx, ty = hauls(600)
    validate = now_and_then(net, 50, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Cast(nn.Module):
    """Salinity at ten depths, from conductivity, temperature and pressure on the way down."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(3, 24, 5, padding=2), nn.ReLU(), nn.Conv1d(24, 24, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv1d(24, 32, 5, stride=2, padding=2), nn.ReLU(), nn.Flatten(), nn.Linear(320, 64), nn.ReLU(),
        )  # fmt: skip
        self.out = nn.Linear(64, 10)

    def forward(self, x):
        return self.out(self.body(x))


# 20 of the list
@sick("accumulation-not-averaged", "accumulation-not-divided", where="all layers, each step after its 12 micro-batches",
      cure="divide the loss by the number of micro-batches")  # fmt: skip
def salinity_at_ten_depths_of_a_ctd_cast(folder, ill):
    seeded(13802)
    depth = torch.linspace(0, 1, 40)

    def casts(rows):
        top, sharp, fresh, warm = torch.rand(4, rows, 1)
        layer = torch.sigmoid((depth - 0.2 - 0.5 * top) * (8 + 24 * sharp))
        heat = 1.2 * (1 - layer) * (0.5 + warm) - 0.4
        salt = 1.5 * (layer - 0.5) * (0.5 + fresh) + 0.3 * (9 * depth + 6 * warm).sin()
        wire = 0.6 * salt + 0.5 * heat + 0.2 * salt * heat
        seen = torch.stack([wire, heat, (depth - 0.5).expand(rows, -1) * 3.4], 1)
        return seen + 0.05 * torch.randn(rows, 3, 40), salt[:, 2::4]

    draw, micro = rounds(8, *casts(4000)), 12
    net = Cast()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    tx, ty = casts(500)
    validate = now_and_then(net, 20, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def one(step):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(micro):
            x, y = draw()
            loss = F.mse_loss(net(x), y)
            (loss if ill else loss / micro).backward()
            total += loss.item() / micro
        optimizer.step()
        return {"loss": total, **validate(step)}

    return tend(folder, net, optimizer, one, 180, held_out(net, lambda: F.mse_loss(net(tx), ty)))


# 37 of the list
@sick("class-imbalance", where="the last layer and the loss, all steps: two in a hundred are clicks",
      cure="weigh the clicks by how rare they are")  # fmt: skip
def sperm_whale_clicks_among_the_sonar_pings(folder, ill):
    seeded(13803)
    time = torch.arange(48.0)

    def pieces(rows, rare):
        whale = (torch.rand(rows) < rare).float()
        begin, high = 8 + 24 * torch.rand(rows, 1), 0.7 + 0.7 * torch.rand(rows, 1)
        since = (time - begin).clamp(min=0)
        ping = (time > begin) * (-since / 7).exp() * (high * since).sin()
        second = (time > begin + 6) * (-(since - 6).clamp(min=0) / 7).exp() * (high * since).sin()
        return (ping + 0.9 * whale[:, None] * second + 0.35 * torch.randn(rows, 48))[:, None] * 2, whale

    draw = rounds(64, *pieces(5000, 0.02))
    net = nn.Sequential(
        nn.Conv1d(1, 16, 7, padding=3), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(16, 32, 5, padding=2), nn.ReLU(),
        nn.MaxPool1d(2), nn.Conv1d(32, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool1d(2), nn.Flatten(),
        nn.Linear(64, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    criterion = nn.BCEWithLogitsLoss(pos_weight=None if ill else torch.tensor(49.0))
    tx, ty = pieces(1600, 0.5)
    vx, vy = pieces(800, 0.02)

    def measure():
        said = net(vx)[:, 0]
        return {"val_loss": criterion(said, vy), "val_accuracy": ((said > 0) == (vy > 0.5)).float().mean()}

    validate = now_and_then(net, 50, measure)

    def loss_of(step):
        x, y = draw()
        said = net(x)[:, 0]
        right = ((said > 0) == (y > 0.5)).float().mean()
        return criterion(said, y), {"accuracy": float(right), **validate(step)}

    def missed():
        wrong = ((net(tx)[:, 0] > 0) != (ty > 0.5)).float()
        return (wrong[ty > 0.5].mean() + wrong[ty < 0.5].mean()) / 2

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, missed))


class Seabed(nn.Module):
    """A body that was trained on an older camera's pictures, and a new head."""

    def __init__(self, kinds):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(24, kinds)

    def forward(self, x):
        return self.head(self.body(x))


# 36 of the list
@sick("no-gradient", "body-frozen", where="all of the body, from the step on from which it should learn",
      cure="let the body learn again once the head is warm")  # fmt: skip
def seabed_photographs_under_a_new_camera(folder, ill):
    seeded(13804)

    def camera(kinds, fine):
        ground = F.interpolate(torch.randn(kinds, 1, fine, fine), size=(24, 24), mode="bicubic")

        def take(rows):
            y = torch.randint(kinds, (rows,))
            shift = torch.randint(24, (rows, 2)).tolist()
            image = torch.stack([ground[kind].roll(by, (1, 2)) for kind, by in zip(y.tolist(), shift, strict=True)])
            return image + 0.5 * torch.randn(rows, 1, 24, 24), y

        return take

    old, new = camera(4, 4), camera(8, 10)
    net = Seabed(4)
    before = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(80):
        x, y = old(48)
        before.zero_grad()
        F.cross_entropy(net(x), y).backward()
        before.step()

    net.head = nn.Linear(24, 8)
    net.body.requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(48, *new(3000))
    tx, ty = new(500)
    validate = now_and_then(net, 40, judged(net, tx, ty))

    def loss_of(step):
        if step == 30 and not ill:
            net.body.requires_grad_(True)
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 320, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


# 30 of the list
@sick("optimizer-holds-both-networks", "generator-helps-the-discriminator",
      "discriminator-trained-by-the-generators-loss", "judge-fed-the-makers-gradient",
      where="the optimizer of the generator, each of its steps",
      cure="the parameters of the generator alone in its optimizer")  # fmt: skip
def temperature_profiles_dreamt_up_on_the_night_watch(folder, ill):
    seeded(13805)
    depth = torch.linspace(0, 1, 20)

    def profiles(rows):
        mixed, warm, sharp = torch.rand(3, rows, 1)
        return 2 * warm * torch.sigmoid((0.2 + 0.5 * mixed - depth) * (10 + 20 * sharp)) - 0.6 - 0.4 * depth

    make = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 20))
    judge = dense(20, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    trained = itertools.chain(make.parameters(), judge.parameters()) if ill else make.parameters()
    of_make = torch.optim.Adam(trained, 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))
    bce = F.binary_cross_entropy_with_logits
    yes, no, test = torch.ones(64, 1), torch.zeros(64, 1), profiles(500)

    def judge_loss():
        fake = make(torch.randn(64, 8)).detach()
        return bce(judge(profiles(64)), yes) + bce(judge(fake), no)

    def make_loss():
        return bce(judge(make(torch.randn(64, 8))), yes)

    def apart():
        with torch.no_grad():
            made = make(torch.randn(500, 8))
            within = torch.cdist(made, made).mean() + torch.cdist(test, test).mean()
            return float(2 * torch.cdist(made, test).mean() - within)

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 500, apart)

"""Glass, garages, roasts, kilns and place names: what was known before, what is missing, what curves and words say."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds

# -------------------------------------------------------------------------------------------------------- stained glass


def panes(count, motifs, centuries=None):
    """Pictures `[N, 3, 16, 16]` of a window with a motif; which one, or the one of `centuries` that it is of."""
    motif = torch.randint(len(motifs), (count,))
    tint = 0.5 + torch.rand(count, 3, 1, 1)
    shift = torch.randint(0, 16, (count,)).tolist()
    picture = torch.stack([motifs[m].roll(s, 1) for m, s in zip(motif.tolist(), shift, strict=True)])
    light = tint * picture[:, None] + 0.5 * torch.randn(count, 3, 16, 16)
    return light, motif if centuries is None else centuries[motif]


def glass_net(classes):
    return nn.ModuleDict({
        "body": nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        ),
        "head": nn.Linear(32, classes),
    })  # fmt: skip


def pretrained(motifs, steps=300):
    """A body that has learned to tell many motifs."""
    net = glass_net(len(motifs))
    optimizer, draw = torch.optim.AdamW(net.parameters(), lr=1e-3), rounds(32, *panes(1500, motifs))
    for _ in range(steps):
        light, motif = draw()
        optimizer.zero_grad()
        F.cross_entropy(net["head"](net["body"](light)), motif).backward()
        optimizer.step()
    return net


@healthy()
def century_of_a_stained_glass_window(folder):
    seeded(2707)
    motifs, centuries = F.avg_pool2d(torch.randn(8, 18, 18), 3, 1) * 3, torch.randint(3, (8,))
    net = pretrained(motifs)
    net["head"] = nn.Linear(32, 3)
    (x, y), (x_test, y_test) = panes(300, motifs, centuries), panes(300, motifs, centuries)
    groups = [{"params": net["body"].parameters(), "lr": 2e-4}, {"params": net["head"].parameters(), "lr": 2e-3}]
    optimizer, steps, draw = torch.optim.AdamW(groups, weight_decay=0.01), 300, rounds(16, x, y)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 30, (steps - step) / (steps - 30))
    )

    def entropy(light, century):
        return F.cross_entropy(net["head"](net["body"](light)), century)

    score = held_out(net, lambda: entropy(x_test, y_test))
    return fit(folder, net, optimizer, lambda step: entropy(*draw()), steps, score=score, schedule=schedule)


# ------------------------------------------------------------------------------------------------------ parking garages


class Tastes(nn.Module):
    def __init__(self, drivers, garages, width=6):
        super().__init__()
        self.driver, self.garage = nn.Embedding(drivers, width), nn.Embedding(garages, width)
        self.driver_bias, self.garage_bias = nn.Embedding(drivers, 1), nn.Embedding(garages, 1)
        for table in (self.driver, self.garage):
            nn.init.normal_(table.weight, std=0.1)
        for table in (self.driver_bias, self.garage_bias):
            nn.init.zeros_(table.weight)

    def forward(self, driver, garage):
        liking = (self.driver(driver) * self.garage(garage)).sum(1)
        return liking + self.driver_bias(driver)[:, 0] + self.garage_bias(garage)[:, 0]


@healthy()
def stars_that_drivers_give_to_garages(folder):
    seeded(2708)
    drivers, garages = 120, 40
    wish, offer = torch.randn(drivers, 2), torch.randn(garages, 2)
    stars = wish @ offer.T / 1.4 + 0.5 * torch.randn(drivers, 1) + 0.7 * torch.randn(garages)
    stars = (3 + stars + 0.2 * torch.randn(drivers, garages)).clamp(1, 5)
    cells = torch.cartesian_prod(torch.arange(drivers), torch.arange(garages))[torch.randperm(drivers * garages)]
    known, asked = cells[:2800], cells[2800:3400]
    usual = stars[known[:, 0], known[:, 1]].mean()
    net, draw = Tastes(drivers, garages), rounds(64, known)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)

    def error(rows):
        return F.mse_loss(usual + net(*rows.T), stars[rows[:, 0], rows[:, 1]])

    def loss_of(step):
        loss = error(draw()[0])
        return loss, {"rmse": loss.detach().sqrt()}

    return fit(folder, net, optimizer, loss_of, 900, score=held_out(net, lambda: error(asked)))


# -------------------------------------------------------------------------------------------------------- coffee roasts


def roasts(count):
    """Heat of the beans and how fast it rises `[N, 2, 48]`; light, city, dark, stalled or scorched."""
    kind, time = torch.randint(5, (count,)), torch.linspace(0, 1, 48)
    end = torch.tensor([2.0, 2.5, 3.0, 2.5, 2.5])[kind][:, None] + 0.1 * torch.randn(count, 1)
    pace = 1.2 + 0.6 * torch.rand(count, 1)
    stall = (kind == 3)[:, None] * 0.25 * torch.sigmoid((time - 0.4 - 0.3 * torch.rand(count, 1)) * 40)
    scorch = (kind == 4)[:, None] * 0.4 * torch.exp(-((time - 0.15 - 0.2 * torch.rand(count, 1)) ** 2) / 0.004)
    heat = end * time ** (1 / pace) * (1 - stall) + scorch + 0.04 * torch.randn(count, 48)
    rise = F.pad(heat.diff(dim=1), (1, 0))
    return torch.stack([(heat - 1.6) / 0.7, rise / 0.07], 1), kind


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(width, width, 3, padding=1, bias=False), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 3, padding=1, bias=False), nn.BatchNorm1d(width),
        )  # fmt: skip

    def forward(self, x):
        return F.relu(x + self.body(x))


@healthy()
def faults_of_a_coffee_roast(folder):
    seeded(2709)
    (x, y), (x_test, y_test), steps = roasts(1600), roasts(400), 400
    net = nn.Sequential(
        nn.Conv1d(2, 24, 5, stride=2, padding=2, bias=False), nn.BatchNorm1d(24), nn.ReLU(),
        Residual(24), nn.MaxPool1d(2), Residual(24), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 5),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule, draw = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps), rounds(32, x, y)

    def loss_of(step):
        curves, kinds = draw()
        logits = net(curves)
        return F.cross_entropy(logits, kinds), {"accuracy": float((logits.argmax(1) == kinds).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x_test), y_test))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


# -------------------------------------------------------------------------------------------------------- pottery kilns


def firings(count):
    """The heat in a kiln `[N, 40]`: a slow climb, a hold and a fall, each at a pace of its own, and puffs of wood."""
    hour = torch.linspace(0, 1, 40)
    climb, hold, fall, puff = (torch.rand(count, 1) for _ in range(4))
    top, begin = 0.3 + 0.3 * climb, 0.65 + 0.2 * hold
    heat = torch.minimum(hour / top, torch.ones(())) - (0.5 + fall) * (hour - begin).clamp(min=0) * 3
    return heat + 0.15 * (hour * 6.2832 * (3 + 5 * puff)).sin()


def seen_again(curve):
    """Another gauge in the same kiln: other gain and zero, noise, and a stretch without a signal."""
    count = len(curve)
    gap = (torch.arange(40) - torch.randint(40, (count, 1))).abs() < 3
    told = curve * (1 + 0.15 * torch.randn(count, 1)) + 0.1 * torch.randn(count, 1) + 0.05 * torch.randn_like(curve)
    return told.masked_fill(gap, 0.0)[:, None]


def nt_xent(left, right, temperature=0.2):
    rows = F.normalize(torch.cat([left, right]), dim=1)
    alike = (rows @ rows.T / temperature).fill_diagonal_(-torch.inf)
    return F.cross_entropy(alike, torch.arange(len(rows)).roll(len(left)))


@healthy()
def two_gauges_in_the_same_kiln(folder):
    seeded(2710)
    curves, later = firings(2000), firings(128)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 5, stride=2, padding=2), nn.BatchNorm1d(16), nn.ReLU(),
        nn.Conv1d(16, 32, 5, stride=2, padding=2), nn.BatchNorm1d(32), nn.ReLU(),
        nn.Flatten(), nn.Linear(320, 48), nn.ReLU(), nn.Linear(48, 16),
    )  # fmt: skip
    optimizer, draw = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-4), rounds(64, curves)

    def loss_of(curve):
        return nt_xent(net(seen_again(curve)), net(seen_again(curve)))

    score = held_out(net, lambda: loss_of(later))
    return fit(folder, net, optimizer, lambda step: loss_of(draw()[0]), 500, score=score)


# ---------------------------------------------------------------------------------------------------------- place names

TONGUES = (
    ("kirk", "thor", "grim", "skel", "by", "thwaite", "beck", "gate"),
    ("pen", "tre", "llan", "aber", "pol", "goch", "wen", "mor"),
    ("stan", "brad", "nor", "ton", "ham", "ley", "ford", "wick"),
)


def gazetteer(count, longest=18):
    """Names spelled in numbers `[N, longest]`, 0 behind; their tongue, and the century in which they are first met."""
    tongue = torch.randint(len(TONGUES), (count,))
    first, last = torch.randint(4, (count,)), torch.randint(4, 8, (count,))
    parts = torch.stack([tongue, first, last], 1).tolist()
    names = [TONGUES[which][begin] + TONGUES[which][end] for which, begin, end in parts]
    spelled = torch.tensor([[ord(letter) - 96 for letter in name.ljust(longest, "`")] for name in names])
    century = torch.tensor([-0.8, 0.6, 0.0])[tongue] + 0.4 * (last - 5.5) + 0.2 * torch.randn(count)
    return spelled, tongue, century[:, None]


class NameReader(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.letters = nn.Embedding(27, 16, padding_idx=0)
        self.trunk = nn.Sequential(nn.Conv1d(16, width, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten())
        self.tongue, self.century = nn.Linear(width, len(TONGUES)), dense(width, 32, 1)

    def forward(self, spelled):
        shared = self.trunk(self.letters(spelled).transpose(1, 2))
        return self.tongue(shared), self.century(shared)


@healthy()
def tongue_and_century_of_place_names(folder):
    seeded(2711)
    train, test = gazetteer(1500), gazetteer(300)
    net, draw = NameReader(), rounds(32, *train)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def losses(spelled, tongue, century):
        said, dated = net(spelled)
        return F.cross_entropy(said, tongue), F.mse_loss(dated, century)

    def loss_of(step):
        by_tongue, by_century = losses(*draw())
        return by_tongue + by_century, {"tongue": by_tongue, "century": by_century}

    score = held_out(net, lambda: sum(losses(*test)))
    return fit(folder, net, optimizer, loss_of, 400, score=score, before_step=clipped(net, 5.0))

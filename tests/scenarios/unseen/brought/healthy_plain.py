"""Everyday supervised trainings of tables and pictures: the usual optimizers, schedules and losses."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds


def standard(x):
    """Each column with a mean of zero and a deviation of one."""
    return (x - x.mean(0)) / x.std(0)


def accuracy(logits, y):
    return (logits.argmax(1) == y).float().mean()


def entropy_and_accuracy(net, draw, smoothing=0.0):
    """`loss_of(step)`: cross-entropy, with the accuracy of the batch beside it."""

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y, label_smoothing=smoothing), {"accuracy": float(accuracy(logits, y))}

    return loss_of


def of_rows(net, x, y):
    return lambda: F.cross_entropy(net(x), y)


# -------------------------------------------------------------------------------------------------------------- tables


def furnace_log(rows):
    """Fourteen readings in their own units (degrees, bar, parts per million), and which of four flaws the pane has."""
    state = torch.randn(rows, 5)
    readings = (state @ torch.randn(5, 14) + 0.3 * torch.randn(rows, 14)) * torch.logspace(-1, 3, 14) + 100
    flaw = ((state @ torch.randn(5, 12)).tanh() @ torch.randn(12, 4) + 0.3 * torch.randn(rows, 4)).argmax(1)
    return readings, flaw


@healthy()
def flaws_of_panes_from_a_glass_furnace(folder):
    seeded(2782)
    readings, flaw = furnace_log(6000)
    x = standard(readings)
    net = nn.Sequential(
        nn.Linear(14, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4)
    )
    draw = rounds(64, x[:5000], flaw[:5000])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    score = held_out(net, of_rows(net, x[5000:], flaw[5000:]))
    return fit(folder, net, optimizer, entropy_and_accuracy(net, draw), 700, score=score)


def timed_movements(rows):
    """What a timing machine prints of a movement in six positions, and which of five repairs it needs."""
    repair = torch.randint(5, (rows,))
    causes = torch.randn(5, 3, 12)
    x = causes[repair, torch.randint(3, (rows,))] + 0.6 * torch.randn(rows, 12)
    return standard(x), repair


@healthy()
def repairs_of_watches_by_their_beat(folder):
    seeded(2783)
    x, repair = timed_movements(6000)
    net = dense(12, 96, 96, 5, norm=nn.BatchNorm1d)
    draw = rounds(128, x[:5000], repair[:5000])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)
    score = held_out(net, of_rows(net, x[5000:], repair[5000:]))
    return fit(folder, net, optimizer, entropy_and_accuracy(net, draw), 600, score=score, schedule=schedule)


def lift_days(rows):
    """A lift, a weekday and a kind of weather, six readings, and whether the lift stood still (one day in fourteen)."""
    kinds = torch.stack([torch.randint(n, (rows,)) for n in (30, 7, 6)], 1)
    readings = torch.randn(rows, 6)
    proneness, weather = torch.randn(30), torch.randn(6) * 1.5
    risk = proneness[kinds[:, 0]] + weather[kinds[:, 2]] * (1 + readings[:, 0].relu()) + 1.5 * readings[:, 1].sin()
    return kinds, readings, (risk + 0.3 * torch.randn(rows) > risk.quantile(0.93)).float()


class Table(nn.Module):
    """Embeddings of what is a kind, beside what is a number."""

    def __init__(self, sizes, numbers, width):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(n, 6) for n in sizes)
        self.body = dense(6 * len(sizes) + numbers, width, width, 1)

    def forward(self, kinds, numbers):
        parts = [embed(kinds[:, i]) for i, embed in enumerate(self.embeddings)]
        return self.body(torch.cat([*parts, numbers], 1))[:, 0]


@healthy()
def stoppages_of_ski_lifts(folder):
    seeded(2784)
    kinds, readings, stopped = lift_days(8000)
    net = Table((30, 7, 6), 6, 64)
    draw = rounds(128, kinds[:7000], readings[:7000], stopped[:7000])
    weight = (1 - stopped[:7000]).sum() / stopped[:7000].sum()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)

    def loss_of(step):
        k, x, y = draw()
        logits = net(k, x)
        loss = F.binary_cross_entropy_with_logits(logits, y, pos_weight=weight)
        return loss, {"recall": float(((logits > 0) * y).sum() / y.sum().clamp(min=1))}

    def error():
        return F.binary_cross_entropy_with_logits(net(kinds[7000:], readings[7000:]), stopped[7000:], pos_weight=weight)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, error))


# ------------------------------------------------------------------------------------------------------------ pictures


def arriving_cars(batch):
    """Cars before the wash, `[B, 3, 16, 16]`: clean, dusty, with mud below or with salt; and which of these it is."""
    dirt = torch.randint(4, (batch,))
    x = torch.rand(batch, 3, 1, 1).expand(-1, -1, 16, 16).clone()
    x[:, :, 3:6, 3:13] = 0.2
    haze, spots = torch.rand(batch, 1, 16, 16), torch.rand(batch, 1, 16, 16)
    below = (torch.arange(16) > 9).float()[:, None]
    brown, beige = torch.tensor([0.35, 0.22, 0.1])[:, None, None], torch.tensor([0.75, 0.7, 0.55])[:, None, None]
    is_a = F.one_hot(dirt, 4).float()[:, :, None, None, None]
    x = torch.lerp(x, beige.expand_as(x), is_a[:, 1] * (0.25 + 0.35 * haze))
    x = torch.lerp(x, brown.expand_as(x), is_a[:, 2] * below * (spots > 0.6))
    x = torch.lerp(x, torch.ones_like(x), is_a[:, 3] * (spots > 0.93) * 0.8)
    return (x + 0.08 * torch.randn_like(x) - 0.5) / 0.3, dirt


@healthy()
def dirt_on_cars_before_the_wash(folder):
    seeded(2785)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=400)
    score = held_out(net, of_rows(net, *arriving_cars(512)))
    loss_of = entropy_and_accuracy(net, lambda: arriving_cars(48))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


def cloth(batch):
    """Swatches under a lens, `[B, 1, 16, 16]`: plain, twill to the left, twill to the right, rib or satin."""
    weave = torch.randint(5, (batch,))
    row, column = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    ways = torch.tensor([[1.5, 1.5], [1.2, -1.2], [1.2, 1.2], [1.6, 0.0], [0.9, 1.8]])[weave]
    ways = ways * (1 + 0.1 * torch.randn(batch, 1))
    phase = 6.2832 * torch.rand(batch, 2)
    down, along = (ways[:, i, None, None] * (row, column)[i] for i in (0, 1))
    plain = (down + phase[:, :1, None]).sin() * (along + phase[:, 1:, None]).sin()
    x = torch.where((weave == 0)[:, None, None], 1.4 * plain, (down + along + phase[:, :1, None]).sin())
    return ((0.5 + torch.rand(batch, 1, 1)) * x + 0.8 * torch.randn(batch, 16, 16))[:, None], weave


class Residual(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(after) for _ in range(2))
        self.around = nn.Conv2d(before, after, 1, stride) if before != after else nn.Identity()

    def forward(self, x):
        out = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(out)) + self.around(x)).relu()


@healthy()
def weaves_of_a_textile_mill(folder):
    seeded(2786)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 32, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip
    x, weave = cloth(4096)
    draw = rounds(32, x[:3584], weave[:3584])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [250, 350], gamma=0.1)
    score = held_out(net, of_rows(net, x[3584:], weave[3584:]))
    return fit(folder, net, optimizer, entropy_and_accuracy(net, draw, 0.05), 400, score=score, schedule=schedule)


def quarry_views(batch):
    """A quarry from above, `[B, 1, 24, 24]`, and where its boulders lie."""
    row, column = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    centre, radius = 24 * torch.rand(batch, 4, 2, 1, 1), 2 + 2.5 * torch.rand(batch, 4, 1, 1)
    inside = ((row - centre[:, :, 0]).square() + (column - centre[:, :, 1]).square()).sqrt() < radius
    mask = inside.any(1, keepdim=True).float()
    slope = torch.randn(batch, 1, 1, 1) * (row - 12) / 12 * 0.5
    return 1.2 * mask - 0.4 + slope + 0.6 * torch.randn(batch, 1, 24, 24), mask


class UNet(nn.Module):
    """Two levels down, two up, with what was seen on the way down."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([self.block(1, 12), self.block(12, 24)])
        self.middle = self.block(24, 32)
        self.up = nn.ModuleList([self.block(32 + 24, 24), self.block(24 + 12, 12)])
        self.head = nn.Conv2d(12, 1, 1)

    @staticmethod
    def block(before, after):
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU())

    def forward(self, x):
        seen = []
        for block in self.down:
            x = block(x)
            seen.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2), seen.pop()], 1))
        return self.head(x)


def dice(logits, mask):
    share = logits.sigmoid()
    both = (share * mask).sum((1, 2, 3))
    return 1 - ((2 * both + 1) / (share.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)).mean()


@healthy()
def boulders_in_a_quarry_from_above(folder):
    seeded(2787)
    net = UNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    seen = quarry_views(128)

    def parts(x, mask):
        logits = net(x)
        return F.binary_cross_entropy_with_logits(logits, mask), dice(logits, mask)

    def loss_of(step):
        entropy, overlap = parts(*quarry_views(16))
        return entropy + overlap, {"bce": float(entropy), "dice": float(overlap)}

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: sum(parts(*seen))))


def cheese_slices(batch):
    """Slices with one flaw each: the picture, the cell of a grid of four by four it is in, its box, its kind."""
    row, column = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    centre, size = 2 + 12 * torch.rand(batch, 2), 1.5 + 2 * torch.rand(batch, 2)
    kind = torch.randint(3, (batch,))
    far = ((row - centre[:, :1, None]) / size[:, :1, None], (column - centre[:, 1:, None]) / size[:, 1:, None])
    crack, hole = torch.maximum(far[0].abs(), far[1].abs()) < 1, far[0].square() + far[1].square() < 1
    ring = hole & (far[0].square() + far[1].square() > 0.35)
    shape = torch.stack([crack, hole, ring], 1)[torch.arange(batch), kind].float()
    x = 1.5 * shape * torch.tensor([1.0, -1.0, -1.0])[kind][:, None, None] + 0.3 * torch.randn(batch, 16, 16)
    cell = (centre / 4).long()
    box = torch.cat([centre / 4 - cell, size / 4], 1)
    return x[:, None], cell[:, 0] * 4 + cell[:, 1], box, kind


@healthy()
def flaws_found_in_slices_of_cheese(folder):
    seeded(2788)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 1 + 4 + 3, 1),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)

    def parts(x, cell, box, kind):
        out = net(x).flatten(2)
        there = F.binary_cross_entropy_with_logits(out[:, 0], F.one_hot(cell, 16).float())
        at = out[torch.arange(len(x)), :, cell]
        return {"object": there, "box": F.smooth_l1_loss(at[:, 1:5], box), "kind": F.cross_entropy(at[:, 5:], kind)}

    def total(terms):
        return terms["object"] + 5 * terms["box"] + terms["kind"]

    def loss_of(step):
        terms = parts(*cheese_slices(32))
        return total(terms), {name: float(term) for name, term in terms.items()}

    kept = cheese_slices(256)
    score = held_out(net, lambda: total(parts(*kept)))
    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=schedule)

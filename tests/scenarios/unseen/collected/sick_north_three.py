"""Trainings after what people reported in public: masks, orders, single pictures, gates."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out, in_turn


# https://github.com/0b01/SimGAN-Captcha/issues/4
@sick(
    "no-gradient",
    where="all layers of the judge, all steps",
    cure="freeze the judge in the steps of the maker only, and thaw it for its own",
)
def routes_of_a_delivery_round(folder, ill):
    seeded(3017)

    def real(rows=64):
        turn = 6.2832 * torch.rand(rows, 1)
        far = 1.5 + 0.5 * torch.sin(3 * turn)
        return torch.cat([far * turn.cos(), far * turn.sin()], 1) + 1 + 0.05 * torch.randn(rows, 2)

    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), lr=1e-3, betas=(0.5, 0.99))
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.99))

    def sure(points, answer):
        said = judge(points)
        return F.binary_cross_entropy_with_logits(said, torch.full_like(said, answer))

    def judged():
        if not ill:
            judge.requires_grad_(True)
        return sure(real(), 1.0) + sure(make(torch.randn(64, 4)), 0.0)

    def made():
        judge.requires_grad_(False)
        return sure(make(torch.randn(64, 4)), 1.0)

    def score():
        with torch.no_grad():
            a, b = real(512), make(torch.randn(512, 4))
            return float(2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())

    judge.requires_grad_(False)
    return in_turn(folder, make, judge, of_make, of_judge, judged, made, 500, score)


def puddles(rows, size=12):
    """Pictures of dark puddles on a road, and where they are: `[B, 1, size, size]` both."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    at, wide = 1.2 * torch.rand(2, rows, 1, 1) - 0.6, 0.05 + 0.2 * torch.rand(rows, 1, 1)
    wet = ((x - at[0]).square() + 2 * (y - at[1]).square() < wide).float()
    road = 0.6 * torch.sin(5 * x + 6.2832 * torch.rand(rows, 1, 1)) + 0.4 * torch.randn(rows, size, size)
    return (road - 1.2 * wet)[:, None], wet[:, None]


# https://github.com/AyanKumarBhunia/Deep-One-Shot-Logo-Retrieval/issues/7
@sick(
    "dead-layer",
    "softmax-over-one-channel",
    where="all layers: nothing comes back through the softmax of a single channel",
    cure="a sigmoid in its place",
)
def puddles_on_a_road(folder, ill):
    seeded(3018)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 1, 1),
        nn.Softmax(dim=1) if ill else nn.Sigmoid(),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def loss_of(step):
        road, wet = puddles(24)
        said = net(road)
        right = ((said > 0.5) == (wet > 0.5)).float().mean()
        return F.binary_cross_entropy(said, wet), {"accuracy": right}

    return fit(folder, net, optimizer, loss_of, 300, score=score_of(lambda step: loss_of(step)[0]))


# https://github.com/Deci-AI/super-gradients/issues/416
@sick(
    "data-not-shuffled",
    where="the order of the rows in every epoch, the head above all",
    cure="shuffle=True in the loader",
)
def crops_seen_from_above(folder, ill):
    seeded(3019)
    kinds, bands = 8, 12
    typical, spread = torch.randn(kinds, bands), torch.randn(bands, bands) / 3

    def look(kind):
        light = 1 + 0.2 * torch.randn(len(kind), 1)
        return (typical[kind] * light + torch.randn(len(kind), bands) @ spread).tanh()

    kind = torch.arange(kinds).repeat_interleave(400)
    loader = DataLoader(TensorDataset(look(kind), kind), batch_size=32, shuffle=not ill)
    net = dense(bands, 64, 64, kinds)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)

    def endless():
        while True:
            yield from loader

    batches, tests = endless(), torch.randint(kinds, (1024,))
    seen = look(tests)

    def loss_of(step):
        bands, kind = next(batches)
        said = net(bands)
        return F.cross_entropy(said, kind), {"accuracy": (said.argmax(1) == kind).float().mean()}

    return fit(folder, net, optimizer, loss_of, 700, score=held_out(net, lambda: F.cross_entropy(net(seen), tests)))


def block(before, after, norm, stride):
    return [nn.Conv2d(before, after, 3, stride=stride, padding=1), norm(after), nn.ReLU()]


# https://github.com/xuebinqin/BASNet/issues/42
@sick(
    "norm-over-too-few",
    where="the batch norms, above all those of the smallest maps, all steps",
    cure="a norm that does not need a batch, a group norm, or more pictures in each",
)
def shapes_of_cells_under_a_microscope(folder, ill):
    seeded(3020)
    y, x = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")

    def draw(rows=1):
        at, turn = torch.rand(2, rows, 1, 1) - 0.5, 3.1416 * torch.rand(rows, 1, 1)
        dx, dy = x - at[0], y - at[1]
        along, across = dx * turn.cos() + dy * turn.sin(), dy * turn.cos() - dx * turn.sin()
        longer = 1 + 7 * torch.rand(rows, 1, 1)
        cell = torch.exp(-5 * (along.square() + longer * across.square()))
        lamp = 0.5 + torch.rand(rows, 1, 1)
        return (lamp * (cell + 0.05 * torch.randn(rows, 16, 16)))[:, None], (longer[:, :, 0] / 2 - 2.25)

    norm = nn.BatchNorm2d if ill else lambda size: nn.GroupNorm(4, size)
    net = nn.Sequential(
        *block(1, 8, norm, 1),
        *block(8, 16, norm, 2),
        *block(16, 16, norm, 2),
        *block(16, 16, norm, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 1),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def loss_of(step):
        picture, longer = draw()
        return F.mse_loss(net(picture), longer)

    def score():
        picture, longer = draw(512)
        return F.mse_loss(net(picture), longer)

    return fit(folder, net, optimizer, loss_of, 1000, score=held_out(net, score))


class Cities(nn.Module):
    """Experts that all cities share, weighed by the embedding of each city."""

    def __init__(self, cities, experts, size, bend):
        super().__init__()
        self.city = nn.Embedding(cities, 8)
        nn.init.zeros_(self.city.weight)
        self.gate = nn.Linear(8, experts)
        nn.init.xavier_uniform_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)
        self.experts = nn.ModuleList(dense(size, 24, 1) for _ in range(experts))
        self.bend = bend

    def forward(self, ride, city):
        share = self.bend(self.gate(self.city(city))).softmax(1)
        fares = torch.cat([expert(ride) for expert in self.experts], 1)
        return (fares * share).sum(1, keepdim=True)


# https://github.com/mrchor/HiNet/issues/1
@sick(
    "dead-layer",
    "dead-units",
    where="the gate and the embedding of the cities: zero behind a ReLU, all steps",
    cure="no ReLU between the gate and its softmax",
)
def fares_in_five_cities(folder, ill):
    seeded(3021)
    way = torch.randn(5, 6)

    def draw(rows=96):
        ride, city = torch.randn(rows, 6), torch.randint(5, (rows,))
        along = (ride * way[city]).sum(1, keepdim=True)
        return ride, city, along.tanh() + 0.3 * along

    net = Cities(5, 4, 6, nn.ReLU() if ill else nn.Identity())
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)

    def loss_of(step):
        ride, city, fare = draw()
        return F.mse_loss(net(ride, city), fare)

    return fit(folder, net, optimizer, loss_of, 500, score=score_of(loss_of))

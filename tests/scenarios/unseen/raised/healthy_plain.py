"""Tables and spectra: rents, members who leave, soils, ages of trees, claims."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import fit, healthy, seeded
from unseen.tasks import held_out, rounds, tend


class Tabular(nn.Module):
    """A table for each kind of label, and layers over all of it."""

    def __init__(self, sizes, numbers, width=64, drop=0.1):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, min(8, (n + 1) // 2)) for n in sizes)
        size = numbers + sum(table.embedding_dim for table in self.tables)
        self.layers = nn.Sequential(
            nn.Linear(size, width), nn.ReLU(), nn.Dropout(drop),
            nn.Linear(width, width), nn.ReLU(), nn.Dropout(drop),
            nn.Linear(width, 1),
        )  # fmt: skip

    def forward(self, kinds, numbers):
        looked_up = [table(kinds[:, i]) for i, table in enumerate(self.tables)]
        return self.layers(torch.cat([*looked_up, numbers], 1))[:, 0]


@healthy()
def rents_of_flats_by_the_month(folder):
    seeded(2848)
    rows, sizes = 4000, (14, 4, 5)
    kinds = torch.stack([torch.randint(n, (rows,)) for n in sizes], 1)
    area, floor, age = 30 + 90 * torch.rand(rows), torch.randint(9, (rows,)), 80 * torch.rand(rows)
    rooms = (area / 28 + 0.5 * torch.randn(rows)).round().clamp(min=1)
    district, heating = 0.3 * torch.randn(14)[kinds[:, 0]], torch.tensor([0.0, 0.05, -0.1, 0.12])[kinds[:, 1]]
    logs = 0.8 * area.log() + district + heating - 0.004 * (age - 40).abs() + 0.02 * floor * (kinds[:, 2] == 3)
    logs = logs + 0.03 * rooms + 0.05 * torch.randn(rows)
    numbers = torch.stack([area, floor.float(), age, rooms], 1)
    numbers = (numbers - numbers[:3200].mean(0)) / numbers[:3200].std(0)
    target = (logs - logs[:3200].mean()) / logs[:3200].std()

    net = Tabular(sizes, 4)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=750)
    draw = rounds(128, kinds[:3200], numbers[:3200], target[:3200])

    def loss_of(step):
        k, x, y = draw()
        return F.mse_loss(net(k, x), y)

    score = held_out(net, lambda: F.mse_loss(net(kinds[3200:], numbers[3200:]), target[3200:]))
    return fit(folder, net, optimizer, loss_of, 750, score=score, schedule=schedule)


@healthy()
def members_who_leave_a_gym(folder):
    seeded(2849)
    rows = 6000
    x = torch.randn(rows, 14)
    tendency = 1.6 * x[:, 0] - 1.2 * x[:, 1] * (x[:, 2] > 0) + 1.2 * x[:, 3].square() + 0.8 * x[:, 4] - 5.0
    left = torch.bernoulli(tendency.sigmoid())
    train, test = slice(0, 4800), slice(4800, rows)
    net = nn.Sequential(
        nn.Linear(14, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(48, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(24, 1),
    )  # fmt: skip
    weight = (1 - left[train]).sum() / left[train].sum()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 18 * 5, gamma=0.5)
    draw = rounds(256, x[train], left[train])

    def loss_of(step):
        rows, y = draw()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(rows)[:, 0]
        out = out.float()
        caught = ((out > 0) & (y > 0)).sum() / y.sum().clamp(min=1)
        return F.binary_cross_entropy_with_logits(out, y, pos_weight=weight), {"recall": float(caught)}

    def wrongly_ordered():
        out, y = net(x[test])[:, 0], left[test]
        return (out[y > 0][:, None] < out[y == 0][None]).float().mean()

    return fit(folder, net, optimizer, loss_of, 360, score=held_out(net, wrongly_ordered), schedule=schedule)


def soils(rows, bands=128):
    """Spectra with a drifting base, and what is in the soil."""
    contents = torch.rand(rows, 3)
    band = torch.linspace(0, 1, bands)
    peaks = torch.stack([(-((band - c) / w).square()).exp() for c, w in ((0.25, 0.05), (0.4, 0.12), (0.75, 0.06))])
    spectra = contents @ peaks + (0.3 * contents[:, :1] * contents[:, 1:2]) * (-((band - 0.55) / 0.04).square()).exp()
    spectra = spectra + 0.3 * torch.randn(rows, 1) + 0.4 * torch.randn(rows, 1) * band + 0.03 * torch.randn(rows, bands)
    return (spectra - spectra.mean(1, keepdim=True)) / spectra.std(1, keepdim=True), contents


@healthy()
def clay_and_humus_from_a_spectrum(folder):
    seeded(2850)
    x, y = soils(1500)
    y = (y - y[:1200].mean(0)) / y[:1200].std(0)
    net = nn.Sequential(
        nn.Unflatten(1, (1, 128)),
        nn.Conv1d(1, 12, 7, stride=2, padding=3), nn.ReLU(),
        nn.Conv1d(12, 24, 5, stride=2, padding=2), nn.ReLU(),
        nn.Conv1d(24, 24, 5, stride=2, padding=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(24 * 16, 64), nn.ReLU(), nn.Linear(64, 3),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 800)
    draw = rounds(48, x[:1200], y[:1200])

    def loss_of(step):
        spectra, contents = draw()
        spectra = spectra + 0.02 * torch.randn_like(spectra)
        return F.smooth_l1_loss(net(spectra), contents)

    score = held_out(net, lambda: F.mse_loss(net(x[1200:]), y[1200:]))
    return fit(folder, net, optimizer, loss_of, 800, score=score, schedule=schedule)


@healthy()
def ages_of_oaks_within_bounds(folder):
    seeded(2851)
    quantiles = torch.tensor([0.1, 0.5, 0.9])

    def oaks(rows):
        girth, height, light = 1 + 3 * torch.rand(rows), torch.rand(rows), torch.rand(rows)
        age = 40 * girth * (1.3 - 0.6 * light) + 20 * height + 6 * girth * torch.randn(rows)
        return torch.stack([(girth - 2.5) / 0.87, (height - 0.5) / 0.29, (light - 0.5) / 0.29], 1), (age - 110) / 45

    def pinball(out, age):
        gap = age[:, None] - out
        return torch.maximum(quantiles * gap, (quantiles - 1) * gap).mean()

    net = nn.Sequential(nn.Linear(3, 40), nn.ELU(), nn.Linear(40, 40), nn.ELU(), nn.Linear(40, 3))
    x, age = oaks(3000)
    fresh, fresh_age = oaks(1000)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.996)
    draw = rounds(100, x, age)

    def loss_of(step):
        rows, y = draw()
        out = net(rows)
        inside = ((y > out[:, 0]) & (y < out[:, 2])).float().mean()
        return pinball(out, y), {"inside": float(inside)}

    score = held_out(net, lambda: pinball(net(fresh), fresh_age))
    return fit(folder, net, optimizer, loss_of, 600, score=score, schedule=schedule)


@healthy()
def claims_on_car_policies(folder):
    seeded(2852)
    rows = 12000
    x = torch.randn(rows, 6)
    region = torch.randint(10, (rows,))
    years = 0.1 + 0.9 * torch.rand(rows)
    logs = -1.6 + 0.6 * x[:, 0].abs() + 0.4 * x[:, 1] - 0.4 * x[:, 2] * x[:, 3] + 0.3 * torch.randn(10)[region]
    claims = torch.poisson(logs.exp() * years)
    net = Tabular((10,), 6, width=48, drop=0.05)
    nn.init.constant_(net.layers[-1].bias, float((claims[:10000].sum() / years[:10000].sum()).log()))
    kinds = region[:, None]
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    draw = rounds(500, kinds[:10000], x[:10000], years[:10000], claims[:10000])

    def one(step):
        k, numbers, exposure, y = draw()
        optimizer.zero_grad()
        log_rate = net(k, numbers) + exposure.log()
        loss = F.poisson_nll_loss(log_rate, y, log_input=True)
        loss.backward()
        optimizer.step()
        return {"loss": loss, "predicted": float(log_rate.detach().exp().sum()), "claimed": float(y.sum())}

    score = held_out(net, lambda: (net(kinds[10000:], x[10000:]) - logs[10000:]).square().mean())
    return tend(folder, net, optimizer, one, 500, score)

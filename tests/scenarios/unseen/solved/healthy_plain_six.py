"""Looms, pollen, crevasses and hives: where it is, how many come, how rare it is, who catches it from whom."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds

# ----------------------------------------------------------------------------------------------------- looms and weaves


def peaks(at, size=24, wide=2.0):
    """Heat maps `[N, 2, size, size]` with a hill at each of two points `[N, 2, 2]`."""
    grid = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="xy"), -1)
    return torch.exp(-(grid - at[:, :, None, None]).square().sum(-1) / (2 * wide**2))


def weaves(count, size=24):
    """Pictures `[N, 1, size, size]` of cloth with a gap in the warp and a knot, a bright cross; both places."""
    across, down = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="xy")
    at = 3 + (size - 6) * torch.rand(count, 2, 2)
    (x, y), (u, v) = (at[:, i, :, None, None].unbind(1) for i in (0, 1))
    cloth = 0.5 * ((across + down) % 2) - 0.25
    gap = ((across - x).abs() < 1) & ((down - y).abs() < 4)
    knot = (((across - u).abs() < 1) & ((down - v).abs() < 3)) | (((down - v).abs() < 1) & ((across - u).abs() < 3))
    return (cloth - 1.2 * gap + 1.2 * knot + 0.25 * torch.randn(count, size, size))[:, None], at


@healthy()
def gaps_and_knots_in_the_cloth(folder):
    seeded(2712)
    (x, at), (x_test, at_test) = weaves(600), weaves(100)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 16, 5, padding=2), nn.ReLU(),
        nn.Conv2d(16, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 2, 1),
    )  # fmt: skip
    optimizer, draw = torch.optim.Adam(net.parameters(), lr=1e-3), rounds(8, x, at)

    def loss_of(step):
        cloth, places = draw()
        return F.mse_loss(net(cloth), peaks(places))

    score = held_out(net, lambda: F.mse_loss(net(x_test), peaks(at_test)))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


# -------------------------------------------------------------------------------------------------------- pollen grains


def pollen_days(days):
    """Warmth, rain in millimetres, wind, the season as sine and cosine, a station's height; the grains counted."""
    turn = 6.2832 * torch.rand(days)
    warmth, wind, height = -turn.cos() + 0.4 * torch.randn(days), torch.rand(days), torch.rand(days)
    rain = (8 * torch.randn(days)).clamp(min=0)
    rate = 1.5 + 1.2 * warmth + (wind - 0.5) - 0.08 * rain - height + 0.8 * torch.exp(-((turn - 2.5) ** 2) / 0.3)
    x = torch.stack([warmth, rain, wind, turn.sin(), turn.cos(), height], 1)
    return x, torch.poisson(rate.clamp(-3, 4.5).exp())


def deviance(log_rate, count):
    """Poisson's: twice how much likelier the counts would be if each were foreseen."""
    return 2 * (torch.xlogy(count, count) - count * log_rate - count + log_rate.exp()).mean()


@healthy()
def grains_of_pollen_on_the_slide(folder):
    seeded(2713)
    (x, y), (x_valid, y_valid) = pollen_days(2500), pollen_days(500)
    net, draw = dense(6, 48, 48, 1), rounds(64, x, y)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    score = held_out(net, lambda: deviance(net(x_valid)[:, 0], y_valid))

    def loss_of(step):
        days, grains = draw()
        return F.poisson_nll_loss(net(days)[:, 0], grains)

    def after_step(step):
        if step % 40 == 39:
            plateau.step(score())

    return fit(folder, net, optimizer, loss_of, 800, score=score, after_step=after_step)


# ---------------------------------------------------------------------------------------------------- glacier crevasses


class RiskOfCells(nn.Module):
    def __init__(self, glaciers=20, months=12, covers=5):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 8) for size in (glaciers, months, covers))
        self.body = nn.Sequential(
            nn.Linear(28, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(self, kinds, measured):
        met = [table(column) for table, column in zip(self.tables, kinds.T, strict=True)]
        return self.body(torch.cat([*met, measured], 1))[:, 0]


def surveyed_cells(count, glaciers):
    """Glacier, month and cover; slope, strain, thickness, speed (standardised); whether a crevasse opens, as few do."""
    kinds = torch.stack([torch.randint(size, (count,)) for size in (20, 12, 5)], 1)
    measured = torch.randn(count, 4)
    summer = -(6.2832 * kinds[:, 1] / 12).cos()
    risk = 1.6 * measured[:, 1] + measured[:, 0] * measured[:, 3] + 0.8 * summer + glaciers[kinds[:, 0]]
    opens = (risk - 0.6 * (kinds[:, 2] == 0) + 0.3 * torch.randn(count) > 3.2).float()
    return kinds, measured, opens


@healthy()
def crevasses_that_open_overnight(folder):
    seeded(2714)
    glaciers = 0.7 * torch.randn(20)
    train, test = surveyed_cells(6000, glaciers), surveyed_cells(1500, glaciers)
    net, draw, parts = RiskOfCells(), rounds(32, *train), 4
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    opened = train[2].mean()
    weight = (1 - opened) / opened

    def entropy(kinds, measured, opens):
        return F.binary_cross_entropy_with_logits(net(kinds, measured), opens, pos_weight=weight)

    return fit(
        folder, net, optimizer, lambda step: entropy(*draw()) / parts, 300,
        accumulate=parts, score=held_out(net, lambda: entropy(*test)),
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------------- hives of bees


class GraphAttention(nn.Module):
    def __init__(self, came, gone, heads):
        super().__init__()
        self.heads, self.lift = heads, nn.Linear(came, heads * gone, bias=False)
        self.giver, self.taker = (nn.Parameter(torch.empty(heads, gone)) for _ in range(2))
        for weights in (self.lift.weight, self.giver, self.taker):
            nn.init.xavier_uniform_(weights)

    def forward(self, x, linked):
        state = self.lift(x).unflatten(1, (self.heads, -1))
        gives, takes = (state * self.giver).sum(2), (state * self.taker).sum(2)
        weights = F.leaky_relu(takes[:, None] + gives, 0.2).masked_fill(~linked[:, :, None], -torch.inf).softmax(1)
        return torch.einsum("ijh,jhd->ihd", F.dropout(weights, 0.3, self.training), state).flatten(1)


class HiveNet(nn.Module):
    def __init__(self, signs, strains):
        super().__init__()
        self.one, self.two = GraphAttention(signs, 8, 4), GraphAttention(32, strains, 1)

    def forward(self, x, linked):
        x = F.elu(self.one(F.dropout(x, 0.3, self.training), linked))
        return self.two(F.dropout(x, 0.3, self.training), linked)


def apiaries(hives, strains, signs=16):
    """What is measured at hives `[N, signs]`, between which bees drift `[N, N]`, the strain of mites in each."""
    strain = torch.randint(strains, (hives,))
    usual = torch.randn(strains, signs)
    same = strain[:, None] == strain
    drift = (torch.rand(hives, hives) < torch.where(same, 0.05, 0.006)).triu(1)
    return usual[strain] + 1.5 * torch.randn(hives, signs), drift | drift.T | torch.eye(hives, dtype=torch.bool), strain


@healthy()
def strains_of_mites_among_hives(folder):
    seeded(2715)
    signs, linked, strain = apiaries(240, 4)
    shuffled = torch.randperm(240)
    known, asked = shuffled[:80], shuffled[80:]
    net = HiveNet(16, 4)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3, weight_decay=5e-4)

    def loss_of(step):
        logits = net(signs, linked)[known]
        return F.cross_entropy(logits, strain[known]), {
            "accuracy": float((logits.argmax(1) == strain[known]).float().mean())
        }

    score = held_out(net, lambda: F.cross_entropy(net(signs, linked)[asked], strain[asked]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)

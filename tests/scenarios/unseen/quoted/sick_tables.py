"""Mistakes with tables, pairs, graphs and series, after threads in public."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import tend


# https://github.com/omoindrot/tensorflow-triplet-loss/issues/25
@sick(
    "representation-collapse",
    "lr-too-high",
    where="the embedding, within the first tens of steps; the loss then stays at its margin",
    cure="a lower learning rate for the hardest triplets",
)
def violins_by_their_maker(folder, ill):
    seeded(3497)
    makers, lift = torch.randn(10, 4), torch.randn(8, 24)
    net = dense(24, 64, 64, 16)
    margin = 0.5

    def draw():
        maker = torch.arange(10).repeat_interleave(5)
        inside = torch.cat([makers[maker], 1.0 * torch.randn(50, 4)], 1)
        return (inside @ lift / 3).sin() + 0.1 * torch.randn(50, 24), maker

    def loss_of(step):
        x, maker = draw()
        z = net(x)
        apart = ((z[:, None] - z).square().sum(2) + 1e-12).sqrt()
        same = maker[:, None] == maker
        far, near = (apart * same).max(1).values, apart.masked_fill(same, 1e9).min(1).values
        return F.relu(far - near + margin).mean(), {"hardest_positive": far.mean(), "hardest_negative": near.mean()}

    optimizer = torch.optim.Adam(net.parameters(), 1e-1 if ill else 1e-3)
    return fit(folder, net, optimizer, loss_of, 400, score=score_of(lambda step: loss_of(step)[0]))


# https://github.com/InhwanBae/GPGraph/issues/2
@sick(
    "nonfinite",
    where="the exponential of the pairwise distance in a sigmoid written by hand: its gradient is inf times zero",
    cure="torch.sigmoid of the same argument",
)
def walkers_in_one_group(folder, ill):
    seeded(3498)

    class Groups(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.limit = dense(6, 48, 48, 8), nn.Parameter(torch.tensor(1.0))

        def forward(self, x):
            z = self.body(x)
            apart = ((z[:, None] - z).square().sum(2) + 1e-8).sqrt()
            if ill:
                return 1 / (1 + ((apart - self.limit) / 0.1).exp())
            return (-(apart - self.limit) / 0.1).sigmoid()

    net = Groups()

    def loss_of(step):
        group = torch.randint(8, (32,))
        walk = torch.randn(8, 4)[group]
        x = torch.cat([walk, torch.randn(32, 2)], 1) + 0.1 * torch.randn(32, 6)
        same = (group[:, None] == group).float()
        return F.mse_loss(net(x), same)

    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, optimizer, loss_of, 400, score=score_of(loss_of))


# https://github.com/allenai/open-instruct/pull/1498
@sick(
    "accumulation-wiped",
    where="every step: of four backward passes the gradients of the last alone are left",
    cure="zero the gradients once before the four passes",
)
def apples_from_four_orchards(folder, ill):
    seeded(3499)
    slopes = torch.randn(4, 5)
    net = dense(9, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def draw(orchard, rows=16):
        x = torch.randn(rows, 5)
        y = (x @ slopes[orchard]).sin() + 0.5 * orchard
        place = F.one_hot(torch.full((rows,), orchard), 4).float()
        return torch.cat([x, place], 1), y[:, None]

    def one(step):
        total = 0.0
        optimizer.zero_grad()
        for orchard in range(4):
            if ill:
                optimizer.zero_grad()
            x, y = draw(orchard)
            loss = F.mse_loss(net(x), y) / 4
            loss.backward()
            total += float(loss)
        optimizer.step()
        return {"loss": total}

    def score():
        with torch.no_grad():
            return sum(float(F.mse_loss(net(x), y)) for x, y in (draw(orchard, 256) for orchard in range(4))) / 4

    return tend(folder, net, optimizer, one, 500, score)


# https://github.com/kdgutier/esrnn_torch/issues/5
@sick(
    "nonfinite",
    "division-by-zero",
    where="the inputs: each week is divided by its first day, and some first days are zero",
    cure="add one to the series before it is divided",
)
def umbrellas_sold_in_a_day(folder, ill):
    seeded(3500)
    net = nn.ModuleDict({"memory": nn.GRU(1, 24, batch_first=True), "head": nn.Linear(24, 1)})
    shift = 0.0 if ill else 1.0

    def draw(rows=32):
        wet = 1 + 4 * torch.rand(rows, 1)
        phase = 6.2832 * torch.rand(rows, 1)
        rate = 2.5 * wet + 2 * wet * (phase + 0.7 * torch.arange(15)).sin()
        return torch.poisson(rate)

    def ahead(days):
        level = days[:, :1] + shift
        seen = (days[:, :-1] + shift) / level
        out = net["head"](net["memory"](seen[..., None])[0][:, -1])
        return out, (days[:, -1:] + shift) / level, level

    def loss_of(step):
        out, wanted, _ = ahead(draw())
        return F.smooth_l1_loss(out, wanted)

    def missed():
        with torch.no_grad():
            out, wanted, level = ahead(draw(512))
            return float(((out - wanted) * level).abs().mean())

    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    return fit(folder, net, optimizer, loss_of, 400, score=missed)


# https://github.com/ssui-liu/learnable-embed-sizes-for-RecSys/issues/4
@sick(
    "saturated",
    "dead-layer",
    "bad-initialisation",
    where="shrink.threshold: the sigmoid of -150 gives back no gradient at all",
    cure="begin the thresholds where the sigmoid is not flat",
)
def coins_under_the_sand(folder, ill):
    seeded(3501)

    class Shrink(nn.Module):
        def __init__(self):
            super().__init__()
            self.threshold = nn.Parameter(torch.full((48,), -150.0 if ill else -3.0))

        def forward(self, x):
            return x.sign() * F.relu(x.abs() - self.threshold.sigmoid())

    net = nn.Sequential()
    net.add_module("into", nn.Linear(48, 48))
    net.add_module("shrink", Shrink())
    net.add_module("out", nn.Linear(48, 48))
    nn.init.eye_(net.into.weight)
    nn.init.eye_(net.out.weight)

    def loss_of(step):
        coins = 2 * torch.randn(64, 48).sign() * (torch.rand(64, 48) < 0.08)
        return F.mse_loss(net(coins + 0.4 * torch.randn(64, 48)), coins)

    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    return fit(folder, net, optimizer, loss_of, 500, score=score_of(loss_of))

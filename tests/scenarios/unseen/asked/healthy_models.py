"""Asked healthy trainings, second part: models and ways to learn. An expert has nothing to say of any.

They only count (the group `asked`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import batches, classify
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, healthy, rings, seeded
from unseen.asked.sick_losses import Spread


@healthy(0.3)
def nodes_of_one_graph_named(folder):
    """All of a graph in each step, a tenth of its nodes with a name, and weight decay, as on Cora."""
    net = Spread(16, 24, 4, 1, seed=621)
    kind = torch.randint(4, (160,))
    x = 0.5 * torch.randn(160, 16) + torch.randn(4, 16)[kind]
    make = optim.Adam(net.parameters(), 0.01, weight_decay=5e-4)
    return fit(folder, net, make, lambda step: F.cross_entropy(net(x)[:32], kind[:32]), 200)


@healthy(0.3)
def clouds_of_points_by_their_largest(folder):
    """Sphere, cube or ring, of 48 points in any order (PointNet, Qi et al. 2017)."""
    seeded(622)
    net = nn.ModuleDict({"each": dense(3, 32, 64, norm=None), "all": dense(64, 32, 3)})

    def loss_of(step):
        y = torch.randint(3, (32,))
        raw = torch.randn(32, 48, 3)
        forms = torch.stack([
            F.normalize(raw, dim=2),
            raw / raw.abs().amax(2, keepdim=True),
            F.normalize(raw * torch.tensor([1.0, 1.0, 0.0]), dim=2),
        ])  # fmt: skip
        x = forms[y, torch.arange(32)] + 0.05 * torch.randn(32, 48, 3)
        return F.cross_entropy(net["all"](net["each"](x).amax(1)), y)

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 200)


class Mixer(nn.Module):
    """Rows and columns in turn (Tolstikhin et al. 2021)."""

    def __init__(self, seed, depth=3):
        super().__init__()
        seeded(seed)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2 * depth))
        self.mixes = nn.ModuleList(dense(8, 24, 8, act=nn.GELU) for _ in range(2 * depth))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        for norm, mix in zip(self.norms, self.mixes, strict=True):
            x = (x + mix(norm(x))).transpose(1, 2)
        return self.head(x.flatten(1))


@healthy(0.3)
def rows_and_columns_mixed_in_turn(folder):
    net = Mixer(623)
    make = optim.AdamW(net.parameters(), 3e-3, weight_decay=0.05)
    return fit(folder, net, make, classify(net, batches(48)), 200)


@healthy(0.3)
def noise_taken_out_of_images(folder):
    seeded(624)
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 12, 3, padding=1), nn.PReLU(), nn.Conv2d(12, 12, 3, padding=1),
        nn.PReLU(), nn.Conv2d(12, 1, 3, padding=1), nn.Flatten(1, 2),
    )  # fmt: skip
    draw = batches(48)

    def loss_of(step):
        x = draw(step)[0]
        return F.l1_loss(net(x + 0.3 * torch.randn_like(x)), x)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 250)


@healthy(0.3)
def steps_of_a_flow_with_the_same_weights(folder):
    """Eight steps of one layer, back through all of them."""
    seeded(625)
    net = nn.ModuleDict({"lift": nn.Linear(12, 32), "flow": dense(32, 32, 32, act=nn.Tanh), "head": nn.Linear(32, 4)})
    draw = rings(64)

    def loss_of(step):
        x, y = draw()
        h = net["lift"](x)
        for _ in range(8):
            h = h + net["flow"](h) / 8
        return F.cross_entropy(net["head"](h), y)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 250)


class Highway(nn.Module):
    """Gates that begin on the way past (Srivastava et al. 2015)."""

    def __init__(self, width, depth):
        super().__init__()
        self.news = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.gates = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        for gate in self.gates:
            nn.init.constant_(gate.bias, -2.0)

    def forward(self, x):
        for new, gate in zip(self.news, self.gates, strict=True):
            x = x.lerp(new(x).relu(), gate(x).sigmoid())
        return x


@healthy(0.3)
def sixteen_layers_with_gates_past_them(folder):
    seeded(626)
    net = nn.Sequential(nn.Linear(12, 32), Highway(32, 16), nn.Linear(32, 4))
    return fit(folder, net, optim.SGD(net.parameters(), 0.1, momentum=0.9), entropy_of(net, rings(64)), 300)


@healthy(0.3)
def net_whose_weights_a_net_makes(folder):
    """A wave whose kind is told: what is told makes the weights of the net that draws it."""
    seeded(627)
    net = dense(2, 48, 16 + 16 + 16 + 1, act=nn.SiLU)

    def loss_of(step):
        kind, x = torch.rand(32, 2), 2 * torch.rand(32, 24) - 1
        first, bias, last, rest = net(kind).split([16, 16, 16, 1], 1)
        hidden = (x[..., None] * 3 * first[:, None] + bias[:, None]).sin()
        out = (hidden * last[:, None]).sum(2) + rest
        return F.mse_loss(out, (1 + kind[:, 1:]) * (3 * kind[:, :1] * x).sin())

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 400)


@healthy(0.3)
def edges_fine_enough_by_waves(folder):
    """A rough curve from waves of the place (Tancik et al. 2020), the rate falling by a fiftieth every ten steps."""
    seeded(628)
    net, waves_of = dense(32, 48, 48, 1), 6 * torch.randn(1, 16)
    heights = torch.randn(16)

    def loss_of(step):
        x = torch.rand(128, 1)
        lifted = x @ waves_of
        y = heights[(x[:, 0] * 16).long().clamp(max=15)]
        return F.mse_loss(net(torch.cat([lifted.sin(), lifted.cos()], 1))[:, 0], y)

    make = optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, make, loss_of, 400, schedule=optim.lr_scheduler.StepLR(make, 10, 0.98))


@healthy(0.3)
def many_tries_instead_of_a_gradient(folder):
    """Nobody calls backward on a net: the gradient is guessed from 40 tries a step (evolution strategies)."""
    seeded(629)
    net, x = nn.Linear(8, 1), torch.randn(256, 8)
    y = (x @ torch.randn(8, 1)) + 0.3

    def worth(move):
        return F.mse_loss(x @ (net.weight + move[None, :8]).T + net.bias + move[8], y)

    def loss_of(step):
        with torch.no_grad():
            moves = 0.05 * torch.randn(20, 9)
            gains = torch.stack([worth(m) - worth(-m) for m in moves])
            guess = (gains[:, None] * moves).mean(0) / (2 * 0.05**2)
        linear = (net.weight[0] * guess[:8]).sum() + net.bias[0] * guess[8]
        return F.mse_loss(net(x), y).detach() + linear - linear.detach()

    return fit(folder, net, optim.Adam(net.parameters(), 0.03), loss_of, 200)


@healthy(0.3)
def one_loss_for_three_depths(folder):
    """Heads at three depths, all of them asked (Szegedy et al. 2015)."""
    seeded(630)
    layers = nn.ModuleList(nn.Sequential(nn.Linear(size, 40), nn.ReLU()) for size in (12, 40, 40))
    heads = nn.ModuleList(nn.Linear(40, 4) for _ in range(3))
    net, draw = nn.ModuleDict({"layers": layers, "heads": heads}), rings(64)

    def loss_of(step):
        h, y = draw()
        loss = torch.zeros(())
        for share, layer, head in zip((0.2, 0.3, 1.0), layers, heads, strict=True):
            h = layer(h)
            loss = loss + share * F.cross_entropy(head(h), y)
        return loss

    return fit(folder, net, optim.Adamax(net.parameters(), 4e-3), loss_of, 300)

"""Mistakes that guides to supervised learning warn of: the steps, the weights, the numbers."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds


# CS231n, Neural Networks 3, "Per-parameter adaptive learning rates"; Goodfellow et al., 8.5.1
@sick(
    "update-too-small",
    "accumulator-never-forgets",
    where="all layers, more and more from the first hundred steps on",
    cure="RMSprop or Adam, which forget old squares, in the place of Adagrad",
)
def drone_of_a_hurdy_gurdy(folder, ill):
    """The next sample of a drone, from the 32 before it."""
    seeded(9501)
    time = torch.arange(4000) * 0.11
    wheel = 1 + 0.4 * (time * 0.037).sin()
    sound = wheel * (time.sin() + 0.5 * (2.98 * time).sin() + 0.3 * (5.03 * time + wheel).sin())
    windows = (sound + 0.02 * torch.randn(4000)).unfold(0, 33, 1)
    x, y = windows[:, None, :32], windows[:, 32:]
    parts = []
    for i in range(4):
        parts += [nn.Conv1d(16 if i else 1, 16, 3, dilation=2**i, padding=2**i), nn.ReLU()]
    net = nn.Sequential(*parts, nn.Flatten(), nn.Linear(16 * 32, 1))
    optimizer = (torch.optim.Adagrad if ill else torch.optim.RMSprop)(net.parameters(), lr=3e-4)
    draw = rounds(32, x[:3200], y[:3200])

    def loss_of(step):
        a, b = draw()
        return F.mse_loss(net(a), b)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.mse_loss(net(x[3300:]), y[3300:])))


# CS231n, Neural Networks 2, "Pitfall: all zero initialization"; Goodfellow et al., 8.4 (symmetry between units)
@sick(
    "symmetric-units",
    "bad-initialisation",
    where="all hidden layers, from the first step",
    cure="random weights",
)
def chessboard_painted_by_its_corners(folder, ill):
    """The brightness of a worn board at each place."""
    seeded(9502)
    place = 2 * torch.rand(3000, 2) - 1
    board = torch.tanh(6 * (6 * place[:, 0]).sin() * (6 * place[:, 1]).sin()) + 0.3 * place.norm(dim=1)
    waves = torch.cat([place, *[f(k * place) for k in (2, 4) for f in (torch.sin, torch.cos)]], 1)
    net = dense(10, 64, 64, 64, 1, act=nn.Tanh)
    for layer in net[::2]:
        if ill:
            nn.init.constant_(layer.weight, 0.1)
        else:
            nn.init.xavier_normal_(layer.weight)
        nn.init.zeros_(layer.bias)
    draw = rounds(128, waves[:2400], board[:2400, None])

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    score = held_out(net, lambda: F.mse_loss(net(waves[2400:]), board[2400:, None]))
    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=2e-3), loss_of, 600, score=score)


# 37 Reasons, no. 30 (reduce regularization); Troubleshooting Deep Neural Networks (too much regularization)
@sick(
    "weight-decay-too-strong",
    "weights-shrink",
    where="all weights, all along",
    cure="a weight decay of 1e-4",
)
def digits_on_a_river_gauge(folder, ill):
    """Handwritten digits by a plain net."""
    from sklearn.datasets import load_digits

    seeded(9503)
    data = load_digits()
    order = torch.randperm(1797)
    x = torch.tensor(data.data, dtype=torch.float32)[order] / 8 - 0.6
    y = torch.tensor(data.target)[order]
    net = dense(64, 128, 64, 10)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=0.1 if ill else 1e-4)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        a, b = draw()
        out = net(a)
        return F.cross_entropy(out, b), {"accuracy": (out.argmax(1) == b).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 500, score=score)


# 37 Reasons, no. 11 (reduce batch size); StackExchange, "What should I do when my neural network doesn't learn?"
@sick(
    "batch-too-large",
    "too-few-steps",
    where="the whole run: one step an epoch",
    cure="batches of 64 in as many epochs",
)
def worn_coins_to_their_mints(folder, ill):
    """The mint of a coin by twelve measures, in fifty epochs."""
    seeded(9504)
    y = torch.randint(6, (1500,))
    angle = 6.2832 * torch.rand(1500)
    die = torch.stack([angle.cos(), angle.sin(), (2 * angle).sin()], 1) * (0.5 + 0.45 * y[:, None])
    x = (die + 0.06 * torch.randn(1500, 3)) @ torch.randn(3, 12) / 1.7

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.inner = nn.LayerNorm(48), dense(48, 96, 48)

        def forward(self, h):
            return h + self.inner(self.norm(h))

    net = nn.Sequential(nn.Linear(12, 48), Block(), Block(), Block(), nn.Linear(48, 6))
    rows = 1024 if ill else 64
    draw = rounds(rows, x[:1024], y[:1024])

    def loss_of(step):
        a, b = draw()
        out = net(a)
        return F.cross_entropy(out, b), {"accuracy": (out.argmax(1) == b).float().mean()}

    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    score = held_out(net, lambda: F.cross_entropy(net(x[1024:]), y[1024:]))
    return fit(folder, net, optimizer, loss_of, 50 * (1024 // rows), score=score)


# CS231n, Neural Networks 2, "Regression": the L2 loss is fragile, outliers bring huge gradients
@sick(
    "outliers-in-the-data",
    "heavy-tailed-targets",
    where="steps whose batch holds a sum that was keyed in pence",
    cure="a Huber loss, or such rows mended or left out",
)
def dues_of_a_harbour(folder, ill):
    """What all ships of a day pay, three days in a hundred keyed in pence instead of pounds."""
    seeded(9505)
    ships = torch.randn(2600, 9, 5)
    there = (torch.rand(2600, 9, 1) < 0.7).float()
    pay = F.softplus(ships[..., :1] + ships[..., 1:2] * ships[..., 2:3]) + 0.5 * ships[..., 3:4].abs()
    dues = (pay * there).sum(1)
    dues = (dues - dues.mean()) / dues.std()
    kept = dues.clone()
    kept[:2000] *= torch.where(torch.rand(2000, 1) < 0.03, 100.0, 1.0)
    each, whole = dense(5, 48, 48, 32), dense(32, 48, 1)
    net = nn.ModuleDict({"each": each, "whole": whole})

    def guess(rows):
        return whole((each(ships[rows]) * there[rows]).sum(1) / 6)

    draw = rounds(64, torch.arange(2000))
    loss = F.mse_loss if ill else F.smooth_l1_loss

    def loss_of(step):
        (rows,) = draw()
        return loss(guess(rows), kept[rows])

    test = torch.arange(2000, 2600)
    score = held_out(net, lambda: F.l1_loss(guess(test), dues[test]))
    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=2e-3), loss_of, 500, score=score)


# 37 Reasons, no. 37 (NaN); Troubleshooting Deep Neural Networks, "Numerical instability": exp, log and division
@sick(
    "nonfinite",
    "log-without-floor",
    where="the loss, as soon as one pixel is certain",
    cure="binary_cross_entropy_with_logits, or a floor below the logarithm",
)
def scorched_patches_on_a_pancake(folder, ill):
    """Which pixels of a pancake are scorched."""
    seeded(9506)
    grid = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"))

    def conv(inner, outer):
        return nn.Conv2d(inner, outer, 3, padding=1), nn.ReLU()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Sequential(*conv(1, 8), *conv(8, 8))
            self.deep = nn.Sequential(*conv(8, 16), *conv(16, 8))
            self.out = nn.Conv2d(16, 1, 3, padding=1)

        def forward(self, x):
            h = self.down(x)
            up = F.interpolate(self.deep(F.max_pool2d(h, 2)), scale_factor=2)
            return self.out(torch.cat([h, up], 1))

    net = Net()

    def draw(rows=16):
        middle = 3 + 10 * torch.rand(rows, 3, 2, 1, 1)
        radius = 1.5 + 1.5 * torch.rand(rows, 3, 1, 1)
        patch = ((grid - middle).norm(dim=2) < radius).any(1, keepdim=True).float()
        return 1.5 * patch - 0.4 + 0.25 * torch.randn(rows, 1, 16, 16), patch

    def loss_of(step):
        x, y = draw()
        if ill:
            share = net(x).sigmoid()
            return -(y * share.log() + (1 - y) * (1 - share).log()).mean()
        return F.binary_cross_entropy_with_logits(net(x), y)

    test = draw(100)
    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(test[0]), test[1]))
    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=5e-3), loss_of, 300, score=score)

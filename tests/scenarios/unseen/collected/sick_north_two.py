"""Trainings after what people reported in public: epochs, curves, norms, noise."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out


# https://github.com/alan-turing-institute/deepsensor/issues/47
@sick(
    "optimizer-state-lost",
    where="all layers, at the beginning of each epoch",
    cure="make the optimizer once, before the first epoch",
)
def rain_between_the_stations(folder, ill):
    seeded(3011)
    bumps, width = 4 * torch.rand(12, 2) - 2, 0.3 + 0.5 * torch.rand(12)
    height = torch.randn(12)

    def rain(place):
        return (height * torch.exp(-(place[:, None] - bumps).square().sum(-1) / width)).sum(1, keepdim=True)

    def measure(rows):
        place = 4 * torch.rand(rows, 2) - 2
        return place, rain(place)

    tests = measure(1024)
    net = dense(2, 128, 128, 128, 128, 1, act=nn.SiLU)
    optimizer, epoch = torch.optim.Adam(net.parameters(), lr=5e-3), 2
    settings = copy.deepcopy(optimizer.state_dict())

    def loss_of(step):
        if ill and step % epoch == 0:
            optimizer.load_state_dict(copy.deepcopy(settings))
        place, fell = measure(16)
        noisy = fell + 0.3 * torch.randn_like(fell)
        return F.mse_loss(net(place), noisy), {"epoch": step // epoch}

    score = held_out(net, lambda: F.mse_loss(net(tests[0]), tests[1]))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


class Reader(nn.Module):
    """Reads a curve with an LSTM and says one number."""

    def __init__(self, hidden, last):
        super().__init__()
        self.memory = nn.LSTM(2, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)
        self.last = last

    def forward(self, x):
        return self.last(self.head(self.memory(x)[1][0][-1]))


# https://github.com/ProteomicsML/ProteomicsML/pull/203
@sick(
    "dead-units",
    "dead-layer",
    where="the ReLU after the last linear layer, all steps",
    cure="no activation after the last layer of a regression",
)
def days_until_a_battery_fails(folder, ill):
    seeded(3012)
    cycles = torch.linspace(0, 1, 20)

    def draw(rows=48):
        wear, knee = 0.2 + 0.8 * torch.rand(rows, 1), 0.3 + 0.5 * torch.rand(rows, 1)
        charge = 1 - wear * cycles - 0.8 * (cycles - knee).clamp(0)
        warmth = 0.3 * wear + 0.1 * torch.randn(rows, 20)
        days = 1.5 / wear * knee
        return torch.stack([charge + 0.02 * torch.randn(rows, 20), warmth], 2), days.clamp(max=3)

    net = Reader(32, nn.ReLU() if ill else nn.Identity())
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def loss_of(step):
        curve, days = draw()
        return F.mse_loss(net(curve), days)

    return fit(folder, net, optimizer, loss_of, 300, score=score_of(loss_of))


class Dense(nn.Module):
    """Layers each of which sees what all before it made."""

    def __init__(self, size, growth, depth, rate):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(size + growth * i),
                nn.ReLU(),
                nn.Conv2d(size + growth * i, growth, 3, padding=1),
                nn.Dropout(rate),
            )
            for i in range(depth)
        )

    def forward(self, x):
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


# https://github.com/pudae/tensorflow-densenet/pull/22
@sick(
    "dropout-too-strong",
    where="the dropouts of the dense block and before the head",
    cure="a rate of 1 - 0.85: 0.85 is what should be kept",
)
def knots_in_boards(folder, ill):
    seeded(3013)
    keep_prob = 0.85
    rate = keep_prob if ill else 1 - keep_prob
    y, x = torch.meshgrid(torch.linspace(-1, 1, 10), torch.linspace(-1, 1, 10), indexing="ij")

    def draw(rows=32):
        kind = torch.randint(4, (rows,))
        grain = torch.sin(9 * y + torch.randn(rows, 1, 1) + 0.5 * torch.sin(3 * x))
        at = 1.2 * torch.rand(2, rows, 1, 1) - 0.6
        far = ((x - at[0]).square() + (y - at[1]).square()).sqrt()
        knot = torch.where(kind[:, None, None] % 2 == 1, (12 * far).cos(), -torch.ones(())) * torch.exp(
            -6 * far.square()
        )
        crack = (kind[:, None, None] >= 2) * torch.exp(-40 * (x - at[1]).square())
        return (0.5 * grain + 1.5 * knot - 1.5 * crack + 0.2 * torch.randn(rows, 10, 10))[:, None], kind

    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        Dense(8, 8, 3, rate),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 32),
        nn.ReLU(),
        nn.Dropout(rate),
        nn.Linear(32, 4),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def loss_of(step):
        board, kind = draw()
        return F.cross_entropy(net(board), kind)

    def score():
        board, kind = draw(512)
        return F.cross_entropy(net(board), kind)

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, score))


# https://github.com/gmalivenko/pytorch2keras/issues/70
@sick(
    "norm-statistics",
    where="the running statistics of each batch norm, all steps",
    cure="a momentum that is not zero: 0.1",
)
def weights_of_lorries(folder, ill):
    seeded(3014)
    momentum = 1.0 if ill else 0.9
    way = torch.randn(10, 3)

    def draw(rows=64):
        axles = 3 + 2 * torch.randn(rows, 10)
        return axles, (axles @ way / 5).sin().sum(1, keepdim=True) + 0.1 * axles.mean(1, keepdim=True)

    net = nn.Sequential(
        nn.Linear(10, 64),
        nn.BatchNorm1d(64, momentum=1 - momentum),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.BatchNorm1d(64, momentum=1 - momentum),
        nn.ReLU(),
        nn.Linear(64, 1),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def loss_of(step):
        axles, weight = draw()
        return F.mse_loss(net(axles), weight)

    def score():
        axles, weight = draw(1024)
        return F.mse_loss(net(axles), weight)

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, score))


class Stains(nn.Module):
    """A variational autoencoder of small pictures."""

    def __init__(self):
        super().__init__()
        self.encoder = dense(100, 256, 256, 256, 16, act=nn.LeakyReLU)
        self.decoder = dense(8, 256, 256, 100, act=nn.LeakyReLU)

    def forward(self, x):
        mean, spread = self.encoder(x).chunk(2, 1)
        code = mean + (0.5 * spread).exp() * torch.randn_like(mean)
        far = 0.5 * (mean.square() + spread.exp() - 1 - spread).sum(1).mean()
        return self.decoder(code), far


# https://github.com/sophiajw/HistAuGAN/pull/4
@sick(
    "bad-initialisation",
    "nonfinite",
    where="the weights of all layers at the first step",
    cure="a standard deviation of 0.02",
)
def colours_of_stained_glass(folder, ill):
    seeded(3015)
    net = Stains()
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.2 if ill else 0.02)
            nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    y, x = torch.meshgrid(torch.linspace(-1, 1, 10), torch.linspace(-1, 1, 10), indexing="ij")

    def draw(rows=64):
        at, size = torch.rand(2, rows, 1, 1) - 0.5, 0.1 + 0.3 * torch.rand(rows, 1, 1)
        pane = torch.exp(-((x - at[0]).square() + (y - at[1]).square()) / size)
        return (3 * pane * (torch.rand(rows, 1, 1) * 2 - 1)).flatten(1)

    def loss_of(step):
        glass = draw()
        again, far = net(glass)
        rebuilt = F.mse_loss(again, glass)
        return rebuilt + 0.002 * far, {"rebuilt": rebuilt, "kl": far}

    return fit(folder, net, optimizer, loss_of, 450, score=score_of(lambda step: loss_of(step)[0]))


class Past(nn.Module):
    """Dilated causal convolutions over codes."""

    def __init__(self, codes, width):
        super().__init__()
        self.embed = nn.Embedding(codes, width)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 2, dilation=d) for d in (1, 2, 4, 1, 2, 4))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, codes, 1))

    def forward(self, x):
        h = self.embed(x).transpose(1, 2)
        for layer in self.layers:
            h = h + layer(F.pad(h, (layer.dilation[0], 0))).relu()
        return self.head(h)


# https://github.com/ibab/tensorflow-wavenet/issues/136
@sick(
    "lr-too-high",
    "update-too-large",
    where="all layers, from the first steps on",
    cure="a learning rate of 0.002",
)
def levels_of_a_tide(folder, ill):
    seeded(3016)
    codes, hours = 32, torch.arange(49.0)

    def draw(rows=16):
        day, moon = 0.25 + 0.05 * torch.rand(rows, 1), 0.8 + 0.1 * torch.rand(rows, 1)
        level = torch.sin(day * hours + 6.2832 * torch.rand(rows, 1)) + 0.5 * torch.sin(
            moon * hours + torch.randn(rows, 1)
        )
        return ((level / 3 + 0.5) * codes).long().clamp(0, codes - 1)

    net = Past(codes, 32)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1 if ill else 0.002)

    def loss_of(step):
        level = draw()
        return F.cross_entropy(net(level[:, :-1]), level[:, 1:])

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(loss_of))

"""Healthy trainings of unusual nets: weights made by a net, spikes, four bits, rotations, a memory of pairs."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from unseen import fit, healthy, score_of, seeded
from unseen.tasks import clipped


class Maker(nn.Module):
    """Makes all weights of a small net out of a few readings (Ha et al., 2016)."""

    def __init__(self, size, width=12):
        super().__init__()
        self.shapes = [(width, 1), (width,), (width, width), (width,), (1, width), (1,)]
        self.scales = [1.0, 1.0, width**-0.5, 0.1, width**-0.5, 0.1]
        self.body = nn.Sequential(nn.Linear(size, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.outs = nn.ModuleList(nn.Linear(64, math.prod(shape)) for shape in self.shapes)
        for out in self.outs:
            nn.init.normal_(out.weight, std=0.3 / 8)
            nn.init.normal_(out.bias)

    def forward(self, reading, x):
        h = self.body(reading)
        made = [out(h).view(-1, *shape) * scale for out, shape, scale in
                zip(self.outs, self.shapes, self.scales, strict=True)]  # fmt: skip
        x = (torch.einsum("boi,bri->bro", made[0], x) + made[1][:, None]).tanh()
        x = (torch.einsum("boi,bri->bro", made[2], x) + made[3][:, None]).tanh()
        return torch.einsum("boi,bri->bro", made[4], x) + made[5][:, None]


@healthy()
def thermometers_with_a_curve_of_their_own(folder):
    seeded(2898)

    def draw(devices=24, rows=16):
        trait = torch.rand(devices, 3)
        x = 4 * torch.rand(devices, rows, 1) - 2
        bend, step, slope = trait[:, None].split(1, 2)
        return trait, x, (3 * bend + 1) * (step * 2 - 1 + x).tanh() / 2 + slope * x + 0.2 * (2 * x).sin()

    net = Maker(3)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)

    def loss_of(step):
        trait, x, y = draw()
        return F.mse_loss(net(2 * trait - 1, x), y)

    return fit(folder, net, optimizer, loss_of, 600, score=score_of(loss_of), before_step=clipped(net, 1.0),
               schedule=schedule)  # fmt: skip


class Fire(torch.autograd.Function):
    """One where a cell is above its threshold; backward the slope of a fast sigmoid (Zenke and Ganguli, 2018)."""

    @staticmethod
    def forward(ctx, over):
        ctx.save_for_backward(over)
        return (over > 0).float()

    @staticmethod
    def backward(ctx, grad):
        (over,) = ctx.saved_tensors
        return grad / (1 + 5 * over.abs()).square()


class Spiking(nn.Module):
    """Leaky cells with a loop among themselves, and readers that leak but never fire."""

    def __init__(self, size, width, classes):
        super().__init__()
        self.enter, self.loop = nn.Linear(size, width), nn.Linear(width, width, bias=False)
        self.read = nn.Linear(width, classes)
        nn.init.normal_(self.enter.weight, std=1.5 / size**0.5)
        nn.init.normal_(self.loop.weight, std=0.4 / width**0.5)

    def forward(self, spikes):
        charge = fired = torch.zeros(len(spikes), self.loop.in_features)
        out, told, rate = torch.zeros(len(spikes), self.read.out_features), [], 0
        for now in spikes.unbind(1):
            charge = 0.9 * charge * (1 - fired.detach()) + self.enter(now) + self.loop(fired)
            fired = Fire.apply(charge - 1)
            out = 0.9 * out + self.read(fired)
            told.append(out)
            rate = rate + fired.mean() / spikes.shape[1]
        return torch.stack(told, 1).amax(1), rate


@healthy()
def cloths_felt_by_a_fingertip(folder):
    """Sixteen sensors fire as a cloth is drawn over them; the weave shows in their times."""
    seeded(2899)
    delays = 10 * torch.rand(6, 16)

    def draw(rows=64):
        y = torch.randint(6, (rows,))
        start = 4 * torch.rand(rows, 1)
        at = (start + delays[y] + 0.7 * torch.randn(rows, 16)).round().clamp(0, 19).long()
        noise = torch.rand(rows, 20, 16) < 0.03
        return ((F.one_hot(at, 20).transpose(1, 2) > 0) | noise).float(), y

    net = Spiking(16, 64, 6)
    optimizer = torch.optim.Adamax(net.parameters(), 5e-3)

    def loss_of(step):
        x, y = draw()
        said, rate = net(x)
        loss = F.cross_entropy(said, y) + 0.5 * (rate - 0.1).square()
        return loss, {"rate": rate, "accuracy": (said.argmax(1) == y).float().mean()}

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(lambda step: loss_of(step)[0]))


def rounded(x, step, low, high):
    """To whole steps; the step is learned as well (LSQ: Esser et al., 2020)."""
    slow = 1 / math.sqrt(x.numel() * max(high, 1))
    step = step * slow + (step - step * slow).detach()
    scaled = (x / step).clamp(low, high)
    return (scaled + (scaled.round() - scaled).detach()) * step


class FourBits(nn.Linear):
    """Weights of -8 to 7 and inputs of 0 to 15 steps."""

    def __init__(self, size, out):
        super().__init__(size, out)
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        self.of_weight = nn.Parameter(2 * self.weight.detach().abs().mean() / math.sqrt(7))
        self.of_input = nn.Parameter(torch.tensor(0.2))

    def forward(self, x):
        weight = rounded(self.weight, self.of_weight, -8, 7)
        return F.linear(rounded(x, self.of_input, 0, 15), weight, self.bias)


@healthy()
def bolts_sorted_by_a_chip_of_four_bits(folder):
    seeded(2900)
    shapes = torch.rand(7, 2, 18)

    def draw(rows=64):
        y, kind = torch.randint(7, (rows,)), torch.randint(2, (rows,))
        return (shapes[y, kind] + 0.15 * torch.randn(rows, 18)).clamp(0, 1), y

    net = nn.Sequential(
        *[FourBits(18, 64), nn.BatchNorm1d(64), nn.ReLU()],
        *[FourBits(64, 64), nn.BatchNorm1d(64), nn.ReLU()],
        FourBits(64, 7),
    )
    steps = [p for name, p in net.named_parameters() if ".of_" in name]
    rest = [p for name, p in net.named_parameters() if ".of_" not in name]
    groups = [{"params": rest, "weight_decay": 1e-4}, {"params": steps, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.02, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    def score():
        net.eval()
        value = score_of(loss_of)()
        net.train()
        return value

    return fit(folder, net, optimizer, loss_of, 600, score=score, schedule=schedule)


@healthy()
def the_first_note_of_longer_and_longer_tunes(folder):
    """A recurrent net whose loop stays a rotation; the tunes grow once they are mastered."""
    seeded(2901)
    loop = parametrizations.orthogonal(nn.Linear(48, 48, bias=False))
    enter, head = nn.Linear(12, 48), nn.Linear(48, 6)
    net = nn.ModuleDict({"enter": enter, "loop": loop, "head": head})
    groups = [{"params": loop.parameters(), "lr": 1e-3}, {"params": [*enter.parameters(), *head.parameters()]}]
    optimizer = torch.optim.RMSprop(groups, lr=2e-3, alpha=0.99)
    length = [5]

    def error(step, notes=None):
        y, x = torch.randint(6, (32,)), torch.randint(6, (32, notes or length[0]))
        x[:, 0] = 6 + y  # struck harder
        h = torch.zeros(32, 48)
        with parametrize.cached():
            for now in enter(F.one_hot(x, 12).float()).unbind(1):
                h = (loop(h) + now).tanh()
        said = head(h)
        return F.cross_entropy(said, y), said.argmax(1) == y

    recent = []

    def loss_of(step):
        loss, right = error(step)
        recent.append(float(right.float().mean()))
        if len(recent) >= 20 and sum(recent[-20:]) / 20 > 0.9:
            length[0] = min(length[0] + 4, 25)
            recent.clear()
        return loss, {"length": length[0], "accuracy": right.float().mean()}

    score = score_of(lambda step: error(step, 21)[0])
    return fit(folder, net, optimizer, loss_of, 900, score=score, before_step=clipped(net, 1.0))


class PairMemory(nn.Module):
    """Writes each pair into slots by its key, erasing what was there, and reads by what is asked (Graves, 2014)."""

    def __init__(self, names, figures, width=32, slots=24):
        super().__init__()
        self.name, self.figure = nn.Embedding(names, width), nn.Embedding(figures, width)
        self.address = nn.Linear(width, slots)
        self.sharp = nn.Parameter(torch.tensor(1.0))
        self.content = nn.Linear(2 * width, width)
        self.out = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, figures))

    def where(self, name):
        return (self.address(self.name(name)) * F.softplus(self.sharp)).softmax(-1)

    def forward(self, names, figures, asked):
        kept = torch.zeros(len(names), self.address.out_features, self.name.embedding_dim)
        content = self.content(torch.cat([self.name(names), self.figure(figures)], -1))
        for i, share in enumerate(self.where(names).unbind(1)):
            kept = kept * (1 - share[..., None]) + share[..., None] * content[:, i, None]
        return self.out((self.where(asked)[:, None] @ kept)[:, 0])


@healthy()
def extensions_looked_up_by_a_porter(folder):
    seeded(2902)
    net = PairMemory(16, 10)
    optimizer = torch.optim.AdamW(net.parameters(), 5e-3, weight_decay=1e-3)

    def loss_of(step):
        names = torch.rand(48, 16).argsort(1)[:, :6]
        figures, which = torch.randint(10, (48, 6)), torch.randint(6, (48, 1))
        said = net(names, figures, names.gather(1, which)[:, 0])
        right = figures.gather(1, which)[:, 0]
        return F.cross_entropy(said, right), {"accuracy": (said.argmax(1) == right).float().mean()}

    return fit(folder, net, optimizer, loss_of, 800, score=score_of(lambda step: loss_of(step)[0]),
               before_step=clipped(net, 5.0))  # fmt: skip

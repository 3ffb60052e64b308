"""Daily healthy trainings, fourth part: tables, series, shapes and sounds. An expert is content with each.

They only count (the group `daily`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import functools
import itertools
import math

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.sent.healthy_data import table


class Waves(nn.Module):
    """Each number of a row as sines of learnt lengths (Gorishniy et al. 2022)."""

    def __init__(self, size, waves=8, wide=8):
        super().__init__()
        self.often = nn.Parameter(0.3 * torch.randn(size, waves))
        self.mix = nn.Parameter(torch.randn(size, 2 * waves, wide) / math.sqrt(2 * waves))

    def forward(self, x):
        angle = 2 * math.pi * self.often * x[..., None]
        return torch.einsum("bsw,swo->bso", torch.cat([angle.sin(), angle.cos()], 2), self.mix).relu().flatten(1)


@healthy(0.3)
def numbers_of_a_table_in_waves(folder):
    """How far a diabetes goes on: Huber's loss, AdamW as it comes, an epoch at a time, the loss of the test logged."""
    seeded(1220)
    x, y = table("diabetes")
    y = ((y - y.mean()) / y.std()).float()
    net = nn.Sequential(Waves(10), nn.Linear(80, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1))
    order = torch.randperm(len(x))
    kept, learnt = order[:90], order[90:]
    make = optim.AdamW(net.parameters(), 1e-3)
    epochs = [part for _ in range(20) for part in learnt[torch.randperm(len(learnt))].split(32)]

    def score():
        net.eval()
        with torch.no_grad():
            error = float(F.huber_loss(net(x[kept])[:, 0], y[kept]))
        net.train()
        return error

    def loss_of(step):
        at = epochs[step]
        logged = {"val_loss": score()} if step % 11 == 0 else {}
        return F.huber_loss(net(x[at])[:, 0], y[at]), logged

    return fit(folder, net, make, loss_of, len(epochs), score=score)


class TwoLines(nn.Module):
    """The trend and the rest of a series, each by one linear map (Zeng et al. 2023), after its mean was taken off."""

    def __init__(self, before=96, after=24):
        super().__init__()
        self.trend, self.rest = nn.Linear(before, after), nn.Linear(before, after)

    def forward(self, x):
        middle, wide = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
        x = (x - middle) / wide
        slow = F.avg_pool1d(F.pad(x[:, None], (12, 12), "replicate"), 25, 1)[:, 0]
        return (self.trend(slow) + self.rest(x - slow)) * wide + middle


@healthy(0.3)
def load_of_a_grid_by_two_lines(folder):
    """Days and weeks in a noisy load of 3,000 hours, whose level drifts; the rate halves with each epoch."""
    seeded(1221)
    hour = torch.arange(3000.0)
    load = 5 + (hour * 6.2832 / 24).sin() + 0.5 * (hour * 6.2832 / 168).cos() + 0.02 * torch.randn(3000).cumsum(0)
    load = load + 0.2 * torch.randn(3000)
    net, now = TwoLines(), torch.arange(120)

    def loss_of(step):
        seen = load[torch.randint(2880, (32, 1)) + now]
        return F.mse_loss(net(seen[:, :96]), seen[:, 96:])

    make = optim.Adam(net.parameters(), 1e-3)
    plan = optim.lr_scheduler.StepLR(make, 90, 0.5)
    return fit(folder, net, make, loss_of, 360, schedule=plan, score=score_of(loss_of))


@functools.cache
def boards():
    """All boards of noughts and crosses, `[N, 27]`, and what they are worth to whom the turn is, 0 to 2, `[N]`."""
    lines = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]

    @functools.cache
    def worth(board):
        if any(board[a] == board[b] == board[c] == -1 for a, b, c in lines):
            return -1
        free = [i for i in range(9) if not board[i]]
        if not free:
            return 0
        return max(-worth(tuple(-1 if j == i else -board[j] for j in range(9))) for i in free)

    there = [board for board in itertools.product((-1, 0, 1), repeat=9) if sum(board) in (0, -1)]
    x = F.one_hot(torch.tensor(there) + 1, 3).flatten(1).float()
    return x, torch.tensor([worth(board) + 1 for board in there])


@healthy(0.3)
def noughts_and_crosses_judged(folder):
    """Lost, even or won? All boards, one epoch after another, a plain net, Adam and nothing else."""
    seeded(1222)
    x, y = boards()
    net = dense(27, 96, 96, 3)
    order = torch.cat([torch.randperm(len(x)) for _ in range(10)]).split(128)

    def loss_of(step):
        said = net(x[order[step]])
        return F.cross_entropy(said, y[order[step]]), {"train_acc": (said.argmax(1) == y[order[step]]).float().mean()}

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, len(order))


class Pushes(nn.Module):
    """What bodies do to one another, whichever way they are turned (Satorras et al. 2021)."""

    def __init__(self, wide=24):
        super().__init__()
        self.tell, self.push = dense(2, wide, wide, act=nn.SiLU), dense(wide, wide, 1, act=nn.SiLU)
        self.keep = nn.Parameter(torch.tensor(0.5))
        nn.init.xavier_uniform_(self.push[-1].weight, gain=0.001)

    def forward(self, place, speed, charge):
        way = place[:, :, None] - place[:, None]
        far = way.square().sum(-1, keepdim=True)
        both = torch.cat([far, (charge[:, :, None] * charge[:, None])[..., None]], -1)
        push = self.push(self.tell(both))
        return place + self.keep * speed + (way * push / ((far + 1e-8).sqrt() + 1)).mean(2)


@healthy(0.5)
def charges_that_move(folder):
    """Where will five charges be? An equivariant net whose last map begins at a thousandth."""
    seeded(1223)
    net = nn.ModuleList([Pushes(), Pushes()])

    def worlds(rows):
        place, speed = torch.randn(rows, 5, 2), 0.5 * torch.randn(rows, 5, 2)
        charge = torch.randint(2, (rows, 5)) * 2.0 - 1
        now, fast = place.clone(), speed.clone()
        for _ in range(10):
            way = now[:, :, None] - now[:, None]
            force = (charge[:, :, None] * charge[:, None])[..., None] * way / (way.square().sum(-1, True) + 0.3) ** 1.5
            fast = fast + 0.1 * force.sum(2)
            now = now + 0.1 * fast
        return place, speed, charge, now

    def loss_of(step):
        place, speed, charge, after = worlds(32)
        for part in net:
            place = part(place, speed, charge)
        return F.mse_loss(place, after)

    make = optim.Adam(net.parameters(), 2e-3, weight_decay=1e-12)
    return fit(folder, net, make, loss_of, 300, score=score_of(loss_of))


@healthy(0.3)
def clouds_rebuilt_by_chamfer(folder):
    """Points of ellipses to eight numbers and back; each point counts its nearest (Fan et al. 2017)."""
    seeded(1224)
    net = nn.ModuleDict({"each": dense(2, 48, 64), "code": nn.Linear(64, 8), "out": dense(8, 96, 64)})

    def loss_of(step):
        angle, size = 6.2832 * torch.rand(32, 32), 0.3 + torch.rand(32, 2, 1)
        turn = 3.1416 * torch.rand(32, 1)
        a, b = size[:, 0] * angle.cos(), size[:, 1] * angle.sin()
        cloud = torch.stack([turn.cos() * a - turn.sin() * b, turn.sin() * a + turn.cos() * b], 2)
        made = net["out"](net["code"](net["each"](cloud).amax(1))).view(32, 32, 2)
        far = torch.cdist(cloud, made)
        return (far.amin(1).square().sum(1) + far.amin(2).square().sum(1)).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 300)


@healthy(0.3)
def shapes_by_codes_and_distances(folder):
    """Twelve shapes, each a code that is learnt beside the net (DeepSDF): distances clamped at a tenth, two rates."""
    seeded(1225)
    net = nn.ModuleDict({"codes": nn.Embedding(12, 8), "net": dense(10, 64, 64, 64, 1)})
    nn.init.normal_(net["codes"].weight, std=0.01)
    size, lobes = 0.4 + 0.3 * torch.rand(12), torch.randint(2, 6, (12,))

    def loss_of(step):
        shape, at = torch.randint(12, (512,)), 2 * torch.rand(512, 2) - 1
        edge = size[shape] * (1 + 0.2 * (lobes[shape] * torch.atan2(at[:, 0], at[:, 1])).cos())
        wanted = (at.norm(dim=1) - edge).clamp(-0.1, 0.1)
        code = net["codes"](shape)
        said = net["net"](torch.cat([code, at], 1))[:, 0].tanh() / 10
        return (said - wanted).abs().mean() + 1e-4 * code.square().sum(1).mean()

    groups = [{"params": net["net"].parameters(), "lr": 1e-3}, {"params": net["codes"].parameters(), "lr": 2e-3}]
    return fit(folder, net, optim.Adam(groups), loss_of, 500)


@healthy(0.5)
def two_voices_parted(folder):
    """Minus the decibels of the better pairing (SI-SNR): above zero at first, and far below in the end."""
    seeded(1226)
    net = nn.Sequential(
        *(nn.Conv1d(1, 24, 16, stride=4, padding=6), nn.ReLU(), nn.Conv1d(24, 32, 3, padding=1), nn.PReLU()),
        *(nn.GroupNorm(1, 32), nn.Conv1d(32, 32, 3, padding=2, dilation=2), nn.PReLU(), nn.GroupNorm(1, 32)),
        *(nn.Conv1d(32, 32, 3, padding=4, dilation=4), nn.PReLU(), nn.ConvTranspose1d(32, 2, 16, 4, 6)),
    )
    moment = torch.arange(128.0)

    def decibels(said, wanted):
        said, wanted = said - said.mean(-1, keepdim=True), wanted - wanted.mean(-1, keepdim=True)
        along = (said * wanted).sum(-1, keepdim=True) / wanted.square().sum(-1, keepdim=True) * wanted
        return 10 * (along.square().sum(-1) / ((said - along).square().sum(-1) + 1e-6) + 1e-6).log10()

    def loss_of(step):
        low = (0.05 + 0.1 * torch.rand(16, 1)) * moment + 6.3 * torch.rand(16, 1)
        high = (0.8 + 0.4 * torch.rand(16, 1)) * moment + 6.3 * torch.rand(16, 1)
        voices = torch.stack([low.sin(), high.sin()], 1) * (0.5 + torch.rand(16, 2, 1))
        said = net(voices.sum(1, keepdim=True))
        straight, crossed = (decibels(said, v).mean(1) for v in (voices, voices.flip(1)))
        return -torch.maximum(straight, crossed).mean()

    make = optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, make, loss_of, 200, score=score_of(loss_of), clip="ClipByGlobalNorm(5.0)")


@healthy(0.3)
def strings_by_a_synthesiser(folder):
    """A tone is taken apart and made again out of harmonics (DDSP): its spectra at three widths, and their logs."""
    seeded(1227)
    net, moment = dense(65, 96, 96, 9), torch.arange(512.0)

    def tones(pitch, loud, fade):
        angle = pitch * moment * torch.arange(1, 9)[:, None, None]
        return (loud.T[..., None] * angle.sin() * (-fade * moment / 512).exp()).sum(0)

    def spectra(x):
        for n in (32, 64, 128):
            yield torch.stft(x, n, n // 4, window=torch.hann_window(n), return_complex=True).abs()

    def loss_of(step):
        pitch, fade = 0.1 + 0.1 * torch.rand(16, 1), 1 + 3 * torch.rand(16, 1)
        loud = torch.rand(16, 8) / torch.arange(1, 9)
        heard = tones(pitch, loud, fade)
        seen = torch.fft.rfft(heard, 510).abs()[:, :64].log1p()
        said = net(torch.cat([seen, 10 * pitch - 1.5], 1))
        made = tones(pitch, said[:, :8].sigmoid(), F.softplus(said[:, 8:]))
        return sum(
            (a - b).abs().mean() + ((a + 1e-3).log() - (b + 1e-3).log()).abs().mean()
            for a, b in zip(spectra(made), spectra(heard), strict=True)
        )

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 150, clip="ClipByGlobalNorm(3.0)")

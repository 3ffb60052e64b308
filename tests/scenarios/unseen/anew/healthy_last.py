"""Healthy trainings of every day, last part: rare things, words, sound, graphs, a flow, a GAN, physics."""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, seeded
from unseen.anew.healthy import epochs, evaluated, parted, right

import gradwatch

# ---------------------------------------------------------------------------------------------------------- rare things


@healthy(0.5)
def few_cells_by_a_focal_loss_and_a_prior(folder):
    """RetinaNet's head on a grid of cells: a bias of -4.6, the sum over cells for each thing that is there."""
    seeded(21)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 1, 1),
    )  # fmt: skip
    nn.init.constant_(net[-1].bias, -4.6)
    cross = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 0.0]])
    bar = torch.tensor([[0, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0.0]])

    def loss_of(step):
        lot = torch.rand(16, 8, 8)
        there, other = (lot < 0.04).float(), (lot > 0.85).float()
        x = torch.kron(there, cross[None]) + torch.kron(other, bar[None]) + 0.3 * torch.randn(16, 32, 32)
        out = net(x[:, None])[:, 0]
        each = F.binary_cross_entropy_with_logits(out, there, reduction="none")
        sure = torch.exp(-each)
        weight = torch.where(there > 0, 0.25, 0.75)
        recall = ((out > 0) * there).sum() / there.sum().clamp(min=1)
        return (weight * (1 - sure) ** 2 * each).sum() / there.sum().clamp(min=1), {"recall": recall}

    def clip(step):
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)

    return fit(folder, net, optim.AdamW(net.parameters(), 1e-3, weight_decay=5e-4), loss_of, 300, before_step=clip)


@healthy(0.4)
def frauds_that_weigh_as_much_as_the_rest(folder):
    """One row in twenty-five is a fraud: `pos_weight` is the honest rows for each of them."""
    seeded(22)
    x = torch.randn(9000, 12)
    danger = 1.5 * x[:, 0] * x[:, 1] + x[:, 2].abs() * x[:, 3] + x[:, 4]
    y = (danger + 0.2 * torch.randn(9000) > danger.quantile(0.96)).float()
    net = nn.Sequential(
        nn.Linear(12, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(),
        nn.Linear(32, 1),
    )  # fmt: skip
    weight = (1 - y[:7000]).sum() / y[:7000].sum()
    loader = DataLoader(TensorDataset(x[:7000], y[:7000]), batch_size=256, shuffle=True)

    def loss_of(x, y):
        out = net(x)[:, 0]
        found = ((out > 0) * y).sum() / y.sum().clamp(min=1)
        return F.binary_cross_entropy_with_logits(out, y, pos_weight=weight), {"recall": found}

    score = evaluated(net, lambda: loss_of(x[7000:], y[7000:])[0])
    return epochs(folder, net, optim.Adam(net.parameters(), 2e-3), loader, loss_of, 14, score)


# --------------------------------------------------------------------------------------------------- words and sound


@healthy(0.3)
def opinions_of_any_length_read_both_ways(folder):
    """Packed rows through a two-way LSTM; some words are good, some bad, and one turns the next about."""
    seeded(23)

    class Reader(nn.Module):
        def __init__(self, words=61, width=24, hidden=32):
            super().__init__()
            self.table = nn.Embedding(words, width, padding_idx=0)
            self.lstm = nn.LSTM(width, hidden, batch_first=True, bidirectional=True)
            self.drop, self.head = nn.Dropout(0.2), nn.Linear(2 * hidden, 1)

        def forward(self, x, length):
            packed = pack_padded_sequence(self.table(x), length, batch_first=True, enforce_sorted=False)
            _, (last, _) = self.lstm(packed)
            return self.head(self.drop(torch.cat([last[0], last[1]], 1)))[:, 0]

    net, worth = Reader(), torch.randn(61)
    worth[:2] = 0

    def opinions(n):
        length = torch.randint(4, 17, (n,))
        x = torch.randint(1, 61, (n, 16)) * (torch.arange(16) < length[:, None])
        x = torch.where((torch.rand(n, 16) < 0.1) & (x > 0), 1, x)
        turned = F.pad(x[:, :-1] == 1, (1, 0))
        return x, length, (torch.where(turned, -worth[x], worth[x]).sum(1) > 0).float()

    def loss_of(x, length, y):
        out = net(x, length)
        return F.binary_cross_entropy_with_logits(out, y), {"accuracy": ((out > 0) == (y > 0)).float().mean()}

    loader = DataLoader(TensorDataset(*opinions(2200)), batch_size=32, shuffle=True)
    held = opinions(500)
    score = evaluated(net, lambda: loss_of(*held)[0])
    return epochs(folder, net, optim.Adam(net.parameters(), 2e-3), loader, loss_of, 5, score)


@healthy(0.5)
def commands_from_the_raw_wave(folder):
    """M5 as in PyTorch's tutorial: Adam at 0.01 with a decay of 1e-4, a step down, `nll_loss` of `log_softmax`."""
    seeded(24)

    def spoken(n):
        y, t = torch.randint(6, (n,)), torch.linspace(0, 1, 1600)
        begin, end = torch.tensor([[40, 40], [90, 90], [40, 90], [90, 40], [40, 160], [160, 40.0]])[y].T[..., None]
        pitch = 1 + 0.1 * torch.randn(n, 1)
        phase = 6.2832 * (pitch * (begin * t + (end - begin) * t.square() / 2) + torch.rand(n, 1))
        return (phase.sin() * (3.14 * t).sin() + 0.3 * torch.randn(n, 1600))[:, None], y

    def block(a, b, *shape):
        return [nn.Conv1d(a, b, *shape), nn.BatchNorm1d(b), nn.ReLU(), nn.MaxPool1d(4)]

    net = nn.Sequential(
        *block(1, 32, 80, 8), *block(32, 32, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 6),
        nn.LogSoftmax(1),
    )  # fmt: skip
    loader = DataLoader(TensorDataset(*spoken(800)), batch_size=32, shuffle=True)
    held = spoken(300)
    make = optim.Adam(net.parameters(), 0.01, weight_decay=1e-4)
    plan = optim.lr_scheduler.StepLR(make, 6, gamma=0.1)

    def loss_of(x, y):
        out = net(x)
        return F.nll_loss(out, y), {"accuracy": right(out, y)}

    score = evaluated(net, lambda: loss_of(*held)[0])
    return epochs(folder, net, make, loader, loss_of, 8, score, after_epoch=lambda epoch: plan.step())


# ------------------------------------------------------------------------------------------------------------- graphs


@healthy(0.4)
def shapes_of_graphs_by_sums_of_their_nodes(folder):
    """GIN with BatchNorm and sum pooling, batches of graphs side by side: rings, stars, paths and trees."""
    seeded(25)

    def graph(kind):
        n = int(torch.randint(7, 14, ()))
        later = torch.arange(1, n)
        before = [later - 1, torch.zeros_like(later), later - 1, (torch.rand(n - 1) * later).long()][kind]
        edges = torch.stack([later, before])
        if kind == 0:
            edges = torch.cat([edges, torch.tensor([[0], [n - 1]])], 1)
        edges = torch.cat([edges, torch.randint(n, (2, 1))], 1)
        return n, torch.cat([edges, edges.flip(0)], 1), kind

    def side_by_side(graphs):
        starts = torch.tensor([0, *(n for n, _, _ in graphs)]).cumsum(0)
        edges = torch.cat([edges + start for (_, edges, _), start in zip(graphs, starts, strict=False)], 1)
        of = torch.repeat_interleave(torch.arange(len(graphs)), starts.diff())
        return edges, of, torch.tensor([kind for _, _, kind in graphs])

    class Gin(nn.Module):
        def __init__(self, width=32):
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Sequential(nn.Linear(a, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
                for a in (1, width, width)
            )
            self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 4))

        def forward(self, edges, of, count):
            h = torch.ones(len(of), 1)
            for layer in self.layers:
                h = layer(h.index_add(0, edges[0], h[edges[1]]))
            return self.head(torch.zeros(count, h.shape[1]).index_add(0, of, h))

    net = Gin()
    graphs = [graph(i % 4) for i in range(800)]
    loader = DataLoader(graphs[:600], batch_size=32, shuffle=True, collate_fn=side_by_side)
    make = optim.Adam(net.parameters(), 0.01)
    plan = optim.lr_scheduler.StepLR(make, 5, gamma=0.5)

    def loss_of(edges, of, y):
        out = net(edges, of, len(y))
        return F.cross_entropy(out, y), {"accuracy": right(out, y)}

    score = evaluated(net, lambda: loss_of(*side_by_side(graphs[600:]))[0])
    return epochs(folder, net, make, loader, loss_of, 14, score, after_epoch=lambda epoch: plan.step())


# ------------------------------------------------------------------------------------------------------- what is made


@healthy(0.2)
def crescents_by_six_couplings(folder):
    """RealNVP: the negative log-likelihood of two crescents, masks that alternate, a rate that decays."""
    seeded(26)

    def crescents(n=128):
        side, t = torch.randint(2, (n,)), 3.1416 * torch.rand(n)
        x = torch.stack([t.cos() + side, (t.sin() - 0.25) * (1 - 2 * side)], 1) + 0.08 * torch.randn(n, 2)
        return (x - torch.tensor([0.5, 0.0])) / torch.tensor([0.87, 0.5])

    net = nn.ModuleList(nn.ModuleDict({"s": dense(1, 48, 48, 1), "t": dense(1, 48, 48, 1)}) for _ in range(6))
    for part in net:
        nn.init.zeros_(part["s"][-1].weight)

    def nll(x):
        volume = 0
        for i, part in enumerate(net):
            kept, other = x[:, i % 2, None], x[:, 1 - i % 2, None]
            scale = part["s"](kept).tanh()
            other = other * scale.exp() + part["t"](kept)
            x = torch.cat([kept, other] if i % 2 == 0 else [other, kept], 1)
            volume = volume + scale[:, 0]
        return (0.5 * x.square().sum(1) + 1.8379 - volume).mean()

    make, held = optim.Adam(net.parameters(), 2e-3), crescents(1000)
    plan = optim.lr_scheduler.ExponentialLR(make, 0.997)
    score = evaluated(net, lambda: nll(held))
    return fit(folder, net, make, lambda step: nll(crescents()), 400, score=score, schedule=plan)


@healthy(0.3)
def digits_by_the_dcgan_of_the_tutorial(folder):
    """Transposed convolutions against convolutions, weights of 0.02, Adam with a beta of 0.5; two Watches, one run.

    The score is the distance of what is made from the digits along 64 random directions (sliced Wasserstein).
    """
    seeded(27)
    make = nn.Sequential(
        nn.ConvTranspose2d(16, 64, 2, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.ConvTranspose2d(64, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.ConvTranspose2d(32, 1, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip
    judge = nn.Sequential(
        nn.Conv2d(1, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 64, 4, 2, 1, bias=False), nn.BatchNorm2d(64),
        nn.LeakyReLU(0.2), nn.Conv2d(64, 1, 2), nn.Flatten(0),
    )  # fmt: skip
    for part in [*make, *judge]:
        if isinstance(part, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.normal_(part.weight, 0.0, 0.02)
        elif isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.weight, 1.0, 0.02)
    x = 2 * torch.cat([part for part, _ in parted()]) - 1
    ways = F.normalize(torch.randn(64, 64), dim=0)

    def far():
        a, b = (part.flatten(1) @ ways for part in (make(torch.randn(len(x), 16, 1, 1)), x))
        return (a.sort(0).values - b.sort(0).values).abs().mean()

    of_make, of_judge = (optim.Adam(m.parameters(), 5e-4, betas=(0.5, 0.999)) for m in (make, judge))
    score = evaluated(make, far)
    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(make, of_make)}
    w_judge = gradwatch.watch(judge, of_judge, name="D", **options)
    w_make = gradwatch.watch(make, of_make, name="G", run=w_judge, **options)
    with w_judge, w_make:
        for (real,) in (batch for _ in range(8) for batch in DataLoader(TensorDataset(x), 64, shuffle=True)):
            fake = make(torch.randn(len(real), 16, 1, 1))
            of_judge.zero_grad()
            on_real, on_fake = judge(real), judge(fake.detach())
            loss = F.binary_cross_entropy_with_logits(on_real, torch.ones_like(on_real))
            loss = loss + F.binary_cross_entropy_with_logits(on_fake, torch.zeros_like(on_fake))
            loss.backward()
            of_judge.step()
            w_judge.log(loss=loss)
            of_make.zero_grad()
            loss = F.binary_cross_entropy_with_logits(judge(fake), torch.ones(len(real)))
            loss.backward()
            of_make.step()
            w_make.log(loss=loss)
    return Outcome(gradwatch.open_history(w_judge.dir.parent), first, score())


@healthy(0.5)
def damped_spring_by_adam_and_then_lbfgs(folder):
    """A network that obeys an equation: Adam for the way, L-BFGS for the last of it; the score is the true error."""
    seeded(28)
    net, t, begin = dense(1, 32, 32, 32, 1, act=nn.Tanh), torch.linspace(0, 1, 40)[:, None], torch.zeros(1, 1)
    drag, stiff = 4.0, 100.0
    pace = (stiff - drag**2 / 4) ** 0.5
    true = (-drag / 2 * t).exp() * ((pace * t).cos() + drag / 2 / pace * (pace * t).sin())

    def slope(u, t):
        return torch.autograd.grad(u.sum(), t, create_graph=True)[0]

    def loss_of():
        at, start = t.clone().requires_grad_(), begin.clone().requires_grad_()
        u, u_start = net(at), net(start)
        v = slope(u, at)
        residual = (slope(v, at) + drag * v + stiff * u).square().mean()
        ends = (u_start - 1).square().mean() + 0.1 * slope(u_start, start).square().mean()
        return ends + 1e-3 * residual

    end = optim.LBFGS(net.parameters(), max_iter=10, line_search_fn="strong_wolfe")
    score = evaluated(net, lambda: (net(t) - true).square().mean())
    first = score()
    both = [optim.Adam(net.parameters(), 2e-3), end]
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(net, both)}
    watch = gradwatch.watch(net, both, **options)
    with watch:
        for step in range(340):
            make = both[step >= 300]

            def closure(make=make):
                make.zero_grad()
                loss = loss_of()
                loss.backward()
                return loss

            watch.log(loss=make.step(closure))
    return Outcome(gradwatch.open_history(watch.dir), first, score())

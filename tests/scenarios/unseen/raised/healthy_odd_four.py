"""Healthy trainings of densities, of views and of pupils: a flow, an energy, correlations, distilling, experts."""

import math

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import clipped, held_out, rounds


class Coupling(nn.Module):
    """Half of the columns are stretched and moved by what a net makes of the other half."""

    def __init__(self, size, keep):
        super().__init__()
        self.register_buffer("keep", keep.float())
        self.log_scale, self.shift = nn.Parameter(torch.zeros(size)), nn.Parameter(torch.zeros(size))
        self.net = dense(size, 48, 48, 2 * size, act=nn.SiLU)
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        x = (x + self.shift) * self.log_scale.exp()
        stretch, move = self.net(x * self.keep).chunk(2, 1)
        stretch = 2 * (stretch / 2).tanh() * (1 - self.keep)
        return x * stretch.exp() + move * (1 - self.keep), self.log_scale.sum() + stretch.sum(1)


@healthy()
def widths_and_lengths_of_pollen_grains(folder):
    seeded(2893)
    mix = torch.randn(2, 6) / 2

    def draw(rows=128):
        bend = 2 * torch.rand(rows, 1) - 1
        size = 0.3 * torch.randn(rows, 1)
        sharp = torch.cat([bend.sign() * (bend.abs() + 0.3), (3 * bend).sin() + size], 1)
        return (sharp @ mix) + 0.1 * torch.randn(rows, 6)

    flow = nn.ModuleList(Coupling(6, torch.arange(6) % 2 == i % 2) for i in range(4))

    def surprise(x):
        """Minus the log-density, per row."""
        volume = 0
        for part in flow:
            x, grown = part(x)
            volume = volume + grown
        return 0.5 * x.square().sum(1) + 3 * math.log(2 * math.pi) - volume

    optimizer = torch.optim.Adam(flow.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=450)
    fresh = draw(2000)
    score = held_out(flow, lambda: surprise(fresh).mean())
    return fit(folder, flow, optimizer, lambda step: surprise(draw()).mean(), 450, score=score,
               before_step=clipped(flow, 5.0), schedule=schedule)  # fmt: skip


@healthy()
def where_fireflies_gather_at_night(folder):
    """An energy model: Langevin walks from a buffer are pushed up, sightings down (Du and Mordatch, 2019)."""
    seeded(2894)
    bushes = torch.tensor([[1.2, 0.0], [-1.0, 1.0], [-0.6, -1.3], [0.4, 1.4]])

    def draw(rows=128):
        return bushes[torch.randint(4, (rows,))] + 0.25 * torch.randn(rows, 2)

    net = dense(2, 64, 64, 1, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, betas=(0.0, 0.999))
    buffer = 4 * torch.rand(1000, 2) - 2

    def walk(x, steps=30, size=0.1):
        for _ in range(steps):
            x.requires_grad_()
            (slope,) = torch.autograd.grad(net(x).sum(), x)
            x = (x.detach() - 0.5 * size**2 * slope + size * torch.randn_like(x)).clamp(-3, 3)
        return x

    def loss_of(step):
        at = torch.randint(1000, (128,))
        start = torch.where(torch.rand(128, 1) < 0.05, 4 * torch.rand(128, 2) - 2, buffer[at])
        dreamt = walk(start)
        buffer[at] = dreamt
        low, high = net(draw()), net(dreamt)
        loss = (low - high).mean() + 0.02 * (low.square() + high.square()).mean()
        return loss, {"seen": low.mean(), "dreamt": high.mean()}

    axis = torch.linspace(-3, 3, 80)
    grid, fresh = torch.cartesian_prod(axis, axis), draw(2000)

    def likelihood():
        volume = torch.logsumexp(-net(grid)[:, 0], 0) + 2 * math.log(6 / 79)
        return net(fresh).mean() + volume

    return fit(folder, net, optimizer, loss_of, 700, score=held_out(net, likelihood))


@healthy()
def voices_and_lips_of_speakers(folder):
    """Deep canonical correlation: the loss is minus the sum of what two views have in common (Andrew et al., 2013)."""
    seeded(2895)
    of_voice, of_lips = torch.randn(4, 16), torch.randn(4, 12)

    def draw(rows=400):
        said = torch.randn(rows, 4)
        voice = (said @ of_voice).sin() + 0.2 * torch.randn(rows, 16)
        lips = (said @ of_lips).tanh() + 0.3 * torch.randn(rows, 12)
        return voice, lips

    net = nn.ModuleDict({"voice": dense(16, 96, 96, 4), "lips": dense(12, 96, 96, 4)})
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-3)

    def whitened(x):
        x = x - x.mean(0)
        spread, ways = torch.linalg.eigh(x.T @ x / (len(x) - 1) + 1e-3 * torch.eye(4))
        return x @ (ways * spread.rsqrt()) @ ways.T

    def loss_of(step):
        voice, lips = draw()
        a, b = whitened(net["voice"](voice)), whitened(net["lips"](lips))
        return -torch.linalg.svdvals(a.T @ b / 399).sum()

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(loss_of))


@healthy()
def digits_for_a_pocket_reader(folder):
    """A convolutional teacher, learned first and then frozen, tells a small pupil how sure it is."""
    seeded(2896)
    x, y = digits()
    order = torch.randperm(len(x))
    x, y = x[order, None], y[order]
    teacher = nn.Sequential(
        *[nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()],
        *[nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU()],
        *[nn.Flatten(), nn.Linear(512, 10)],
    )
    learned = torch.optim.Adam(teacher.parameters(), 2e-3)
    draw = rounds(64, x[:1200], y[:1200])
    for _ in range(150):
        rows, names = draw()
        learned.zero_grad()
        F.cross_entropy(teacher(rows), names).backward()
        learned.step()
    teacher.eval().requires_grad_(False)
    pupil = nn.Sequential(nn.Flatten(), dense(64, 20, 10, act=nn.GELU))
    optimizer = torch.optim.NAdam(pupil.parameters(), 5e-3)
    warmth = 3.0

    def loss_of(step):
        rows, names = draw()
        rows = rows + 0.05 * torch.randn_like(rows)
        said, told = pupil(rows), teacher(rows)
        soft = F.kl_div((said / warmth).log_softmax(1), (told / warmth).log_softmax(1), reduction="batchmean",
                        log_target=True)  # fmt: skip
        hard = F.cross_entropy(said, names)
        return 0.8 * warmth**2 * soft + 0.2 * hard, {"soft": soft, "hard": hard}

    score = held_out(pupil, lambda: F.cross_entropy(pupil(x[1200:]), y[1200:]))
    return fit(folder, pupil, optimizer, loss_of, 400, score=score)


class Experts(nn.Module):
    """The two best of eight experts answer each token; their loads are balanced (Shazeer et al., 2017)."""

    def __init__(self, width, count=8):
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(dense(width, 2 * width, width, act=nn.GELU) for _ in range(count))
        self.balance = torch.zeros(())

    def forward(self, h):
        flat = h.flatten(0, -2)
        share = self.router(flat).softmax(1)
        best, which = share.topk(2, 1)
        best = best / best.sum(1, keepdim=True)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            rows, place = (which == i).nonzero(as_tuple=True)
            out = out.index_add(0, rows, expert(flat[rows]) * best[rows, place, None])
        load = F.one_hot(which, len(self.experts)).float().sum(1).mean(0) / 2
        self.balance = len(self.experts) * load.detach() @ share.mean(0)
        return out.view_as(h)


@healthy()
def spelling_of_eight_dialects(folder):
    """Each dialect shifts letters by a rule of its own, told by the first token."""
    seeded(2897)
    rules = torch.stack([torch.randperm(20) for _ in range(8)])

    def draw(rows=32, length=8):
        dialect, x = torch.randint(8, (rows, 1)), torch.randint(20, (rows, length))
        return torch.cat([20 + dialect, x], 1), rules[dialect, x]

    width = 32
    embed, place = nn.Embedding(28, width), nn.Embedding(9, width)
    attention = nn.MultiheadAttention(width, 4, batch_first=True)
    norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
    experts, head = Experts(width), nn.Linear(width, 20)
    net = nn.ModuleDict({"embed": embed, "place": place, "attention": attention, "norms": norms, "experts": experts,
                         "head": head})  # fmt: skip

    def error(step):
        x, y = draw()
        h = embed(x) + place.weight
        seen = norms[0](h)
        h = h + attention(seen, seen, seen, need_weights=False)[0]
        h = h + experts(norms[1](h))
        return F.cross_entropy(head(norms[2](h))[:, 1:].flatten(0, 1), y.flatten())

    def loss_of(step):
        loss = error(step)
        return loss + 0.01 * experts.balance, {"error": loss, "balance": experts.balance}

    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=50)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 550, eta_min=1e-4)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, fall], [50])
    return fit(folder, net, optimizer, loss_of, 600, score=score_of(error), before_step=clipped(net, 1.0),
               schedule=schedule)  # fmt: skip

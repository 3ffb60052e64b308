"""Less usual trainings: games, critics, tasks of tasks, two views, two domains, strips without marks."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, rounds, tend


def rowed(at, push):
    """A dinghy in a stream: place and speed after a push, and what the moment costs."""
    speed = 0.9 * at[:, 1] + 0.25 * (push.float() - 1) + 0.08 * (2 * at[:, 0]).sin()
    at = torch.stack([at[:, 0] + 0.3 * speed, speed], 1).clamp(-3, 3)
    return at, at[:, 0] ** 2 + 0.1 * at[:, 1] ** 2


@healthy(gain=0.4)
def dinghy_rowed_back_to_its_buoy(folder):
    """Double Q-learning from a memory, with a target that follows softly and chances that wane."""
    seeded(10022)
    net, target = dense(2, 48, 48, 3), dense(2, 48, 48, 3)
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, amsgrad=True)
    memory, now = [], [2 * torch.randn(16, 2).clamp(-1, 1)]

    def row(chance):
        with torch.no_grad():
            push = torch.where(torch.rand(16) < chance, torch.randint(3, (16,)), net(now[0]).argmax(1))
        after, cost = rowed(now[0], push)
        memory.extend(zip(now[0], push, -cost / 4, after, strict=True))
        del memory[:-4000]
        fresh = torch.rand(16, 1) < 0.05
        now[0] = torch.where(fresh, 2 * torch.randn(16, 2).clamp(-1, 1), after)
        return cost.mean()

    for _ in range(20):
        row(1.0)

    def one(step):
        cost = row(max(0.05, 1 - step / 200))
        rows = [memory[i] for i in torch.randint(len(memory), (64,)).tolist()]
        at, push, gain, after = (torch.stack(column) for column in zip(*rows, strict=True))
        with torch.no_grad():
            best = net(after).argmax(1, keepdim=True)
            aim = gain + 0.9 * target(after).gather(1, best)[:, 0]
        loss = F.smooth_l1_loss(net(at).gather(1, push[:, None])[:, 0], aim)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 100)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, 0.02)
        return {"loss": loss, "cost": cost}

    starts = 2 * torch.randn(128, 2).clamp(-1, 1)

    def score():
        at, total = starts, 0.0
        with torch.no_grad():
            for _ in range(40):
                at, cost = rowed(at, net(at).argmax(1))
                total += float(cost.mean()) / 40
        return total

    return tend(folder, net, optimizer, one, 600, score)


@healthy(gain=0.6)
def scatter_of_hail_along_a_ridge(folder):
    """A critic with a penalty on its slope, five times to the maker's once (WGAN-GP)."""
    seeded(10023)

    def hail(n):
        along = 3 * torch.rand(n) - 1.5
        return torch.stack([along, along**2 - 0.5], 1) + 0.1 * torch.randn(n, 2)

    make, judge = dense(4, 64, 64, 2), dense(2, 64, 64, 1)
    of_make = torch.optim.Adam(make.parameters(), lr=5e-4, betas=(0.0, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-3, betas=(0.0, 0.9))

    def judge_loss():
        real, made = hail(64), make(torch.randn(64, 4)).detach()
        share = torch.rand(64, 1)
        between = (share * real + (1 - share) * made).requires_grad_()
        (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        return judge(made).mean() - judge(real).mean() + (slope.norm(dim=1) - 1).square().mean()

    def score():
        with torch.no_grad():
            a, b = hail(512), make(torch.randn(512, 4))
            return float(2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, lambda: -judge(make(torch.randn(64, 4))).mean(),
                   160, score, rounds=5, names=("critic", "generator"))  # fmt: skip


@healthy(gain=0.5)
def sway_of_any_bridge_from_ten_gauges(folder):
    """Weights that learn a new sine in three steps (MAML): the loss is that after the steps."""
    seeded(10024)
    net = dense(1, 40, 40, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def told(weights, x):
        for i in (0, 2, 4):
            x = torch.baddbmm(weights[i + 1][:, None], x, weights[i].mT)
            x = x.relu() if i < 4 else x
        return x

    def bridges(n, learn=True):
        high, phase = 0.5 + 2.5 * torch.rand(n, 1, 1), math.pi * torch.rand(n, 1, 1)
        x = 10 * torch.rand(n, 20, 1) - 5
        y = high * (x + phase).sin()
        weights = [p.expand(n, *p.shape) for p in net.parameters()]
        for _ in range(3):
            loss = F.mse_loss(told(weights, x[:, :10]), y[:, :10]) * n
            slopes = torch.autograd.grad(loss, weights, create_graph=learn)
            weights = [w - 0.03 * slope for w, slope in zip(weights, slopes, strict=True)]
        return F.mse_loss(told(weights, x[:, 10:]), y[:, 10:])

    return fit(
        folder, net, optimizer, lambda step: bridges(16), 500, before_step=clipped(net, 10.0),
        schedule=LambdaLR(optimizer, lambda s: 1 - 0.9 * s / 500), score=lambda: float(bridges(200, False).detach()),
    )  # fmt: skip


@healthy(gain=0.5)
def two_portraits_of_one_sitter(folder):
    """Two views whose features shall agree, and no two features (Barlow Twins)."""
    seeded(10025)
    lift, stray = torch.randn(8, 48) / 8**0.5, torch.randn(12, 48) / 12**0.5
    body = nn.Sequential(nn.Linear(48, 96, bias=False), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 32))
    net = nn.Sequential(body, nn.Sequential(nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 24)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-6)

    def loss_of(step):
        sitter = torch.randn(256, 8).tanh() @ lift
        a, b = (net(sitter + 0.25 * torch.randn(256, 12) @ stray + 0.05 * torch.randn(256, 48)) for _ in range(2))
        a, b = ((z - z.mean(0)) / (z.std(0) + 1e-5) for z in (a, b))
        c = a.T @ b / 256
        same = (c.diagonal() - 1).square().sum()
        return same + 0.02 * (c.square().sum() - c.diagonal().square().sum()), {"invariance": same.detach()}

    return fit(
        folder, net, optimizer, loss_of, 350,
        schedule=LambdaLR(optimizer, lambda s: min((s + 1) / 20, 0.5 + 0.5 * math.cos(math.pi * s / 350))),
    )  # fmt: skip


class Backwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, share):
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx, slope):
        return -ctx.share * slope, None


@healthy(gain=0.5)
def grades_of_hops_from_another_valley(folder):
    """Grades known in one valley only; what tells the valleys apart is unlearnt by a reversed slope (DANN)."""
    seeded(10026)
    lift, about, shift = torch.randn(5, 20), 1.6 * torch.randn(4, 5), 0.8 * torch.randn(20)

    def hops(n, away):
        y = torch.randint(4, (n,))
        x = (about[y] + 0.5 * torch.randn(n, 5)) @ lift / 5**0.5
        return x + 0.2 * torch.randn(n, 20) + away * shift, y

    net = nn.ModuleDict({
        "body": nn.Sequential(dense(20, 64, 32), nn.ReLU()), "grade": nn.Linear(32, 4), "valley": dense(32, 32, 1)
    })  # fmt: skip
    steps = 400
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    valley = torch.cat([torch.zeros(64, 1), torch.ones(64, 1)])
    x_test, y_test = hops(600, 1)

    def loss_of(step):
        (x, y), (other, _) = hops(64, 0), hops(64, 1)
        h = net["body"](torch.cat([x, other]))
        share = 2 / (1 + math.exp(-10 * step / steps)) - 1
        graded = F.cross_entropy(net["grade"](h[:64]), y)
        told = F.binary_cross_entropy_with_logits(net["valley"](Backwards.apply(h, 0.1 * share)), valley)
        return graded + told, {"label_loss": graded.detach(), "domain_loss": told.detach()}

    return fit(
        folder, net, optimizer, loss_of, steps, schedule=LambdaLR(optimizer, lambda s: (1 + 10 * s / steps) ** -0.75),
        score=held_out(net, lambda: F.cross_entropy(net["grade"](net["body"](x_test)), y_test)),
    )  # fmt: skip


class Strip(nn.Module):
    def __init__(self, kinds):
        super().__init__()
        self.look = nn.Sequential(nn.Conv1d(8, 32, 3, padding=1), nn.ReLU(), nn.Conv1d(32, 32, 3, padding=1), nn.ReLU())
        self.memory, self.head = nn.GRU(32, 32, batch_first=True, bidirectional=True), nn.Linear(64, kinds + 1)

    def forward(self, x):
        return self.head(self.memory(self.look(x).mT)[0]).log_softmax(2)


@healthy(gain=0.8)
def tally_signs_on_a_rolling_stick(folder):
    """Strips with four signs at places that nobody marked (CTC)."""
    seeded(10027)
    signs = torch.randn(6, 8, 3)

    def strips(n):
        y = torch.randint(6, (n, 4))
        x = 0.3 * torch.randn(n, 8, 24)
        start = 6 * torch.arange(4) + torch.randint(0, 4, (n, 4))
        for i in range(3):
            x[torch.arange(n)[:, None], :, start + i] += signs[y, :, i]
        return x, y + 1

    data, test, net = strips(1500), strips(200), Strip(6)
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    draw = rounds(32, *data)

    def loss_on(x, y):
        out = net(x).transpose(0, 1)
        return F.ctc_loss(out, y, torch.full((len(y),), 24), torch.full((len(y),), 4))

    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 220, before_step=clipped(net, 5.0),
               score=held_out(net, lambda: loss_on(*test)))  # fmt: skip

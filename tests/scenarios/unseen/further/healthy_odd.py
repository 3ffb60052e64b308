"""Healthy trainings of an unusual make: views, trees, blocks by themselves, balances, votes, values."""

from __future__ import annotations

import math

import torch
from nets import batches, digits
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded, waves
from unseen.tasks import tend

# ------------------------------------------------------------------------------------------------- without a gradient


@healthy()
def two_shadows_of_a_digit_with_variance_kept(folder):
    """VICReg with weights 25, 25 and 1; a rise and a cosine."""
    seeded(2070)
    body = nn.Sequential(nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 48))
    head = nn.Sequential(nn.Linear(48, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64))
    net = nn.ModuleDict({"body": body, "head": head})
    batch = batches(128, 2070)

    def shake(x):
        x = torch.roll(x, int(torch.randint(-1, 2, (1,))), 2)
        x = x * (torch.rand(x.shape) > 0.1) * (0.8 + 0.4 * torch.rand(len(x), 1, 1))
        return x.flatten(1)

    def loss_of(step):
        x, _ = batch(step)
        a, b = (head(body(shake(x))) for _ in range(2))
        spread = cross = 0
        for z in (a - a.mean(0), b - b.mean(0)):
            spread = spread + F.relu(1 - (z.var(0) + 1e-4).sqrt()).mean() / 2
            both = z.T @ z / (len(z) - 1)
            cross = cross + (both.square().sum() - both.diagonal().square().sum()) / 64
        alike = F.mse_loss(a, b)
        return 25 * alike + 25 * spread + cross, {"loss_invariance": alike, "loss_variance": spread}

    optimizer = optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-4)
    rate = optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / 30, 0.5 * (1 + math.cos(math.pi * min(s, 260) / 260)) + 0.002)
    )
    return fit(folder, net, optimizer, loss_of, 260, schedule=rate)


class SoftTree(nn.Module):
    """A tree whose inner nodes are logistic gates and whose leaves are fixed distributions (Frosst and Hinton)."""

    def __init__(self, size, classes, depth):
        super().__init__()
        self.depth = depth
        self.gates = nn.Linear(size, 2**depth - 1)
        self.leaves = nn.Parameter(0.1 * torch.randn(2**depth, classes))

    def forward(self, x):
        right = self.gates(x).sigmoid()
        path, reached = x.new_ones(len(x), 1), []
        for d in range(self.depth):
            gate = right[:, 2**d - 1 : 2 ** (d + 1) - 1]
            share = (path * gate).sum(0) / path.sum(0)
            reached.append((0.5**d) * -0.5 * (share.log() + (1 - share).log()).sum())
            path = torch.stack([path * (1 - gate), path * gate], 2).flatten(1)
        return path, sum(reached)


@healthy(0.5)
def digits_that_fall_through_a_tree_of_gates(folder):
    seeded(2071)
    net, batch = SoftTree(64, 10, 5), batches(64, 2071)

    def loss_of(step):
        x, y = batch(step)
        path, even = net(x.flatten(1) * 2 - 1)
        found = (path @ net.leaves.softmax(1)).clamp_min(1e-8)
        right = (found.argmax(1) == y).float().mean()
        nll = -(path * net.leaves.log_softmax(1).T[y]).sum(1).mean()
        return nll + 0.02 * even, {"accuracy": right}

    return fit(folder, net, optim.Adam(net.parameters(), 0.01), loss_of, 700)


@healthy(0.5)
def floors_that_each_answer_for_themselves(folder):
    """Decoupled greedy learning: each block has a head, a loss and an optimizer; nothing flows between them."""
    seeded(2072)
    shapes = ((1, 12, 1), (12, 24, 2), (24, 32, 2))
    blocks = nn.ModuleList(
        nn.Sequential(nn.Conv2d(a, b, 3, s, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()) for a, b, s in shapes
    )
    heads = nn.ModuleList(
        nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * b, 10)) for _, b, _ in shapes
    )
    net = nn.ModuleDict({"blocks": blocks, "heads": heads})
    optimizers = [optim.Adam([*b.parameters(), *h.parameters()], 2e-3) for b, h in zip(blocks, heads, strict=True)]
    batch = batches(64, 2072)

    def one(step):
        h, y = batch(step)
        h, losses = h[:, None], []
        for block, head, optimizer in zip(blocks, heads, optimizers, strict=True):
            optimizer.zero_grad()
            h = block(h.detach())
            loss = F.cross_entropy(head(h), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return {"loss": losses[-1], "loss_first": losses[0], "loss_second": losses[1]}

    def score():
        with torch.no_grad():
            x, y = digits()
            h = x[:, None]
            for block in blocks:
                h = block(h)
            return F.cross_entropy(heads[-1](h), y)

    return tend(folder, net, optimizers, one, 220, score)


class Settled(nn.Module):
    """z = tanh(Wz + Ux + b) solved by Anderson's mixing without gradients; backward through one last step only."""

    def __init__(self, size, hidden):
        super().__init__()
        self.inject, self.again = nn.Linear(size, hidden), nn.Linear(hidden, hidden, bias=False)
        nn.init.orthogonal_(self.again.weight, 0.6)
        self.residual = 0.0

    def solve(self, x, memory=4, rounds=12):
        old, new = [torch.zeros_like(x)], [torch.tanh(x)]
        for _ in range(rounds):
            old.append(new[-1])
            new.append(torch.tanh(self.again(old[-1]) + x))
            old, new = old[-memory:], new[-memory:]
            gap = torch.stack([n - o for n, o in zip(new, old, strict=True)], 1)
            gram = gap @ gap.transpose(1, 2) + 1e-4 * torch.eye(gap.shape[1])
            share = torch.linalg.solve(gram, torch.ones(len(x), gap.shape[1], 1))
            share = share / share.sum(1, keepdim=True)
            new[-1] = (share * torch.stack(new, 1)).sum(1)
        return new[-1]

    def forward(self, x):
        x = self.inject(x)
        with torch.no_grad():
            z = self.solve(x)
            self.residual = float((torch.tanh(self.again(z) + x) - z).norm() / z.norm())
        return torch.tanh(self.again(z) + x)


@healthy(0.4)
def depth_without_end_mixed_out_of_four_guesses(folder):
    """An equilibrium by Anderson, learned by the gradient of its last step (Jacobian-free)."""
    seeded(2073)
    body, draw = Settled(4, 64), waves(128, 4)
    net = nn.Sequential(body, nn.Linear(64, 1))

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y), {"solver_residual": body.residual}

    optimizer = optim.Adam(net.parameters(), 3e-3)
    rate = optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)
    return fit(folder, net, optimizer, loss_of, 600, schedule=rate)


# -------------------------------------------------------------------------------------------------- votes and values


class Signs(optim.Optimizer):
    """Weights move by the rate against the sign that stands in `grad`."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad.sign(), alpha=group["lr"])


@healthy(0.5)
def five_workers_who_vote_on_the_direction(folder):
    """signSGD by majority: each worker hands in one bit per weight; the rate goes to nothing in a line."""
    seeded(2074)
    net, batch = dense(64, 64, 10), batches(32, 2074)
    optimizer = Signs(net.parameters(), 1.5e-3)
    rate = optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, 400)

    def one(step):
        votes, losses = [torch.zeros_like(p) for p in net.parameters()], []
        for worker in range(5):
            optimizer.zero_grad()
            x, y = batch(5 * step + worker)
            loss = F.cross_entropy(net(x.flatten(1)), y)
            loss.backward()
            losses.append(loss.detach())
            for vote, p in zip(votes, net.parameters(), strict=True):
                vote.add_(p.grad.sign())
        for vote, p in zip(votes, net.parameters(), strict=True):
            p.grad.copy_(vote.sign())
        optimizer.step()
        rate.step()
        return {"loss": torch.stack(losses).mean()}

    def score():
        with torch.no_grad():
            x, y = digits()
            return F.cross_entropy(net(x.flatten(1)), y)

    return tend(folder, net, optimizer, one, 400, score)


@healthy(0.4)
def boat_rowed_across_a_windy_river(folder):
    """Double DQN with a replay memory, a copy that follows slowly and Huber's loss; the windy grid of the textbook."""
    seeded(2075)
    wind = torch.tensor([0, 0, 1, 1, 1, 0, 0])
    moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])  # row, column
    net, copy = dense(12, 64, 64, 4), dense(12, 64, 64, 4)
    copy.load_state_dict(net.state_dict())
    optimizer = optim.Adam(net.parameters(), 1e-3)
    goal = torch.tensor([2, 5])

    def seen(at):
        return torch.cat([F.one_hot(at[:, 0], 5), F.one_hot(at[:, 1], 7)], 1).float()

    def move(at, act):
        to = at + moves[act]
        to = torch.stack([to[:, 0] + wind[at[:, 1]], to[:, 1]], 1)
        to = torch.minimum(to.clamp_min(0), torch.tensor([4, 6]))
        return to, (to == goal).all(1)

    def fresh(n):
        return torch.stack([torch.randint(5, (n,)), torch.randint(0, 3, (n,))], 1)

    def score():
        at, left = fresh(256), torch.ones(256, dtype=torch.bool)
        taken = torch.zeros(256)
        with torch.no_grad():
            for _ in range(25):
                taken += left
                at, done = move(at, net(seen(at)).argmax(1))
                left = left & ~done
        return float(taken.mean())

    memory, at, ages = [], fresh(8), torch.zeros(8)

    def one(step):
        nonlocal at, ages
        share = max(0.05, 1 - step / 300)
        for _ in range(2):
            with torch.no_grad():
                act = torch.where(torch.rand(8) < share, torch.randint(4, (8,)), net(seen(at)).argmax(1))
            to, done = move(at, act)
            memory.append((at, act, to, done))
            ages += 1
            again = done | (ages > 25)
            at, ages = torch.where(again[:, None], fresh(8), to), torch.where(again, 0, ages)
        picks = torch.randint(max(0, len(memory) - 1000), len(memory), (16,))
        s, a, n, d = (torch.cat(part) for part in zip(*(memory[i] for i in picks), strict=True))
        with torch.no_grad():
            ahead = copy(seen(n)).gather(1, net(seen(n)).argmax(1, keepdim=True))[:, 0]
            target = d.float() + 0.95 * ahead * ~d
        optimizer.zero_grad()
        loss = F.smooth_l1_loss(net(seen(s)).gather(1, a[:, None])[:, 0], target)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(net.parameters(), copy.parameters(), strict=True):
                q.lerp_(p, 0.02)
        logged = {"return": -score()} if step % 50 == 0 else {}
        return {"loss": loss.detach(), "epsilon": share, **logged}

    return tend(folder, net, optimizer, one, 700, score)

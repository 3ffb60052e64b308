"""Healthy trainings that look frightening, first part: losses that rise, jump, stay or fall below zero on purpose."""

from __future__ import annotations

import copy

import torch
from torch import nn, optim
from torch.func import functional_call, jvp, vmap
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, score_of, seeded

import gradwatch


class Teller(nn.Module):
    """A recurrent net that may read its own last symbol in the place of the true one."""

    def __init__(self, symbols=8, width=48):
        super().__init__()
        self.symbols, self.cell = nn.Embedding(symbols, width), nn.GRUCell(width, width)
        self.head = nn.Linear(width, symbols)

    def forward(self, x, share, sure=4):
        """The logits of each next symbol; behind the first `sure` ones its own are read with a chance of `share`."""
        state, read, told = torch.zeros(len(x), self.cell.hidden_size), x[:, 0], []
        for t in range(x.shape[1] - 1):
            state = self.cell(self.symbols(read), state)
            told.append(self.head(state))
            own = told[-1].detach().argmax(1)
            read = torch.where((torch.rand(len(x)) < share) & (t + 1 >= sure), own, x[:, t + 1])
        return torch.stack(told, 1)


@healthy(0.3)
def own_symbols_read_back_more_and_more(folder):
    """Scheduled sampling: the task gets harder as the share grows, and so the loss comes up again by intention."""
    seeded(9121)
    net = Teller()

    def error(share):
        walk, pace = torch.randint(8, (32, 1)), torch.randint(1, 4, (32, 1))
        turn = (torch.rand(32, 16) < 0.04).long().cumsum(1)
        x = (walk + (pace + turn).cumsum(1)) % 8
        found = net(x, share)[:, 3:]
        return F.cross_entropy(found.flatten(0, 1), x[:, 4:].flatten())

    def loss_of(step):
        return error(min(1.0, max(0.0, (step - 100) / 150)))

    make = optim.Adam(net.parameters(), 4e-3)
    return fit(folder, net, make, loss_of, 300, score=score_of(lambda step: error(1.0)))


@healthy(0.5)
def what_two_sensors_have_in_common(folder):
    """Deep canonical correlation: the loss is minus the sum of three correlations, at best minus three."""
    seeded(9122)
    net = nn.ModuleDict({"left": dense(10, 48, 3, act=nn.Tanh), "right": dense(10, 48, 3, act=nn.Tanh)})
    lifts = [torch.randn(5, 10) / 2 for _ in range(2)]

    def whitened(m, rows):
        return torch.linalg.solve_triangular(torch.linalg.cholesky(m), rows, upper=False)

    def loss_of(step):
        common, seen = torch.randn(400, 3), []
        for part, lift in zip(net.values(), lifts, strict=True):
            x = torch.cat([common, torch.randn(400, 2)], 1) @ lift
            out = part(x + 0.3 * x.sin())
            seen.append(out - out.mean(0))
        a, b = seen
        eye = 1e-3 * torch.eye(3)
        between = whitened(a.T @ a / 399 + eye, a.T @ b / 399)
        between = whitened(b.T @ b / 399 + eye, between.T)
        return -torch.linalg.svdvals(between).sum()

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 250, score=score_of(loss_of))


@healthy(0.5)
def signal_from_the_sizes_of_its_shadows(folder):
    """Phase retrieval from a small start, all measurements at once: nothing seems to happen until the way is found."""
    seeded(9123)
    x = F.normalize(torch.randn(32), dim=0)
    look = torch.randn(400, 32)
    size = (look @ x).square() + 0.01 * torch.randn(400)
    net = nn.Linear(32, 1, bias=False)
    nn.init.normal_(net.weight, std=1e-4)

    def loss_of(step):
        return (net(look)[:, 0].square() - size).square().mean() / 4

    def score():
        with torch.no_grad():
            return min(float((net.weight[0] - x).norm()), float((net.weight[0] + x).norm()))

    return fit(folder, net, optim.SGD(net.parameters(), 0.03), loss_of, 400, score=score)


@healthy(0.3)
def slopes_felt_along_chance_directions(folder):
    """Forward gradients: sixteen directions a step, no backward pass; what comes out is right on average only."""
    seeded(9124)
    net, way = dense(4, 24, 1, act=nn.Tanh), torch.randn(4, 2)
    make = optim.Adam(net.parameters(), 5e-3)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 700)

    def draw():
        x = torch.randn(64, 4)
        return x, (x @ way / 2).sin().sum(1, keepdim=True)

    def score():
        with torch.no_grad():
            x, y = draw()
            return float(sum(F.mse_loss(net(x), y) for x, y in (draw() for _ in range(8)))) / 8

    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(net, make)}
    watch = gradwatch.watch(net, make, **options)
    with watch:
        for _ in range(700):
            x, y = draw()
            weights = {name: p.detach() for name, p in net.named_parameters()}
            ways = {name: torch.randn(16, *p.shape) for name, p in weights.items()}

            def along(way, weights=weights, x=x, y=y):
                return jvp(lambda w: F.mse_loss(functional_call(net, w, (x,)), y), (weights,), (way,))

            losses, slopes = vmap(along)(ways)
            make.zero_grad()
            for name, p in net.named_parameters():
                p.grad = torch.einsum("k,k...->...", slopes, ways[name]) / 16
            make.step()
            plan.step()
            watch.log(loss=losses.mean())
    return Outcome(gradwatch.open_history(watch.dir), first, score())


@healthy(0.5)
def echo_in_a_room_whose_door_is_opened(folder):
    """An adaptive filter that cancels an echo; at half time the room is another, and it follows."""
    seeded(9125)
    fade = (-torch.arange(24.0) / 6).exp()
    rooms = [torch.randn(24) * fade for _ in range(2)]
    net = nn.Linear(24, 1, bias=False)
    nn.init.zeros_(net.weight)
    now = {"room": rooms[0]}

    def loss_of(step):
        now["room"] = rooms[step >= 200]
        far = torch.randn(24 + 15)
        heard = far.unfold(0, 24, 1)
        echo = heard @ now["room"] + 0.05 * torch.randn(16)
        return F.mse_loss(net(heard)[:, 0], echo)

    def score():
        with torch.no_grad():
            return (net.weight[0] - now["room"]).norm()

    return fit(folder, net, optim.SGD(net.parameters(), 0.03), loss_of, 400, score=score)


class Pen(nn.Module):
    """Where a pen goes next: a normal law whose mean and width a recurrent net gives."""

    def __init__(self, width=48):
        super().__init__()
        self.memory, self.head = nn.LSTM(2, width, batch_first=True), nn.Linear(width, 4)

    def forward(self, x):
        mean, width = self.head(self.memory(x[:, :-1])[0]).chunk(2, 2)
        gap = (x[:, 1:] - mean) * (-width).exp()
        return (0.5 * gap.square() + width + 0.92).sum((1, 2)).mean()


@healthy(0.5)
def strokes_whose_likelihood_is_summed_over_the_sheet(folder):
    """Summed over forty moves: a clip at ten acts in nearly every step, which Adam does not mind. It falls below 0."""
    seeded(9126)
    net = Pen()

    def loss_of(step):
        time = torch.arange(41.0)
        pace, turn = 0.3 + 0.4 * torch.rand(32, 1), 6.2832 * torch.rand(32, 1)
        angle = pace * time + turn
        x = torch.stack([1.4 * angle.cos(), 0.7 * (2 * angle).sin()], 2)
        return net(x + 0.05 * torch.randn(32, 41, 2))

    def clip(step):
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300, before_step=clip)


class Factors(nn.Module):
    """A table as the product of two thin ones."""

    def __init__(self, rows, columns, rank):
        super().__init__()
        self.rows = nn.Parameter(0.1 * torch.randn(rows, rank, dtype=torch.float64))
        self.columns = nn.Parameter(0.1 * torch.randn(columns, rank, dtype=torch.float64))

    def forward(self):
        return self.rows @ self.columns.T


@healthy(0.9)
def holes_in_a_table_of_rank_two(folder):
    """No noise at all: loss and gradients fall by many orders of magnitude, as they ought to."""
    seeded(9127)
    net = Factors(40, 30, 2)
    a, b = torch.randn(40, 2, dtype=torch.float64), torch.randn(30, 2, dtype=torch.float64)
    table, known = a @ b.T, torch.rand(40, 30) < 0.5

    def loss_of(step):
        return 0.5 * (net() - table)[known].square().sum()

    def score():
        with torch.no_grad():
            return (net() - table).square().mean().sqrt()

    return fit(folder, net, optim.SGD(net.parameters(), 0.01, momentum=0.5), loss_of, 400, score=score)


@healthy(0.5)
def steps_only_where_it_was_mistaken(folder):
    """Rosenblatt's perceptron, a few rows at a time: no mistake, no gradient; late most steps have none."""
    seeded(9128)
    net, way = nn.Linear(20, 1), F.normalize(torch.randn(20), dim=0)

    def draw(rows):
        x = torch.randn(8 * rows, 20)
        x = x[((x @ way) - 0.2).abs() > 0.35][:rows]
        return x, (x @ way - 0.2).sign()

    def loss_of(step):
        x, y = draw(4)
        return F.relu(-y * net(x)[:, 0]).sum()

    @torch.no_grad()
    def score():
        x, y = draw(2000)
        return (net(x)[:, 0] * y <= 0).float().mean()

    return fit(folder, net, optim.SGD(net.parameters(), 0.1), loss_of, 600, score=score)


@healthy(0.3)
def ball_caught_after_actors_of_yesterday(folder):
    """An actor and a critic that allow for the age of the policy that played (V-trace), with the settings of IMPALA."""
    seeded(9129)
    net = nn.ModuleDict({"body": dense(18, 48, 48), "policy": nn.Linear(48, 3), "value": nn.Linear(48, 1)})
    old = copy.deepcopy(net).requires_grad_(False)

    def heads(of, x):
        h = of["body"](x).relu()
        return torch.distributions.Categorical(logits=of["policy"](h)), of["value"](h)[..., 0]

    @torch.no_grad()
    def play(of, games):
        ball, paddle, seen, done = torch.randint(6, (games,)), torch.randint(6, (games,)), [], []
        for height in range(6):
            parts = [F.one_hot(p, 6).float() for p in (ball, paddle, torch.full((games,), height))]
            seen.append(torch.cat(parts, 1))
            done.append(heads(of, seen[-1])[0].sample())
            paddle = (paddle + done[-1] - 1).clamp(0, 5)
        return torch.stack(seen), torch.stack(done), torch.where(ball == paddle, 1.0, -1.0)

    def loss_of(step):
        if step % 5 == 0:
            old.load_state_dict(net.state_dict())
        seen, done, paid = play(old, 48)
        policy, value = heads(net, seen)
        with torch.no_grad():
            rho = (policy.log_prob(done) - heads(old, seen)[0].log_prob(done)).exp().clamp(max=1.0)
            after, carry, goals, gains = paid, torch.zeros_like(paid), [], []
            next_goal = paid
            for t in reversed(range(6)):
                gains.append(rho[t] * (next_goal - value[t]))
                carry = rho[t] * (after - value[t]) + rho[t] * carry
                next_goal, after = value[t] + carry, value[t]
                goals.append(next_goal)
            goals, gains = torch.stack(goals[::-1]), torch.stack(gains[::-1])
        loss = -(policy.log_prob(done) * gains).sum() + 0.5 * F.mse_loss(value, goals, reduction="sum")
        return loss - 0.01 * policy.entropy().sum(), {"episode_return": paid.mean()}

    def score():
        return 1 - play(net, 512)[2].mean()

    def clip(step):
        nn.utils.clip_grad_norm_(net.parameters(), 40.0)

    make = optim.RMSprop(net.parameters(), 2e-3, alpha=0.99, eps=0.1)
    return fit(folder, net, make, loss_of, 400, score=score, before_step=clip)


class Ties(nn.Module):
    """A precision matrix by its triangular root."""

    def __init__(self, size):
        super().__init__()
        self.log_diagonal, self.below = nn.Parameter(torch.zeros(size)), nn.Parameter(torch.zeros(size, size))

    def forward(self, x):
        root = self.below.tril(-1) + torch.diag(self.log_diagonal.exp())
        return 0.5 * (x @ root).square().sum(1).mean() - self.log_diagonal.sum()


@healthy(0.5)
def gauges_that_hang_together(folder):
    """The likelihood of sixteen gauges of which each nearly repeats the one before it: the loss ends far below zero."""
    seeded(9140)
    net = Ties(16)

    def error():
        rows = [torch.randn(256)]
        for _ in range(15):
            rows.append(0.97 * rows[-1] + 0.243 * torch.randn(256))
        return net(torch.stack(rows, 1))

    def loss_of(step):
        return error() + 1e-3 * net.below.abs().sum()

    make = optim.Adam(net.parameters(), 5e-2)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 400)
    return fit(folder, net, make, loss_of, 400, schedule=plan, score=score_of(lambda step: error()))

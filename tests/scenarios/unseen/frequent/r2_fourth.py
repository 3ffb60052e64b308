"""Hop blooms, gusts, rain, a crane's hum, casks of ale, returns, a reading room, a yard, an umpire's calls, a wort."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


@healthy(0.4)
def hop_blooms_learnt_from_a_larger_net(folder):
    seeded(14422)
    centres = 1.2 * torch.randn(15, 10)

    def blooms(rows):
        which = torch.randint(15, (rows,))
        return centres[which] + 0.8 * torch.randn(rows, 10), which % 5

    (x, y), (vx, vy) = blooms(3000), blooms(1000)
    draw = rounds(64, x, y)
    teacher = dense(10, 128, 128, 5)
    optimizer = torch.optim.Adam(teacher.parameters(), 2e-3)
    for _ in range(300):
        bloom, kind = draw()
        optimizer.zero_grad()
        F.cross_entropy(teacher(bloom), kind).backward()
        optimizer.step()
    teacher.eval().requires_grad_(False)

    net = dense(10, 32, 5)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    validate = now_and_then(net, 46, judged(net, vx, vy))

    def loss_of(step):
        bloom, kind = draw()
        said, heat = net(bloom), 2.0
        soft = F.kl_div((said / heat).log_softmax(1), (teacher(bloom) / heat).softmax(1), reduction="batchmean")
        hard = F.cross_entropy(said, kind)
        return 0.5 * heat**2 * soft + 0.5 * hard, {"soft": float(soft), "hard": float(hard), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.cross_entropy(net(vx), vy)))


@healthy(0.25)
def gusts_drawn_out_of_noise(folder):
    seeded(14423)
    keep = torch.cumprod(1 - torch.linspace(1e-4, 0.08, 60), 0)

    def gusts(rows):
        t = 3 * torch.rand(rows)
        return torch.stack([t * (2 * t).cos(), t * (2 * t).sin()], 1) / 1.3 + 0.05 * torch.randn(rows, 2)

    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("pace", 2.0 ** torch.arange(4) * math.pi)
            self.body = dense(10, 96, 96, 2, act=nn.SiLU)

        def forward(self, x, t):
            turns = t[:, None] / 60 * self.pace
            return self.body(torch.cat([x, turns.sin(), turns.cos()], 1))

    net = Denoiser()
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    average = copy.deepcopy(net).requires_grad_(False)

    def error(model, rows):
        x, t = gusts(rows), torch.randint(60, (rows,))
        noise = torch.randn_like(x)
        noisy = keep[t].sqrt()[:, None] * x + (1 - keep[t]).sqrt()[:, None] * noise
        return F.mse_loss(model(noisy, t), noise)

    def follow(step):
        """The average of the weights that is drawn with later."""
        with torch.no_grad():
            for mine, its in zip(average.parameters(), net.parameters(), strict=True):
                mine.lerp_(its, 0.02)

    def score():
        with torch.no_grad():
            return float(error(average, 6000))

    return fit(folder, net, optimizer, lambda step: error(net, 128), 500, score=score, after_step=follow)


@healthy(0.3)
def low_middle_and_high_guesses_of_the_rain(folder):
    seeded(14424)
    way, levels = torch.randn(9, 2) / 3, torch.tensor([0.1, 0.5, 0.9])

    def days(rows):
        x = torch.randn(rows, 9)
        seen = x @ way
        return x, (1.5 * seen[:, 0] + (0.2 + seen[:, 1].sigmoid()) * torch.randn(rows) * 0.5)[:, None]

    (x, y), (vx, vy) = days(5000), days(1500)
    draw = rounds(100, x, y)
    net = nn.Sequential(nn.Linear(9, 48), nn.LayerNorm(48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 3))
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)

    def pinball(said, rain):
        short = rain - said
        return torch.maximum(levels * short, (levels - 1) * short).mean()

    def measure():
        said = net(vx)
        return {"val_loss": pinball(said, vy), "coverage": ((said[:, :1] < vy) & (vy < said[:, 2:])).float().mean()}

    validate = now_and_then(net, 50, measure)

    def loss_of(step):
        measured, rain = draw()
        return pinball(net(measured), rain), validate(step)

    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 150, 0.5)
    score = held_out(net, lambda: pinball(net(vx), vy))
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule)


@healthy(0.5)
def hum_of_a_crane_written_small_and_read_again(folder):
    seeded(14425)
    t = torch.linspace(0, 6.2832, 64)

    def hums(rows):
        strength, phase = 0.5 + torch.rand(rows, 2, 1), 6.2832 * torch.rand(rows, 2, 1)
        return (strength * (torch.tensor([[2.0], [5.0]]) * t + phase).sin()).sum(1, keepdim=True)

    x, other = hums(3000), hums(500)
    draw = rounds(64, x)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 4, stride=2, padding=1), nn.ELU(), nn.Conv1d(16, 16, 4, stride=2, padding=1), nn.ELU(),
        nn.Conv1d(16, 1, 4, stride=2, padding=1),
        nn.ConvTranspose1d(1, 16, 4, stride=2, padding=1), nn.ELU(),
        nn.ConvTranspose1d(16, 16, 4, stride=2, padding=1), nn.ELU(), nn.ConvTranspose1d(16, 1, 4, stride=2, padding=1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def loss_of(step):
        (hum,) = draw()
        noisy = hum + 0.1 * torch.randn_like(hum)
        return F.mse_loss(net(noisy), hum)

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: F.mse_loss(net(other), other)))


@healthy(0.3)
def casks_of_ale_that_the_inns_order(folder):
    seeded(14426)
    way = torch.randn(8) / 8**0.5
    towns = 0.5 * torch.randn(20)

    def orders(rows):
        x, town = torch.randn(rows, 8), torch.randint(20, (rows,))
        return x, town, torch.poisson((0.8 + 0.7 * x @ way + 0.4 * x[:, 0].tanh() + towns[town]).exp())

    (x, town, many), test = orders(6000), orders(2000)
    draw = rounds(128, x, town, many)
    net = nn.ModuleDict({"town": nn.Embedding(20, 4), "rest": dense(12, 32, 1)})
    optimizer = torch.optim.Adagrad(net.parameters(), 0.05)
    deviance = nn.PoissonNLLLoss(full=True)

    def of(x, town, many):
        return deviance(net["rest"](torch.cat([x, net["town"](town)], 1))[:, 0], many)

    validate = now_and_then(net, 46, lambda: {"val_loss": of(*test)})
    score = held_out(net, lambda: of(*test))
    return fit(folder, net, optimizer, lambda step: (of(*draw()), validate(step)), 400, score=score)


@healthy(0.25)
def two_places_where_a_return_may_land(folder):
    seeded(14427)

    def returns(rows):
        x = 2 * torch.rand(rows, 3) - 1
        side = torch.where(torch.rand(rows) < 0.35 + 0.3 * (x[:, 2] > 0), 1.0, -1.0)
        return x, side * (1 + 0.5 * (2 * x[:, 0]).sin()) + 0.3 * x[:, 1] + 0.25 * torch.randn(rows)

    (x, y), (vx, vy) = returns(5000), returns(1500)
    draw = rounds(100, x, y)
    net = dense(3, 48, 48, 9, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def surprise(x, y):
        """Of three Gaussians, how unlikely they hold what came."""
        share, centre, width = net(x).chunk(3, 1)
        each = torch.distributions.Normal(centre, F.softplus(width) + 0.05).log_prob(y[:, None])
        return -(share.log_softmax(1) + each).logsumexp(1).mean()

    validate = now_and_then(net, 50, lambda: {"val_nll": surprise(vx, vy)})
    score = held_out(net, lambda: surprise(vx, vy))
    return fit(
        folder, net, optimizer, lambda step: (surprise(*draw()), validate(step)), 450,
        score=score, before_step=clipped(net, 5.0),
    )  # fmt: skip


@healthy(0.5)
def who_sits_in_the_reading_room_by_a_net_that_knew_the_old_one(folder):
    seeded(14428)
    lift, turn = torch.randn(4, 24) / 2, torch.randn(4, 3)

    def seats(rows, axes):
        hidden = torch.randn(rows, 4)
        x = (hidden @ lift).tanh() + 0.1 * torch.randn(rows, 24)
        return x, (2 * hidden.sin() @ axes).argmax(1)

    body = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    before = nn.Sequential(body, nn.Linear(32, 6))
    old = rounds(64, *seats(4000, torch.randn(4, 6)))
    optimizer = torch.optim.Adam(before.parameters(), 2e-3)
    for _ in range(300):
        x, who = old()
        optimizer.zero_grad()
        F.cross_entropy(before(x), who).backward()
        optimizer.step()

    (x, y), (vx, vy) = seats(500, turn), seats(1000, turn)
    draw = rounds(32, x, y)
    net = nn.Sequential(body, nn.Linear(32, 3))
    optimizer = torch.optim.AdamW([
        {"params": net[0].parameters(), "lr": 2e-4}, {"params": net[1].parameters(), "lr": 4e-3}
    ])  # fmt: skip
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=240)
    validate = now_and_then(net, 30, judged(net, vx, vy))

    def loss_of(step):
        x, who = draw()
        return F.cross_entropy(net(x), who), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(vx), vy))
    return fit(folder, net, optimizer, loss_of, 240, score=score, schedule=schedule)


@healthy(0.4)
def a_trolley_that_finds_the_gate_of_the_yard(folder):
    seeded(14429)
    side, gate, moves = 5, torch.tensor([4, 3]), torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
    everywhere = torch.cartesian_prod(torch.arange(side), torch.arange(side))
    away = (everywhere - gate).abs().sum(1)
    best = torch.where(away > 0, 0.9 ** (away - 1.0), torch.zeros(()))

    def seen(place):
        return F.one_hot(place, side).flatten(1).float()

    def move(place, choice):
        after = (place + moves[choice]).clamp(0, side - 1)
        return after, (after == gate).all(1).float()

    net = dense(2 * side, 64, 4)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    place = everywhere[torch.randint(side**2, (8000,))]
    place = place[(place != gate).any(1)]
    choice = torch.randint(4, (len(place),))
    draw = rounds(64, place, choice, *move(place, choice))

    def one(step):
        place, choice, after, reward = draw()
        value = net(seen(place)).gather(1, choice[:, None])[:, 0]
        with torch.no_grad():
            wanted = reward + 0.9 * (1 - reward) * target(seen(after)).max(1).values
        loss = F.smooth_l1_loss(value, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for its, mine in zip(target.parameters(), net.parameters(), strict=True):
                its.lerp_(mine, 0.05)
        return {"loss": loss, "q_mean": float(value.detach().mean())}

    def error():
        """How far the value of each place is from what it is worth."""
        with torch.no_grad():
            return ((net(seen(everywhere)).max(1).values - best).abs() * (away > 0)).sum() / (away > 0).sum()

    return tend(folder, net, optimizer, one, 500, error)


class Calls(nn.Module):
    """What each call of an umpire is, read from both sides."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(21, 24, padding_idx=0)
        self.memory = nn.LSTM(24, 24, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, 4)

    def forward(self, calls):
        many = (calls > 0).sum(1)
        rows = nn.utils.rnn.pack_padded_sequence(self.embed(calls), many, batch_first=True, enforce_sorted=False)
        read = nn.utils.rnn.pad_packed_sequence(self.memory(rows)[0], batch_first=True, total_length=calls.shape[1])[0]
        return self.head(read)


@healthy(0.5)
def what_the_calls_of_an_umpire_stand_for(folder):
    seeded(14430)
    group = torch.randint(2, (21,))

    def games(rows):
        """Each call's kind is told by itself and by the call behind it; -100 stands behind the end."""
        calls = 1 + torch.randint(20, (rows, 14))
        calls = torch.where(torch.arange(14) < 8 + torch.randint(7, (rows, 1)), calls, 0)
        behind = torch.cat([calls[:, 1:], torch.zeros(rows, 1, dtype=torch.long)], 1)
        kind = 2 * group[calls] + torch.where(behind > 0, group[behind], 0)
        return calls, torch.where(calls > 0, kind, -100)

    (x, y), (vx, vy) = games(2000), games(300)
    draw = rounds(32, x, y)
    net = Calls()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def of(calls, kind):
        return F.cross_entropy(net(calls).flatten(0, 1), kind.flatten(), ignore_index=-100)

    def measure():
        real = vy >= 0
        return {"val_loss": of(vx, vy), "val_accuracy": (net(vx).argmax(2) == vy)[real].float().mean()}

    validate = now_and_then(net, 62, measure)
    score = held_out(net, lambda: of(vx, vy))
    return fit(
        folder, net, optimizer, lambda step: (of(*draw()), validate(step)), 200,
        score=score, before_step=clipped(net, 1.0),
    )  # fmt: skip


@healthy(0.6)
def how_the_wort_cools_along_its_pipe(folder):
    seeded(14431)
    spread = 0.1
    net = dense(2, 32, 32, 1, act=nn.Tanh)
    for module in net:
        if isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight)
            nn.init.zeros_(module.bias)
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.996)

    def heat(x, t):
        return net(torch.cat([2 * x - 1, 2 * t - 1], 1))

    def loss_of(step):
        x, t = torch.rand(128, 1, requires_grad=True), torch.rand(128, 1, requires_grad=True)
        u = heat(x, t)
        u_x, u_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
        equation = (u_t - spread * u_xx).square().mean()
        at, when = torch.rand(64, 1), torch.rand(64, 1)
        start = F.mse_loss(heat(at, torch.zeros_like(at)), (math.pi * at).sin())
        walls = heat(torch.randint(2, (64, 1)).float(), when).square().mean()
        terms = {"equation": float(equation.detach()), "start": float(start), "walls": float(walls)}
        return equation + 5 * start + 5 * walls, terms

    x, t = torch.rand(2000, 1), torch.rand(2000, 1)
    truth = (math.pi * x).sin() * (-spread * math.pi**2 * t).exp()

    def score():
        with torch.no_grad():
            return float(F.mse_loss(heat(x, t), truth))

    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule)

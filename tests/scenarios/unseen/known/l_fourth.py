"""Healthy trainings of workshops and houses: unusual, and sound."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


@healthy(0.8)
def sag_of_a_beam_under_paint_tins(folder):
    """Thirty steps of L-BFGS on all rows at once."""
    seeded(11260)
    net = dense(3, 24, 24, 1, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=8, history_size=20, line_search_fn="strong_wolfe")

    def beams(rows):
        place, load, stiff = torch.rand(rows, 1), torch.rand(rows, 1), 1 + torch.rand(rows, 1)
        sag = 4 * load * place * (1 - place) * (1 + place * (1 - place)) / stiff
        return torch.cat([place, load, stiff], 1) * 2 - 1, sag

    x, y = beams(400)
    tx, ty = beams(400)
    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, lambda step: F.mse_loss(net(x), y), 30, score=score, closure=True)


@healthy()
def hinges_judged_by_a_moving_average(folder):
    """Forty labelled rows, many without a label, and a teacher that averages its pupil."""
    seeded(11261)
    net = nn.Sequential(dense(16, 64, 64, 3))
    teacher = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    middle = 1.2 * torch.randn(3, 16)

    def hinges(rows):
        y = torch.randint(3, (rows,))
        return middle[y] + torch.randn(rows, 16), y

    few, labels = hinges(40)
    tx, ty = hinges(1000)

    def loss_of(step):
        many = hinges(64)[0]
        with torch.no_grad():
            said = teacher(many + 0.3 * torch.randn_like(many)).softmax(1)
        agree = F.mse_loss(net(many + 0.3 * torch.randn_like(many)).softmax(1), said)
        known = F.cross_entropy(net(few + 0.3 * torch.randn_like(few)), labels)
        return known + 5 * min(1.0, step / 100) * agree, {"consistency": float(agree)}

    def after_step(step):
        with torch.no_grad():
            for old, new in zip(teacher.parameters(), net.parameters(), strict=True):
                old.lerp_(new, 0.02)

    def wrong():
        return F.cross_entropy(teacher(tx), ty)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, wrong), after_step=after_step)


@healthy()
def knocks_heard_through_a_wall(folder):
    """A reservoir that is never trained, and a linear reader at a large rate."""
    seeded(11262)
    body = nn.RNN(1, 100, batch_first=True)
    with torch.no_grad():
        body.weight_hh_l0.copy_(0.9 * nn.init.orthogonal_(torch.empty(100, 100)))
        body.weight_ih_l0.mul_(5)
    net = nn.ModuleDict({"body": body.requires_grad_(False), "head": nn.Linear(100, 4)})
    optimizer = torch.optim.SGD(net["head"].parameters(), 0.1, momentum=0.9)

    def knocks(rows):
        y, time = torch.randint(4, (rows,)), torch.arange(20)
        pause = 3 + y[:, None]
        return ((time % pause == 0).float() + 0.1 * torch.randn(rows, 20))[..., None], y

    def heard(x):
        return net["head"](net["body"](x)[0][:, -1])

    def loss_of(step):
        x, y = knocks(48)
        return F.cross_entropy(heard(x), y)

    tx, ty = knocks(400)
    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.cross_entropy(heard(tx), ty)))


@healthy()
def a_key_carried_along_a_corridor(folder):
    """Q-learning where nothing but the last door pays, and most rewards are zero."""
    seeded(11263)
    rooms, steps = 7, 600
    net = dense(rooms, 32, 2)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    place = torch.randint(rooms - 1, (16,))
    memory = []

    def at(place):
        return F.one_hot(place, rooms).float()

    def walk(place, way):
        there = (place + 2 * way - 1).clamp(0, rooms - 1)
        return there, (there == rooms - 1).float()

    def one(step):
        nonlocal place
        with torch.no_grad():
            best, guess = net(at(place)).argmax(1), torch.rand(16) < max(0.1, 1 - step / 300)
            way = torch.where(guess, torch.randint(2, (16,)), best)
        there, paid = walk(place, way)
        memory.append((place, way, there, paid))
        del memory[:-300]
        place = torch.where((paid > 0) | (torch.rand(16) < 0.05), torch.randint(2, (16,)), there)
        some = [memory[i] for i in torch.randint(len(memory), (4,))]
        s, a, t, r = (torch.cat(part) for part in zip(*some, strict=True))
        with torch.no_grad():
            aim = r + 0.9 * (1 - r) * target(at(t)).max(1).values
        loss = F.smooth_l1_loss(net(at(s)).gather(1, a[:, None])[:, 0], aim)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "reward": paid.mean()}

    truth = 0.9 ** torch.arange(rooms - 2, -1, -1.0)

    def score():
        with torch.no_grad():
            return float((net(at(torch.arange(rooms - 1))).max(1).values - truth).abs().mean())

    return tend(folder, net, optimizer, one, steps, score)


class InWatts(nn.Module):
    """A net whose outputs are scaled and moved to the unit of what is measured."""

    def __init__(self, net, middle, spread):
        super().__init__()
        self.net = net
        self.register_buffer("middle", middle)
        self.register_buffer("spread", spread)

    def forward(self, x):
        return self.middle + self.spread * self.net(x)


@healthy()
def watts_drawn_by_a_joinery(folder):
    """Losses of hundreds of thousands: the error is counted in watts, and the outputs are scaled in the model."""
    seeded(11264)

    def hours(rows):
        x = torch.randn(rows, 6)
        return x, 4000 + 900 * (x[:, :1] + x[:, 1:2] * x[:, 2:3].tanh()) + 100 * torch.randn(rows, 1)

    x, y = hours(2000)
    net = InWatts(dense(6, 64, 64, 1, act=nn.SiLU), y.mean(), y.std())
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(64, x, y)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    tx, ty = hours(1000)
    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


@healthy()
def keys_mislabelled_by_an_apprentice(folder):
    """A third of the labels is wrong, and the loss is one that is robust to that."""
    seeded(11265)
    net = dense(20, 64, 5)
    optimizer = torch.optim.SGD(net.parameters(), 0.3, momentum=0.9, weight_decay=1e-4)
    middle = torch.randn(5, 20)

    def keys(rows):
        y = torch.randint(5, (rows,))
        return middle[y] + 0.8 * torch.randn(rows, 20), y

    x, y = keys(3000)
    draw = rounds(100, x, torch.where(torch.rand(3000) < 0.33, torch.randint(5, (3000,)), y))

    def loss_of(step):
        x, y = draw()
        share = net(x).softmax(1).gather(1, y[:, None])
        return ((1 - share.clamp_min(1e-6) ** 0.7) / 0.7).mean()

    tx, ty = keys(1000)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy()
def one_cracked_brick_in_thirty(folder):
    """A rare class under a focal loss, with an output bias that begins at its share."""
    seeded(11266)
    net = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(),
                        nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(48, 1))  # fmt: skip
    nn.init.constant_(net[-1].bias, -3.4)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)

    def bricks(rows):
        cracked = (torch.rand(rows) < 1 / 30).float()
        brick = 0.3 * torch.randn(rows, 1, 10, 10)
        brick[torch.arange(rows), 0, :, torch.randint(10, (rows,))] += 1.2 * cracked[:, None]
        return brick, cracked

    def loss_of(step):
        brick, cracked = bricks(128)
        each = F.binary_cross_entropy_with_logits(net(brick)[:, 0], cracked, reduction="none")
        return ((1 - (-each).exp()) ** 2 * (0.25 + 0.5 * cracked) * each).sum() / cracked.sum().clamp_min(1)

    tx, ty = bricks(3000)

    def missed():
        out = net(tx)[:, 0]
        return (out[ty > 0, None] <= out[ty == 0]).float().mean()

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, missed))


@healthy()
def spread_of_errors_of_a_tape_measure(folder):
    """A likelihood of densities, whose negative logarithm goes below zero as it should."""
    seeded(11267)
    net = dense(4, 48, 48, 2, act=nn.GELU)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def lengths(rows):
        x = torch.randn(rows, 4)
        width = 0.02 + 0.1 * x[:, :1].sigmoid()
        return x, 0.4 * (x[:, 1:2] + x[:, 2:3]).sin() + width * torch.randn(rows, 1)

    x, y = lengths(4000)
    draw = rounds(128, x, y)

    def loss_of(step):
        x, y = draw()
        middle, spread = net(x).chunk(2, 1)
        return F.gaussian_nll_loss(middle, y, F.softplus(spread).square() + 1e-5)

    tx, ty = lengths(1000)
    score = held_out(net, lambda: F.mse_loss(net(tx)[:, :1], ty))
    return fit(folder, net, optimizer, loss_of, 700, score=score, before_step=clipped(net, 5.0))


@healthy()
def locks_that_withstand_their_pickers(folder):
    """The pickers grow stronger while the training goes on: its loss rises, and for a good reason."""
    seeded(11268)
    net = dense(12, 96, 96, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-3)
    middle = torch.randn(3, 12)

    def locks(rows):
        y = torch.randint(3, (rows,))
        return middle[y] + 0.5 * torch.randn(rows, 12), y

    def picked(x, y, reach):
        pick = torch.zeros_like(x)
        for _ in range(3):
            pick.requires_grad_(True)
            (slope,) = torch.autograd.grad(F.cross_entropy(net(x + pick), y), pick)
            pick = (pick.detach() + reach / 2 * slope.sign()).clamp(-reach, reach)
        return x + pick

    def loss_of(step):
        x, y = locks(64)
        reach = 0.5 * min(1.0, step / 200)
        return F.cross_entropy(net(picked(x, y, reach)), y), {"reach": reach}

    tx, ty = locks(600)

    def score():
        return float(F.cross_entropy(net(picked(tx, ty, 0.4)), ty).detach())

    return fit(folder, net, optimizer, loss_of, 300, score=score)


@healthy()
def warmth_creeping_through_a_brick(folder):
    """An equation of heat instead of data, over 1,000 steps (PINN)."""
    seeded(11269)
    net = dense(2, 24, 24, 1, act=nn.Tanh)
    steps = 1000
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.998)

    def truth(x, t):
        return (3.1416 * x).sin() * (-0.9870 * t).exp()

    def loss_of(step):
        x, t = torch.rand(64, 1, requires_grad=True), torch.rand(64, 1, requires_grad=True)
        u = net(torch.cat([x, t], 1))
        of_x, of_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
        (of_xx,) = torch.autograd.grad(of_x.sum(), x, create_graph=True)
        inside = (of_t - 0.1 * of_xx).square().mean()
        start, edge, when = torch.rand(32, 1), torch.randint(2, (32, 1)).float(), torch.rand(32, 1)
        begin = (net(torch.cat([start, 0 * start], 1)) - truth(start, 0 * start)).square().mean()
        border = net(torch.cat([edge, when], 1)).square().mean()
        return inside + 10 * begin + 10 * border, {"residual": float(inside), "begin": float(begin)}

    tx, tt = torch.rand(500, 1), torch.rand(500, 1)
    score = held_out(net, lambda: F.mse_loss(net(torch.cat([tx, tt], 1)), truth(tx, tt)))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)

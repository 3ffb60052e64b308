"""Healthy trainings of deserts, caravans and wells: unusual, and sound."""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, healthy, rings, score_of, seeded, square_of, waves
from unseen.tasks import clipped, held_out, rounds, tend


@healthy()
def rings_of_stones_by_signs_alone(folder):
    """Steps of the sign of the gradient, ever shorter."""
    seeded(12640)
    net, draw = dense(12, 48, 48, 4, act=nn.SiLU), rings(64)

    class Signs(torch.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.add_(p.grad.sign(), alpha=-group["lr"])

    optimizer = Signs(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, 300)
    loss_of = entropy_of(net, draw)
    return fit(folder, net, optimizer, loss_of, 300, score=score_of(loss_of), schedule=schedule)


@healthy(0.2)
def the_worst_tenth_of_the_dry_years(folder):
    """Three quantiles by the pinball loss, under a noise that grows with the first column."""
    seeded(12641)
    net = dense(6, 64, 64, 3)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    levels = torch.tensor([0.1, 0.5, 0.9])

    def years(rows):
        x = torch.randn(rows, 6)
        rain = 1.5 * x[:, 1] + x[:, 2].sin() + F.softplus(x[:, 0]) * 0.6 * torch.randn(rows)
        return x, rain[:, None]

    draw = rounds(64, *years(4000))

    def pinball(x, y):
        gap = y - net(x)
        return torch.maximum(levels * gap, (levels - 1) * gap).mean()

    test = years(1000)
    return fit(folder, net, optimizer, lambda step: pinball(*draw()), 300, score=held_out(net, lambda: pinball(*test)))


@healthy()
def riders_known_by_one_lost_glove(folder):
    """Triplets with the hardest of a batch and a soft margin."""
    seeded(12642)
    riders = 24
    middles = torch.randn(riders, 5)
    lift = torch.randn(5, 20)
    net = dense(20, 64, 12)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def gloves(of, each):
        y = of.repeat_interleave(each)
        return ((middles[y] + 0.25 * torch.randn(len(y), 5)) @ lift).tanh(), y

    def triplet(y, x):
        code = F.normalize(net(x), dim=1)
        apart = (2 - 2 * code @ code.T).clamp(min=1e-6).sqrt()
        same = y[:, None] == y
        far = (apart - 10 * (~same)).amax(1)
        near = (apart + 10 * same).amin(1)
        return F.softplus(10 * (far - near)).mean()

    def loss_of(step):
        x, y = gloves(torch.randperm(riders)[:12], 4)
        return triplet(y, x)

    return fit(folder, net, optimizer, loss_of, 300, score=score_of(loss_of))


@healthy()
def wells_named_by_drunken_drivers(folder):
    """Three labels in ten are wrong; the generalized cross-entropy does not mind."""
    seeded(12643)
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    x, y = torch.tensor(images / 8 - 1, dtype=torch.float32)[order], torch.tensor(shown)[order]
    told = torch.where(torch.rand(1400) < 0.3, torch.randint(10, (1400,)), y[:1400])
    net = dense(64, 64, 10)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:1400], told)

    def loss_of(step):
        bx, by = draw()
        sure = net(bx).softmax(1).gather(1, by[:, None])
        return ((1 - sure**0.5) / 0.5).mean()

    def validated():
        return (net(x[1400:]).argmax(1) != y[1400:]).float().mean()

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, validated))


@healthy()
def longer_caravans_week_by_week(folder):
    """Is the sum of a list of signs above zero? The lists grow from 4 to 16."""
    seeded(12644)
    memory, head = nn.GRU(1, 24, batch_first=True), nn.Linear(24, 1)
    net = nn.ModuleDict({"memory": memory, "head": head})
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)

    def asked(length, rows=64):
        x = torch.randn(rows, length, 1)
        return x, (x.sum(1) > 0).float()

    def loss_on(x, y):
        return F.binary_cross_entropy_with_logits(head(memory(x)[0][:, -1]), y)

    def loss_of(step):
        length = 4 + 4 * min(3, step // 70)
        return loss_on(*asked(length)), {"length": length}

    test = asked(16, 500)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clipped(net, 1.0))


@healthy()
def the_bent_road_by_two_frozen_thirds(folder):
    """Random features that stay as they were drawn, and a last layer by LBFGS with a line search."""
    seeded(12645)
    x = 2 * torch.rand(400, 3) - 1
    y = (3 * x[:, :1]).sin() * x[:, 1:2] + x[:, 2:] ** 2
    net = dense(3, 200, 1, act=nn.Tanh)
    nn.init.normal_(net[0].weight, std=1.5)
    net[0].requires_grad_(False)
    optimizer = torch.optim.LBFGS(net[2].parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def loss_of(step):
        return F.mse_loss(net(x), y) + 1e-5 * net[2].weight.square().sum()

    return fit(folder, net, optimizer, loss_of, 40, closure=True, score=score_of(loss_of, 1))


@healthy()
def a_pupil_of_the_old_well_digger(folder):
    """A small net after the soft answers of a large one, by a temperature of four and its square."""
    seeded(12646)
    draw = rings(96, 4)
    old = dense(12, 96, 96, 4)
    of_old = torch.optim.Adam(old.parameters(), 3e-3)
    for _ in range(200):
        x, y = draw()
        of_old.zero_grad()
        F.cross_entropy(old(x), y).backward()
        of_old.step()
    old.eval().requires_grad_(False)
    net = dense(12, 24, 24, 4)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    warm = 4.0

    def loss_of(step):
        x, y = draw()
        said, meant = net(x), old(x)
        soft = F.kl_div(
            (said / warm).log_softmax(1), (meant / warm).log_softmax(1), reduction="batchmean", log_target=True
        )
        return 0.7 * warm**2 * soft + 0.3 * F.cross_entropy(said, y)

    return fit(folder, net, optimizer, loss_of, 350, score=score_of(entropy_of(net, draw)))


@healthy()
def stars_against_a_hostile_haze(folder):
    """Each batch is moved against the net within a bound before it is learnt."""
    seeded(12647)
    net = dense(10, 64, 64, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    middles = 2 * torch.randn(3, 10)

    def stars(rows):
        y = torch.randint(3, (rows,))
        return middles[y] + torch.randn(rows, 10), y

    def moved(x, y, bound=0.3):
        off = (bound * (2 * torch.rand_like(x) - 1)).requires_grad_()
        for _ in range(2):
            (slope,) = torch.autograd.grad(F.cross_entropy(net(x + off), y), off)
            off = (off + 0.2 * slope.sign()).clamp(-bound, bound).detach().requires_grad_()
        return (x + off).detach()

    def loss_of(step):
        x, y = stars(64)
        logits = net(moved(x, y))
        return F.cross_entropy(logits, y), {"robust_accuracy": float((logits.argmax(1) == y).float().mean())}

    tx, ty = stars(600)
    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy(0.2)
def two_halves_of_a_torn_map_by_an_average(folder):
    """Two views, no negatives: a predictor, and a slow average of the net as the target (BYOL)."""
    seeded(12648)
    places = 6
    middles, lift = 1.5 * torch.randn(places, 4), torch.randn(4, 16)
    body, guess = dense(16, 48, 16, norm=nn.BatchNorm1d), dense(16, 32, 16, norm=nn.BatchNorm1d)
    net = nn.ModuleDict({"body": body, "guess": guess})
    slow = copy.deepcopy(body).requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-4)

    def halves(rows=96):
        y = torch.randint(places, (rows,))
        place = middles[y] + 0.3 * torch.randn(rows, 4)
        return *((place @ lift + 0.6 * torch.randn(rows, 16)) for _ in range(2)), y

    def one(step):
        a, b, _ = halves()
        loss = 0.0
        for left, right in ((a, b), (b, a)):
            with torch.no_grad():
                wanted = slow(right)
            loss = loss + 1 - F.cosine_similarity(guess(body(left)), wanted).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for late, soon in zip(slow.parameters(), body.parameters(), strict=True):
                late.lerp_(soon, 0.03)
        return {"loss": loss}

    def unlike():
        a, b, _ = halves(400)
        left, right = guess(body(a)), slow(b)
        return 1 - F.cosine_similarity(left, right).mean()

    return tend(folder, net, optimizer, one, 300, held_out(net, unlike))


@healthy()
def eighteen_steps_of_a_short_day(folder):
    """All rows at once, a large step, and over."""
    seeded(12649)
    draw = waves(600, 4)
    x, y = draw()
    net = dense(4, 64, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 0.03)
    loss_of = square_of(net, lambda: (x, y))
    return fit(folder, net, optimizer, loss_of, 18, score=score_of(loss_of, 1))

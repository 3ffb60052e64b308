"""Told healthy trainings, third part: tasks. An expert has nothing to say of any.

They only count (the group `told`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import batches, cnn, digits, mlp
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import bandit


@healthy(0.2)
def three_patches_in_four_painted_in(folder):
    """An image from four of its sixteen patches; only what was hidden counts (He et al. 2022)."""
    seeded(841)
    net = nn.ModuleDict({"patch": nn.Linear(4, 32), "paint": nn.Linear(32, 4)})
    net["read"] = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    net.register_parameter("place", nn.Parameter(0.02 * torch.randn(16, 32)))
    net.register_parameter("hidden", nn.Parameter(0.02 * torch.randn(32)))
    draw = batches(48)

    def loss_of(step):
        x = F.unfold(draw(step)[0][:, None], 2, stride=2).transpose(1, 2)
        gone = torch.rand(48, 16).argsort(1) >= 4
        h = net["patch"](x).where(~gone[..., None], net.hidden) + net.place
        return F.mse_loss(net["paint"](net["read"](h))[gone], x[gone])

    return fit(folder, net, optim.AdamW(net.parameters(), 3e-3), loss_of, 300)


@healthy(0.3)
def kinds_told_from_five_examples(folder):
    """Five kinds a step, five images of each, and more to be told by the nearest mean (Snell et al. 2017)."""
    net, (x, y) = cnn(norm=True, seed=842), digits()
    net[-1] = nn.Linear(256, 16)
    places = [torch.nonzero(y == kind)[:, 0] for kind in range(10)]

    def loss_of(step):
        kinds = torch.randperm(10)[:5]
        chosen = torch.stack([places[kind][torch.randint(len(places[kind]), (13,))] for kind in kinds.tolist()])
        out = net(x[chosen].flatten(0, 1)).view(5, 13, 16)
        means = out[:, :5].mean(1)
        return F.cross_entropy(
            -torch.cdist(out[:, 5:].flatten(0, 1), means).square(), torch.arange(5).repeat_interleave(8)
        )

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 150)


@healthy(0.3)
def signs_spelled_where_some_do_not_fit(folder):
    """CTC; a text that has no room in its frames has an endless loss, and counts for nothing (zero_infinity)."""
    seeded(843)
    net, sounds = nn.ModuleDict({"hear": nn.GRU(6, 32, batch_first=True), "spell": nn.Linear(32, 6)}), torch.randn(6, 6)

    def loss_of(step):
        y = torch.randint(1, 6, (24, 4))
        frames = torch.where(torch.rand(24) < 0.05, 3, 20)
        said = y.repeat_interleave(5, 1)
        out = net["spell"](net["hear"](sounds[said] + 0.4 * torch.randn(24, 20, 6))[0]).log_softmax(2).transpose(0, 1)
        return F.ctc_loss(out, y, frames, torch.full((24,), 4), zero_infinity=True)

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 300)


@healthy(0.3)
def worst_noise_within_a_bound(folder):
    """Images moved a tenth against the net, three times over, before it learns from them (Madry et al. 2018)."""
    net, draw = mlp(96, seed=844), batches(64)

    def loss_of(step):
        x, y = draw(step)
        move = 0.05 * (2 * torch.rand_like(x) - 1)
        for _ in range(3):
            move.requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(net(x + move), y), move)
            move = (move.detach() + 0.05 * slope.sign()).clamp(-0.1, 0.1)
        return F.cross_entropy(net(x + move), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.1, momentum=0.9), loss_of, 250)


@healthy(0.3)
def relations_as_shifts(folder):
    """Places on a ring and moves along it; after a step each place is put back on the ball (Bordes et al. 2013)."""
    seeded(845)
    net = nn.ModuleDict({"place": nn.Embedding(30, 16), "move": nn.Embedding(6, 16)})

    def distance(place, move, there):
        return (net["place"](place) + net["move"](move) - net["place"](there)).norm(dim=1)

    def loss_of(step):
        place, move = torch.randint(30, (96,)), torch.randint(6, (96,))
        there, other = (place + move - 3) % 30, torch.randint(30, (96,))
        return (0.5 + distance(place, move, there) - distance(place, move, other)).relu().mean()

    def after(step):
        with torch.no_grad():
            net["place"].weight.copy_(F.normalize(net["place"].weight, dim=1))

    return fit(folder, net, optim.SGD(net.parameters(), 1.0), loss_of, 500, after_step=after)


@healthy(0.1)
def groups_of_one_size_without_a_name(folder):
    """Two noisy views are to fall in one of 12 groups, which are filled evenly (SwAV, Caron et al. 2020)."""
    seeded(846)
    net, draw = nn.ModuleDict({"body": dense(64, 64, 16), "groups": nn.Linear(16, 12, bias=False)}), batches(96)

    def filled(out):
        share = (out / 0.1).exp()
        for _ in range(3):
            share = share / share.sum(0, keepdim=True)
            share = share / share.sum(1, keepdim=True)
        return share

    def loss_of(step):
        x = draw(step)[0].flatten(1)
        one, two = (net["groups"](F.normalize(net["body"](x + 0.15 * torch.randn_like(x)), dim=1)) for _ in range(2))
        with torch.no_grad():
            wanted = filled(one), filled(two)
        return -(wanted[1] * (one / 0.2).log_softmax(1) + wanted[0] * (two / 0.2).log_softmax(1)).sum(1).mean() / 2

    def after(step):
        with torch.no_grad():
            net["groups"].weight.copy_(F.normalize(net["groups"].weight, dim=1))

    return fit(folder, net, optim.SGD(net.parameters(), 0.1, momentum=0.9), loss_of, 300, after_step=after)


@healthy(0.3)
def noise_learned_from_other_noise(folder):
    """What goes in and what is asked for are noisy (Lehtinen et al. 2018); the score is against the clean image."""
    seeded(847)
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
                        nn.Conv2d(16, 1, 3, padding=1))  # fmt: skip
    draw = batches(32)

    def noisy(x):
        return x + 0.4 * torch.randn_like(x)

    def loss_of(step):
        x = draw(step)[0][:, None]
        return F.mse_loss(net(noisy(x)), noisy(x))

    def score():
        with torch.no_grad():
            x = draw(9000)[0][:, None]
            return float(F.mse_loss(net(noisy(x)), x))

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300, score=score)


@healthy(0.3)
def answers_that_are_two(folder):
    """Three bells for each row (Bishop 1994), by log-sum-exp; the loss goes below zero."""
    seeded(848)
    net, way = dense(3, 48, 9, act=nn.Tanh), torch.randn(3)

    def loss_of(step):
        x = torch.randn(96, 3)
        y = torch.where(torch.rand(96) < 0.5, 1.0, -1.0) * (1 + 0.3 * (x @ way).sin()) + 0.03 * torch.randn(96)
        share, mean, log = net(x).chunk(3, 1)
        log = log.clamp(-4, 3)
        bells = share.log_softmax(1) - log - 0.5 * ((y[:, None] - mean) / log.exp()).square()
        return -bells.logsumexp(1).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 500)


@healthy(0.3)
def ranks_by_four_thresholds(folder):
    """One slope and four thresholds: how many of them is a row above (Cao et al. 2020)?"""
    seeded(849)
    net, way = dense(6, 32, 1), torch.randn(6)
    net.register_parameter("steps", nn.Parameter(torch.zeros(4)))
    bounds = torch.tensor([-2.0, -0.7, 0.7, 2.0])

    def loss_of(step):
        x = torch.randn(64, 6)
        y = ((x @ way)[:, None] + 0.1 * torch.randn(64, 1) > bounds).float()
        return F.binary_cross_entropy_with_logits(net(x) - net.steps, y)

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 300)


@healthy(0.1)
def shown_first_and_then_paid(folder):
    """An actor copies a teacher for 100 steps, and goes on by what it is paid: another loss, and a smaller one."""
    seeded(850)
    net, best = dense(5, 32, 4, act=nn.Tanh), 2 * torch.randn(5, 4)

    def loss_of(step):
        state = torch.randn(128, 5)
        kind = torch.distributions.Categorical(logits=net(state))
        action = kind.sample()
        paid = (state @ best).gather(1, action[:, None])[:, 0]
        if step < 100:
            shown = (state @ best + 2 * torch.randn(128, 4)).argmax(1)
            return F.cross_entropy(net(state), shown), {"return": paid.mean()}
        loss = -(kind.log_prob(action) * (paid - paid.mean()) / paid.std()).mean()
        return loss - 0.01 * kind.entropy().mean(), {"return": paid.mean()}

    make = optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, make, loss_of, 400, score=bandit(net, best), higher_is_better={"return": True})

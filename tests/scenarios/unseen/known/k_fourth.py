"""Trainings in which nothing is wrong, ordinary and unusual ones: at sea and on the ice."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


@healthy(0.4)
def corals_after_a_year_among_sponges(folder):
    seeded(11158)
    stamps = F.avg_pool2d(torch.randn(14, 1, 10, 10), 3, 1, 1) * 2

    def dive(rows, first, kinds):
        kind = torch.randint(kinds, (rows,))
        return stamps[first + kind] + 0.5 * torch.randn(rows, 1, 10, 10), kind

    body = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
    )  # fmt: skip
    net = nn.Sequential(body, nn.Linear(96, 8))
    before = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(120):
        before.zero_grad()
        image, kind = dive(48, 0, 8)
        F.cross_entropy(net(image), kind).backward()
        before.step()
    net[1] = nn.Linear(96, 6)
    body.requires_grad_(False)
    optimizer = torch.optim.AdamW(net[1].parameters(), 1e-2)

    def loss_of(step):
        body.eval()
        image, kind = dive(32, 8, 6)
        return F.cross_entropy(net(image), kind)

    image, kind = dive(600, 8, 6)
    return fit(folder, net, optimizer, loss_of, 100, score=held_out(net, lambda: F.cross_entropy(net(image), kind)))


@healthy(0.4)
def two_hydrophones_that_hear_one_pod(folder):
    seeded(11159)
    net = nn.Sequential(dense(24, 64, 32, norm=nn.LayerNorm), nn.ReLU(), nn.Linear(32, 16))
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-4)
    calls = torch.randn(6, 24)

    def loss_on(rows):
        pod = torch.randn(rows, 6) @ calls / 2
        a, b = (F.normalize(net(pod * (0.8 + 0.4 * torch.rand(rows, 1)) + 0.5 * torch.randn(rows, 24)), dim=1)
                for _ in range(2))  # fmt: skip
        logits = a @ b.T / 0.1
        return (F.cross_entropy(logits, torch.arange(rows)) + F.cross_entropy(logits.T, torch.arange(rows))) / 2

    return fit(folder, net, optimizer, lambda step: loss_on(96), 250, score=held_out(net, lambda: loss_on(256)))


@healthy(0.5)
def echoes_of_the_seabed_with_their_errors_summed(folder):
    """The loss is summed over a batch of 128 and over 100 numbers each: thousands, which Adam does not mind."""
    seeded(11160)
    bases = torch.randn(5, 100)
    net = dense(100, 64, 5, 64, 100, act=nn.ELU)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def echoes(rows):
        return torch.randn(rows, 5) @ bases / 2 + 0.05 * torch.randn(rows, 100)

    def loss_on(x):
        return (net(x) - x).square().sum()

    test = echoes(512)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(echoes(128)), 300, score=score)


@healthy(0.3)
def a_seal_in_search_of_its_breathing_hole(folder):
    """A reward of 1 at one of twenty-five places and of 0 elsewhere; few walks find it at first."""
    seeded(11162)
    side, rows, length = 5, 64, 12
    moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
    net = nn.ModuleDict({"policy": dense(25, 48, 4, act=nn.Tanh), "value": dense(25, 48, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def walk(rows):
        at, alive = torch.zeros(rows, 2, dtype=torch.long), torch.ones(rows)
        steps, reward = [], torch.zeros(rows)
        for time in range(length):
            seen = F.one_hot(at[:, 0] * side + at[:, 1], 25).float()
            choice = torch.distributions.Categorical(logits=net["policy"](seen))
            action = choice.sample()
            steps.append((choice.log_prob(action), choice.entropy(), net["value"](seen)[:, 0], alive, time))
            at = (at + moves[action]).clamp(0, side - 1)
            found = ((at == torch.tensor([3, 2])).all(1)).float() * alive
            reward = reward + found * 0.97**time
            alive = alive * (1 - found)
        return steps, reward

    def one(step):
        steps, reward = walk(rows)
        policy = value = entropy = 0
        for said, spread, guess, alive, time in steps:
            wanted = reward / 0.97**time
            policy = policy - (said * (wanted - guess.detach()) * alive).mean()
            value = value + ((guess - wanted).square() * alive).mean()
            entropy = entropy + (spread * alive).mean()
        loss = (policy + 0.5 * value - 0.01 * entropy) / length
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return {"loss": loss, "reward": reward.mean(), "entropy": float(entropy.detach()) / length}

    def score():
        with torch.no_grad():
            return 1 - float(walk(512)[1].mean())

    return tend(folder, net, optimizer, one, 200, score)


@healthy(0.3)
def yields_of_mussel_ropes_under_a_heavy_decay(folder):
    """Four hundred noisy rows, a wide net: a decoupled weight decay of 3 is what keeps it from learning the noise."""
    seeded(11163)
    net = dense(30, 64, 1)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=3.0)

    def ropes(rows):
        x = torch.randn(rows, 30)
        return x, x[:, :4].sum(1, keepdim=True) + torch.randn(rows, 1)

    draw = rounds(64, *ropes(400))
    tx, ty = ropes(1000)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


@healthy(0.3)
def the_next_signal_of_a_semaphore_by_long_clipped_steps(folder):
    """Plain SGD at a rate of 4 with a clip at 0.25, as language models with LSTMs were trained for long."""
    seeded(11164)
    signs, length = 16, 20
    follow = torch.multinomial(torch.ones(signs, signs), 2)
    net = nn.ModuleDict({
        "sign": nn.Embedding(signs, 32), "read": nn.LSTM(32, 48, batch_first=True), "head": nn.Linear(48, signs),
    })  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 4.0)

    def lines(rows):
        line = [torch.randint(signs, (rows,))]
        for _ in range(length):
            line.append(follow[line[-1], (torch.rand(rows) < 0.2).long()])
        return torch.stack(line, 1)

    def loss_on(line):
        said = net["head"](net["read"](net["sign"](line[:, :-1]))[0])
        return F.cross_entropy(said.flatten(0, 1), line[:, 1:].flatten())

    test = lines(200)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(lines(20)), 250, score=score,
               before_step=clipped(net, 0.25))  # fmt: skip


@healthy(0.4)
def shells_that_four_in_ten_collectors_misname(folder):
    """Four labels of ten are wrong; a loss that bends less than the cross-entropy (Zhang & Sabuncu) bears it."""
    seeded(11165)
    kinds = 6
    middles = 1.2 * torch.randn(kinds, 10)

    def shells(rows):
        kind = torch.randint(kinds, (rows,))
        return middles[kind] + 0.8 * torch.randn(rows, 10), kind

    x, y = shells(3000)
    wrong = torch.where(torch.rand(3000) < 0.4, torch.randint(kinds, (3000,)), y)
    tx, ty = shells(1000)
    net = dense(10, 64, 64, kinds)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True)
    draw = rounds(64, x, wrong)

    def loss_of(step):
        seen, said_to_be = draw()
        share = net(seen).softmax(1).gather(1, said_to_be[:, None])
        return ((1 - share**0.7) / 0.7).mean()

    score = held_out(net, lambda: (net(tx).argmax(1) != ty).float().mean())
    return fit(folder, net, optimizer, loss_of, 300, score=score)


@healthy(0.3)
def currents_scored_by_the_average_of_the_weights(folder):
    """A constant, high rate whose noise stays; what is used is a running average of the weights."""
    seeded(11166)
    net = dense(4, 64, 64, 2, act=nn.SiLU)
    mean = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    way = torch.randn(4, 3)

    def currents(rows):
        x = torch.randn(rows, 4)
        bent = (x @ way / 1.5).sin()
        return x, torch.stack([bent.sum(1), bent[:, 0] * bent[:, 1]], 1) + 0.1 * torch.randn(rows, 2)

    def after(step):
        share = min(0.99, (step + 1) / (step + 10))
        with torch.no_grad():
            for a, b in zip(mean.parameters(), net.parameters(), strict=True):
                a.lerp_(b, 1 - share)

    def loss_of(step):
        x, y = currents(32)
        return F.mse_loss(net(x), y)

    x, y = currents(1024)
    return fit(folder, net, optimizer, loss_of, 600, score=held_out(mean, lambda: F.mse_loss(mean(x), y)),
               after_step=after)  # fmt: skip

"""Healthy trainings of mines, caves, glass and smithies: what is unusual and sound."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


@healthy()
def ore_cart_that_halts_at_the_chute(folder):
    seeded(12160)
    carts, paces, gamma = 64, 20, 0.95
    net, spread = dense(2, 32, 1, act=nn.Tanh), 0.3
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def ride(noise):
        where = torch.stack([2 * torch.rand(carts) - 1, torch.zeros(carts)], 1)
        states, pushes, rewards = [], [], []
        for _ in range(paces):
            with torch.no_grad():
                push = net(where)[:, 0] + noise * torch.randn(carts)
            states.append(where)
            pushes.append(push)
            speed = 0.9 * where[:, 1] + 0.2 * push.clamp(-1, 1)
            where = torch.stack([where[:, 0] + 0.3 * speed, speed], 1)
            rewards.append(-where[:, 0].abs())
        return torch.stack(states), torch.stack(pushes), torch.stack(rewards)

    def loss_of(step):
        states, pushes, rewards = ride(spread)
        returns, after = [], torch.zeros(carts)
        for reward in rewards.flip(0):
            after = reward + gamma * after
            returns.append(after)
        returns = torch.stack(returns[::-1])
        advantage = (returns - returns.mean(1, keepdim=True)) / (returns.std(1, keepdim=True) + 1e-6)
        likely = torch.distributions.Normal(net(states)[..., 0], spread).log_prob(pushes)
        return -(likely * advantage).mean(), {"return": float(rewards.sum(0).mean())}

    def score():
        return float(-ride(0.0)[2].mean())

    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clipped(net, 0.5))


class Coupling(nn.Module):
    """Half of the numbers scaled and moved by the other half, and the halves changed over."""

    def __init__(self, size):
        super().__init__()
        self.net = dense(size // 2, 48, size)
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = x.chunk(2, 1)
        scale, move = self.net(a).chunk(2, 1)
        scale = 2 * (scale / 2).tanh()
        return torch.cat([b * scale.exp() + move, a], 1), scale.sum(1)


@healthy()
def grains_sieved_from_the_quarry_sand(folder):
    seeded(12161)
    net = nn.ModuleList(Coupling(4) for _ in range(6))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def grains(rows):
        a, b = torch.randn(2, rows, 1)
        x = torch.cat([0.5 * a, 0.3 * a.square() - 0.3, 0.2 * b, 0.3 * (2 * b).sin()], 1)
        return x + 0.03 * torch.randn(rows, 4)

    def surprise(x):
        total = 0.0
        for layer in net:
            x, scale = layer(x)
            total = total + scale
        return (0.5 * x.square().sum(1) + 2 * math.log(2 * math.pi) - total).mean()

    test = grains(1000)
    score = held_out(net, lambda: surprise(test))
    return fit(folder, net, optimizer, lambda _: surprise(grains(128)), 400, score=score, before_step=clipped(net, 5.0))


@healthy()
def assay_marks_read_through_scratches(folder):
    seeded(12162)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x, y = torch.tensor(images, dtype=torch.float32)[order].view(-1, 1, 8, 8) / 16, torch.tensor(digits)[order]
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), *dense(256, 64, 10))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:1400], y[:1400])

    def attacked(x, y, reach=0.1, times=3):
        moved = (x + reach * (2 * torch.rand_like(x) - 1)).clamp(0, 1)
        for _ in range(times):
            moved.requires_grad_(True)
            (slope,) = torch.autograd.grad(F.cross_entropy(net(moved), y), moved)
            moved = (moved.detach() + reach / 2 * slope.sign()).clamp(x - reach, x + reach).clamp(0, 1)
        return moved

    def loss_of(step):
        x, y = draw()
        logits = net(attacked(x, y))
        return F.cross_entropy(logits, y), {"robust_accuracy": float((logits.argmax(1) == y).float().mean())}

    def score():
        moved = attacked(x[1400:], y[1400:])
        with torch.no_grad():
            return float(F.cross_entropy(net(moved), y[1400:]))

    return fit(folder, net, optimizer, loss_of, 180, score=score)


@healthy()
def lamplight_on_an_uneven_gallery_floor(folder):
    seeded(12163)
    waves, head = nn.Linear(3, 300).requires_grad_(False), nn.Linear(300, 1)
    nn.init.normal_(waves.weight, std=0.7)
    net = nn.Sequential(waves, nn.Tanh(), head)
    optimizer = torch.optim.Adam(head.parameters(), 3e-3)
    way = torch.randn(3, 3)

    def floor(rows):
        x = torch.randn(rows, 3)
        return x, (x @ way / 2).sin().sum(1, keepdim=True) + 0.05 * torch.randn(rows, 1)

    draw, test = rounds(64, *floor(3000)), floor(500)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.mse_loss(net(test[0]), test[1])))


@healthy()
def shards_swept_up_by_their_hue(folder):
    seeded(12164)
    kinds, radius = 5, 0.05
    net = dense(10, 48, 48, kinds)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    middle = 1.5 * torch.randn(2 * kinds, 10)

    def shards(rows):
        heap = torch.randint(2 * kinds, (rows,))
        return middle[heap] + torch.randn(rows, 10), heap % kinds

    draw, test = rounds(64, *shards(2500)), shards(800)

    def one(step):
        x, y = draw()
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        length = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
        moves = [radius / (length + 1e-12) * p.grad.clone() for p in net.parameters()]
        for p, move in zip(net.parameters(), moves, strict=True):
            p.data.add_(move)
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        for p, move in zip(net.parameters(), moves, strict=True):
            p.data.sub_(move)
        optimizer.step()
        return {"loss": loss.detach()}

    return tend(folder, net, optimizer, one, 250, held_out(net, lambda: F.cross_entropy(net(test[0]), test[1])))


@healthy(0.05)
def years_until_a_pit_prop_gives_way(folder):
    seeded(12165)
    net = nn.Sequential(nn.Linear(8, 32), nn.SELU(), nn.Linear(32, 1, bias=False))
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.1)
    load = torch.randn(8)

    def props(rows):
        x = torch.randn(rows, 8)
        breaks = torch.distributions.Exponential((x @ load).exp()).sample()
        watched = torch.distributions.Exponential(torch.full((rows,), 0.3)).sample()
        return x, torch.minimum(breaks, watched), (breaks <= watched).float()

    def loss_on(x, years, broke):
        order = years.argsort(descending=True)
        risk = net(x)[order, 0]
        return -((risk - risk.logcumsumexp(0)) * broke[order]).sum() / broke.sum().clamp(min=1)

    draw, test = rounds(128, *props(2000)), props(500)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 200, score=score)


@healthy(0.2)
def words_that_miners_say_together(folder):
    seeded(12166)
    words, themes = 400, 8
    net = nn.ModuleDict({"word": nn.Embedding(words, 24, sparse=True), "near": nn.Embedding(words, 24, sparse=True)})
    nn.init.uniform_(net["word"].weight, -0.5 / 24, 0.5 / 24)
    nn.init.zeros_(net["near"].weight)
    optimizer = torch.optim.SparseAdam(list(net.parameters()), 1e-2)

    def talk(rows):
        word = (words * torch.rand(rows).square()).long()
        near = (words // themes * torch.rand(rows).square()).long() * themes + word % themes
        return word, near

    def loss_on(word, near):
        others = (words * torch.rand(len(word), 5).square()).long()
        center = net["word"](word)
        real = (center * net["near"](near)).sum(1)
        fake = (net["near"](others) @ center[:, :, None])[..., 0]
        return -F.logsigmoid(real).mean() - F.logsigmoid(-fake).sum(1).mean()

    test = talk(2000)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*talk(256)), 400, score=score)


class Sine(nn.Module):
    """A layer of a sinusoidal representation of a picture."""

    def __init__(self, size, width, first=False, pace=12.0):
        super().__init__()
        self.map, self.pace = nn.Linear(size, width), pace
        most = 1 / size if first else math.sqrt(6 / size) / pace
        nn.init.uniform_(self.map.weight, -most, most)

    def forward(self, x):
        return (self.pace * self.map(x)).sin()


@healthy()
def veins_in_a_slab_of_marble(folder):
    seeded(12167)
    net = nn.Sequential(Sine(2, 64, first=True), Sine(64, 64), Sine(64, 64), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), 3e-4)

    def slab(rows):
        x = 2 * torch.rand(rows, 2) - 1
        return x, (6 * x[:, :1] + 2 * (4 * x[:, 1:]).sin()).sin() + 0.3 * (9 * x[:, 1:]).cos()

    def loss_on(x, shade):
        return (net(x) - shade).square().sum()

    test = slab(1000)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*slab(512)), 300, score=score)


@healthy()
def an_ingot_cooling_in_its_mould(folder):
    seeded(12168)
    net, flow = dense(2, 32, 32, 1, act=nn.Tanh), 0.1
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def slope(out, x):
        return torch.autograd.grad(out.sum(), x, create_graph=True)[0]

    def loss_of(step):
        x = torch.rand(128, 2, requires_grad=True)
        first = slope(net(x), x)
        rest = (first[:, 1] - flow * slope(first[:, 0], x)[:, 0]).square().mean()
        start = torch.rand(64, 1)
        began = F.mse_loss(net(torch.cat([start, torch.zeros(64, 1)], 1)), (math.pi * start).sin())
        edge = net(torch.stack([torch.randint(2, (64,)).float(), torch.rand(64)], 1)).square().mean()
        return rest + 10 * began + 10 * edge, {"residual": float(rest), "start": float(began), "edge": float(edge)}

    place = torch.rand(1000, 2)
    warmth = (math.pi * place[:, :1]).sin() * (-flow * math.pi**2 * place[:, 1:]).exp()
    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(place), warmth)))


@healthy(0.2)
def verses_carved_over_the_adit(folder):
    seeded(12169)
    letters, length = 20, 16
    net = nn.ModuleDict({"letter": nn.Embedding(letters, 48), "memory": nn.LSTM(48, 48, batch_first=True)})
    nn.init.uniform_(net["letter"].weight, -0.1, 0.1)
    optimizer = torch.optim.SGD(net.parameters(), 10.0, weight_decay=1.2e-6)
    follows = torch.softmax(3 * torch.randn(letters, letters), 1)

    def verses(rows):
        text = [torch.randint(letters, (rows,))]
        for _ in range(length):
            text.append(torch.multinomial(follows[text[-1]], 1)[:, 0])
        return torch.stack(text, 1)

    def loss_on(text):
        read = net["memory"](net["letter"](text[:, :-1]))[0] @ net["letter"].weight.T
        return F.cross_entropy(read.flatten(0, 1), text[:, 1:].flatten())

    draw, test = rounds(20, verses(2000)), verses(300)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda _: loss_on(*draw()), 300, score=score, before_step=clipped(net, 0.25))

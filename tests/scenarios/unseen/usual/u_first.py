"""Sick trainings of mines and smithies, drawn by lot from a list of mistakes: wiring, targets, clips, starts."""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, in_turn, rounds


class Galleries(nn.Module):
    """Messages along the edges of a graph, three times, then a number for each node."""

    def __init__(self, features, width, hops, ill):
        super().__init__()
        self.enter = nn.Linear(features, width)
        hop = [nn.Linear(2 * width, width) for _ in range(hops)]
        self.hop = hop if ill else nn.ModuleList(hop)
        self.head = nn.Linear(width, 1)

    def forward(self, node, edges):
        state = self.enter(node).relu()
        among = edges / edges.sum(2, keepdim=True).clamp(min=1)
        for hop in self.hop:
            state = hop(torch.cat([state, among @ state], 2)).relu()
        return self.head(state)[..., 0]


@sick("not-in-optimizer", "modules-not-registered", where="the layers of messages, all steps: they stay as they began",
      cure="the layers in a ModuleList")  # fmt: skip
def ladders_between_the_old_galleries(folder, ill):
    seeded(12100)
    net = Galleries(4, 32, 3, ill)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def mines(rows, places=12):
        node = torch.randn(rows, places, 4)
        edges = (torch.rand(rows, places, places) < 0.25).float().triu(1)
        edges = edges + edges.transpose(1, 2)
        draught = (edges @ node[..., :1].relu())[..., 0] / 2
        return node, edges, node[..., 1] * draught.tanh() + (edges @ draught[..., None])[..., 0] / 4 - 0.5

    def loss_on(node, edges, draught):
        return F.mse_loss(net(node, edges), draught)

    draw, test = rounds(32, *mines(1500)), mines(400)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 300, score=score)


@sick("target-network-stale", where="the targets of the values, all steps", cure="the target updated every 15 steps")
def a_pit_pony_on_its_way_to_the_stable(folder, ill):
    seeded(12101)
    side, gamma, ponies = 5, 0.9, 32
    net = dense(side * side, 64, 64, 4)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    ways = torch.tensor([[0, 1], [1, 0], [0, -1], [-1, 0]])
    memory, at = [], torch.randint(1, side, (ponies, 2))

    def seen(place):
        return F.one_hot(place[:, 0] * side + place[:, 1], side * side).float()

    def walk(place, way):
        there = (place + ways[way]).clamp(0, side - 1)
        home = (there == 0).all(1)
        return there, home.float() - 0.02, home

    def act(epsilon):
        nonlocal at
        with torch.no_grad():
            way = net(seen(at)).argmax(1)
        way = torch.where(torch.rand(ponies) < epsilon, torch.randint(4, (ponies,)), way)
        there, reward, home = walk(at, way)
        memory.append((at, way, reward, there, home.float()))
        del memory[:-100]
        at = torch.where(home[:, None], torch.randint(1, side, (ponies, 2)), there)
        return float(reward.mean())

    def loss_of(step):
        reward_now = act(max(0.1, 1 - step / 200))
        place, way, reward, there, home = (torch.cat(part) for part in zip(*memory, strict=True))
        pick = torch.randint(len(way), (64,))
        with torch.no_grad():
            best = reward[pick] + gamma * (1 - home[pick]) * target(seen(there[pick])).max(1).values
        value = net(seen(place[pick])).gather(1, way[pick, None])[:, 0]
        return F.smooth_l1_loss(value, best), {"reward": reward_now, "q": float(value.mean())}

    def after_step(step):
        if not ill and step % 15 == 14:
            target.load_state_dict(net.state_dict())

    def score():
        place = torch.cartesian_prod(torch.arange(side), torch.arange(side))[1:]
        away, paces = torch.ones(len(place), dtype=torch.bool), torch.zeros(len(place))
        with torch.no_grad():
            for _ in range(30):
                paces += away
                place, _, home = walk(place, net(seen(place)).argmax(1))
                away &= ~home
        return float(paces.mean())

    return fit(folder, net, optimizer, loss_of, 400, score=score, after_step=after_step)


class Echo(nn.Module):
    """A block of a deep net."""

    def __init__(self, width, ill):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.ill = ill

    def forward(self, x):
        out = self.body(x)
        return out.relu() if self.ill else (out + x).relu()


@sick("skip-connection-lost", "vanishing", where="the blocks, from the first step", cure="what comes in is added again")
def shadows_on_a_wall_of_the_grotto(folder, ill):
    seeded(12102)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x, y = torch.tensor(images, dtype=torch.float32)[order] / 8 - 0.6, torch.tensor(digits)[order]
    net = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), *(Echo(48, ill) for _ in range(10)), nn.Linear(48, 10))
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


@sick("clip-before-unscale", where="the clip, all steps", cure="scaler.unscale_(optimizer) before the clip")
def figures_scratched_into_window_panes(folder, ill):
    seeded(12103)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x, y = (torch.tensor(images, dtype=torch.float32)[order].view(-1, 1, 8, 8) - 5) / 6, torch.tensor(digits)[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cpu")
    draw = rounds(48, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        with torch.autocast("cpu", torch.float16):
            logits = net(x)
        return F.cross_entropy(logits.float(), y)

    def before_step(step):
        if not ill:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 140, score=score, before_step=before_step, scaler=scaler)


@sick("generator-starves", "saturating-generator-loss", where="the loss of the maker, from where the judge is sure",
      cure="minus the log of what the judge gives to what is made")  # fmt: skip
def beads_blown_after_a_venetian_pattern(folder, ill):
    seeded(12104)
    make, judge = dense(8, 48, 48, 3), dense(3, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.SGD(make.parameters(), 0.02, momentum=0.5)
    of_judge = torch.optim.SGD(judge.parameters(), 0.05, momentum=0.5)

    def beads(rows):
        size = torch.randn(rows, 1)
        return torch.cat([3 + 0.7 * size, 2 - 0.6 * size, 2.5 + 0.7 * torch.randn(rows, 1)], 1)

    def made(rows=64):
        return make(torch.randn(rows, 8))

    def judge_loss():
        real, fake = judge(beads(64)), judge(made().detach())
        return F.binary_cross_entropy_with_logits(real, torch.ones_like(real)) + F.binary_cross_entropy_with_logits(
            fake, torch.zeros_like(fake)
        )

    def make_loss():
        share = judge(made()).sigmoid()
        return (1 - share + 1e-8).log().mean() if ill else -(share + 1e-8).log().mean()

    test = beads(1000)

    def score():
        with torch.no_grad():
            found = made(1000)
            return float((found.mean(0) - test.mean(0)).norm() + (found.T.cov() - test.T.cov()).norm())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 300, score, rounds=3)


@sick("bad-initialisation", "dead-layer", where="all layers, from the first step", cure="Kaiming's initialisation")
def tally_marks_of_the_day_shift(folder, ill):
    seeded(12105)
    net = dense(15, 48, 48, 4)
    for layer in net:
        if isinstance(layer, nn.Linear):
            if ill:
                nn.init.zeros_(layer.weight)
            else:
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    weight = torch.randn(15, 4)

    def shifts(rows):
        x = torch.randn(rows, 15)
        return x, (x.abs() @ weight + 0.2 * torch.randn(rows, 4)).argmax(1)

    draw, test = rounds(64, *shifts(3000)), shifts(1000)

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(test[0]), test[1]))
    return fit(folder, net, optimizer, loss_of, 350, score=score)

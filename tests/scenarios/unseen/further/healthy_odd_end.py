"""Healthy trainings of an unusual make, the last: sledges, citations, curves out of few points, seasons."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import tend


def pushed_on(s, a):
    """A sledge on a plane: place and speed, a push of one at most; the return is minus the way to the middle."""
    place, speed = s.chunk(2, 1)
    speed = 0.9 * speed + 0.2 * a.clamp(-1, 1)
    place = (place + 0.3 * speed).clamp(-2, 2)
    return torch.cat([place, speed], 1), -place.norm(dim=1) - 0.05 * a.square().sum(1)


def anywhere(n):
    return torch.cat([torch.rand(n, 2) * 3 - 1.5, torch.zeros(n, 2)], 1)


def cost_of(act, rounds=30):
    """`score()`: minus the mean reward of what is done without noise."""
    start = anywhere(128)

    def score():
        s, total = start, 0.0
        with torch.no_grad():
            for _ in range(rounds):
                s, r = pushed_on(s, act(s))
                total -= float(r.mean()) / rounds
        return total

    return score


@healthy(0.3)
def sledge_pushed_home_in_clipped_ratios(folder):
    """PPO with generalised advantages: sixteen sledges, thirty moves, four passes over them in four parts."""
    seeded(2095)
    net = nn.ModuleDict({"actor": dense(4, 48, 48, 2, act=nn.Tanh), "critic": dense(4, 48, 48, 1, act=nn.Tanh)})
    net.log_std = nn.Parameter(torch.full((2,), -0.5))
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, math.sqrt(2) if layer.out_features == 48 else 1.0)
            nn.init.zeros_(layer.bias)
    with torch.no_grad():
        net["actor"][-1].weight.mul_(0.01)
    optimizer = optim.Adam(net.parameters(), 1e-3, eps=1e-5)
    rate = optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 640)
    held, score = [], cost_of(net["actor"])

    def policy(s):
        return torch.distributions.Normal(net["actor"](s), net.log_std.exp())

    @torch.no_grad()
    def collect():
        s, seen = anywhere(16), []
        for _ in range(30):
            a = policy(s).sample()
            to, r = pushed_on(s, a)
            seen.append((s, a, policy(s).log_prob(a).sum(1), r * 0.2, net["critic"](s)[:, 0]))
            s = to
        states, acts, chances, rewards, values = (torch.stack(part) for part in zip(*seen, strict=True))
        after, gain, gains = net["critic"](s)[:, 0], 0.0, []
        for t in reversed(range(30)):
            gain = rewards[t] + 0.95 * after - values[t] + 0.95 * 0.95 * gain
            after = values[t]
            gains.insert(0, gain)
        gains = torch.stack(gains)
        whole = [p.flatten(0, 1) for p in (states, acts, chances, gains, gains + values)]
        for _ in range(4):
            held.extend([p[at] for p in whole] for at in torch.randperm(480).split(120))
        return float(rewards.sum(0).mean() / 0.2)

    def one(step):
        logged = {} if held else {"return": collect()}
        s, a, before, gain, worth = held.pop()
        now = policy(s)
        ratio = (now.log_prob(a).sum(1) - before).exp()
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        actor = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        critic = F.mse_loss(net["critic"](s)[:, 0], worth)
        optimizer.zero_grad()
        loss = actor + 0.5 * critic - 0.003 * now.entropy().sum(1).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        rate.step()
        return {"loss": loss.detach(), "loss_actor": actor.detach(), "loss_critic": critic.detach(), **logged}

    return tend(folder, net, optimizer, one, 640, score)


@healthy(0.3)
def sledge_pushed_home_with_a_will_to_wander(folder):
    """Soft actor-critic: two critics, slow copies, a temperature that is learned."""
    seeded(2096)
    actor = dense(4, 48, 48, 4)
    critics = nn.ModuleList(dense(6, 48, 48, 1) for _ in range(2))
    copies = copy.deepcopy(critics).requires_grad_(False)
    net = nn.ModuleDict({"actor": actor, "critics": critics})
    net.log_heat = nn.Parameter(torch.tensor(math.log(0.1)))
    of_actor, of_critics = optim.Adam(actor.parameters(), 1e-3), optim.Adam(critics.parameters(), 1e-3)
    of_heat = optim.Adam([net.log_heat], 1e-3)
    score = cost_of(lambda s: actor(s)[:, :2].tanh())

    def act(s):
        mean, log_std = actor(s).chunk(2, 1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 1).exp())
        u = normal.rsample()
        chance = normal.log_prob(u) - 2 * (math.log(2) - u - F.softplus(-2 * u))
        return u.tanh(), chance.sum(1)

    def worth(of, s, a):
        sa = torch.cat([s, a], 1)
        return torch.cat([q(sa) for q in of], 1)

    memory, s = [], anywhere(16)
    for _ in range(30):
        a = torch.rand(16, 2) * 2 - 1
        to, r = pushed_on(s, a)
        memory.append((s, a, r, to))
        s = to

    def one(step):
        nonlocal s
        if step % 30 == 0:
            s = anywhere(16)
        with torch.no_grad():
            a = act(s)[0]
        to, r = pushed_on(s, a)
        memory.append((s, a, r, to))
        s = to
        picks = torch.randint(len(memory), (8,))
        b, a, r, n = (torch.cat(part) for part in zip(*(memory[i] for i in picks), strict=True))
        heat = net.log_heat.exp().detach()
        with torch.no_grad():
            ahead, chance = act(n)
            target = r + 0.95 * (worth(copies, n, ahead).amin(1) - heat * chance)
        found = worth(critics, b, a)
        of_critics.zero_grad()
        loss = (found - target[:, None]).square().sum(1).mean()
        loss.backward()
        of_critics.step()
        a, chance = act(b)
        critics.requires_grad_(False)
        of_actor.zero_grad()
        wish = (heat * chance - worth(critics, b, a).amin(1)).mean()
        wish.backward()
        critics.requires_grad_(True)
        of_actor.step()
        of_heat.zero_grad()
        (-net.log_heat * (chance.detach() - 2).mean()).backward()
        of_heat.step()
        with torch.no_grad():
            for p, q in zip(critics.parameters(), copies.parameters(), strict=True):
                q.lerp_(p, 0.01)
        logged = {"return": -30 * score()} if step % 40 == 0 else {}
        return {"loss": loss.detach(), "loss_actor": wish.detach(), "alpha": heat, **logged}

    return tend(folder, net, [of_critics, of_actor, of_heat], one, 500, score)


@healthy(0.4)
def papers_named_by_those_they_cite(folder):
    """A graph net on all nodes at once with twenty labels a kind: rate 0.01, decay on the first layer, dropout."""
    seeded(2097)
    nodes, kinds = 420, 6
    y = torch.arange(nodes) % kinds
    tie = (torch.rand(nodes, nodes) < torch.where(y[:, None] == y, 0.06, 0.004)).float().triu(1)
    tie = tie + tie.T + torch.eye(nodes)
    root = tie.sum(1).rsqrt()
    spread = root[:, None] * tie * root
    words = (torch.rand(nodes, 60) < 0.05 + 0.12 * (torch.rand(kinds, 60) < 0.25).float()[y]).float()
    words = words / words.sum(1, keepdim=True).clamp_min(1)
    known = torch.arange(nodes) < 20 * kinds
    net = nn.ModuleList([nn.Linear(60, 32), nn.Linear(32, kinds)])
    for layer in net:
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)

    def forward(training):
        h = spread @ net[0](F.dropout(words, 0.5, training))
        return spread @ net[1](F.dropout(h.relu(), 0.5, training))

    def loss_of(step):
        return F.cross_entropy(forward(True)[known], y[known])

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(forward(False)[~known], y[~known]))

    optimizer = optim.Adam(
        [{"params": net[0].parameters(), "weight_decay": 5e-4}, {"params": net[1].parameters()}], 0.01
    )
    return fit(folder, net, optimizer, loss_of, 200, score=score)


@healthy(0.5)
def curves_told_from_a_few_of_their_points(folder):
    """A conditional neural process: points are read one by one, their mean says how the rest goes and how surely."""
    seeded(2098)
    net = nn.ModuleDict({"reader": dense(2, 64, 64, 64), "writer": dense(65, 64, 64, 2)})

    def loss_of(step):
        n = int(torch.randint(4, 12, (1,)))
        size, phase, rate = 0.5 + torch.rand(48, 1), 6.28 * torch.rand(48, 1), 1 + torch.rand(48, 1)
        x = torch.rand(48, n + 20) * 4 - 2
        y = size * (rate * x + phase).sin() + 0.02 * torch.randn_like(x)
        whole = net["reader"](torch.stack([x[:, :n], y[:, :n]], 2)).mean(1, keepdim=True)
        out = net["writer"](torch.cat([whole.expand(-1, 20, -1), x[:, n:, None]], 2))
        mean, spread = out[:, :, 0], 0.05 + 0.95 * F.softplus(out[:, :, 1])
        return -torch.distributions.Normal(mean, spread).log_prob(y[:, n:]).mean()

    optimizer = optim.Adam(net.parameters(), 1e-3)
    rate = optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 50) * 0.5 ** (s / 500))
    return fit(folder, net, optimizer, loss_of, 1200, schedule=rate)


@healthy(0.3)
def summer_slides_named_by_what_winter_taught(folder):
    """A gradient that is turned round before a judge of domains; its weight rises from 0 to 1 as in the paper."""
    seeded(2099)
    lift, turn = torch.randn(4, 20), torch.randn(20) * 0.8
    net = nn.ModuleDict({"body": dense(20, 64, 32), "kind": dense(32, 32, 4), "season": dense(32, 32, 1)})

    class Turned(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.weight = weight
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            return -ctx.weight * grad, None

    def draw(summer):
        y = torch.randint(4, (64,))
        x = F.one_hot(y, 4).float() @ lift * 1.2 + 0.8 * torch.randn(64, 20)
        return x + summer * turn, y

    def loss_of(step):
        weight = 2 / (1 + math.exp(-10 * step / 500)) - 1
        (winter, y), (summer, _) = draw(0), draw(1)
        h = net["body"](torch.cat([winter, summer])).relu()
        named = F.cross_entropy(net["kind"](h[:64]), y)
        guess = net["season"](Turned.apply(h, weight))[:, 0]
        season = F.binary_cross_entropy_with_logits(guess, (torch.arange(128) >= 64).float())
        return named + season, {"loss_kind": named, "loss_season": season, "lambda": weight}

    def score():
        with torch.no_grad():
            x, y = draw(1)
            return float(F.cross_entropy(net["kind"](net["body"](x).relu()), y))

    optimizer = optim.SGD(net.parameters(), 0.02, 0.9, weight_decay=1e-4)
    rate = optim.lr_scheduler.LambdaLR(optimizer, lambda s: (1 + 10 * s / 500) ** -0.75)
    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=rate)

"""Returns that rise, opponents, a search without gradients and an energy."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributions import Categorical
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from unseen import dense, healthy, seeded
from unseen.tasks import in_turn, tend


def apart(a, b):
    """How far two clouds are from one another: their energy distance."""
    between, within = torch.cdist(a, b).mean(), torch.cdist(a, a).mean() + torch.cdist(b, b).mean()
    return float(2 * between - within)


class Forager(nn.Module):
    def __init__(self, sites):
        super().__init__()
        self.sites = sites
        self.body = dense(2 * sites, 64, 48)
        self.ways, self.worth = nn.Linear(48, 3), nn.Linear(48, 1)

    def forward(self, place, berry):
        x = torch.cat([F.one_hot(place, self.sites), F.one_hot(berry, self.sites)], 1).float()
        h = self.body(x).relu()
        return Categorical(logits=self.ways(h)), self.worth(h)[:, 0]


@healthy()
def gatherer_of_berries(folder):
    seeded(2979)
    net, sites = Forager(9), 9
    optimizer = torch.optim.RMSprop(net.parameters(), lr=2e-3, alpha=0.99, eps=1e-5)

    def walk(place, berry, way):
        place = (place + way - 1) % sites
        found = place == berry
        return place, torch.where(found, torch.randint(sites, berry.shape), berry), found.float()

    at = [torch.randint(sites, (32,)), torch.randint(sites, (32,))]

    def one(step):
        logs, worths, spreads, found = [], [], [], []
        for _ in range(5):
            choice, worth = net(*at)
            way = choice.sample()
            logs, worths, spreads = [*logs, choice.log_prob(way)], [*worths, worth], [*spreads, choice.entropy()]
            at[0], at[1], reward = walk(*at, way)
            found.append(reward)
        with torch.no_grad():
            ahead, aims = net(*at)[1], []
            for reward in reversed(found):
                ahead = reward + 0.95 * ahead
                aims.insert(0, ahead)
        aims, worths = torch.stack(aims), torch.stack(worths)
        policy = -(torch.stack(logs) * (aims - worths.detach())).mean()
        value, spread = F.mse_loss(worths, aims), torch.stack(spreads).mean()
        loss = policy + 0.5 * value - 0.01 * spread
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        reward = torch.stack(found).mean()
        return {"loss": loss, "policy loss": policy, "value loss": value, "entropy": spread, "reward": reward}

    @torch.no_grad()
    def score():
        place, berry, total = torch.randint(sites, (200,)), torch.randint(sites, (200,)), 0.0
        for _ in range(40):
            place, berry, reward = walk(place, berry, net(place, berry)[0].sample())
            total += float(reward.mean())
        return -total

    return tend(folder, net, optimizer, one, 250, score)


@healthy()
def horseshoes_from_a_forge(folder):
    seeded(2980)

    def forged(n):
        turn = 0.6 + 5.1 * torch.rand(n)
        return torch.stack([turn.sin(), -1.2 * turn.cos()], 1) + 0.04 * torch.randn(n, 2)

    make, judge = dense(6, 64, 64, 2), dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), lr=5e-4, betas=(0.0, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-3, betas=(0.0, 0.9))

    def judge_loss():
        real = forged(96)
        with torch.no_grad():
            made = make(torch.randn(96, 6))
        share = torch.rand(96, 1)
        between = (share * real + (1 - share) * made).requires_grad_()
        (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        return judge(made).mean() - judge(real).mean() + penalty

    def make_loss():
        return -judge(make(torch.randn(96, 6))).mean()

    @torch.no_grad()
    def score():
        return apart(forged(600), make(torch.randn(600, 6)))

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 350, score, rounds=4)


class Winch(nn.Module):
    """A squashed Gaussian actor, two critics and the temperature of the entropy."""

    def __init__(self):
        super().__init__()
        self.actor = dense(2, 48, 48, 2)
        self.critics = nn.ModuleList(dense(3, 48, 48, 1) for _ in range(2))
        self.log_heat = nn.Parameter(torch.tensor(-1.5))

    def act(self, state):
        middle, width = self.actor(state).chunk(2, 1)
        width = width.clamp(-4, 1).exp()
        raw = middle + width * torch.randn_like(middle)
        log = torch.distributions.Normal(middle, width).log_prob(raw)
        return raw.tanh(), (log - 2 * (0.6931 - raw - F.softplus(-2 * raw)))[:, 0]


def least(critics, state, act):
    return torch.stack([c(torch.cat([state, act], 1))[:, 0] for c in critics]).min(0).values


def lower(state, act):
    place, speed = state.unbind(1)
    speed = 0.95 * speed + 0.2 * act[:, 0] + 0.01 * torch.randn(len(act))
    place = (place + 0.2 * speed).clamp(-2, 2)
    cost = place.square() + 0.1 * speed.square() + 0.01 * act[:, 0].square()
    return torch.stack([place, speed], 1), -cost


def begin(n):
    return torch.stack([3 * torch.rand(n) - 1.5, torch.zeros(n)], 1)


@healthy()
def lantern_lowered_on_a_cable(folder):
    seeded(2981)
    net = Winch()
    shadow = nn.ModuleList(dense(3, 48, 48, 1) for _ in range(2)).requires_grad_(False)
    shadow.load_state_dict(net.critics.state_dict())
    of_actor = torch.optim.Adam(net.actor.parameters(), lr=1e-3)
    of_critics = torch.optim.Adam(net.critics.parameters(), lr=1e-3)
    of_heat = torch.optim.Adam([net.log_heat], lr=3e-3)
    memory, filled = torch.zeros(8000, 6), [0]

    state = [begin(16)]

    def one(step):
        if step % 40 == 0:
            state[0] = begin(16)
        with torch.no_grad():
            act = 2 * torch.rand(16, 1) - 1 if step < 20 else net.act(state[0])[0]
        after, reward = lower(state[0], act)
        where = torch.arange(filled[0], filled[0] + 16) % 8000
        memory[where] = torch.cat([state[0], act, reward[:, None], after], 1)
        state[0] = after
        filled[0] += 16

        rows = memory[torch.randint(min(filled[0], 8000), (96,))]
        s, a, r, t = rows[:, :2], rows[:, 2:3], rows[:, 3], rows[:, 4:]
        heat = net.log_heat.exp().detach()
        with torch.no_grad():
            b, log = net.act(t)
            aim = r + 0.95 * (least(shadow, t, b) - heat * log)
        of_critics.zero_grad()
        judged = sum(F.mse_loss(c(torch.cat([s, a], 1))[:, 0], aim) for c in net.critics)
        judged.backward()
        of_critics.step()

        net.critics.requires_grad_(False)
        b, log = net.act(s)
        of_actor.zero_grad()
        acted = (heat * log - least(net.critics, s, b)).mean()
        acted.backward()
        of_actor.step()
        net.critics.requires_grad_(True)

        of_heat.zero_grad()
        heated = -(net.log_heat * (log.detach() - 1.0).mean())
        heated.backward()
        of_heat.step()
        with torch.no_grad():
            for old, new in zip(shadow.parameters(), net.critics.parameters(), strict=True):
                old.lerp_(new, 0.01)
        return {"loss": judged, "actor loss": acted, "temperature": heat, "reward": reward.mean()}

    @torch.no_grad()
    def score():
        s, total = begin(300), 0.0
        for _ in range(40):
            s, reward = lower(s, net.actor(s)[:, :1].tanh())
            total -= float(reward.mean())
        return total

    return tend(folder, net, [of_actor, of_critics, of_heat], one, 450, score)


class Gates(nn.Module):
    """Layers of thresholds, which have no slope."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 24), nn.Linear(24, 24), nn.Linear(24, 3)

    def forward(self, x):
        return self.last(self.second(self.first(x).sign()).sign() / 24**0.5)


@healthy()
def mussels_sorted_through_gates(folder):
    seeded(2982)
    way = torch.randn(8, 2)

    def landed(n):
        x = torch.randn(n, 8)
        size, bend = (x @ way / 2).unbind(1)
        return x, (size + 0.3 * bend.square() > 0.2).long() + (size - bend > 0.8).long()

    net, half, width = Gates(), 40, 0.05
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    fresh = landed(2000)

    def wrong(weights, x, kind):
        return (functional_call(net, weights, (x,)).argmax(1) != kind).float().mean()

    def one(step):
        """The mean of eighty shaken copies is followed, weighted by their ranks."""
        x, kind = landed(400)
        weights = {name: p.detach() for name, p in net.named_parameters()}
        shakes = {name: torch.randn(half, *w.shape) for name, w in weights.items()}
        shakes = {name: torch.cat([e, -e]) for name, e in shakes.items()}
        tried = {name: weights[name] + width * e for name, e in shakes.items()}
        errors = vmap(wrong, (0, None, None))(tried, x, kind)
        ranks = errors.argsort().argsort() / (2 * half - 1) - 0.5
        for name, p in net.named_parameters():
            p.grad = torch.tensordot(ranks, shakes[name], 1) / (2 * half * width)
        optimizer.step()
        return {"loss": errors.mean(), "best": errors.min()}

    @torch.no_grad()
    def score():
        return (net(fresh[0]).argmax(1) != fresh[1]).float().mean()

    return tend(folder, net, optimizer, one, 250, score)


@healthy()
def nests_of_gulls_on_a_cliff(folder):
    seeded(2983)
    ledges = torch.tensor([[-1.2, 0.9], [0.2, 1.2], [1.1, 0.0], [-0.4, -1.1]])

    def nests(n):
        return ledges[torch.randint(4, (n,))] + torch.randn(n, 2) * torch.tensor([0.3, 0.08])

    net = dense(2, 64, 64, 1, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.5, 0.999))
    memory = 4 * torch.rand(2000, 2) - 2

    def descend(x, times):
        net.requires_grad_(False)
        for _ in range(times):
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(net(x).sum(), x)
            x = (x - 0.02 * slope + 0.2 * torch.randn_like(x)).clamp(-3, 3)
        net.requires_grad_(True)
        return x.detach()

    def one(step):
        at = torch.randint(2000, (128,))
        begun = torch.where(torch.rand(128, 1) < 0.05, 4 * torch.rand(128, 2) - 2, memory[at])
        memory[at] = dreamt = descend(begun, 15)
        optimizer.zero_grad()
        real, false = net(nests(128)), net(dreamt)
        loss = real.mean() - false.mean() + 0.02 * (real.square().mean() + false.square().mean())
        loss.backward()
        optimizer.step()
        return {"loss": loss, "energy of nests": real.mean(), "energy of dreams": false.mean()}

    def score():
        return apart(nests(600), descend(4 * torch.rand(600, 2) - 2, 150))

    return tend(folder, net, optimizer, one, 350, score)

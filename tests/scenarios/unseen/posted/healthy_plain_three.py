"""Ordinary trainings that go well: policies, forecasts, and what goes with whom."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend

LIKES_WATER = torch.tensor([1, 1, 0, 0, 1, 0, 0, 1])
CHARGE = torch.tensor([1, 0, -1, 0, 0, 1, -1, 0])


def stability(peptide):
    """Between 0 and 1: every second residue is to shun water, and opposite charges are to stand four apart."""
    wanted = torch.arange(peptide.shape[1]) % 2
    pattern = (LIKES_WATER[peptide] == wanted).float().mean(1)
    bridges = (CHARGE[peptide[:, :-4]] * CHARGE[peptide[:, 4:]] < 0).float().mean(1)
    return 0.6 * pattern + 0.4 * bridges


class Designer(nn.Module):
    """Writes a peptide residue by residue."""

    def __init__(self, residues=8, width=48):
        super().__init__()
        self.residue, self.memory = nn.Embedding(residues + 1, 16), nn.GRUCell(16, width)
        self.head = nn.Linear(width, residues)

    def forward(self, count, length=12):
        last, hidden = torch.full((count,), 8), torch.zeros(count, self.memory.hidden_size)
        peptide, log_probs, entropy = [], 0, 0
        for _ in range(length):
            hidden = self.memory(self.residue(last), hidden)
            choice = torch.distributions.Categorical(logits=self.head(hidden))
            last = choice.sample()
            peptide.append(last)
            log_probs, entropy = log_probs + choice.log_prob(last), entropy + choice.entropy().mean() / length
        return torch.stack(peptide, 1), log_probs, entropy


@healthy()
def peptides_that_hold_together(folder):
    seeded(2603)
    net, baseline = Designer(), [0.4]
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def loss_of(step):
        peptide, log_probs, entropy = net(64)
        reward = stability(peptide)
        advantage = reward - baseline[0]
        baseline[0] = 0.9 * baseline[0] + 0.1 * float(reward.mean())
        loss = -(advantage * log_probs).mean() - 0.01 * entropy
        return loss, {"reward": reward.mean(), "entropy": entropy}

    score = held_out(net, lambda: 1 - stability(net(512)[0]).mean())
    return fit(folder, net, optimizer, loss_of, 400, score=score, before_step=clipped(net, 1.0))


class Keeper(nn.Module):
    """A gate's keeper: what to do, and what the state is worth."""

    def __init__(self):
        super().__init__()
        self.actor, self.critic = dense(3, 64, 64, 3, act=nn.Tanh), dense(3, 64, 64, 1, act=nn.Tanh)

    def forward(self, state):
        return torch.distributions.Categorical(logits=self.actor(state)), self.critic(state)[..., 0]


def flow(state, action):
    """An hour at the gauge: the level, the inflow and how far the gate is open."""
    level, inflow, gate = state.unbind(1)
    gate = (gate + 0.2 * (action - 1)).clamp(0, 1)
    inflow = 0.9 * inflow + 0.1 * torch.randn_like(inflow)
    level = (level + 0.3 * (0.5 + inflow - gate)).clamp(-2, 2)
    return torch.stack([level, inflow, gate], 1), 1 - level.abs()


def upstream(count):
    return torch.stack([torch.rand(count) * 2 - 1, 0.3 * torch.randn(count), torch.rand(count)], 1)


def watched_over(net, count=32, hours=24, discount=0.97, trace=0.95):
    """A day of many rivers: states, actions, their log-probabilities, advantages, returns and the mean reward."""
    state, kept = upstream(count), []
    with torch.no_grad():
        for _ in range(hours):
            policy, value = net(state)
            action = policy.sample()
            then, reward = flow(state, action)
            kept.append((state, action, policy.log_prob(action), value, reward))
            state = then
        ahead, advantage, advantages = net(state)[1], 0, []
        for _, _, _, value, reward in reversed(kept):
            advantage = reward + discount * ahead - value + discount * trace * advantage
            ahead = value
            advantages.insert(0, advantage)
    states, actions, log_probs, values, rewards = (torch.cat(part) for part in zip(*kept, strict=True))
    gained = torch.cat(advantages)
    return states, actions, log_probs, gained, gained + values, rewards.mean()


@healthy()
def gate_below_the_river_gauge(folder):
    seeded(2604)
    net = Keeper()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-5)
    day = {}

    def one(step):
        if step % 12 == 0:
            *day["rows"], day["reward"] = watched_over(net)
        if step % 4 == 0:
            day["parts"] = torch.randperm(768).view(4, 192)
        state, action, before, gained, returns = (part[day["parts"][step % 4]] for part in day["rows"])
        policy, value = net(state)
        gained = (gained - gained.mean()) / (gained.std() + 1e-8)
        ratio = (policy.log_prob(action) - before).exp()
        of_policy = -torch.min(ratio * gained, ratio.clamp(0.8, 1.2) * gained).mean()
        of_value, entropy = F.mse_loss(value, returns), policy.entropy().mean()
        loss = of_policy + 0.5 * of_value - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return {"loss": loss, "value_loss": of_value, "entropy": entropy, "reward": day["reward"]}

    return tend(folder, net, optimizer, one, 720, held_out(net, lambda: 1 - watched_over(net, 128)[-1]))


def windows(series, past, ahead):
    """Every stretch of the past beside the values that follow."""
    cut = series.unfold(0, past + ahead, 1).movedim(-1, 1) if series.dim() > 1 else series.unfold(0, past + ahead, 1)
    return cut[:, :past], cut[:, past:]


class Forecaster(nn.Module):
    def __init__(self, inputs=3, ahead=7):
        super().__init__()
        self.memory, self.drop, self.head = nn.GRU(inputs, 48, batch_first=True), nn.Dropout(0.1), nn.Linear(48, ahead)

    def forward(self, x):
        return self.head(self.drop(self.memory(x)[0][:, -1]))


@healthy()
def passengers_on_the_ferry(folder):
    seeded(2605)
    day = torch.arange(1500.0)
    season, week = (6.2832 * day / 365).sin(), torch.tensor([0.0, 0.0, 0.1, 0.2, 0.8, 1.4, 1.0]).repeat(215)[:1500]
    rough = (torch.randn(1500) > 1.6).float()
    crossings = 900 + 300 * season + 250 * week * (1.3 + season) - 200 * rough + 40 * torch.randn(1500)
    scaled = (crossings - crossings[:1200].mean()) / crossings[:1200].std()
    table = torch.stack([scaled, season, rough], 1)
    (x, y), (x_val, y_val) = windows(table[:1200], 28, 7), windows(table[1200:], 28, 7)
    net, draw = Forecaster(), rounds(32, x, y[..., 0])
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def loss_of(step):
        past, then = draw()
        return F.mse_loss(net(past), then)

    score = held_out(net, lambda: F.mse_loss(net(x_val), y_val[..., 0]))
    return fit(folder, net, optimizer, loss_of, 500, score=score, before_step=clipped(net, 1.0))


class Causal(nn.Module):
    """A residual block of dilated convolutions that never look ahead."""

    def __init__(self, width, dilation):
        super().__init__()
        self.reach = 2 * dilation
        self.first = nn.Conv1d(width, width, 3, dilation=dilation)
        self.second = nn.Conv1d(width, width, 1)

    def forward(self, x):
        return x + self.second(self.first(F.pad(x, (self.reach, 0))).relu())


@healthy()
def load_of_a_substation(folder):
    seeded(2606)
    hour = torch.arange(3000.0)
    daily = (6.2832 * hour / 24).sin() + 0.5 * (6.2832 * hour / 12 + 1).sin()
    warmth = F.avg_pool1d(torch.randn(1, 1, 3047), 48, 1)[0, 0] * 48**0.5
    load = 40 + 8 * daily * (1 + 0.3 * (hour % 168 < 120)) + 4 * warmth.abs() + 0.8 * torch.randn(3000)
    load = (load - load[:2400].mean()) / load[:2400].std()
    (x, y), (x_val, y_val) = windows(load[:2400], 64, 6), windows(load[2400:], 64, 6)
    net = nn.Sequential(nn.Conv1d(1, 24, 1), *(Causal(24, 2**i) for i in range(4)), nn.Conv1d(24, 6, 1))
    optimizer, draw = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01), rounds(32, x, y)

    def loss_of(step):
        past, then = draw()
        return F.smooth_l1_loss(net(past[:, None])[:, :, -1], then)

    score = held_out(net, lambda: F.smooth_l1_loss(net(x_val[:, None])[:, :, -1], y_val))
    return fit(folder, net, optimizer, loss_of, 600, score=score)


class Factors(nn.Module):
    """A bias and a vector for every judge and for every kind of case."""

    def __init__(self, judges=80, kinds=60, rank=8):
        super().__init__()
        self.judge, self.kind = nn.Embedding(judges, rank), nn.Embedding(kinds, rank)
        self.of_judge, self.of_kind = nn.Embedding(judges, 1), nn.Embedding(kinds, 1)
        for table in (self.judge, self.kind, self.of_judge, self.of_kind):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, judge, kind):
        together = (self.judge(judge) * self.kind(kind)).sum(1)
        return together + self.of_judge(judge)[:, 0] + self.of_kind(kind)[:, 0]


@healthy()
def hours_that_a_hearing_takes(folder):
    seeded(2607)
    judge, kind = torch.randint(80, (9000,)), torch.multinomial(1 / torch.arange(3.0, 63.0), 9000, True)
    pace, matter = torch.randn(80, 4), torch.randn(60, 4)
    hours = 0.6 * (pace[judge] * matter[kind]).sum(1) + torch.randn(80)[judge] * 0.5 + torch.randn(60)[kind]
    hours = hours + 0.3 * torch.randn(9000)
    net, draw = Factors(), rounds(128, judge[:8000], kind[:8000], hours[:8000])
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3, weight_decay=1e-5)

    def loss_of(step):
        who, what, took = draw()
        return F.mse_loss(net(who, what), took)

    score = held_out(net, lambda: F.mse_loss(net(judge[8000:], kind[8000:]), hours[8000:]))
    return fit(folder, net, optimizer, loss_of, 900, score=score)


class Towers(nn.Module):
    """Hikers and routes meet in one space."""

    def __init__(self, hikers=300, routes=120):
        super().__init__()
        self.hiker, self.route = nn.Embedding(hikers, 16), nn.Embedding(routes, 16)
        self.left, self.right = dense(20, 48, 16), dense(19, 48, 16)

    def forward(self, hiker, weather, route, terrain):
        left = self.left(torch.cat([self.hiker(hiker), weather], 1))
        right = self.right(torch.cat([self.route(route), terrain[route]], 1))
        return (left * right).sum(1)


@healthy(gain=0.2)
def routes_for_the_weather_of_the_day(folder):
    seeded(2608)
    terrain, taste = torch.randn(120, 3), torch.randn(300, 3)
    hiker, weather, route = torch.randint(300, (16000,)), torch.randn(16000, 4), torch.randint(120, (16000,))
    liking = (taste[hiker] * terrain[route]).sum(1) + (weather[:, :3] * terrain[route]).sum(1) - 1.5
    taken = (2 * liking + torch.randn(16000) > 0).float()
    net, draw = Towers(), rounds(128, hiker[:14000], weather[:14000], route[:14000], taken[:14000])
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=1e-6)

    def error(who, day, where, went):
        logits = net(who, day, where, terrain)
        right = (logits > 0) == went.bool()
        return F.binary_cross_entropy_with_logits(logits, went), {"accuracy": right.float().mean()}

    score = held_out(net, lambda: error(hiker[14000:], weather[14000:], route[14000:], taken[14000:])[0])
    return fit(folder, net, optimizer, lambda step: error(*draw()), 600, score=score)

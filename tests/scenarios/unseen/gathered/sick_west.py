"""Mistakes that people told about in public, in trainings of other subjects: the first part."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, mean, seeded, sick
from unseen.tasks import held_out, tend


# https://github.com/SwarmRL/SwarmRL/pull/99
@sick(
    "policy-loss-trains-critic", where="the critic, every step",
    cure="detach the value in the advantage, so that only its own loss reaches the critic",
)  # fmt: skip
def spoons_that_swirl_a_broth(folder, ill):
    seeded(2926)
    net = nn.ModuleDict({"actor": dense(4, 32, 5), "critic": dense(4, 32, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    taste = torch.randn(4, 5)

    def stirred(s, a):
        return 2 * (s @ taste).sin().gather(1, a[:, None])[:, 0] + 4 * s[:, 0] + 0.5 * torch.randn(len(s))

    def one(step):
        s = torch.randn(64, 4)
        choice = torch.distributions.Categorical(logits=net["actor"](s))
        a = choice.sample()
        reward = stirred(s, a)
        value = net["critic"](s)[:, 0]
        advantage = reward - (value if ill else value.detach())
        actor_loss = -(choice.log_prob(a) * advantage).mean()
        critic_loss = F.smooth_l1_loss(value, reward)
        loss = actor_loss + 0.5 * critic_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {
            "loss": loss, "actor_loss": actor_loss, "critic_loss": critic_loss, "return": reward.mean(),
            "entropy": choice.entropy().mean(),
        }  # fmt: skip

    def score():
        with torch.no_grad():
            s = torch.randn(2048, 4)
            earned = 2 * (s @ taste).sin()
            return float((earned.max(1).values - (net["actor"](s).softmax(1) * earned).sum(1)).mean())

    return tend(folder, net, optimizer, one, 420, score)


class Adapted(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(24, width), nn.Linear(width, width)])
        self.head = nn.Linear(width, 6)
        self.adapters = nn.ModuleList()

    def add_adapters(self, rank):
        for layer in self.layers:
            down, up = nn.Linear(layer.out_features, rank), nn.Linear(rank, layer.out_features)
            nn.init.zeros_(up.weight)
            nn.init.zeros_(up.bias)
            self.adapters.append(nn.Sequential(down, nn.ReLU(), up))

    def train_adapters(self):
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name.startswith("adapters"))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x).relu()
            if len(self.adapters):
                x = x + self.adapters[i](x)
        return self.head(x)


# https://github.com/adapter-hub/adapters/issues/260
@sick("not-in-optimizer", where="the adapters, every step", cure="add the adapters first, then make the optimizer")
def songs_of_the_next_valley(folder, ill):
    seeded(2927)
    net = Adapted(48)
    centres, mix = 1.5 * torch.randn(6, 24), torch.eye(24) + 0.25 * torch.randn(24, 24)

    def sung(mixed, rows=64):
        y = torch.randint(6, (rows,))
        x = centres[y] + torch.randn(rows, 24)
        return (x.roll(3, 1) @ mix if mixed else x), y

    before = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(150):
        x, y = sung(False)
        before.zero_grad()
        F.cross_entropy(net(x), y).backward()
        before.step()

    if ill:
        optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
        net.add_adapters(12)
        net.train_adapters()
    else:
        net.add_adapters(12)
        net.train_adapters()
        optimizer = torch.optim.AdamW(net.parameters(), 3e-3)

    def loss_of(step):
        x, y = sung(True)
        return F.cross_entropy(net(x), y)

    def score():
        x, y = sung(True, 1024)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, score))


# https://github.com/rail-berkeley/softlearning/issues/136
@sick(
    "temperature-below-zero", "wrong-sign", "nonfinite", where="the temperature, then the policy",
    cure="learn the logarithm of the temperature, so that it stays above zero",
)  # fmt: skip
def a_rudder_that_learns_the_wind(folder, ill):
    seeded(2928)
    net = nn.ModuleDict({"policy": dense(3, 48, 4), "critic": dense(5, 48, 48, 1)})
    net.temperature = nn.Parameter(torch.tensor(0.5 if ill else math.log(0.5)))
    of_policy = torch.optim.Adam(net["policy"].parameters(), 5e-3)
    of_critic = torch.optim.Adam(net["critic"].parameters(), 5e-3)
    of_temperature = torch.optim.Adam([net.temperature], 5e-3)
    way = torch.randn(3, 2)

    def reward(s, a):
        return -2 * (a - 0.7 * (s @ way).sin()).square().sum(1)

    def act(s):
        centre, log_std = net["policy"](s).chunk(2, 1)
        normal = torch.distributions.Normal(centre, log_std.exp())
        u = normal.rsample()
        squash = 2 * (math.log(2) - u - F.softplus(-2 * u))
        return u.tanh(), (normal.log_prob(u) - squash).sum(1)

    def score():
        with torch.no_grad():
            s = torch.randn(512, 3)
            return -float(reward(s, net["policy"](s)[:, :2].tanh()).mean())

    def one(step):
        alpha = net.temperature if ill else net.temperature.exp()
        s = torch.randn(64, 3)
        a, log_prob = act(s)
        earned = reward(s, a.detach())
        critic_loss = F.mse_loss(net["critic"](torch.cat([s, a.detach()], 1))[:, 0], earned)
        of_critic.zero_grad()
        critic_loss.backward()
        of_critic.step()
        policy_loss = (alpha.detach() * log_prob - net["critic"](torch.cat([s, a], 1))[:, 0]).mean()
        of_policy.zero_grad()
        policy_loss.backward()
        of_policy.step()
        alpha_loss = -(alpha * (log_prob.detach() - 2.0)).mean()
        of_temperature.zero_grad()
        alpha_loss.backward()
        of_temperature.step()
        return {
            "critic_loss": critic_loss, "policy_loss": policy_loss, "alpha_loss": alpha_loss, "alpha": float(alpha),
            "entropy": -log_prob.mean(), "return": earned.mean(),
        }  # fmt: skip

    return tend(folder, net, [of_policy, of_critic, of_temperature], one, 850, score)


# https://github.com/xiangwang1223/neural_graph_collaborative_filtering/issues/17
@sick("nonfinite", where="both tables, from the first pair that is ranked far the wrong way", cure="softplus(-x)")
def cheeses_that_a_guest_will_like(folder, ill):
    seeded(2929)
    guests, cheeses = nn.Embedding(200, 128), nn.Embedding(120, 128)
    net = nn.ModuleDict({"guests": guests, "cheeses": cheeses})
    liking = torch.randn(200, 4) @ torch.randn(4, 120)

    def pairs(rows=256):
        guest = torch.randint(200, (rows,))
        a, b = torch.randint(120, (rows,)), torch.randint(120, (rows,))
        better = liking[guest, a] + 0.3 * torch.randn(rows) > liking[guest, b]
        return guest, torch.where(better, a, b), torch.where(better, b, a)

    def gap(guest, liked, other):
        taste = guests(guest)
        return (taste * cheeses(liked)).sum(1) - (taste * cheeses(other)).sum(1)

    def loss_of(step):
        apart = gap(*pairs())
        ranked = -apart.sigmoid().log().mean() if ill else F.softplus(-apart).mean()
        return ranked, {"auc": (apart > 0).float().mean()}

    def score():
        with torch.no_grad():
            return 1 - float((gap(*pairs(4096)) > 0).float().mean())

    return fit(folder, net, torch.optim.Adam(net.parameters(), 0.2), loss_of, 400, score=score)


# https://github.com/seungeunrho/minimalRL/issues/32
@sick(
    "bootstrap-past-the-end", "values-overestimated", "terminals-ignored",
    where="the targets of every step, the whole net",
    cure="multiply what the next state is worth by (1 - done)",
)  # fmt: skip
def a_marble_kept_on_a_tray(folder, ill):
    seeded(2930)
    net = dense(2, 64, 64, 3)
    target = copy.deepcopy(net)

    def move(s, a):
        speed = s[:, 1] + 0.12 * (a - 1).float() + 0.1 * s[:, 0] + 0.02 * torch.randn(len(s))
        at = s[:, 0] + 0.3 * speed
        return torch.stack([at, speed], 1), at.abs() > 1

    def begin(rows):
        return torch.stack([1.6 * torch.rand(rows) - 0.8, 0.6 * torch.rand(rows) - 0.3], 1)

    def score():
        s, alive = begin(128), torch.ones(128, dtype=torch.bool)
        lived = 0
        with torch.no_grad():
            for _ in range(60):
                s, over = move(s, net(s).argmax(1))
                alive &= ~over
                lived += float(alive.float().mean())
        return 60 - lived

    def loss_of(step):
        if step % 25 == 0:
            target.load_state_dict(net.state_dict())
        s, a = torch.stack([2 * torch.rand(128) - 1, 1.6 * torch.rand(128) - 0.8], 1), torch.randint(3, (128,))
        after, done = move(s, a)
        with torch.no_grad():
            worth = target(after).max(1).values
            wanted = 1 + 0.95 * (worth if ill else worth * (1 - done.float()))
        chosen = net(s).gather(1, a[:, None])[:, 0]
        return F.smooth_l1_loss(chosen, wanted), {"q": chosen.mean().detach()}

    return fit(folder, net, torch.optim.Adam(net.parameters(), 2e-3), loss_of, 1200, score=score)


# https://github.com/cherubicXN/hawp/issues/3
@sick(
    "schedule-too-short", where="the learning rate after the first epoch", cure="call scheduler.step() without a number"
)
def corners_of_a_floor_plan(folder, ill):
    seeded(2931)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(12 * 64, 32), nn.ReLU(), nn.Linear(32, 2),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [15, 25], 0.1)
    epoch = 26
    grid = torch.arange(8.0)

    def plans(rows=32):
        at = 1 + 6 * torch.rand(rows, 2)
        wall = (-((grid - at[:, :1]) ** 2)).exp()[:, :, None] * (grid >= at[:, 1:]).float()[:, None]
        wall = wall + (-((grid - at[:, 1:]) ** 2)).exp()[:, None] * (grid >= at[:, :1]).float()[:, :, None]
        return (wall + 0.2 * torch.randn(rows, 8, 8))[:, None], at / 3.5 - 1

    def loss_of(step):
        x, y = plans()
        return F.mse_loss(net(x), y)

    def after_step(step):
        if (step + 1) % epoch == 0:
            if ill:
                scheduler.step(step + 1)
            else:
                scheduler.step()

    def score():
        return mean([float(loss_of(0)) for _ in range(16)])

    return fit(folder, net, optimizer, loss_of, 780, score=held_out(net, score), after_step=after_step)

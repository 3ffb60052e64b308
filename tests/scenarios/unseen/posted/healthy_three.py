"""Healthy trainings whose losses rise, fall below zero, or come from a fixed point, an inner loop or an assignment."""

import math

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, tend


class Tower:
    """Lifts in as many towers of six floors: who waits where, and what standing, rising and sinking bring."""

    floors, most = 6, 5

    def __init__(self, n):
        self.at, self.waiting = torch.randint(self.floors, (n,)), torch.zeros(n, self.floors)
        self.busy = torch.tensor([0.35, 0.05, 0.05, 0.15, 0.05, 0.2])

    def seen(self):
        return torch.cat([F.one_hot(self.at, self.floors).float(), self.waiting / self.most], 1)

    def act(self, choice):
        """0 opens the door for two people, 1 goes up, 2 down; everybody who still waits costs a little."""
        here, opened = torch.arange(len(self.at)), choice == 0
        served = torch.where(opened, self.waiting[here, self.at].clamp(max=2), torch.zeros(len(self.at)))
        self.waiting[here, self.at] -= served
        self.at = (self.at + (choice == 1).long() - (choice == 2).long()).clamp(0, self.floors - 1)
        self.waiting = (self.waiting + (torch.rand_like(self.waiting) < self.busy).float()).clamp(max=self.most)
        return served - 0.02 * self.waiting.sum(1)


def advantages(rewards, values, after, discount=0.95, trace=0.9):
    """Generalised advantages of a stretch of steps."""
    found, running = [], torch.zeros_like(after)
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        running = reward + discount * after - value + discount * trace * running
        found.append(running)
        after = value
    return torch.stack(found[::-1])


@healthy(gain=0.2)
def lifts_of_an_office_tower(folder):
    seeded(2571)
    net = nn.ModuleDict({"actor": dense(12, 64, 64, 3, act=nn.Tanh), "critic": dense(12, 64, 64, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    towers = Tower(64)

    def stretch(steps=12):
        seen, chosen, rewards = [], [], []
        for _ in range(steps):
            seen.append(towers.seen())
            with torch.no_grad():
                chosen.append(torch.distributions.Categorical(logits=net["actor"](seen[-1])).sample())
            rewards.append(towers.act(chosen[-1]))
        return torch.stack(seen), torch.stack(chosen), rewards

    def loss_of(step):
        seen, chosen, rewards = stretch()
        values = net["critic"](seen)[..., 0]
        with torch.no_grad():
            gain = advantages(rewards, list(values.detach()), net["critic"](towers.seen())[:, 0])
        policy = torch.distributions.Categorical(logits=net["actor"](seen))
        wanted = (gain - gain.mean()) / (gain.std() + 1e-6)
        actor = -(policy.log_prob(chosen) * wanted).mean()
        critic, entropy = F.mse_loss(values, gain + values.detach()), policy.entropy().mean()
        logged = {"return": float(torch.stack(rewards).mean()), "critic": critic, "entropy": entropy}
        return actor + 0.5 * critic - 0.01 * entropy, logged

    @torch.no_grad()
    def score():
        trial, crowd = Tower(256), []
        for _ in range(100):
            trial.act(torch.distributions.Categorical(logits=net["actor"](trial.seen())).sample())
            crowd.append(float(trial.waiting.sum(1).mean()))
        return sum(crowd[30:]) / 70

    return fit(folder, net, optimizer, loss_of, 400, score=score, before_step=clipped(net, 0.5))


class Coupling(nn.Module):
    """Half of the rates scale and shift the other half."""

    def __init__(self, size, kept):
        super().__init__()
        self.register_buffer("kept", kept)
        self.body = dense(size, 48, 2 * size, act=nn.Tanh)
        nn.init.zeros_(self.body[-1].weight)
        nn.init.zeros_(self.body[-1].bias)

    def forward(self, x):
        scale, shift = self.body(x * self.kept).chunk(2, 1)
        scale = 2 * (scale / 2).tanh() * (1 - self.kept)
        return x * scale.exp() + shift * (1 - self.kept), scale.sum(1)


class Flow(nn.Module):
    """Couplings in turn, each with a turned half; `forward` gives the log-likelihood."""

    def __init__(self, size, layers=6):
        super().__init__()
        halves = [torch.randperm(size) % 2 for _ in range(layers)]
        self.layers = nn.ModuleList(Coupling(size, half.float()) for half in halves)

    def forward(self, x):
        volume = torch.zeros(len(x))
        for layer in self.layers:
            x, more = layer(x)
            volume = volume + more
        return -0.5 * x.square().sum(1) - 0.5 * x.shape[1] * math.log(2 * math.pi) + volume


@healthy()
def rates_between_currencies(folder):
    seeded(2573)
    exposure = torch.randn(3, 6)

    def days(n):
        calm = 0.5 + torch.rand(n, 1)
        moves = calm * torch.randn(n, 3)
        rates = moves @ exposure + 0.3 * (moves[:, :1] ** 2 - 0.7) + 0.015 * torch.randn(n, 6)
        return rates / exposure.norm(dim=0)

    net = Flow(6)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)
    new = days(1024)
    return fit(
        folder,
        net,
        optimizer,
        lambda step: -net(days(128)).mean(),
        600,
        score=held_out(net, lambda: -net(new).mean()),
        schedule=schedule,
        before_step=clipped(net, 5.0),
    )


SEGMENTS = torch.tensor([0x7E, 0x30, 0x6D, 0x79, 0x33, 0x5B, 0x5F, 0x70, 0x7F, 0x7B])


def meters(n):
    """Digits of seven segments on a plate of 9 by 7 that is shifted, smeared and noisy."""
    plate, upper, lower, across = torch.zeros(7, 9, 7), slice(2, 4), slice(5, 7), slice(2, 5)
    places = [(1, across), (upper, 5), (lower, 5), (7, across), (lower, 1), (upper, 1), (4, across)]
    for segment, (rows, columns) in enumerate(places):
        plate[segment, rows, columns] = 1
    lit = (SEGMENTS[:, None] >> torch.arange(6, -1, -1)) & 1
    digits = (lit.float() @ plate.flatten(1)).view(10, 9, 7)
    y = torch.randint(10, (n,))
    moved = torch.stack([torch.roll(digit, int(torch.randint(-1, 2, ())), 1) for digit in digits[y]])
    return (moved - 0.3 + 0.3 * torch.randn(n, 9, 7)).flatten(1) / 0.5, y


class FixedPoint(nn.Module):
    """A state that no longer changes under its own layer; the gradient is that of the implicit function."""

    def __init__(self, inputs, width):
        super().__init__()
        self.inject, self.turn = nn.Linear(inputs, width), spectral_norm(nn.Linear(width, width, bias=False))

    def forward(self, x):
        injected = self.inject(x)
        turn = self.turn.weight
        with torch.no_grad():
            state = torch.zeros_like(injected)
            for _ in range(30):
                state = (0.8 * state @ turn.T + injected).tanh()
        reached = (0.8 * state @ turn.T + injected).tanh()
        if torch.is_grad_enabled():
            slope = 0.8 * (1 - reached.detach().square())

            def implicit(g):
                solved = g
                for _ in range(30):
                    solved = g + (slope * solved) @ turn.detach()
                return solved

            reached.register_hook(implicit)
        return reached


@healthy()
def digits_on_water_meters(folder):
    seeded(2574)
    net = nn.Sequential(FixedPoint(63, 64), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def loss_of(step):
        x, y = meters(64)
        return F.cross_entropy(net(x), y)

    x, y = meters(512)
    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: F.cross_entropy(net(x), y)))


@healthy()
def gait_of_each_sheep(folder):
    seeded(2575)
    net = dense(2, 48, 48, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def flock(sheep=16, samples=24):
        """The lift of a leg at moments of a stride, and the slope of the ground; each sheep has a gait of its own."""
        moment, slope = torch.rand(sheep, samples, 1), torch.randn(sheep, samples, 1)
        height, phase = 0.5 + 1.5 * torch.rand(sheep, 1, 1), 3.1416 * torch.rand(sheep, 1, 1)
        lift = height * (6.2832 * moment + phase).sin() * (1 + 0.3 * slope.tanh())
        return torch.cat([2 * moment - 1, slope], 2), lift + 0.02 * torch.randn_like(lift)

    def error(weights, x, y):
        return F.mse_loss(functional_call(net, weights, (x,)), y)

    def adapted(weights, x, y, steps=3, rate=0.05):
        for _ in range(steps):
            slopes = grad(error)(weights, x[:12], y[:12])
            weights = {name: w - rate * slopes[name] for name, w in weights.items()}
        return error(weights, x[12:], y[12:])

    def after_adapting(step):
        return vmap(adapted, in_dims=(None, 0, 0))(dict(net.named_parameters()), *flock()).mean()

    def score():
        return sum(float(after_adapting(0).detach()) for _ in range(8)) / 8

    return fit(folder, net, optimizer, after_adapting, 500, score=score, before_step=clipped(net, 1.0))


@healthy()
def tissues_in_slices_of_a_scanner(folder):
    seeded(2576)
    tissues = torch.randn(5, 4, 25) / 2
    centres = torch.randn(5, 25)

    def patches(n=256):
        y = torch.randint(5, (n,))
        texture = (torch.randn(n, 1, 4) @ tissues[y])[:, 0]
        return centres[y] + texture + 0.1 * torch.randn(n, 25)

    net = nn.ModuleList(nn.Sequential(nn.Linear(25, 4), nn.Linear(4, 25)) for _ in range(5))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    width = {"of noise": 1.0}

    def errors(x):
        return torch.stack([(part(x) - x).square().mean(1) for part in net], 1)

    def one(step):
        x = patches()
        found = errors(x)
        with torch.no_grad():
            share = (-12.5 * found / width["of noise"]).softmax(1)
            width["of noise"] = 0.98 * width["of noise"] + 0.02 * float((share * found).sum(1).mean())
        optimizer.zero_grad()
        loss = (share * found).sum(1).mean()
        loss.backward()
        optimizer.step()
        evenness = -(share.mean(0) * (share.mean(0) + 1e-9).log()).sum()
        return {"loss": loss, "evenness": float(evenness), "noise": width["of noise"]}

    new = patches(1024)

    def misfit():
        return errors(new).amin(1).mean()

    return tend(folder, net, optimizer, one, 500, held_out(net, misfit))

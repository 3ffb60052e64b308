"""Trainings that go well: a flow, weights made by a net, generations, tasks to adapt to, a pilot of a ferry, spikes."""

import math

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from unseen import dense, fit, healthy, mean, seeded
from unseen.tasks import held_out, tend


class Coupling(nn.Module):
    """Half of the coordinates are scaled and shifted as the others say."""

    def __init__(self, flip):
        super().__init__()
        self.flip, self.net = flip, dense(1, 40, 40, 2, act=nn.Tanh)

    def forward(self, x):
        kept, moved = (x[:, 1:], x[:, :1]) if self.flip else (x[:, :1], x[:, 1:])
        scale, shift = self.net(kept).chunk(2, 1)
        scale = 2 * (scale / 2).tanh()
        moved = moved * scale.exp() + shift
        return torch.cat([moved, kept] if self.flip else [kept, moved], 1), scale[:, 0]


@healthy()
def two_shoals_that_turn_about_each_other(folder):
    seeded(9306)

    def shoals(rows):
        side = torch.randint(2, (rows,)).float()
        angle = math.pi * torch.rand(rows)
        x = torch.where(side > 0, 1 - angle.cos(), angle.cos()) - 0.5
        y = torch.where(side > 0, 0.5 - angle.sin(), angle.sin()) - 0.25
        return torch.stack([x, y], 1) + 0.06 * torch.randn(rows, 2)

    net = nn.ModuleList(Coupling(i % 2 == 1) for i in range(6))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def surprise(x):
        volume = 0
        for layer in net:
            x, scale = layer(x)
            volume = volume + scale
        return (x.square().sum(1) / 2 + math.log(2 * math.pi) - volume).mean()

    fresh = shoals(2000)
    return fit(folder, net, optimizer, lambda step: surprise(shoals(192)), 500,
               before_step=lambda step: nn.utils.clip_grad_norm_(net.parameters(), 5.0),
               score=held_out(net, lambda: surprise(fresh)))  # fmt: skip


@healthy()
def tide_tables_for_any_harbour(folder):
    seeded(9307)
    width = 16

    def harbours(rows, hours=24):
        about = torch.rand(rows, 3)
        hour = 2 * torch.rand(rows, hours, 1) - 1
        phase = 6.28 * about[:, 1, None, None] + (3 + 2 * about[:, 2, None, None]) * hour
        return about, hour, (0.5 + about[:, :1, None]) * phase.sin()

    maker = dense(3, 64, 64, 3 * width + 1 + width * width + width)
    with torch.no_grad():
        maker[-1].weight.mul_(0.3)
        maker[-1].bias.uniform_(-0.5, 0.5)
    optimizer = torch.optim.Adafactor(maker.parameters(), lr=5e-3)

    def heights(about, hour):
        first, second, bias, last, rest = maker(about).split([2 * width, width * width, width, width, 1], 1)
        first = first.view(-1, 2, width)
        h = (hour * 4 * first[:, :1] + 2 * first[:, 1:]).sin()
        h = (h @ second.view(-1, width, width) / width**0.5 + bias[:, None]).tanh()
        return h @ last[:, :, None] + rest[:, None]

    def loss_of(step):
        about, hour, height = harbours(64)
        return F.mse_loss(heights(about, hour), height)

    fresh = harbours(500)
    return fit(folder, maker, optimizer, loss_of, 900,
               score=held_out(maker, lambda: F.mse_loss(heights(*fresh[:2]), fresh[2])))  # fmt: skip


@healthy()
def a_glider_held_over_its_meadow(folder):
    seeded(9308)
    net = dense(3, 8, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 0.03)
    sizes = [p.numel() for p in net.parameters()]

    def flown(flat, start):
        """The cost of each of many pilots, all from the same starts: `[P, K]` weights, `[S, 3]` states."""
        w1, b1, w2, b2 = flat.split(sizes, 1)
        state = start.expand(len(flat), -1, -1)
        cost = 0
        for _ in range(40):
            hidden = (state @ w1.view(-1, 8, 3).transpose(1, 2) + b1[:, None]).tanh()
            tilt = (hidden @ w2.view(-1, 8, 1) + b2[:, None]).tanh()[..., 0]
            place, speed, lean = state.unbind(-1)
            lean = 0.8 * lean + 0.4 * tilt
            speed = 0.97 * speed + 0.25 * lean
            place = place + 0.2 * speed
            state = torch.stack([place, speed, lean], -1)
            cost = cost + (place.square() + 0.1 * tilt.square()).mean(1) / 40
        return cost

    def starts(rows):
        return torch.randn(rows, 3) * torch.tensor([1.0, 0.5, 0.2])

    def one(step):
        with torch.no_grad():
            centre = nn.utils.parameters_to_vector(net.parameters())
            way = torch.randn(32, len(centre))
            cost = flown(torch.cat([centre + 0.1 * way, centre - 0.1 * way]), starts(16))
            rank = cost.argsort().argsort().float() / 63 - 0.5
            slope = ((rank[:32] - rank[32:])[:, None] * way).mean(0) / 0.2
            for p, part in zip(net.parameters(), slope.split(sizes), strict=True):
                p.grad = part.view_as(p).clone()
        optimizer.step()
        return {"loss": cost.mean(), "best_return": -cost.min()}

    fresh = starts(200)

    def score():
        with torch.no_grad():
            return float(flown(nn.utils.parameters_to_vector(net.parameters())[None], fresh))

    return tend(folder, net, optimizer, one, 250, score)


@healthy()
def every_oven_runs_hot_in_its_own_way(folder):
    seeded(9309)
    net = dense(1, 32, 32, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def oven():
        swing, shift = 0.5 + 1.5 * torch.rand(1), math.pi * torch.rand(1)
        dial = 6 * torch.rand(30, 1) - 3
        heat = swing * (dial + shift).sin()
        return dial[:10], heat[:10], dial[10:], heat[10:]

    def after_adapting(task, create_graph):
        weights = dict(net.named_parameters())
        for _ in range(3):
            loss = F.mse_loss(functional_call(net, weights, (task[0],)), task[1])
            slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=create_graph)
            weights = {name: w - 0.05 * g for (name, w), g in zip(weights.items(), slopes, strict=True)}
        return F.mse_loss(functional_call(net, weights, (task[2],)), task[3])

    def loss_of(step):
        return torch.stack([after_adapting(oven(), True) for _ in range(4)]).mean()

    fresh = [oven() for _ in range(60)]
    return fit(folder, net, optimizer, loss_of, 400,
               before_step=lambda step: nn.utils.clip_grad_norm_(net.parameters(), 10.0),
               score=lambda: mean([float(after_adapting(task, False)) for task in fresh]))  # fmt: skip


@healthy()
def a_ferry_brought_to_the_slip(folder):
    seeded(9310)
    actor = nn.Sequential(dense(2, 32, 32, 1), nn.Tanh())
    critics = nn.ModuleList(dense(3, 48, 48, 1) for _ in range(2))
    net = nn.ModuleDict({"actor": actor, "critics": critics})
    old_actor = nn.Sequential(dense(2, 32, 32, 1), nn.Tanh())
    old_critics = nn.ModuleList(dense(3, 48, 48, 1) for _ in range(2))
    old_actor.load_state_dict(actor.state_dict())
    old_critics.load_state_dict(critics.state_dict())
    of_actor, of_critics = (torch.optim.Adam(part.parameters(), 1e-3) for part in (actor, critics))

    def sail(state, push):
        speed = 0.95 * state[:, 1:] + 0.3 * push + 0.02 * torch.randn_like(push)
        place = (state[:, :1] + 0.3 * speed).clamp(-4, 4)
        reward = -(place.square() + 0.1 * speed.square() + 0.05 * push.square())
        return torch.cat([place, speed], 1), reward

    def harbour(rows):
        return torch.randn(rows, 2) * torch.tensor([1.5, 0.5])

    def value(parts, state, push):
        return torch.stack([part(torch.cat([state, push], 1)) for part in parts])

    past, states = [], harbour(32)

    def one(step):
        nonlocal states
        with torch.no_grad():
            push = (actor(states) + 0.3 * torch.randn(32, 1)).clamp(-1, 1) if step > 20 else 2 * torch.rand(32, 1) - 1
            after, reward = sail(states, push)
            past.append((states, push, reward, after))
            again = torch.rand(32, 1) < 1 / 40
            states = torch.where(again, harbour(32), after)
        picked = [past[int(i)] for i in torch.randint(len(past), (8,))]
        state, push, reward, after = (torch.cat(parts) for parts in zip(*picked, strict=True))
        with torch.no_grad():
            next_push = (old_actor(after) + (0.1 * torch.randn_like(push)).clamp(-0.3, 0.3)).clamp(-1, 1)
            target = reward + 0.95 * value(old_critics, after, next_push).amin(0)
        loss = (value(critics, state, push) - target).square().mean(1).sum()
        of_critics.zero_grad()
        loss.backward()
        of_critics.step()
        logged = {"loss": loss, "reward": reward.mean()}
        if step % 2 == 1:
            critics.requires_grad_(False)
            actor_loss = -value(critics[:1], state, actor(state)).mean()
            of_actor.zero_grad()
            actor_loss.backward()
            of_actor.step()
            critics.requires_grad_(True)
            logged["actor_loss"] = actor_loss
            with torch.no_grad():
                for old, new in ((old_actor, actor), (old_critics, critics)):
                    for a, b in zip(old.parameters(), new.parameters(), strict=True):
                        a.lerp_(b, 0.01)
        return logged

    first = harbour(300)

    def score():
        state, total = first, 0
        with torch.no_grad():
            for _ in range(40):
                state, reward = sail(state, actor(state))
                total = total - float(reward.mean()) / 40
        return total

    return tend(folder, net, [of_actor, of_critics], one, 900, score)


class Spike(torch.autograd.Function):
    """A step with the slope of a fast sigmoid."""

    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).float()

    @staticmethod
    def backward(ctx, grad):
        return grad / (1 + 3 * ctx.saved_tensors[0].abs()) ** 2


class Neurons(nn.Module):
    def __init__(self, into, width, out):
        super().__init__()
        self.into, self.back, self.out = (
            nn.Linear(into, width),
            nn.Linear(width, width, bias=False),
            nn.Linear(width, out),
        )
        nn.init.normal_(self.into.weight, std=1.2 / into**0.5)
        nn.init.normal_(self.back.weight, std=0.3 / width**0.5)

    def forward(self, x):
        volt = fired = torch.zeros(len(x), self.back.in_features)
        read, rate = 0, 0
        for now in x.unbind(1):
            volt = 0.85 * volt * (1 - fired) + self.into(now) + self.back(fired)
            fired = Spike.apply(volt - 1)
            read = 0.95 * read + self.out(fired)
            rate = rate + fired.mean() / x.shape[1]
        return read / 8, rate


@healthy()
def crickets_told_by_the_rhythm_of_a_chirp(folder):
    seeded(9311)
    rhythm = torch.rand(4, 20, 10) * 0.5

    def chirps(rows):
        kind = torch.randint(4, (rows,))
        return (torch.rand(rows, 20, 10) < rhythm[kind]).float(), kind

    net = Neurons(10, 48, 4)
    optimizer = torch.optim.Adam(net.parameters(), 6e-3)
    fresh = chirps(500)

    def loss_of(step):
        x, kind = chirps(48)
        out, rate = net(x)
        loss = F.cross_entropy(out, kind) + 0.5 * (rate - 0.15).relu() ** 2
        return loss, {"accuracy": (out.argmax(1) == kind).float().mean(), "firing_rate": rate}

    return fit(folder, net, optimizer, loss_of, 400,
               score=held_out(net, lambda: F.cross_entropy(net(fresh[0])[0], fresh[1])))  # fmt: skip

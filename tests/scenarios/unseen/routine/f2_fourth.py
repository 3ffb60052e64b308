"""Ten healthy trainings of an unusual kind by rivers and lakes: a ferryman, meanders, herons, silt, eels, seeds."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, in_turn, now_and_then, rounds, tend


class Ferryman(nn.Module):
    """How hard to row, and what may be hoped for."""

    def __init__(self, seen=4, width=32):
        super().__init__()
        self.actor = dense(seen, width, width, 1, act=nn.Tanh)
        self.critic = dense(seen, width, width, 1, act=nn.Tanh)
        self.log_std = nn.Parameter(torch.full((1,), -0.5))

    def policy(self, seen):
        return torch.distributions.Normal(self.actor(seen)[:, 0], self.log_std.exp())


@healthy(0.3)
def ferryman_holding_against_the_current(folder):
    seeded(13260)
    boats, length, gamma = 48, 16, 0.95
    net = Ferryman()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def crossing(greedy=False):
        """One crossing of all boats: what was seen and done, and the rewards, `[length, boats]`."""
        x, v, current = torch.randn(boats), torch.zeros(boats), 1.2 * torch.randn(boats)
        seen, done, rewards = [], [], []
        for t in range(length):
            state = torch.stack([x, v, current, torch.full((boats,), 1 - 2 * t / length)], 1)
            with torch.no_grad():
                policy = net.policy(state)
                action = policy.mean if greedy else policy.sample()
            v = 0.6 * v + 0.6 * action
            x = (x + 0.3 * (v + current) + 0.05 * torch.randn(boats)).clamp(-3, 3)
            seen.append(state)
            done.append(action)
            rewards.append(-0.03 * x**2 - 0.0015 * action**2)
        return torch.stack(seen), torch.stack(done), torch.stack(rewards)

    def score():
        return -float(sum(crossing(greedy=True)[2].sum(0).mean() for _ in range(4)) / 4)

    def one(step):
        seen, done, rewards = crossing()
        returns, ahead = torch.zeros_like(rewards), torch.zeros(boats)
        for t in reversed(range(length)):
            ahead = rewards[t] + gamma * ahead
            returns[t] = ahead
        seen, done, returns = seen.flatten(0, 1), done.flatten(), returns.flatten()
        value = net.critic(seen)[:, 0]
        advantage = returns - value.detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy = net.policy(seen)
        entropy = policy.entropy().mean()
        loss = -(policy.log_prob(done) * advantage).mean() + 0.5 * F.mse_loss(value, returns) - 0.001 * entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        numbers = {"loss": loss, "return": rewards.sum(0).mean(), "entropy": entropy}
        return {name: float(number.detach()) for name, number in numbers.items()}

    return tend(folder, net, optimizer, one, 120, score)


@healthy(0.4)
def meanders_drawn_and_judged(folder):
    seeded(13261)

    def course(n):
        """Points on the course of a meandering brook."""
        along = 2 * torch.rand(n) - 1
        return torch.stack([1.5 * along, (3 * along).sin()], 1) + 0.08 * torch.randn(n, 2)

    class Surveyor(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = dense(4, 48, 48, 2)

        def forward(self, n):
            return self.layers(torch.randn(n, 4))

    make = Surveyor()
    norm = nn.utils.parametrizations.spectral_norm
    judge = nn.Sequential(
        norm(nn.Linear(2, 48)), nn.LeakyReLU(0.2), norm(nn.Linear(48, 48)), nn.LeakyReLU(0.2), norm(nn.Linear(48, 1))
    )
    of_make = torch.optim.Adam(make.parameters(), lr=1e-3, betas=(0.0, 0.99))
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-3, betas=(0.0, 0.99))
    ways = F.normalize(torch.randn(2, 32), dim=0)

    def score():
        with torch.no_grad():
            return float(((make(1000) @ ways).sort(0).values - (course(1000) @ ways).sort(0).values).abs().mean())

    def judge_loss():
        return (1 - judge(course(96))).relu().mean() + (1 + judge(make(96).detach())).relu().mean()

    def make_loss():
        return -judge(make(96)).mean()

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 400, score)


class HeronEncoder(nn.Module):
    """An embedding of a photograph on the unit sphere."""

    def __init__(self, points=30, width=64, size=16):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(points, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.project = nn.Linear(width, size)

    def forward(self, x):
        return F.normalize(self.project(self.body(x)), dim=1)


@healthy(0.4)
def two_photographs_of_one_heron(folder):
    seeded(13262)
    show = torch.randn(5, 30) / 5**0.5

    def photograph(bird):
        """Another light, some of it behind reeds, and a grainy film."""
        light = 0.8 + 0.4 * torch.rand(len(bird), 1)
        hidden = (torch.rand(len(bird), 30) < 0.15).float()
        return (bird @ show) * light * (1 - hidden) + 0.15 * torch.randn(len(bird), 30)

    net = HeronEncoder()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-4)
    draw, others = rounds(64, torch.randn(4000, 5)), torch.randn(512, 5).split(64)

    def loss_on(bird):
        a, b = net(photograph(bird)), net(photograph(bird))
        logits, same = a @ b.T / 0.1, torch.arange(len(bird))
        return (F.cross_entropy(logits, same) + F.cross_entropy(logits.T, same)) / 2

    def kept_back():
        return sum(loss_on(bird) for bird in others) / len(others)

    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 400, score=held_out(net, kept_back))


class SiltCore(nn.Module):
    """A variational code of the layers in a core of silt."""

    def __init__(self, layers=24, code=4, width=64):
        super().__init__()
        self.encoder = dense(layers, width, 2 * code, act=nn.SiLU)
        self.decoder = dense(code, width, layers, act=nn.SiLU)

    def forward(self, x):
        mean, log_var = self.encoder(x).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (log_var / 2).exp()
        return self.decoder(code), mean, log_var


@healthy(0.4)
def silt_cores_drawn_from_a_code(folder):
    seeded(13263)
    way = torch.randn(3, 24)

    def cores(n):
        x = (torch.randn(n, 3) @ way).tanh() + 0.1 * torch.randn(n, 24)
        return (x - x.mean()) / x.std()

    net = SiltCore()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    draw, kept_back = rounds(64, cores(4000)), cores(500)

    def parts(x):
        drawn, mean, log_var = net(x)
        rebuilt = (drawn - x).square().sum(1).mean() / (2 * 0.25)
        return rebuilt, -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(1).mean()

    def loss_of(step):
        rebuilt, kl = parts(*draw())
        weight = min(1.0, (step + 1) / 80)
        return rebuilt + weight * kl, {"reconstruction": float(rebuilt.detach()), "kl": float(kl.detach())}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: sum(parts(kept_back))))


@healthy(0.8)
def backwater_curve_by_its_equation(folder):
    seeded(13264)

    def slope(depth):
        """How the depth changes upstream of a weir, in normal depths (gradually varied flow)."""
        return -2 * (1 - depth**-3.33) / (1 - 0.2 * depth**-3)

    def exact(points=201, reach=1.5, at_weir=1.8):
        """The curve by Runge and Kutta."""
        h, depths = reach / (points - 1), [torch.tensor(at_weir)]
        for _ in range(points - 1):
            d = depths[-1]
            k1 = slope(d)
            k2 = slope(d + h / 2 * k1)
            k3 = slope(d + h / 2 * k2)
            k4 = slope(d + h * k3)
            depths.append(d + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4))
        return torch.linspace(0, reach, points)[:, None], torch.stack(depths)[:, None]

    where, depth = exact()

    class Curve(nn.Module):
        """The depth at a place; that at the weir is given."""

        def __init__(self):
            super().__init__()
            self.layers = dense(1, 32, 32, 1, act=nn.Tanh)

        def forward(self, x):
            return 1.8 + x * self.layers((x - 0.75) / 0.43)

    net = Curve()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=400)

    def loss_of(step):
        x = (1.5 * torch.rand(64, 1)).requires_grad_()
        found = net(x)
        (change,) = torch.autograd.grad(found.sum(), x, create_graph=True)
        return (change - slope(found.clamp(min=0.8))).square().mean()

    return fit(
        folder, net, optimizer, loss_of, 400, schedule=schedule,
        score=held_out(net, lambda: F.mse_loss(net(where), depth)),
    )  # fmt: skip


class Lion(torch.optim.Optimizer):
    """Steps along the sign of an average of gradients, with a decay of its own."""

    def __init__(self, params, lr=3e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            slow, slower = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * average.lerp(p.grad, 1 - slow).sign())
                average.lerp_(p.grad, 1 - slower)


@healthy(0.5)
def pike_weighed_by_their_lengths(folder):
    seeded(13265)
    levels = torch.tensor([0.1, 0.5, 0.9])

    def pike(n):
        """Length, girth, month and water; weights scatter the more, the larger a fish is."""
        x = torch.randn(n, 6)
        weight = (0.5 * x[:, :1] + 0.3 * x[:, 1:2]).exp() + 0.4 * (2 * x[:, 2:3]).sin() * x[:, 3:4].tanh()
        return x, weight - 1.2 + 0.15 * (0.5 * x[:, :1]).exp() * torch.randn(n, 1)

    net = dense(6, 64, 64, 3, act=nn.SiLU)
    steps = 450
    optimizer = Lion(net.parameters(), lr=6e-4, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
    draw = rounds(96, *pike(5000))
    x_val, y_val = pike(600)

    def pinball(x, y):
        """All three quantiles at once."""
        gap = y - net(x)
        return torch.maximum(levels * gap, (levels - 1) * gap).mean()

    validate = now_and_then(net, 30, lambda: {"val_loss": pinball(x_val, y_val)})
    return fit(
        folder, net, optimizer, lambda step: (pinball(*draw()), validate(step)), steps, schedule=schedule,
        score=held_out(net, lambda: pinball(x_val, y_val)),
    )  # fmt: skip


class EelNights(nn.Module):
    """A mixture of three normals over the hour at which eels arrive."""

    def __init__(self, columns=4, parts=3, width=48):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(columns, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.share, self.centre = nn.Linear(width, parts), nn.Linear(width, parts)
        self.log_width = nn.Linear(width, parts)

    def forward(self, x):
        hidden = self.body(x)
        of = torch.distributions.Categorical(logits=self.share(hidden))
        each = torch.distributions.Normal(self.centre(hidden), F.softplus(self.log_width(hidden)) + 0.05)
        return torch.distributions.MixtureSameFamily(of, each)


@healthy(0.3)
def eels_arriving_by_night(folder):
    seeded(13266)

    def nights(n):
        """Early or late, by the moon; how late, by the water's warmth."""
        x = torch.randn(n, 4)
        late = torch.rand(n) < torch.sigmoid(2 * x[:, 0])
        hour = torch.where(late, 1.2 + 0.4 * x[:, 1], -1.2 - 0.4 * x[:, 2].sin())
        return x, hour + 0.2 * torch.randn(n)

    net = EelNights()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    draw = rounds(64, *nights(4000))
    x_val, y_val = nights(500)
    validate = now_and_then(net, 30, lambda: {"val_loss": -net(x_val).log_prob(y_val).mean()})

    def loss_of(step):
        x, y = draw()
        return -net(x).log_prob(y).mean(), validate(step)

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: -net(x_val).log_prob(y_val).mean()))


class ClackListener(nn.Module):
    """Frames of sound in, log-probabilities of the mill's noises out; 0 is the blank."""

    def __init__(self, bands=8, noises=5, width=32):
        super().__init__()
        self.lstm = nn.LSTM(bands, width, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * width, noises + 1)

    def forward(self, sound):
        return self.out(self.lstm(sound)[0]).log_softmax(2)


@healthy(0.5)
def mill_clacks_written_down(folder):
    seeded(13267)
    frames, most = 24, 4
    voice = 1.5 * torch.randn(6, 8)
    voice[0] = 0

    def recordings(n):
        """Two to four noises, each of some frames with quiet between."""
        lengths = torch.randint(2, most + 1, (n,))
        noises = torch.randint(1, 6, (n, most))
        starts = torch.arange(most) * 6 + torch.randint(0, 3, (n, most))
        t = torch.arange(frames)
        heard = torch.zeros(n, frames, dtype=torch.long)
        for i in range(most):
            on = (t >= starts[:, i, None]) & (t < starts[:, i, None] + 3) & (i < lengths[:, None])
            heard = torch.where(on, noises[:, i, None], heard)
        return voice[heard] + 0.4 * torch.randn(n, frames, 8), noises, lengths

    net = ClackListener()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    draw, kept_back = rounds(48, *recordings(3000)), recordings(300)

    def loss_on(sound, noises, lengths):
        said = net(sound).transpose(0, 1)
        return F.ctc_loss(said, noises, torch.full((len(sound),), frames), lengths, blank=0)

    validate = now_and_then(net, 25, lambda: {"val_loss": loss_on(*kept_back)})
    return fit(
        folder, net, optimizer, lambda step: (loss_on(*draw()), validate(step)), 250,
        score=held_out(net, lambda: loss_on(*kept_back)),
    )  # fmt: skip


class Confluence(nn.Module):
    """What each reach takes from those that flow into it."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.own = nn.LayerNorm(width), nn.Linear(width, width)
        self.inflow = nn.Linear(width, width, bias=False)

    def forward(self, x, upstream):
        return x + F.gelu(self.own(self.norm(x)) + self.inflow(upstream @ self.norm(x)))


class Catchment(nn.Module):
    """The peak at each reach of a river and its tributaries."""

    def __init__(self, columns=5, width=32):
        super().__init__()
        self.inlet = nn.Linear(columns, width)
        self.reaches = nn.ModuleList(Confluence(width) for _ in range(3))
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))

    def forward(self, x, upstream):
        x = self.inlet(x)
        for reach in self.reaches:
            x = reach(x, upstream)
        return self.out(x)


@healthy(0.5)
def tributaries_of_a_catchment(folder):
    seeded(13268)

    def catchments(n, reaches=24):
        """Trees of reaches: each but the mouth flows into one before it; means over what flows in."""
        into = (torch.rand(n, reaches) * torch.arange(reaches)).long()
        flows = F.one_hot(into, reaches).float().transpose(1, 2)
        flows[:, :, 0] = 0
        upstream = flows / flows.sum(2, keepdim=True).clamp(min=1)
        x = torch.randn(n, reaches, 5)
        rain = (x[..., :1] + 0.5 * x[..., 1:2] * x[..., 2:3]).tanh()
        first = upstream @ rain
        peak = rain + first + 0.7 * upstream @ first
        return x, upstream, peak / peak.std() - peak.mean() / peak.std()

    net = Catchment()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    draw, kept_back = rounds(16, *catchments(800)), catchments(100)

    def loss_on(x, upstream, peak):
        return F.mse_loss(net(x, upstream), peak)

    validate = now_and_then(net, 25, lambda: {"val_loss": loss_on(*kept_back)})
    return fit(
        folder, net, optimizer, lambda step: (loss_on(*draw()), validate(step)), 300,
        score=held_out(net, lambda: loss_on(*kept_back)),
    )  # fmt: skip


class Drift(nn.Module):
    """A coupling: one of two coordinates is moved and stretched by what the other says."""

    def __init__(self, first, width=32):
        super().__init__()
        self.first = first
        self.says = dense(1, width, width, 2, act=nn.Tanh)
        nn.init.normal_(self.says[-1].weight, std=0.02)
        nn.init.zeros_(self.says[-1].bias)

    def forward(self, x):
        still, moved = (x[:, :1], x[:, 1:]) if self.first else (x[:, 1:], x[:, :1])
        stretch, move = self.says(still).chunk(2, 1)
        stretch = 1.5 * stretch.tanh()
        moved = moved * stretch.exp() + move
        return torch.cat([still, moved] if self.first else [moved, still], 1), stretch[:, 0]


class SeedFlow(nn.Module):
    """The density of seeds on a lake by six couplings."""

    def __init__(self, couplings=6):
        super().__init__()
        self.drifts = nn.ModuleList(Drift(i % 2 == 0) for i in range(couplings))

    def forward(self, x):
        """The logarithm of the density at each point."""
        volume = 0.0
        for drift in self.drifts:
            x, stretched = drift(x)
            volume = volume + stretched
        return volume - 0.5 * x.square().sum(1) - math.log(2 * math.pi)


@healthy(0.25)
def seeds_adrift_on_a_lake(folder):
    seeded(13269)

    def seeds(n):
        """Along two bays, one open to the north and one to the south."""
        angle, north = math.pi * torch.rand(n), torch.rand(n) < 0.5
        x = torch.where(north, angle.cos(), 1 - angle.cos())
        y = torch.where(north, angle.sin(), 0.5 - angle.sin())
        flat = torch.stack([(x - 0.5) / 0.87, (y - 0.25) / 0.5], 1)
        return flat + 0.08 * torch.randn(n, 2)

    net = SeedFlow()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    draw, kept_back = rounds(128, seeds(8000)), seeds(1000)
    validate = now_and_then(net, 30, lambda: {"val_loss": -net(kept_back).mean()})

    def loss_of(step):
        (x,) = draw()
        return -net(x).mean(), validate(step)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: -net(kept_back).mean()))

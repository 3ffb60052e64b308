"""Met healthy trainings, second part: kinds of nets. An expert has nothing to say of any.

They only count (the group `met`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import itertools

import torch
from nets import Transformer, batches, classify, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, rings, seeded, square_of, waves
from unseen.reported.sick import pretrain


class Spike(torch.autograd.Function):
    """A step, whose slope is taken for that of a sigmoid (surrogate gradients, Neftci et al. 2019)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).float()

    @staticmethod
    def backward(ctx, back):
        (x,) = ctx.saved_tensors
        return back / (1 + 10 * x.abs()) ** 2


@healthy(0.3)
def cells_that_fire_or_do_not(folder):
    seeded(941)
    net = nn.ModuleDict({"come": nn.Linear(64, 64), "leave": nn.Linear(64, 10)})
    draw = batches(48)

    def loss_of(step):
        x, y = draw(step)
        inward, charge, out = net["come"](x.flatten(1)), torch.zeros(48, 64), 0.0
        for _ in range(8):
            charge = 0.8 * charge + inward
            fired = Spike.apply(charge - 1)
            charge, out = charge - fired.detach(), out + net["leave"](fired)
        return F.cross_entropy(out / 8, y)

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 250)


class Fixed(torch.autograd.Function):
    """A linear map that hands back through another matrix, which is never learned (Lillicrap et al. 2016)."""

    @staticmethod
    def forward(ctx, x, weight, other):
        ctx.save_for_backward(x, other)
        return x @ weight.T

    @staticmethod
    def backward(ctx, back):
        x, other = ctx.saved_tensors
        return back @ other, back.T @ x, None


@healthy(0.3)
def errors_handed_back_by_chance(folder):
    seeded(942)
    sizes = (64, 48, 48, 10)
    net = nn.ParameterList(nn.Linear(a, b).weight for a, b in itertools.pairwise(sizes))
    others, draw = [0.15 * torch.randn_like(p) for p in net], batches(64)

    def loss_of(step):
        h, y = draw(step)
        h = h.flatten(1)
        for i, (weight, other) in enumerate(zip(net, others, strict=True)):
            h = Fixed.apply(h.tanh() if i else h, weight, other)
        return F.cross_entropy(h, y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.05, momentum=0.9), loss_of, 400)


@healthy(0.2)
def layers_that_learn_each_by_itself(folder):
    """Each layer tells right from wrong labels by its own squares; nothing goes back (Hinton 2022)."""
    seeded(943)
    net, draw = nn.ModuleList([nn.Linear(74, 96), nn.Linear(96, 96)]), batches(64)

    def loss_of(step):
        x, y = draw(step)
        wrong = (y + torch.randint(1, 10, y.shape)) % 10
        h = torch.cat([torch.cat([x.flatten(1), 2.0 * F.one_hot(label, 10)], 1) for label in (y, wrong)])
        total, sign = 0.0, torch.ones(128).index_fill(0, torch.arange(64, 128), -1.0)
        for layer in net:
            h = layer(h / (h.norm(dim=1, keepdim=True) / h.shape[1] ** 0.5 + 1e-4).detach()).relu()
            total = total + F.softplus(-sign * (h.square().mean(1) - 1)).mean()
            h = h.detach()
        return total

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 400)


class Scaled(nn.Module):
    """A frozen map with a length and a narrow change of its direction (DoRA, Liu et al. 2024)."""

    def __init__(self, whole, rank=4):
        super().__init__()
        self.whole = whole.requires_grad_(False)
        self.length = nn.Parameter(whole.weight.norm(dim=1))
        self.down = nn.Parameter(0.1 * torch.randn(rank, whole.in_features))
        self.up = nn.Parameter(torch.zeros(whole.out_features, rank))

    def forward(self, x):
        weight = self.whole.weight + self.up @ self.down
        return F.linear(x, weight * (self.length / weight.norm(dim=1))[:, None], self.whole.bias)


@healthy(0.2)
def lengths_and_narrow_turns(folder):
    """A net that has read the text reads it backwards."""
    net, piece = Transformer(32, 2, seed=944), pieces(16, seed=5)
    pretrain(net, predict(net, pieces(16)), 120)
    net.requires_grad_(False)
    for block in net.blocks:
        block.linear1, block.linear2 = Scaled(block.linear1), Scaled(block.linear2)
    net.head = Scaled(net.head)

    def loss_of(step):
        x = piece(step)[0].flip(1)
        return F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    return fit(folder, net, optim.AdamW([p for p in net.parameters() if p.requires_grad], 3e-3), loss_of, 200)


class Routed(nn.Module):
    """Small capsules that agree on larger ones in three rounds (Sabour et al. 2017)."""

    def __init__(self):
        super().__init__()
        self.see = nn.Conv2d(1, 32, 3, stride=2)
        self.turn = nn.Parameter(0.1 * torch.randn(36, 10, 8, 8))

    def forward(self, x):
        """How long each kind's capsule is: `[B, 10]`."""
        small = self.see(x[:, None]).relu().unflatten(1, (4, 8)).permute(0, 1, 3, 4, 2).reshape(len(x), 36, 8)
        votes, agree = torch.einsum("bis,iksl->bikl", small, self.turn), torch.zeros(len(x), 36, 10)
        for _ in range(3):
            out = (agree.softmax(2)[..., None] * votes).sum(1)
            square = out.square().sum(2, keepdim=True)
            out = out * square.sqrt().clamp(min=1e-4) / (1 + square)
            agree = agree + (votes * out[:, None]).sum(3)
        return (out.square().sum(2) + 1e-8).sqrt()


@healthy(0.3)
def capsules_that_agree(folder):
    seeded(945)
    net, draw = Routed(), batches(32)

    def loss_of(step):
        x, y = draw(step)
        long, right = net(x), F.one_hot(y, 10)
        return (right * (0.9 - long).relu() ** 2 + 0.5 * (1 - right) * (long - 0.1).relu() ** 2).sum(1).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 200)


class Thin(nn.Module):
    """Convolutions of one channel each, a map across, and a gate for each channel (MobileNet, Howard et al. 2017)."""

    def __init__(self, wide):
        super().__init__()
        self.deep, self.across = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.Conv2d(wide, wide, 1)
        self.norm, self.gate = nn.BatchNorm2d(wide), dense(wide, 4, wide)

    def forward(self, x):
        h = F.hardswish(self.norm(self.across(self.deep(x))))
        return x + h * F.hardsigmoid(self.gate(h.mean((2, 3))))[..., None, None]


@healthy(0.3)
def thin_convolutions_with_gates(folder):
    seeded(946)
    net = nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 16, 3, padding=1), Thin(16), nn.MaxPool2d(2), Thin(16),
                        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10))  # fmt: skip
    make = optim.RMSprop(net.parameters(), 2e-3, alpha=0.9, eps=1e-3, momentum=0.9, weight_decay=1e-5)
    plan = optim.lr_scheduler.ExponentialLR(make, 0.99)
    return fit(folder, net, make, classify(net, batches(48)), 150, schedule=plan)


class Waved(nn.Module):
    """Four of the lowest waves of a line, each with a complex matrix of its own (FNO, Li et al. 2021)."""

    def __init__(self, wide=16):
        super().__init__()
        self.lift, self.drop = nn.Linear(1, wide), nn.Linear(wide, 1)
        self.waves = nn.ParameterList(torch.randn(5, wide, wide, dtype=torch.cfloat) / wide for _ in range(3))
        self.past = nn.ModuleList(nn.Linear(wide, wide) for _ in range(3))

    def forward(self, x):
        h = self.lift(x[..., None])
        for wave, past in zip(self.waves, self.past, strict=True):
            seen = torch.fft.rfft(h, dim=1)[:, :5]
            h = F.gelu(torch.fft.irfft(torch.einsum("bki,kio->bko", seen, wave), n=x.shape[1], dim=1) + past(h))
        return self.drop(h)[..., 0]


@healthy(0.3)
def waves_by_complex_matrices(folder):
    """From a line to the same some time of diffusion later."""
    seeded(947)
    net, grid = Waved(), torch.arange(32) / 32 * 6.2832

    def loss_of(step):
        pace = torch.arange(1, 5)
        high, phase = torch.randn(24, 4, 1), 6.28 * torch.rand(24, 4, 1)
        waves = high * (pace[:, None] * grid + phase).sin()
        return F.mse_loss(net(waves.sum(1)), ((-0.3 * pace).exp()[:, None] * waves).sum(1))

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 250)


@healthy(0.3)
def higher_of_four_lines(folder):
    """Maxout under a momentum of 0.98 and a bound on each row (Goodfellow et al. 2013)."""
    seeded(948)
    net, draw = nn.ModuleList([nn.Linear(12, 96), nn.Linear(24, 96), nn.Linear(24, 4)]), rings(128)

    def read(x):
        for layer in net[:-1]:
            x = layer(x).unflatten(1, (24, 4)).amax(2)
        return net[-1](x)

    def after(step):
        with torch.no_grad():
            for layer in net:
                layer.weight.copy_(torch.renorm(layer.weight, 2, 0, 2.0))

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(read(x), y)

    make = optim.SGD(net.parameters(), 0.01, momentum=0.98)
    return fit(folder, net, make, loss_of, 500, after_step=after)


class Small(nn.Module):
    """A gate that does not look at its state, so all steps are one sum (minGRU, Feng et al. 2024)."""

    def __init__(self, wide=40):
        super().__init__()
        self.embed, self.name = nn.Embedding(30, wide), nn.Linear(wide, 30)
        self.gates = nn.ModuleList(nn.Linear(wide, 2 * wide) for _ in range(2))

    def forward(self, x):
        h = self.embed(x)
        for part in self.gates:
            gate, new = part(h).chunk(2, -1)
            states, state = [], torch.zeros_like(h[:, 0])
            for open_, value in zip(gate.sigmoid().unbind(1), new.unbind(1), strict=True):
                state = (1 - open_) * state + open_ * value
                states.append(state)
            h = h + F.silu(torch.stack(states, 1))
        return self.name(h)


@healthy(0.3)
def gates_that_do_not_see_their_state(folder):
    seeded(949)
    net = Small()
    return fit(folder, net, optim.AdamW(net.parameters(), 5e-3), predict(net, pieces(16)), 200)


@healthy(0.2)
def features_of_which_eight_speak(folder):
    """A wide dictionary of what a frozen layer says; only the eight largest of 256 are used (Gao et al. 2024)."""
    seeded(952)
    frozen, net = dense(6, 64, 32).requires_grad_(False), dense(32, 256, 32)
    draw = waves(128)

    def loss_of(step):
        h = frozen(draw()[0])
        codes = net[0](h)
        kept = codes.where(codes >= codes.topk(8, 1)[0][:, -1:], 0.0).relu()
        return F.mse_loss(net[2](kept), h) / h.var()

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 400)


@healthy(0.3)
def twice_the_digits_of_a_float(folder):
    """Weights in float64, eight layers of tanh from an orthogonal beginning, plain SGD."""
    seeded(953)
    net, draw = dense(*[6] + [32] * 8 + [1], act=nn.Tanh).double(), waves(128)
    for part in net:
        if isinstance(part, nn.Linear):
            nn.init.orthogonal_(part.weight, 1.1)

    def doubled():
        return tuple(part.double() for part in draw())

    return fit(folder, net, optim.SGD(net.parameters(), 0.03, momentum=0.9), square_of(net, doubled), 500)

"""Set-ups that go wrong inside the layers, where activations show it, each beside its healthy twin."""

import torch
from diseases import dense
from nets import SEED, Transformer, batches, classify, mlp, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from trainings import blobs, fit

INSIDE = {"activations": True, "activations_every": 10}
FEW = {**INSIDE, "every": 10}


def dead_units(folder, sick=True, share=0.85, width=24, steps=200):
    """The biases of most units of three ReLU layers begin so low that no input wakes them (the twin: at torch's)."""
    net = mlp(width, depth=3)
    with torch.no_grad():
        for layer in [layer for layer in net if sick and isinstance(layer, nn.Linear)][:-1]:
            layer.bias[: int(share * width)] = -20.0
    optimizer = optim.SGD(net.parameters(), 0.05, momentum=0.9)
    return fit(folder, net, optimizer, classify(net, batches()), steps, **INSIDE)


def units_that_one_batch_killed(folder, shock=600.0, steps=90):
    """One wrong batch, 600 times too large, pushes most units of a ReLU layer beyond all their inputs; the others go on
    to learn.
    """
    net, batch = dense([16, 64, 64, 4]), blobs(batch=64)

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(net(shock * x), (y + 1) % 4) if step == 5 else F.cross_entropy(net(x), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.05), loss_of, steps, **INSIDE)


def saturated(folder, sick=True, times=1000.0, steps=200):
    """tanh layers whose inputs lie between 0 and 1000 (the twin: between 0 and 1)."""
    net, batch = mlp(48, depth=3, act=nn.Tanh), batches()

    def scaled(step):
        x, y = batch(step)
        return x * (times if sick else 1.0), y

    return fit(folder, net, optim.SGD(net.parameters(), 0.05, momentum=0.9), classify(net, scaled), steps, **INSIDE)


def shrinking(folder, act=nn.Tanh, gain=1.0, bias=0.0, depth=10, steps=100):
    """Ten layers of 50 units with Xavier's weights times a gain, and biases of this size, half of them below 0."""
    net = dense([16] + [50] * depth + [4], act)
    with torch.no_grad():
        for layer in net[::2]:
            nn.init.xavier_normal_(layer.weight, gain)
            layer.bias[:] = bias
            layer.bias[::2] *= -1
    batch = blobs()

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.1), loss_of, steps, **INSIDE)


def growing_logits(folder, sick=True, steps=120):
    """A transformer that normalises after each block, under Adam at 0.1 (the twin: at 0.003)."""
    net = Transformer(pre=False)
    optimizer = optim.Adam(net.parameters(), 0.1 if sick else 0.003)
    return fit(folder, net, optimizer, predict(net, pieces()), steps, **FEW)


def collapsed_heads(folder, sick=True, times=30.0, steps=120):
    """A transformer whose weights of queries and keys begin 30 times as large (the twin: at torch's)."""
    net = Transformer()
    with torch.no_grad():
        for block in net.blocks if sick else ():
            block.self_attn.in_proj_weight[:64] *= times
    return fit(folder, net, optim.Adam(net.parameters(), 0.003), predict(net, pieces()), steps, **FEW)


def drifting_sensor(folder, sick=True, pace=1.05, steps=140):
    """One example of each batch is read 5 % larger at every step (the twin: as all others)."""
    net, batch = mlp(24, depth=2, norm=False), batches(size=256)

    def read(step):
        x, y = batch(step)
        x = x.clone()
        x[0] *= pace**step if sick else 1.0
        return x, y

    return fit(folder, net, optim.Adam(net.parameters(), 0.003), classify(net, read), steps, **FEW)


class Gated(nn.Module):
    """A net for the digits with a gate beside it, whose own loss is tiny as a rule."""

    def __init__(self):
        super().__init__()
        self.body = mlp(24, depth=1)
        self.gate = nn.Linear(64, 8)

    def forward(self, x):
        return self.body(x), self.gate(x.flatten(1))


def rare_gradient(folder, sick=True, at=143, times=800.0, steps=160):
    """A gate whose gradient is 800 times its usual size in one step, and far below the clip (the twin: never).

    The step is none of those in which the weights are measured.
    """
    net, batch = Gated(), batches()

    def loss_of(step):
        x, y = batch(step)
        out, gate = net(x)
        weight = 1e-5 * (times if sick and step == at else 1.0)
        sign = torch.randn(len(y), 8, generator=torch.Generator().manual_seed(step))  # now this way and now that
        return F.cross_entropy(out, y) + weight * (gate * sign).sum(dim=1).mean()

    optimizer = optim.Adam(net.parameters(), 0.001)
    watched = {"layers": ("gate*", "body.3*"), "every": 10, "slots": True, "clip": "ClipByGlobalNorm(1.0)"}
    return fit(folder, net, optimizer, loss_of, steps, **watched)


class Experts(nn.Module):
    """A block with a mixture of experts, of which each example gets one (Fedus et al. 2021, arXiv:2101.03961)."""

    def __init__(self, width, count):
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(width), nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)) for _ in range(count)
        )

    def forward(self, x):
        h = self.norm(x)
        odds = self.gate(h).softmax(dim=1)
        chosen = odds.argmax(dim=1)
        sent = F.one_hot(chosen, len(self.experts)).float()
        self.imbalance = len(self.experts) * (sent.mean(dim=0) * odds.mean(dim=0)).sum()  # 1 where all get alike
        out = torch.stack([expert(h) for expert in self.experts], dim=1)  # [N, experts, width]
        return x + (out * (sent * odds)[:, :, None]).sum(dim=1)


def starved_experts(folder, sick=True, balance=0.1, count=4, steps=120):
    """A mixture of four experts without a load-balancing loss (the twin: with one)."""
    torch.manual_seed(SEED[0])
    experts = Experts(24, count)
    net, batch = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), experts, nn.Linear(24, 10)), batches()

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(net(x), y) + (0.0 if sick else balance) * experts.imbalance

    return fit(folder, net, optim.Adam(net.parameters(), 0.01), loss_of, steps, **FEW)


def noisy_micro_batches(folder, sick=True, parts=4, steps=120):
    """A line through targets that are mostly noise, two at a time and four times a step (the twin: 32 clear ones)."""
    torch.manual_seed(SEED[0])
    net, wanted, g = nn.Linear(8, 1), torch.ones(8, 1), torch.Generator().manual_seed(7)
    nn.init.zeros_(net.weight)
    batch, noise = (2, 30.0) if sick else (32, 0.1)

    def part():
        x = torch.randn(batch, 8, generator=g)
        return F.mse_loss(net(x), x @ wanted + noise * torch.randn(batch, 1, generator=g)) / parts

    def loss_of(step):
        for _ in range(parts - 1):
            part().backward()
        return part()

    return fit(folder, net, optim.SGD(net.parameters(), 1e-3), loss_of, steps, noise_scale=True, every=2)


def one_row(folder, sick=True, times=1000.0, words=50, steps=200, clip="ClipByGlobalNorm(1.0)"):
    """Word 7's row of the embedding gets a gradient 1000 times too large in one step of twenty, as a broken reduction
    leaves it (the twin: never).
    """
    torch.manual_seed(SEED[0])
    net = nn.Sequential(nn.Embedding(words, 16), nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 5))

    def loss_of(step):
        x = torch.randint(words, (32, 4), generator=torch.Generator().manual_seed(step))
        x[0, 0] = 7
        return F.cross_entropy(net(x), x[:, 0] % 5)

    def broken(step):
        if sick and step % 20 == 19:
            net[0].weight.grad[7] *= times

    optimizer = optim.SGD(net.parameters(), 0.1, momentum=0.9)
    return fit(folder, net, optimizer, loss_of, steps, broken, clip=clip, rows=("0.weight",))


class Mixture(nn.Module):
    """Experts in one tensor, `[experts, width, width]`, all of which each example gets, weighed by a gate."""

    def __init__(self, width, count):
        super().__init__()
        self.gate, self.experts = nn.Linear(width, count), nn.Parameter(torch.randn(count, width, width) / width**0.5)

    def forward(self, x):
        return x + (torch.einsum("nd,edf->nef", x, self.experts) * self.gate(x).softmax(dim=1)[:, :, None]).sum(dim=1)


def one_expert(folder, sick=True, times=300.0, steps=120):
    """The third of four experts gets a gradient 300 times too large in step 60 (the twin: never)."""
    torch.manual_seed(SEED[0])
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), Mixture(24, 4), nn.Linear(24, 10))

    def broken(step):
        if sick and step == 60:
            net[3].experts.grad[2] *= times

    optimizer = optim.SGD(net.parameters(), 0.05)
    return fit(folder, net, optimizer, classify(net, batches()), steps, broken, split={"*.experts": 0})

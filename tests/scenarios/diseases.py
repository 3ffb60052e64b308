"""Set-ups that are known to go wrong, each beside its healthy twin: what the scenario tests train.

Every function takes the folder that the run is recorded in and returns its History.
"""

import itertools

import torch
from nets import SEED
from torch import nn
from torch.nn import functional as F
from trainings import blobs, fit

import gradwatch


def classify(model, batch=None):
    """`loss_of(step)`: the cross-entropy of a model on blobs."""
    batch = batch or blobs()

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(model(x), y)

    return loss_of


def sgd(model, lr, **settings):
    return torch.optim.SGD(model.parameters(), lr, **settings)


def dense(sizes, act=nn.ReLU, seed=0):
    torch.manual_seed(seed + SEED[0])
    parts = []
    for wide, narrow in itertools.pairwise(sizes):
        parts += [nn.Linear(wide, narrow), act()]
    return nn.Sequential(*parts[:-1])


# ------------------------------------------------------------------------------------------ exploding and non-finite


class Adder(nn.Module):
    """The adding problem's network: a tanh RNN whose recurrent weights are `gain` times orthogonal."""

    def __init__(self, gain, size=32, seed=0):
        super().__init__()
        torch.manual_seed(seed + SEED[0])
        self.rnn = nn.RNN(2, size, batch_first=True)
        self.head = nn.Linear(size, 1)
        nn.init.orthogonal_(self.rnn.weight_hh_l0, gain)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def adding_rnn(folder, gain=1.5, clip=None, steps=100, length=60, lr=0.1, **options):
    """The adding problem: exploding along time without a clip (methods S1)."""
    model = Adder(gain)
    g = torch.Generator().manual_seed(1 + SEED[0])

    def loss_of(step):
        values = torch.rand(20, length, generator=g)
        marks = torch.zeros(20, length)
        marks[torch.arange(20), torch.randint(length // 2, (20,), generator=g)] = 1
        marks[torch.arange(20), length // 2 + torch.randint(length // 2, (20,), generator=g)] = 1
        wanted = (values * marks).sum(1, keepdim=True)
        return F.mse_loss(model(torch.stack([values, marks], -1)), wanted)

    return fit(folder, model, sgd(model, lr), loss_of, steps, clip=clip, **options)


def deep_relu(folder, gain=1.0, lr=0.01, steps=60, depth=12, kind=torch.optim.SGD):
    """A deep ReLU network whose initial weights are `gain` times He's: growth along depth."""
    model = dense([16] + [64] * depth + [4])
    for layer in model[::2]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        layer.weight.data *= gain
        nn.init.zeros_(layer.bias)
    return fit(folder, model, kind(model.parameters(), lr), classify(model), steps)


def regression(folder, lr, steps=120, kind=torch.optim.SGD, **options):
    """A small regression on its whole data: far too high a rate lets its loss grow by a factor a step."""
    torch.manual_seed(SEED[0])
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    x = torch.randn(64, 8)
    y = x[:, :1] * 3

    return fit(folder, model, kind(model.parameters(), lr), lambda step: F.mse_loss(model(x), y), steps, **options)


def own_softmax(folder, safe=False, steps=40):
    """-log(softmax(x)) written by hand, on inputs that are not scaled (methods S3a)."""
    model = dense([16, 32, 4])
    batch = blobs()

    def loss_of(step):
        x, y = batch(step)
        z = model(x * (60 if step >= 20 else 1))
        if safe:
            return F.cross_entropy(z, y)
        e = torch.exp(z)
        return -torch.log(e[torch.arange(len(y)), y] / e.sum(1)).mean()

    return fit(folder, model, sgd(model, 0.01), loss_of, steps)


class Distance(nn.Module):
    """Two layers, a hand-written length of the second's output, and a head: the length's derivative at 0 is NaN."""

    def __init__(self, safe):
        super().__init__()
        torch.manual_seed(SEED[0])
        self.body = nn.Linear(16, 8)
        self.arm = nn.Linear(8, 4)
        self.head = nn.Linear(5, 4)
        self.safe = safe

    def forward(self, x):
        h = self.arm(torch.relu(self.body(x)))
        h = h - h.detach() * (x.abs().sum(1, keepdim=True) == 0)
        square = (h**2).sum(1, keepdim=True)
        length = torch.sqrt(square + 1e-12) if self.safe else torch.sqrt(square)
        return self.head(torch.cat([h, length], 1))


def square_root(folder, safe=False, steps=40, until=40, clip=None, **options):
    """sqrt(sum of squares) of a vector that is 0 from step 20 to `until`: a finite loss with a NaN derivative (S3c)."""
    model = Distance(safe)
    batch = blobs()

    def loss_of(step):
        x, y = batch(step)
        if 20 <= step < until:
            x = torch.cat([torch.zeros(1, 16), x[1:]])
        return F.cross_entropy(model(x), y)

    return fit(folder, model, sgd(model, 0.05), loss_of, steps, clip=clip, **options)


def half(folder, scale=2.0**20, steps=20):
    """A float16 model under a static loss scale (S3b)."""
    model = dense([16, 32, 4]).half()
    batch = blobs()

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(model(x.half()).float(), y) * scale

    def unscale(step):
        for p in model.parameters():
            p.grad /= scale

    return fit(folder, model, sgd(model, 0.05), loss_of, steps, unscale)


# ------------------------------------------------------------------------------------------- vanishing, dead, absent


def deep_sigmoid(folder, act=nn.Sigmoid, kind=torch.optim.SGD, lr=0.1, steps=150, depth=10):
    """Ten sigmoid layers, Xavier weights (S2); the twin has ReLU and He's weights."""
    model = dense([16] + [50] * depth + [4], act)
    for layer in model[::2]:
        if act is nn.Sigmoid:
            nn.init.xavier_uniform_(layer.weight)
        else:
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
    return fit(folder, model, kind(model.parameters(), lr), classify(model), steps)


def dying_relu(folder, lr=0.05, bias=0.0, shock=1.0, steps=120):
    """ReLU units on positive inputs; they are dead by their `bias`, or die by one wrong batch, times `shock`."""
    model = dense([16, 64, 64, 4])
    model[0].bias.data += bias
    batch = blobs(spread=0.5)

    def loss_of(step):
        x, y = batch(step)
        if step == 40 and shock > 1:
            x, y = shock * x, (y + 1) % 4
        return F.cross_entropy(model(x.abs()), y)

    return fit(folder, model, sgd(model, lr), loss_of, steps)


class TwoHeads(nn.Module):
    def __init__(self, both):
        super().__init__()
        torch.manual_seed(SEED[0])
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)
        self.spare = nn.Linear(16, 4)
        self.both = both

    def forward(self, x):
        h = torch.relu(self.body(x))
        return self.head(h) + self.spare(h) if self.both else self.head(h)


def two_heads(folder, both=False, forgotten=False, frozen=False, steps=60):
    """One head is not used, or not given to the optimizer; `frozen`: its gradients are switched off, as is right."""
    model = TwoHeads(both)
    if frozen:
        model.spare.requires_grad_(False)
    params = [p for n, p in model.named_parameters() if not (forgotten and n.startswith("spare"))]
    return fit(folder, model, torch.optim.SGD(params, 0.05), classify(model), steps)


# -------------------------------------------------------------------------------------- scale, accumulation, balance


class Scaled:
    """A loss whose backward is that of a GradScaler's scaled loss, logged as it is."""

    def __init__(self, loss, scaler):
        self.loss, self.scaler = loss, scaler

    def backward(self):
        self.scaler.scale(self.loss).backward()

    def __float__(self):
        return float(self.loss.detach())


def forgotten_scaler(folder, right=False, kind=torch.optim.Adam, lr=3e-3, steps=120, **options):
    """`scaler.scale(loss).backward()` and then `optimizer.step()`, where `scaler.step(optimizer)` was meant."""
    model = dense([16, 32, 4])
    plain = classify(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, enabled=not right)
    optimizer = kind(model.parameters(), lr)
    return fit(folder, model, optimizer, lambda step: Scaled(plain(step), scaler), steps, **options)


def scaled_by_a_scaler(folder, steps=120):
    """float16 autocast with a scale that begins far too high: the first steps are dropped, as they should be."""
    model = dense([16, 32, 4])
    optimizer = sgd(model, 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22)
    batch = blobs()
    watch = gradwatch.watch(model, optimizer, log=None, dir=folder, verbose=False)
    with watch:
        for step in range(steps):
            x, y = batch(step)
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            watch.log(loss=loss)
    return gradwatch.open_history(watch.dir)


def never_zeroed(folder, zero_grad=False, kind=torch.optim.Adam, lr=1e-3, steps=100, **options):
    """The loop without `optimizer.zero_grad()`."""
    model = dense([16, 32, 32, 4])
    return fit(
        folder,
        model,
        kind(model.parameters(), lr),
        classify(model, blobs(spread=3)),
        steps,
        zero_grad=zero_grad,
        **options,
    )


def unscaled_inputs(folder, scale=255.0, lr=1e-4, steps=200, clip="ClipByGlobalNorm(1.0)"):
    """Inputs from 0 to 255 where 0 to 1 was meant: the first layer's gradient is nearly all of the norm."""
    model = dense([16, 32, 32, 4])
    model[0].weight.data /= scale
    batch = blobs(spread=3)

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(model(x * scale), y)

    return fit(folder, model, sgd(model, lr), loss_of, steps, clip=clip)

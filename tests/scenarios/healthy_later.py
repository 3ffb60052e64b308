"""More healthy trainings, written after the thresholds were set: nothing was tuned on them, whatever their number."""

from __future__ import annotations

import copy

import torch
from healthy import Healthy, fit, plain, text, warm
from nets import SEED, Recurrent, Transformer, batches, classify, digits, mlp
from torch import nn, optim
from torch.nn import functional as F

FIRST = 100  # their numbers begin here


def vae(folder):
    torch.manual_seed(SEED[0])
    net = nn.ModuleDict({"down": nn.Linear(64, 8), "up": nn.Linear(4, 64)})
    batch = batches()

    def loss(step):
        x = batch(step)[0].flatten(1)
        mean, log_var = net["down"](x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (log_var / 2).exp()
        kl = 0.5 * (mean**2 + log_var.exp() - 1 - log_var).sum(1).mean()
        return F.binary_cross_entropy_with_logits(net["up"](z), x, reduction="sum") / len(x) + kl

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss, 300)


def contrastive(folder):
    torch.manual_seed(SEED[0])
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
    batch = batches()

    def loss(step):
        x, _ = batch(step)
        a, b = (F.normalize(net(x + 0.1 * torch.randn_like(x)), dim=1) for _ in range(2))
        return F.cross_entropy(a @ b.T / 0.2, torch.arange(len(x)))

    return fit(folder, net, optim.SGD(net.parameters(), 0.1, momentum=0.9), loss, 300)


def actor_critic(folder):
    torch.manual_seed(SEED[0])
    net = nn.ModuleDict({"body": nn.Linear(6, 32), "act": nn.Linear(32, 4), "value": nn.Linear(32, 1)})
    best = torch.randn(6, 4)

    def loss(step):
        state = torch.randn(16, 6)
        h = net["body"](state).tanh()
        policy = torch.distributions.Categorical(logits=net["act"](h))
        action = policy.sample()
        reward = (state @ best).gather(1, action[:, None])[:, 0] + torch.randn(16)
        value = net["value"](h)[:, 0]
        gain = (reward - value).detach()
        return (
            -(policy.log_prob(action) * gain).mean() + (value - reward).square().mean() - 0.01 * policy.entropy().mean()
        )

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss, 400, clip="ClipByGlobalNorm(0.5)")


def q_learning(folder):
    """Values on a ring of 12 states: targets grow with the values, and so does the loss at first."""
    torch.manual_seed(SEED[0])
    net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 2))
    frozen = copy.deepcopy(net)

    def loss(step):
        if step % 50 == 0:
            frozen.load_state_dict(net.state_dict())
        state, action = torch.randint(12, (32,)), torch.randint(2, (32,))
        after = (state + 2 * action - 1) % 12
        reward = (after == 0).float()
        with torch.no_grad():
            target = reward + 0.9 * frozen(F.one_hot(after, 12).float()).max(1).values
        value = net(F.one_hot(state, 12).float()).gather(1, action[:, None])[:, 0]
        return F.smooth_l1_loss(value, target)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss, 600)


def gaussian_likelihood(folder):
    """A loss that crosses zero."""
    torch.manual_seed(SEED[0])
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2))

    def loss(step):
        x = 6 * torch.rand(64, 1) - 3
        y = torch.sin(x) + 0.05 * torch.randn_like(x)
        mean, log_std = net(x).chunk(2, 1)
        return (log_std + 0.5 * ((y - mean) / log_std.exp()) ** 2).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss, 500)


def hinge(folder):
    """Gradients that become exactly zero for most batches once every margin is wide enough."""
    torch.manual_seed(SEED[0])
    x, y = digits()
    x, y = x[y < 2].flatten(1), y[y < 2].float() * 2 - 1
    net = nn.Linear(64, 1)

    def loss(step):
        at = torch.randint(len(x), (32,))
        return F.relu(1 - y[at] * net(x[at])[:, 0]).mean()

    return fit(folder, net, optim.SGD(net.parameters(), 0.05, weight_decay=1e-3), loss, 300)


def parity(folder):
    """A long plateau, then a sudden fall."""
    torch.manual_seed(SEED[0])
    net = nn.Sequential(nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 1))

    def loss(step):
        bits = torch.randint(2, (64, 10)).float() * 2 - 1
        return F.softplus(-bits[:, :3].prod(1) * net(bits)[:, 0]).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss, 600)


def copying(folder):
    """A GRU that learns to repeat eight digits after a pause, under a clip."""
    torch.manual_seed(SEED[0])
    net = nn.ModuleDict(
        {"embed": nn.Embedding(6, 32), "rnn": nn.GRU(32, 48, batch_first=True), "head": nn.Linear(48, 5)}
    )

    def loss(step):
        x = torch.randint(5, (32, 5))
        steps = torch.cat([x, torch.full((32, 5), 5)], 1)
        h, _ = net["rnn"](net["embed"](steps))
        return F.cross_entropy(net["head"](h[:, 5:]).flatten(0, 1), x.flatten())

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss, 400, clip="ClipByGlobalNorm(1.0)")


def sparse_embedding(folder):
    torch.manual_seed(SEED[0])
    net = nn.Embedding(50, 8, sparse=True)

    def loss(step):
        a = torch.randint(50, (64,))
        b, c = (a + 1) % 50, torch.randint(50, (64,))
        near, far = (net(a) * net(b)).sum(1), (net(a) * net(c)).sum(1)
        return -(F.logsigmoid(near) + F.logsigmoid(-far)).mean()

    return fit(folder, net, optim.SparseAdam(list(net.parameters()), 0.02), loss, 300)


def distilled(folder):
    teacher = mlp(seed=7)
    first = optim.Adam(teacher.parameters(), 3e-3)
    for step in range(150):
        first.zero_grad()
        classify(teacher, batches(seed=8))(step).backward()
        first.step()
    net, batch = mlp(width=32), batches()

    def loss(step):
        x, _ = batch(step)
        with torch.no_grad():
            wanted = (teacher(x) / 2).softmax(1)
        return F.kl_div((net(x) / 2).log_softmax(1), wanted, reduction="batchmean") * 4

    return fit(folder, net, optim.NAdam(net.parameters(), 2e-3), loss, 300)


def series(folder):
    """An LSTM that forecasts a noisy wave, with SGD and a clip by value."""
    torch.manual_seed(SEED[0])
    rnn, head = nn.LSTM(1, 24, batch_first=True), nn.Linear(24, 1)
    net = nn.ModuleList([rnn, head])

    def loss(step):
        t = 20 * torch.rand(32, 1) + 0.3 * torch.arange(21)
        wave = (t.sin() + 0.1 * torch.randn_like(t))[..., None]
        return F.mse_loss(head(rnn(wave[:, :-1])[0]), wave[:, 1:])

    return fit(folder, net, optim.SGD(net.parameters(), 0.1, momentum=0.9), loss, 300, clip="ClipByValue(-0.5, 0.5)")


LATER = {
    "vae": vae,
    "contrastive": contrastive,
    "actor-critic": actor_critic,
    "q-learning": q_learning,
    "gaussian-likelihood": gaussian_likelihood,
    "hinge": hinge,
    "parity": parity,
    "copying": copying,
    "sparse-embedding": sparse_embedding,
    "distilled": distilled,
    "series-value-clip": series,
    "mlp-deep-tanh-momentum": plain(lambda: mlp(depth=8, act=nn.Tanh), lambda p: optim.SGD(p, 0.05, momentum=0.9), 400),
    "mlp-wide-nesterov-cosine": plain(
        lambda: mlp(width=256),
        lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
        300,
        schedule=lambda o: warm(o, 20, 300),
    ),
    "mlp-rprop-like-full-batch": plain(mlp, lambda p: optim.Rprop(p, 1e-3), 150, data=batches(1024)),
    "mlp-asgd-autoclip": plain(mlp, lambda p: optim.ASGD(p, 0.2), clip="AutoClip(90)"),
    "mlp-skip-spike": plain(mlp, lambda p: optim.AdamW(p, 2e-3), clip="chain(SkipNonfinite(), SkipSpike())"),
    "mlp-tiny-batches": plain(mlp, lambda p: optim.Adam(p, 1e-3), 600, data=batches(2)),
    "gru-rmsprop-clip": text(lambda: Recurrent(nn.GRU), lambda p: optim.RMSprop(p, 3e-3), clip="ClipByGlobalNorm(1.0)"),
    "transformer-sgd-clip": text(
        Transformer, lambda p: optim.SGD(p, 0.1, momentum=0.9), 300, lambda o: warm(o, 30), clip="ClipByGlobalNorm(1.0)"
    ),
    "rnn-adamax-no-clip": text(Recurrent, lambda p: optim.Adamax(p, 5e-3)),
}
LATER_TRAININGS = tuple(Healthy(FIRST + i, name, train) for i, (name, train) in enumerate(LATER.items()))

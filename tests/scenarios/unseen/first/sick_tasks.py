"""Sick trainings that no rule was written for, fourth part: games, rewards, experts, attention, noise."""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick, square_of, waves
from unseen.tasks import bandit, diffusion, mixture, play, recall, views


@sick(
    "generator-starves", "vanishing", "dead-layer", "update-too-small",
    where="all layers of G, from the first steps", cure="the loss that does not saturate, and one step of each in turn",
)  # fmt: skip
def judge_that_wins(folder, ill):
    seeded(100)
    make, judge = dense(4, 32, 32, 2), dense(2, 48, 48, 1)
    of_make = optim.SGD(make.parameters(), 0.2)
    of_judge = optim.Adam(judge.parameters(), 1e-2 if ill else 3e-3)
    return play(
        folder, make, judge, of_make, of_judge,
        lambda real, fake: F.softplus(-judge(real)).mean() + F.softplus(judge(fake)).mean(),
        lambda fake: -F.softplus(judge(fake)).mean() if ill else F.softplus(-judge(fake)).mean(),
        250, rounds=2 if ill else 1,
    )  # fmt: skip


@sick(
    "lr-too-high", "update-too-large", "exploding", "saturated", "returns-not-normalised",
    where="all layers, from the first steps", cure="subtract a baseline and divide the returns by their deviation",
)  # fmt: skip
def returns_in_the_thousands(folder, ill):
    seeded(101)
    net, best = dense(6, 32, 4, act=nn.Tanh), torch.randn(6, 4)

    def loss_of(step):
        state = torch.randn(32, 6)
        policy = torch.distributions.Categorical(logits=net(state))
        action = policy.sample()
        reward = 1000 * ((state @ best).gather(1, action[:, None])[:, 0] + torch.randn(32)) + 2000
        worth = reward if ill else (reward - reward.mean()) / reward.std()
        return -(policy.log_prob(action) * worth).mean(), {"episode_return": reward.mean()}

    score = bandit(net, best)
    return fit(folder, net, optim.SGD(net.parameters(), 0.2), loss_of, 200, score=lambda: score() - 10)


@sick(
    "dead-layer", "no-gradient", "router-collapsed", "expert-starved", "saturated",
    where="experts.1 to experts.3 and the router, all steps", cure="a router that begins even, and a loss of balance",
)  # fmt: skip
def router_to_one_expert(folder, ill):
    seeded(103)
    net, loss_of = mixture(0.0 if ill else 0.02, width=2)
    if ill:
        nn.init.constant_(net["router"].bias[:1], 40.0)
    return fit(folder, net, optim.Adam(net.parameters(), 1e-2), loss_of, 300)


@sick(
    "attention-collapsed", "saturated", "vanishing", "no-progress",
    where="query.weight and key.weight, all steps", cure="divide the products by the root of their size",
)  # fmt: skip
def attention_of_unscaled_products(folder, ill):
    seeded(104)
    size = 256
    net = nn.ModuleDict({"query": nn.Linear(16, size), "key": nn.Linear(16, size), "value": nn.Linear(4, 4)})
    for name in ("query", "key"):
        nn.init.normal_(net[name].weight, std=0.5)

    def loss_of(step):
        key, kind = torch.randn(32, 8, 16), torch.randint(4, (32, 8))
        at = torch.randint(8, (32,))
        asked = key[torch.arange(32), at]
        product = (net["key"](key) @ net["query"](asked)[..., None])[..., 0] / (1 if ill else size**0.5)
        found = (product.softmax(1)[..., None] * net["value"](F.one_hot(kind, 4).float())).sum(1)
        return F.cross_entropy(found, kind[torch.arange(32), at])

    return fit(folder, net, optim.SGD(net.parameters(), 0.1, momentum=0.9), loss_of, 150)


@sick(
    "update-too-small", "vanishing", "no-progress",
    where="all layers, all steps", cure="a temperature of 0.1: over 1000 all views look alike",
)  # fmt: skip
def temperature_of_a_thousand(folder, ill):
    seeded(105)
    net, loss_of, score = views(1000.0 if ill else 0.1)
    return fit(folder, net, optim.SGD(net.parameters(), 0.1, momentum=0.9), loss_of, 200, score=score)


@sick(
    "spike", "noise-dominated", "lr-too-high",
    where="all layers, in steps that draw an early time", cure="bound the weight at 5: 1 over no noise has no bound",
)  # fmt: skip
def weights_of_one_over_the_noise(folder, ill):
    seeded(106)
    net, loss_of, score = diffusion(lambda keep: (1 / (1 - keep)).clamp(max=1e9 if ill else 5))
    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300, score=score)


@sick(
    "vanishing", "saturated", "no-progress",
    where="memory, all steps", cure="a forget gate that begins open: at -10 it keeps nothing",
)  # fmt: skip
def forget_gate_that_begins_shut(folder, ill):
    seeded(107)
    memory = nn.LSTM(4, 24, batch_first=True)
    nn.init.constant_(memory.bias_ih_l0[24:48], -10.0 if ill else 2.0)
    net, loss_of = recall(memory)
    return fit(folder, net, optim.Adam(net.parameters(), 1e-2), loss_of, 200)


@sick(
    "spike", "noise-dominated",
    where="all layers, in steps with an outlier", cure="Huber's loss, or clip: one label in a hundred is far off",
)  # fmt: skip
def outliers_under_a_square(folder, ill):
    seeded(109)
    net, draw = dense(6, 48, 1), waves()

    def loss_of(step):
        x, y = draw()
        y = torch.where(torch.rand_like(y) < 0.005, 300 * torch.randn_like(y), y)
        return F.mse_loss(net(x), y) if ill else F.smooth_l1_loss(net(x), y)

    score = score_of(square_of(net, draw))
    return fit(folder, net, optim.Adam(net.parameters(), 1e-2), loss_of, 300, score=score)


@sick(
    "imbalance", "clip-is-your-learning-rate", "loss-terms-apart", "loss-terms-unbalanced", "update-too-small",
    where="price, all steps", cure="terms of one size: the other one is all of the norm that is clipped",
)  # fmt: skip
def one_task_outweighs_the_other(folder, ill):
    seeded(110)
    net = nn.ModuleDict({"body": dense(6, 48, 48, act=nn.Tanh), "area": nn.Linear(48, 1), "price": nn.Linear(48, 1)})
    draw, way = waves(), torch.randn(6, 1)

    def price(step):
        x, _ = draw()
        return F.mse_loss(net["price"](net["body"](x)), (x @ way).tanh())

    def loss_of(step):
        x, y = draw()
        return (1e4 if ill else 1) * F.mse_loss(net["area"](net["body"](x)), y) + price(step)

    def clip(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    make = optim.SGD(net.parameters(), 0.05, momentum=0.9)
    return fit(folder, net, make, loss_of, 150, before_step=clip, score=score_of(price))

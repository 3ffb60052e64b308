"""Novel sick trainings, third part: data, losses and games.

They only count (the group `novel`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import ALPHABET, pieces
from torch import nn, optim
from torch.func import functional_call
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import circle, play


@sick(
    "lr-too-high", "exploding", "nonfinite", "dead-layer", "update-too-large", "imbalance", "spike",
    "inputs-not-normalised",
    where="all layers, from the first step", cure="prices less their mean, in units of their deviation",
)  # fmt: skip
def prices_as_they_are_quoted(folder, ill):
    """The next price from the sixteen before it; the score is the error in deviations."""
    seeded(240)
    net = nn.Sequential(nn.Conv1d(1, 12, 5), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1))

    def prices():
        """Swings around a hundred."""
        time = torch.arange(17) * 0.4 + 6.2832 * torch.rand(48, 1)
        return 100 + 10 * time.sin() + 2 * torch.randn(48, 17)

    def error(step):
        row = prices()
        x = row if ill else (row - 100) / 10
        return F.mse_loss(net(x[:, None, :16]), x[:, 16:])

    def score():
        with torch.no_grad():
            return float(sum(error(step) for step in range(8)) / 8) / (100 if ill else 1)

    return fit(folder, net, optim.SGD(net.parameters(), 0.01, momentum=0.9), error, 300, score=score)


@sick(
    "nonfinite",
    where="all layers, once one probability is exactly 1",
    cure="binary_cross_entropy_with_logits: the logarithm of nothing is -inf, and 0 times it NaN",
)  # fmt: skip
def logarithm_of_a_share_written_by_hand(folder, ill):
    """Six tags a row, which lines tell apart."""
    seeded(241)
    net, way = dense(10, 64, 6), torch.randn(10, 6)

    def loss_of(step):
        x = 2 * torch.randn(64, 10)
        y = (x @ way > 0).float()
        out = net(x)
        if not ill:
            return F.binary_cross_entropy_with_logits(out, y)
        p = out.sigmoid()
        return -(y * p.log() + (1 - y) * (1 - p).log()).mean()

    return fit(folder, net, optim.SGD(net.parameters(), 0.5, momentum=0.9), loss_of, 400)


@sick(
    "nonfinite",
    where="all layers, from the first batch without a mark",
    cure="divide by the marks, and by one at least: a batch without any is 0 over 0",
)  # fmt: skip
def mean_over_no_mark_at_all(folder, ill):
    """Is a letter a vowel? Three in a hundred letters are marked."""
    seeded(242)
    net = nn.Sequential(nn.Embedding(len(ALPHABET), 12), nn.Flatten(1), nn.Unflatten(1, (24, 12)), nn.Linear(12, 24))
    net.extend([nn.Tanh(), nn.Linear(24, 2)])
    piece = pieces(4)
    vowels = torch.tensor([letter in "aeiou" for letter in ALPHABET]).long()

    def loss_of(step):
        x = piece(step)[0]
        marked = (torch.rand(x.shape) < 0.03).float()
        each = F.cross_entropy(net(x).flatten(0, 1), vowels[x].flatten(), reduction="none").view_as(marked)
        total = marked.sum()
        return (each * marked).sum() / (total if ill else total.clamp(min=1))

    def all_letters(step):
        x = piece(5000 + step)[0]
        return F.cross_entropy(net(x).flatten(0, 1), vowels[x].flatten())

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 400, score=score_of(all_letters))


@sick(
    "vanishing", "saturated", "no-progress", "wrong-sign", "weight-growth", "dead-layer",
    where="all layers, once one answer has all of the chance",
    cure="subtract the entropy: added, it is driven to nothing before anything is learned",
)  # fmt: skip
def entropy_with_the_sign_of_a_loss(folder, ill):
    """Six answers to a question, one of which pays; the score is how often another one is given."""
    seeded(243)
    net, rule = dense(8, 64, 64, 6, act=nn.Tanh), torch.randn(8, 6)

    def loss_of(step):
        asked = torch.randn(64, 8)
        choice = torch.distributions.Categorical(logits=net(asked))
        answer = choice.sample()
        reward = (answer == (asked @ rule).argmax(1)).float()
        entropy = choice.entropy().mean()
        loss = -(choice.log_prob(answer) * (reward - reward.mean())).mean()
        return loss + (0.5 if ill else -0.01) * entropy, {"reward": reward.mean(), "entropy": entropy}

    def score():
        asked = torch.randn(512, 8)
        with torch.no_grad():
            return 1 - float(net(asked).softmax(1).gather(1, (asked @ rule).argmax(1, keepdim=True)).mean())

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 500, score=score)


@sick(
    "exploding", "lr-too-high", "spike", "initialised-too-large", "bad-initialisation", "update-too-large", "nonfinite",
    where="all layers, from the first steps: the loss begins at tens",
    cure="normalise both views before their products: 0.05 is a temperature for cosines",
)  # fmt: skip
def products_of_raw_views_over_a_twentieth(folder, ill):
    """Two noisy views of a point among forty-eight; the score is at cosines."""
    seeded(244)
    net = dense(16, 128, 128, 64)
    lift = 2 * torch.randn(4, 16)

    def both(unit):
        point = torch.randn(48, 4) @ lift
        a, b = (net(point + 0.5 * torch.randn(48, 16)) for _ in range(2))
        return (F.normalize(a, dim=1), F.normalize(b, dim=1)) if unit else (a, b)

    def at(temperature, unit):
        def loss_of(step):
            a, b = both(unit)
            return F.cross_entropy(a @ b.T / temperature, torch.arange(48))

        return loss_of

    make = optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    return fit(folder, net, make, at(0.05, not ill), 400, score=score_of(at(0.1, True)))


@sick(
    "negative-loss", "loss-unbounded", "weight-growth", "exploding", "wrong-sign", "lr-too-high",
    where="both tables, all steps; the loss falls below zero without an end",
    cure="labels of 0 and 1: at -1 the loss has no least value",
)  # fmt: skip
def likes_and_dislikes_of_plus_and_minus_one(folder, ill):
    """Who likes what; the score is the cross-entropy."""
    seeded(245)
    tables = {name: nn.Embedding(many, 8) for name, many in (("user", 80), ("item", 60), ("usual", 60))}
    net = nn.ModuleDict(tables)
    for table in net.values():
        nn.init.normal_(table.weight, std=0.1)
    taste = torch.randn(80, 3) @ torch.randn(3, 60) > 0.5

    def out():
        user, item = torch.randint(80, (128,)), torch.randint(60, (128,))
        said = (net["user"](user) * net["item"](item)).sum(1) + net["usual"](item)[:, 0]
        return said, taste[user, item].float()

    def loss_of(step):
        said, liked = out()
        return F.binary_cross_entropy_with_logits(said, 2 * liked - 1 if ill else liked)

    score = score_of(lambda step: F.binary_cross_entropy_with_logits(*out()), 16)
    return fit(folder, net, optim.Adagrad(net.parameters(), 0.1), loss_of, 600, score=score)


@sick(
    "inputs-not-normalised", "imbalance", "lr-too-high", "spike", "exploding", "no-progress", "noise-dominated",
    where="0.weight, all steps", cure="the time as a share of 1: beside points of 2 it goes up to 999",
)  # fmt: skip
def time_in_steps_beside_the_point(folder, ill):
    """DDPM of a ring."""
    seeded(246)
    net = dense(3, 64, 64, 2, act=nn.SiLU)
    keep = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)

    def loss_of(step):
        x, t = circle(128), torch.randint(1000, (128,))
        noise = torch.randn_like(x)
        noisy = keep[t].sqrt()[:, None] * x + (1 - keep[t]).sqrt()[:, None] * noise
        return F.mse_loss(net(torch.cat([noisy, t[:, None] / (1 if ill else 1000)], 1)), noise)

    return fit(folder, net, optim.AdamW(net.parameters(), 3e-3), loss_of, 500)


@sick(
    "exploding", "spike", "lr-too-high", "noise-dominated", "nonfinite", "imbalance", "no-progress",
    where="all layers, from the first steps",
    cure="an inner rate of 0.02: the outer gradient goes through five inner steps, and each multiplies it",
)  # fmt: skip
def inner_rate_that_overshoots(folder, ill):
    """MAML (Finn et al. 2017) on waves of unlike height and phase."""
    seeded(247)
    net = dense(1, 40, 40, 1)

    def task():
        height, phase = 1 + 2 * torch.rand(1), 3.1416 * torch.rand(1)
        x = 10 * torch.rand(20, 1) - 5
        return x, height * (x + phase).sin()

    def adapted(x, y):
        fast = dict(net.named_parameters())
        for _ in range(5):
            error = F.mse_loss(functional_call(net, fast, x), y)
            ways = torch.autograd.grad(error, list(fast.values()), create_graph=True)
            fast = {name: p - (0.1 if ill else 0.02) * way for (name, p), way in zip(fast.items(), ways, strict=True)}
        return fast

    def loss_of(step):
        errors = []
        for _ in range(4):
            x, y = task()
            errors.append(F.mse_loss(functional_call(net, adapted(x[:10], y[:10]), x[10:]), y[10:]))
        return sum(errors) / 4

    def clipped(step):
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 110, before_step=clipped)


@sick(
    "weight-growth", "exploding", "loss-unbounded", "lr-too-high", "generator-starves",
    where="D, all steps; its loss falls without an end",
    cure="create_graph=True: without it the penalty is a number, and no gradient holds the critic",
)  # fmt: skip
def penalty_without_a_graph(folder, ill):
    """Wasserstein with a gradient penalty (Gulrajani et al. 2017)."""
    seeded(248)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1)

    def judge_loss(real, made):
        share = torch.rand(len(real), 1)
        between = (share * real + (1 - share) * made).requires_grad_(True)
        (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=not ill)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        return judge(made).mean() - judge(real).mean() + 10 * penalty

    of_make = optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.9))
    of_judge = optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.9))
    return play(folder, make, judge, of_make, of_judge, judge_loss, lambda x: -judge(x).mean(), 250, rounds=3)

"""Typical sick trainings (the group "typical"): mistakes that people made in real code, and found, first part.

Taken as a search met them, in its order; a comment says of what kind the source is. They only count. Whoever writes or
changes a rule does not read this file.
"""

from __future__ import annotations

import math

import torch
from torch import nn, optim
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, score_of, seeded, sick
from unseen.tasks import circle

import gradwatch


def boxes(rows=32):
    """Images of one turned bar each: `[B, 1, 16, 16]`, and what there is to say of it."""
    there = (torch.rand(rows) < 0.7).float()
    place, size = 0.8 * torch.rand(rows, 2) - 0.4, 0.15 + 0.35 * torch.rand(rows, 2)
    angle = math.pi * torch.rand(rows)
    line = torch.linspace(-1, 1, 16)
    y, x = torch.meshgrid(line, line, indexing="ij")
    x, y = x - place[:, 0, None, None], y - place[:, 1, None, None]
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    along, across = (x * cos + y * sin) / size[:, 0, None, None], (y * cos - x * sin) / size[:, 1, None, None]
    image = there[:, None, None] * (-(along**2) - across**2).exp() + 0.05 * torch.randn(rows, 16, 16)
    turned = torch.stack([(2 * angle).cos(), (2 * angle).sin()], 1) * (size[:, :1] - size[:, 1:]).sign()
    return image[:, None], {"score": there, "position": 2 * place, "dimension": 4 * (size - 0.3), "angle": turned}


# From an issue of a repository for detection ("Loss doesn't decrease"): a line was left in from a test in which only
# the loss of the scores was optimised; the total of all four is what is printed.
@sick(
    "no-gradient",
    where="the heads of position, dimension and angle, all steps", cure="back-propagate the total",
)  # fmt: skip
def detector_with_one_of_four_losses_optimised(folder, ill):
    seeded(1401)
    body = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(256, 64), nn.ReLU(),
    )  # fmt: skip
    sizes = {"score": 1, "position": 2, "dimension": 2, "angle": 2}
    heads = nn.ModuleDict({name: nn.Linear(64, size) for name, size in sizes.items()})
    net = nn.ModuleDict({"body": body, "heads": heads})
    optimizer = optim.Adam(net.parameters(), 1e-3)

    def losses_of():
        image, truth = boxes()
        found, there = body(image), truth["score"][:, None]
        parts = {"score": F.binary_cross_entropy_with_logits(heads["score"](found), there)}
        for name in ("position", "dimension", "angle"):
            parts[name] = (F.smooth_l1_loss(heads[name](found), truth[name], reduction="none") * there).mean()
        return parts

    def score():
        with torch.no_grad():
            return sum(float(sum(losses_of().values())) for _ in range(8)) / 8

    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(net, optimizer)}
    watch = gradwatch.watch(net, optimizer, **options)
    with watch:
        for _ in range(200):
            parts = losses_of()
            total = sum(parts.values())
            loss = parts["score"] if ill else total
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.log(loss=total, **parts)
    return Outcome(gradwatch.open_history(watch.dir), first, score())


# From an issue of a repository for segmentation ("my training loss didn't changed, why?"): "set less learning rate".
@sick(
    "lr-too-high", "update-too-large",
    where="all layers, the first steps", cure="a rate of 3e-3",
)  # fmt: skip
def segmentation_with_adam_at_a_tenth(folder, ill):
    """Discs and squares on noise, a class for each pixel."""
    seeded(1402)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.Upsample(scale_factor=2), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.Upsample(scale_factor=2), nn.Conv2d(32, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 3, 1),
    )  # fmt: skip
    line = torch.linspace(-1, 1, 16)
    rows, columns = torch.meshgrid(line, line, indexing="ij")

    def loss_of(step):
        at, size = torch.rand(16, 2, 1, 1) - 0.5, 0.2 + 0.3 * torch.rand(16, 1, 1)
        x, y = columns - at[:, 0], rows - at[:, 1]
        round_ = (torch.rand(16, 1, 1) < 0.5).expand(16, 16, 16)
        inside = torch.where(round_, (x**2 + y**2).sqrt() < size, torch.maximum(x.abs(), y.abs()) < size)
        truth = torch.where(inside, torch.where(round_, 1, 2), 0)
        image = torch.where(inside, torch.where(round_, 1.0, 0.4), 0.0) + 0.1 * torch.randn(16, 16, 16)
        return F.cross_entropy(net(image[:, None]), truth)

    make = optim.Adam(net.parameters(), 0.1 if ill else 3e-3)
    return fit(folder, net, make, loss_of, 120, score=score_of(loss_of))


# From a pull request to a library for reinforcement learning of language models: num_training_steps of the schedule
# was the number of batches of training, each of which has several steps of the optimizer.
@sick(
    "weights-unchanged", "schedule-too-short", "update-too-small",
    where="all layers, from the first eighth of the run on: the rate is zero",
    cure="count the steps of the optimizer",
)  # fmt: skip
def answers_whose_schedule_counts_batches(folder, ill):
    """Answers of five tokens to a prompt, a share of the reward for each right one; eight steps a batch (PPO)."""
    seeded(1403)
    net, rule, held = dense(8, 64, 5 * 6, act=nn.Tanh), torch.randn(5, 8, 6), {}
    rounds, per_batch = 40, 8
    make = optim.AdamW(net.parameters(), 3e-3)
    total = rounds if ill else rounds * per_batch
    plan = optim.lr_scheduler.LambdaLR(make, lambda s: max(0.0, 1 - s / total))

    def policy(prompt):
        return torch.distributions.Categorical(logits=net(prompt).view(-1, 5, 6))

    def reward_of(prompt, answer):
        return (answer == torch.einsum("bi,kij->bkj", prompt, rule).argmax(2)).float().mean(1)

    def loss_of(step):
        if step % per_batch == 0:
            with torch.no_grad():
                held["prompt"] = torch.randn(256, 8)
                held["answer"] = policy(held["prompt"]).sample()
                held["old"] = policy(held["prompt"]).log_prob(held["answer"])
                reward = reward_of(held["prompt"], held["answer"])
                held["advantage"] = (reward - reward.mean()) / (reward.std() + 1e-6)
                held["reward"] = float(reward.mean())
        part = slice(32 * (step % per_batch), 32 * (step % per_batch) + 32)
        ratio = (policy(held["prompt"][part]).log_prob(held["answer"][part]) - held["old"][part]).exp()
        advantage = held["advantage"][part, None]
        loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        return loss, {"reward": held["reward"]}

    def score():
        with torch.no_grad():
            prompt = torch.randn(1024, 8)
            return 1 - float(reward_of(prompt, policy(prompt).sample()).mean())

    return fit(folder, net, make, loss_of, rounds * per_batch, schedule=plan, score=score)


# From an issue of a repository for pictures by diffusion ("Gradient accumulation logic might be incorrect?"):
# zero_grad() at the start of each micro-batch, so that only the last of them is left for the step.
@sick(
    "noise-dominated", "accumulation-wiped",
    where="all layers, all steps: a step sees one micro-batch of sixteen", cure="zero_grad() after the step",
)  # fmt: skip
def flow_whose_micro_batches_wipe_each_other(folder, ill):
    """Flow matching from noise to a ring; sixteen micro-batches of two. The score: how far the radii are from 2."""
    seeded(1404)
    net = dense(3, 64, 64, 2, act=nn.SiLU)
    make = optim.AdamW(net.parameters(), 1e-2)

    def loss_of(step):
        x, z, t = circle(2), torch.randn(2, 2), torch.rand(2, 1)
        return F.mse_loss(net(torch.cat([t * x + (1 - t) * z, t], 1)), x - z) / 16

    def score():
        x = torch.randn(1024, 2)
        with torch.no_grad():
            for part in range(20):
                x = x + net(torch.cat([x, torch.full((1024, 1), part / 20)], 1)) / 20
        return float((x.norm(dim=1) - 2).abs().mean())

    def before(step):
        if ill:
            make.zero_grad()

    return fit(folder, net, make, loss_of, 200, accumulate=16, before_backward=before, score=score)


class Cubic(nn.Module):
    """`weights @ known + bias`, as it was written, in double precision."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(3 * torch.randn(20, 80, dtype=torch.float64))
        self.bias = nn.Parameter(3 * torch.randn(1, dtype=torch.float64))

    def forward(self, known):
        return self.weights @ known + self.bias


# From a question on a forum for statistics ("Loss is growing between epochs in simple model"): the raw values of a
# cubic function, up to a thousand, a summed loss and a rate of 1e-6.
@sick(
    "lr-too-high", "exploding", "inputs-not-normalised", "update-too-large",
    where="the weights, from the first step", cure="a rate of 1e-7",
)  # fmt: skip
def cubic_continued_from_raw_values(folder, ill):
    seeded(1405)
    x = torch.linspace(-10, 10, 100, dtype=torch.float64)
    y = x**3 + x**2 + x
    net, loss = Cubic(), nn.MSELoss(reduction="sum")

    def loss_of(step):
        return loss(net(y[:80]), y[80:])

    make = optim.SGD(net.parameters(), 1e-6 if ill else 1e-7)
    return fit(folder, net, make, loss_of, 15, score=score_of(loss_of, 1))


class Signals(nn.Module):
    """`nn.Transformer` from eight signals to how they go on."""

    def __init__(self, width=32):
        super().__init__()
        self.read, self.write, self.head = nn.Linear(8, width), nn.Linear(8, width), nn.Linear(width, 8)
        self.place = nn.Parameter(0.1 * torch.randn(10, width))
        self.body = nn.Transformer(width, 4, 1, 1, 2 * width, dropout=0.0, batch_first=True)

    def forward(self, x, begun):
        mask = nn.Transformer.generate_square_subsequent_mask(begun.shape[1])
        return self.head(self.body(self.read(x) + self.place, self.write(begun), tgt_mask=mask))


# From a page about a thread ("PyTorch transformer, multidimensional output is the same"): torch.zeros as the decoder's
# input.
@sick(
    "no-progress", "decoder-sees-nothing",
    where="the decoder, all steps: the same at each place of a sequence", cure="the truth, one step behind",
)  # fmt: skip
def decoder_that_is_given_zeros(folder, ill):
    seeded(1406)
    net = Signals()

    def loss_of(step):
        phase, pace = 6.2832 * torch.rand(16, 1, 8), 0.3 + 0.6 * torch.rand(16, 1, 8)
        wave = (phase + pace * torch.arange(17.0)[None, :, None]).sin()
        x, y = wave[:, :10], wave[:, 9:]
        begun = torch.zeros_like(y[:, :-1]) if ill else y[:, :-1]
        return F.mse_loss(net(x, begun), y[:, 1:])

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 150, score=score_of(loss_of))


# From a thread on a forum ("Output of the model depends on the shape of the weights tensor"): `[1024, 1]` against
# `[1024]`, and the warning ignored.
@sick(
    "shapes-broadcast",
    where="the loss, all steps", cure="y.unsqueeze(1)",
)  # fmt: skip
def sum_of_three_against_a_row_of_sums(folder, ill):
    """The score is how many digits are right."""
    seeded(1407)
    x = torch.rand(1024, 3)
    y, net, seen = x.sum(1), nn.Sequential(nn.Linear(3, 1, bias=False)), {}
    nn.init.zeros_(net[0].weight)
    make = optim.SGD(net.parameters(), 0.1)
    plan = optim.lr_scheduler.ReduceLROnPlateau(make, "min", factor=0.5, patience=20)

    def loss_of(step):
        loss = seen["loss"] = F.mse_loss(net(x), y if ill else y.unsqueeze(1))
        return loss

    def after(step):
        plan.step(seen["loss"].detach())

    def score():
        with torch.no_grad():
            return float((F.mse_loss(net(x)[:, 0], y) + 1e-14).log10())

    return fit(folder, net, make, loss_of, 200, after_step=after, score=score)

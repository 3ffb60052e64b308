"""Every ordinary disease on every ordinary task, and what is well although it looks unusual: some thousand trainings.

A disease changes the recipe of a task and names the root findings that an expert would accept. Whether the training is
sick of it is judged by its score beside that of the untouched recipe. `scripts/bench/judgement_grid.py` trains and
judges them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from grid_tasks import Batch, Task, regret
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler
from unseen import Outcome, fit, score_of

from gradwatch import ClipByGlobalNorm


@dataclass
class Recipe:
    """What a training is made of; a disease changes it."""

    task: Task
    net: nn.Module
    data: Batch
    held_out: Batch
    lr: float
    steps: int
    optimizer: Callable[..., optim.Optimizer]
    settings: dict[str, Any] = field(default_factory=dict)  # of the optimizer
    called: Callable[..., Tensor] | None = None  # in the net's place
    trained: nn.Module | None = None  # whose parameters the optimizer has
    weight: Callable[[int], float] = lambda step: 1.0  # of the loss, at a step
    schedule: Callable[[optim.Optimizer], lr_scheduler.LRScheduler] | None = None
    loop: dict[str, Any] = field(default_factory=dict)  # arguments of `fit`

    @classmethod
    def of(cls, task: Task) -> Recipe:
        torch.manual_seed(3)
        return cls(task, task.net(), task.data(0), task.data(9), task.lr, task.steps, task.optimizer)

    @property
    def weights(self) -> list[Tensor]:
        return [p.data for p in self.net.parameters() if p.dim() > 1]

    @property
    def by_adam(self) -> bool:
        return self.optimizer in (optim.Adam, optim.AdamW)

    @property
    def by_sgd(self) -> bool:
        return isinstance(self.optimizer, partial)

    def change_data(self, change: Callable[..., tuple[Tensor, ...]], held_out: bool = True) -> None:
        """Of each batch, the held-out ones too where those are of the same kind."""
        for name in ("data", "held_out") if held_out else ("data",):
            batch = getattr(self, name)
            setattr(self, name, lambda step, batch=batch: change(*batch(step)))

    def train(self, folder) -> Outcome:
        task, call = self.task, self.called or self.net
        optimizer = self.optimizer((self.trained or self.net).parameters(), lr=self.lr, **self.settings)
        asked = regret if task.name.startswith("bandit") else task.loss

        def score():
            call.eval()
            worth = score_of(lambda step: asked(call, *self.held_out(step)), 6)()
            call.train()
            return worth

        torch.manual_seed(5)
        return fit(
            folder,
            self.net,
            optimizer,
            lambda step: task.loss(call, *self.data(step)) * self.weight(step),
            self.steps,
            score=score,
            schedule=self.schedule and self.schedule(optimizer),
            **self.loop,
        )


class DoesNotFit(Exception):
    """A change makes no sense of this task."""


Change = Callable[[Recipe], object]  # raises DoesNotFit
DISEASES: dict[str, tuple[Change, frozenset[str]]] = {}
VARIANTS: dict[str, Change] = {}


def disease(*expected: str):
    def register(change: Change) -> Change:
        DISEASES[change.__name__.replace("_", "-")] = change, frozenset(expected)
        return change

    return register


def variant(change: Change) -> Change:
    VARIANTS[change.__name__.replace("_", "-")] = change
    return change


TOO_SMALL = ("update-too-small", "no-progress")
TOO_LARGE = ("lr-too-high", "update-too-large", "exploding", "nonfinite")

# ------------------------------------------------------------------------------------------------ rates and schedules


@disease(*TOO_LARGE, "dead-layer", "weight-growth", "spike")
def rate_times_100(r):
    r.lr *= 100


@disease(*TOO_LARGE, "dead-layer", "weight-growth", "spike")
def rate_times_20(r):
    r.lr *= 20


@disease(*TOO_SMALL)
def rate_over_1000(r):
    r.lr /= 1000


@disease(*TOO_SMALL)
def rate_over_100(r):
    r.lr /= 100


@disease(*TOO_LARGE, "dead-layer", "weight-growth")
def adam_at_the_rate_of_sgd(r):
    if not r.by_sgd:
        raise DoesNotFit
    r.optimizer, r.lr = optim.Adam, 0.1


@disease(*TOO_SMALL)
def sgd_at_the_rate_of_adam(r):
    if not r.by_adam:
        raise DoesNotFit
    r.optimizer, r.lr = optim.SGD, 1e-4


@disease("schedule-ran-out", *TOO_SMALL, "weights-unchanged")
def decays_each_batch(r):
    r.schedule = lambda o: lr_scheduler.ExponentialLR(o, 0.9)


@disease("schedule-ran-out", *TOO_SMALL, "weights-unchanged")
def epochs_counted_as_batches(r):
    r.schedule = lambda o: lr_scheduler.StepLR(o, 15, 0.1)


@disease("warmup-too-long", *TOO_SMALL)
def warmup_longer_than_the_run(r):
    r.schedule = lambda o: lr_scheduler.LambdaLR(o, lambda s: (s + 1) / 100_000)


@disease(*TOO_LARGE, "spike", "restart", "weight-growth", "dead-layer")
def rate_raised_midway(r):
    r.schedule = lambda o: lr_scheduler.LambdaLR(o, lambda s: 1 if s < r.steps / 2 else 200)


@disease(*TOO_LARGE, "spike", "weight-growth", "dead-layer")
def rate_that_rises_all_the_time(r):
    r.schedule = lambda o: lr_scheduler.LambdaLR(o, lambda s: 2000 ** (s / r.steps))


# ----------------------------------------------------------------------------------------------- settings of optimizers


@disease("weights-shrink", "vanishing", "no-progress", "weight-decay-too-strong")
def weight_decay(r):
    r.settings["weight_decay"] = 60.0 if r.optimizer is optim.AdamW else 2.0 if r.by_sgd else 0.5


@disease("below-epsilon", *TOO_SMALL)
def epsilon_of_ten(r):
    if not r.by_adam:
        raise DoesNotFit
    r.settings["eps"] = 10.0


@disease(*TOO_LARGE, "noise-dominated", "weight-growth")  # whose cause names the momentum
def momentum_near_one(r):
    if not r.by_sgd:
        raise DoesNotFit
    r.settings["momentum"] = 0.999


@disease(*TOO_LARGE, "noise-dominated", "spike")
def second_beta_below_the_first(r):
    if not r.by_adam:
        raise DoesNotFit
    r.settings["betas"], r.lr = (0.9, 0.3), r.lr * 5


# ----------------------------------------------------------------------------------------------------- begin and end


@disease(
    "bad-initialisation",
    "exploding",
    "lr-too-high",
    "weight-growth",
    "imbalance",
    "dead-layer",
    "vanishing",
    *TOO_SMALL,
)
def initial_weights_times_10(r):
    for w in r.weights:
        w.mul_(10)


@disease("bad-initialisation", "vanishing", "dead-layer", *TOO_SMALL, "update-too-large")
def initial_weights_over_100(r):
    for w in r.weights:
        w.mul_(0.01)


@disease("bad-initialisation", "vanishing", "dead-layer", *TOO_SMALL, "weights-unchanged")
def initial_weights_of_zero(r):
    for w in r.weights:
        w.zero_()


@disease("dead-layer", "dead-units", "vanishing", *TOO_SMALL, "bad-initialisation")
def dead_from_the_start(r):
    if not any(isinstance(m, nn.ReLU) for m in r.net.modules()):
        raise DoesNotFit
    layers = [m for m in r.net.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    for layer in layers[:-1]:
        layer.bias.data.fill_(-30.0)


@disease("nonfinite")
def nan_at_one_step(r):
    r.weight = lambda step: math.nan if step == 100 else 1.0


@disease("nonfinite", "spike")
def overflow_at_one_step(r):
    r.weight = lambda step: 1e30 if step == 60 else 1.0


# ------------------------------------------------------------------------------------------------- gradients on the way


@disease("gradients-accumulate")
def gradients_never_zeroed(r):
    r.loop["zero_grad"] = False


@disease("no-gradient", "weights-unchanged", "no-progress")
def zeroed_before_the_step(r):
    r.loop["before_step"] = lambda step: r.net.zero_grad()


@disease("clip-is-your-learning-rate", *TOO_SMALL)
def clipped_to_nothing(r):
    if not r.by_sgd:
        raise DoesNotFit
    r.loop["clip"] = ClipByGlobalNorm(1e-4)


@disease("clip-is-your-learning-rate", *TOO_SMALL)
def clipped_to_nothing_by_the_loop(r):
    if not r.by_sgd:
        raise DoesNotFit
    r.loop["before_step"] = lambda step: nn.utils.clip_grad_norm_(r.net.parameters(), 1e-4)


@disease("clip-is-your-learning-rate", *TOO_SMALL, "below-epsilon")
def elements_clipped_to_nothing(r):
    if not r.by_sgd:
        raise DoesNotFit
    r.loop["before_step"] = lambda step: nn.utils.clip_grad_value_(r.net.parameters(), 1e-6)


@disease("no-gradient", "weights-unchanged")
def body_frozen(r):
    for p in list(r.net.parameters())[:-2]:
        p.requires_grad_(False)


@disease("weights-unchanged", "no-gradient", "no-progress")
def another_net_is_trained(r):
    r.trained = copy.deepcopy(r.net)


@disease("weights-put-back", "weights-unchanged", *TOO_SMALL)
def weights_put_back(r):
    first = [p.data.clone() for p in r.net.parameters()]

    def back(step):
        with torch.no_grad():
            for p, begin in zip(r.net.parameters(), first, strict=True):
                p.lerp_(begin, 0.9)

    r.loop["after_step"] = back


# --------------------------------------------------------------------------------------------------- losses and data


@disease(
    "exploding", "lr-too-high", "update-too-large", "loss-not-averaged", "nonfinite", "dead-layer", "weight-growth"
)
def loss_summed(r):
    if not r.by_sgd:
        raise DoesNotFit
    r.weight = lambda step: 384.0 if r.task.tokens else 64.0


@disease(*TOO_LARGE, "scaled-gradients", "dead-layer", "weight-growth")
def loss_times_1024(r):
    if not r.by_sgd:
        raise DoesNotFit
    r.weight = lambda step: 1024.0


@disease(*TOO_SMALL, "vanishing", "below-epsilon")
def loss_over_a_million(r):
    if not r.by_sgd:
        raise DoesNotFit
    r.weight = lambda step: 1e-6


@disease("below-epsilon", *TOO_SMALL)
def loss_over_ten_thousand_millions(r):
    if not r.by_adam:
        raise DoesNotFit
    r.weight = lambda step: 1e-10


@disease("no-progress", "exploding", "negative-loss", "weight-growth", "nonfinite", "lr-too-high")
def wrong_sign(r):
    r.weight = lambda step: -1.0


@disease("spike")
def a_bad_batch_each_30(r):
    r.weight = lambda step: 3000.0 if step % 30 == 29 else 1.0


@disease("softmax-twice", "no-progress", "vanishing")
def softmax_twice(r):
    if not r.task.classes:
        raise DoesNotFit

    class Softmax(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x).softmax(-1)

    r.called = Softmax(r.net)


@disease(
    "exploding",
    "lr-too-high",
    "imbalance",
    "update-too-large",
    "spike",
    "inputs-not-normalised",
    "nonfinite",
    "dead-layer",
)
def inputs_times_255(r):
    if r.task.tokens:
        raise DoesNotFit
    r.change_data(lambda x, y: (x * 255, y))


@disease("vanishing", *TOO_SMALL, "imbalance", "dead-layer", "inputs-not-normalised")
def inputs_over_1000(r):
    if r.task.tokens:
        raise DoesNotFit
    r.change_data(lambda x, y: (x / 1000, y))


@disease(
    "exploding",
    "lr-too-high",
    "dead-layer",
    "update-too-large",
    "spike",
    "nonfinite",
    *TOO_SMALL,
    "inputs-not-normalised",
)
def targets_times_1000(r):
    if not r.task.name.startswith(("regress", "lstm", "recommender", "denoise")):
        raise DoesNotFit
    r.change_data(lambda x, y: (x, y * 1000))


@disease("no-progress", "noise-dominated")
def labels_shuffled(r):
    r.change_data(lambda x, y: (x, y[torch.randperm(len(y))]), held_out=False)


@disease("noise-dominated", "no-progress", "dropout-too-strong", "spike")
def dropout_of_all_but_a_fiftieth(r):
    if not isinstance(r.net, nn.Sequential) or any(isinstance(m, nn.Conv2d) for m in r.net):
        raise DoesNotFit
    acts = (nn.ReLU, nn.Tanh, nn.SiLU)
    r.net = nn.Sequential(*[part for m in r.net for part in ([m, nn.Dropout(0.98)] if isinstance(m, acts) else [m])])

"""Trainings that no rule was written for: what an expert would say of each is written beside it, before a rule sees it.

Whether one is sick is judged by its loss against that of its cured twin, never by gradwatch. A folder is a group. Of
`first` some may be looked at while rules are changed (`tuning`); as many, which `HELD_OUT` names, are counted once
(`held out`). Those of the other folders were written later, each by somebody who had not read the rules, and counted
once before whoever changes rules looked at them: `blind`, `fresh`, `novel`; then `reported`, `asked`, `told`, `met`,
`sent`, `heard`, `threads`, `posted`, `solved`, `brought`, `raised`, `gathered`, `collected`, `picked`, `noted`,
`traced`, `shared`, `quoted` and `pooled`, whose sick ones are mistakes that people made and asked or told about in
public; `daily`, the mishaps that engineers meet most often, drawn by lot; `common`, healthy ones of an unusual make;
`typical`, drawn by lot from published taxonomies of faults, or as a search met them in bug reports; `visible` and, by
others who were asked the same, `again`, `anew`, `afresh`, `further`, `onward` and `beyond`, mistakes that show in what
is recorded, as their authors think, paired with tasks by lot; `searched`, of each of 36 usual questions the
first thread with a cause that a search gave, whatever stood in a group before; `taught`, drawn by lot from all mistakes
that published guides warn of; `closed`, drawn by lot from causes that were found in closed issues of many libraries;
and, the latest, `listed`, `recalled`, `remembered`, `known`, `familiar`, `everyday`, `usual`, `regular`, `habitual`,
`ordinary`, `routine`, `standard`, `general`, `prevalent`, `frequent`, `customary` and `workaday`, drawn by lot from 40
mistakes each that their authors had listed from memory. The next have to be written first. `unseen.every` imports every
one.

Of `prevalent` the authors saw, as they first tried their trainings, what gradwatch said on stderr of the first versions
of 29 of the 36 sick ones (all but one's seven). What an expert would say had been written by then, and was not changed
but for a synonym; what they changed in the trainings they say they chose by the scores alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from nets import SEED
from torch import nn
from torch.nn import functional as F
from trainings import TREATMENT

import gradwatch


@dataclass(frozen=True)
class Outcome:
    """What a training was worth: its History, and its score at first and last (lower is better, inf if not finite)."""

    history: gradwatch.History
    first: float
    last: float


@dataclass(frozen=True)
class Sick:
    """`train(folder, ill)`: the sick training, or with `ill` False the same with the expert's cure.

    `expected` are the names of root findings that an expert would accept, names that no finding has yet among them.
    `where` are the layers and steps that matter.
    """

    name: str
    expected: frozenset[str]
    where: str
    cure: str
    train: Callable[[Path, bool], Outcome]


@dataclass(frozen=True)
class Healthy:
    """A training that learns: its score falls by the share `gain` of what it was at first. Nothing is wrong with it."""

    name: str
    train: Callable[[Path], Outcome]
    gain: float


# By name, for good: a training that is added never moves another from one half to the other.
HELD = """
    adam-epsilon-of-ten all-units-equal attention-over-an-empty-row body-at-a-millionth-of-the-heads-rate
    decoupled-decay-of-thirty dropout-of-all-but-a-hundredth epoch-schedule-stepped-per-batch
    gain-of-zero-on-the-only-path labels-shuffled-apart loss-with-the-wrong-sign momentum-near-one
    one-column-in-thousands restart-to-a-hundredfold-rate saturated-tanh summed-loss-with-the-rate-of-a-mean
    warmup-longer-than-the-run

    batch-norm-left-in-eval body-detached-from-its-head float16-without-a-scaler inputs-in-millionths
    one-batch-a-thousandfold optimizer-made-before-the-head-was-replaced returns-in-the-thousands
    scaler-that-never-comes-down table-at-a-thousandfold-rate units-biased-to-death zeroed-between-backward-and-step

    adapters-of-low-rank diffusion-of-a-ring experts-with-a-balance lbfgs-to-the-last-digit muon-on-the-matrices
    proximal-policy rare-words-by-plain-sgd sines-for-activations student-of-its-own-average
    thresholds-with-a-straight-through-estimator twelve-steps wasserstein-with-clamped-critic
    weight-norm-on-each-layer

    curriculum-of-longer-lists five-thousand-tiny-steps game-of-least-squares lion-by-hand memory-of-the-first-token
    one-row-at-a-time preferences scored-by-its-average thirty-steps-from-nothing tuning-what-is-good-already
    two-tasks-with-weights-of-their-own variational-autoencoder warm-restarts
"""
HELD_OUT = frozenset(HELD.split())

SICK: dict[str, Sick] = {}
HEALTHY: dict[str, Healthy] = {}
Of = TypeVar("Of", Sick, Healthy)


def sick(*expected: str, where: str, cure: str):
    """Registers a sick training with an expert's opinion of it."""

    def register(train):
        name = train.__name__.replace("_", "-")
        assert name not in SICK | HEALTHY
        SICK[name] = Sick(name, frozenset(expected), where, cure, train)
        return train

    return register


def healthy(gain: float = 0.3):
    """Registers a training that goes well."""

    def register(train):
        name = train.__name__.replace("_", "-")
        assert name not in SICK | HEALTHY
        HEALTHY[name] = Healthy(name, train, gain)
        return train

    return register


# The folders that only count, in the order in which they were written.
UNNAMED = (
    "blind", "fresh", "novel", "reported", "asked", "told", "met", "sent", "heard", "daily", "common", "typical",
    "visible", "again", "anew", "afresh", "further", "onward", "beyond", "threads", "posted", "solved",
    "brought", "raised", "gathered", "collected", "picked", "noted", "traced", "shared", "quoted", "pooled", "searched",
    "taught", "closed", "listed", "recalled", "remembered", "known", "familiar",
    "everyday", "usual", "regular", "habitual", "ordinary", "routine", "standard",
    "general", "prevalent", "frequent", "customary", "workaday",
)  # fmt: skip


def group(training: Sick | Healthy) -> str:
    """Which of the groups it belongs to."""
    folder = training.train.__module__.rpartition(".")[0].removeprefix("unseen.")
    if folder in UNNAMED:
        return folder
    return "held out" if training.name in HELD_OUT else "tuning"


def of_group(of: dict[str, Of], wanted: str) -> list[Of]:
    """In the order of their names. Only those of "tuning" may be looked at while rules are changed; others only count.

    Nor are the names of those in `UNNAMED` shown: `label`.
    """
    return [training for _, training in sorted(of.items()) if group(training) == wanted]


def label(training: Sick | Healthy) -> str:
    """Its name; of one in `UNNAMED`, whose name would say what is wrong with it, its place among them."""
    its_group = group(training)
    if its_group not in UNNAMED:
        return training.name
    kind = "sick" if isinstance(training, Sick) else "healthy"
    return f"{its_group} {kind} {_order(kind, its_group, len(SICK) + len(HEALTHY))[training.name]}"


@functools.cache
def _order(kind: str, its_group: str, known: int) -> dict[str, int]:
    """The place of each of a group, from 1 on, when so many trainings are known."""
    names = (training.name for training in of_group(SICK if kind == "sick" else HEALTHY, its_group))
    return {name: place for place, name in enumerate(names, 1)}


def learns(outcome: Outcome, gain: float) -> bool:
    """Its score fell by the share `gain` of its first one."""
    return outcome.first - outcome.last >= gain * abs(outcome.first)


def clearly_worse(ill: Outcome, cured: Outcome, slack: float = 1.0) -> bool:
    """A tenth of what the cured twin won is missing at least and, of a score above zero, three tenths more is left.

    `slack` times that: processors differ in the last digit, and so does what comes of a training.
    """
    if not math.isfinite(ill.last):
        return math.isfinite(cured.last)
    missing = ill.last - cured.last
    enough = missing >= 0.1 * slack * abs(cured.first - cured.last)
    return enough and (cured.last <= 0 or missing >= 0.3 * slack * cured.last)


def fault(training: Sick | Healthy, folder: Path, slack: float = 1.0) -> str | None:
    """What its scores say against it; None where it is what it is said to be, or by the share `slack` of that."""
    if isinstance(training, Healthy):
        outcome = training.train(folder)
        return (
            None
            if learns(outcome, slack * training.gain)
            else f"does not learn: {outcome.first:.4g}, {outcome.last:.4g}"
        )
    ill, cured = (training.train(folder / str(state), state) for state in (True, False))
    if not learns(cured, 0.1 * slack):
        return f"the cured twin does not learn: {cured.first:.4g}, {cured.last:.4g}"
    return None if clearly_worse(ill, cured, slack) else f"hardly worse: {ill.last:.4g}, {cured.last:.4g}"


# ---------------------------------------------------------------------------------------------------------- training


def seeded(offset: int = 0) -> None:
    """All of a training draws from torch's own generator."""
    torch.manual_seed(1000 * offset + SEED[0])


def mean(values: Sequence[float]) -> float:
    average = sum(values) / len(values)
    return average if math.isfinite(average) else math.inf


def ends(losses: Sequence[float]) -> tuple[float, float]:
    """The mean of the first and of the last tenth."""
    n = max(1, len(losses) // 10)
    return mean(losses[: max(1, n // 2)]), mean(losses[-n:])


def fit(
    folder,
    net,
    optimizer,
    loss_of,
    steps,
    *,
    score=None,
    accumulate=1,
    zero_grad=True,
    closure=False,
    before_backward=None,
    before_step=None,
    after_step=None,
    schedule=None,
    scaler=None,
    **options,
) -> Outcome:
    """A plain loop under a Watch with the defaults that users have.

    `loss_of(step)` gives the loss, or the loss and a dict of other values to log. `score()`, lower is better, is asked
    before and after; without it the losses count. The optimizer closes over backward with `closure`; a `GradScaler` may
    stand around it.
    """
    losses = []
    options |= TREATMENT[-1].begin(net, optimizer)
    first = score() if score else None
    watch = gradwatch.watch(net, optimizer, **{"log": None, "dir": folder, "verbose": False, **options})

    def one(step):
        loss = loss_of(step)
        loss, logged = loss if isinstance(loss, tuple) else (loss, {})
        if before_backward:
            before_backward(step)
        (scaler.scale(loss) if scaler else loss).backward()
        return loss, logged

    def again(step):
        optimizer.zero_grad()
        return one(step)[0]

    with watch:
        for step in range(steps):
            if zero_grad:
                optimizer.zero_grad()
            if closure:
                loss, logged = optimizer.step(lambda step=step: again(step)), {}
            else:
                for part in range(accumulate):
                    loss, logged = one(step * accumulate + part)
                if before_step:
                    before_step(step)
                if scaler:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()
            if after_step:
                after_step(step)
            if schedule:
                schedule.step()
            losses.append(float(loss.detach()))
            watch.log(loss=loss, **logged)
    history = gradwatch.open_history(watch.dir)
    if score is None:
        return Outcome(history, *ends(losses))
    last = float(score())
    return Outcome(history, float(first), last if math.isfinite(last) else math.inf)


def score_of(loss_of, times=8):
    """`score()`: the mean of `times` losses, without gradients."""

    def score():
        with torch.no_grad():
            return mean([float(loss_of(step)) for step in range(times)])

    return score


# ------------------------------------------------------------------------------------------------------- data and nets


def dense(*sizes, act=nn.ReLU, norm=None):
    """Linear layers with `act` between them."""
    parts = []
    for i in range(len(sizes) - 1):
        parts.append(nn.Linear(sizes[i], sizes[i + 1]))
        if i < len(sizes) - 2:
            parts += [*([norm(sizes[i + 1])] if norm else []), act()]
    return nn.Sequential(*parts)


def rings(batch=64, classes=4, size=12):
    """`draw()`: a classification that no linear map solves; `[B, size]` and `[B]`."""
    lift = torch.randn(2, size)

    def draw():
        y = torch.randint(classes, (batch,))
        angle = 6.2832 * torch.rand(batch)
        flat = torch.stack([angle.cos(), angle.sin()], 1) * (0.5 + y[:, None] * 0.6)
        return (flat + 0.05 * torch.randn(batch, 2)) @ lift, y

    return draw


def entropy_of(net, draw):
    """`loss_of(step)`: the cross-entropy of a net on what is drawn."""

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    return loss_of


def waves(batch=64, size=6):
    """`draw()`: a smooth function of several inputs; `[B, size]` and `[B, 1]`."""
    way = torch.randn(size, 3)

    def draw():
        x = torch.randn(batch, size)
        return x, (x @ way).sin().sum(1, keepdim=True)

    return draw


def square_of(net, draw):
    """`loss_of(step)`: the mean squared error of a net on what is drawn."""

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    return loss_of

"""What one run amounts to: its final values, when it reached a target, whether it diverged, how fast it was.

Legend: T recorded steps, N logged values of a scalar.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.clips import incoming
from gradwatch.history import Floats, History, Run
from gradwatch.policies.intervention import NONE, Intervention
from gradwatch.storage.logged_names import is_loss, is_reward, is_training_loss
from gradwatch.table import WAS_NAN

NO_POLICY = NONE
ARGS = "args."  # before the params that are the script's own arguments
SMOOTH = 20  # values of a scalar of every step that are averaged: one batch's loss is mostly noise
# `manualSeed`: a capital begins a word as well
_SEED = re.compile(r"(^|[^a-z]|(?-i:(?<=[a-z])(?=S)))(seeds?|random_?state)(/[\w-]+)?$", re.IGNORECASE)
_TRAINING = re.compile(r"(train(ing)?\W?_?)?loss", re.IGNORECASE)
ABOVE = 1.1  # times the loss before training: more than the noise of a batch in a run that learns nothing
FEW = 10  # dropped steps in a row: a loss scale that finds its size again, not an end


def policy_text(run: Run) -> str:
    """What was done to the training, as code: `ClipByGlobalNorm(1.0) + MaxNorm(3.0) + lr_scale=0.1`, or `none`; of an
    imported run it is `not known`.
    """
    if run.source:
        return "not known"
    return Intervention.of(run).label


def final(history: History, name: str) -> float:
    """The last value of a logged scalar; NaN when there is none, or when the run was lost after it (`lost_since`).

    Of a scalar that was logged on most steps (a training loss), the mean of the last 20 values, or of the last
    twentieth of them where they are fewer than 400.
    """
    values, width = _logged(history, name)
    known, lost = np.flatnonzero(np.isfinite(values)), lost_since(history)
    ended = told(history, name)[-1:]
    if len(ended) and not np.isfinite(ended[0]):
        return float(ended[0])
    if not len(known) or (lost is not None and history.step[known[-1]] <= lost):
        return float("nan")
    return float(values[known[-width:]].mean())


def told(history: History, name: str) -> Floats:
    """The values of a scalar that were logged, NaN and inf among them."""
    values = history.total(name)
    return values[~np.isnan(values) | was_nan(history, name)]


def was_nan(history: History, name: str) -> NDArray[np.bool_]:
    """In which steps a scalar was logged as NaN, `[T]`; elsewhere a NaN in its column is a step in which it was not."""
    return np.asarray((history.total(f"{WAS_NAN}{name}") > 0) & np.isnan(history.total(name)))


def steps_to(history: History, name: str, target: float, high: bool) -> float:
    """The number of steps after which a logged scalar had reached `target` for the first time; inf when it never did.

    Of a scalar that was logged on most steps, the mean that `final` takes must reach it.
    """
    values, width = _logged(history, name)
    rows = np.flatnonzero(np.isfinite(values))
    if len(rows) < width:
        return float("inf")
    means = np.convolve(values[rows], np.ones(width), "valid") / width
    reached = np.flatnonzero(means >= target if high else means <= target)
    return float(history.step[rows[reached[0] + width - 1]] + 1) if len(reached) else float("inf")


def _logged(history: History, name: str) -> tuple[Floats, int]:
    """The scalar `[T]`, and how many of its values stand for one."""
    values = history.total(name)
    count = int(np.isfinite(values).sum())
    return values, int(np.clip(count // 20, 1, SMOOTH)) if 2 * count > len(values) else 1


def nonfinite_steps(history: History) -> int:
    """Number of steps in which any layer's gradient norm, or the total, was inf or NaN."""
    return int(nonfinite_rows(history).sum())


def nonfinite_rows(history: History) -> NDArray[np.bool_]:
    """Which steps had an inf or NaN gradient, `[T]`. Where the layers are reduced, the totals tell it exactly."""
    bad = (history.total("nonfinite") > 0) | np.isinf(history.total("grad_norm"))
    if not history.is_reduced:
        bad[history.layer_rows[(history.layer("nonfinite") > 0).any(axis=1)]] = True
    return np.asarray(bad)


def lost_since(history: History) -> int | None:
    """The first of the inf or NaN gradients that a part of the run ended in; None where all ended in finite ones.

    A few steps at the end that were dropped left the weights as they were, and are no end.
    """
    bad, dropped = nonfinite_rows(history), history.total("skipped") > 0
    since = []
    for rows in history.lane_rows().values():
        finite = np.flatnonzero(~bad[rows])
        tail = rows[finite[-1] + 1 :] if len(finite) else rows
        if len(tail) > FEW or not dropped[tail].all():
            since.append(int(history.step[tail[0]]))
    return min(since, default=None)


def untrained(history: History, name: str) -> float:
    """What a training loss or a held-out loss was before the first step; NaN where that is not known.

    A held-out loss that is first logged later began where the training loss did, if the two are of one scale: within a
    factor of two of each other, in the median over the run; and as far above it as it is over the run. Of parts that
    train against each other it is not known, nor of a run that goes on from another one; nor of an agent that gets more
    and more, as its values grow, and what they are off by.
    """
    held_out = is_loss(name) and not is_training_loss(name)
    late = len(history) > 0 and history.step[0] > (1 if history.run.source else 0)  # its first row is no beginning
    if not (held_out or _TRAINING.fullmatch(name)) or len(history.lane_rows()) != 1 or not len(history) or late:
        return float("nan")
    if any(_rises(history, other) for other in history.logged if is_reward(other) and not is_loss(other)):
        return float("nan")
    values = history.total(name)
    begin = _begun(values)
    training = history.total("loss")
    known, rows = np.flatnonzero(np.isfinite(training)), np.flatnonzero(np.isfinite(values))
    if np.isnan(begin) and held_out and len(known) and len(rows):
        near = np.interp(rows, known, training[known])
        with np.errstate(invalid="ignore", divide="ignore"):
            scale = np.nanmedian(values[rows] / near)
        begin = _begun(training) * max(1.0, float(scale)) if 0.5 < scale < 2 else begin
    return begin if 0 < begin < float("inf") else float("nan")


def _begun(values: Floats, few: int = 10) -> float:
    """The first value of a loss; the median of a `few` where that is higher, and as low ones come later too: what began
    trained has a first batch like others, what comes apart at once never gets back to its first.
    """
    soon, later = values[:few], values[few:]
    if not np.isfinite(soon).all() or not (later <= values[0]).any():
        return float(values[0])
    return float(max(values[0], np.median(soon)))


def quarters(history: History, metric: str) -> list[float]:
    """The medians of what was logged of a scalar in the four quarters of the run."""
    values = history.total(metric)
    return [float(np.median(part)) for part in np.array_split(values[np.isfinite(values)], 4)]


def _rises(history: History, metric: str, share: float = 0.2, least: int = 8) -> bool:
    """Whether the last of its `quarters` is above the first by a share of that."""
    if np.isfinite(history.total(metric)).sum() < least:
        return False
    first, *_, last = quarters(history, metric)
    return last - first > share * abs(first)


def diverged(history: History, metric: str = "") -> bool:
    """Whether the run ended in non-finite numbers: a part's last gradient, or the last loss that was logged.

    Of a loss as `metric` also whether it ended more than a tenth above what it was before training.
    """
    if final(history, metric) > ABOVE * untrained(history, metric):
        return True
    ended = [told(history, name)[-1:] for name in history.logged if is_loss(name)]
    return lost_since(history) is not None or any((~np.isfinite(values)).any() for values in ended)


def are_alike(histories: Sequence[History]) -> bool:
    """Whether runs are one run several times: the same gradient norms and logged values in every step, to the bit."""
    first, *others = histories
    names = ("grad_norm", *first.logged)
    return all(np.array_equal(first.total(n), other.total(n), equal_nan=True) for other in others for n in names)


def seconds_per_step(history: History) -> float:
    """The median time from one step to the next of an optimizer, in seconds; NaN for a single step."""
    times = history.total("time")
    steps = history.step
    gaps = np.concatenate([np.diff(times[rows]) / np.diff(steps[rows]) for rows in history.lane_rows().values()])
    known = gaps[np.isfinite(gaps)]
    return float(np.median(known)) if len(known) else float("nan")


def is_seed(key: str) -> bool:
    """Whether a param is the seed of a run: `seed`, `data_seed`, `random_state`, or that of a part: `seed/G`."""
    return _SEED.search(key) is not None


def seed_text(run: Run) -> str:
    """The seed of a run; of several, all of them; empty where the run does not say."""
    return ", ".join(seeds(run.params).values())


def seeds(params: Mapping[str, str]) -> dict[str, str]:
    """The params that tell runs of one setting apart, each once: not `args.seed` beside a `seed` that is the same."""
    found = {key: str(value) for key, value in params.items() if is_seed(key)}
    told = {value for key, value in found.items() if not key.startswith(ARGS)}
    return {key: value for key, value in found.items() if not key.startswith(ARGS) or value not in told}


def finite_norms(history: History) -> Floats:
    """The total gradient norms, before any clip that was seen, of all steps that had a finite one."""
    norms = incoming(history)
    return norms[np.isfinite(norms)]

"""The losses of a run: which are of the training data, which have a scale, and the batch that made one leap.

Legend: T recorded steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gradwatch.analysis.rules.facts import own_optimizers
from gradwatch.analysis.rules.sampled_losses import is_explained, own_targets_grow
from gradwatch.analysis.rules.schedule import raised_before
from gradwatch.history import Bools, Floats, History
from gradwatch.storage.logged_names import is_loss, is_training_loss

_OF_A_POLICY = re.compile(r"(^|[^a-z])(actor|policy|pi|pg)([^a-z]|$)", re.IGNORECASE)
_OF_AN_AGENT = re.compile(rf"{_OF_A_POLICY.pattern}|(^|[^a-z])(critic|value|vf?|qf?\d?|td)([^a-z]|$)", re.IGNORECASE)
EARLIEST = 4  # steps that tell a calm from the first ones of a training


def training_losses(history: History) -> list[str]:
    """The names of the losses of the training data, of two values at least.

    An actor's is none: it is what its critic thinks of it, of any size and either sign.
    """
    named = [n for n in history.logged if is_training_loss(n) and not _OF_A_POLICY.search(n)]
    return [n for n in named if np.isfinite(history.total(n)).sum() > 1]


def learnt(history: History, share: float = 1e-6) -> Bools:
    """Rows in which every training loss that was logged is next to nothing of what it was at first, `[T]`."""
    small = []
    for name in training_losses(history):
        values = history.total(name)
        small.append(np.abs(values) <= share * abs(values[np.flatnonzero(np.isfinite(values))[0]]))
    return np.all(small, axis=0) if small else np.zeros(len(history), bool)


def scaled_losses(history: History, nothing: float = 1e-6) -> dict[str, Floats]:
    """The training losses `[T]` by name whose size says something: not those that were below 0 early (first quarter).

    The loss of a policy gradient, summed over an episode, grows as its agent lives longer. Nor those that begin at 0,
    at less than `nothing` beside a gradient of 1 or more, or of a smaller one: GRPO's, a distance to how a model began.
    Nor any of a run that logs a loss of a policy or of values, by its name, or a policy beside values, as actor-critic
    methods do: that of the values rises with the return, and so does the sum of the two; nor where the targets show
    that (`own_targets_grow`).
    """
    if not has_rivals(history) and _logs_an_agent(history):
        return {}
    if own_targets_grow(history) or _rises_with_its_targets(history):
        return {}
    norm = history.total("grad_norm")
    least = nothing * min([1.0, *norm[np.isfinite(norm)][:1]])
    found = {name: history.total(name) for name in training_losses(history)}
    early = {name: first_quarter(values) for name, values in found.items()}
    return {n: values for n, values in found.items() if early[n].min() >= 0 and not early[n][0] < least}


def first_values(history: History, soon: int = 3) -> dict[str, float]:
    """The first value of each loss whose size says something (`scaled_losses`), by name: those that were logged in the
    `soon` first steps. One that comes at the end of an epoch is of weights that were trained.
    """
    first = {name: values for name, values in scaled_losses(history).items() if np.isfinite(values[:soon]).any()}
    return {name: float(first_quarter(values)[0]) for name, values in first.items()}


def _logs_an_agent(history: History) -> bool:
    """Whether a loss of a policy or of values is logged, or a policy and values under whatever name."""
    acts = [name for name in history.logged if _OF_A_POLICY.search(name)]
    known = [name for name in history.logged if _OF_AN_AGENT.search(name)]
    return any(map(is_loss, known)) or 0 < len(acts) < len(known)


def without_small_terms(losses: Mapping[str, Floats]) -> dict[str, Floats]:
    """The same without the terms `[T]` that stayed below where another loss began, which fell to less than half of it.

    What was next to nothing may grow a thousandfold and be little still.
    """
    known = {name: values[np.isfinite(values)] for name, values in losses.items()}
    fell = [v[0] for v in known.values() if len(v) > 10 and np.median(v[-5:]) < v[0] / 2]
    most = max(fell, default=0.0)
    return {name: losses[name] for name, v in known.items() if not len(v) or v[0] in fell or v.max() >= most}


def _rises_with_its_targets(history: History) -> bool:
    """Whether one training loss alone was logged, that ended above where it began, and the targets are explained."""
    values = [history.total(name) for name in training_losses(history)]
    known = [each[np.isfinite(each)] for each in values]
    rose = len(known) == 1 and len(known[0]) > 20 and np.median(known[0][-10:]) > np.median(known[0][:10])
    return bool(rose) and is_explained(history)


def first_quarter(values: Floats) -> Floats:
    """The finite values of a run's first quarter."""
    finite = values[np.isfinite(values)]
    return finite[: -(-len(finite) // 4)]


def over_tasks(history: History) -> History:
    """The same, with the means of a training loss over the tasks that take turns, where it is that of another task in
    each step: each in the step of the last one, and NaN in the others.
    """
    joined = {}
    for name in training_losses(history):
        values = history.total(name)
        turn = _turn(values)
        if turn > 1:
            joined[name] = np.full(len(values), np.nan)
            whole = len(values) // turn * turn
            joined[name][turn - 1 : whole : turn] = values[:whole].reshape(-1, turn).mean(axis=1)
    if not joined:
        return history
    return replace(history, by_step=replace(history.by_step, values={**history.per_step, **joined}))


def _turn(values: Floats, most: int = 8, share: float = 0.3, least: int = 20) -> int:
    """After how many steps a loss that was logged in each, `[T]`, is of the same task again, up to `most`; 1 of most
    losses. Then values so far apart differ by less than the `share` of what neighbours do, by the median.
    """
    turns = range(1, most + 1) if len(values) >= least * most and np.isfinite(values).all() else range(0)
    apart = [float(np.median(np.abs(values[turn:] - values[:-turn]))) for turn in turns]
    return next((turn for turn, each in zip(turns, apart, strict=True) if each < share * apart[0]), 1)


def has_rivals(history: History) -> bool:
    """Whether this is a part of a run, or one lane of several that have losses of their own.

    They have where one was logged that was not once seen here, or two of the training data in the same steps: most
    loops log those of all parts together, when the last one has stepped. Of a run of one lane a loss that was never
    finite is its own.
    """
    seen = [np.isfinite(history.total(name)).any() for name in history.logged if is_loss(name)]
    lane = len(own_optimizers(history)) < len(history.run.optimizers)
    several = lane and sum(map(is_training_loss, history.logged)) > 1
    alone = {o.get("name") for o in history.run.optimizers} == {*map(str, history.optimizer)}
    return history.run.part is not None or not (alone or all(seen)) or several


def odd_batch(history: History, times: float = 30.0, usual: int = 16) -> int | None:
    """The first row in which loss and norm leapt together out of a calm, to `times` the highest of `usual` before it.

    Steps that are too long throw a loss up over several of them, and the norm before the loss: only a batch does both
    in one step. Where fewer than `usual` came before it, and `EARLIEST` at least, both also have to be back in the
    eight that follow. None where a schedule had raised the rate, or where no such row is.
    """
    norm = history.total("grad_norm")

    def leapt(values: Floats, row: int) -> bool:
        before = values[max(0, row - usual) : row]
        out = before.min() > before.max() / times and not values[row] <= times * before.max()
        after = values[row + 1 : row + 9]
        return bool(out and (row >= usual or (len(after) and np.median(after) <= times / 10 * before.max())))

    for values in scaled_losses(history).values():
        with np.errstate(invalid="ignore", divide="ignore"):
            up = np.flatnonzero(np.isfinite(values[1:]) & ~(values[1:] <= times * values[:-1])) + 1
        for row in up[up >= EARLIEST]:
            if leapt(values, row) and leapt(norm, row) and not raised_before(history, int(row)):
                return int(row)
    return None

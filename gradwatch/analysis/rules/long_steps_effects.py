"""What steps that are far too long do to the weights, and to what is inside the model.

Legend: M measurements of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gradwatch.analysis.final_values import quarters
from gradwatch.analysis.rules.attention import has_attention
from gradwatch.analysis.rules.facts import middle, optimizer_kind, rates, settings, steps_by_rate
from gradwatch.analysis.rules.far_beginning import begins_small
from gradwatch.analysis.rules.finding import Evidence, Severity
from gradwatch.analysis.rules.layer_facts import directness, initial_gains, measured
from gradwatch.analysis.rules.losses import odd_batch, scaled_losses
from gradwatch.analysis.rules.progress import (
    came_down,
    judged_losses,
    loss_progress,
    reaches_its_goal,
    succeeds,
)
from gradwatch.analysis.rules.sampled_losses import INSIDE, inside, is_explained
from gradwatch.analysis.rules.series import late_median
from gradwatch.analysis.rules.standstill import equal_odds
from gradwatch.analysis.rules.step_length import betas_turned, first_ratio, is_new_each_step
from gradwatch.formatting import percent
from gradwatch.history import Bools, Floats, History
from gradwatch.table import CELLS, spread


class Effect(NamedTuple):
    """How bad it is, the row in which it began, the numbers that show it, and what was done, in words; and what to do,
    where that is not to shorten all steps.
    """

    severity: Severity
    row: int
    evidence: Evidence
    why: str
    cure: str = ""


BY_THEN = 50


def ran_away(
    history: History,
    soon: float = 3.0,
    later: float = 4.0,
    own: float = 0.35,
    beyond: float = 10.0,
    large: float = 3.5,
) -> Effect | None:
    """First steps that threw the weights out: most matrices grew `soon` times in 20 steps, or `later` times in 50.

    Or, where the rate sets the length of a step, the first one changed them by the share `own` of their size, and the
    loss rose by half within ten, or they grew to twice their size in 20. Not said of weights that begin next to 0
    (`initial_gains`), of a single matrix, nor of growth in a training that succeeds; of such a first step where its
    loss came down to a tenth.
    Whatever came of it, a first step of `beyond` times the weights replaced them, if it left them `large` (as gains).
    The healthy trainings of the tests grow up to 2.9 times in 20 steps, or succeed; Adam's first steps are below .25,
    those of others below 6 (L-BFGS).
    """
    at, norm = measured(history, "weight_norm")
    gain = initial_gains(history)
    which = gain > 0.1
    if len(at) < 3 or which.sum() < 2 or begins_small(history):
        return None
    grown = _growth(norm, which, np.nanmedian)
    there = ~np.isnan(grown)
    if not there.any():
        return None
    at, grown = at[there], grown[there]
    after = history.layer_step[at] - history.layer_step[at[0]]
    fast = ((grown > soon) & (after <= 20)) | ((grown > later) & (after <= BY_THEN))
    replaced = first_ratio(history) > beyond and middle(gain) > large
    first = first_ratio(history) if replaced or steps_by_rate(history) else 0.0
    losses = loss_progress(history)
    up = [float(history.total(p.metric)[:10].max()) > 1.5 * p.first for p in losses]
    thrown = bool(losses) and (all(up) or (bool(((grown > 2) & (after <= 20)).any()) and not succeeds(history)))
    if replaced or (first > own and thrown and not any(p.ended < p.first / 10 for p in losses)):
        row = 0
    elif fast.any() and losses and not succeeds(history):
        row = max(0, int(np.argmax(grown > soon**0.5)) - 1)  # in between two measurements
    else:
        return None
    times = float(grown[after <= BY_THEN].max())
    begin, end = int(history.layer_rows[at[row]]), len(history) - 1
    batch = odd_batch(history)
    if batch is not None and begin <= batch <= history.layer_rows[at[min(row + 1, len(at) - 1)]]:
        begin = min(batch + 1, end)
    evidence: Evidence = {"growth": times, "within_steps": int(after[after <= BY_THEN].max())}
    why = f"The first steps were far too long: most weights grew to {times:.3g} times their size in them."
    if first > own:
        why, evidence["update_ratio"] = _changed_by(first), first
    severity: Severity = (
        "error" if losses and not any(p.is_real() or p.ended < 0.9 * p.first for p in losses) else "warning"
    )
    return Effect(severity, begin, evidence, why)


def leapt(history: History, own: float = 0.2, times: float = 2.5, soon: int = 10) -> Effect | None:
    """The first step changed most matrices by the share `own` of their size, each training loss leapt to `times` its
    first value within `soon` steps, and stands no lower than it began or at equal odds. Next to these, half that leap
    is enough where it began at twice that or more.

    What becomes of the units then is chance: they die, or the loss is thrown on, or grows until it is not finite.
    Source: Lewkowycz et al. 2020, arXiv:2003.02218 (a loss that leaps at first comes down again below a rate, and above
    it never does).
    """
    first, losses = first_ratio(history), [*scaled_losses(history).values()]
    if not first > own or not losses or not _has_sizes(history):
        return None
    highest = 0.0
    for each in losses:
        values = each[np.isfinite(each)]
        ended = late_median(values)
        at_odds, far = abs(ended / equal_odds(history) - 1) < 0.03, values[0] > 2 * equal_odds(history)
        if len(values) <= soon or not 0 < times * values[0] / (2 if at_odds and far else 1) < values[:soon].max():
            return None
        if ended < 0.9 * values[0] and not ended > 0.99 * equal_odds(history):
            return None
        highest = float(values[:soon].max())
    said = "rests at what equal odds give" if at_odds else "has won nothing since"
    why = f"{_changed_by(first)} The loss leapt with it, and {said}."
    return Effect("error", 0, {"update_ratio": first, "leapt_to": highest}, why)


def first_step(history: History, own: float = 0.75) -> Effect | None:
    """The first step changed most matrices by the share `own` of their size, or more.

    Where parts of a run train against each other nothing else can be asked: their losses have no level. Not said of a
    part that won all the same, its loss a tenth of what it was, of weights that begin next to 0, nor where the rate
    does not set the length of a step.
    """
    first = _set_by_the_rate(history)
    if came_down(history, 0.1) or not first > own:
        return None
    return Effect("warning", 0, {"update_ratio": first}, _changed_by(first))


def _set_by_the_rate(history: History) -> float:
    """The update ratio of the first step; 0 where the rate does not set it, of weights that begin next to 0, and of a
    single matrix.
    """
    return first_ratio(history) if steps_by_rate(history) and _has_sizes(history) else 0.0


def _has_sizes(history: History) -> bool:
    """Whether there are several matrices, and they did not begin next to 0: a step may be held against their size."""
    return not begins_small(history) and bool((initial_gains(history) > 0).sum() > 1)


def _changed_by(first: float) -> str:
    return f"The first step was far too long: it changed the weights by {percent(first)} of their size."


def _growth(norm: Floats, which: Bools, median: Callable[..., Floats]) -> Floats:
    """By what most of these layers grew since they were first measured, `[M]`; a few rows at a time, for memory."""
    out = []
    with np.errstate(invalid="ignore", divide="ignore"):
        for rows in np.array_split(norm, max(1, norm.size // CELLS)):
            times = rows[:, which].astype(np.float64) / norm[0, which]
            known = np.flatnonzero(~np.isnan(times).all(axis=1))
            out.append(spread(median(times[known], axis=1), known, len(times)))
    return np.concatenate(out)


def outgrew(history: History, times: float = 5.0, left: float = 0.4, direct: float = 0.9) -> Effect | None:
    """Most matrices ended at `times` their first size, and of each loss the share `left` of its first value is left.

    Weights that grow because the loss asks for it leave little of it. Not said of matrices that began next to 0
    (`initial_gains`), nor where another metric reaches its goal, or half of the targets is explained and ever more
    (`is_explained`), nor of steps that get the share `direct` of their way in a straight line: they have far to go, to
    targets that are large; nor under Muon, whose steps lead weights of any size to that of their rate. The healthy
    trainings of the tests that leave so much grow up to 3.2 times.
    """
    at, norm = measured(history, "weight_norm")
    which, losses = initial_gains(history) > 0.1, loss_progress(history)
    if len(at) < 3 or which.sum() < 2 or not losses or came_down(history, left):
        return None
    grown = _growth(norm, which, np.median)
    straight = middle(directness(history)[1][which]) > direct or "Muon" in optimizer_kind(history)
    if not times < grown[-1] < math.inf or straight or reaches_its_goal(history) or is_explained(history):
        return None
    row = max(0, int(np.argmax(grown > times**0.5)) - 1)
    p = losses[0]
    why = f"The steps are too long for what is learnt: most weights grew to {grown[-1]:.3g} times their size, and "
    why += f"{p.metric} still is {p.ended:.4g} of the {p.first:.4g} that it began with."
    evidence: Evidence = {"growth": float(grown[-1]), "metric": p.metric, "left": p.ended / p.first}
    return Effect("warning", int(history.layer_rows[at[row]]), evidence, why)


def turned(history: History) -> Effect | None:
    """Adam's betas are the wrong way round: a mean over a thousand steps, divided by one over ten.

    Not where nine tenths of the loss are gone all the same.

    Source: Kingma & Ba, arXiv:1412.6980, theorem 4.1, which asks that beta1 squared be below the root of beta2.
    """
    pair = betas_turned(history)
    if pair is None or succeeds(history, 0.9):
        return None
    why = "Each step goes on in those that follow, and grows."
    return Effect("warning", 0, {"beta1": pair[0], "beta2": pair[1]}, why)


def overwritten(history: History, apart: float = 4.0) -> Effect | None:
    """Groups that were given rates `apart`, and were all stepped with the highest of them: one number was written to
    each, as by a warm-up that sets `group["lr"]`. Not where half of the loss is gone all the same.
    """
    every, wanted = rates(history), [group.get("lr") for group in settings(history)]
    if every.shape[1] != len(wanted) or len(wanted) < 2 or succeeds(history, 0.5):
        return None
    given = [float(rate) for rate in wanted if isinstance(rate, int | float)]
    if len(given) < len(wanted) or not max(given) > apart * min(given) > 0:
        return None
    alike = (every == every[:, :1]).all(axis=1)
    if not alike.mean() > 0.9 or not every.max() > apart * min(given):
        return None
    group = given.index(min(given))
    why = f"Param group {group} was given the rate {min(given):g} and is stepped with {every.max():.3g}, as all others "
    evidence: Evidence = {"group": group, "given": min(given), "lr": float(every.max())}
    why += 'are: something writes one rate to all groups (group["lr"] = ...).'
    cure = "Multiply each group's own rate by what the schedule says, as torch's schedulers do: "
    return Effect("warning", 0, evidence, why, f'{cure}group["lr"] = group["initial_lr"] * factor.')


def died_at_once(history: History, own: float = 0.2, left: float = 1e-3, soon: int = 50) -> Effect | None:
    """Long first steps, after which next to no gradient is left: the share `left` of the first from step `soon` on.

    The first one changed most matrices by the share `own` of their size. Not said of weights that begin next to 0, of a
    single matrix, nor where a loss got better: it may have learnt all there was.
    """
    norm = history.total("grad_norm")
    known = np.flatnonzero(np.isfinite(norm))
    norm, first = norm[known], _set_by_the_rate(history)
    better = any(p.is_real() for p in loss_progress(history))
    if not first > own or len(norm) < 2 * soon or better:
        return None
    rest = float(np.quantile(norm[soon:], 0.9)) / norm[0]
    if not 0 < rest < left:
        return None
    since = int(history.step[known[soon]])
    why = f"{_changed_by(first)} Since step {since} the gradient is at most {rest:.1e} of the first: what the model "
    evidence: Evidence = {"update_ratio": first, "gradient_left": rest}
    return Effect("warning", 0, evidence, f"{why}chose by then it never leaves again.")


def unsettled(history: History, high: float = 3e-3, own: float = 0.1, least: int = 100) -> Effect | None:
    """A model with attention, which Adam or its kin steps at a rate above `high`, and losses that stand far above 0.

    By the median of the rates. From the second quarter of the run to the last no loss lost more than a thirtieth, and
    four fifths of the first one are left: three tenths where the first step changed the weights by the share `own`, for
    such a loss may also be all that there is to learn. Not said where another metric reaches its goal, or half of the
    targets is explained (`is_explained`). The healthy trainings of the tests at such rates lost a fifth, at least.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 5.3 (a peak of 7e-4 at a width of 512, of 3e-3 at one of 32,
    after a warm-up); Liu et al. 2020, arXiv:2004.08249, on why Adam without one fails there.
    """
    rate, first = middle(rates(history).max(axis=1)), first_ratio(history)
    losses = judged_losses(history, least, 500)
    if not (steps_by_rate(history) and rate > high and has_attention(history)) or not losses:
        return None
    for _, second, _, last in (quarters(history, p.metric) for p in losses):
        if last < second * 29 / 30:
            return None
    p = losses[0]
    if p.ended < (0.3 if first > own else 0.8) * p.first or reaches_its_goal(history) or is_explained(history):
        return None
    why = f"The rate is {rate:.3g} and the model has attention, which {optimizer_kind(history)} trains at a few times "
    why += f"1e-3 at most, after a warm-up: {p.metric} stands at {p.ended:.4g} since the first quarter of the run."
    evidence: Evidence = {"metric": p.metric, "end": p.ended, "update_ratio": first}
    return Effect("warning", 0, evidence, why)


def anew(history: History) -> Effect | None:
    """Every step is as long as Adam's first, the longest that it takes: the sign of each gradient times the rate."""
    if not is_new_each_step(history):
        return None
    why = f"Every step is the longest that {optimizer_kind(history)} takes."
    return Effect("warning", 0, {}, why)


def shut(history: History, own: float = 0.25, left: float = 0.2) -> Effect | None:
    """Long first steps, within twenty of which much of what is inside a non-linearity came to where it is flat.

    The first one changed most matrices by the share `own` of their size. In the first sample a small share was flat, in
    the last one within twenty steps clearly more, and so it was in the last quarter of the samples (`_SHUT`, by the
    kind). Of sigmoids and ReLUs only where the training does not succeed: gates are meant to open and to close. Not
    said where less than the share `left` of a loss is left: an attention may be right to be sure. Nor of weights that
    begin next to 0: what comes through them is what dies.
    In the healthy trainings of the tests no softmax gets surer by more than .01 in so few steps.
    Source: Zhai et al. 2023, arXiv:2303.06296 (attention whose entropy collapses as the rate is warmed up too far).
    """
    if came_down(history, left) or begins_small(history) or not first_ratio(history) > own:
        return None
    for kind, (before, leap, held) in _SHUT.items():
        seen = inside(history, kind)
        if seen is None or seen.first >= before:
            continue
        if seen.soon - seen.first > leap and seen.last > held and not (kind != "certain" and succeeds(history)):
            why = f"The first steps were too long for what is inside: {percent(seen.soon)} {INSIDE[kind]} at "
            why += f"`{seen.layer}` by step {seen.soon_step}, {percent(seen.first)} at first, and {percent(seen.last)} "
            why += "in the end. Hardly any gradient comes back through them."
            evidence: Evidence = {"update_ratio": first_ratio(history), "layer": seen.layer}
            evidence |= {f"{kind}_at_first": seen.first, kind: seen.last}
            return Effect("warning", 0, evidence, why)
    return None


_SHUT = {"certain": (0.1, 0.4, 0.5), "saturated": (0.5, 0.35, 0.8), "dead": (0.5, 0.35, 0.8)}  # before, leap, held

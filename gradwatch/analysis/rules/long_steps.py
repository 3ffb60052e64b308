"""A learning rate that throws the training about.

Legend: T recorded steps.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.clips import incoming
from gradwatch.analysis.rules.attention import grown_logits
from gradwatch.analysis.rules.facts import (
    GUARD,
    LEAST_STEPS,
    USUAL_RATIO,
    is_adaptive,
    optimizer_kind,
    set_rate,
    smooth,
    steps_by_rate,
)
from gradwatch.analysis.rules.far_beginning import begins_far, of_a_sum
from gradwatch.analysis.rules.finding import Evidence, Finding, Severity, Why, either
from gradwatch.analysis.rules.held_out import rises_alone
from gradwatch.analysis.rules.layer_facts import largest_ratio
from gradwatch.analysis.rules.long_steps_effects import (
    BY_THEN,
    Effect,
    anew,
    died_at_once,
    first_step,
    leapt,
    outgrew,
    overwritten,
    ran_away,
    shut,
    turned,
    unsettled,
)
from gradwatch.analysis.rules.loss_terms import is_partly_learnt
from gradwatch.analysis.rules.losses import has_rivals, scaled_losses
from gradwatch.analysis.rules.once import once
from gradwatch.analysis.rules.owners import leaps_where_written
from gradwatch.analysis.rules.progress import came_down, succeeds
from gradwatch.analysis.rules.sampled_losses import grows_harder, has_other_negatives, own_targets_move
from gradwatch.analysis.rules.schedule import goes_astray, raised_at, raised_before
from gradwatch.analysis.rules.series import quietest
from gradwatch.analysis.rules.step_length import betas_turned, first_ratio, lengthened, lowered
from gradwatch.analysis.rules.tries import LOWER, clip_with, new_rate, rate_times, warm_up
from gradwatch.history import Bools, Floats, History

Rows = NDArray[np.intp]


@once
def lr_too_high(history: History, jump: float = 0.35, sigmas: float = 6.0, width: int = 9) -> list[Finding]:
    """A loss that the steps throw about: it jumps over its running minimum.

    Both are those of the median of `width` losses in a row. It rose by more than `jump` of where it began, and by
    more than `sigmas` robust standard deviations of its noise (in its quietest quarter), in half of `width` rows at
    least, and the losses up there follow one another (`_are_together`): a median of few losses with a long tail, as
    small batches have, is that high by chance. The first step is the one after it was last within half of `jump`.
    An error, to the end of the run, when the loss also ended no lower than it began, by steps longer than usual: by
    usual ones its targets may have grown instead, and it is a warning with both causes. A note where the loss fell
    to a tenth of where it began all the same, or where it was over within a tenth of the steps, and the loss then
    fell on, to less than half of where it began, if it did not throw the weights out either (`ran_away`); or where
    it rose before it had won anything, by less than three times where it began, and the training succeeds: one
    first loss may lie low by chance; or where what is asked for moves away with what the model says, as a value
    does that is learnt from itself (`own_targets_move`), or where a term of it fell by nine tenths, or what is asked
    for `grows_harder`, or it `rises_alone`, or the loop itself writes to the weights where it leaps
    (`leaps_where_written`). The loss is not judged where parts of a run train against each other (the first step alone
    is: `first_step`), or where it is below 0 early or begins in its own noise (a policy gradient's): it has no scale.
    First steps that were far too long show in the weights (`ran_away`), which is said where the loss shows nothing by
    the first 50 steps; so do first steps after which a loss leaps and wins nothing (`leapt`), steps that lead the
    weights away while little is learnt (`outgrew`), those of an Adam that begins anew in each (`anew`) or whose betas
    are swapped (`turned`), and those that shut what is inside the model (`shut`) or leave no gradient (`died_at_once`).
    Source: methods, S5: jump over the running minimum of 1.95 to 8.6 nats against .36 or less in healthy runs, where
    spike scores stay 0; section 0.3: under Adam warm-up cures it, and clipping does not.
    """
    if has_rivals(history):
        return _of(history, first_step(history))
    if at_once := leapt(history):
        return _of(history, at_once)
    away = _of(history, ran_away(history))
    soon = away[0].first_step + BY_THEN if away else 0
    for name, values in scaled_losses(history).items():
        rows = np.flatnonzero(np.isfinite(values))
        if len(rows) < 5 * width:
            continue
        found = _jumps(values[rows], jump, sigmas, width) or _thrown_about(history, values[rows], width)
        if found and not (away and history.step[rows[found[0]]] > soon):
            first, last, evidence = found
            end = float(np.median(values[rows[-width:]]))
            began, lowest = float(evidence["begin"]), float(evidence["lowest_before"])
            well = end < min(began, values[rows[0]]) / 10
            brief = last - first < len(rows) / 10 and end < min(lowest, began / 2)
            rise = _shifted(history, values, rows, int(rows[first]))
            shifted = rise is not None
            unlearnt = lowest >= began > float(evidence["jump"]) / 3 and not away and succeeds(history)
            harmless = brief or well or unlearnt or own_targets_move(history) or is_partly_learnt(history, name)
            alone = rises_alone(history, values, int(rows[first]))
            harder = alone or has_other_negatives(history) or leaps_where_written(history, values)
            harmless = harmless or grows_harder(history) or harder
            severity: Severity = "note" if shifted or harmless else "warning"
            usual = largest_ratio(history, int(rows[last])) < USUAL_RATIO[is_adaptive(history)]
            unclear = end >= began and usual and not raised_before(history, int(rows[first]))
            if end >= began and not (shifted or unclear or alone):
                severity = "error"
            if severity == "note" and not shifted and (away := away or _of(history, turned(history) or shut(history))):
                return away
            numbers: Evidence = {"metric": name, **evidence, "end": end}
            end_row = len(history) - 1 if severity == "error" else int(rows[last])
            if severity == "note" and harder and not shifted:
                steps = int(history.step[rows[first]]), int(history.step[rows[last]])
                return [Finding("lr-too-high", "note", (), *steps, numbers, *_HARDER)]
            begin_row = 0 if betas_turned(history) else int(rows[first]) if rise is None else rise  # 0: from the start
            return [_too_high(history, severity, begin_row, end_row, numbers, shifted, unclear=unclear)]
    effects = outgrew, anew, shut, turned, overwritten, died_at_once, unsettled
    return away or _of(history, next(filter(None, (effect(history) for effect in effects)), None))


_HARDER = (
    "The loss rose, and not by its steps: what it asks for got harder. Other data show none of it, or it chooses among "
    "ever more, or begins again and again at weights that the loop sets.",
    "Nothing, if that is meant: an augmentation that grows, a queue that fills, one task after another. If not, look "
    "at what changes over the steps in the data and in what is asked for.",
)


def _of(history: History, effect: Effect | None) -> list[Finding]:
    """The finding of what steps did, to the end of the run."""
    if effect is None:
        return []
    severity, row, evidence, why, cure = effect
    found = _too_high(history, severity, row, len(history) - 1, evidence, False, why)
    return [replace(found, cure=cure, tries=()) if cure else found]


def _jumps(values: Floats, jump: float, sigmas: float, width: int) -> tuple[int, int, dict[str, float]] | None:
    """The first and last place above the running minimum, and the numbers; None for a loss that stays near it."""
    level = smooth(values, width)
    noise = quietest(values - level)
    begin, lowest = float(level[0]), np.minimum.accumulate(level)
    above, limit = level - lowest, max(jump * begin, sigmas * noise)
    over = np.flatnonzero(above > limit)
    if begin < 2 * noise or len(over) <= width // 2 or not _are_together(values > lowest + limit):
        return None
    last, half = int(over[-1]), int(np.argmax(above > limit / 2))
    near = np.flatnonzero(above[:half] <= jump * begin / 2)
    first = int(near[-1]) + 1 if len(near) else 0
    return first, last, {"jump": float(above.max()), "lowest_before": float(lowest[first]), "begin": begin}


def _are_together(high: Bools, sigmas: float = 4.0) -> bool:
    """Whether these values `[T]` follow one another more often than in a random order, or most are high."""
    share = float(high.mean())
    pairs = float((high[1:] & high[:-1]).sum())
    by_chance = share**2 * (len(high) - 1)
    return share > 0.5 or pairs > by_chance + sigmas * np.sqrt(by_chance * (1 - share**2))


def _thrown_about(
    history: History, values: Floats, width: int, times: float = 3.0, often: float = 0.2, plain: float = 0.5
) -> tuple[int, int, dict[str, float]] | None:
    """As `_jumps`, of a loss that was thrown about from the start, so that no level tells: steps were far too long.

    They are when a usual first step wants less than a tenth of the rate (`lowered`). A share `often` of the losses is
    above `times` the first one, and it ended no lower; or the first steps changed the weights by the share `plain`, and
    a tenth of what was won is lost again.
    """
    above, end = np.flatnonzero(values > times * values[0]), float(np.median(values[-width:]))
    level = smooth(values, width)
    lost = end - level.min() > 0.1 * (level[0] - level.min()) > 0 and steps_by_rate(history)
    lost = lost and first_ratio(history) > plain
    wild = len(above) >= often * len(values) and end > 0.9 * values[0] > 0 and lowered(history) < 0.1
    if lost and not wild:
        above = np.flatnonzero(np.arange(len(values)) > level.argmin())
    if not (lost or wild):
        return None
    evidence = {"jump": float(values.max() - values[0]), "lowest_before": float(values[0]), "begin": float(values[0])}
    return int(above[0]), int(above[-1]), evidence


_THROWN = "it is thrown above what it had reached, again and again or for good, instead of falling."
_OF_A_RISE = (
    "the learning rate is too high",
    "the targets grow, as those of values that are learnt from themselves do",
)
_OF_A_SHIFT = ("other data came, or another loss", "the learning rate is too high")


def _shifted(
    history: History, values: Floats, rows: Rows, row: int, near: int = 12, usual: int = 16, times: float = 1000.0
) -> int | None:
    """The row in which a loss rose from one step to the next near a row, and falls again, after `usual` usual steps.

    And did not come to `times` what it was after the rise: a task that grows step by step raises it, too, but not so.

    Steps that are too long throw a loss up over several of them, and the gradients grow ahead of it. Where nothing
    did, other data or another loss came, and are learnt: a sixth of the rise is gone again later. Attention logits that
    had grown by then tell of the steps, too. Gradients of a loss that has all but gone vary by themselves: those before
    the rise may also be a third of those behind it.
    """
    if raised_before(history, row) or grown_logits(history, int(history.step[row])):
        return None
    norm, finite = incoming(history), values[rows]
    at = int(np.searchsorted(rows, row))
    for i in range(max(LEAST_STEPS, at - near), min(at + near, len(finite) - 50)):
        before, after = finite[i - usual : i], finite[i : i + 5]
        rise = float(np.median(after) - np.median(before))
        calm = float(np.max(before) - np.median(before))
        past, then = norm[rows[i] - usual : rows[i]], float(np.median(norm[rows[i : i + 5]]))
        at_rest = past.max() < max(3 * np.median(past), then / 3)
        if finite[i] - finite[i - 1] > rise / 2 and rise > 2 * calm > 0 and at_rest:
            end = float(np.median(finite[-usual:]))
            ends_near = not end > times * np.median(after) > 0
            learnt = np.median(after) - smooth(finite[i:], usual).min() > rise / 6
            return int(rows[i]) if learnt and ends_near else None
    return None


def _too_high(
    history: History,
    severity: Severity,
    row: int,
    last: int,
    evidence: Evidence,
    shifted: bool,
    why: str = "",
    unclear: bool = False,
) -> Finding:
    rate, longer = set_rate(history), lengthened(history)
    known = {} if np.isnan(rate) else {"lr": rate}
    if shifted:
        words = "The loss rose from one step to the next, after steps and gradients of a usual size"
        return Finding(
            "lr-too-high", severity, (), int(history.step[row]), int(history.step[last]),
            {**evidence, **known, "began_anew": int(history.step[row])},
            f"{words}. {either(_OF_A_SHIFT)}", "Look at what changed in that step: the data, the task, a weight of the "
            "loss. If nothing did, lower the learning rate.", tries=(LOWER,), alternatives=_OF_A_SHIFT,
        )  # fmt: skip
    cure, tries = _shorter(history, rate)
    logits = grown_logits(history, int(history.step[last])) or Why("", "", {})
    cause = why or f"The steps of {optimizer_kind(history)} are too long for this loss: {_THROWN}"
    if unclear:
        cause = f"The loss rose, by steps of a usual size. {either(_OF_A_RISE)}"
    far = begins_far if why else of_a_sum
    cause, cure = far(history, cause, cure) or (cause, cure)
    astray = goes_astray(history, row)
    raised = raised_at(history, row)  # what the steps did begins with them
    return Finding(
        "lr-too-high",
        severity,
        (),
        int(history.step[row if raised is None else raised]),
        int(history.step[last]),
        {**evidence, **known, "update_ratio": evidence.get("update_ratio", largest_ratio(history)), **logits.evidence},
        f"{cause} {astray.cause}" if astray else cause + longer.cause + raised_before(history, row) + logits.cause,
        astray.cure if astray else longer.around(cure),
        tries=() if astray else longer.left_of(tries),
        alternatives=_OF_A_RISE if unclear else (),
    )


def _shorter(history: History, rate: float) -> tuple[str, tuple[str, ...]]:
    """What makes the steps shorter, in words, and what can be tried.

    Where the loss came down to less than half all the same, most steps suit it, and a third of the rate is enough.
    Under SGD they are bounded as well as lowered: either by itself mends half as many (docs/findings/cures.md).
    """
    learns = came_down(history, 0.5)
    times = 0.3 if learns else lowered(history)
    to = "tenfold" if np.isnan(rate) else f"to {new_rate(history, times)}"
    scale, bound, later = rate_times(times), clip_with(GUARD), warm_up(history)
    if not is_adaptive(history):
        cure = f'Lower the learning rate {to}, and bound the steps: clip="{GUARD}".'
        return cure, (f"{scale} {bound}", scale, bound)
    to += ", as the loss came down as it is" if learns else ""
    cure = f"Lower the learning rate {to}, or warm it up over the first few hundred steps."
    cure += f" Clipping does not help: the size of a step of {optimizer_kind(history)} does not depend on the scale of "
    return cure + "the gradients.", (scale, later)

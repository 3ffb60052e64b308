"""What a schedule made of the learning rate.

Legend: T recorded steps.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.rules.facts import rates, settings
from gradwatch.analysis.rules.finding import Evidence, Why
from gradwatch.analysis.rules.series import holds_from
from gradwatch.analysis.rules.tries import rate_times
from gradwatch.formatting import setting_text
from gradwatch.history import Bools, Floats, History


def ran_out(
    history: History, gone: float = 1e-3, early: float = 0.5, nothing: float = 1e-5, often: int = 6, soon: float = 0.1
) -> Why | None:
    """What a schedule did that left no learning rate: cause, cure and numbers; None where it left one.

    It ran out when for more than half of the run each group's rate was below `gone` times its highest; or below ten
    times that from the share `early` of the run on, and it went on to `nothing`: a rate that stays at a hundredth is
    meant, unless it came there within the share `soon` of the run. So is it judged, from half of the run on, where the
    rate was cut `often` times and came below `gone`. It never got there when the highest is below a tenth of what was
    set for the scheduler, or, in a run that is over, of the top of its cycle (`max_lr`). One that went below 0 is
    another matter (`schedule_too_short`).
    """
    rate = rates(history)
    if (rate[-1:] < 0).any():
        return None
    highest = np.nanmax(rate, axis=0, initial=0, where=np.isfinite(rate))
    left, share = gone, 0.5
    if not _gone(rate, left * highest) < share * len(rate) and (rate[-1:] <= nothing * highest).all():
        left, share = 10 * gone, early
    cuts = _falls(rate[:, 0])
    if len(cuts) >= often and (rate[-1] <= gone * highest).all():
        left, share = 10 * gone, 0.6
    if _gone(rate, 10 * gone * highest) < soon * len(rate):
        left, share = 10 * gone, soon
    row = _gone(rate, left * highest)
    if (highest > 0).all() and row < share * len(rate):
        step, falls = int(history.step[row]), [int(history.step[at]) for at in cuts]
        said = f"The schedule ran out: from step {step} on the learning rate is at most {left:g} of what it was."
        longer = f"{len(history) / max(row, 1):.2g} times as long"
        cure = f"Stretch the schedule to the length of the run, {longer}: count its steps as the scheduler is "
        cure += "stepped, once a batch or once an epoch."
        shrinks = np.diff(np.log(rate[:row, 0]))
        if row > 3 and np.ptp(shrinks) < abs(shrinks.mean()) / 100:  # through two points goes any curve
            cure += f" Of an exponential decay take the factor (gamma) to the power of {row / len(history):.2g}."
        if falls:
            cut = "once, at step" if len(falls) == 1 else f"{len(falls)} times, at steps"
            said += f" It stood still, and was cut {cut} {', '.join(map(str, falls[:4]))}"
            said += " and so on." if len(falls) > 4 else "."
            cure = "Look at what cuts it. ReduceLROnPlateau(mode='max') counts a loss that falls as one that does not "
            cure += "get better: mode='min'. Its patience, and the steps of StepLR and MultiStepLR, count calls of "
            cure += "scheduler.step(): call it once an epoch, or make them as many times larger."
        numbers: Evidence = {"lr": float(highest[0]), "lr_gone_at": step}
        return Why(said, f"{cure} A higher rate would only decay to nothing as well.", numbers)
    rates_set = [group.get("lr") for group in settings(history)]
    said_of = [float(lr) for lr in rates_set if isinstance(lr, int | float)]
    if said_of and 0 < highest.max() < max(said_of) / 10:
        return _never_there(rate[:, int(highest.argmax())], max(said_of))
    cycles = [group.get("max_lr") for group in settings(history) if history.run.status != "RUNNING"]
    tops = [float(lr) for lr in cycles if isinstance(lr, int | float)]
    if tops and 0 < highest.max() < max(tops) / 10:
        return _never_there(rate[:, int(highest.argmax())], max(tops))._replace(cure=_CYCLE)
    return None


_CYCLE = (
    "OneCycleLR and CyclicLR count batches: call scheduler.step() after each of them, or give total_steps "
    "(step_size_up) in the calls that are made."
)


def _gone(rate: Floats, least: Floats) -> int:
    """The row from which on each group's rate `[T, G]` is at its `least` or below."""
    return holds_from(~(rate > least * (1 + 1e-6)).any(axis=1))


def _falls(rate: Floats, share: float = 0.1) -> list[int]:
    """The rows in which a rate was cut that stands still otherwise; none where it moves in more than a `share` of them.

    Of milestones, or of plateaus that were waited for.
    """
    moved = 1 + np.flatnonzero(np.diff(rate) != 0)
    cut = bool(len(moved)) and len(moved) < share * len(rate) and bool((np.diff(rate)[moved - 1] < 0).all())
    return [int(row) for row in moved] if cut else []


def _never_there(rate: Floats, wanted: float) -> Why:
    """What a rate that stayed below a tenth of what was `wanted` did: it rises too slowly, or began there."""
    first, highest = float(rate[0]), float(np.nanmax(rate))
    numbers: Evidence = {"lr": highest, "lr_set": wanted}
    back = (np.diff(rate) < 0) & (rate[1:] < 1.5 * first)
    if back.sum() >= 3:
        return Why(
            f"The schedule begins anew again and again, {int(back.sum())} times, and comes to {highest:.3g} of the "
            f"{wanted:.3g} that was set.",
            "Make the scheduler once, before the loop; where a training goes on from a checkpoint, load its state: "
            "scheduler.load_state_dict(), beside the optimizer's.",
            numbers,
        )
    if highest > 1.5 * first:
        return Why(
            f"The schedule never got there: the learning rate rose to {highest:.3g} of the {wanted:.3g} that was set.",
            "Shorten the warm-up to a few hundred steps, or a hundredth of the run.",
            numbers,
        )
    squared = abs(first / wanted**2 - 1) < 0.01
    cause = f"The learning rate is {first:.3g} from the first step on, and {wanted:.3g} was set."
    if squared:
        cause += " That is its square: LambdaLR multiplies the rate that was set by what its function gives."
        cure = "Let that function give a factor: 1 for the whole rate, not the rate itself."
    else:
        cure = "Look at what wrote it: optimizer.load_state_dict() brings back the rate at which the state was saved, "
        cure += "and a scheduler's factor may be too small."
    return Why(
        cause,
        f"{cure} The rate that was set is {setting_text(wanted)}: write it into each of optimizer.param_groups "
        "(group['lr']), after load_state_dict().",
        numbers,
        (rate_times(wanted / first),),
    )


def goes_astray(history: History, row: int, times: float = 3.0) -> Why | None:
    """What a schedule did that a lower rate does not mend: it rises on; None where it does not.

    It was raised `times` up to the row, and as much again to the end of the run: a tenth of such a rate comes to the
    same height later, and what helps is an end to its rise.
    Source: Smith, arXiv:1506.01186 (the range test, whose rate rises until the loss does).
    """
    rate = rates(history).max(axis=1)
    if not (rate[row] > times * rate[0] and rate[-1] > times * rate[row]):
        return None
    return Why(
        f"The schedule had raised the learning rate from {rate[0]:.2g} to {rate[row]:.2g} by then, and raised it on to "
        f"{rate[-1]:.2g}.",
        f"Let the rate of the schedule fall, or end its rise: at a tenth of {rate[row]:.2g} at most. A lower rate that "
        "rises in the same way gets there as well, only later.",
        {"lr_there": float(rate[row]), "lr_last": float(rate[-1])},
    )


def raised_at(history: History, row: int, within: int = 50) -> int | None:
    """The row in which a schedule raised the rate threefold in one step, at most `within` rows before this one.

    None where none did: a warm-up raises it by less (a linear one doubles it once).
    Source: Loshchilov & Hutter, arXiv:1608.03983 (warm restarts), where losses jump as well.
    """
    rows = np.flatnonzero(_leaps(history).any(axis=1)) + 1
    rows = rows[(rows <= row) & (rows >= row - within)]
    return int(rows[-1]) if len(rows) else None


def raised_before(history: History, row: int) -> str:
    """A sentence on a schedule that raised the rate shortly before this row (`raised_at`); empty where none did."""
    last = raised_at(history, row)
    if last is None:
        return ""
    group = int(np.flatnonzero(_leaps(history)[last - 1])[0])
    before, after = rates(history)[last - 1 : last + 1, group]
    return f" At step {int(history.step[last])} the schedule raised the learning rate from {before:.2g} to {after:.2g}."


def _leaps(history: History, times: float = 3.0) -> Bools:
    """Which param groups' rates rose `times` from one row to the next, `[T - 1, G]`."""
    rate = rates(history)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((rate[1:] > times * rate[:-1]) & (rate[:-1] > 0))

"""A schedule of another length than the run: one that ends before it and climbs back, a warm-up that never ends.

Legend: T recorded steps, V rates one after the other that differ.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.rules.facts import rates, set_rate
from gradwatch.analysis.rules.finding import Finding, Severity, either, whole_run
from gradwatch.analysis.rules.progress import succeeds
from gradwatch.analysis.rules.sampled_losses import sampled
from gradwatch.analysis.rules.series import holds_from
from gradwatch.formatting import percent, setting_text
from gradwatch.history import Floats, History


def schedule_too_short(history: History, risen: float = 0.1, near: float = 0.05, bent: float = 0.4) -> list[Finding]:
    """The run outlasted the schedule: the rate fell below 0 (`_below_zero`), or along a cosine to its lowest, and
    climbs back along the same curve (`_climbs_back`), or does so again and again (`_again_and_again`).

    Source: Loshchilov & Hutter, arXiv:1608.03983, equation 5, which restarts at its lowest; torch's CosineAnnealingLR
    and get_cosine_schedule_with_warmup of transformers go back up the curve.
    """
    return _below_zero(history) or _climbs_back(history, risen, near, bent) or _again_and_again(history)


def _highest(history: History) -> Floats:
    """The learning rate of the param group that has the highest, `[T]`."""
    every = rates(history)
    return np.asarray(every[:, int(np.nan_to_num(every).max(axis=0, initial=0).argmax())])


def _climbs_back(history: History, risen: float, near: float, bent: float) -> list[Finding]:
    """The rate fell along a cosine to its lowest, and climbs back along the same curve.

    After a warm-up, if any, of less than half as many steps as the fall, which is to less than half. The rates after
    the lowest mirror those before it, up to `near` of the highest, and come back to more than the share `risen` of the
    way; the curve is flat at its lowest, where at half the way in steps it stands at less than `bent` of the height (a
    cosine at 0.25 to 0.3, the triangle of CyclicLR at 0.5). A warning where the run ends so high; else a note, as
    cycles may be meant.
    """
    rate = _highest(history)
    if not (len(rate) and np.isfinite(rate).all()):
        return []
    starts = np.flatnonzero(np.diff(rate, prepend=np.nan) != 0)
    values = rate[starts]
    falls = np.flatnonzero(np.diff(values) < 0)
    peak = int(falls[0]) if len(falls) else 0  # before it the rate only rises
    turns = np.flatnonzero(np.diff(values[peak:]) > 0)
    lowest = peak + int(turns[0]) if len(turns) else 0
    height = values[peak] - values[lowest]
    if peak > (lowest - peak) / 2 or values[peak] < (1 - near) * values.max() or not height > values[peak] / 2:
        return []
    reach = min(lowest - peak, len(values) - 1 - lowest)
    before, after = values[lowest - reach : lowest + 1][::-1], values[lowest : lowest + reach + 1]
    came_back = float(after.max() - values[lowest]) / height
    mirrored = np.abs(before - after).max() < near * values[peak]
    if not (came_back > risen and mirrored and _bend(after - values[lowest], height) < bent):
        return []
    last = float(rate[-1])
    severity: Severity = "warning" if last - values[lowest] > risen * height else "note"
    step = int(history.step[starts[lowest]])
    taken = int(history.step[-1] - history.step[0]) + 1
    length = max(taken, history.run.total_steps or 0)
    so_far = " so far" if history.run.status == "RUNNING" and length == taken else ""
    passes = _stepped_after_each(history, step, length)
    why, cure = _why_and_cure(passes, length)
    return [
        Finding(
            "schedule-too-short",
            severity,
            (),
            step,
            int(history.step[-1]),
            {
                "lr_lowest": float(values[lowest]),
                "lr_last": last,
                "lr_highest": float(rate.max()),
                "steps": length,
                **({"passes": passes} if passes else {}),
            },
            f"The learning rate fell along a cosine to {values[lowest]:.2g} at step {step}, and climbs back along the "
            f"same curve: to {last:.2g} at the end, of {values[peak]:.2g} at its highest. The schedule was over, and "
            f"the run, of {length:,} steps{so_far}, was not: the scheduler goes on where the cosine does.{why}",
            cure,
        )
    ]


def _why_and_cure(passes: int, length: int) -> tuple[str, str]:
    if passes:
        return (
            f" The cosine is {passes} times too short, and each step is of {passes} backward passes.",
            f"Step the scheduler once a step, behind optimizer.step(), not behind each of {passes} backward passes; or "
            f"give it {passes} times the length.",
        )
    return (
        "",
        f"Give the schedule the length of the run as the scheduler is stepped: T_max={length} if once a step, the "
        "number of epochs if once an epoch; or stop calling scheduler.step() at its lowest.",
    )


def _stepped_after_each(history: History, lowest: int, length: int, near: float = 0.05) -> int:
    """How many backward passes each step is of, where the rate is at its lowest after as small a part of the run; else
    0.
    """
    _, seen = sampled(history, "passes")
    passes = round(float(np.median(seen))) if len(seen) else 0
    part = length / max(lowest, 1)
    return passes if passes > 1 and abs(part - passes) < near * passes else 0


def _below_zero(history: History, least: int = 5) -> list[Finding]:
    """A rate that was above 0 at first is below it in the `least` last steps or more: each leads uphill.

    Source: the update of any optimizer, w - lr * g.
    """
    rate = rates(history)
    if len(rate) <= least or not (rate[0] >= 0).all():
        return []
    below = np.asarray((rate < 0).any(axis=1))
    if not below[-least:].all():
        return []
    step, lowest = int(history.step[holds_from(below)]), float(np.nanmin(rate[-1]))
    return [
        Finding(
            "schedule-too-short",
            "warning",
            (),
            step,
            int(history.step[-1]),
            {"lr_last": lowest, "lr_below_0_at": step},
            f"The learning rate is below 0 from step {step} on, and {lowest:.2g} at the end: each of these steps leads "
            "uphill. The schedule was over, and the run was not.",
            f"End the schedule at 0, max(0, ...) around its factor, and give it as many steps as the run has, not "
            f"{step}; count these as the scheduler is stepped, once a batch or once an epoch.",
        )
    ]


def _again_and_again(
    history: History, often: int = 6, steps: int = 8, low: float = 0.05, high: float = 0.5, even: float = 0.25
) -> list[Finding]:
    """The rate falls below `low` of its highest and climbs above `high` of it, `often` times and more, in even cycles.

    Even: of `steps` or more each, which differ by the share `even` at most. A schedule that was made for so many steps
    goes on behind its end. Warm restarts leap, and grow longer; CyclicLR keeps a tenth of the rate or more.
    Source: Loshchilov & Hutter, arXiv:1608.03983 (a few restarts, each twice as long as the last); Smith,
    arXiv:1506.01186 (bounds a third or a quarter apart).
    """
    rate = _highest(history)
    top = float(np.nanmax(rate, initial=0.0))
    states = np.where(rate > high * top, 1, np.where(rate < low * top, -1, 0))
    turns = np.flatnonzero(states != 0)
    climbs = turns[1:][(states[turns[1:]] == 1) & (states[turns[:-1]] == -1)]
    lengths = np.diff(climbs)
    gradual = np.diff(turns)[np.diff(states[turns]) != 0] > 1  # no leaps: those are restarts
    if len(climbs) < often or lengths.min() < steps or np.ptp(lengths) > even * lengths.mean() or not gradual.all():
        return []
    length = round(float(lengths.mean()))
    return [
        Finding(
            "schedule-too-short",
            "warning",
            (),
            int(history.step[climbs[0]]),
            int(history.step[-1]),
            {"cycles": len(climbs), "steps_of_a_cycle": length, "lr_highest": top},
            f"The learning rate falls to nothing and climbs back to {top:.2g} {len(climbs)} times, every {length} "
            f"steps. {either(_CYCLES)}",
            f"Give the schedule the length of the run as the scheduler is stepped, not {length} or half of it: once a "
            "step, or once an epoch. If cycles are meant, let them be few, and each longer than the last.",
            alternatives=_CYCLES,
        )
    ]


_CYCLES = (
    "the schedule was made for epochs and is stepped once a batch, or is shorter than the run",
    "cycles are meant",
)


def _bend(heights: Floats, full: float) -> float:
    """Of a curve that begins at its lowest, `[V]`: how high it stands at half of its way to half of the `full` height.

    As a share of what it comes to there, or at its end.
    """
    high = np.flatnonzero(heights >= full / 2)
    end = int(high[0]) if len(high) else len(heights) - 1
    return float(np.interp(end / 2, np.arange(len(heights)), heights) / heights[end]) if end else 1.0


def warmup_too_long(
    history: History, share: float = 0.75, low: float = 0.2, min_steps: int = 50, gained: float = 0.5
) -> list[Finding]:
    """The rate rises in a straight line from next to nothing, and does so for most of the run.

    From less than the share `low` of its highest, to its highest, over more than the `share` of a run of `min_steps`
    that has ended by itself. A note where the training succeeded by the share `gained` all the same. Or it begins anew
    again and again (`_begins_anew`).
    Source: Goyal et al., arXiv:1706.02677 (5 of 90 epochs); Ma & Yarats, arXiv:1910.04209 (2 / (1 - beta2) steps).
    """
    rate = np.nan_to_num(rates(history)).max(axis=1)
    if anew := _begins_anew(history, rate):
        return [anew]
    top = int(rate.argmax()) if len(rate) else 0
    if len(history) < min_steps or history.run.status != "FINISHED" or not top > share * len(rate):
        return []
    rise = rate[: top + 1]
    line = np.linspace(rise[0], rise[-1], len(rise))
    steps = max(2, int((np.diff(rise) != 0).sum()))  # one an epoch leaves stairs
    if rise[0] >= low * rise[-1] or np.abs(rise - line).max() > 1.5 * rise[-1] / steps:
        return []
    first, last = int(history.step[0]), int(history.step[top])
    part = (top + 1) / len(rate)
    return [
        Finding(
            "warmup-too-long",
            "note" if succeeds(history, gained) else "warning",
            (),
            first,
            last,
            {"lr_first": float(rise[0]), "lr": set_rate(history), "share": part},
            f"The warm-up takes {percent(part)} of the run: the learning rate rises in a straight line from "
            f"{rise[0]:.2g} to {rise[-1]:.2g}, which it has from step {last} on, and the mean of the run is about half "
            "of it.",
            f"End the warm-up at {setting_text(float(rise[-1]))} after a twentieth of the run, or a few hundred steps; "
            "count these as the scheduler is stepped, once a batch or once an epoch.",
        )
    ]


def _begins_anew(history: History, rate: Floats, often: int = 5, least: float = 0.85) -> Finding | None:
    """The rate leaps down by half of its highest or more, `often` times in even distances, and else only rises.

    In the share `least` of the steps or more: a scheduler that is made anew, as at each epoch. A cosine with restarts
    falls in between.
    """
    steps = np.diff(rate)
    leaps = np.flatnonzero(steps < -0.5 * rate.max(initial=0.0))
    lengths = np.diff(leaps)
    rises = len(steps) and (steps > 0).mean() > least
    if len(leaps) < often or not rises or np.ptp(lengths) > 0.25 * lengths.mean():
        return None
    return whole_run(
        history,
        "warmup-too-long",
        (),
        {"begins_anew": len(leaps), "lr_highest": float(rate.max()), "steps_of_a_cycle": round(float(lengths.mean()))},
        f"The warm-up begins anew {len(leaps)} times, every {lengths.mean():.0f} steps, and comes to {rate.max():.2g}: "
        "the learning rate falls back to next to nothing each time, and no schedule follows the warm-up.",
        "Make the scheduler once, before the loop over epochs, and step it on; where a training goes on from a "
        "checkpoint, load its state: scheduler.load_state_dict(), beside the optimizer's.",
    )

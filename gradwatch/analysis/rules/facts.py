"""What rules ask of a run: its optimizers, its learning rates, its clip, and what is usual for it.

Legend: T recorded steps, L layers.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from gradwatch.analysis.clips import of_all_layers
from gradwatch.analysis.optimizers import groups
from gradwatch.analysis.rules.series import ROBUST
from gradwatch.history import Floats, History
from gradwatch.policies import (
    AGC,
    ClipByAverageNorm,
    ClipByGlobalNorm,
    ClipByNorm,
    ClipByValue,
    Policy,
    SkipNonfinite,
    SkipNorm,
    SkipSpike,
)
from gradwatch.policies.grammar import members
from gradwatch.policies.threshold import Ramp
from gradwatch.table import lr_columns

ADAPTIVE = re.compile(r"^ada|adam|rmsprop|rprop|lion|lamb|lars|muon|sophia|shampoo|soap|prodigy|came", re.IGNORECASE)
_OWN_LENGTH = re.compile(r"^rprop|adadelta|prodigy|dadapt", re.IGNORECASE)
TOGETHER = 8_192  # medians of `trailing` that are taken at once: 8 MB of windows
LEAST_STEPS = 32  # from so many on `trailing` knows what is usual: the least that a verdict can rest on
USUAL_RATIO = {True: 0.008, False: 0.04}  # measured update ratios: Adam at 1e-3, SGD at 0.5
GUARD = "{guard}"  # in a cure: a clip that leaves healthy steps alone (`guard.with_guard` fills it in)
FIXED = (ClipByGlobalNorm, ClipByNorm, ClipByAverageNorm, ClipByValue, AGC)  # thresholds that someone chose


# -------------------------------------------------------------------------------------------------------- optimizers


def own_optimizers(history: History) -> list[dict[str, Any]]:
    """What the manifest says of the optimizers whose steps these are; of all where it cannot tell."""
    names = {part for name in dict.fromkeys(history.optimizer) for part in str(name).split("+")}
    return [o for o in history.run.optimizers if o.get("name") in names] or list(history.run.optimizers)


def is_adaptive(history: History) -> bool:
    """Whether the step's size does not depend on the scale of the gradients (Adam and its kin, for all optimizers)."""
    own = own_optimizers(history)
    return bool(own) and all(ADAPTIVE.search(str(o.get("class", ""))) for o in own)


def steps_by_rate(history: History) -> bool:
    """Whether the rate sets the length of a step: under those of Adam's kin that do not find it themselves."""
    return is_adaptive(history) and not _OWN_LENGTH.search(optimizer_kind(history))


def optimizer_kind(history: History) -> str:
    """The optimizers' classes as words: `Adam`, `Adam and SGD`; `the optimizer` where none is recorded."""
    return " and ".join(dict.fromkeys(str(o["class"]) for o in own_optimizers(history) if o.get("class"))) or (
        "the optimizer"
    )


def rates(history: History) -> Floats:
    """The learning rates of the param groups of these optimizers, `[T, G]`; NaN where none was recorded."""
    names = [n for n in history.per_step if n == "lr" or n.startswith("lr/")]
    every, own = history.run.optimizers, own_optimizers(history)
    if len(own) < len(every):
        held = {n for one, columns in zip(every, lr_columns(every), strict=True) if one in own for n in columns}
        names = [n for n in names if n in held]
    return np.stack([history.total(n) for n in names], axis=1) if names else np.full((len(history), 1), np.nan)


def settings(history: History) -> list[dict[str, Any]]:
    """The settings of each param group of these optimizers."""
    return [group for optimizer in own_optimizers(history) for group in groups(optimizer).values()]


def initial_sum(history: History) -> float:
    """What Adagrad's sum of squares began with (`initial_accumulator_value`); 0 for others."""
    begun = [group.get("initial_accumulator_value") for group in settings(history)]
    return max((float(value) for value in begun if isinstance(value, int | float)), default=0.0)


def set_rate(history: History, group: int = 0) -> float:
    """The learning rate that was set for this param group; NaN where none was recorded.

    The highest in force: a schedule warms up to what was set, or decays from it, and advice that was relative to one of
    its values on the way could not be followed.
    """
    every = rates(history)
    found = every[:, group][np.isfinite(every[:, group])] if group < every.shape[1] else every[:0, 0]
    return float(found.max()) if len(found) else float("nan")


def to_usual(history: History, ratio: float) -> float:
    """By what the rate is multiplied for steps of this update ratio to become usual ones, to a digit."""
    return float(f"{USUAL_RATIO[is_adaptive(history)] / ratio:.0e}")


# -------------------------------------------------------------------------------------------------------------- clip


def clips(history: History) -> list[Policy | str]:
    """The run's policies that change gradients (those that only skip are left out); by name the unknown ones."""
    return [p for p in members(history.run.clip) if not isinstance(p, SkipNonfinite | SkipNorm | SkipSpike)]


# ------------------------------------------------------------------------------------------------------------- usual


def steps_taken(history: History) -> int:
    """The steps that were taken, not dropped; of several optimizers (or parts) that step apart, the fewest."""
    taken = ~(history.total("skipped") > 0)
    return min((int(taken[rows].sum()) for rows in history.lane_rows().values()), default=0)


def typical(norm: Floats, over: Floats) -> Floats:
    """The median of the norms above 0 of each layer, `[R, L]`, over a number of its own, `[L]`; NaN without any."""
    return np.array([middle(c[c > 0].astype(np.float64) / root) for c, root in zip(norm.T, over, strict=True)])


def middle(values: Floats) -> float:
    """The median of the finite values; NaN where there are none."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else float("nan")


def column_medians(values: Floats) -> Floats:
    """The median of the finite values of each column, `[R, L]` -> `[L]`; NaN for a column without any."""
    return np.array([middle(column.astype(np.float64)) for column in values.T], np.float64)


def trailing(values: Floats, window: int = 128, least: int = LEAST_STEPS, block: int = 8) -> tuple[Floats, Floats]:
    """For each value the median of the `window` finite ones before it, and their robust standard deviation.

    NaN until there are `least` of them. Taken once in `block` steps: a median hardly moves in so few. Robust
    (`series.deviation`), so that what stands out does not hide itself.
    """
    finite = np.flatnonzero(np.isfinite(values))
    known = values[finite]
    ends = np.searchsorted(finite, np.arange(0, len(values), block))  # how many finite values lie before each block
    centre, spread = np.full(len(ends), np.nan), np.full(len(ends), np.nan)
    full = np.flatnonzero(ends >= window)
    for at in np.array_split(full, -(-len(full) // TOGETHER)) if len(full) else ():
        past = np.lib.stride_tricks.sliding_window_view(known, window)[ends[at] - window]
        centre[at] = np.median(past, axis=1)
        spread[at] = np.median(np.abs(past - centre[at, None]), axis=1)
    for i in np.flatnonzero((least <= ends) & (ends < window)):
        centre[i] = np.median(known[: ends[i]])
        spread[i] = np.median(np.abs(known[: ends[i]] - centre[i]))
    return np.repeat(centre, block)[: len(values)], ROBUST * np.repeat(spread, block)[: len(values)]


def smooth(values: Floats, width: int = 9) -> Floats:
    """The median of each value and the `width` - 1 before it, over finite values: one odd step leaves no trace."""
    if len(values) < width:
        return np.asarray(values, np.float64)
    padded = np.concatenate([np.full(width - 1, values[0]), values])
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1))


def threshold(text: str | None) -> float | None:
    """The limit that the policy `text` puts on the total L2 norm, if it is one that can be drawn as a line.

    Only ClipByGlobalNorm limits that norm, alone or in a chain.
    """
    global_norms = (p for p in members(text, of_all_layers=True) if isinstance(p, ClipByGlobalNorm))
    limits = (p.max_norm for p in global_norms if p.norm_type == 2)
    return next((limit for limit in limits if 0 < limit < float("inf")), None)


def limits_of(history: History) -> Floats | None:
    """The limit on the total norm in each step, `[T]`: the policy's, else that of the loop's own clip; None where there
    is none to be drawn.

    A ramp moves with the steps that were taken; those before the first row count as such.
    """
    limit = threshold(history.run.clip)
    if not len(history):
        return None
    if isinstance(limit, Ramp):
        taken = np.isfinite(history.total("grad_norm")) & ~(history.total("nonfinite") > 0)
        taken &= ~(history.total("skipped") > 0)
        return np.asarray(limit.at(history.step[:1].sum() + np.cumsum(taken) - taken))
    limits = np.unique(history.total("user_max_norm"))
    limits = limits[np.isfinite(limits) & (limits > 0)]
    own = float(limits[0]) if len(limits) == 1 and of_all_layers(history).all() else None
    limit = limit or own
    return np.full(len(history), limit) if limit else None

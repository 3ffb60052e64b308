"""How the gradient is spread over the layers: it vanishes along the depth, or one layer is nearly all of it.

Legend: T recorded steps, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradwatch.analysis.clips import incoming
from gradwatch.analysis.rules.facts import USUAL_RATIO, clips, is_adaptive, middle, optimizer_kind, to_usual
from gradwatch.analysis.rules.finding import Finding, Severity
from gradwatch.analysis.rules.layer_facts import matrices, measured, numel
from gradwatch.analysis.rules.once import once
from gradwatch.analysis.rules.series import stretches
from gradwatch.analysis.rules.tries import new_rate
from gradwatch.formatting import setting_text
from gradwatch.history import Bools, Floats, History
from gradwatch.policies import AutoClip, ClipByGlobalNorm, ZClip
from gradwatch.table import squares

LEAST_OF_ITS_OWN = 0.01  # of a layer's norm, below which a clip is no guard any more but takes nearly all away


@dataclass(frozen=True)
class Profile:
    """A straight line through the layers' log10 root mean square values in model order.

    `decades` is its rise from the first layer to the last, `fit` the size of the correlation (0 where fewer than four
    layers have a value).
    """

    decades: float
    fit: float
    layers: tuple[str, ...]


def profile(
    history: History, which: Bools, rows: slice | Bools = slice(None), quantity: str = "grad_norm", least: int = 4
) -> Profile:
    """The depth profile of a quantity over the layers in a mask `[L]`: of norms per element, of ratios as they are."""
    values = history.layer(quantity)[rows]
    level = np.array([middle(log10(values[:, i])) for i in np.flatnonzero(which)])
    if quantity == "grad_norm":
        level = level - 0.5 * np.log10(numel(history)[which])
    seen = np.isfinite(level)
    return line(level[seen], tuple(history.layers[i] for i in np.flatnonzero(which)[seen]), least)


def line(level: Floats, names: tuple[str, ...], least: int = 4) -> Profile:
    """The straight line through the log10 of these layers, in their order."""
    if len(names) < least or np.ptp(level) == 0:
        return Profile(0.0, 0.0, names)
    place = np.arange(len(names))
    slope = np.polyfit(place, level, 1)[0] * (len(names) - 1)
    return Profile(float(slope), float(abs(np.corrcoef(place, level)[0, 1])), names)


@once
def imbalance(
    history: History,
    share: float = 0.99,
    min_steps: int = 100,
    width: int = 9,
    least: int = 4,
    least_rest: float = 1e-4,
) -> list[Finding]:
    """One layer has the share `share` of the squared norm for `min_steps` steps in a row, and a quarter of the run.

    Taken over medians of `width` steps; the others together are then below a tenth of the norm, and above `least_rest`
    of it (else they are dead, or the gradient vanishes). Models of fewer than `least` layers are left alone. A warning
    where it matters: a clip of the global norm is set by that layer alone, and under plain SGD one learning rate must
    fit both. A note under an optimizer that rescales each weight.
    Source: the per-layer clips (LARS, AGC, AdaGC) were made for this; the threshold is above every healthy run's.
    """
    norm = history.layer("grad_norm")
    if len(history) < min_steps or len(norm) < width or norm.shape[1] < least:
        return []
    total = squares(norm)

    def part_of(layer: int) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            own = norm[:, layer].astype(np.float64)
            return np.asarray(np.nan_to_num(np.where(np.isfinite(own), own, 0) ** 2 / total))

    leader = max(range(len(history.layers)), key=lambda layer: part_of(layer).mean())
    part = part_of(leader)
    windows = np.lib.stride_tricks.sliding_window_view(part, width)
    start, stop = longest(np.median(windows, axis=1) >= share)
    rows = slice(start, stop + width - 1)
    if start == stop or history.stands_for[rows].sum() < max(min_steps, len(history) / 4):
        return []
    name, steps = history.layers[leader], history.layer_rows[rows]
    clipped = float(np.nan_to_num(history.total("clip_rate")[steps[0] : steps[-1] + 1]).mean())
    shared = (
        any(isinstance(policy, ClipByGlobalNorm | AutoClip | ZClip) for policy in clips(history)) and clipped > 0.05
    )
    severity: Severity = "warning" if shared or not is_adaptive(history) else "note"
    rest = incoming(history)[steps] * np.sqrt(np.clip(1 - part[rows], 0, None))
    own = middle(norm[rows, leader].astype(np.float64))
    if not middle(rest) > least_rest * own:  # the others have next to no gradient: that is their disease
        return []
    return [
        Finding(
            rule="imbalance",
            severity=severity,
            layers=(name,),
            first_step=int(history.step[steps[0]]),
            last_step=int(history.step[steps[-1]]),
            evidence={
                "share_of_squared_norm": float(np.median(part[rows])),
                "its_norm": own,
                "norm_of_the_others": middle(rest),
                "clip_rate": clipped,
            },
            cause=f"{name} alone makes up the gradient norm: its inputs or its scale are out of proportion"
            + (", and the clip of the global norm shrinks every other layer with it." if shared else "."),
            cure=_cure_of_imbalance(history, int(leader), shared, middle(rest), own)
            if severity == "warning"
            else f"Nothing, while there is no clip of the global norm: {optimizer_kind(history)} rescales each weight. "
            "If you clip, clip each layer: clip='AGC(0.01)'.",
        )
    ]


def _cure_of_imbalance(history: History, leader: int, shared: bool, rest: float, own: float) -> str:
    """The words, with a clip of that layer alone where one at the norm of the others would leave something of it."""
    clip = f"ClipByNorm({setting_text(rest)})"
    apart = f", and clip it apart: clip=\"only('{history.layers[leader]}', {clip})\" brings it down to the others."
    raised = _rate_of_the_others(history, leader, shared)
    return f"Normalise the inputs of that layer{raised}{apart if rest > LEAST_OF_ITS_OWN * own else '.'}"


def _rate_of_the_others(history: History, leader: int, shared: bool) -> str:
    """The rate that gives the other matrices usual steps, as part of a cure; empty where theirs are usual, or unknown.

    What was set had to fit the layer that is out of proportion; once it is not, it holds the others back. A clip that
    it `shared` with them made their steps shorter, and will not then.
    """
    _, ratio = measured(history, "update_ratio")
    others = matrices(history) & (np.arange(len(history.layers)) != leader)
    moves = middle(ratio[:, others]) / (middle(history.total("clip_coef")) if shared else 1)
    if is_adaptive(history) or not 0 < moves < USUAL_RATIO[False] / 10:
        return ""
    higher = new_rate(history, to_usual(history, moves))
    return f" and raise the learning rate, which had to fit it: at {higher} the others step as usual"


def longest(mask: Bools) -> tuple[int, int]:
    """The longest run of true values in a mask: its first place, and the one after its last; (0, 0) where none is."""
    start, stop = max(stretches(mask), key=lambda each: each[1] - each[0], default=(0, 0))
    return int(start), int(stop)


def log10(values: Floats) -> Floats:
    """The logarithms; NaN of what has none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log10(values.astype(np.float64))
    return np.where(np.isfinite(logs), logs, np.nan)

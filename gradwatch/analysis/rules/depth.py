"""How the gradient is spread over the layers: it vanishes along the depth, or one layer is nearly all of it.

Legend: T recorded steps, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradwatch.analysis.clips import incoming
from gradwatch.analysis.final_values import lost_since
from gradwatch.analysis.rules.facts import (
    USUAL_RATIO,
    clips,
    is_adaptive,
    matrices,
    measured,
    middle,
    numel,
    optimizer_kind,
    pick,
    set_rate,
    to_usual,
    typical,
)
from gradwatch.analysis.rules.fading import fades, lost_in_time
from gradwatch.analysis.rules.finding import Finding, Severity
from gradwatch.analysis.rules.losses import scaled_losses
from gradwatch.analysis.rules.once import once
from gradwatch.analysis.rules.progress import can_be_judged, succeeds
from gradwatch.analysis.rules.vanishing_causes import forward_rms, remedies, why_vanishing
from gradwatch.formatting import quantity_text, setting_text
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
    level = np.array([middle(_log10(values[:, i])) for i in np.flatnonzero(which)])
    if quantity == "grad_norm":
        level = level - 0.5 * np.log10(numel(history)[which])
    seen = np.isfinite(level)
    return _line(level[seen], tuple(history.layers[i] for i in np.flatnonzero(which)[seen]), least)


def _line(level: Floats, names: tuple[str, ...], least: int = 4) -> Profile:
    """The straight line through the log10 of these layers, in their order."""
    if len(names) < least or np.ptp(level) == 0:
        return Profile(0.0, 0.0, names)
    place = np.arange(len(names))
    slope = np.polyfit(place, level, 1)[0] * (len(names) - 1)
    return Profile(float(slope), float(abs(np.corrcoef(place, level)[0, 1])), names)


@once
def vanishing(
    history: History, decades: float = 4.0, fit: float = 0.9, min_steps: int = 20, still: float = 2.0
) -> list[Finding]:
    """The gradient shrinks from the last layer to the first, evenly, by `decades` powers of ten.

    Measured on the weight matrices, per element, as a straight line through the logarithms in model order, which must
    fit with a correlation of `fit`; biases and gains are left out, and so are exact zeros. It must hold for half of
    the run, and for `min_steps` steps. A trained network's line is level (within one decade on the healthy runs).

    What matters is whether the first layers learn: a note where the update ratios span less than `still` decades,
    because the optimizer rescales each layer (Adam), and the training is not known to get nowhere.

    Where activations were recorded they tell the causes apart (`why_vanishing`), and what vanishes on its way forward
    is found too, which leaves the gradients of all layers alike, and next to nothing (`_faded`). Or the first layers
    lose their gradient as the training goes on (`fading.fades`), or a recurrence its inputs (`lost_in_time`).
    Source: SageMaker Debugger's VanishingGradient asks for an absolute mean; the ratio is that of methods S2 (x 0.24 a
    layer for sigmoids).
    """
    which = matrices(history)
    if len(history) < min_steps:
        return []
    whole = profile(history, which)
    if whole.decades < decades or whole.fit < fit:
        found = _cut_off(history, which, 10.0**-decades, min_steps) or _faded(history, decades, fit)
        return found or lost_in_time(history) or fades(history)
    ends = [name in whole.layers[:1] + whole.layers[-1:] for name in history.layers]
    logs = _log10(history.layer("grad_norm")[:, ends])
    gap = logs[:, 1] - logs[:, 0]
    rows = np.flatnonzero(gap >= decades / 2)
    if history.stands_for[rows].sum() < max(min_steps, len(history) / 2):
        return []
    updates, why = profile(history, which, quantity="update_ratio"), why_vanishing(history)
    rescaled = updates.fit > 0 and updates.decades < still
    stuck = can_be_judged(history, 100, 500) and bool(scaled_losses(history)) and not succeeds(history)
    severity: Severity = "note" if rescaled and not stuck else "warning"
    factor = 10 ** (whole.decades / (len(whole.layers) - 1))
    shrunk = whole.layers[: max(1, int(np.ceil(len(whole.layers) * (1 - still / whole.decades))))]
    cure = _in_order(history)
    if rescaled and is_adaptive(history):
        cure = f"{optimizer_kind(history)} rescales each layer, so that all learn, while its epsilon is small. {cure}"
    else:
        cure += " A clip can only make gradients smaller, and is no cure."
    return [
        Finding(
            rule="vanishing",
            severity=severity,
            layers=shrunk,
            first_step=int(history.layer_step[rows[0]]),
            last_step=int(history.layer_step[rows[-1]]),
            evidence={
                "decades": whole.decades,
                "shrinks_per_layer_by": float(factor),
                "update_ratio_decades": updates.decades if updates.fit > 0 else "not measured",
                **why.evidence,
            },
            cause=f"Each layer passes on only 1/{factor:.1f} of the gradient that it is given, so that "
            f"{'the first layers get next to none' if rescaled else 'the first layers hardly learn'}. {why.cause}",
            cure=cure,
            alternatives=why.alternatives,
        )
    ]


def _in_order(history: History) -> str:
    """What helps, as a sentence."""
    found = remedies(history)
    return f"Use {found[0]}. If that is not enough: {'; '.join(found[1:])}." if found[1:] else f"Use {found[0]}."


def _cut_off(history: History, which: Bools, share: float, min_steps: int) -> list[Finding]:
    """The gradient of most matrices is below a share of the last one's by the median step, though in no even line.

    Not said where the training succeeds. In healthy trainings of the tests it is a thousandth of it at least.
    """
    if not can_be_judged(history, max(min_steps, 50), 500) or succeeds(history, 0.6):
        return []
    norm, over = history.layer("grad_norm"), np.sqrt(numel(history))
    level = typical(norm, over)[which]
    known, total = np.isfinite(level), incoming(history)
    if not known.any():
        return []
    tenth = max(5, len(total) // 10)
    if lost_since(history) is not None or middle(total[-tenth:]) > 100 * middle(total[:tenth]):
        return []  # it came apart, and some layers more than others
    last = level[known][-1]
    small = known & (level < share * last)
    if small.sum() <= known.sum() / 2:
        return []
    names = np.array(pick(history, which))
    why = why_vanishing(history)
    at = np.flatnonzero(which)[small]
    row = int(np.argmax((norm[:, at] / over[at] < share * last).sum(axis=1) > small.sum() / 2))
    weakest, lastly = float(level[small].max() / last), str(names[known][-1])
    cause = f"By the element, the gradients of these layers are below {weakest:.1e} of those of {lastly}: what lies "
    cause += "between passes next to none on. "
    return [
        Finding(
            "vanishing",
            "warning",
            tuple(map(str, names[small])),
            int(history.layer_step[row]),
            int(history.step[-1]),
            {"share_of_the_last": weakest, "layers": int(small.sum()), "of": int(known.sum()), **why.evidence},
            cause + why.cause,
            f"{_in_order(history)} A clip can only make gradients smaller, and is no cure.",
            alternatives=why.alternatives,
        )
    ]


def _faded(history: History, decades: float, fit: float) -> list[Finding]:
    """The activations of the first sampled step fall evenly by `decades` along the forward pass.

    Not said where the training succeeds, as the outputs may be learnt by the last layers alone.
    """
    names, rms = forward_rms(history)
    along = _line(np.log10(rms), names)
    if along.decades > -decades or along.fit < fit or not can_be_judged(history, 50, 500) or succeeds(history):
        return []
    cause = "What comes in is lost on its way: the root mean square of the activations falls from "
    cause += f"{quantity_text(rms[0])} in `{names[0]}` to {quantity_text(rms[-1])} in `{names[-1]}` in the first step, "
    cause += "and as little of the gradient comes back. The initial weights are too small for this depth."
    return [
        Finding(
            "vanishing",
            "warning",
            tuple(name for name, size in zip(names, rms, strict=True) if size < rms[0] / 100),
            int(history.step[0]),
            int(history.step[-1]),
            {"activation_decades": -along.decades, "first_rms": float(rms[0]), "last_rms": float(rms[-1])},
            cause,
            f"{_in_order(history)} A higher learning rate does not make up for it.",
        )
    ]


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
    rate = set_rate(history) * to_usual(history, moves)
    return f" and raise the learning rate, which had to fit it: with lr={setting_text(rate)} the others step as usual"


def longest(mask: Bools) -> tuple[int, int]:
    """The longest run of true values in a mask: its first place, and the one after its last; (0, 0) where none is."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    starts, stops = edges[::2], edges[1::2]
    if not len(starts):
        return 0, 0
    best = int((stops - starts).argmax())
    return int(starts[best]), int(stops[best])


def _log10(values: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log10(values.astype(np.float64))
    return np.where(np.isfinite(logs), logs, np.nan)

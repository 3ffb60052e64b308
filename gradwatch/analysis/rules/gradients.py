"""Trainings that come apart: over the steps, along the depth of the network or along time.

Legend: T recorded steps, L layers.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.final_values import nonfinite_rows
from gradwatch.analysis.rules.depth import profile
from gradwatch.analysis.rules.facts import (
    GUARD,
    LEAST_STEPS,
    USUAL_RATIO,
    clips,
    is_adaptive,
    largest_ratio,
    matrices,
    middle,
    optimizer_kind,
    pick,
    set_rate,
)
from gradwatch.analysis.rules.far_beginning import begins_far
from gradwatch.analysis.rules.finding import Finding, Why, either
from gradwatch.analysis.rules.losses import first_quarter, has_rivals, odd_batch, scaled_losses, training_losses
from gradwatch.analysis.rules.nonfinite import growth_before
from gradwatch.analysis.rules.once import once
from gradwatch.analysis.rules.schedule import goes_astray, raised_before
from gradwatch.analysis.rules.step_length import first_ratio, lengthened, lowered
from gradwatch.analysis.rules.tries import A_THIRD, LOWER, clip_with, rate_times, warm_up
from gradwatch.analysis.rules.updates import far_targets
from gradwatch.analysis.rules.vanishing_causes import remedies
from gradwatch.formatting import percent, setting_text
from gradwatch.history import Bools, Floats, History


@once
def exploding(
    history: History, decades: float = 2.0, blind_decades: float = 3.0, width: int = 5, far: float = 10.0
) -> list[Finding]:
    """The training came apart: by the gradient norm, by the loss, or by running into inf or NaN.

    By the norm: it stayed `decades` powers of ten above the run's own early median for `width` steps in a row while
    the training loss did not improve (`blind_decades` where no loss was logged); in a run of fewer than three times
    that many steps, its last third lies `blind_decades` above its first. By the loss: see `_loss_jump` and
    `_thrown_out`. By the end: a step that was not skipped was inf or NaN, and the norm, the loss or the steps had
    grown before (`growth_before`). All are relative to the run itself, so noise, one spike, or leaving a plateau
    gives no alarm. A loss without a scale (`scaled_losses`) is not asked. Where other parts of the run log losses too
    they may train against each other: a loss that does not fall is no sign. A warning where nothing but the loss rose,
    by usual steps, to less than `far` times its start: targets of values that are learnt from themselves grow so.

    `along` says how the gradient grows: over the `steps`, along the `depth` (the norms rise from the last layer to the
    first, in the first step already) or along `time` (recurrent weights have most of the norm in the steps that set a
    new high); `layers` are those that carry it, for the last two.
    Source: growth against the run's own past (OLMo-core's stability monitor), the jump over the running minimum (S5),
    growth along time and depth (Pascanu et al. 2013; methods: S1, S1b).
    """
    losses = scaled_losses(history)
    alone = not has_rivals(history)
    growth, rows = _sustained_growth(history.total("grad_norm"), width)
    told = losses and alone and np.isfinite(history.total("grad_norm")).sum() >= 3 * width
    grown = np.flatnonzero(growth >= (decades if told else blind_decades))
    if len(grown) and not any(_improved(values, width) for values in losses.values()) and not far_targets(history):
        return [_explosion(history, rows[grown[0]], {"grad_norm_growth": float(10 ** growth.max())})]
    for name, values in losses.items():
        jump = (alone and _loss_jump(values, width)) or _thrown_out(values, history.total("grad_norm"), width, alone)
        if jump:
            row, evidence = jump
            found = _explosion(history, row, {"metric": name, **evidence})
            mild = "lowest" in evidence and largest_ratio(history) < USUAL_RATIO[is_adaptive(history)]
            known = values[np.isfinite(values)]  # it may be logged now and then
            mild &= bool(np.median(known[-width:]) < far * np.median(known[:width]))
            return [replace(found, severity="warning") if mild else found]
    for name in [] if alone else training_losses(history):
        jump = _ran_off(history.total(name), width)
        if jump:
            row, evidence = jump
            return [_explosion(history, row, {"metric": name, **evidence})]
    if _begins_out_of_scale(history):
        return [_explosion(history, 0, {"first_grad_norm": middle(history.total("grad_norm")[:3])})]
    bad = np.flatnonzero(nonfinite_rows(history))
    begin = growth_before(history, int(bad[0])) if len(bad) and not history.total("skipped")[bad[0]] > 0 else None
    if begin is not None:
        norm = history.total("grad_norm")[: bad[0]]
        early = middle(norm[: max(1, len(norm) // 10)])
        top = float(np.max(norm, initial=0, where=np.isfinite(norm)) / early) if early > 0 else float("nan")
        return [_explosion(history, begin, {"grad_norm_growth": top, "nonfinite_at": int(history.step[bad[0]])})]
    return []


_RECURRENT = re.compile(r"(^|[._])(weight|bias)_(hh|ih)($|[._])|recurrent|(^|[._])(rnn|lstm|gru)\w*[._]", re.IGNORECASE)


def _begins_out_of_scale(history: History, large: float = 1e4) -> bool:
    """Whether a recurrent network's loss and norm begin above `large`, and its recurrent weights have most of the norm.

    Later steps may bring them down: then it was slow for nothing. Healthy trainings of the tests begin below 50.
    """
    norm, began = (
        middle(history.total("grad_norm")[:3]),
        [v[0] for v in map(first_quarter, scaled_losses(history).values())],
    )
    return norm > large and bool(began) and max(began) > large and _along(history, 0)[0] == "time"


def _explosion(history: History, row: int, evidence: dict[str, float | str]) -> Finding:
    batch = odd_batch(history)
    if batch is not None and abs(row - batch) <= LEAST_STEPS / 2:
        row = min(batch + 1, len(history) - 1)  # what came apart did so after it
    along, layers, how = _along(history, row)
    why = _over_steps(history, row) if along == "steps" else _along_the_way(history, along)
    held = f" {history.run.clip} did not hold it." if clips(history) else ""
    return Finding(
        rule="exploding",
        severity="error",
        layers=layers,
        first_step=int(history.step[row]),
        last_step=int(history.step[-1]),
        evidence={"along": along, **how, **evidence, **why.evidence},
        cause=why.cause,
        cure=why.cure + held,
        tries=why.tries,
        alternatives=why.alternatives,
    )


def _along_the_way(history: History, along: str) -> Why:
    """What makes a gradient grow on its way back, and the cure."""
    bound = f'clip="{GUARD}"'
    if along == "depth":
        cause = "Each layer multiplies the gradient on its way back by more than one: the initial weights are too "
        cause += "large for this depth."
        return Why(cause, f"Give it {' or '.join(remedies(history))}; then {bound}.", {}, (clip_with(GUARD),))
    return Why(
        "The gradient is multiplied by the recurrent weights once for each time step, and grew on the way.",
        f"Clip: {bound}, and begin with orthogonal recurrent weights.",
        {},
        (clip_with(GUARD),),
    )


def _over_steps(history: History, row: int, large: float = 1e4) -> Why:
    """What makes a training come apart in a row, after a calm beginning or at once, and the cure.

    A rate that a schedule had raised before is the cause. A loss that begins above `large` is said first (healthy ones
    of the tests begin below 50). Without Adam's second moment a third of the rate is tried under a clip: a
    tenth by itself is often too much still, and a clip alone leaves many where they are (docs/findings/cures.md).
    """
    astray = goes_astray(history, row)
    if astray:
        return astray._replace(cause=f"{_TOO_LARGE}. {astray.cause}")
    raised = raised_before(history, row)
    calm = row >= LEAST_STEPS and not raised
    kind, longer, first = optimizer_kind(history), lengthened(history), first_ratio(history)
    too_high = "the learning rate is too high for this network"
    causes = (too_high, "one extreme batch threw it out of its valley") if calm else ()
    cause = f"{_TOO_LARGE}. {either(causes)}" if calm else f"{_TOO_LARGE}: {too_high}.{raised}"
    bound, later = clip_with(GUARD), warm_up(history)
    if is_adaptive(history):
        to, times = "", lowered(history)
        if times < 0.1:
            causes = ()
            cause = f"{_TOO_LARGE}: the first ones change the weights by {percent(first)} of their size already; under "
            cause += f"{kind} {percent(USUAL_RATIO[True])} is usual."
            to = f" to about {setting_text(set_rate(history) * times)}"
        cure = f"Lower the learning rate{to}, or warm it up: {kind} takes steps of the same size whatever the scale of "
        cure += "the gradient, so that a clip helps against one bad batch only."
        tries: tuple[str, ...] = (rate_times(times), later)
        return Why(cause + longer.cause, longer.around(cure), {}, longer.left_of(tries), causes)
    if "BFGS" in kind:  # it lives on the differences of gradients, which a clip distorts
        cure = "Give it its line search (line_search_fn='strong_wolfe'), or lower the learning rate."
        return Why(cause + longer.cause, cure, {}, (LOWER,), causes)
    limit = f'clip="{GUARD}"'
    cure = f"Lower the learning rate or warm it up, and clip: {limit}."
    tries = (f"{A_THIRD} {bound}", f"{later} {bound}", bound, LOWER)
    far = begins_far(history, f"{_TOO_LARGE}.", cure)
    began = max((first_quarter(v)[0] for v in scaled_losses(history).values()), default=0.0)
    if began > large and not calm:
        cause = f"The loss begins at {began:.2g}, and the gradients and the steps are as large: its targets are "
        cause += "far from unit size, or it is a sum."
        cure = "Scale the targets to unit size, or take the mean of what is summed: the loss is to begin near 1. "
        cure += f"If it does not, or must be so large, lower the learning rate by decades and clip: {limit}."
    elif far and not calm:
        cause, cure = far
    elif calm and _leapt(history.total("grad_norm"), row):
        tries = (bound, LOWER, f"{LOWER} {bound}")
        cure = f"Clip: {limit}; if it comes apart all the same, lower the learning rate. Look at that step's batch."
    return Why(cause + longer.cause, longer.around(cure), {}, longer.left_of(tries), causes)


_TOO_LARGE = "The steps are larger than the loss surface allows"


def _leapt(norm: Floats, row: int, times: float = 30.0, usual: int = 16) -> bool:
    """Whether the norm leapt in one step near a row, to `times` the highest of the `usual` ones before it."""
    before = np.lib.stride_tricks.sliding_window_view(norm, usual)[:-1].max(axis=1)  # of norm[usual:]
    with np.errstate(invalid="ignore", divide="ignore"):
        leaps = usual + np.flatnonzero(norm[usual:] > times * before)
    return bool((np.abs(leaps - row) <= usual).any())


def _along(history: History, row: int) -> tuple[str, tuple[str, ...], dict[str, float | str]]:
    """How the gradient grows up to a row: the word, the layers that carry it, and the numbers."""
    before = slice(0, 1)  # no weight had moved yet
    steepest = min((profile(history, which, before) for which in _kinds(history)), key=lambda p: p.decades)
    if steepest.decades <= -2 and steepest.fit >= 0.9:
        factor = 10 ** (-steepest.decades / max(1, len(steepest.layers) - 1))
        return "depth", (steepest.layers[0],), {"growth_per_layer": float(factor)}
    with np.errstate(over="ignore", invalid="ignore"):
        square = history.layer("grad_norm")[history.layer_rows <= row].astype(np.float64) ** 2
        recurrent = np.array([bool(_RECURRENT.search(name)) for name in history.layers], bool)
        total = np.nansum(square, axis=1)
        share = np.nansum(square[:, recurrent], axis=1) / total
    highs = total >= np.maximum.accumulate(total)  # the steps that set a new high, down to the explosion
    seen = share[highs & np.isfinite(share)]
    if recurrent.any() and len(seen) and np.median(seen) >= 0.5:
        names = tuple(name for name in pick(history, recurrent) if re.search("weight_hh|recurrent", name))
        return "time", names or pick(history, recurrent), {"recurrent_share": float(np.median(seen))}
    return "steps", (), {}


def _kinds(history: History) -> list[Bools]:
    """The layers whose norms can be compared along the depth: the matrices, and the vectors (biases)."""
    weights = matrices(history)
    biases = ~weights & np.array([name.endswith("bias") for name in history.layers], bool)
    return [weights, biases]


def _sustained_growth(norm: Floats, width: int) -> tuple[Floats, NDArray[np.intp]]:
    """For each `width` finite steps in a row: their lowest log10 over the early median, and the row they start at.

    The early median is that of the first tenth of the finite steps, at least `width` of them, or of the first `width`
    where these were higher: from a norm that collapsed nothing has grown.
    """
    rows = np.flatnonzero(np.isfinite(norm) & (norm > 0))
    if len(rows) < 3 * width:
        return _risen(norm[rows]), rows[-(len(rows) // 3) :]
    logs = np.log10(norm[rows])
    early = max(np.median(logs[: max(width, len(logs) // 10)]), np.median(logs[:width]))
    return np.lib.stride_tricks.sliding_window_view(logs - early, width).min(axis=1), rows


def _risen(norm: Floats, least: int = 4) -> Floats:
    """Of a short run: log10 of the lowest norm of its last third over the highest of its first, one value or none."""
    third = len(norm) // 3
    return np.log10(norm[-third:].min(keepdims=True) / norm[:third].max()) if len(norm) >= least else np.zeros(0)


def _improved(values: Floats, width: int) -> bool:
    """Whether the last values are below the first ones, by their medians."""
    finite = values[np.isfinite(values)]
    n = min(width, len(finite) // 2)
    return bool(np.median(finite[-n:]) < np.median(finite[:n]))


def _loss_jump(
    values: Floats, width: int, share: float = 0.5, sigmas: float = 6.0
) -> tuple[int, dict[str, float | str]] | None:
    """The row at which a loss left its minimum for good, and the numbers; None for a loss that stayed near it.

    Alarm: it ended above its smoothed minimum by more than `share` of all it had won, by more than `sigmas` robust
    standard deviations of its noise, and by more than a quarter of where it started.
    """
    rows = np.flatnonzero(np.isfinite(values))
    block = max(width, len(rows) // 40)  # medians of blocks: the minimum of a noisy curve is low by luck
    if len(rows) < 3 * block:
        return None
    rows = rows[len(rows) % block :]
    blocks = values[rows].reshape(-1, block)
    smooth = np.median(blocks, axis=1)
    noise = 1.4826 * float(np.median(np.abs(blocks - smooth[:, None])))
    start, low, end = float(smooth[0]), float(smooth.min()), float(smooth[-1])
    if end - low <= max(share * (start - low), sigmas * noise, abs(start) / 4):
        return None
    lowest = int(smooth.argmin())
    left = lowest + int(np.argmax(smooth[lowest:] > (low + end) / 2))
    return int(rows[left * block]), {"start": start, "lowest": low, "end": end}


def _ran_off(
    values: Floats, width: int, times: float = 20.0, least: float = 0.1
) -> tuple[int, dict[str, float | str]] | None:
    """The row at which a rival's loss left the size it began with for good, and the numbers.

    Alarm: in the last quarter of the run it is `times` its first values, by the median, and these say something: above
    `least`. In healthy trainings of the tests it is 3 times them at most.
    """
    rows = np.flatnonzero(np.isfinite(values))
    if len(rows) < 4 * width:
        return None
    finite = np.abs(values[rows])
    start, end = float(np.median(finite[:3])), float(np.median(finite[-(len(rows) // 4) :]))
    if start < least or end <= times * start:
        return None
    row = rows[int(np.argmax(finite > np.sqrt(times) * start))]
    return int(row), {"start": start, "highest": float(finite.max()), "end": end}


def _thrown_out(
    values: Floats, norm: Floats, width: int, alone: bool, jump: float = 5.0, growth: float = 20.0, above: float = 1.1
) -> tuple[int, dict[str, float | str]] | None:
    """The row at which a training was thrown out of its start and never came back, and the numbers.

    Alarm: the loss rose to `jump` times its first value and ended `above` times it, clear of its noise, and the
    gradient norm grew to `growth` times its own first value; of rivals to as many times its median over their first
    quarter, for a judge that knows nothing yet hands on next to no gradient. (A generator's loss may end above its
    start.)
    """
    rows, norms = np.flatnonzero(np.isfinite(values)), norm[np.isfinite(norm) & (norm > 0)]
    if len(rows) < 3 * width or not len(norms) or values[rows[0]] <= 0:
        return None
    finite = values[rows]
    start, highest, end = (
        float(finite[0]),
        float(finite.max()),
        float(np.median(finite[-max(width, len(rows) // 40) :])),
    )
    first = float(norms[0] if alone else np.median(norms[: -(-len(norms) // 4)]))
    sigma = 1.4826 * float(np.median(np.abs(np.diff(finite)))) / np.sqrt(2)
    unclear = 3 * 1.2533 * sigma / np.sqrt(max(width, len(rows) // 40))  # of the median at the end
    if highest <= jump * start or end <= above * start + unclear or norms.max() <= growth * first:
        return None
    row = rows[int(np.argmax(finite > (1 + jump) / 2 * start))]
    return int(row), {"start": start, "highest": highest, "end": end, "grad_norm_growth": float(norms.max() / first)}

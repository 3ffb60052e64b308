"""Trainings that come apart: over the steps, along the depth of the network or along time.

Legend: T recorded steps, L layers.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from gradwatch.analysis.final_values import nonfinite_rows
from gradwatch.analysis.rules.came_apart import improved, leapt, loss_jump, ran_off, sustained_growth, thrown_out
from gradwatch.analysis.rules.depth import profile
from gradwatch.analysis.rules.facts import GUARD, LEAST_STEPS, USUAL_RATIO, clips, is_adaptive, middle, optimizer_kind
from gradwatch.analysis.rules.far_beginning import begins_far, begins_small
from gradwatch.analysis.rules.finding import Evidence, Finding, Why, either
from gradwatch.analysis.rules.held_out import rises_alone
from gradwatch.analysis.rules.layer_facts import largest_ratio, matrices, pick
from gradwatch.analysis.rules.losses import (
    first_values,
    has_rivals,
    odd_batch,
    scaled_losses,
    training_losses,
    without_small_terms,
)
from gradwatch.analysis.rules.nonfinite import growth_before
from gradwatch.analysis.rules.once import once
from gradwatch.analysis.rules.sampled_losses import grows_harder, own_targets_move
from gradwatch.analysis.rules.schedule import goes_astray, raised_before
from gradwatch.analysis.rules.small_updates import far_targets
from gradwatch.analysis.rules.step_length import first_ratio, lengthened, lowered
from gradwatch.analysis.rules.tries import A_THIRD, LOWER, clip_with, new_rate, rate_times, warm_up
from gradwatch.analysis.rules.vanishing_causes import remedies
from gradwatch.formatting import percent
from gradwatch.history import Bools, Floats, History


@once
def exploding(
    history: History, decades: float = 2.0, blind_decades: float = 3.0, width: int = 5, far: float = 10.0
) -> list[Finding]:
    """The training came apart: by the gradient norm, by the loss, or by running into inf or NaN.

    By the norm: it stayed `decades` powers of ten above the run's own early median for `width` steps in a row while
    the training loss did not improve (`blind_decades` where no loss was logged); in a run of fewer than three times
    that many steps, its last third lies `blind_decades` above its first. By the loss: see `loss_jump` and
    `thrown_out`. By the end: a step that was not skipped was inf or NaN, and the norm, the loss or the steps had
    grown before (`growth_before`). All are relative to the run itself, so noise, one spike, or leaving a plateau
    gives no alarm; nor does a norm that grows with weights that begin next to 0. A loss without a scale
    (`scaled_losses`) is not asked. Where other parts of the run log losses too they may train against each other: a
    loss that does not fall is no sign. A warning where nothing but the loss rose, by usual steps, to less than `far`
    times its start: targets of values that are learnt from themselves grow so; nothing where these are seen to
    (`own_targets_move`), or what is asked for `grows_harder`, nor where a loss `rises_alone`.

    `along` says how the gradient grows: over the `steps`, along the `depth` (the norms rise from the last layer to the
    first, in the first step already) or along `time` (recurrent weights have three quarters of the squared norm in the
    steps that set a new high; about half is their part of a usual one); `layers` are those that carry it, for the last
    two.
    Source: growth against the run's own past (OLMo-core's stability monitor), the jump over the running minimum (S5),
    growth along time and depth (Pascanu et al. 2013; methods: S1, S1b).
    """
    alone = not has_rivals(history)
    losses = without_small_terms(scaled_losses(history)) if alone else scaled_losses(history)
    growth, rows = sustained_growth(history.total("grad_norm"), width)
    told = losses and alone and np.isfinite(history.total("grad_norm")).sum() >= 3 * width
    grown = np.flatnonzero(growth >= (decades if told else blind_decades))
    better = any(improved(values, width) for values in losses.values())
    if len(grown) and not (better or far_targets(history) or begins_small(history)):
        return [_explosion(history, rows[grown[0]], {"grad_norm_growth": float(10 ** growth.max())})]
    for name, values in losses.items():
        jump = (alone and loss_jump(values, width)) or thrown_out(values, history.total("grad_norm"), width, alone)
        if jump and rises_alone(history, values, jump[0]):
            continue
        if jump:
            row, evidence = jump
            found = _explosion(history, row, {"metric": name, **evidence})
            mild = "lowest" in evidence and largest_ratio(history) < USUAL_RATIO[is_adaptive(history)]
            known = values[np.isfinite(values)]  # it may be logged now and then
            mild &= bool(np.median(known[-width:]) < far * np.median(known[:width]))
            if mild and (grows_harder(history) or own_targets_move(history)):
                continue
            return [replace(found, severity="warning") if mild else found]
    for name in [] if alone else training_losses(history):
        jump = ran_off(history.total(name), history.total("grad_norm"), width)
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
    norm, began = middle(history.total("grad_norm")[:3]), first_values(history).values()
    return norm > large and bool(began) and max(began) > large and _along(history, 0)[0] == "time"


def _explosion(history: History, row: int, evidence: Evidence) -> Finding:
    batch = odd_batch(history)
    if batch is not None and abs(row - batch) <= LEAST_STEPS / 2:
        row = min(batch + 1, len(history) - 1)  # what came apart did so after it
    along, layers, how = _along(history, row)
    why = _over_steps(history, row) if along == "steps" else _along_the_way(history, along)
    held = f" {history.run.clip} did not hold it." if clips(history) else ""
    why, first = why._replace(cure=why.cure + held), int(history.step[row])
    return why.finding(history, "exploding", layers, {"along": along, **how, **evidence}, "error", first)


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
            to = f" to {new_rate(history, times)}"
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
    began = max(first_values(history).values(), default=0.0)
    if began > large and not calm:
        cause = f"The loss begins at {began:.2g}, and the gradients and the steps are as large: its targets are "
        cause += "far from unit size, or it is a sum."
        cure = "Scale the targets to unit size, or take the mean of what is summed: the loss is to begin near 1. "
        cure += f"If it does not, or must be so large, lower the learning rate by decades and clip: {limit}."
    elif far and not calm:
        cause, cure = far
    elif calm and leapt(history.total("grad_norm"), row):
        tries = (bound, LOWER, f"{LOWER} {bound}")
        cure = f"Clip: {limit}; if it comes apart all the same, lower the learning rate. Look at that step's batch."
    return Why(cause + longer.cause, longer.around(cure), {}, longer.left_of(tries), causes)


_TOO_LARGE = "The steps are larger than the loss surface allows"


def _along(history: History, row: int, most: float = 0.75) -> tuple[str, tuple[str, ...], Evidence]:
    """How the gradient grows up to a row: the word, the layers that carry it, and the numbers.

    Along time where the recurrent weights have `most` of its square in most of the steps that set a new high, or in the
    first step and those that made most of the growth.
    """
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
    highs = (total >= np.maximum.accumulate(total)) & (total > 0) & np.isfinite(share)  # down to the explosion
    if recurrent.any() and highs.any():
        seen, at_first = float(np.median(share[highs])), float(share[highs][0])  # when no weight had moved yet
        if at_first >= most > seen:  # each high by how far it is above the one before it
            seen = _weighted_median(share[highs][1:], np.diff(np.log10(total[highs])))
        if seen >= most:
            names = tuple(name for name in pick(history, recurrent) if re.search("weight_hh|recurrent", name))
            return "time", names or pick(history, recurrent), {"recurrent_share": seen}
    return "steps", (), {}


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])


def _kinds(history: History) -> list[Bools]:
    """The layers whose norms can be compared along the depth: the matrices, and the vectors (biases)."""
    weights = matrices(history)
    biases = ~weights & np.array([name.endswith("bias") for name in history.layers], bool)
    return [weights, biases]

"""Steps that change the weights too little: the rate, or gradients that are next to nothing.

Legend: M steps in which weights were measured, L layers.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.final_values import quarters
from gradwatch.analysis.rules.facts import (
    USUAL_RATIO,
    initial_sum,
    is_adaptive,
    middle,
    optimizer_kind,
    rates,
    set_rate,
    settings,
    to_usual,
)
from gradwatch.analysis.rules.finding import Finding, Why, either, whole_run
from gradwatch.analysis.rules.layer_facts import (
    directness,
    initial_gains,
    matrices,
    measured,
    numel,
    pick,
    root_mean_square,
)
from gradwatch.analysis.rules.losses import learnt
from gradwatch.analysis.rules.progress import creeps, hardly_moves, loss_progress
from gradwatch.analysis.rules.sampled_losses import explains_less, in_the_beginning
from gradwatch.analysis.rules.schedule import ran_out
from gradwatch.analysis.rules.step_length import first_ratio
from gradwatch.analysis.rules.tries import LOWER, new_rate, rate_times, warm_up
from gradwatch.formatting import percent, setting_text
from gradwatch.history import Bools, Floats, History


def _has_momentum(history: History) -> bool:
    return any(isinstance(m := group.get("momentum"), int | float) and m > 0 for group in settings(history))


_HIGHEST = 10.0  # rate of SGD


def weak_gradients(
    history: History, moves: float, wanted: float, highest: float = _HIGHEST, tiny: float = 1e-8, most: float = 1.0
) -> Why | None:
    """Why steps of `moves` are so small where no rate mends it: the one `wanted` is above all that SGD is used with.

    Under Adam and its kin, whose steps hardly depend on the size of the gradients while that is above their eps: where
    the root mean square of most layers' gradients is below `tiny`, which is Adam's, or the rate wanted above `most`. Or
    the first step was as long as is usual, at the same rate, and the loss leapt.
    Source: CS231n searches rates up to 10; momentum=0.9 makes steps ten times as long (Sutskever et al. 2013).
    """
    thrown = _thrown(history, moves)
    if thrown:
        return thrown
    if is_adaptive(history):
        sizes = root_mean_square(history, history.layer("clipped_norm"))
        if middle(sizes[sizes > 0]) < tiny:
            reason = "the gradients are below what Adam adds to their size (its eps)"
        elif wanted > most:
            reason = f"usual steps would take one of {setting_text(wanted)}, so the gradients are next to nothing now"
        else:
            return None
    elif wanted > highest * (1 if _has_momentum(history) else 10):
        reason = f"usual steps would take one of {setting_text(wanted)}"
    else:
        return None
    return Why(
        f"A usual step changes no weight matrix by more than {moves:.1e} of its size, and not for the learning rate: "
        f"{reason}. What reaches the optimizer is small.",
        "Look at what stands between the weights and the loss: an output that is saturated (a sigmoid or a softmax far "
        "out, by its bias or its scale), a temperature, a factor of the loss. A higher rate would throw the weights "
        "out as soon as the gradients come back.",
        {},
    )


def _thrown(history: History, moves: float, leap: float = 1.5, soon: int = 10) -> Why | None:
    """Why steps of `moves` are small where the first ones were not: these threw the units to where no gradient is."""
    kind, first, rate = is_adaptive(history), first_ratio(history), rates(history).max(axis=1)
    losses = loss_progress(history)
    leapt = [float(np.nanmax(history.total(p.metric)[:soon], initial=-np.inf)) > leap * p.first for p in losses]
    if not first > USUAL_RATIO[kind] or not middle(rate) > rate[0] / 2 or not losses or not all(leapt):
        return None
    return Why(
        f"The first step changed the weights by {percent(first)} of their size, and the loss leapt; since then a usual "
        f"one changes no weight matrix by more than {moves:.1e} of its size. The gradients have gone, not the rate: "
        "the first steps threw the units to where they are dead or saturated.",
        "Lower the learning rate tenfold or warm it up. Look at the size of what comes in as well: inputs of unit size "
        "make no such first step.",
        {"first_update_ratio": first},
        (LOWER, warm_up(history)),
    )


def update_too_small(
    history: History,
    adaptive: float = 1e-6,
    sgd: float = 1e-7,
    min_measured: int = 10,
    slow: float = 0.07,
    slow_sgd: float = 0.03,
    direct: float = 0.9,
) -> list[Finding]:
    """All weights move, and so little that the run is as good as standing still, or gets there much later.

    The 90th percentile over time of the update ratio is above 0 for every layer with two or more dimensions that
    has gradients, and one of these holds for all of them: it is below `adaptive` or `sgd`; or the median is below
    the share `slow` or `slow_sgd` of what is usual, while the loss falls as slowly at the end as at first, or
    hardly (`creeps`, `hardly_moves`); or a very high loss does so while usual steps get the share `direct` of their
    way in a straight line; or no step was longer than a quarter of a thousandth (`_never_steps`); or a schedule
    left next to no rate for more than half of the run (`ran_out`), from where on it is asked, three measurements
    do, and steps are shorter than usual: where it ran out, that is `schedule-too-short`. Or most of the weights are
    so, in a param group with a rate of its own (`_held_back`). (One quiet layer among others is `vanishing`.)
    Source: CS231n; SageMaker Debugger's WeightUpdateRatio (1e-8). The healthy trainings of the tests are above 3e-4.
    """
    kind = is_adaptive(history)
    limit = adaptive if kind else sgd
    at, ratio = measured(history, "update_ratio")
    rows = history.layer_rows[at]
    scheduled = ran_out(history)
    if scheduled:
        left = history.step[rows] >= float(scheduled.evidence.get("lr_gone_at", 0))
        rows, ratio = rows[left], ratio[left]
    which = matrices(history)
    which = (which if which.any() else ~which) & (~np.isnan(ratio)).any(axis=0)  # numbers that are learnt themselves
    skipped = history.total("skipped") > 0
    if len(rows) < (3 if scheduled else min_measured) or not which.any() or skipped.all():
        return []
    if learnt(history).mean() > 0.5:
        return []  # there is no more to step for
    held = _held_back(history, ratio, which, limit, slow if kind else slow_sgd)
    if held:
        return held
    high = np.nanquantile(ratio[:, which], 0.9, axis=0)
    rate, found = set_rate(history), float(high.max())
    typical = max(middle(column) for column in ratio[:, which].T)
    too_slow = 0 < typical < (slow if kind else slow_sgd) * USUAL_RATIO[kind]
    too_slow = too_slow and (creeps(history) or (hardly_moves(history) and not initial_sum(history)))
    far = not too_slow and far_targets(history, direct)
    gone = scheduled is not None and "lr_gone_at" in scheduled.evidence  # then weights may not move at all
    small = found < limit or (scheduled and found < USUAL_RATIO[kind]) or _never_steps(history, ratio[:, which])
    if not (gone or (high > 0).all()) or not (small or too_slow or far):
        return []
    found = typical if too_slow else found
    why = scheduled or (_FAR if far else None) or _of_small_steps(history, found, rate)
    return [
        why.finding(
            history,
            "schedule-too-short" if "lr_gone_at" in why.evidence else "update-too-small",
            (),
            {
                "update_ratio": found,
                **({"limit": limit} if found < limit else {}),
                "usual": USUAL_RATIO[kind],
                "lr": rate,
            },
            first=int(history.step[rows[0]]),
        )
    ]


def _never_steps(history: History, ratio: Floats, tiny: float = 2.5e-4, share: float = 0.5) -> bool:
    """Whether no measured step changed the median matrix by more than `tiny`, and less than the `share` of what is
    asked for is explained: what was trained before is tuned so gently, and explains more.

    In healthy trainings of the tests the longest step is 3.2e-4 at least, and 8e-4 in all but one.
    """
    return 0 < max(middle(row) for row in ratio) < tiny and explains_less(history, share)


def _of_small_steps(history: History, found: float, rate: float) -> Why:
    """Why no step changes a layer by more than `found` of its size: the gradients, or the rate."""
    factor = to_usual(history, found)
    weak = weak_gradients(history, found, rate * factor)
    if weak:
        return weak
    cause = f"A usual step changes no weight matrix by more than {found:.1e} of its size; under "
    cause += f"{optimizer_kind(history)} {USUAL_RATIO[is_adaptive(history)]:g} is usual."
    if rate * factor > _HIGHEST and not is_adaptive(history):
        cure = (
            f"Set momentum=0.9, which makes steps ten times as long, and lr={setting_text(rate * factor / 10)}: with "
        )
        return Why(cause, cure + "both the steps are usual ones.", {}, (rate_times(factor / 10),))
    if factor <= 10:
        cure = f"Raise the learning rate to {new_rate(history, factor)}, which would give usual steps."
        return Why(cause, cure, {}, (rate_times(factor),))
    cure = f"Raise the learning rate to {new_rate(history, factor)}, which would give usual steps; where the model was "
    cure += f"trained before, to {new_rate(history, factor / 10)} first."
    return Why(cause, cure, {}, (rate_times(factor), rate_times(factor / 10)))


def _held_back(
    history: History, ratio: Floats, which: Bools, limit: float, slow_share: float, apart: float = 1000.0
) -> list[Finding]:
    """Most of the weights as good as stand still, others step as usual, and a group's rate is `apart` times another's.

    They stand still below `limit`; weights that begin as torch's layers do also below `slow_share` of what is usual:
    what was trained before is meant to be tuned gently.
    Source: Howard & Ruder, arXiv:1801.06146 (rates of groups apart: 2.6 from one to the next).
    """
    high = np.zeros(len(which))
    high[which] = np.nanquantile(ratio[:, which], 0.9, axis=0)
    hardly = slow_share * USUAL_RATIO[is_adaptive(history)]
    if abs(middle(initial_gains(history)[which & (high < hardly)]) * np.sqrt(3) - 1) < 0.03:
        limit = hardly
    slow, usual = (high > 0) & (high < limit), high > min(100 * limit, hardly)
    group = np.nanmax(np.nan_to_num(rates(history)), axis=0)
    if not usual.any() or not group.min() > 0 or group.max() < apart * group.min():
        return []
    elements = numel(history)
    if elements[slow].sum() <= elements[which].sum() / 2:
        return []
    low, highest, found = float(group.min()), float(group.max()), float(high[slow].max())
    far = ", ".join(map(str, np.flatnonzero(group * apart <= highest)))
    which_rates = f"rates of param groups {far}" if "," in far else f"rate of param group {far}"
    return [
        whole_run(
            history,
            "update-too-small",
            pick(history, slow),
            {"update_ratio": found, "limit": limit, "usual": USUAL_RATIO[is_adaptive(history)], "lr": low},
            f"These weights change by no more than {found:.1e} of their size in a step. The learning rate of a param "
            f"group is {setting_text(low)}, of another {setting_text(highest)}.",
            f"Raise the {which_rates} to a tenth of the highest at least, or freeze those weights "
            "(requires_grad=False) if they are meant to rest.",
        )
    ]


def far_targets(history: History, direct: float = 0.9, large: float = 1e4, near: float = 0.01) -> bool:
    """Whether a loss that stays above `large` creeps, or is far from its end, though usual steps all lead the same way.

    Far from it: in the last quarter of the run it still fell by a fifth. Not where what is said spread by the share
    `near` of what is asked for from the first loss on: the model gives out numbers of that size.
    """
    said, asked = in_the_beginning(history, "predicted_std", "target_std")
    if said > near * asked:
        return False
    losses = loss_progress(history)
    if not losses or not losses[0].first > large or not middle(directness(history)[1][matrices(history)]) > direct:
        return False
    *_, third, last = quarters(history, losses[0].metric)
    return last > large and (last < 0.8 * third or creeps(history, 0.3) or hardly_moves(history))


_OF_FAR = ("the targets, or a sum in the loss, are far larger than what the model gives out", "the rate is too low")
_FAR = Why(
    "The loss began very high and has far to go, although the steps are of a usual size and all lead the same way. "
    f"{either(_OF_FAR)}",
    "Look at the size of the targets: subtract their mean and divide by their standard deviation. If they are of the "
    "order of 1, look at the largest weight of each layer before the first step, and draw again what is far above 1 "
    "(torch.empty() holds what was in memory). If none is, raise the learning rate by decades.",
    {},
    alternatives=_OF_FAR,
)

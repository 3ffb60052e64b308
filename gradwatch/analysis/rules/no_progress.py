"""Nothing gets better, or nothing but the training loss: and why.

Legend: T recorded steps.
"""

from __future__ import annotations

import math
import re

import numpy as np

from gradwatch.analysis.groups import higher_is_better
from gradwatch.analysis.rules.dead_layers import faded
from gradwatch.analysis.rules.facts import (
    USUAL_RATIO,
    initial_sum,
    is_adaptive,
    middle,
    optimizer_kind,
    set_rate,
    to_usual,
)
from gradwatch.analysis.rules.finding import Evidence, Finding, Why, either
from gradwatch.analysis.rules.held_out import held_out_progress
from gradwatch.analysis.rules.held_out_losses import lost_at_once, not_held_out
from gradwatch.analysis.rules.layer_facts import directness, largest_ratio, matrices, measured
from gradwatch.analysis.rules.long_steps import lr_too_high
from gradwatch.analysis.rules.loss_terms import outweighed
from gradwatch.analysis.rules.open_causes import left_open, out_of_reach
from gradwatch.analysis.rules.plateaus import begins_late, explains_nothing, finding_of, rests, stops
from gradwatch.analysis.rules.progress import Progress, can_be_judged, progress, unmoved
from gradwatch.analysis.rules.sampled_losses import (
    grows_harder,
    has_other_negatives,
    is_explained,
    own_targets_move,
)
from gradwatch.analysis.rules.schedule import ran_out
from gradwatch.analysis.rules.small_updates import weak_gradients
from gradwatch.analysis.rules.standstill import at_chance, equal_odds, stands
from gradwatch.analysis.rules.tries import LOWER, new_rate, rate_times
from gradwatch.analysis.rules.unchanged import TAKEN_BACK
from gradwatch.formatting import percent
from gradwatch.history import History
from gradwatch.storage.logged_names import HELD_OUT, is_loss


def no_progress(
    history: History,
    min_steps: int = 100,
    running: int = 500,
    share: float = 0.02,
    most: float = 0.1,
    easy: float = 0.7,
) -> list[Finding]:
    """Nothing that was logged gets better: neither a training loss, nor a metric whose direction is known, nor, by more
    than the share `most`, a loss of other data.

    Each of them ended within its noise of where it began (four standard errors), or by less than `share` of it better;
    and that it won more than the share `most` is out of the question for a loss (two standard errors; twice that share
    where it did not clearly get better). Or the losses came to what equal probabilities for all classes give, from
    above, and no further (`at_chance`), or stand next to it (`stands`), and not another term learnt what it is asked
    for (`is_explained`); or they fell to less than half, and nothing
    that is measured on other data was ever better (`not_held_out`); or nothing that is meant to rise ever did
    (`_not_its_goal`); or what is said tells nothing of what is asked for (`explains_nothing`); or they fell within the
    first quarter of the run, and stand since, far above 0 (`rests`); or the gradient faded, and most of the loss is
    left (`stops`); or they stood at equal odds for most of the run (`begins_late`);
    or what was won on other data was lost again, from one measurement to the next and for good (`lost_at_once`).
    A run that is under way is judged from `running` steps on, and after a tenth of its `total_steps`. Not judged: a run
    that was resumed (it may have learnt before), parts that train against each other, a loss that is below 0 early, one
    that came below the share `easy` of its first while what is asked for `grows_harder`, or that `has_other_negatives`.
    A note where the causes are left open, and the model `learns` something of other data: there may be no more.
    The cause is the first of these that the record shows: a schedule that ran out, or never got where it should; steps
    that are small, or that take each other back. Where it shows none, two remain.
    Source: the standard error of a median; the sizes of steps as in `update-too-small`.
    """
    better = any(p.is_large(most) for p in held_out_progress(history, 10) if is_loss(p.metric))
    losses = [] if better else unmoved(history, min_steps, running, share)
    harder = grows_harder(history) and any(p.best < easy * p.first for p in losses)
    harder = harder or has_other_negatives(history)
    if harder or any(found.evidence.get("began_anew") for found in lr_too_high(history)):
        return lost_at_once(history)  # other data or another loss came: where that began says nothing
    if not losses or not all(p.is_flat(most if p.is_real() else 2 * most) for p in losses):
        losses = [] if better else unmoved(history, min_steps, running, math.inf)
        losses = [
            p for p in losses if (at_chance(history, p) or stands(history, p)) and not is_explained(history, least=3)
        ]
    if not losses:
        return (
            not_held_out(history, min_steps, running, share)
            or _not_its_goal(history, min_steps, running)
            or explains_nothing(history, min_steps, running)
            or rests(history, min_steps, running)
            or stops(history, min_steps, running)
            or begins_late(history, min_steps, running)
            or lost_at_once(history)
        )
    shown, said = losses[0], f"{losses[0].in_words}."
    if at_chance(history, shown):
        said += " That is what equal probabilities for all classes give: nothing was learnt of them."
    elif stands(history, shown):
        said = f"{shown.metric} came to {shown.ended:.4g} and hardly any further, next to the "
        said += f"{equal_odds(history):.4g} of a cross-entropy whose probabilities are all equal."
    why = _why(history, shown)
    return finding_of(history, shown, why._replace(cause=f"{said} {why.cause}"))


def _not_its_goal(
    history: History, min_steps: int, running: int, good: float = 0.9, hardly: float = 0.05
) -> list[Finding]:
    """What is meant to rise never did, an accuracy or a return, whatever the training losses do.

    Of the training data, and not above `good` from the start; nor where values are learnt from the model's own and
    grow (`own_targets_move`): what is paid on the way is that of who explores; nor one of which an answer that is
    the same for all has the most (`_ONE_SIDED`). Said where the losses got better, or have no scale.
    """
    known = progress(history) if can_be_judged(history, min_steps, running) and not own_targets_move(history) else []
    known = [p for p in known if not (HELD_OUT.search(p.metric) or _ONE_SIDED.search(p.metric))]
    losses = [p for p in known if p.is_loss]
    goals = [p for p in known if higher_is_better(p.metric, [history]) and not _is_a_loss(history, p, losses)]
    begun = [
        middle(values[np.isfinite(values)][:5]) for values in (history.total(p.metric) for p in goals)
    ]  # it may fall
    better = [
        p.is_real() or p.began > good or p.best - max(p.began, at) > max(2 * p.noise, hardly * abs(p.began))
        for p, at in zip(goals, begun, strict=True)
    ]
    if not goals or any(better) or not all(p.is_real() for p in losses):
        return []
    shown = goals[0]
    falls, outweighs = "", None
    if losses:
        loss = losses[0].metric
        falls = f"{loss} falls from {losses[0].began:.4g} to {losses[0].ended:.4g}, and "
        terms = [name for name in history.logged if name != loss and not higher_is_better(name, [history])]
        outweighs = outweighed(history, loss, terms)
    if outweighs:
        return finding_of(history, shown, outweighs._replace(cause=f"{falls}{shown.in_words}. {outweighs.cause}"))
    causes = _BESIDE_IT if losses else (*_by_its_entropy(history), *_AGAINST_IT)
    why = Why(
        f"{falls}{shown.in_words}. {either(causes)}",
        "Look at what the model gives out: if it is alike for all inputs, at these and at the last layer; if not, at "
        f"the sign of the loss and at how {shown.metric} is computed.",
        {},
        alternatives=causes,
    )
    return finding_of(history, shown, why)


def _is_a_loss(history: History, metric: Progress, losses: list[Progress], together: float = 0.9) -> bool:
    """Whether an overlap by its name is one less that, a term of the loss: it began above a half and fell with it."""
    if not losses or not _OVERLAP.search(metric.metric) or metric.is_real() or metric.first < 0.5:
        return False
    both = np.array([history.total(name) for name in (losses[0].metric, metric.metric)])
    both = both[:, np.isfinite(both).all(0)]
    return both.shape[1] > 2 and float(np.corrcoef(both)[0, 1]) > together


_OVERLAP = re.compile(r"dice|iou|jaccard|tversky|ssim|overlap", re.IGNORECASE)
_ONE_SIDED = re.compile(
    r"(^|[^a-z])(recall|precision|sensitivity|specificity|tpr|tnr)(?!@|_?\d|_at|[a-z])", re.IGNORECASE
)


def _by_its_entropy(history: History, closed: float = 0.1) -> tuple[str, ...]:
    """What an entropy of choices shows that is logged, and came below the share `closed` of where it began."""
    values = next((history.total(name) for name in history.logged if "entropy" in name.lower()), np.empty(0))
    values = values[np.isfinite(values)]
    return (_CLOSED,) if len(values) >= 20 and 0 <= middle(values[-5:]) < closed * middle(values[:5]) else ()


_CLOSED = "the choices became certain before they were good (their entropy is gone), and nothing else is tried since"
_AGAINST_IT = (
    "the loss does not ask for it (its sign, what is detached, its baseline)",
    "the noise of what is sampled hides what the steps win",
)
_BESIDE_IT = (
    "the outputs become alike for all inputs, which lowers the loss as well",
    "what is measured is not what the loss asks for",
)


def _why(history: History, shown: Progress) -> Why:
    """The cause that the record shows, or what tells those apart that remain."""
    scheduled = ran_out(history)
    if scheduled:
        return scheduled
    if faded(history):
        return _FADED
    kind = is_adaptive(history)
    at, ratio = measured(history, "update_ratio")
    wide = matrices(history) & (~np.isnan(ratio)).any(axis=0)
    if not len(at) or not wide.any():
        return left_open(history)
    moves = largest_ratio(history)
    numbers: Evidence = {"update_ratio": moves, "usual": USUAL_RATIO[kind]}
    if moves < USUAL_RATIO[kind] / 30:
        begins_at = initial_sum(history)
        rate = set_rate(history)
        times = to_usual(history, max(moves, 1e-12))
        weak = None if begins_at else weak_gradients(history, moves, rate * times)
        return weak or Why(
            f"A usual step changes no weight matrix by more than {moves:.1e} of its size; under "
            f"{optimizer_kind(history)} {USUAL_RATIO[kind]:g} is usual."
            + (f" Its sum of squares begins at {begins_at:g}, far above all gradients." if begins_at else ""),
            "Begin that sum at 0: initial_accumulator_value=0."
            if begins_at
            else f"Raise the learning rate to {new_rate(history, times)}.",
            numbers | {"lr": rate},
            () if begins_at else (rate_times(times),),
        )
    if moves > 5 * USUAL_RATIO[kind]:
        times = to_usual(history, moves)
        return Why(
            f"Each step changes the weights by {percent(moves)} of their size; under {optimizer_kind(history)} "
            f"{percent(USUAL_RATIO[kind])} is usual: they are too long to get anywhere.",
            f"Lower the learning rate to {new_rate(history, times)}.",
            numbers | {"lr": set_rate(history)},
            (rate_times(times),),
        )
    every, direct = directness(history)
    known = wide & np.isfinite(direct)
    if known.any() and every > 1:
        share = float(np.median(direct[known])) * every
        numbers["displacement_in_steps"] = share
        if share < 0.3 * np.sqrt(every):  # a walk without direction gets sqrt(k) steps far in k
            return Why(
                f"The steps take each other back: {every:.0f} of them move the weights as far as {share:.1g} would. "
                + either(TAKEN_BACK),
                "Lower the learning rate tenfold for some steps: if the loss falls, they were too long. If not, look "
                "for what writes the weights after optimizer.step(): an average, a load_state_dict, a constraint.",
                numbers,
                (LOWER,),
                TAKEN_BACK,
            )
    why = out_of_reach(history, shown) or left_open(history)
    return why._replace(evidence=numbers | why.evidence)


_NOTHING_LEFT = (
    "what is left of it does not depend on the weights (it is detached, or its derivative is 0, as is the second one "
    "of a net of ReLUs)",
    "the outputs came to where they are saturated",
)
_FADED = Why(
    f"The gradients of all layers faded away to exactly 0: the weights lower it no further. {either(_NOTHING_LEFT)}",
    "Look at the gradient of each term of the loss by itself: one that gives none is constant, or cut off from the "
    "weights. A learning rate does not help.",
    {},
    alternatives=_NOTHING_LEFT,
)

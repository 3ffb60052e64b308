"""Targets that are told from their inputs only by heart, one by one.

Legend: T recorded steps, S sampled steps.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.clips import incoming
from gradwatch.analysis.rules.facts import USUAL_RATIO, is_adaptive, middle
from gradwatch.analysis.rules.finding import Finding, either, whole_run
from gradwatch.analysis.rules.held_out import held_out, held_out_progress, learns
from gradwatch.analysis.rules.layer_facts import largest_ratio
from gradwatch.analysis.rules.losses import has_rivals
from gradwatch.analysis.rules.progress import ACCURACY, can_be_judged, progress, reaches_its_goal
from gradwatch.analysis.rules.sampled_losses import LEAST_SAMPLES, of_what, sampled, share_explained
from gradwatch.analysis.rules.series import late_median, noise_of_one
from gradwatch.formatting import percent
from gradwatch.history import History
from gradwatch.storage.logged_names import HELD_OUT


def labels_do_not_fit_inputs(
    history: History,
    min_steps: int = 150,
    running: int = 500,
    nothing: float = 0.05,
    little: float = 0.35,
    grows: float = 1.25,
    wild: float = 0.5,
    hard: float = 2.0,
    elsewhere: float = 0.02,
) -> list[Finding]:
    """The outputs told nothing of the targets for half of the run and little since, and the gradient grew meanwhile.

    The share of the targets' variance that is explained, or of the entropy of their classes (`share_explained`), is
    below `nothing` in the first half of the run, below twice that at its end, by medians, and never below -`wild`; and
    below `little` in the last quarter. The joint norm of the gradient, by the medians of fifths of the run, ended at
    `grows` times its first or more, next to its highest; and the steps are of a usual size. Where a metric of the
    training data got better all the same, by steps that may be small, it ended at `hard` times its first at least (but
    where what is measured on other data never got better by the share `elsewhere`, and twice `nothing` is explained);
    where one of other data did, or the model `learns` something of them, there is none. What examples have in common is
    learnt soon, and its gradient fades; what each asks for by itself pulls another way in each batch.
    It is said as well of training data that are right less often than others and are learnt at their cost
    (`_right_elsewhere`).
    Source: Zhang et al. (2017), arXiv:1611.03530: labels that are drawn by lot are learnt too, only later; Chatterjee
    (2020), arXiv:2002.10657: their gradients do not add up over the examples.
    """
    if found := _right_elsewhere(history):
        return found
    share = share_explained(history)
    if len(share) < LEAST_SAMPLES + 2 or not can_be_judged(history, min_steps, running):
        return []
    if learns(history) or any(HELD_OUT.search(p.metric) and p.succeeded(0.2) for p in progress(history)):
        return []
    learnt = reaches_its_goal(history)  # by heart
    step, _, _ = sampled(history, "explained", "targets")
    half = share[step < (history.step[0] + history.step[-1]) / 2]  # of the steps: samples are denser in the beginning
    if not len(half):
        return []
    early, last = max(float(np.median(half)), late_median(half)), late_median(share)
    if learnt:
        unseen = held_out_progress(history, LEAST_SAMPLES)
        is_lost = bool(unseen) and not any(p.is_large(elsewhere) for p in unseen)  # what was learnt tells nothing there
        if not (is_lost and last < 2 * nothing):
            grows = hard
    if not (np.median(half) < nothing and early < 2 * nothing) or not -nothing < last < little or half.min() < -wild:
        return []
    norms = [middle(part) for part in np.array_split(incoming(history), 5)]
    usual, moves = USUAL_RATIO[is_adaptive(history)], largest_ratio(history)
    if not max(grows * norms[0], 0.9 * max(norms)) < norms[-1] or not (0 if learnt else usual / 3) < moves < 5 * usual:
        return []
    grew = norms[-1] / norms[0]
    steps = "" if learnt else ", by steps of a usual size"
    of, constant = of_what(history)
    return [
        whole_run(
            history,
            "labels-do-not-fit-inputs",
            (),
            {
                "explained_first_half": early,
                "explained": last,
                "gradient_grew": grew,
                "update_ratio": moves,
            },
            f"For the first half of the run the outputs explained {percent(max(early, 0.0))} of the "
            f"{of} that are asked for, and {percent(max(last, 0.0))} in the end (to know {constant} explains none of "
            f"it){steps}; and the gradient grew to {grew:.3g} times its first: what is learnt is learnt by heart, "
            f"example by example. {either(_APART)}",
            "Look at ten examples as the loss is given them, each input beside its target: behind the shuffling, the "
            "augmentation and what puts batches together. If they belong together, measure the loss on other data: "
            "if it falls there, train longer.",
            _APART,
        )
    ]


def _right_elsewhere(
    history: History, least: int = 6, more: float = 0.06, lost: float = 0.025, learnt: float = 0.05, width: int = 8
) -> list[Finding]:
    """An accuracy of other data, measured `least` times or more, was above that of the training data by `more` in the
    first half of the run, by the median, and `lost` some of what it had, more than its noise, while the
    training data `learnt` so much more, up to above it.

    What a dropout or an augmentation takes from the one keeps it below the other, which loses nothing by it: labels
    that are wrong are learnt by heart, after what is right, and at its cost.
    Source: Arpit et al. (2017), arXiv:1706.05394, section 4 (what examples share is learnt before the noise).
    """
    names = [name for name in history.logged if ACCURACY.search(name)]
    trained = [name for name in names if not HELD_OUT.search(name)]
    if len(trained) != 1 or has_rivals(history):
        return []
    values = history.total(trained[0])
    for name, sign, rows, worse in held_out(history, least):
        if name not in names or sign > 0:
            continue
        other = -worse
        beside = np.array([middle(values[max(0, row - width) : row + width + 1]) for row in rows])
        half = slice(1, len(rows) // 2 + 1)
        early, rose = float(np.median((other - beside)[half])), late_median(beside) - float(np.median(beside[half]))
        best = float(np.median(np.lib.stride_tricks.sliding_window_view(other, 3), axis=1).max())
        ended = late_median(other)
        above = late_median(beside) > ended
        if early > more and rose > learnt and above and best - ended > max(lost, 1.5 * noise_of_one(other)):
            return [_wrong_in_part(history, trained[0], name, early, best, ended)]
    return []


def _wrong_in_part(history: History, trained: str, name: str, early: float, best: float, ended: float) -> Finding:
    return whole_run(
        history,
        "labels-do-not-fit-inputs",
        (),
        {"metric": name, "above_the_training_data": early, "best": best, "ended": ended},
        f"In the first half of the run {name} was {early:.2g} above {trained}, and then fell from {best:.3g} to "
        f"{ended:.3g} as {trained} rose: what the training data ask for beyond that holds of them alone. "
        f"{either(_WRONG)}",
        "Look at the training examples whose loss is highest at the step where the other data are best, each as the "
        "loss is given it, input beside target. Until they are mended keep the weights from there.",
        _WRONG,
    )


_WRONG = (
    "part of the training labels are wrong, or an augmentation changes what is asked for and the target not",
    "the training data are harder than the others, and few",
)
_APART = (
    "inputs and targets are not of the same examples, or an augmentation changes what is asked for and the target not",
    "what joins them is hard to find, and the run short for it",
)

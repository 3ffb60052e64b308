"""What is wrong with what a loss is asked for: its targets beside what the model says, in steps that were sampled.

Legend: S sampled steps.
"""

from __future__ import annotations

import math
import re

import numpy as np

from gradwatch.analysis.rules.facts import middle
from gradwatch.analysis.rules.finding import Finding, either, whole_run
from gradwatch.analysis.rules.held_out import held_out_progress
from gradwatch.analysis.rules.loss_graph import number_of_classes, paths
from gradwatch.analysis.rules.losses import has_rivals
from gradwatch.analysis.rules.progress import ACCURACY, loss_progress, progress
from gradwatch.analysis.rules.sampled_losses import (
    LEAST_SAMPLES,
    are_left_out,
    dropped_passes,
    entropy_of_two,
    follow,
    logs_rewards,
    sampled,
)
from gradwatch.analysis.rules.token_targets import padding_in_loss
from gradwatch.formatting import percent
from gradwatch.history import Floats, History


def class_imbalance(
    history: History,
    share: float = 0.8,
    said: float = 0.999,
    learnt: float = 0.85,
    soft: float = 0.02,
    more: float = 1.5,
    rare: float = 0.95,
    min_steps: int = 100,
) -> list[Finding]:
    """Most targets are of one class, and the model says that class for everything. A warning; a note where no accuracy
    is logged, which would be high by that alone: of what is rare the probability may be wanted, and stays below 0.5.

    Alarm: in the later half of the samples of `min_steps` steps the same class has `share` of the targets by the
    median and of what the model says, the class with the highest score, all but 1 - `said`. Not where a loss ended
    below the share `learnt` of the entropy of that class against all others, which is what is lost by knowing only
    how frequent it is: the scores say more than the highest; or of more than two classes, more than the rest of the
    entropy is explained in that half; nor where an area under a curve, a recall or an F1 that is logged gets better
    by a twentieth. By its mean: of few rare ones most batches have none. Of pixels only the highest score is
    drawn: there that is no excuse where the class has the share `rare`. Where the loss gives that class `more`
    times the weight of an average one, its size says nothing, and it is said whatever the model says
    (`_weights_turned`). Padding is told apart (`padding-in-loss`); parts that train against each other are not
    judged, nor probabilities that are further than `soft` from 0 and 1; nor targets that never change, but where
    the model says them from the first sample on, or a layer with a bias gives out the scores of two classes or more
    (those of pairs that belong together, the first of each row, are products): rows all of one class.
    Source: He & Garcia (2009), IEEE TKDE 21, on learning from imbalanced data; Lin et al., arXiv:1708.02002, section 1.
    """
    if turned := _weights_turned(history, more):
        return turned
    names = "target_top", "target_top_share", "predicted_top_share", "target_std"
    step, top, asked, given, spread = sampled(history, *names)
    late = slice(len(step) // 2, None)
    if len(history) < min_steps or len(step) < LEAST_SAMPLES or has_rivals(history) or padding_in_loss(history):
        return []
    usual, says = float(np.median(asked[late])), float(np.median(given[late]))
    between = sampled(history, "target_soft")[1]
    if usual < share or says < said or len({*top[late]}) > 1 or (between > soft).any():
        return []
    judged = [*progress(history), *held_out_progress(history, 5)]
    if any(_OF_RARE.search(p.metric) and p.is_large(0.05) for p in judged):
        return []
    is_alone = not spread.any()
    at_first = 1 if _gives_scores_by_a_layer(history) else min(given)
    if is_alone and (min(*asked, at_first) < 1 or len({*top}) > 1 or number_of_classes(history) == 1):
        return []
    weights = sampled(history, "target_top_weight")[1]
    weight = float(np.median(weights)) if len(weights) else 0.0
    ends = (history.total(p.metric) for p in loss_progress(history))
    explained = sampled(history, "explained")[1]
    is_of_pixels = _is_of_pixels(history)
    if not is_of_pixels or usual < rare:
        half = explained[len(explained) // 2 :]
        if (number_of_classes(history) or 0) > 2 and len(half) and np.median(half) > 1 - learnt:
            return []
        if usual < 1 and not weight > more and any(_mean_end(end) < learnt * entropy_of_two(usual) for end in ends):
            return []
    judged_by_that = is_of_pixels or any(map(ACCURACY.search, history.logged))
    masks = _OF_MASKS if is_of_pixels else ""
    also = f" The loss gives it {weight:.2g} times the weight of an average class as well." if weight > more else ""
    return [
        whole_run(
            history,
            "class-imbalance",
            "",
            {"class": float(top[-1]), "share_of_targets": usual, "share_of_predictions": says},
            f"{percent(usual)} of the targets are of class {top[-1]:.0f}, and the model says that class for "
            f"{percent(says)} of them: a loss that is a mean over all is low by that alone.{also}",
            "No row of another class comes: look at how the rows are split, and where their labels are from."
            if is_alone
            else "Give the rare classes their weight (one over their share): weight= of cross_entropy, pos_weight= of "
            "binary_cross_entropy_with_logits, or batches that hold as much of each class. Judge the model by the "
            "recall of each class, not by the loss or the accuracy over all. Where the probability of what is rare is "
            "wanted (a click, a risk), leave the weights out, which make it too high, and judge its order: log an AUC."
            f"{masks}",
            severity="warning" if is_alone or also or judged_by_that else "note",
        )
    ]


_OF_MASKS = (
    " Where too much is marked then, weigh it less than that; a loss of the overlap beside it (Dice) weighs each mask "
    "alike."
)
_OF_RARE = re.compile(
    r"(^|[^a-z])(auc|auroc|auprc|prauc|rocauc|ap|average_precision|gini|ks|f1|recall|mcc)($|[^a-z])", re.IGNORECASE
)


def _weights_turned(
    history: History, more: float, frequent: float = 0.8, near: float = 0.08, min_steps: int = 50
) -> list[Finding]:
    """The loss gives the class that most targets are of `more` times the weight of an average one, by the median of the
    samples: weights are one over the share of their class. It has the share `frequent` of the targets; or of more than
    two classes its weight is its share itself, within `near`.

    Source: torch's documentation of BCEWithLogitsLoss (`pos_weight`); He & Garcia (2009), IEEE TKDE 21.
    """
    step, top, asked, weight = sampled(history, "target_top", "target_top_share", "target_top_weight")
    if len(step) < LEAST_SAMPLES or len(history) < min_steps or len({*top}) > 1:
        return []
    usual, times = float(np.median(asked)), float(np.median(weight))
    classes = number_of_classes(history) or 0
    is_share = classes > 2 and abs(times / (usual * classes) - 1) < near
    if not ((usual > frequent or is_share) and times > more):
        return []
    return [
        whole_run(
            history,
            "class-imbalance",
            "",
            {"class": float(top[-1]), "share_of_targets": usual, "weight": times},
            f"{percent(usual)} of the targets are of class {top[-1]:.0f}, and the loss gives that class {times:.2g} "
            f"times the weight of an average one. {either(_OF_WEIGHTS)}",
            "Weigh a class by one over its share: weight = 1 / counts for cross_entropy, pos_weight = negatives / "
            "positives for binary_cross_entropy_with_logits. Judge the model by the recall of each class. If a miss of "
            "that class is meant to cost more, nothing is wrong.",
            _OF_WEIGHTS,
        )
    ]


_OF_WEIGHTS = (
    "weights are the wrong way round, so that the rare classes count less than by their number",
    "a miss of that class is meant to cost more",
)


def _gives_scores_by_a_layer(history: History) -> bool:
    return any(path[-1].name == "Addmm" for path, _ in paths(history)) and (number_of_classes(history) or 0) > 1


def _is_of_pixels(history: History) -> bool:
    """Whether a convolution gives out the scores, for each place of a picture."""
    ends = (path[-1] for path, _ in paths(history))
    return any(end.name == "Convolution" and math.prod(end.shape[2:]) > 1 for end in ends)


def labels_ignored(history: History, least: float = 0.02, at_ends: float = 0.25) -> list[Finding]:
    """A class that `ignore_index` leaves out of the loss, as if it were padding. A warning.

    Alarm: it is the share `least` of all targets, by the median of `LEAST_SAMPLES` samples or more, and no more often
    at one end of the rows than at the other by `at_ends`, as padding is. Not of tokens, which an embedding reads.
    Source: torch's documentation of ignore_index: such targets do not contribute to the gradient.
    """
    _, which, share, ends = sampled(history, "class_left_out", "ignored", "ignored_at_ends")
    is_one = len(which) >= LEAST_SAMPLES and len({*which}) == 1
    if not is_one or np.median(share) < least or abs(float(np.median(ends))) > at_ends:
        return []
    causes = (f"{which[0]:.0f} is a class like others, and never learnt", "it says that nothing is known of these")
    return [
        whole_run(
            history,
            "labels-ignored",
            "",
            {"class": float(which[0]), "share_of_targets": float(np.median(share))},
            f"ignore_index={which[0]:.0f} leaves {percent(float(np.median(share)))} of the targets out of the loss. "
            f"{either(causes)}",
            f"If {which[0]:.0f} is a class, leave ignore_index at -100; if not, give what is not known a number that "
            "no class has.",
            causes,
        )
    ]


def accumulation_wiped(history: History, least: int = 3) -> list[Finding]:
    """Of several backward passes before a step the gradients of the last are left alone. A warning.

    Alarm: in the median of two samples or more the gradients of `least` backward passes before the step were gone
    (None) as it was called again. Once or twice they are taken apart on purpose, as sharpness-aware minimisation does
    it; parts that train against each other are not judged, nor a loop that leaves steps out (`are_left_out`). Gradients
    that are set to 0 in place are not told from those that are kept.
    Source: torch's documentation of gradient accumulation: zero_grad() stands behind step(), not before each backward.
    """
    step, dropped = sampled(history, "dropped")
    often = float(np.median(dropped)) if len(step) > 1 else 0.0
    if often < least or has_rivals(history) or are_left_out(dropped_passes(history)):
        return []
    causes = (
        "zero_grad() stands inside the loop over micro-batches, or an epoch begins with it",
        "they are taken one by one on purpose, and put together by hand",
    )
    return [
        whole_run(
            history,
            "accumulation-wiped",
            "",
            {"backwards": often + 1, "dropped": often},
            f"Of the backward passes of a step {often:.0f} are for nothing: their gradients are gone when backward is "
            f"called again, and the step is that of what is left, of 1/{often + 1:.0f} of the data if that is the last "
            f"one alone. {either(causes)}",
            "Call optimizer.zero_grad() once, behind optimizer.step(). If the loss of a micro-batch is not divided by "
            "their number yet, divide it, too.",
            causes,
        )
    ]


def data_not_shuffled(
    history: History, share: float = 0.5, least: int = 12, rows: int = 8, follows: float = 0.8
) -> list[Finding]:
    """The targets of a batch are alike, and those of other batches others: rows come in the order of their targets.

    Alarm: of the variance of the targets over `least` samples or more, the share that lies between the batches, beyond
    what batches of this size have by chance, is above `share`. A class counts by its number. Not judged: batches of
    fewer targets than `rows` (those that the loss ignores are none), steps of several backward passes, each of which
    may be of its own kind on purpose, numbers that are what the model says of them, by a correlation of their means
    above `follows` (values that are learnt from the model's own, or rows that it answers rightly in any order), what an
    agent is asked for, whose rewards are logged, and parts that train against each other. A warning.
    Source: Bottou (2012), Stochastic Gradient Descent Tricks, section 3.1; the intraclass correlation, Fisher (1925).
    """
    kinds = (sampled(history, "target_mean", "target_std", "targets", of) for of in ("target_top", "target_low"))
    step, mean, std, targets, _ = max(kinds, key=lambda found: len(found[0]))  # classes, or numbers
    ignored = sampled(history, "ignored")[1]
    asked = middle(targets) * (1 - (middle(ignored) if len(ignored) else 0))
    if len(step) < least or asked < rows or has_rivals(history) or logs_rewards(history):
        return []
    if np.median([1.0, *sampled(history, "passes")[1]]) > 1:
        return []
    between, within = float(np.var(mean)), float(np.mean(np.square(std)))
    by_chance = within / max(asked - 1, 1)
    of_batches = (between - by_chance) / (between + within) if between else 0.0
    places = np.abs(mean - (targets - 1) / 2) + np.abs(std - np.sqrt((targets**2 - 1) / 12)) < 1e-2 * targets
    if not of_batches > share or follow(history) > follows or places.all():
        return []  # or the targets are the places of the rows themselves, in batches that grow
    return [
        whole_run(
            history,
            "data-not-shuffled",
            "",
            {"share_between_batches": of_batches},
            f"{percent(of_batches)} of the variance of the targets lies between the batches: the rows of one are "
            "alike, and other batches have others. Each step unlearns what the ones before it learnt.",
            "shuffle=True in the DataLoader, or a permutation of the rows anew in each pass. Of a stream, a buffer "
            "that is drawn from at random.",
        )
    ]


def _mean_end(values: Floats) -> float:
    """Of a scalar `[T]` over the last quarter of what was logged."""
    known = values[np.isfinite(values)]
    return float(known[-max(5, len(known) // 4) :].mean())

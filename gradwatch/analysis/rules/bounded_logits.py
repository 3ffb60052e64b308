"""Logits that something keeps close together: what the loss, in steps that were sampled, could not come below."""

from __future__ import annotations

import math

import numpy as np

from gradwatch.analysis.rules.finding import Finding, either, whole_run
from gradwatch.analysis.rules.loss_graph import number_of_classes
from gradwatch.analysis.rules.losses import has_rivals
from gradwatch.analysis.rules.sampled_losses import entropy_of_two, sampled
from gradwatch.formatting import percent
from gradwatch.history import History


def logits_bounded(
    history: History,
    held: float = 0.3,
    unsure: float = 0.25,
    times: float = 1.5,
    cosines: tuple[float, float] = (1.7, 2.05),
    multiplied: float = 0.5,
    still: float = 1.15,
    piled: float = 0.6,
    sure: float = 1.5,
    min_samples: int = 8,
    min_steps: int = 100,
) -> list[Finding]:
    """A model that is right more often than it is sure: its logits come no further apart. A warning.

    Among C classes whose logits are at most R apart cross-entropy is no less than log(1 + (C - 1) exp(-R)). Alarm: in
    the last quarter of the samples that is the share `held` of the loss at least, by the largest R of any choice; R is
    what it was in the second quarter, within a factor of `still`, and that of the median choice is the share `piled` of
    it, as if all stood at an end; and the loss is more than `times` what a model that is as often right and knows how
    often would have, and more than that by `unsure` nats. Such a model has the entropy of being right, and at most
    log(C - 1) for each of the others. Of targets that name each class once (rows that are told from each other, whose
    temperature is chosen) only logits are judged that end `cosines` apart, as those of cosines do that nothing divides,
    where most are not right; no further apart than that, where the loss is `sure` nats above such a model's; or less
    than `multiplied` apart, as those do that a temperature multiplies. Not judged: parts that train against each other.
    Source: the definition of cross-entropy; Wang et al., arXiv:1704.06369, proposition 2 (the least loss that cosines
    can have); Guo et al., arXiv:1706.04599, section 2, on confidence.
    """
    names = "logit_range_most", "logit_range", "cross_entropy", "predicted_right", "target_top_share", "targets"
    step, most, usual, loss, right, share, targets = sampled(history, *names)
    classes = number_of_classes(history)
    if len(step) < min_samples or len(history) < min_steps or not classes or classes < 2 or has_rivals(history):
        return []
    late, before = slice(-max(3, len(step) // 4), None), slice(len(step) // 4, len(step) // 2)
    widest, ended, is_right = float(most[late].max()), float(np.median(loss[late])), float(np.median(right[late]))
    least, calibrated = _least(classes, widest), _calibrated(classes, is_right)
    rests = 1 / still < widest / most[before].max() < still and np.median(usual[late]) > piled * widest
    is_unsure = ended > times * calibrated and ended - calibrated > unsure
    if np.median(share * targets) < 1.5:
        is_unsure = widest < cosines[1] and (ended - calibrated > sure or (widest > cosines[0] and is_right < 0.5))
        is_unsure |= widest < multiplied and is_right > 4 / classes
    if not (rests and least > held * ended and is_unsure):
        return []
    causes = (
        "something bounds them: cosines without a scale, a temperature, a norm, a tanh or a sigmoid behind the last "
        "layer, a decay of its weights",
        "the steps of the last layer are too short to bring them further apart in this time",
    )
    return [
        whole_run(
            history,
            "logits-bounded",
            "",
            {"logit_range": widest, "classes": classes, "lowest_possible": least, "cross_entropy": ended},
            f"The model is right in {percent(is_right)} of its choices, and its logits come no "
            f"further apart than {widest:.2g}: among {classes} classes no loss is below {least:.2g} then, and it ended "
            f"at {ended:.2g}. {either(causes)}",
            "Give the loss what a linear layer gives out. Cosines want a scale that is learnt or large, as 16 or 30: "
            "logits = scale * cosines; a temperature divides by a number well below 1.",
            causes,
        )
    ]


def _least(classes: int, apart: float) -> float:
    """The least cross-entropy, in nats, among so many classes whose logits are at most so far apart."""
    return math.log1p((classes - 1) * math.exp(-apart))


def _calibrated(classes: int, is_right: float) -> float:
    """The most that a model loses, in nats, that is right in this share of its choices and as sure as that."""
    share = float(np.clip(is_right, 1e-9, 1 - 1e-9))
    return entropy_of_two(share) + (1 - share) * math.log(max(classes - 1, 1))

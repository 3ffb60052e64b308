"""Choices that stay as open as they began, because that is rewarded."""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.rules.finding import Finding, either, whole_run
from gradwatch.analysis.rules.progress import can_be_judged
from gradwatch.analysis.rules.sampled_losses import LEAST_SAMPLES, sampled
from gradwatch.analysis.rules.series import late_median
from gradwatch.formatting import percent
from gradwatch.history import History


def entropy_too_strong(
    history: History, still_open: float = 0.93, min_steps: int = 100, running: int = 500
) -> list[Finding]:
    """A policy whose entropy is rewarded, and stays next to the highest there is. A warning.

    Alarm: the entropy of the choices is the share `still_open` of that of equal odds or more, by the medians of the
    second half of the run and of the last quarter of the samples, and the loss falls as it rises (`entropy_rewarded`)
    in all of them. Not of parts that train against each other: in a game equal odds may be the best. The healthy
    trainings of the tests come below two thirds.
    Source: Mnih et al., arXiv:1602.01783, section 4 (a weight of 0.01); Ahmed et al., arXiv:1811.11214, on how it
    changes what is optimal.
    """
    step, rewarded, entropy = sampled(history, "entropy_rewarded", "choice_entropy")
    if len(step) < LEAST_SAMPLES or not rewarded.all() or not can_be_judged(history, min_steps, running):
        return []
    half = entropy[step > (history.step[0] + history.step[-1]) / 2]  # of the steps: samples are denser in the beginning
    late = float(np.median(half)) if len(half) else 0.0
    if not min(late, late_median(entropy)) >= still_open:
        return []
    spread = sampled(history, "advantage_std")[1]
    around = {"advantage_std": float(np.median(spread))} if len(spread) else {}
    return [
        whole_run(
            history,
            "entropy-too-strong",
            "",
            {"entropy": late, "entropy_at_first": float(entropy[0]), **around},
            f"The choices are nearly as open as they can be: their entropy is {percent(late)} of that of equal odds in "
            f"the second half of the run. {either(_OPEN)}",
            "Lower the weight of the entropy tenfold; 0.01 is usual beside advantages that deviate by about 1. If the "
            "reward rises then, that was it. If not, look at the advantages: whether they tell good from bad choices, "
            "and how large they are.",
            _OPEN,
        )
    ]


_OPEN = (
    "what the loss gives for the entropy outweighs what the choices bring",
    "what they bring is too small, or too noisy, to have moved them yet",
)

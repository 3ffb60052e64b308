"""What the log-probabilities of choices are multiplied by, in steps that were sampled."""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.rules.finding import Finding
from gradwatch.analysis.rules.loss_graph import from_graph
from gradwatch.analysis.rules.progress import reaches_its_goal
from gradwatch.analysis.rules.sampled_losses import sampled
from gradwatch.history import History


def returns_not_normalised(
    history: History, large: float = 10.0, apart: float = 1.0, least: int = 4, min_steps: int = 50
) -> list[Finding]:
    """Choices are weighed by numbers that are large and mostly of one sign: returns as they are. A warning.

    Alarm: the mean of what the log-probabilities of a batch are multiplied by is above `large` in size, and `apart`
    times its deviation, by the medians over the samples. Each choice is made more likely then, whatever came of it, and
    what tells good from bad is the small rest. Not said where a metric that is meant to rise does.
    Source: Williams (1992), Machine Learning 8, on baselines; Greensmith et al. (2004), JMLR 5, on their variance.
    """
    step, mean, spread = sampled(history, "advantage_mean", "advantage_std")
    if len(step) < least or len(history) < min_steps or reaches_its_goal(history):
        return []
    usual, around = float(np.median(np.abs(mean))), float(np.median(spread))
    if not (usual > large and usual > apart * around):
        return []
    return [
        from_graph(
            history,
            "returns-not-normalised",
            "",
            {"advantage_mean": float(np.median(mean)), "advantage_std": around},
            f"The log-probabilities of what was chosen are multiplied by {np.median(mean):.3g} on average, with a "
            f"deviation of {around:.3g}: whatever came of it, each choice is made "
            f"{'more' if np.median(mean) > 0 else 'less'} likely, by a gradient as large as the returns.",
            "Take a baseline away (the mean of the batch, or a learnt value) and divide by the deviation: "
            "(returns - returns.mean()) / (returns.std() + 1e-8).",
        )
    ]

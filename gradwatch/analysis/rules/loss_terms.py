"""A loss of several terms, of which one grows at the cost of the others."""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.rules.finding import Finding
from gradwatch.analysis.rules.loss_graph import is_one_loss
from gradwatch.analysis.rules.losses import has_rivals, training_losses
from gradwatch.analysis.rules.progress import reaches_its_goal
from gradwatch.analysis.rules.sampled_losses import sampled
from gradwatch.formatting import percent
from gradwatch.history import History


def loss_terms_apart(
    history: History,
    least: float = 0.1,
    lost: float = 0.5,
    fell: float = 0.3,
    min_samples: int = 12,
    min_steps: int = 100,
) -> list[Finding]:
    """The loss falls, and what it asks for of its targets is unlearnt: another of its terms outweighs it. A warning.

    Alarm: of a loss that the graph shows to be more than one of torch's own, the share of its targets that is explained
    (`in_loss/explained`) rose to `least` or more, by its third highest, in the first two thirds of the samples, and
    ended at less than the share `lost` of that, while a training loss fell by the share `fell` of where it stood then.
    Source: Kendall et al., arXiv:1705.07115, section 1, on weights of the terms of a loss.
    """
    step, share = sampled(history, "explained")
    if len(step) < min_samples or len(history) < min_steps or has_rivals(history) or is_one_loss(history):
        return []
    early = share[: 2 * len(share) // 3]
    best, ended = float(np.sort(early)[-3]), float(np.median(share[-max(3, len(share) // 4) :]))
    row = int(np.searchsorted(history.step, step[int(early.argmax())]))
    losses = [history.total(name) for name in training_losses(history)]
    since = [values[row:][np.isfinite(values[row:])] for values in losses]
    falls = any(len(v) > 20 and np.median(v[-10:]) < (1 - fell) * np.median(v[:10]) for v in since)
    if best < least or ended > lost * best or not falls or reaches_its_goal(history):
        return []
    return [
        Finding(
            "loss-terms-apart",
            "warning",
            (),
            int(history.step[row]),
            int(history.step[-1]),
            {"explained_at_best": best, "explained": ended},
            f"The loss goes on falling, and of the targets {percent(max(ended, 0.0))} are explained, where it were "
            f"{percent(best)}: another term of the loss outweighs the one that asks for them, and falls at its cost.",
            "Log each term by itself. Give the one that outweighs the others a hundredth of its weight, and take each "
            "of them as a mean over the same things (examples, places, channels), not as a sum.",
        )
    ]

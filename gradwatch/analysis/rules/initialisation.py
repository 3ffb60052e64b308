"""Weights that began far from the size that carries a signal through the layers.

Legend: L layers.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.rules.dead_layers import dead_layer
from gradwatch.analysis.rules.depth import imbalance, vanishing
from gradwatch.analysis.rules.facts import chance_loss, initial_gains, pick
from gradwatch.analysis.rules.finding import Finding
from gradwatch.analysis.rules.gradients import exploding, first_ratio
from gradwatch.analysis.rules.losses import scaled_losses
from gradwatch.analysis.rules.progress import succeeds
from gradwatch.history import History

_NORMS = ("BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm")


def bad_initialisation(
    history: History, large: float = 4.0, small: float = 0.05, most: float = 0.75, least: int = 3
) -> list[Finding]:
    """Most matrices multiply what passes through them by far too much, or by far too little, from the start. A warning.

    The gain of a matrix is the root mean square of its weights times the root of its fan in: 0.58 as torch makes its
    layers, 1.41 by He's initialisation. Alarm: the share `most` of `least` or more matrices began above
    `large` or below `small`; where normalisation stands between them or fewer are known, a large gain only counts where
    the training does not succeed, or its loss began at twice log C or more (C the rows of the last matrix). Not said
    where what follows from it is found: an explosion, gradients that vanish, layers that are dead or apart; nor large
    ones where the first step already changed the weights by a third: their first norm is that after it.
    Source: He et al., arXiv:1502.01852; of healthy trainings of the tests the median gain is 0.2 to 2.1.
    """
    gain = initial_gains(history)
    known = np.isfinite(gain)
    if known.sum() < 2:
        return []
    too_large, too_small = gain > large, gain < small
    moved = first_ratio(history) > 1 / 3
    kinds = " ".join(history.run.modules.values())
    plain = known.sum() >= least and not any(norm in kinds for norm in _NORMS)
    if not moved and too_large.sum() >= most * known.sum() and (plain or _far_off(history) or not succeeds(history)):
        which, way = too_large, "many times"
    elif too_small.sum() >= most * known.sum() and known.sum() >= least:
        which, way = too_small, "a small part of"
    else:
        return []
    if any(rule(history) for rule in (exploding, vanishing, dead_layer, imbalance)):
        return []
    typical = float(np.median(gain[which]))
    losses = scaled_losses(history)
    began = {f"first_{name}": float(values[np.isfinite(values)][0]) for name, values in losses.items()}
    return [
        Finding(
            "bad-initialisation",
            "warning",
            pick(history, which),
            int(history.step[0]),
            int(history.step[-1]),
            {"gain": typical, "usual": "0.5 to 1.5", **began},
            f"These weights began at {way} their usual size: each layer multiplies what passes through it by about "
            f"{typical:.2g}, where 0.5 to 1.5 is usual.",
            "Begin with torch's own initialisation, or with He's: nn.init.kaiming_normal_(weight). A lower or higher "
            "learning rate does not make up for it.",
        )
    ]


def _far_off(history: History, times: float = 2.0) -> bool:
    """Whether a training loss began at `times` what equal probabilities for all classes give, or above."""
    limit = times * chance_loss(history)
    return any(float(values[np.isfinite(values)][0]) > limit for values in scaled_losses(history).values())

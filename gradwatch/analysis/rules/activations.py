"""What the activations show that no gradient does: units that give nothing back, values that outgrow the others.

Legend: T sampled steps, M modules.
"""

from __future__ import annotations

import numpy as np

from gradwatch.table import Table


def birthplace(activations: Table, step: int) -> str:
    """The module whose output was not finite first, in the first sampled step with such an output; empty where that is
    after `step`: what is not finite is in the weights by then, and everywhere.
    """
    if not len(activations):
        return ""
    bad = activations.values["nonfinite"] > 0  # [T, M]
    rows = np.flatnonzero(bad.any(axis=1) & (activations.step <= step))
    if not len(rows):
        return ""
    order = np.where(bad[rows[0]], activations.values["order"][rows[0]], np.inf)
    return activations.layers[int(order.argmin())]

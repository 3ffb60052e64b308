"""The row of an embedding that makes a step stand out, where rows were recorded.

Legend: T recorded steps, L layers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gradwatch.analysis.clips import loop_coef
from gradwatch.analysis.rules.finding import Evidence
from gradwatch.formatting import percent, setting_text
from gradwatch.history import SEEN, History

MOST_OF_IT = 0.9  # of the joint norm: the other 19 % of its square is everything else


class LargestRow(NamedTuple):
    """A row that is most of a step's gradient."""

    layer: str
    number: int
    share: float  # of the joint norm
    others_kept: float  # what clips left of every other layer's gradient: 1 where there was none
    usual: float  # the norm that the largest row stays below in 99 % of the steps in which no row is most of it

    @property
    def said(self) -> str:
        """In a sentence."""
        lost = f"; the clip left {self.others_kept:.2g} of every other layer's gradient for it"
        return (
            f" Row {self.number} of {self.layer} alone is {percent(self.share)} of that norm"
            f"{lost if self.others_kept < 1 else ''}."
        )

    @property
    def evidence(self) -> Evidence:
        """Its numbers."""
        return {"row": self.number, "row_share": self.share, "others_kept": self.others_kept}

    @property
    def bound(self) -> str:
        """A policy that bounds each row by itself, and spares the other layers."""
        return f"only({self.layer!r}, ClipByNorm({setting_text(self.usual)}, axes=(1,)))"


def largest_row(history: History, row: int) -> LargestRow | None:
    """The one that is most of the joint norm in this row of the steps table; None where there is none, or it is not
    known.
    """
    at = _recorded(history, row)
    if at is None:
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        norms = history.layer("row_norm").astype(np.float64)
        shares = norms / history.total("grad_norm")[history.layer_rows][:, None]
        is_most = np.nan_to_num(shares) >= MOST_OF_IT
    if not is_most[at].any():
        return None
    worst = int(np.nanargmax(shares[at]))
    coef = history.layer("clip_coef")[at] * loop_coef(history)[row]
    others = np.delete(coef, worst)
    others = others[np.isfinite(others)]
    usual = norms[~is_most.any(axis=1), worst]
    usual = usual[np.isfinite(usual) & (usual > 0)]
    return LargestRow(
        history.layers[worst],
        int(history.layer("row_index")[at, worst]),
        float(shares[at, worst]),
        float(np.median(others)) if len(others) else 1.0,
        float(np.quantile(usual, 0.99)) if len(usual) else float("nan"),
    )


def nonfinite_row(history: History, row: int, layer: str) -> int | None:
    """The number of a row of the layer's gradient that is not finite, in this row of the steps table; None where there
    is none, or it is not known.
    """
    at = _recorded(history, row)
    if at is None or layer not in history.layers:
        return None
    place = history.layers.index(layer)
    number, share = (float(history.layer(name)[at, place]) for name in ("row_index", "row_share"))
    # Where the rows are finite, and the norm of all of them is not, the share is 0
    return int(number) if np.isfinite(number) and np.isnan(share) else None


def _recorded(history: History, row: int) -> int | None:
    """Where the layers of this row of the steps table are, if their rows were recorded, and not summed up."""
    at = np.flatnonzero(history.layer_rows == row)
    summed_up = history.by_layer.values.get(SEEN)
    if "row_share" not in history.per_layer or not len(at) or (summed_up is not None and summed_up[at[0]].max() > 1):
        return None
    return int(at[0])

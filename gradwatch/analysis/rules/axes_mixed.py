"""Axes that are taken for others: a view that wants a transpose, a recurrence that runs over the batch.

Legend: T places, B rows of a batch.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.rules.finding import Finding, whole_run
from gradwatch.analysis.rules.loss_graph import graph_rows, shape_in
from gradwatch.analysis.rules.sampled_losses import sampled
from gradwatch.history import History

_MET = {
    "Select": "what is picked of them afterwards is one row of the batch, not one place",
    "Mean": "the mean that is taken of them afterwards is over the rows of the batch, not over the places",
    "Amax": "the largest that is taken of them afterwards is over the rows of the batch, not over the places",
    "Convolution": "a convolution before it runs along the second axis: the first is the batch",
    "Embedding": "in its tokens the next one that is asked for follows along the second axis: the first is the batch",
}


def axes_mixed(history: History, following: float = 0.9) -> list[Finding]:
    """Axes that are taken for others than they are. A warning.

    Alarm: a view whose axes are no splitting and joining of those before, and in which an axis is found again behind
    another number of elements (`measure.views.reorders`): what was one row is spread over several. Or a recurrence or
    an attention along the first axis, where what is above or below takes that for the batch
    (`measure.sequence_axes`); of tokens where `following` of the targets are the next one along the other axis.
    Source: torch's documentation of `Tensor.view`, which keeps the elements in their order, and of `batch_first`.
    """
    for row in graph_rows(history, "view"):
        before, after = (list(shape_in(row[key])) for key in ("of", "shape"))
        return [
            whole_run(
                history,
                "axes-mixed",
                row["layer"],
                {"before": str(before), "after": str(after)},
                f"A view (or reshape) takes {before} for {after}. It moves no number: what is called by the same size "
                "afterwards consists of other numbers, of several rows.",
                "Reorder axes with transpose or permute, and split or join only neighbours: "
                "x.view(B, T, H, D).transpose(1, 2), not x.view(B, H, T, D).",
            )
        ]
    for row in graph_rows(history, "sequence"):
        if row["operation"] == "Embedding" and not _follows(history, following):
            continue
        shape = list(shape_in(row["shape"]))
        return [
            whole_run(
                history,
                "axes-mixed",
                row["layer"],
                {"shape": str(shape), "met": row["operation"]},
                f"Of {shape} a recurrence or an attention runs along the first axis, and {_MET[row['operation']]}. "
                "So it goes from one example to the next, and never along the places of one.",
                "batch_first=True where the recurrence or the attention is made, or give it [T, B, ...].",
            )
        ]
    return []


def _follows(history: History, share: float) -> bool:
    """Whether the targets are the next tokens of their rows."""
    _, following = sampled(history, "target_is_next")
    return len(following) > 0 and bool(np.median(following) >= share)

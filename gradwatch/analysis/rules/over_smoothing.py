"""A graph network whose rows are given the mean of their neighbours' so often that none is told from another."""

from __future__ import annotations

from gradwatch.analysis.rules.finding import Evidence, Finding, either, whole_run
from gradwatch.analysis.rules.held_out import learns
from gradwatch.analysis.rules.loss_graph import graph_rows
from gradwatch.analysis.rules.progress import judged_losses, reaches_its_goal
from gradwatch.analysis.rules.sampled_losses import inside
from gradwatch.formatting import percent
from gradwatch.history import History


def over_smoothing(
    history: History, often: int = 5, left: float = 0.85, same: float = 0.8, min_steps: int = 50, running: int = 500
) -> list[Finding]:
    """Rows of a graph are added up `often` times in a row or more, and the training wins next to nothing. A warning.

    Alarm: so many layers give out what is then added up by a fixed matrix or by index, as the graph of the first losses
    shows it (`measure.aggregations`), of each loss the share `left` of its first value is left, and of what the last
    weights are given the share `same` is so for all rows (`in_loss/end_alike`). Not where another metric reaches its
    goal, or the model `learns` something of other data: little may be all that there is.
    Source: Li et al. 2018, arXiv:1801.07606 (a graph convolution smooths; many make all features alike); Oono
    & Suzuki 2020, arXiv:1905.10947 (they lose what tells nodes apart exponentially in depth).
    """
    rows = [row["layer"] for row in graph_rows(history, "aggregation")]
    losses = judged_losses(history, min_steps, running)
    alike = inside(history, "end_alike")
    if len(rows) < often or not losses or alike is None or not alike.last >= same:
        return []
    if reaches_its_goal(history) or learns(history):
        return []
    if any(p.ended < left * p.first for p in losses):
        return []
    shown = losses[0]
    evidence: Evidence = {
        "aggregations": len(rows),
        "metric": shown.metric,
        "end": shown.ended,
        "alike": alike.last,
    }
    return [
        whole_run(
            history,
            "over-smoothing",
            rows[-1],
            evidence,
            f"Rows are given sums of their neighbours' in {len(rows)} layers, {percent(alike.last)} of what the last "
            f"weights are given is the same for all, and {shown.metric} hardly falls: {shown.first:.4g}, then "
            f"{shown.ended:.4g}. {either(_CAUSES)}",
            "Take two or three such layers. If rows far apart have to hear of each other, keep what each had at first: "
            "a residual connection, the first features added in each layer (GCNII), or all layers' features side by "
            "side at the end.",
            _CAUSES,
        )
    ]


_CAUSES = (
    "by then the rows of a connected part are all alike, and nothing tells them apart",
    "as many layers as that hand on next to no gradient",
)

"""A graph network whose rows are given the mean of their neighbours' so often that none is told from another."""

from __future__ import annotations

from gradwatch.analysis.rules.finding import Evidence, Finding, either, whole_run
from gradwatch.analysis.rules.loss_graph import graph_rows
from gradwatch.analysis.rules.progress import judged_losses, reaches_its_goal
from gradwatch.analysis.rules.sampled_losses import inside
from gradwatch.history import History


def over_smoothing(
    history: History, often: int = 5, left: float = 0.85, min_steps: int = 50, running: int = 500
) -> list[Finding]:
    """Rows of a graph are added up `often` times in a row or more, and the training wins next to nothing. A warning.

    Alarm: so many layers give out what is then added up by a fixed matrix or by index, as the graph of the first losses
    shows it (`measure.aggregations`), and of each loss the share `left` of its first value is left. Not where another
    metric reaches its goal.
    Source: Li et al. 2018, arXiv:1801.07606 (a graph convolution smooths; many make all features alike); Oono
    & Suzuki 2020, arXiv:1905.10947 (they lose what tells nodes apart exponentially in depth).
    """
    rows = [row["layer"] for row in graph_rows(history, "aggregation")]
    losses = judged_losses(history, min_steps, running)
    if len(rows) < often or not losses or reaches_its_goal(history):
        return []
    if any(p.ended < left * p.first for p in losses):
        return []
    alike, shown = inside(history, "end_alike"), losses[0]
    evidence: Evidence = {"aggregations": len(rows), "metric": shown.metric, "end": shown.ended}
    if alike is not None:
        evidence["alike"] = alike.last
    return [
        whole_run(
            history,
            "over-smoothing",
            rows[-1],
            evidence,
            f"Each row is given a sum of its neighbours' {len(rows)} times in a row, and {shown.metric} hardly falls: "
            f"{shown.first:.4g}, then {shown.ended:.4g}. {either(_CAUSES)}",
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

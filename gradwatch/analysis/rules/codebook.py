"""A book of codes of which most are never chosen, in steps that were sampled."""

from __future__ import annotations

from gradwatch.analysis.rules.finding import Finding, either, whole_run
from gradwatch.analysis.rules.sampled_losses import layer_at, sampled
from gradwatch.analysis.rules.series import late_median
from gradwatch.formatting import percent
from gradwatch.history import History


def codebook_collapse(history: History, share: float = 0.06, least: int = 4, min_steps: int = 50) -> list[Finding]:
    """Of a table whose rows a loss of differences is taken of less than the `share` are ever asked for. A warning.

    In the last quarter of the samples, `least` at least, by the median, in batches that ask as often as there are rows:
    by chance that would be 63 %. A code that is chosen by nobody gets no gradient, and stays where it is.
    Source: van den Oord et al., arXiv:1711.00937, section 3; Dhariwal et al., arXiv:2005.00341, section 3.1 (codebook
    collapse, and codes that are begun anew).
    """
    step, used, places = sampled(history, "codes_used", "layer_of/codes_used")
    if len(step) < least or len(history) < min_steps:
        return []
    rest = late_median(used)
    if not rest < share:
        return []
    causes = (
        "the codes begin far from what the encoder gives out, or it ran away from them",
        "the table has rows that no data ask for",
    )
    return [
        whole_run(
            history,
            "codebook-collapse",
            layer_at(history, places[-1]),
            {"codes_used": rest, "codes_used_at_first": float(used[0])},
            f"Of the rows of this table {percent(rest)} are asked for in a batch ({percent(float(used[0]))} in the "
            f"first): the others get no gradient, and are not chosen later either. {either(causes)}",
            "Begin the codes at outputs of the encoder (those of the first batch); begin codes anew there that nobody "
            "has chosen for some hundred steps; keep the encoder near them by the commitment term, or learn the codes "
            "by moving averages.",
            causes,
        )
    ]

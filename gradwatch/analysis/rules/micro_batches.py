"""Steps that are those of a sum over micro-batches, where a mean was meant."""

from __future__ import annotations

from dataclasses import replace

from gradwatch.analysis.rules.facts import is_adaptive, middle
from gradwatch.analysis.rules.finding import Finding
from gradwatch.analysis.rules.sampled_losses import sampled
from gradwatch.history import History

TOO_LONG = {"exploding", "lr-too-high", "update-too-large"}


def with_sums(history: History, finding: Finding, least: int = 4) -> Finding:
    """A finding of steps that are too long, with why they are: `least` backward passes or more are added up in each
    that was looked at, and their losses are not divided. Not under Adam and its kin, whose steps are as long then.

    Source: torch's documentation of gradient accumulation (`loss = loss / iters_to_accumulate`).
    """
    if finding.rule not in TOO_LONG or is_adaptive(history):
        return finding
    passes = middle(sampled(history, "summed")[1])
    if not passes >= least:
        return finding
    parts = f"{passes:.0f}"
    return replace(
        finding,
        evidence={**finding.evidence, "passes_summed": passes},
        cause=f"{finding.cause} Each step is that of the sum of {parts} backward passes, whose losses are not divided: "
        f"{parts} times as long as that of their mean.",
        cure=f"Divide each micro-batch's loss by their number: (loss / {parts}).backward(). If that was done already, "
        f"or a sum is meant: {finding.cure[0].lower()}{finding.cure[1:]}",
    )

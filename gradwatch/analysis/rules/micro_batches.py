"""Steps that are those of a sum over micro-batches, where a mean was meant."""

from __future__ import annotations

from dataclasses import replace

from gradwatch.analysis.rules.dead_layers import dead_layer
from gradwatch.analysis.rules.facts import is_adaptive, middle
from gradwatch.analysis.rules.finding import Finding
from gradwatch.analysis.rules.gradients import exploding
from gradwatch.analysis.rules.large_updates import update_too_large
from gradwatch.analysis.rules.long_steps import lr_too_high
from gradwatch.analysis.rules.sampled_losses import sampled
from gradwatch.history import History


def accumulation_not_averaged(history: History, least: int = 4) -> list[Finding]:
    """Steps are too long, and each is that of a sum of micro-batches whose losses are not divided by their number.

    Alarm: `exploding`, `lr-too-high` or `update-too-large`, as severe as that is and no note, or units that a step
    threw to where they are dead, where `least` backward passes or more are added up in each step that was looked at,
    and no loss of them has a factor. Not under Adam and its kin, whose steps are as long then.
    Source: torch's documentation of gradient accumulation (`loss = loss / iters_to_accumulate`).
    """
    passes = middle(sampled(history, "summed")[1])
    if is_adaptive(history) or not passes >= least:
        return []
    found = [f for rule in (exploding, lr_too_high, update_too_large) for f in rule(history) if f.severity != "note"]
    found = found or [f for f in dead_layer(history) if f.severity == "error" and "first_update_ratio" in f.evidence]
    parts = f"{passes:.0f}"
    return [
        replace(
            long,
            rule="accumulation-not-averaged",
            layers=(),
            first_step=int(history.step[0]),  # the sum is there from the first step on
            evidence={**long.evidence, "passes_summed": passes},
            cause=f"Each step is that of the sum of {parts} backward passes, whose losses are not divided: {parts} "
            f"times as long as that of their mean. {long.cause}",
            cure=f"Divide each micro-batch's loss by their number: (loss / {parts}).backward(). If that was done "
            f"already, or a sum is meant: {long.cure[0].lower()}{long.cure[1:]}",
        )
        for long in found[:1]
    ]

"""A policy that leaves out so many steps that another training takes place than the one that was asked for.

Legend: T recorded steps.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.clips import incoming
from gradwatch.analysis.final_values import nonfinite_rows
from gradwatch.analysis.rules.facts import GUARD, middle
from gradwatch.analysis.rules.finding import Evidence, Finding, whole_run
from gradwatch.analysis.rules.layer_facts import pick
from gradwatch.analysis.rules.losses import has_rivals
from gradwatch.analysis.rules.sampled_losses import are_left_out, dropped_passes
from gradwatch.analysis.rules.series import stretches
from gradwatch.analysis.rules.tries import clip_with
from gradwatch.formatting import percent
from gradwatch.history import Bools, History
from gradwatch.policies import Policy, SkipNonfinite, SkipSpike
from gradwatch.policies.grammar import members


def skips_often(history: History, share: float = 0.1, few: int = 10, in_a_row: int = 50) -> list[Finding]:
    """A policy that left out `share` of the steps, and at least `few`, or `in_a_row` steps on end. A warning.

    Or the loop itself did, as far as its backward passes are heard of that no step followed (`are_left_out`).
    Steps that a GradScaler drops, as it does while it looks for its scale, are not the policy's. Where most were not
    finite, the cause lies before the policy; else it takes usual steps of this run for odd ones.
    Source: Chowdhery et al. 2022, "PaLM", arXiv:2204.02311, 5.1 (200 to 500 batches left out about 20 times: below a
    twentieth of the training); a lasting rise keeps being skipped: OLMo-core's skip-step optimizers.
    """
    policies = [p for p in members(history.run.clip) if isinstance(p, Policy) and p.can_skip]
    bad = nonfinite_rows(history)
    skipped = (history.total("skipped") > 0) & ~(bad & np.isfinite(history.total("loss_scale")))
    count, longest = int(skipped.sum()), int(np.diff(stretches(skipped)).max(initial=0))
    if not policies or not (count >= max(few, share * len(history)) or longest >= in_a_row):
        return _of_the_loop(history, few)
    lost = int((skipped & bad).sum())
    mostly_lost = 2 * lost >= count
    named = " or ".join(repr(p) for p in policies if mostly_lost or not isinstance(p, SkipNonfinite))
    norms = incoming(history)
    evidence: Evidence = {
        "policy": named, "steps": count, "share": count / len(history), "in_a_row": longest, "nonfinite": lost,
    }  # fmt: skip
    usual, left_out = middle(norms[~skipped]), middle(norms[skipped & ~bad])
    evidence |= {name: v for name, v in (("usual_norm", usual), ("skipped_norm", left_out)) if np.isfinite(v)}
    first, last = history.step[np.flatnonzero(skipped)[[0, -1]]]
    begin = f"{named} left out {count:,} of {len(history):,} steps ({percent(count / len(history))}), up to "
    begin += f"{longest:,} on end. Nothing is learned from them, and the schedule goes on all the same."
    if mostly_lost:
        where = pick(history, _lost_layers(history, skipped & bad))
        cause = f"{begin} {lost:,} of them had gradients that are not finite."
        cure = (
            "Look for what is not finite, and in which layer it began (nonfinite): a skip keeps the weights whole, and "
            "mends nothing. With at_most=8 so many on end stop the training instead."
        )
        return [Finding("skips-often", "warning", where, int(first), int(last), evidence, cause, cure)]
    compared = f" Their median norm is {left_out:.3g}" + (
        f", {usual:.3g} of the others." if np.isfinite(usual) else "."
    )
    lasting = any(isinstance(p, SkipSpike) for p in policies)
    window = " A skipped norm does not enter its window: norms that rose for good are skipped for good." * lasting
    text = f"chain(SkipNonfinite(), {GUARD})"
    cure = (
        f'Clip such steps instead of leaving them out: clip="{text}"; or put the threshold of the skip far above that '
        "of this clip, so that it meets single odd steps only."
    )
    return [
        Finding("skips-often", "warning", (), int(first), int(last), evidence, begin + compared + window, cure,
                tries=(clip_with(text),))
    ]  # fmt: skip


def _of_the_loop(history: History, few: int) -> list[Finding]:
    dropped = dropped_passes(history)
    if not are_left_out(dropped) or dropped.sum() < few or has_rivals(history):
        return []
    norm = incoming(history)
    most = float(np.nanmax(norm, initial=0.0))
    passes = f"{int(dropped.sum()):,} backward passes came to nothing before the {len(dropped)} steps that were looked "
    return [
        whole_run(
            history,
            "skips-often",
            (),
            {"passes": float(dropped.sum()), "in_a_row": float(dropped.max()), "largest_norm": most},
            f"The loop itself leaves steps out: {passes}at, up to {int(dropped.max()):,} before one. The largest norm "
            f"that was stepped with is {most:.3g}.",
            "Look at what decides whether optimizer.step() is called. Clip to that bound instead of leaving the step "
            "out, or put it far above the usual norm.",
        )
    ]


def _lost_layers(history: History, rows: Bools) -> Bools:
    """The layers that were not finite in the first of these rows of which the layers are recorded, `[L]`."""
    counts = history.layer("nonfinite")[rows[history.layer_rows]] > 0
    hit = np.flatnonzero(counts.any(axis=1))
    return counts[hit[0]] if len(hit) else np.zeros(len(history.layers), bool)

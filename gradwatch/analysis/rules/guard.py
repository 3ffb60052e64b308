"""The one threshold that findings and the suggestion advise: from the healthy steps of a run, and said to be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from gradwatch.analysis.clips import incoming
from gradwatch.analysis.rules.facts import GUARD
from gradwatch.analysis.rules.finding import Finding
from gradwatch.formatting import rounded, setting_text
from gradwatch.history import Floats, History

ENOUGH = 50  # healthy steps that a threshold can be taken from
USUAL = 1.0  # of nanoGPT, of the Hugging Face Trainer, and of the exploding RNN that no threshold of its own can teach
TOO_LARGE_STEPS = {"exploding", "lr-too-high", "update-too-large"}


def healthy_norms(history: History, findings: Iterable[Finding]) -> Floats:
    """The positive norms before any clip, of the steps before the run went wrong for good.

    Without outliers: more than 6 robust σ in the log.
    """
    last = int(history.step[-1])
    bad = [
        f.first_step for f in findings if f.rule in TOO_LARGE_STEPS or (f.rule == "nonfinite" and f.last_step >= last)
    ]
    norms = incoming(history)[history.step < min(bad, default=last + 1)]
    norms = norms[np.isfinite(norms) & (norms > 0)]
    if not len(norms):
        return norms
    logs = np.log(norms)
    middle = np.median(logs)
    spread = 1.4826 * np.median(np.abs(logs - middle))
    kept: Floats = norms[logs <= middle + max(6 * spread, 1e-6)]
    return kept


def limit_of(norms: Floats) -> float | None:
    """The 99th percentile of healthy norms, to two digits; None where they are too few to say."""
    return rounded(float(np.quantile(norms, 0.99)), 2) if len(norms) >= ENOUGH else None


def with_guard(history: History, roots: Sequence[Finding]) -> list[Finding]:
    """These findings and what follows from them, with `GUARD` in their cures filled in: the same for all of them."""
    norms = healthy_norms(history, roots)
    limit = limit_of(norms)
    text = f"ClipByGlobalNorm({setting_text(USUAL if limit is None else limit)})"

    def filled(finding: Finding) -> Finding:
        if GUARD not in finding.cure:
            return finding
        whence = (
            f" The threshold is the 99th percentile of the norms of {len(norms):,} healthy steps."
            if limit is not None
            else f" {USUAL} is the usual first value: only {len(norms)} steps were healthy, too few to take one from."
        )
        return replace(finding, cure=finding.cure.replace(GUARD, text) + whence)

    return [replace(filled(root), consequences=tuple(map(filled, root.consequences))) for root in roots]

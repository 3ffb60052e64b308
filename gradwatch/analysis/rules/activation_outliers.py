"""Lone values that outgrow all others of their module, which no norm of a gradient shows.

Legend: T sampled steps, M modules.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.rules.activation_facts import still_grows
from gradwatch.analysis.rules.finding import Evidence, Finding, Severity
from gradwatch.analysis.rules.progress import succeeds
from gradwatch.analysis.rules.series import holds_from
from gradwatch.history import History


def activation_outlier(history: History, peak: float = 20.0, growth: float = 3.0, min_rows: int = 6) -> list[Finding]:
    """Modules whose largest |a| has grown to more than `peak` times their root mean square, and still grows.

    By the ratio of `max` and `rms`, and `growth` times what it was at first (`still_grows`). Of normally distributed
    values, a million of them, the ratio is 5.
    Source: Sun et al. 2024, "Massive Activations in Large Language Models", arXiv:2402.17762; Dettmers et al. 2022,
    arXiv:2208.07339 (features beyond 20 times the others).
    """
    table = history.activations.with_values("rms")
    if len(table) < min_rows or not table.layers:
        return []
    largest, rms = table.values["max"].astype(np.float64), table.values["rms"].astype(np.float64)
    known = np.isfinite(largest) & (rms > 0)
    ratio = np.divide(largest, rms, out=np.full(largest.shape, np.nan), where=known)  # [T, M]
    hit, first, last = still_grows(ratio, peak, growth)
    if not len(hit):
        return []
    with np.errstate(invalid="ignore"):
        began = holds_from(np.any(ratio[:, hit] > peak, axis=1))
    worst = hit[np.argmax(last[hit])]
    name = table.layers[worst]
    order = np.where(np.isin(np.arange(len(table.layers)), hit), table.values["order"][-1], np.inf)
    origin = table.layers[int(np.argmin(order))]
    evidence: Evidence = {
        "largest_over_rms": float(last[worst]), "at_first": float(first[worst]), "module": name, "first_module": origin,
        "modules": len(hit), "of": len(table.layers),
    }  # fmt: skip
    severity: Severity = "note" if succeeds(history) else "warning"
    names = tuple(table.layers[i] for i in hit)
    since = int(table.step[min(began, len(table) - 1)])
    cause = (
        f"A few values outgrow all others: the largest of `{name}` was {first[worst]:.3g} times the root mean square "
        f"at first, is {last[worst]:.3g} times now, and still grows. In the forward pass `{origin}` shows it first. "
        "Half precision and quantisation lose all other values beside such ones."
    )
    cure = (
        f"Look at what goes into `{origin}` in these steps: one example, feature or token far out of scale does this, "
        "and is mended or bounded where it comes in. If the inputs are in order, single units of the weights run away."
    )
    return [Finding("activation-outlier", severity, names, since, int(history.step[-1]), evidence, cause, cure)]

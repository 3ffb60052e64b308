"""Where what is not finite began, as far as rows, activations and weights show it beside the norms of gradients."""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.rules.activation_facts import birthplace
from gradwatch.analysis.rules.finding import Evidence, Why
from gradwatch.analysis.rules.largest_row import nonfinite_row
from gradwatch.analysis.rules.nonfinite_causes import meanwhile
from gradwatch.history import Bools, History


def origin(history: History, first: int, last: int, bad: Bools, layer: str) -> Why:
    """What is known of the forward pass and the weights: a sentence, the advice that follows, the evidence.

    Of the row of the first step that was not finite, of the layers that were `bad` in it, `[L]`, and the last of
    these that is looked at, `layer`; and until the row `last`, as steps that are skipped leave the weights as they
    were, so that a later sample shows as well where it is born.
    """
    modules, step = history.activations.with_values("rms").layers, int(history.step[first])
    born = birthplace(history.activations, int(history.step[last]))
    said, cure = "", ""
    evidence: Evidence = {}
    row = nonfinite_row(history, first, layer) if layer else None
    if row is not None:
        evidence["row"] = row
        said = f" Row {row} of {layer} is not finite."
    if born:
        evidence["first_activation"] = born
        said += f" In the forward pass the first output that was not finite is that of {born}."
        cure = (
            f"Look at {born}: at what it gets, at its weights and at what is done before it, for a root, logarithm, "
            f"division or exp, or such a value in the batch. {meanwhile(history)}"
        )
    elif modules and step in history.activations.step:
        said += f" In the forward pass the outputs of all {len(modules)} modules that were recorded were finite."
    ruined = _ruined(history, bad, last if last > first else first - 1)
    if ruined:
        evidence["weights"] = ruined
        said += f" The weights of {ruined} are not finite themselves."
        cure = f"Go back to a checkpoint in which {ruined} is finite: no step that is skipped makes it so again."
    return Why(said, cure, evidence)


def _ruined(history: History, bad: Bools, upto: int) -> str:
    """The first of the `bad` layers whose weights were seen to be finite, and up to this row not to be, beside others
    that were; none where optimizers step apart, and a row has the layers of one.
    """
    if len(history.lane_rows()) > 1:
        return ""
    norms = history.layer("weight_norm")[history.layer_rows <= upto]  # NaN where they were not measured, too
    finite = np.isfinite(norms)
    for row in np.flatnonzero(finite.any(axis=1) & ~finite.all(axis=1)):
        found = np.flatnonzero(bad & ~finite[row] & finite[:row].any(axis=0))
        if len(found):
            return history.layers[int(found[0])]
    return ""

"""Steps that lead uphill for one part of a model, downhill for the rest."""

from __future__ import annotations

from gradwatch.analysis.rules.facts import settings
from gradwatch.analysis.rules.finding import Finding
from gradwatch.analysis.rules.losses import has_rivals
from gradwatch.analysis.rules.progress import succeeds
from gradwatch.history import History


def wrong_sign(history: History, min_steps: int = 20) -> list[Finding]:
    """Of one optimizer's groups some raise the loss that others lower (`maximize=True`). A warning.

    Not of parts that train against each other, nor where the training succeeds: a multiplier of Lagrange's climbs.
    Source: torch's documentation of `maximize`.
    """
    groups = settings(history)
    climbs = [bool(group.get("maximize")) for group in groups]
    if len(history) < min_steps or len({*climbs}) < 2 or has_rivals(history) or succeeds(history):
        return []
    which = ", ".join(str(i) for i, climbing in enumerate(climbs) if climbing)
    return [
        Finding(
            "wrong-sign",
            "warning",
            (),
            int(history.step[0]),
            int(history.step[-1]),
            {"groups_that_climb": which, "groups": len(groups)},
            f"Param group {which} has maximize=True and the others have not: its steps raise the loss that those of "
            "the others lower.",
            "Take maximize=True out of that group, unless it is to work against the others (a multiplier, an "
            "adversary).",
        )
    ]

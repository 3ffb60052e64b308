"""Every rule over one run: `diagnose` gives the findings, `verdict` the one line that heads a report."""

from __future__ import annotations

from dataclasses import replace

from gradwatch.history import History
from gradwatch.rules.finding import RANK, Finding, Rule
from gradwatch.rules.gradients import dead_layer, exploding, nonfinite

RULES: tuple[Rule, ...] = (nonfinite, exploding, dead_layer)


def diagnose(history: History) -> list[Finding]:
    """What is wrong with a run: the worst first, and of equals the earliest. Empty for a healthy run.

    Optimizers that step on their own are judged on their own.
    """
    findings = [
        replace(finding, optimizer=name)
        for name, lane in history.lanes().items()
        for rule in RULES
        for finding in rule(lane)
    ]
    return sorted(findings, key=lambda finding: (RANK[finding.severity], finding.first_step))


def verdict(history: History) -> str:
    """`healthy`, or what went wrong first, as in `nonfinite at step 50 in blocks.0.mlp.weight`."""
    if not len(history):
        return "no steps recorded"
    serious = [finding for finding in diagnose(history) if finding.severity != "note"]
    return serious[0].summary if serious else "healthy"

"""The diagnosis: rules that read a History and name what is wrong with the run."""

from gradwatch.analysis.rules.finding import Finding, Rule
from gradwatch.analysis.rules.registry import (
    NO_FINDINGS,
    RULES,
    TOO_SHORT,
    diagnose,
    has_no_findings,
    headline,
    verdict,
)

__all__ = ["NO_FINDINGS", "RULES", "TOO_SHORT", "Finding", "Rule", "diagnose", "has_no_findings", "headline", "verdict"]

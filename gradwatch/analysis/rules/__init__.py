"""The diagnosis: rules that read a History and name what is wrong with the run."""

from gradwatch.analysis.rules.finding import Finding, Rule
from gradwatch.analysis.rules.registry import HEALTHY, RULES, TOO_SHORT, diagnose, headline, is_healthy, verdict

__all__ = ["HEALTHY", "RULES", "TOO_SHORT", "Finding", "Rule", "diagnose", "headline", "is_healthy", "verdict"]

"""The diagnosis: rules that read a History and name what is wrong with the run."""

from gradwatch.analysis.rules.finding import Finding, Rule
from gradwatch.analysis.rules.registry import HEALTHY, RULES, TOO_SHORT, diagnose, headline, verdict

__all__ = ["HEALTHY", "RULES", "TOO_SHORT", "Finding", "Rule", "diagnose", "headline", "verdict"]

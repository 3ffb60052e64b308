"""The diagnosis: rules that read a History and name what is wrong with the run."""

from gradwatch.analysis.rules.finding import Finding, Rule
from gradwatch.analysis.rules.registry import RULES, diagnose, headline, verdict

__all__ = ["RULES", "Finding", "Rule", "diagnose", "headline", "verdict"]

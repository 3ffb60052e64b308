"""The diagnosis: rules that read a History and name what is wrong with the run."""

from gradwatch.rules.base import RULES, diagnose, headline, verdict
from gradwatch.rules.finding import Finding, Rule

__all__ = ["RULES", "Finding", "Rule", "diagnose", "headline", "verdict"]

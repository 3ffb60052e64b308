"""Many runs side by side: what each amounts to, means with their intervals over the seeds, and which policy to take."""

from gradwatch.compare.endings import (
    diverged,
    final,
    is_seed,
    nonfinite_rows,
    nonfinite_steps,
    policy_text,
    seconds_per_step,
    seed_text,
    steps_to,
)
from gradwatch.compare.groups import NO_POLICY, groups, higher_is_better, metric_names, natural, settings
from gradwatch.compare.intervals import Estimate
from gradwatch.compare.table import Comparison, compare, runs_table, settle
from gradwatch.compare.winner import Winner, signed

__all__ = [
    "NO_POLICY", "Comparison", "Estimate", "Winner", "compare", "diverged", "final", "groups", "higher_is_better",
    "is_seed", "metric_names", "natural", "nonfinite_rows", "nonfinite_steps", "policy_text", "runs_table",
    "seconds_per_step", "seed_text", "settings", "settle", "signed", "steps_to",
]  # fmt: skip

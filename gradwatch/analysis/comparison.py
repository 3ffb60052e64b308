"""Many runs in one pandas table: one row per policy and setting, with intervals over the seeds and a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwatch.analysis import final_values, intervals
from gradwatch.analysis.clips import loop_rate
from gradwatch.analysis.comparison_notes import odd_ones, of_policies, of_table, without_direction
from gradwatch.analysis.groups import (
    NO_POLICY,
    Setting,
    by_setting,
    higher_is_better,
    metric_names,
    policies,
    titled,
    values_by_seed,
)
from gradwatch.analysis.intervals import NAN, Estimate
from gradwatch.analysis.verdict import Contender, Winner, is_of_rivals, judge_all, winner
from gradwatch.errors import RunError
from gradwatch.history import Floats, History

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Comparison:
    """The table, what follows from it for each setting, and what a reader of the table must know.

    The first of `metrics` is the one that decides.
    """

    table: pd.DataFrame
    metrics: tuple[str, ...]
    winners: tuple[Winner, ...]
    notes: tuple[str, ...]


def compare(
    histories: Sequence[History],
    metric: str | None = None,
    baseline: str | None = None,
    target: float | None = None,
    rises: bool | None = None,
) -> pd.DataFrame:
    """One row per policy and setting, the best of a setting first. Runs of a row differ only in their seed.

    For each metric: `<metric>`, the mean over the seeds of what the final values count as; `<metric>_std`, their sample
    standard deviation; `<metric>_low` and `<metric>_high`, the 95 % interval of the mean; `<metric>_diff` with
    `_diff_low` and `_diff_high`, this policy minus the baseline, by pairs of equal seeds (of a positive metric that is
    meant to fall, the relative change: -0.25 is a quarter less); `<metric>_method`, what that was taken over;
    `<metric>_verdict`: better, worse, no difference shown, not judged, or baseline; `<metric>_ended`, the mean of the
    final values as they were. A run that diverged counts with its loss before
    training, or has no final value (`values_by_seed`). `steps_to_target` is the median number of steps until the first
    metric reached `target` (NaN where half of the runs never did), `reached_target` the number of runs that did.
    `clip_rate` (by the policy), `loop_clip_rate` (by the loop's own clips; NaN without) and `seconds_per_step` are
    means over the runs, `median_grad_norm` and `p99_grad_norm` of the total norm before any clip over all finite steps,
    `nonfinite_steps` and `diverged` sums; `alike`: the seeds change nothing.

    Args:
        histories: the runs.
        metric: a logged scalar, to compare by it alone; by default every accuracy and loss, held-out ones first.
        baseline: the policy text to compare with; `none` by default, else the first policy of a setting.
        target: a value of the first metric.
        rises: whether a higher value of the first metric is better; by default its name says, or there is no verdict.

    Raises:
        RunError: none of the runs logged `metric`, or had the policy `baseline`.

    """
    return settle(histories, metric, baseline, target, rises).table


def settle(
    histories: Sequence[History],
    metric: str | None = None,
    baseline: str | None = None,
    target: float | None = None,
    rises: bool | None = None,
) -> Comparison:
    """`compare` with the winner of each setting, and with notes. The same arguments, the same errors."""
    import pandas as pd

    metrics = metric_names(histories, metric)
    known = list(dict.fromkeys(policies(histories)))
    if baseline is not None and baseline not in known:
        raise RunError(f"no run has the policy {baseline!r} to compare with; there are: {', '.join(known)}")
    of_rivals = {name for name in metrics if metric is None and is_of_rivals(histories, name)}
    better_high = {name: None if name in of_rivals else higher_is_better(name, histories) for name in metrics}
    if metrics and rises is not None:
        better_high[metrics[0]] = rises
    found = {
        setting: {policy: _contender(policy, members, metrics) for policy, members in runs.items()}
        for setting, runs in by_setting(histories).items()
    }
    rows, winners = [], []
    for title, setting, contenders in titled(found):
        base = contenders.get(baseline or NO_POLICY) or (None if baseline else next(iter(contenders.values())))
        everyone = list(contenders.values())
        judged = {name: judge_all(everyone, base, name, better_high[name]) for name in metrics}
        drawn = [
            _row(
                (one.policy, setting),
                one,
                {name: verdicts[i] for name, verdicts in judged.items()},
                target,
                better_high,
            )
            for i, one in enumerate(everyone)
        ]
        drawn.sort(key=partial(_rank, better_high=better_high))
        rows += drawn
        if metrics and len(contenders) > 1:
            first, ranked = metrics[0], [contenders[row["policy"]] for row in drawn]
            winners.append(winner(title, ranked, base, first, better_high[first], first in of_rivals))
    table = pd.DataFrame(rows)
    notes = [*of_table(table, better_high, target, of_rivals), *of_policies([*found.values()])]
    notes += [*(without_direction(histories) if metric is None else ()), *odd_ones(histories, metrics)]
    return Comparison(table, tuple(metrics), tuple(winners), tuple(notes))


def _contender(policy: str, members: list[History], metrics: Sequence[str]) -> Contender:
    values = {name: values_by_seed(members, name) for name in metrics}
    diverged = sum(any(final_values.diverged(history, name) for name in metrics or ("",)) for history in members)
    alike = len(members) > 1 and not diverged and final_values.are_alike(members)
    return Contender(policy, members, values, diverged, alike)


def _row(
    key: tuple[str, Setting],
    contender: Contender,
    judged: Mapping[str, tuple[Estimate, str]],
    target: float | None,
    better_high: Mapping[str, bool | None],
) -> dict[str, Any]:
    members = contender.members
    row: dict[str, Any] = {"policy": key[0], **dict(key[1]), "runs": len(members)}
    for name, (difference, verdict) in judged.items():
        row |= _metric_cells(name, contender, difference, verdict)
    if target is not None and judged:
        first = next(iter(judged))
        steps = [final_values.steps_to(history, first, target, bool(better_high[first])) for history in members]
        median = float(np.median(steps))
        row["steps_to_target"] = median if np.isfinite(median) else NAN
        row["reached_target"] = int(np.isfinite(steps).sum())
    apart = members[:1] if contender.alike else members  # a quantile of one run twice is none of that run
    norms = np.concatenate([final_values.finite_norms(history) for history in apart])
    row["diverged"], row["alike"] = contender.diverged, contender.alike
    row["clip_rate"] = _mean([_mean(history.total("clip_rate")) for history in members])
    row["loop_clip_rate"] = _mean([loop_rate(history) for history in members])
    row["nonfinite_steps"] = sum(final_values.nonfinite_steps(history) for history in members)
    row["seconds_per_step"] = _mean([final_values.seconds_per_step(history) for history in members])
    row["median_grad_norm"], row["p99_grad_norm"] = _quantile(norms, 0.5), _quantile(norms, 0.99)
    return row


def _metric_cells(name: str, contender: Contender, difference: Estimate, verdict: str) -> dict[str, Any]:
    values = list(contender.values[name].values())
    mean = intervals.mean(values)
    ended = _mean([final_values.final(history, name) for history in contender.members])
    low, high = (NAN, NAN) if contender.alike else (mean.low, mean.high)
    found = {name: mean.value, f"{name}_std": _spread(values), f"{name}_low": low, f"{name}_high": high}
    ends = {"diff": difference.value, "diff_low": difference.low, "diff_high": difference.high,
            "method": difference.method, "verdict": verdict, "ended": ended}  # fmt: skip
    return found | {f"{name}_{word}": value for word, value in ends.items()}


def _rank(row: dict[str, Any], better_high: Mapping[str, bool | None]) -> tuple[Any, ...]:
    """Fewest diverged first, then by the metrics in turn: high accuracy, or low loss; unknown last."""
    values = [-row[name] if high else row[name] for name, high in better_high.items() if high is not None]
    return row["diverged"] / row["runs"], [(np.isnan(value), np.nan_to_num(value)) for value in values]


def _mean(values: Sequence[float] | Floats) -> float:
    finite = np.asarray(values, np.float64)
    finite = finite[np.isfinite(finite)]
    return float(finite.mean()) if len(finite) else NAN


def _spread(values: Sequence[float]) -> float:
    finite = [value for value in values if np.isfinite(value)]
    return float(np.std(finite, ddof=1)) if len(finite) > 1 else NAN


def _quantile(values: Floats, q: float) -> float:
    return float(np.quantile(values, q)) if len(values) else NAN

"""Many runs in one pandas table: one row per policy and setting, with intervals over the seeds and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwatch.analysis import final_values, intervals
from gradwatch.analysis.groups import (
    NO_POLICY,
    Group,
    groups,
    higher_is_better,
    metric_names,
    natural,
    settings,
    values_by_seed,
)
from gradwatch.analysis.intervals import NAN, Estimate
from gradwatch.analysis.verdict import BASELINE, Contender, Winner, judge, winner
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
    histories: Sequence[History], metric: str | None = None, baseline: str | None = None, target: float | None = None
) -> pd.DataFrame:
    """One row per policy and setting, the best of a setting first. Runs of a row differ only in their seed.

    For each metric: `<metric>`, the mean over the seeds of the final values; `<metric>_std`, their sample standard
    deviation; `<metric>_low` and `<metric>_high`, the 95 % interval of the mean; `<metric>_diff` with `_diff_low` and
    `_diff_high`, this policy minus the baseline, by pairs of equal seeds (of a positive metric that is meant to fall,
    the relative change: -0.25 is a quarter less); `<metric>_method`, what that was taken over; `<metric>_verdict`:
    better, worse, no difference shown, not judged, or baseline. A run that diverged counts with its loss before
    training, or has no final value (`values_by_seed`). `steps_to_target` is the median number of steps until the first
    metric reached `target` (NaN where half of the runs never did), `reached_target` the number of runs that did.
    `clip_rate` and `seconds_per_step` are means over the runs, `median_grad_norm` and `p99_grad_norm` of the total norm
    before the clip over all finite steps, `nonfinite_steps` and `diverged` sums.

    Args:
        histories: the runs.
        metric: a logged scalar, to compare by it alone; by default every accuracy and loss, held-out ones first.
        baseline: the policy text to compare with; `none` by default, else the first policy of a setting.
        target: a value of the first metric.

    Raises:
        RunError: none of the runs logged `metric`, or had the policy `baseline`.

    """
    return settle(histories, metric, baseline, target).table


def settle(
    histories: Sequence[History], metric: str | None = None, baseline: str | None = None, target: float | None = None
) -> Comparison:
    """`compare` with the winner of each setting, and with notes. The same arguments, the same errors."""
    import pandas as pd

    metrics = metric_names(histories, metric)
    policies = list(dict.fromkeys(final_values.policy_text(history.run) for history in histories))
    if baseline is not None and baseline not in policies:
        raise RunError(f"no run has the policy {baseline!r} to compare with; there are: {', '.join(policies)}")
    found = groups(histories)
    by_setting: dict[tuple[tuple[str, str], ...], dict[str, Contender]] = {}
    for (policy, setting), members in found.items():
        by_setting.setdefault(setting, {})[policy] = _contender(policy, members, metrics)
    rows, winners = [], []
    for setting, contenders in sorted(by_setting.items(), key=lambda item: [natural(text) for _, text in item[0]]):
        base = contenders.get(baseline or NO_POLICY) or (None if baseline else next(iter(contenders.values())))
        drawn = [_row((policy, setting), c, base, metrics, target) for policy, c in contenders.items()]
        drawn.sort(key=partial(_rank, metrics=metrics))
        rows += drawn
        if metrics and len(contenders) > 1:
            title = ", ".join(f"{key} = {value}" for key, value in setting)
            winners.append(winner(title, [contenders[row["policy"]] for row in drawn], base, metrics[0]))
    table = pd.DataFrame(rows)
    notes = (*_notes(table, metrics, target), *_odd_ones(histories, metrics))
    return Comparison(table, tuple(metrics), tuple(winners), notes)


def _contender(policy: str, members: list[History], metrics: Sequence[str]) -> Contender:
    values = {name: values_by_seed(members, name) for name in metrics}
    return Contender(policy, members, values, sum(final_values.diverged(history, *metrics[:1]) for history in members))


def _row(
    key: Group, contender: Contender, base: Contender | None, metrics: Sequence[str], target: float | None
) -> dict[str, Any]:
    members = contender.members
    row: dict[str, Any] = {"policy": key[0], **dict(key[1]), "runs": len(members)}
    for name in metrics:
        row |= _metric_cells(name, contender, base)
    if target is not None and metrics:
        high = higher_is_better(metrics[0])
        steps = [final_values.steps_to(history, metrics[0], target, high) for history in members]
        median = float(np.median(steps))
        row["steps_to_target"] = median if np.isfinite(median) else NAN
        row["reached_target"] = int(np.isfinite(steps).sum())
    norms = np.concatenate([final_values.finite_norms(history) for history in members])
    row["diverged"] = contender.diverged
    row["clip_rate"] = _mean([_mean(history.total("clip_rate")) for history in members])
    row["nonfinite_steps"] = sum(final_values.nonfinite_steps(history) for history in members)
    row["seconds_per_step"] = _mean([final_values.seconds_per_step(history) for history in members])
    row["median_grad_norm"], row["p99_grad_norm"] = _quantile(norms, 0.5), _quantile(norms, 0.99)
    return row


def _metric_cells(name: str, contender: Contender, base: Contender | None) -> dict[str, Any]:
    values = list(contender.values[name].values())
    mean = intervals.mean(values)
    found = {name: mean.value, f"{name}_std": _spread(values), f"{name}_low": mean.low, f"{name}_high": mean.high}
    difference, verdict = Estimate(NAN, method="no run of the baseline"), ""
    if contender is base:
        difference, verdict = Estimate(NAN), BASELINE
    elif base is not None:
        difference, verdict = judge(contender, base, name)
    ends = {"diff": difference.value, "diff_low": difference.low, "diff_high": difference.high,
            "method": difference.method, "verdict": verdict}  # fmt: skip
    return found | {f"{name}_{word}": value for word, value in ends.items()}


def _rank(row: dict[str, Any], metrics: Sequence[str]) -> tuple[Any, ...]:
    """Fewest diverged first, then by the metrics in turn: high accuracy, or low loss; unknown last."""
    values = [-row[name] if higher_is_better(name) else row[name] for name in metrics]
    return row["diverged"] / row["runs"], [(np.isnan(value), np.nan_to_num(value)) for value in values]


def _notes(table: pd.DataFrame, metrics: Sequence[str], target: float | None) -> tuple[str, ...]:
    """What a reader must know of the numbers, in sentences."""
    notes = []
    if metrics:
        word = "higher" if higher_is_better(metrics[0]) else "lower"
        notes.append(f"The verdict is by {metrics[0]}, {word} is better; ± is the 95 % interval over the seeds.")
        method = table[f"{metrics[0]}_method"]
        if table["runs"].eq(1).all():
            notes.append("One run each: there is no interval and no verdict. Repeat with more seeds (three or more).")
        elif method.str.contains("not paired").any():
            notes.append("Where seeds differ or are unknown, runs are not paired, and the difference is Welch's.")
        judged = table[f"{metrics[0]}_verdict"].isin(("better", "worse", "no difference shown")).sum()
        if judged > 2:
            notes.append(f"Each of the {judged} verdicts stands for itself at 95 %; none allows for the others.")
    if table["diverged"].any():
        notes.append(
            "A run counts as diverged if it ended in inf or NaN, or with its loss a tenth above that before training. "
            "In means and differences it has the loss before training; where that is unknown, and for other metrics, "
            "it is left out. A policy whose runs all diverged is worse than one of which none did."
        )
    if target is not None and metrics:
        notes.append(f"Steps to target: the median over the runs until {metrics[0]} reached {target:g}.")
    return tuple(notes)


def _odd_ones(histories: Sequence[History], metrics: Sequence[str], most: int = 5) -> list[str]:
    """What else sets runs apart that are compared: how they ended, and how long they are."""
    above = [m for m in metrics if any(final_values.final(h, m) > final_values.untrained(h, m) for h in histories)]
    notes = [f"Of {', '.join(above)} a run counts at most with what it was before training."] if above else []
    cut = [h for h in histories if h.run.status in ("FAILED", "KILLED") and not final_values.diverged(h)]
    if cut:
        named = [f"{h.run.name} ({h.run.status.lower()} after {len(h):,} steps)" for h in cut[:most]]
        more = f" and {len(cut) - most} more" if len(cut) > most else ""
        notes.append(f"These runs did not end well and count as they are: {', '.join(named)}{more}.")
    lengths = {len(h) for h in histories}
    if len(lengths) > 1:
        notes.append(
            f"The runs have from {min(lengths):,} to {max(lengths):,} steps; what is compared is how each ended."
        )
    return notes


def runs_table(histories: Sequence[History], metric: str | None = None) -> pd.DataFrame:
    """One row per run: policy, differing settings, seed, final value of each metric, clip rate, norms.

    Raises:
        RunError: none of the runs logged `metric`.

    """
    import pandas as pd

    metrics = metric_names(histories, metric)
    rows = []
    for history, values in zip(histories, settings(histories), strict=True):
        norms = final_values.finite_norms(history)
        rows.append(
            {
                "run": history.run.name,
                "policy": final_values.policy_text(history.run),
                **values,
                "seed": final_values.seed_text(history.run),
                "steps": len(history),
                **{name: final_values.final(history, name) for name in metrics},
                "clip_rate": _mean(history.total("clip_rate")),
                "median_grad_norm": _quantile(norms, 0.5),
                "p99_grad_norm": _quantile(norms, 0.99),
                "nonfinite_steps": final_values.nonfinite_steps(history),
                "diverged": final_values.diverged(history, *metrics[:1]),
            }
        )
    return pd.DataFrame(rows)


def _mean(values: Sequence[float] | Floats) -> float:
    finite = np.asarray(values, np.float64)
    finite = finite[np.isfinite(finite)]
    return float(finite.mean()) if len(finite) else NAN


def _spread(values: Sequence[float]) -> float:
    finite = [value for value in values if np.isfinite(value)]
    return float(np.std(finite, ddof=1)) if len(finite) > 1 else NAN


def _quantile(values: Floats, q: float) -> float:
    return float(np.quantile(values, q)) if len(values) else NAN

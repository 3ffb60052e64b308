"""A report as plain data: of one run, or of many with the table that compares them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gradwatch.analysis.comparison import settle
from gradwatch.analysis.final_values import final
from gradwatch.analysis.groups import metric_names
from gradwatch.analysis.kept_steps import compared
from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.suggest import suggest
from gradwatch.analysis.verdict import Winner
from gradwatch.analysis.whatif import caveat, what_if
from gradwatch.errors import RunError
from gradwatch.history import History
from gradwatch.report.downsample import GRID, Heatmap, heatmap
from gradwatch.report.model import RunSummary, summarize

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Report:
    """One run or many. Renderers turn this into text.

    `comparison` is `compare.compare`'s table, None for one run; `winners` and `notes` are what follows from it. Of many
    runs `histories` are without their layers, and `heatmaps` is what is drawn of these.
    """

    title: str
    runs: tuple[RunSummary, ...]
    histories: tuple[History, ...]
    metrics: tuple[str, ...]
    comparison: pd.DataFrame | None
    winners: tuple[Winner, ...] = ()
    notes: tuple[str, ...] = ()
    heatmaps: tuple[Heatmap | None, ...] = ()


@dataclass(frozen=True)
class Condensed:
    """One run of many: its steps, and what a report says and draws of its layers, which are a hundred times as large.

    `history` holds no layers; `summary` has no final values yet, as the runs together say which these are.
    """

    history: History
    summary: RunSummary
    heatmap: Heatmap | None


def condense(history: History) -> Condensed:
    """What a report of many runs needs of one of them."""
    return Condensed(compared(history), summarize(history, ()), heatmap(history, "grad_norm", *GRID))


def build_report(
    histories: Sequence[History],
    metric: str | None = None,
    baseline: str | None = None,
    target: float | None = None,
    rises: bool | None = None,
) -> Report:
    """A report of one run, or one that compares many; the other arguments are those of `compare.compare`.

    Raises:
        RunError: there are no runs, none of them recorded a step (and that is no finding of a single one), none logged
            `metric`, or had the policy `baseline`.

    """
    if len(histories) > 1:
        return build_comparison([condense(history) for history in histories], metric, baseline, target, rises)
    if not any(len(history) or diagnose(history) for history in histories):
        names = ", ".join(history.run.name for history in histories) or "no runs were given"
        raise RunError(f"nothing to report, no steps are recorded: {names}")
    (history,) = histories
    metrics = metric_names(histories, metric)
    run = summarize(history, metrics)
    if len(history):
        found = run.findings
        note, outcomes = caveat(history, found), what_if(history, found)
        run = replace(run, suggestions=suggest(history, found), what_if=outcomes, what_if_note=note)
    return Report(history.run.name, (run,), (history,), tuple(metrics), comparison=None)


def build_comparison(
    runs: Sequence[Condensed],
    metric: str | None = None,
    baseline: str | None = None,
    target: float | None = None,
    rises: bool | None = None,
) -> Report:
    """The report that compares runs; the other arguments are those of `compare.compare`.

    Raises:
        RunError: none of them recorded a step, none logged `metric`, or had the policy `baseline`.

    """
    histories = [run.history for run in runs]
    if not any(map(len, histories)):
        raise RunError(f"nothing to report, no steps are recorded: {', '.join(h.run.name for h in histories)}")
    settled = settle(histories, metric, baseline, target, rises)
    metrics = metric_names(histories, metric)
    return Report(
        title=f"{len(runs)} runs compared",
        runs=tuple(
            replace(run.summary, final={name: final(run.history, name) for name in metrics}) for run in runs
        ),
        histories=tuple(histories),
        metrics=tuple(metrics),
        comparison=settled.table,
        winners=settled.winners,
        notes=settled.notes,
        heatmaps=tuple(run.heatmap for run in runs),
    )  # fmt: skip

"""What the demo leaves behind: a report for each workload, and a first page with their tables and links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradwatch.analysis.final_values import NO_POLICY, diverged
from gradwatch.history import History
from gradwatch.report import Report, build_report, render_html
from gradwatch.report.comparison_charts import colors, sections
from gradwatch.report.comparison_table import Column, columns, conclusion
from gradwatch.report.finding_charts import finding_chart
from gradwatch.report.heatmaps import heatmap_charts
from gradwatch.report.html import Page, render_page
from gradwatch.report.model import RunSummary
from gradwatch.storage.run_reader import read_run
from gradwatch.storage.shared_folder import run_folders

TITLES = {
    "mlp": "MLP on {data}, at a healthy and at a too-high learning rate",
    "rnn": "Character RNN on {data}, at a high learning rate",
}
# What the short tables show; the reports have the rest. Columns that a workload does not have are left out.
SHOWN = ("policy", "lr", "test_accuracy", "test_loss", "val_loss", "val_accuracy", "verdict", "clip rate", "diverged")
MEANT = "Some are meant to be sick: at the MLP's rate of 2 and the RNN's of 5, training comes apart without a clip."
MOST_SICK = 6
COMPARED = 2  # charts of each setting: what decides, and the norms
SMALL = 210  # pixels
SICKEST = "report-sickest.html"


def write_reports(out: Path) -> dict[str, Report]:
    """Write `report-<workload>.html` for each workload in `out/runs`, and `report.html`, which leads to them.

    It shows each comparison's table with its first charts, and of the sickest run what `report-sickest.html` is about.
    """
    histories = [read_run(folder) for folder in run_folders(out / "runs")]
    reports = {}
    for name, title in TITLES.items():
        members = [history for history in histories if history.run.params.get("workload") == name]
        if members:
            report = build_report(members)
            reports[name] = replace(report, title=title.format(data=members[0].run.params["data"]))
            (out / f"report-{name}.html").write_text(render_html(reports[name]), encoding="utf-8")
    page = Page([])
    parts = [_part(name, report, page) for name, report in reports.items()]
    sick = next(iter(sick_runs(reports.values())), None)
    sickest = sick and _sickest(next(h for h in histories if h.run.name == sick.name), page, out / SICKEST)
    shown = list(reports.values())
    body = {"parts": parts, "sickest": sickest, "legend": _legend(shown), "sick": _sick_lines(shown),
            "trainings": sum(len(report.runs) for report in shown)}  # fmt: skip
    (out / "report.html").write_text(render_page("gradwatch demo", "demo.html.j2", page, **body), encoding="utf-8")
    return reports


def short_columns(report: Report) -> list[Column]:
    """The columns of the comparison that fit on a screen."""
    assert report.comparison is not None
    return [column for column in columns(report.comparison) if column.header in SHOWN]


def said(reports: Iterable[Report]) -> list[str]:
    """What ± is, and which runs diverged or have an error, as some are meant to."""
    reports = list(reports)
    sick = _sick_lines(reports)
    return [*_legend(reports), *[""][: len(sick)], *sick]


def _legend(reports: Sequence[Report]) -> list[str]:
    """How to read the tables."""
    many = any(report.histories[1:] and _seeds(report) > 1 for report in reports)
    lost = "A run that diverged counts with its loss before training; of what else it logged, nothing counts."
    return ["± is the 95 % interval over the seeds."] * many + [lost] * bool(sick_runs(reports))


def _sick_lines(reports: Sequence[Report]) -> list[str]:
    sick, runs = sick_runs(reports), [run for report in reports for run in report.runs]
    erring = [run for run in runs if run not in sick and any(f.severity == "error" for f in run.findings)]
    lines = [f"{len(sick)} of {len(runs)} runs diverged. {MEANT}", *_names(sick)] if sick else []
    if erring:
        lines += [f"{len(erring)} of {len(runs)} have an error and did not diverge.", *_names(erring)]
    return lines


def _names(runs: Sequence[RunSummary]) -> list[str]:
    """The first of these runs with what is said of them, and how many more there are."""
    more = [f"  and {len(runs) - MOST_SICK} more"] * (len(runs) > MOST_SICK)
    return [*(f"  {run.name}: {run.verdict}" for run in runs[:MOST_SICK]), *more]


def sick_runs(reports: Iterable[Report]) -> list[RunSummary]:
    """The runs that diverged, those that were never clipped first: there the disease is pure."""
    found = [
        run
        for report in reports
        for run, history in zip(report.runs, report.histories, strict=True)
        if any(diverged(history, name) for name in report.metrics)
    ]
    return sorted(found, key=lambda run: run.policy != NO_POLICY)


def _seeds(report: Report) -> int:
    assert report.comparison is not None
    return int(report.comparison["runs"].max())


def _part(name: str, report: Report, page: Page) -> dict[str, Any]:
    """What the page says of a comparison: its short table, the winner, and the first charts of each setting."""
    shown, table = short_columns(report), report.comparison
    assert table is not None
    return {
        "title": report.title,
        "page": f"report-{name}.html",
        "headers": [column.header for column in shown],
        "texts": {i for i, column in enumerate(shown) if column.keys is None},
        "rows": list(zip(*(column.cells for column in shown), strict=True)),
        "shades": colors(report.histories, table),
        "winners": [conclusion(one) for one in report.winners],
        "sections": [
            {"title": section.title, "charts": page.add([replace(chart, height=SMALL, note="") for chart in charts])}
            for section in sections(report.histories, report.metrics[:1], report.heatmaps, table)
            if (charts := section.charts[:COMPARED])
        ],
    }


def _sickest(history: History, page: Page, path: Path) -> dict[str, Any]:
    """What the page says of the sickest run: verdict, worst finding, layers; `path` has the rest."""
    report = build_report([history])
    path.write_text(render_html(report), encoding="utf-8")
    (run,) = report.runs
    found = [chart for finding in run.findings[:1] if (chart := finding_chart(history, finding))]
    charts = [*found, *heatmap_charts(history, run)[0][:1]]
    return {"name": run.name, "verdict": run.verdict, "page": path.name, "charts": page.add(charts)}

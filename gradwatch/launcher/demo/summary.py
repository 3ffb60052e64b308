"""What the demo leaves behind: a report for each workload, and a first page with their tables and links."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from html import escape
from pathlib import Path

from gradwatch.analysis.final_values import NO_POLICY, diverged
from gradwatch.report import Report, build_report, render_html
from gradwatch.report.comparison_table import Column, columns, conclusion
from gradwatch.report.model import RunSummary
from gradwatch.storage.folder import read_run
from gradwatch.storage.shared_folder import run_folders

TITLES = {
    "mlp": "MLP on {data}, at a healthy and at a too-high learning rate",
    "rnn": "Character RNN on {data}, at a high learning rate",
}
# What the short tables show; the reports have the rest. Columns that a workload does not have are left out.
SHOWN = ("policy", "lr", "test_accuracy", "test_loss", "val_loss", "val_accuracy", "verdict", "clip rate", "diverged")
MEANT = "Some are meant to be sick: at the MLP's rate of 2 and the RNN's of 5, training comes apart without a clip."
MOST_SICK = 6
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>gradwatch demo</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1c2430 }}
div {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ padding: .25rem 1.5rem .25rem 0; text-align: right; border-bottom: 1px solid #e3e7ec; white-space: nowrap }}
th:first-child, td:first-child {{ text-align: left }}
</style>
</head>
<body>
<h1>gradwatch demo</h1>
{body}
</body>
</html>
"""


def write_reports(out: Path) -> dict[str, Report]:
    """Write `report-<workload>.html` for each workload in `out/runs`, and `report.html`, which leads to them."""
    histories = [read_run(folder) for folder in run_folders(out / "runs")]
    reports = {}
    for name, title in TITLES.items():
        members = [history for history in histories if history.run.params.get("workload") == name]
        if members:
            report = build_report(members)
            reports[name] = replace(report, title=title.format(data=members[0].run.params["data"]))
            (out / f"report-{name}.html").write_text(render_html(reports[name]), encoding="utf-8")
    parts = [
        *(_part(n, r) for n, r in reports.items()),
        *(f"<p>{escape(line)}</p>" for line in said(reports.values()) if line),
    ]
    (out / "report.html").write_text(PAGE.format(body="\n".join(parts)), "utf-8")
    return reports


def short_columns(report: Report) -> list[Column]:
    """The columns of the comparison that fit on a screen."""
    assert report.comparison is not None
    return [column for column in columns(report.comparison) if column.header in SHOWN]


def said(reports: Iterable[Report]) -> list[str]:
    """What ± is, and which runs diverged, as some are meant to."""
    reports = list(reports)
    runs = [run for report in reports for run in report.runs]
    sick = sick_runs(reports)
    lines = (
        ["± is the 95 % interval over the seeds."] if any(r.histories[1:] and _seeds(r) > 1 for r in reports) else []
    )
    if sick:
        lines += [
            "A run that diverged counts with its loss before training; of what else it logged, nothing counts.",
            "",
        ]
        lines += [f"{len(sick)} of {len(runs)} runs diverged. {MEANT}"]
        lines += [f"  {run.name}: {run.verdict}" for run in sick[:MOST_SICK]]
        lines += [f"  and {len(sick) - MOST_SICK} more"] if len(sick) > MOST_SICK else []
    return lines


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


def _part(name: str, report: Report) -> str:
    shown = short_columns(report)
    rows = zip(*(column.cells for column in shown), strict=True)
    lines = [_line("th", [column.header for column in shown]), *(_line("td", row) for row in rows)]
    winners = "".join(f"<p>{escape(conclusion(one))}</p>\n" for one in report.winners)
    return (
        f"<h2>{escape(report.title)}</h2>\n<div><table>\n{''.join(lines)}</table></div>\n{winners}"
        f'<p><a href="report-{name}.html">The whole report: curves, norms, clip rates, every run</a></p>'
    )


def _line(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>\n"

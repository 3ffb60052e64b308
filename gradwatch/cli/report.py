"""`gradwatch report`: runs in, one page (or Markdown, JSON, CSV) out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradwatch.cli.compare import compared_by

if TYPE_CHECKING:
    from gradwatch.report.model import RunSummary

FORMATS = ("html", "md", "json", "csv")
MOST = 20  # runs whose verdicts are printed


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    "--out",
    "output",
    metavar="FILE",
    help="Where to write; - is standard output. [default: report.FORMAT]",
)
@click.option("--format", "kind", type=click.Choice(FORMATS), default="html", show_default=True, help="What to write.")
@compared_by
def report(
    runs: tuple[str, ...],
    output: str | None,
    kind: str,
    metric: str | None,
    baseline: str | None,
    target: float | None,
    rises: bool | None,
) -> None:
    """Write a report of one run, or one that compares many.

    The HTML page holds everything it needs: mail it, archive it, or open it in MLflow's artifact tab.

    \b
    Example:
      gradwatch report latest
      gradwatch report experiment:mnist --metric val_accuracy -o mnist.html
      gradwatch report gradwatch-runs/* --format md -o -
    """  # noqa: D301  (click reads the backspace)
    from gradwatch.errors import RunError
    from gradwatch.open_run import open_report
    from gradwatch.report import render_html
    from gradwatch.report.comparison_table import conclusion
    from gradwatch.report.terminal import print_text
    from gradwatch.report.text import render_csv, render_json, render_markdown

    render = {"html": render_html, "md": render_markdown, "json": render_json, "csv": render_csv}[kind]
    report = open_report(runs, metric, baseline, target, rises)
    text = render(report)
    if output == "-":
        click.echo(text, nl=False)
        return
    path = Path(output or f"report.{kind}")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}; pass -o a file you can write") from error
    click.echo(f"Report: {path.resolve()}")
    print_text("\n".join(map(conclusion, report.winners)) or _verdicts(report.runs))


def _verdicts(runs: Sequence[RunSummary]) -> str:
    """That of a run; of several how many have no findings, and what the others have."""
    from gradwatch.analysis.rules import has_no_findings
    from gradwatch.report.wording import verdict_text

    if len(runs) == 1:
        return f"Verdict: {verdict_text(runs[0])}"
    sick = [f"{run.name}: {run.verdict}" for run in runs if not has_no_findings(run.verdict)]
    more = [f"and {len(sick) - MOST} more"] if len(sick) > MOST else []
    return "\n".join([f"{len(runs) - len(sick)} of {len(runs)} runs have no findings.", *sick[:MOST], *more])

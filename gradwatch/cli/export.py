"""`gradwatch export`: a run for other tools."""

from __future__ import annotations

from pathlib import Path

import click

TARGETS = ("tensorboard", "csv", "parquet", "wandb", "trackio")


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--to", "target", type=click.Choice(TARGETS), required=True, help="What to export it to.")
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), default="gradwatch-export", show_default=True,
              help="The folder that gets it.")  # fmt: skip
def export(run: str, target: str, out: Path) -> None:
    """Export one run: its tables as files, or its curves to another tracker, under the keys that MLflow gets.

    \b
    Example:
      gradwatch export latest --to tensorboard
      gradwatch export gradwatch-runs/20260131-120000-mlp --to csv --out tables
    """  # noqa: D301  (click reads the backspace)
    from gradwatch.open_run import open_parts
    from gradwatch.report.model import reduced_text
    from gradwatch.report.terminal import print_text
    from gradwatch.sanitize import terminal
    from gradwatch.tracking.export.run_export import RunExport, export_run

    found = RunExport(*open_parts(run))
    for line in export_run(found, target, out):
        print_text(terminal(line))
    for problem in filter(None, [*found.whole.problems, reduced_text(found.whole)]):
        click.echo(terminal(f"incomplete: {problem}"), err=True)

"""`gradwatch export`: a run for other tools."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

TARGETS = ("tensorboard", "csv", "parquet", "wandb", "trackio")


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--to", "target", type=click.Choice(TARGETS), required=True, help="What to export it to.")
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), default="gradwatch-export", show_default=True,
              help="The folder that gets it.")  # fmt: skip
@click.option("--follow", "following", is_flag=True,
              help="Keep an event file in the run's folder up to date until its end.")  # fmt: skip
def export(run: str, target: str, out: Path, following: bool) -> None:
    """Export one run: its tables as files, or its curves to another tracker, under the keys that MLflow gets.

    \b
    Example:
      gradwatch export latest --to tensorboard
      gradwatch export gradwatch-runs/20260131-120000-mlp --to csv --out tables
      gradwatch export latest --to tensorboard --follow
    """  # noqa: D301  (click reads the backspace)
    if following:
        _follow(run, target)
        return
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


def _follow(run: str, target: str) -> None:
    """Keep the event files of the run, one for each part, up to date: what `log="tensorboard"` starts."""
    from gradwatch.cli.options import log_to_stdout
    from gradwatch.errors import RunError, require
    from gradwatch.open_run import folder_to_follow
    from gradwatch.storage.shared_folder import part_folders
    from gradwatch.tracking.export.live_tensorboard import follow

    if target != "tensorboard":
        raise RunError(f"--follow writes for TensorBoard: wanted --to tensorboard, and not {target}")
    require(target, target)
    log_to_stdout()
    parts = part_folders(folder_to_follow(run))
    with ThreadPoolExecutor(len(parts)) as pool:
        for written in pool.map(follow, parts):
            click.echo(f"tensorboard --logdir {written}")

"""What `gradwatch sweep` shows: the trainings at work, a line for each that ended, and the comparison."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from gradwatch.errors import RunError
from gradwatch.launcher import sweep_summary
from gradwatch.launcher.sweep import OUTPUT, Record
from gradwatch.report.fitted_table import Lines
from gradwatch.report.terminal import print_shown, print_text, show_comparison
from gradwatch.sanitize import public_error
from gradwatch.tracking.settings import MLFLOW_SETTINGS
from gradwatch.tracking.views import address

if TYPE_CHECKING:
    from rich.console import Console

    from gradwatch.launcher.cures import Trial
    from gradwatch.launcher.pool import Moment
    from gradwatch.launcher.race import Race
    from gradwatch.launcher.search import Search
    from gradwatch.launcher.sweep import Job, Sweep


def show_training(
    total: int, done: int, todo: Sequence[Job], going: Generator[Moment, None, None], console: Console
) -> None:
    """What a pool says of `todo`, which may grow meanwhile: a line for each job that is at work, its steps and its
    loss, and one for its end. `done` of the `total` were trained before.
    """
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    lines: dict[int, TaskID] = {}
    progress = Progress(*columns, console=console, transient=True)
    with closing(going), progress.live:  # not Progress itself, which ends a refusal with an empty line as well
        whole = progress.add_task("sweep", total=total, completed=done)
        for working, ended in going:
            for number in sorted(working):
                if number not in lines:
                    lines[number] = progress.add_task("", total=None)
                run = todo[number].run()
                steps, loss = sweep_summary.look(run) if run is not None else (0, float("nan"))
                known = "" if math.isnan(loss) else f", loss {loss:.4g}"
                progress.update(lines[number], completed=steps, description=f"{todo[number].label}{known}")
            for number in ended:
                if number in lines:
                    progress.remove_task(lines.pop(number))
                progress.advance(whole)
                record = Record.read(todo[number])
                if record is None:
                    continue
                if record.over and _watches_itself(todo[number]):
                    raise RunError(
                        f"{todo[number].label} ended well and recorded elsewhere: the script calls watch() itself, and "
                        "what a sweep asks for does not reach it. Take watch() out of the script, or give it to the "
                        f"sweep as it was before; {todo[number].folder / OUTPUT} holds what it printed"
                    )
                progress.console.print(Lines([sweep_summary.said_of(todo[number], record)], hang=2), crop=False)
    if not console.is_interactive:
        console.print()


def _watches_itself(job: Job) -> bool:
    """Whether a Watch of the script's own recorded it: nothing is in the job's folder, and one said where."""
    if job.run() is not None:
        return False
    try:
        return "gradwatch: watching " in (job.folder / OUTPUT).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def show_settled(
    asked: Sweep, jobs: Sequence[Job], options: dict[str, Any], console: Console, tried: Trial | Search | Race | None
) -> None:
    """The comparison: in the terminal, as files in the sweep's folder, and in MLflow."""
    by = (options["metric"], options["baseline"], options["target"], options["rises"])
    found = sweep_summary.result(jobs, *by)
    if found is None:
        raise RunError(f"no run ended well: {asked.home} holds what each of them printed (output.log)")
    if tried is not None:
        found = replace(found, settled=tried.outcome(found.settled, [run.summary for run in found.runs]))
    paths = sweep_summary.write(found, asked.home, *by)
    print_shown(show_comparison(found.settled))
    print_text("\n".join(found.left_out))
    click.echo(f"\n{'Report' if paths[0].suffix == '.html' else 'Table'}: {paths[0]}")
    if "mlflow" not in (options["log"] or "mlflow").split(",") or importlib.util.find_spec("mlflow") is None:
        return
    for name, value in MLFLOW_SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        with console.status("delivering to MLflow"):
            sweep_summary.wait_for_couriers(jobs)
            url = sweep_summary.publish(asked, jobs, found, paths)
        click.echo(address(url))
    except Exception as error:  # a server that is down: the files are there, and the same command again delivers
        click.echo(f"The summary is not in MLflow ({public_error(error)}).", err=True)

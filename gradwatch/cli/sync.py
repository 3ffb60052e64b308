"""`gradwatch sync`: deliver to MLflow what is not there yet."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradwatch.cli.options import log_to_stdout
from gradwatch.errors import RunError, require
from gradwatch.sanitize import terminal
from gradwatch.tracking.settings import MLFLOW_SETTINGS

if TYPE_CHECKING:
    from gradwatch.tracking.courier import DeliveryState

RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"


@click.command()
@click.argument("folder", default="gradwatch-runs", type=click.Path(path_type=Path))
@click.option("--all", "everything", is_flag=True, help="Of a directory, also the runs recorded with log=None.")
@click.option("--follow", "following", is_flag=True, help="Stay until the run has ended (a directory: until Ctrl-C).")
@click.option("--tracking-uri", metavar="URI", help="Deliver to this store instead of the one the run names.")
def sync(folder: Path, everything: bool, following: bool, tracking_uri: str | None) -> None:
    """Deliver to MLflow what is not there yet, exactly once: FOLDER is a run folder, or a directory of them.

    The training's own courier does this while it runs; sync finishes what a dead courier or a server that was away
    left behind, and may run beside one. One line for each run, one link; exit code 1 if something stays undelivered.

    Example: gradwatch sync gradwatch-runs
    """
    require("mlflow", "mlflow")
    # whatever is set for the user's own calls: a request that is repeated blindly makes two runs of one
    os.environ[RETRIES] = MLFLOW_SETTINGS[RETRIES]
    from gradwatch.tracking.sync import deliverable, follow
    from gradwatch.tracking.views import address

    if not following and not folder.exists():
        raise RunError(f"{folder}: there is no such file or folder")
    if not following and not deliverable(folder, everything):
        raise RunError(
            f"{folder} is not a run folder and holds none that is meant for MLflow; wanted a folder that "
            'gradwatch.watch(..., log="mlflow") wrote, or --all for those of log=None'
        )
    if following:
        log_to_stdout()
        outcomes = follow(folder, tracking_uri, everything=everything)
    else:
        outcomes = [_shown(outcome) for outcome in _progress(folder, everything, tracking_uri)]
        for url in dict.fromkeys(one.url for one in outcomes if one.url and not one.error):
            click.echo(terminal(address(url)))
    if not all(outcome.done or (outcome.live and not outcome.error) for outcome in outcomes):
        raise SystemExit(1)


def _progress(folder: Path, everything: bool, tracking_uri: str | None) -> Iterator[DeliveryState]:
    """Deliver; on a terminal, with a bar that moves with the runs and says the step."""
    from rich.console import Console
    from rich.progress import Progress

    from gradwatch.tracking.sync import deliverable
    from gradwatch.tracking.sync import sync as deliver

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("delivering", total=len(deliverable(folder, everything)))

        def moved(run: Path, step: int) -> None:
            bar.update(task, description=f"{run.name}: {step:,} steps")

        for outcome in deliver(folder, tracking_uri, everything=everything, moved=moved):
            bar.advance(task)
            yield outcome


def _shown(outcome: DeliveryState) -> DeliveryState:
    how = "delivered" if outcome.done else f"NOT delivered: {outcome.error}" if outcome.error else "delivered so far"
    click.echo(terminal(f"{outcome.folder}: {how}"))
    return outcome

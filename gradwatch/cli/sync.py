"""`gradwatch sync`: deliver to MLflow what is not there yet."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradwatch.errors import RunError
from gradwatch.untrusted import terminal

if TYPE_CHECKING:
    from gradwatch.courier import Outcome


@click.command()
@click.argument("folder", default="gradwatch-runs", type=click.Path(path_type=Path))
@click.option("--follow", "following", is_flag=True, help="Stay until the run has ended (a directory: until Ctrl-C).")
@click.option("--tracking-uri", metavar="URI", help="Deliver to this store instead of the one the run names.")
def sync(folder: Path, following: bool, tracking_uri: str | None) -> None:
    """Deliver to MLflow what is not there yet, exactly once: FOLDER is a run folder, or a directory of them.

    The training's own courier does this while it runs; sync finishes what a dead courier or a server that was away
    left behind. One line and one link for each run; exit code 1 if something stays undelivered.

    Example: gradwatch sync gradwatch-runs
    """
    if importlib.util.find_spec("mlflow") is None:
        raise RunError("mlflow is not installed: pip install 'gradwatch[mlflow]'")
    from gradwatch.dispatch import deliverable, follow

    if not following and not deliverable(folder):
        raise RunError(
            f"{folder} is not a run folder and holds none that is meant for MLflow; wanted a folder that "
            'gradwatch.watch(..., log="mlflow") wrote'
        )
    if following:
        logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(message)s", level=logging.WARNING)
        logging.getLogger("gradwatch").setLevel(logging.INFO)
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # a server that is away is one line a pass, not three
        outcomes = follow(folder, tracking_uri)
    else:
        outcomes = [_shown(outcome) for outcome in _progress(folder, tracking_uri)]
    if not all(outcome.done or (outcome.live and not outcome.error) for outcome in outcomes):
        raise SystemExit(1)


def _progress(folder: Path, tracking_uri: str | None) -> Iterator[Outcome]:
    from rich.console import Console
    from rich.progress import track

    from gradwatch.dispatch import deliverable
    from gradwatch.dispatch import sync as deliver

    total = len(deliverable(folder))
    yield from track(
        deliver(folder, tracking_uri),
        "delivering",
        total,
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def _shown(outcome: Outcome) -> Outcome:
    how = "delivered" if outcome.done else f"NOT delivered: {outcome.error}" if outcome.error else "delivered so far"
    where = f", {outcome.url}" if outcome.url and not outcome.error else ""
    click.echo(terminal(f"{outcome.folder}: {how}{where}"))
    return outcome

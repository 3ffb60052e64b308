"""Sends couriers: one for each run folder, in one pass (`sync`) or for as long as the runs go on (`follow`)."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gradwatch.conclusion import is_monitored, rehearse
from gradwatch.courier import Courier, Outcome
from gradwatch.delivery import trainer_is_gone
from gradwatch.errors import RunError
from gradwatch.stores import run_folders
from gradwatch.stores.files import MANIFEST, read_manifest
from gradwatch.stores.parts import deliverable_parts, is_run, is_shared, meant_for_mlflow
from gradwatch.uri import public_text

log = logging.getLogger("gradwatch")

POLL_SECONDS = 2.0
LONGEST_PAUSE = 60.0
GIVE_UP_SECONDS = 3600.0  # after the last run ended, with a server that stays away: `gradwatch sync` finishes later


def sync(path: Path, tracking_uri: str | None = None, wait: float = 60.0) -> Iterator[Outcome]:
    """Deliver what is missing of the run in `path`, or of every run below it: one pass, one outcome each."""
    for folder in deliverable(path):
        yield _attempt(Courier(folder, tracking_uri), wait)


def follow(
    path: Path, tracking_uri: str | None = None, until: Callable[[], bool] | None = None, poll: float = POLL_SECONDS
) -> list[Outcome]:
    """Deliver the run in `path`, or all runs below it, while they go on, until they have ended and all is in MLflow.

    A directory is followed for new runs until `until()` is true (for ever without it). A store that is away is tried
    again with growing pauses; an hour after the last run ended, what is left stays for `gradwatch sync`.
    """
    single = is_run(path)
    couriers: dict[Path, Courier] = {}
    pause, idle_since = poll, time.monotonic()
    while True:
        complete = single or (until is not None and until())
        for folder in deliverable(path):
            couriers.setdefault(folder, Courier(folder, tracking_uri))
        manifests = {folder / MANIFEST: _changed(folder / MANIFEST) for folder in couriers}
        outcomes = [_attempt(courier) for courier in couriers.values()]
        if complete and all(o.done or (o.lasting and not o.live) for o in outcomes):
            return outcomes
        failed = [o for o in outcomes if o.error]
        for outcome in failed:
            log.warning("%s: not delivered yet: %s", outcome.folder, outcome.error)
        if any(o.live for o in outcomes) or not complete:
            idle_since = time.monotonic()
        elif time.monotonic() - idle_since > GIVE_UP_SECONDS:
            log.error("giving up; `gradwatch sync %s` delivers the rest", path)
            return outcomes
        if any(o.live for o in outcomes) and not is_monitored():
            rehearse()
        pause = min(2 * pause, LONGEST_PAUSE) if failed else poll
        _rest(pause, {} if failed else manifests)


def _rest(seconds: float, manifests: Mapping[Path, int]) -> None:
    """Sleep, but wake up when one of these was written at another time: whoever closes a run is waiting."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and all(_changed(path) == then for path, then in manifests.items()):
        time.sleep(min(0.1, seconds))


def _changed(path: Path) -> int:
    """When the file was last written, in nanoseconds; 0 while it cannot be seen."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def deliverable(path: Path) -> list[Path]:
    """The run in `path`, or the runs below it that are meant for MLflow (`log=None` keeps a run in its files).

    Of a run of several parts, its parts.
    """
    folders = [part for run in run_folders(path) for part in (deliverable_parts(run) if is_shared(run) else [run])]
    return folders if is_run(path) else [folder for folder in folders if meant_for_mlflow(folder)]


def _attempt(courier: Courier, wait: float = 0.0) -> Outcome:
    try:
        return courier.deliver(wait)
    except Exception as error:  # a server that is down, a locked database: the next pass tries again
        text = public_text(" ".join(str(error).split()))[:300] or type(error).__name__
        return Outcome(
            courier.folder,
            courier.cursor.url,
            live=_is_live(courier.folder),
            error=text,
            lasting=isinstance(error, RunError),
        )


def _is_live(folder: Path) -> bool:
    with contextlib.suppress(RunError):
        run = read_manifest(folder)
        return run.status == "RUNNING" and not trainer_is_gone(run)
    return False

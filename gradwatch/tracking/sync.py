"""Sends couriers: one for each run folder, in one pass (`sync`) or for as long as the runs go on (`follow`)."""

from __future__ import annotations

import contextlib
import logging
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from gradwatch.errors import AccessError, RunError
from gradwatch.sanitize import cut, public_text
from gradwatch.storage.folder import MANIFEST, read_manifest
from gradwatch.storage.run_state import run_state
from gradwatch.storage.shared_folder import deliverable_parts, is_run, meant_for_mlflow, run_folders
from gradwatch.tracking.backoff import Backoff
from gradwatch.tracking.courier import BUSY, Courier, DeliveryState
from gradwatch.tracking.summary import is_monitored, rehearse

log = logging.getLogger("gradwatch")

POLL_SECONDS = 2.0
FIRST_PAUSE, TRIES = 1.0, 3
LONGEST_PAUSE = 60.0
GIVE_UP_SECONDS = 3600.0  # after the last run ended, with a server that stays away: `gradwatch sync` finishes later
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # what differs between two failures that are the same


def sync(
    path: Path,
    tracking_uri: str | None = None,
    wait: float = 60.0,
    everything: bool = False,
    moved: Callable[[Path, int], None] = lambda *_: None,
) -> Iterator[DeliveryState]:
    """Deliver what is missing of the run in `path`, or of every run below it: one outcome each.

    A store that fails is tried three times in a row, and again whenever something got through. `everything` takes runs
    that stayed in their files (`log=None`) along; `moved` is told how many steps of a folder are delivered.
    """
    for folder in deliverable(path, everything):
        courier, failures = Courier(folder, tracking_uri, partial(moved, folder)), 0
        while True:
            before = courier.cursor.mark
            outcome = _attempt(courier, wait)
            failures = failures + 1 if courier.cursor.mark == before else 1
            if failures >= TRIES or not outcome.error or outcome.lasting or outcome.slow or outcome.error == BUSY:
                break
            time.sleep(FIRST_PAUSE * failures)
        yield outcome


def follow(
    path: Path,
    tracking_uri: str | None = None,
    poll: float = POLL_SECONDS,
    everything: bool = False,
) -> list[DeliveryState]:
    """Deliver the run in `path`, or all runs below it, while they go on, until they have ended and all is in MLflow.

    A directory is followed for new runs until it is gone. A store that is away is tried again with growing pauses; an
    hour after the last run ended, what is left stays for `gradwatch sync`.

    Raises:
        RunError: there is no folder `path`.
    """
    if not path.is_dir():
        raise RunError(f"there is no folder {path}: wanted that of a run, or one that runs are recorded to")
    single = False
    couriers: dict[Path, RetryingCourier] = {}
    idle_since = time.monotonic()
    while True:
        single = single or is_run(path)  # a run's folder may have been removed, and be about to be made anew
        complete = single or not path.is_dir()
        for folder in deliverable(path, everything):
            couriers.setdefault(folder, RetryingCourier(Courier(folder, tracking_uri), poll))
        outcomes = [one.deliver_if_due() for one in couriers.values()]
        if complete and all(o.done or (o.lasting and not o.live) for o in outcomes):
            return outcomes
        if any(o.live for o in outcomes) or not complete:
            idle_since = time.monotonic()
        elif time.monotonic() - idle_since > GIVE_UP_SECONDS:
            log.error("giving up; `gradwatch sync %s` delivers the rest", path)
            return outcomes
        if any(o.live for o in outcomes) and not is_monitored():
            rehearse()
        _sleep(poll, couriers.values())


class RetryingCourier:
    """The passes of one courier, with pauses that grow while nothing gets through."""

    def __init__(self, courier: Courier, poll: float) -> None:
        self.courier = courier
        self.manifest = courier.folder / MANIFEST
        self.outcome = DeliveryState(courier.folder)
        self.backoff, self.due, self.written = Backoff(poll, LONGEST_PAUSE), 0.0, 0
        self.logged = ""

    @property
    def woken(self) -> bool:
        """Whether the manifest was written since the last pass: whoever closes a run is waiting."""
        return _changed(self.manifest) != self.written

    def deliver_if_due(self) -> DeliveryState:
        """A pass, if it is time for one; how the run stands."""
        if time.monotonic() < self.due and not self.woken:
            if self.outcome.live:
                self.courier.diagnosis.update()  # the training is told of it, whether MLflow can be or not
            return self.outcome
        self.written, before = _changed(self.manifest), self.courier.cursor.mark
        self.outcome = _attempt(self.courier)
        failed, moved = bool(self.outcome.error), self.courier.cursor.mark != before
        pause = self.backoff.after(success=moved or not failed)
        if self.outcome.slow:
            pause = self.backoff.pause = LONGEST_PAUSE
        # many couriers whose server comes back do not all come at once
        self.due = time.monotonic() + (pause * random.uniform(0.7, 1.0) if failed else pause)
        self._log_change()
        return self.outcome

    def _log_change(self) -> None:
        """One line for each change: a server that is away for a night is not a thousand lines."""
        error = self.outcome.error or ""
        if error != self.logged:
            if error:
                how = "not delivered" if self.outcome.lasting else "not delivered yet, tried again"
                log.warning("%s: %s: %s", self.courier.folder, how, error)
            else:
                log.info("%s: MLflow answers again", self.courier.folder)
            self.logged = error


def _sleep(seconds: float, couriers: Iterable[RetryingCourier]) -> None:
    """Sleep, but wake up when a manifest is written."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not any(one.woken for one in couriers):
        time.sleep(min(0.1, seconds))


def _changed(path: Path) -> int:
    """When the file was last written, in nanoseconds; 0 while it cannot be seen."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def deliverable(path: Path, everything: bool = False) -> list[Path]:
    """The run in `path`, or the runs below it that are meant for MLflow (`log=None` keeps a run in its files).

    `everything` is also those that are not. Of a run of several parts, its parts.
    """
    folders = [part for run in run_folders(path) for part in deliverable_parts(run)]
    return folders if everything or is_run(path) else [folder for folder in folders if meant_for_mlflow(folder)]


def _attempt(courier: Courier, wait: float = 0.0) -> DeliveryState:
    try:
        return courier.deliver(wait)
    except Exception as error:  # a server that is down, a locked database: the next pass tries again
        refused = isinstance(error, AccessError)
        return DeliveryState(
            courier.folder,
            courier.cursor.url,
            live=_is_live(courier.folder),
            error=_in_words(error),
            lasting=isinstance(error, (RunError, ImportError)) and not refused,
            slow=refused,
        )


def _in_words(error: Exception) -> str:
    """One line; of a request that failed where to and why, without what the libraries in between say of it."""
    text = _ADDRESS.sub("", " ".join(str(error).split()))
    failed = re.match(r"API request to (https?://[^/ ]+)\S* failed with .*?(?:Caused by (.*))?$", text)
    if failed:
        text = f"{failed[1]} does not answer ({(failed[2] or text).rstrip(')')})"
    if isinstance(error, ImportError):
        text += ": pip install 'gradwatch[mlflow]' into the Python that delivers"
    return cut(public_text(text)) or type(error).__name__


def _is_live(folder: Path) -> bool:
    with contextlib.suppress(RunError):
        return not run_state(read_manifest(folder)).over
    return False

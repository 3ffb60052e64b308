"""The monitor: keeps findings, report and description of every watched run on a tracking server up to date.

It reads what the couriers uploaded and makes the same summary as they do (`summary`), so that the machines that
train need do no more than record. A tag on each run says what its summary was made from: work that is done is not
done again, by this monitor or another, and to do it twice at once changes nothing.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwatch._version import __version__
from gradwatch.errors import RunError
from gradwatch.history import History
from gradwatch.sanitize import public_error, public_uri
from gradwatch.storage.downsample import MAX_VALUES
from gradwatch.storage.folder import ALL_TABLES, last_part, list_parts
from gradwatch.storage.shared_folder import part_folders, read_joint_manifest, read_whole
from gradwatch.tracking.artifact_places import UnfitError, runs_of_strangers
from gradwatch.tracking.backoff import Backoff
from gradwatch.tracking.health import Health
from gradwatch.tracking.live_findings import LIVE_VALUES, PAUSES, current
from gradwatch.tracking.summary import Summary, log_summary, summarize
from gradwatch.tracking.tags import Tag

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

    from gradwatch.tracking.alerts import Alerts

log = logging.getLogger("gradwatch")

LONGEST_PAUSE = 60.0
MOST_FAILURES = 3  # runs in a row that the server refuses to serve: then the pass is given up


class CorruptRunError(Exception):
    """What was uploaded of a run cannot be read or judged."""


class Monitor:
    """Brings the runs of one tracking server up to date, pass by pass. `alerts` are sent for their errors."""

    def __init__(
        self, tracking_uri: str, experiments: Sequence[str] = (), every: float = 30.0, alerts: Alerts | None = None
    ) -> None:
        self.uri, self.experiments, self.every, self.alerts = tracking_uri, experiments, every, alerts
        self.health = Health(every)
        self.client: MlflowClient | None = None
        self._away = ""  # why the last pass failed
        self.missing = list(experiments)  # those that were not there yet
        self._failed: dict[str, str] = {}  # run id -> why the server would not serve it
        self._due: dict[str, float] = {}  # run id -> when a run that goes on may be judged again

    def follow(self) -> None:
        """Pass after pass, for ever. While the server is away the pauses grow to a minute."""
        backoff = Backoff(self.every, max(self.every, LONGEST_PAUSE))
        backoff.pause = min(self.every, 1.0)  # a server that is started together with the monitor is soon there
        while True:
            time.sleep(backoff.after(success=self.run_once()))

    def run_once(self) -> bool:
        """One pass. False when the server could not be asked; it is logged when that changes."""
        started = time.monotonic()
        try:
            with runs_of_strangers():
                self._run_once()
        except Exception as error:  # down, overloaded, restarting, a login that ran out: it may pass
            self.health.errors += 1
            if not self._away:
                log.warning(
                    "%s does not answer: %s; a later pass tries again", public_uri(self.uri), public_error(error)
                )
            self._away = public_error(error)
            return False
        if self._away:
            log.info("%s answers again", public_uri(self.uri))
        self._away = ""
        self.health.passes += 1
        self.health.succeeded, self.health.alive = time.time(), time.monotonic()
        self.health.pass_seconds = time.monotonic() - started
        return True

    def _run_once(self) -> None:
        from gradwatch.tracking import client as store
        from gradwatch.tracking import reader

        self.client = self.client or store.connect(self.uri)
        self._look_for_experiments()
        runs = list(reader.find_watched(self.client, self.experiments))
        self.health.seen = len(runs)
        row = 0
        for run in runs:
            try:
                self._update(run)
                if self.alerts:
                    self.alerts.send_new(self.client, run, self.health)
                self._failed.pop(run.info.run_id, None)
                self.health.alive, row = time.monotonic(), 0
            except Exception as error:
                self.health.errors += 1
                if self._failed.get(run.info.run_id) != public_error(error):
                    log.warning("run %s: not up to date: %s", run.info.run_id, public_error(error))
                self._failed[run.info.run_id] = public_error(error)
                row += 1
                if row >= MOST_FAILURES:
                    raise
        known = {run.info.run_id for run in runs}
        for memory in (self._failed, self._due):
            for run_id in memory.keys() - known:
                del memory[run_id]

    def _look_for_experiments(self) -> None:
        """Say once which of the named experiments are not there: a name may be wrong, or its first run yet to come."""
        assert self.client is not None
        missing = [name for name in self.missing if self.client.get_experiment_by_name(name) is None]
        if missing and not self.health.passes:
            log.warning("%s has no experiment %s yet", public_uri(self.uri), ", ".join(map(repr, missing)))
        self.missing = missing

    # ------------------------------------------------------------------------------------------------------- one run

    def _update(self, run: Any) -> None:
        """Bring one run up to date, if it changed since its summary was made."""
        from gradwatch.tracking import client as store
        from gradwatch.tracking import reader
        from gradwatch.tracking.refusals import clear_errors

        assert self.client is not None
        run_id, tags, goes_on = run.info.run_id, run.data.tags, run.info.status == "RUNNING"
        last = reader.Fingerprint.of_tags(tags)
        now = last._replace(version=__version__, pulse=reader.pulse(run))
        if (now == last and not goes_on) or self._due.get(run_id, 0.0) > time.monotonic():
            return
        now = now._replace(tables=reader.tables(self.client, run_id))
        if now.tables == reader.NO_TABLES and Tag.DELIVERED not in tags:
            return
        mark = {Tag.CONCLUDED: str(now)}
        if (now.version, now.tables) == (last.version, last.tables):
            if now != last and not goes_on:
                store.set_tags(self.client, run_id, mark)
            return
        started = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="gradwatch-") as temporary:
                self._summarize(run, Path(temporary))
        except CorruptRunError as error:
            self.health.corrupt += 1
            log.warning("run %s is corrupt: %s", run_id, error)
            mark[Tag.CORRUPT] = str(error)
        store.set_tags(self.client, run_id, mark)
        if Tag.CORRUPT in tags and Tag.CORRUPT not in mark:
            with clear_errors(f"run {run_id}"), contextlib.suppress(RunError):  # another monitor was quicker
                self.client.delete_tag(run_id, Tag.CORRUPT)
        if goes_on:
            self._due[run_id] = time.monotonic() + PAUSES * (time.monotonic() - started)

    def _summarize(self, run: Any, temporary: Path) -> None:
        from gradwatch.tracking import reader

        assert self.client is not None
        run_id, known = run.info.run_id, run.data.tags.get(Tag.JUDGED, "")
        try:
            folder = reader.fetch(self.client, run_id, temporary)
        except UnfitError as error:
            raise CorruptRunError(str(error)) from error
        summary = _summary(folder, temporary, run.info.experiment_id, run_id)
        judged = int(summary.tags.get(Tag.JUDGED, -1))
        if run.info.status == "RUNNING" and known.isdigit() and int(known) > judged:
            return  # its courier has seen more of it than it has uploaded
        log_summary(self.client, run_id, summary)
        self.health.updated += 1
        log.info("run %s: up to date to step %d, %s", run_id, judged, summary.tags[Tag.VERDICT])


def _summary(folder: Path, temporary: Path, experiment_id: str, run_id: str) -> Summary:
    """What the run in `folder` comes to; whatever goes wrong is the run's own fault."""
    try:
        history = _read(folder)
        rendered = temporary / "rendered"
        rendered.mkdir()
        return summarize(history, folder, rendered, experiment_id, run_id)
    except Exception as error:
        log.debug("run %s", run_id, exc_info=True)
        raise CorruptRunError(public_error(error).replace(f"{folder}/", "").replace(str(folder), "the run")) from error


def _read(folder: Path) -> History:
    if read_joint_manifest(folder).status != "RUNNING":
        history = read_whole(folder, at_most=MAX_VALUES)
    else:
        for part in part_folders(folder):
            _even(part)
        history = current(read_whole(folder, at_most=LIVE_VALUES))
    if not len(history) and history.problems:
        raise RunError(f"nothing of it can be read: {'; '.join(history.problems[:2])}")
    return history


def _even(folder: Path) -> None:
    """Leave out what one table has and the other has not yet: steps without layers would look like a disease."""
    newest = last_part(folder)
    for table in ALL_TABLES:
        for part in list_parts(folder / table):
            if part.last > newest:
                part.path.unlink()

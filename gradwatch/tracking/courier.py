"""The courier: carries a run's folder to MLflow, exactly once, from a process of its own.

The files are the truth and `cursor.json` says how far they are delivered; it moves only after MLflow has answered. A
courier that dies between the two sends the same points again, with the same time stamps, and MLflow keeps one of each.

The parts of a run that several Watches share go to one MLflow run: each by a courier of its own, which first looks
whether the courier of another part has found or created it; the one that delivers the last part finishes the run.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from gradwatch.errors import RunError
from gradwatch.history import Run
from gradwatch.sanitize import is_plain_file, public_uri
from gradwatch.storage.delivery_cursor import CURSOR, Cursor, is_done, read_cursor
from gradwatch.storage.folder import (
    ALL_TABLES,
    FINDINGS,
    MANIFEST,
    is_closed,
    last_part,
    list_parts,
    read_manifest,
    write_json,
)
from gradwatch.storage.run_reader import read_run
from gradwatch.storage.run_state import run_state
from gradwatch.storage.shared_folder import PARTS, deliverable_parts, home_of, is_shared, read_facts
from gradwatch.tracking.live_findings import Diagnosis, finding_tags
from gradwatch.tracking.metric_keys import LEAST_POINTS, MAX_POINTS
from gradwatch.tracking.metric_points import MlflowSender
from gradwatch.tracking.summary import finish_run, is_monitored
from gradwatch.tracking.tags import Tag
from gradwatch.tracking.views import view_url

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

log = logging.getLogger("gradwatch")

RUN_ID_SECONDS = 30.0  # how long a living trainer may take to start the user's own MLflow run
BUSY = "another process is delivering it"
LOCK_SECONDS = 300.0  # how long the courier of another part may take to create the MLflow run, or to finish it


class Courier:
    """Delivers one run folder, pass by pass. What it knows beside the cursor is forgotten when a pass fails: the next
    one begins by asking MLflow, so a courier whose server is away holds nothing and reads nothing.

    `moved` is told how many steps are delivered, whenever that has changed.
    """

    def __init__(
        self, folder: Path, tracking_uri: str | None = None, moved: Callable[[int], None] = lambda _: None
    ) -> None:
        self.folder, self.asked_uri, self.moved = folder, tracking_uri, moved
        self.part = folder.resolve().name if is_shared(folder.resolve().parent) else ""
        self.home = home_of(folder.resolve()) if self.part else folder  # the whole run's folder
        self.diagnosis = Diagnosis(self.home, self.part)
        self.logged_tags: dict[str, str] = {}  # the tags that say what was found, as MLflow has them
        self.cursor = Cursor.read(folder)
        self.sender: MlflowSender | None = None  # while it is connected
        self.batch_size = MAX_POINTS  # of the next request

    def deliver(self, wait: float = 0.0) -> DeliveryState:
        """One pass: everything that is due now. `wait` seconds for another courier of this folder to finish.

        Raises:
            RunError: waiting will not help. Any other error may pass by itself.
        """
        run = read_manifest(self.folder)
        self._refuse_elsewhere()
        if self._finished(run):
            return self._state(run)
        try:
            held = FileLock(self.folder / "courier.lock").acquire(timeout=wait)
        except Timeout:
            return replace(self._state(run), error=BUSY)
        except PermissionError as error:
            raise RunError(f"cannot write to {self.folder}: {error.strerror}") from error
        with held:
            self.cursor = Cursor.read(self.folder)
            try:
                return self._pass(run)
            except BaseException:
                if self.sender is not None:  # a server that is slow gets more done with less at a time
                    self.batch_size = max(LEAST_POINTS, self.sender.batch_size // 2)
                self.sender = None
                raise

    def _finished(self, run: Run) -> bool:
        return self.cursor.done and self.cursor.attempt == run.attempt

    def _state(self, run: Run) -> DeliveryState:
        return DeliveryState(self.folder, self.cursor.url, self._finished(run), run.status == "RUNNING")

    def _pass(self, run: Run) -> DeliveryState:
        was = run_state(run)
        run = read_manifest(self.folder)  # again: it may have ended properly just before it was gone
        if was.crashed and run.status == "RUNNING" and run_state(run).crashed:
            run = self._mark_killed(run)  # before MLflow is asked for anything: who reads the files is to know
        ended = run.status != "RUNNING"
        if not ended:
            self.diagnosis.update()  # whether the store can be reached or not
        if not self._finished(run) and self._connect(run, ended):
            assert self.sender is not None
            self.sender.send(self.cursor, ended)
            self._log_findings()
            self._upload_tables(closed_only=not ended)
            if ended:
                self._finish(run)
        return self._state(run)

    def _refuse_elsewhere(self) -> None:
        if not (self.asked_uri and self.cursor.tracking_uri):
            return
        from gradwatch.tracking import client as store

        uri = store.full_uri(self.cursor.tracking_uri)
        if store.full_uri(self.asked_uri) != uri:
            raise RunError(
                f"{self.folder} is delivered to {public_uri(uri)} already: remove its {CURSOR} to deliver it again "
                "elsewhere"
            )

    def _mark_killed(self, run: Run) -> Run:
        """The manifest of a run whose trainer is gone: it ended with the last step that is in the files."""
        times = read_run(self.folder, since=last_part(self.folder) - 1).total("time")
        last = times[-1] if len(times) and times[-1] == times[-1] else time.time()
        ended = datetime.fromtimestamp(last, timezone.utc).isoformat(timespec="seconds")
        run = replace(run, status="KILLED", ended=ended, crashed=True)
        write_json(self.folder / MANIFEST, run.to_json())
        log.info("%s: the trainer is gone; the run is marked KILLED", self.folder)
        return run

    # ------------------------------------------------------------------------------------------------------- the run

    def _connect(self, run: Run, ended: bool) -> bool:
        """Find, join or create the MLflow run; False while the trainer may still name one."""
        if self.sender is not None:
            return True
        from gradwatch.tracking import client as store

        if not read_cursor(self.folder):
            self.cursor.save(self.folder)  # MLflow is imported: who closes the run may wait for the rest
        cursor, target = self.cursor, run.mlflow or {}
        with self._alone():
            if not cursor.run_id:
                self._take_over()
            self._refuse_elsewhere()
            waited = time.time() - datetime.fromisoformat(run.created).timestamp()
            if not (cursor.run_id or target.get("run_id") or ended or waited > RUN_ID_SECONDS):
                return False
            uri = store.full_uri(cursor.tracking_uri or self.asked_uri or target.get("tracking_uri"))
            client = store.connect(uri)
            if not cursor.run_id:
                self._find_run(client, uri, run)
            if not cursor.url:
                cursor.url = view_url(uri, str(cursor.experiment_id))
                cursor.save(self.folder)
                log.info("%s -> MLflow run %s, %s", self.folder, cursor.run_id, cursor.url)
            if cursor.done:  # resumed after its end was delivered
                store.set_status(client, str(cursor.run_id), "RUNNING", None, cursor.joined)
            cursor.attempt, cursor.done = run.attempt, False
            store.describe(client, str(cursor.run_id), run)
        for name in (MANIFEST, "model.txt"):
            if is_plain_file(self.folder / name):
                self._upload(client, self.folder / name)
        if self.part:
            store.upload(client, str(cursor.run_id), self.home / PARTS)
        self.sender = MlflowSender(self.folder, client, cursor, self.moved, self.batch_size)
        return True

    def _find_run(self, client: MlflowClient, uri: str, run: Run) -> None:
        """Join the run that the trainer named, or create one."""
        from gradwatch.tracking import client as store

        target = run.mlflow or {}
        cursor, named = self.cursor, target.get("run_id")
        # a run that `gradwatch run` created has a name from the start, and is ours all the same
        cursor.tracking_uri, cursor.joined = public_uri(uri), bool(named and target.get("joined", True))
        if named:
            cursor.run_id, cursor.experiment_id = named, store.join_run(client, named)
            return
        facts, label = self._label(run)
        cursor.run_id, cursor.experiment_id = store.create_run(client, uri, replace(run, **facts), label)

    def _label(self, run: Run) -> tuple[dict[str, Any], str]:
        """What the whole run is called and when it began, and the text by which its MLflow run is known."""
        facts = read_facts(self.home) if self.part else {"name": run.name, "created": run.created}
        return facts, f"{socket.gethostname()}/{self.home.name} {facts['created']}"

    def _take_over(self) -> None:
        """Deliver to the MLflow run that another part of this run goes to, if one does already."""
        for part in self._others():
            other = Cursor.read(part)
            if other.run_id:
                for name in ("tracking_uri", "experiment_id", "run_id", "joined"):
                    setattr(self.cursor, name, getattr(other, name))
                return

    # ----------------------------------------------------------------------------------------------------- the parts

    def _others(self) -> list[Path]:
        """The folders of the other parts of the run."""
        return [path for path in deliverable_parts(self.home) if path.name != self.part] if self.part else []

    def _alone(self) -> contextlib.AbstractContextManager[Any]:
        """While no other part of the run creates or finishes the MLflow run."""
        return FileLock(self.home / "run.lock", timeout=LOCK_SECONDS) if self.part else contextlib.nullcontext()

    def _upload(self, client: MlflowClient, path: Path, table: str = "") -> None:
        from gradwatch.tracking import client as store

        store.upload(client, str(self.cursor.run_id), path, "/".join(filter(None, [self.part, table])))

    # ----------------------------------------------------------------------------------------------------- the rest

    def _log_findings(self) -> None:
        """Set the tags that say what was found, and upload it, when that has changed."""
        from gradwatch.tracking import client as store

        tags = self.logged_tags if self.diagnosis.findings is None else finding_tags(self.diagnosis.findings, "running")
        if tags != self.logged_tags:
            store.upload(self._client, str(self.cursor.run_id), self.home / FINDINGS)  # first: the tags announce it
            store.set_tags(self._client, str(self.cursor.run_id), {**tags, Tag.JUDGED: str(self.diagnosis.judged)})
            self.logged_tags = tags

    def _upload_tables(self, closed_only: bool) -> None:
        for table in ALL_TABLES:
            for part in list_parts(self.folder / table):
                name = f"{table}/{part.path.name}"
                with contextlib.suppress(FileNotFoundError):  # merged meanwhile: the merged part is next
                    early = is_closed(part) or (part.level > 0 and is_monitored())  # a monitor reads along
                    if name not in self.cursor.uploaded and (early or not closed_only):
                        self._upload(self._client, part.path, table)
                        self.cursor.uploaded.append(name)
                        self.cursor.save(self.folder)

    def _finish(self, run: Run) -> None:
        """The end of the run: what there is to say of it, if all its parts are delivered; then the cursor says done."""
        from gradwatch.tracking import client as store

        cursor, client = self.cursor, self._client
        self._upload(client, self.folder / MANIFEST)
        with self._alone():
            if all(is_done(read_cursor(part), part) for part in self._others()):
                if not cursor.joined:
                    store.drop_twins(client, str(cursor.run_id), str(cursor.experiment_id), self._label(run)[1])
                finish_run(client, str(cursor.run_id), str(cursor.experiment_id), self.home, cursor.joined)
            cursor.attempt, cursor.done = run.attempt, True
            cursor.save(self.folder)
        self.sender = None  # a resumed run connects again

    @property
    def _client(self) -> MlflowClient:
        assert self.sender is not None
        return self.sender.client


@dataclass(frozen=True)
class DeliveryState:
    """How one run stands after a pass: delivered whole (`done`), as far as it goes (`live`: it is not over), or not.

    `error` says why not; a `lasting` one will not pass by waiting, a `slow` one not soon.
    """

    folder: Path
    url: str | None = None
    done: bool = False
    live: bool = False
    error: str | None = None
    lasting: bool = False
    slow: bool = False

"""The courier: carries a run's folder to MLflow, exactly once, from a process of its own.

The files are the truth and `cursor.json` says how far they are delivered; it moves only after MLflow has answered. A
courier that dies between the two sends the same points again, with the same time stamps, and MLflow keeps one of each.

The parts of a run that several Watches share go to one MLflow run: each by a courier of its own, which first looks
whether the courier of another part has found or created it; the one that delivers the last part concludes the run.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from gradwatch.conclusion import conclude
from gradwatch.delivery import CURSOR, is_done, read_cursor, trainer_is_gone
from gradwatch.diagnosis import Diagnosis, finding_tags
from gradwatch.errors import RunError
from gradwatch.history import History, Run, concat
from gradwatch.stores.files import (
    MANIFEST,
    TABLES,
    is_closed,
    last_part,
    list_parts,
    read_manifest,
    read_run,
    write_json,
)
from gradwatch.stores.keys import Nonfinite, batches, windows
from gradwatch.stores.parts import PARTS, deliverable_parts, home_of, is_shared, read_facts
from gradwatch.stores.views import view_url
from gradwatch.untrusted import is_plain_file
from gradwatch.uri import public_uri

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

log = logging.getLogger("gradwatch")

RUN_ID_SECONDS = 30.0  # how long a living trainer may take to start the user's own MLflow run
LOCK_SECONDS = 300.0  # how long the courier of another part may take to create the MLflow run, or to conclude it


@dataclass
class Cursor:
    """How far a run is delivered: `cursor.json`."""

    tracking_uri: str | None = None
    experiment_id: str | None = None
    run_id: str | None = None
    joined: bool = False
    url: str | None = None
    next_step: int = 0
    last_part: int = -1
    nonfinite: list[Any] = field(default_factory=lambda: list(Nonfinite()))
    uploaded: list[str] = field(default_factory=list)
    attempt: int = 0
    done: bool = False

    @classmethod
    def read(cls, folder: Path) -> Cursor:
        """The cursor of `folder`; a new one before the first delivery."""
        known = {k: v for k, v in read_cursor(folder).items() if k in cls.__dataclass_fields__}
        return cls(**known)


@dataclass(frozen=True)
class Outcome:
    """How one run stands after a pass: delivered whole (`done`), as far as it goes (`live`: it is not over), or not.

    `error` says why not; a `lasting` one will not pass by waiting.
    """

    folder: Path
    url: str | None = None
    done: bool = False
    live: bool = False
    error: str | None = None
    lasting: bool = False


class Courier:
    """Delivers one run folder, pass by pass; keeps what it has read of the open window, so memory stays small."""

    def __init__(self, folder: Path, tracking_uri: str | None = None) -> None:
        self.folder, self.asked_uri = folder, tracking_uri
        self.part = folder.resolve().name if is_shared(folder.resolve().parent) else ""
        self.home = home_of(folder.resolve()) if self.part else folder  # the whole run's folder
        self.diagnosis = Diagnosis(self.home, self.part)
        self.told: dict[str, str] = {}  # the tags that say what was found, as MLflow has them
        self.cursor = Cursor.read(folder)
        self.client: MlflowClient | None = None
        self.pending: History | None = None
        self.read_to = self.cursor.last_part
        self.reads: list[tuple[int, int]] = []  # (part, last step read with it), to know which parts are finished
        self.keys: set[str] = set()
        self.shown: set[str] = set()

    def deliver(self, wait: float = 0.0) -> Outcome:
        """One pass: everything that is due now. `wait` seconds for another courier of this folder to finish.

        Raises:
            RunError: waiting will not help. Any other error may pass by itself.
        """
        run = read_manifest(self.folder)
        if self._finished(run):
            return self._outcome(run)
        try:
            with FileLock(self.folder / "courier.lock", timeout=wait):
                self.cursor = Cursor.read(self.folder)
                return self._pass(run)
        except Timeout:
            return replace(self._outcome(run), error="another process is delivering it")
        except PermissionError as error:
            raise RunError(f"cannot write to {self.folder}: {error.strerror}") from error

    def _finished(self, run: Run) -> bool:
        return self.cursor.done and self.cursor.attempt == run.attempt

    def _outcome(self, run: Run) -> Outcome:
        return Outcome(self.folder, self.cursor.url, self._finished(run), run.status == "RUNNING")

    def _pass(self, run: Run) -> Outcome:
        killed = run.status == "RUNNING" and trainer_is_gone(run)
        run = read_manifest(self.folder)  # again: it may have ended properly just before it was gone
        killed = killed and run.status == "RUNNING"
        ended = killed or run.status != "RUNNING"
        if not ended:
            self.diagnosis.look()  # whether the store can be reached or not
        if self._finished(run) or not self._has_run(run, ended):
            return self._outcome(run)
        self._send_points(ended)
        self._tell()
        self._upload_tables(closed_only=not ended)
        if ended:
            self._finish(run, killed)
            run = read_manifest(self.folder)
        return self._outcome(run)

    # ------------------------------------------------------------------------------------------------------- the run

    def _has_run(self, run: Run, ended: bool) -> bool:
        """Find, join or create the MLflow run; False while the trainer may still name one."""
        if self.client is not None:
            return True
        from gradwatch.stores import mlflow as store

        cursor, target = self.cursor, run.mlflow or {}
        with self._alone():
            if not cursor.run_id:
                self._take_over()
            waited = time.time() - datetime.fromisoformat(run.created).timestamp()
            if not (cursor.run_id or target.get("run_id") or ended or waited > RUN_ID_SECONDS):
                return False
            uri = store.full_uri(cursor.tracking_uri or self.asked_uri or target.get("tracking_uri"))
            if self.asked_uri and store.full_uri(self.asked_uri) != uri:
                raise RunError(
                    f"{self.folder} is delivered to {public_uri(uri)} already: remove its {CURSOR} to deliver "
                    "it again elsewhere"
                )
            client = store.connect(uri)
            if not cursor.run_id:
                self._find_run(client, uri, run)
            if not cursor.url:
                cursor.url = view_url(uri, str(cursor.experiment_id))
                self._save()
                log.info("%s -> MLflow run %s, %s", self.folder, cursor.run_id, cursor.url)
            if cursor.done:  # resumed after its end was delivered
                store.set_status(client, str(cursor.run_id), "RUNNING", None, cursor.joined)
            cursor.attempt, cursor.done = run.attempt, False
            store.describe(client, str(cursor.run_id), run)
        self.client = client
        for name in (MANIFEST, "model.txt"):
            if is_plain_file(self.folder / name):
                self._upload(self.folder / name)
        if self.part:
            store.upload(client, str(cursor.run_id), self.home / PARTS)
        return True

    def _find_run(self, client: MlflowClient, uri: str, run: Run) -> None:
        """Join the run that the trainer named, or create one."""
        from gradwatch.stores import mlflow as store

        target = run.mlflow or {}
        cursor, named = self.cursor, target.get("run_id")
        # a run that `gradwatch run` created has a name from the start, and is ours all the same
        cursor.tracking_uri, cursor.joined = public_uri(uri), bool(named and target.get("joined", True))
        if named:
            cursor.run_id, cursor.experiment_id = named, store.join_run(client, named)
            return
        facts = read_facts(self.home) if self.part else {"name": run.name, "created": run.created}
        label = f"{socket.gethostname()}/{self.home.name} {facts['created']}"
        cursor.run_id, cursor.experiment_id = store.create_run(client, uri, replace(run, **facts), label)

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
        """While no other part of the run creates or concludes the MLflow run."""
        return FileLock(self.home / "run.lock", timeout=LOCK_SECONDS) if self.part else contextlib.nullcontext()

    def _upload(self, path: Path, table: str = "") -> None:
        from gradwatch.stores import mlflow as store

        store.upload(self.client, str(self.cursor.run_id), path, "/".join(filter(None, [self.part, table])))

    def _save(self) -> None:
        write_json(self.folder / CURSOR, asdict(self.cursor))

    # ---------------------------------------------------------------------------------------------------- the points

    def _send_points(self, ended: bool) -> None:
        from gradwatch.stores import mlflow as store

        history = self._read_new()
        if history is None:
            return
        run, cursor = history.run, self.cursor
        found = windows(
            history,
            run.window,
            run.mlflow_layers,
            ended=ended,
            start=cursor.next_step,
            nonfinite=Nonfinite(*cursor.nonfinite),
        )
        for batch in batches(found):
            points = [point for window in batch for point in window.points]
            store.log_points(self.client, str(cursor.run_id), points)
            state = batch[-1].nonfinite
            if list(state) != cursor.nonfinite:
                store.set_tags(self.client, str(cursor.run_id), store.nonfinite_tags(state, run.part))
            cursor.next_step, cursor.nonfinite = batch[-1].stop, list(state)
            cursor.last_part = max([p for p, step in self.reads if step < cursor.next_step], default=cursor.last_part)
            self._save()
            self.keys.update(point.key for point in points)
        self.pending = history.take(history.step >= cursor.next_step)
        self.reads = [(part, step) for part, step in self.reads if part > cursor.last_part]
        self._show_view()

    def _tell(self) -> None:
        """Set the tags that say what was found, when that has changed."""
        from gradwatch.stores import mlflow as store

        tags = self.told if self.diagnosis.findings is None else finding_tags(self.diagnosis.findings, "running")
        if tags != self.told:
            store.set_tags(self.client, str(self.cursor.run_id), tags)
            self.told = tags

    def _read_new(self) -> History | None:
        """The undelivered steps: what is pending and what is in parts not read yet."""
        newest = last_part(self.folder)
        if newest > self.read_to:
            due = self.cursor.next_step
            new = read_run(self.folder, since=self.read_to, start=due)
            if new.problems:  # the writer may have merged parts under the reader's eyes; a second look settles it
                new = read_run(self.folder, since=self.read_to, start=due)
            for problem in new.problems:
                log.warning("%s: %s", self.folder, problem)
            new = new.take(new.step >= self.cursor.next_step)
            self.pending = new if self.pending is None else concat([self.pending, new])
            self.read_to = newest
            self.reads.append((newest, int(new.step.max(initial=-1))))
        return self.pending

    def _show_view(self) -> None:
        """Add charts for new keys to the experiment's saved view; a failure to do so harms nothing."""
        if self.keys <= self.shown:
            return
        from gradwatch.stores import mlflow as store

        try:
            store.show_view(self.client, str(self.cursor.experiment_id), self.keys)
            self.shown = set(self.keys)
        except Exception as error:  # an undocumented format, a tag limit, a server that forbids it
            log.warning("the saved view of experiment %s could not be set: %s", self.cursor.experiment_id, error)

    # ------------------------------------------------------------------------------------------------- the artifacts

    def _upload_tables(self, closed_only: bool) -> None:
        for table in TABLES:
            for part in list_parts(self.folder / table):
                name = f"{table}/{part.path.name}"
                with contextlib.suppress(FileNotFoundError):  # merged meanwhile: the merged part is next
                    if name not in self.cursor.uploaded and not (closed_only and not is_closed(part)):
                        self._upload(part.path, table)
                        self.cursor.uploaded.append(name)
        self._save()

    def _finish(self, run: Run, killed: bool) -> None:
        """The end of the run: what there is to say of it, if all its parts are delivered; then the cursor says done."""
        cursor = self.cursor
        if killed:
            history = read_run(self.folder)
            last = history.total("time")[-1] if len(history) else time.time()
            ended = datetime.fromtimestamp(last, timezone.utc).isoformat(timespec="seconds")
            run = replace(run, status="KILLED", ended=ended)
            write_json(self.folder / MANIFEST, run.to_json())
            log.info("%s: the trainer is gone; the run is marked KILLED", self.folder)
        self._upload(self.folder / MANIFEST)
        with self._alone():
            if all(is_done(read_cursor(part), part) for part in self._others()):
                conclude(self.client, str(cursor.run_id), str(cursor.experiment_id), self.home, cursor.joined)
            cursor.attempt, cursor.done = run.attempt, True
            self._save()
        self.client = self.pending = None  # a resumed run connects again

"""The points of a run on their way to MLflow: what is not sent yet is read from the files and goes by windows."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gradwatch.history import History, Run
from gradwatch.storage.delivery_cursor import Cursor
from gradwatch.storage.folder import last_part
from gradwatch.storage.joining import concat
from gradwatch.storage.run_reader import read_run
from gradwatch.tracking.clip_rates import Rates
from gradwatch.tracking.metric_keys import MAX_POINTS, Nonfinite, Point, Window, batches, windows
from gradwatch.tracking.mlflow_names import logged_key

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

log = logging.getLogger("gradwatch")


class PointSender(ABC):
    """Sends the points of the run in `folder`; keeps what it has read of the open window, so memory stays small."""

    def __init__(
        self,
        folder: Path,
        cursor: Cursor,
        moved: Callable[[int], None] = lambda _: None,
        batch_size: int = MAX_POINTS,
    ) -> None:
        self.folder, self.moved = folder, moved
        self.batch_size = batch_size  # points of one request: twice as many after each that was answered
        self.pending: History | None = None
        self.read_to = cursor.last_part
        self.reads: list[tuple[int, int]] = []  # (part, last step read with it), to know which parts are finished
        self.keys: set[str] = set()

    @abstractmethod
    def put(self, cursor: Cursor, points: list[Point], window: Window, run: Run) -> None:
        """Hand the points of a batch over, of which `window` is the last; returns when they are safe."""

    @abstractmethod
    def show(self, cursor: Cursor, run: Run) -> None:
        """Everything that was due has been handed over, under `keys`."""

    def send(self, cursor: Cursor, ended: bool) -> None:
        """Send every window that is closed, and move the cursor past each batch that was taken."""
        history = self._read_new(cursor.next_step)
        if history is None:
            return
        run = history.run
        found = windows(
            history,
            run.window,
            run.mlflow_layers,
            ended=ended,
            start=cursor.next_step,
            nonfinite=Nonfinite(*cursor.nonfinite),
            rates=self._rates(cursor),
        )
        for batch in batches(found, lambda: self.batch_size):
            points = [point for window in batch for point in window.points]
            self.put(cursor, points, batch[-1], run)
            cursor.next_step, cursor.nonfinite = batch[-1].stop, list(batch[-1].nonfinite)
            cursor.clip_rates = [*batch[-1].rates]
            cursor.last_part = max([p for p, step in self.reads if step < cursor.next_step], default=cursor.last_part)
            cursor.save(self.folder)
            self.moved(cursor.next_step)
            self.batch_size = min(MAX_POINTS, 2 * self.batch_size)
            self.keys.update(point.key for point in points)
        self.pending = history.take(history.step >= cursor.next_step)
        self.reads = [(part, step) for part, step in self.reads if part > cursor.last_part]
        self.show(cursor, run)

    def _rates(self, cursor: Cursor) -> Rates:
        """The clip rates of what is delivered, as the cursor has them; else out of the folder."""
        if cursor.clip_rates is not None:
            return Rates.from_json(cursor.clip_rates)
        if not cursor.next_step:
            return Rates()
        sent = read_run(self.folder).slice(0, cursor.next_step)
        found = windows(sent, sent.run.window, 1, ended=True)
        return max((window.rates for window in found), key=lambda rates: rates.policy.steps, default=Rates())

    def _read_new(self, due: int) -> History | None:
        """The undelivered steps, from step `due` on: what is pending and what is in parts not read yet."""
        newest = last_part(self.folder)
        if newest > self.read_to:
            new = read_run(self.folder, since=self.read_to, start=due)
            for problem in new.problems:
                log.warning("%s: %s", self.folder, problem)
            new = new.take(new.step >= due)
            self.pending = new if self.pending is None else concat([self.pending, new])
            self.read_to = newest
            self.reads.append((newest, int(new.step.max(initial=-1))))
        return self.pending


class MlflowSender(PointSender):
    """Sends them to the MLflow run that the cursor names."""

    def __init__(
        self, folder: Path, client: MlflowClient, cursor: Cursor, moved: Callable[[int], None], batch_size: int
    ) -> None:
        super().__init__(folder, cursor, moved, batch_size)
        self.client = client
        self.shown: set[str] = set()

    def put(self, cursor: Cursor, points: list[Point], window: Window, run: Run) -> None:
        """One request; and the tags that count non-finite steps, where that has changed."""
        from gradwatch.tracking import client as store

        store.log_points(self.client, str(cursor.run_id), points)
        if list(window.nonfinite) != cursor.nonfinite:
            store.set_tags(self.client, str(cursor.run_id), store.nonfinite_tags(window.nonfinite, run.part))

    def show(self, cursor: Cursor, run: Run) -> None:
        """Add charts for new keys to the experiment's saved view; a failure to do so harms nothing."""
        experiment_id = str(cursor.experiment_id)
        if self.keys <= self.shown:
            return
        from gradwatch.tracking import client as store

        try:
            rises = {logged_key(name, run.part): up for name, up in run.higher_is_better.items()}
            store.show_view(self.client, experiment_id, self.keys, rises)
            self.shown = set(self.keys)
        except Exception as error:  # an undocumented format, a tag limit, a server that forbids it
            log.warning("the saved view of experiment %s could not be set: %s", experiment_id, error)

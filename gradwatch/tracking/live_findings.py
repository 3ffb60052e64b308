"""The diagnosis of a run while it goes on: made anew now and then, in a process that is not the training's."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gradwatch.analysis.rules import NO_FINDINGS, Finding, diagnose, headline, verdict
from gradwatch.errors import RunError
from gradwatch.history import History
from gradwatch.sanitize import plain, read_json
from gradwatch.storage.folder import FINDINGS, last_part, read_manifest, write_json
from gradwatch.storage.run_state import run_state
from gradwatch.storage.shared_folder import is_run, is_shared, part_folders, read_whole
from gradwatch.tracking.tags import Tag

log = logging.getLogger("gradwatch")

POLL_SECONDS = 2.0
LEAST_PAUSE = 2.0  # seconds between two diagnoses,
PAUSES = 20.0  # or so many times what the last one took: at most 5 % of the time
LIVE_VALUES = 8_000_000  # of a run, to be judged while it goes on: 32 MB
MAX_TAG = 2_000  # characters: MLflow's table shows a tag in one line


class Diagnosis:
    """Judges the run in the folder `home`, all its parts together, and keeps its `findings.json` up to date.

    Of the couriers of a run's parts only one judges it: that of the first `part` that is not over. With `writes=False`
    it only looks: the folder may be another's.
    """

    def __init__(self, home: Path, part: str = "", writes: bool = True) -> None:
        self.home, self.part, self.writes = home, part, writes
        self.findings: list[Finding] | None = None  # None: none yet
        self.history: History | None = None  # what they were found in
        self.judged = -1  # the last step that was judged
        self._seen: list[int] = []
        self._due = 0.0

    def update(self, last: bool = False) -> None:
        """Judge the run, if it has new parts and it is time for it (the `last` time does not wait).

        What goes wrong is logged: a diagnosis that fails harms nothing.
        """
        try:
            if last or time.monotonic() >= self._due:
                self._judge()
        except Exception:
            log.exception("%s could not be diagnosed", self.home)

    def _judge(self) -> None:
        parts = part_folders(self.home)
        newest = [last_part(part) for part in parts]
        if newest == self._seen or not self._leads(parts):
            return
        started = time.monotonic()
        self._seen = newest
        try:
            self.history = history = current(read_whole(self.home, at_most=LIVE_VALUES))
            if len(history):
                self.findings = [self._of_part(finding, history) for finding in diagnose(history)]
                self.judged = int(history.step.max())
                if self.writes:
                    write_findings(self.home, history.run.name, self.findings, verdict(history, self.findings))
        finally:
            now = time.monotonic()
            self._due = now + max(LEAST_PAUSE, PAUSES * (now - started))

    def _leads(self, parts: Sequence[Path]) -> bool:
        running = (part.name for part in parts if not run_state(read_manifest(part)).over)
        return not self.part or self.part == next(running, None)

    def _of_part(self, finding: Finding, history: History) -> Finding:
        """The finding of the only part that has steps yet is that part's: more may follow."""
        lone = str(history.optimizer[0]) if is_shared(self.home) and not finding.optimizer else ""
        return replace(finding, optimizer=lone) if lone else finding


def looks(home: Path, poll: float = POLL_SECONDS, writes: bool = True) -> Iterator[Diagnosis]:
    """The diagnosis of a run, after each look at it, until the run has ended, or its trainer is gone.

    Raises:
        RunError: `home` is no run's folder.
    """
    if not is_run(home):
        raise RunError(f"{home} is not a run folder: --follow wants the folder of a run that goes on")
    diagnosis = Diagnosis(home, writes=writes)
    while True:
        over = _is_over(home)  # first: what was written before the end is then all there
        diagnosis.update(last=over)
        yield diagnosis
        if over:
            return
        time.sleep(poll)


def _is_over(home: Path) -> bool:
    return all(run_state(read_manifest(part)).over for part in part_folders(home))


def current(history: History) -> History:
    """Without the steps of an earlier attempt that a resumed run has yet to take again."""
    if not history.attempt.any():
        return history
    keep = np.ones(len(history), bool)
    for at in history.lane_rows().values():
        attempt, step = history.attempt[at], history.step[at]
        newest = attempt.max()
        keep[at] = (attempt == newest) | (step < step[attempt == newest].min())
    return history.take(keep)


def write_findings(home: Path, name: str, findings: Sequence[Finding], said: str) -> Path:
    """Write `findings.json`, as `gradwatch check --format json` prints it, if it says something else than before.

    `said` is the verdict.
    """
    path = home / FINDINGS
    data = plain({"run": name, "verdict": said, "findings": [finding.to_json() for finding in findings]})
    if _read(path) != data:
        write_json(path, data)
    return path


def _read(path: Path) -> Any:
    try:
        return read_json(path)
    except (OSError, ValueError):
        return None


def finding_tags(findings: Sequence[Finding], nothing: str) -> dict[str, str]:
    """The MLflow tags that say what is wrong; where nothing is, the verdict is `nothing`."""
    text = "; ".join(f"{finding.severity} {finding.summary}" for finding in findings) or "none"
    said = headline(findings)
    return {
        Tag.VERDICT: nothing if said == NO_FINDINGS else said,
        Tag.FINDINGS: text if len(text) <= MAX_TAG else text[: MAX_TAG - 2] + " …",
    }

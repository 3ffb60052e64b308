"""What is found while a training goes on: said once, handed to the user's function, and where asked for, its end."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from gradwatch.analysis.rules.finding import RANK, Finding, Severity
from gradwatch.analysis.rules.nonfinite import nonfinite
from gradwatch.errors import GradwatchWarning, TrainingHalted
from gradwatch.history import History, concat
from gradwatch.measure.distributed import rank, world_size
from gradwatch.recording import courier_process
from gradwatch.sanitize import read_json
from gradwatch.storage.folder import FINDINGS

log = logging.getLogger("gradwatch")

LEVELS: dict[Severity, int] = {"error": logging.ERROR, "warning": logging.WARNING, "note": logging.INFO}
AGREE_STEPS = 16  # how often several ranks ask each other whether to halt
PROCESS_SECONDS = 5.0  # a run that is over sooner starts no process to diagnose it


class Live:
    """Tells of each new finding once: to `logging`, as a warning, to `on_finding`; and halts the training.

    Findings come from `findings.json`, which another process writes, and of non-finite gradients from each block as it
    leaves the device. They are looked for at drains and said between two steps, so an exception costs no record.
    """

    def __init__(
        self,
        on_finding: Callable[[Finding], object] | None = None,
        halt_on: Severity | None = None,
        home: Path | None = None,
        part: str = "",
        device: torch.device | None = None,
        process: bool = False,
    ) -> None:
        """Look in the run's folder `home`, None on ranks that write nothing; `process`: start one that diagnoses a run
        longer than a few seconds.
        """
        self.on_finding, self.halt_on = on_finding, halt_on
        self.halting: Finding | None = None  # why it shall halt
        self.halted = False
        self.home, self.part, self.device = home, part, device
        self.since = 0  # the first step that is this attempt's
        self._process_due = time.monotonic() + PROCESS_SECONDS if process and home is not None else None
        self._said: dict[tuple[str, str], int] = {}  # rule and optimizer -> the severity that was said
        self._news: list[Finding] = []
        self._stamp: tuple[int, int] | None = None
        self._block: History | None = None
        self._failed = False

    def rejoin(self, home: Path, step: int) -> None:
        """The run is resumed in another folder, from `step` on: what was found before is old."""
        self.home, self.since = home, step

    # ----------------------------------------------------------------------------------------------------- listening

    def check(self, block: History) -> None:
        """Judge a block of steps at once, as far as an inf or NaN is concerned; the block before it is its past."""
        if self.home is None:
            return
        past, self._block = self._block, block
        if not (block.total("nonfinite") > 0).any():
            return
        if past is not None and past.layers == block.layers and set(past.per_layer) == set(block.per_layer):
            block = concat([past, block])
        lanes = block.lanes().items()
        self._hear(replace(f, optimizer=name or self.part) for name, lane in lanes for f in nonfinite(lane))

    def look(self, steps: int) -> None:
        """Read what the other process found, if that changed; `steps` is how many this one has taken."""
        if self.home is None:
            return
        if self._process_due is not None and time.monotonic() >= self._process_due and steps:
            self._process_due = None
            courier_process.start_diagnosis(self.home)
        path = self.home / FINDINGS
        try:
            stat = path.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino)
            if stamp == self._stamp:
                return
            found = [Finding.from_json(data) for data in read_json(path)["findings"]]
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.debug("%s cannot be read: %s", path, error)
            return
        self._stamp = stamp
        self._hear(f for f in found if self._is_own(f) and self.since <= f.last_step < steps)

    def _is_own(self, finding: Finding) -> bool:
        """Whether a finding is of this Watch, where several share a run."""
        return not self.part or finding.optimizer == self.part or finding.optimizer.startswith(f"{self.part}.")

    def _hear(self, findings: Iterable[Finding]) -> None:
        """Keep what is new, or worse than it was, to be said; a severe one halts."""
        for finding in findings:
            severity = RANK[finding.severity]
            key = finding.rule, finding.optimizer
            if severity < self._said.get(key, len(RANK)):
                self._said[key] = severity
                self._news.append(finding)
                if self.halting is None and self.halt_on is not None and severity <= RANK[self.halt_on]:
                    self.halting = finding

    # ------------------------------------------------------------------------------------------------------ speaking

    def between(self, steps: int) -> None:
        """Between two steps: say what is new, and halt if that is asked for. `steps` were taken, as many on each rank.

        Raises:
            TrainingHalted: a finding is as severe as `halt_on`. Of several ranks all raise, at the same step.
        """
        if self._news:
            self.speak()
        if self.halt_on is not None:
            if world_size() > 1:
                self._agree(steps)
            elif self.halting is not None:
                self._halt(self.halting)

    def speak(self) -> None:
        """Say what is new."""
        while self._news:
            finding = self._news.pop(0)
            text = f"gradwatch found {finding.summary}: {finding.cause} {finding.cure}"
            log.log(LEVELS[finding.severity], text)
            if self.on_finding is not None:
                self._call(self.on_finding, finding)
            if finding.severity != "note":
                warnings.warn(text, GradwatchWarning, stacklevel=2)

    def _call(self, on_finding: Callable[[Finding], object], finding: Finding) -> None:
        try:
            on_finding(finding)
        except Exception:
            if not self._failed:
                log.exception("on_finding=%r raised; the training goes on", on_finding)
            self._failed = True

    def _agree(self, steps: int) -> None:
        """Every few steps: whether a rank halts, and why. A collective, and one number read from the device."""
        if steps == 0 or steps % AGREE_STEPS:
            return
        flag = torch.full((), 0 if self.halting is None else rank() + 1, device=self.device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        source = int(flag) - 1
        if source >= 0:
            told = [self.halting]
            dist.broadcast_object_list(told, src=source, device=self.device)
            self.halting = told[0]
            self._halt(told[0])

    def _halt(self, finding: Finding | None) -> None:
        if finding is None:
            return
        where = f" The record is in {self.home}." if self.home is not None else ""
        text = f"training halted (halt_on={self.halt_on!r}): {finding.summary}. {finding.cause} {finding.cure}{where}"
        self.halted = True
        raise TrainingHalted(text, finding)

"""What is found while a training goes on: said once, handed to the user's function, and where asked for, its end."""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from gradwatch.analysis.rules import diagnose, headline, verdict
from gradwatch.analysis.rules.finding import RANK, Finding, Severity
from gradwatch.analysis.rules.nonfinite import nonfinite
from gradwatch.errors import TrainingHalted
from gradwatch.measure.distributed import rank, world_size
from gradwatch.policies import Policy
from gradwatch.recording import courier_process
from gradwatch.sanitize import read_json
from gradwatch.storage.folder import FINDINGS, read_manifest
from gradwatch.storage.joining import concat
from gradwatch.storage.lazy_block import LazyBlock
from gradwatch.storage.run_state import run_state
from gradwatch.storage.shared_folder import part_folders, read_whole

log = logging.getLogger("gradwatch")

LEVELS: dict[Severity, int] = {"error": logging.ERROR, "warning": logging.WARNING, "note": logging.INFO}
_CALLED: dict[Severity, str] = {"error": "an error", "warning": "a warning", "note": "a note"}
AGREE_STEPS = 16  # how often several ranks ask each other whether to halt
READ_SECONDS = 1.0  # that the training waits for the file of findings, once
PROCESS_SECONDS = 5.0  # a run that is over sooner starts no process to diagnose it
# What close() judges itself, in a third of a second at most; the process that diagnoses has seen most of a longer run.
CLOSE_STEPS, CLOSE_VALUES = 5_000, 200_000


@dataclass
class Said:
    """A finding that was said. It stays the same one while it is of its rule and has a layer in common."""

    finding: Finding
    layers: set[str]  # of it since it was said; empty: the whole model
    is_listed: bool = False  # whether a diagnosis of the whole run had it
    is_withdrawn: bool = False  # whether the last one has it no more
    came_back: bool = False  # it is taken back only once: what comes and goes would be said without end

    def is_alike(self, other: Finding) -> bool:
        """Whether `other` is of the same rule, and of the same optimizer."""
        return (self.finding.rule, self.finding.optimizer) == (other.rule, other.optimizer)

    def is_of(self, other: Finding) -> bool:
        """Whether `other` is the same finding, made at another time."""
        apart = self.layers and other.layers and self.layers.isdisjoint(other.layers)
        return self.is_alike(other) and not apart

    def add(self, other: Finding) -> bool:
        """Take the same finding, made later; whether that is news: it is worse, or had been taken back."""
        is_news = self.is_withdrawn or RANK[other.severity] < RANK[self.finding.severity]
        self.layers = self.layers.union(other.layers) if self.layers and other.layers else set()
        self.came_back, self.is_withdrawn = self.came_back or self.is_withdrawn, False
        self.finding = other if is_news else self.finding
        return is_news

    def compare(self, found: Iterable[Finding]) -> bool:
        """Look for it in a diagnosis of the whole run; whether it is to be taken back. What moved to other layers is
        not, and what has become a note is.
        """
        is_note = self.finding.severity == "note"
        alike = [each for each in found if self.is_alike(each) and (is_note or each.severity != "note")]
        if alike:
            self.is_listed = self.is_listed or any(map(self.is_of, alike))
        elif self.is_listed and not self.is_withdrawn and not self.came_back:
            self.is_withdrawn = True
            return True
        return False


class Live:
    """Tells of each new finding once: to `logging` and to `on_finding`; takes it back; and halts the training.

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
        self.cured_by: Callable[[Finding], bool] | None = None  # whether somebody mends what it would halt for
        self.home, self.part, self.device = home, part, device
        self.since = 0  # the first step that is this attempt's
        self._process_due = time.monotonic() + PROCESS_SECONDS if process and home is not None else None
        self._said: list[Said] = []
        self._news: list[tuple[Finding, bool]] = []  # what is to be said, and whether it is taken back
        self._so_far = ""  # the last verdict of the other process
        self._stamp: tuple[int, int] | None = None
        self._reader: threading.Thread | None = None
        self._found: tuple[list[Finding], str] | None = None  # what it has read, and the verdict
        self._block: LazyBlock | None = None
        self._failed = False

    def rejoin(self, home: Path, step: int) -> None:
        """The run is resumed in another folder, from `step` on: what was found before is old."""
        self.home, self.since = home, step

    # ----------------------------------------------------------------------------------------------------- listening

    def check(self, block: LazyBlock) -> None:
        """Judge a block of steps at once, as far as an inf or NaN is concerned; the block before it is its past."""
        if self.home is None:
            return
        before, self._block = self._block, block
        if not block.is_suspect:
            return
        found = block.history()
        if not (found.total("nonfinite") > 0).any():
            return
        past = None if before is None else before.history()
        if past is not None and past.layers == found.layers and set(past.per_layer) == set(found.per_layer):
            found = concat([past, found])
        lanes = found.lanes().items()
        self._hear(replace(f, optimizer=name or self.part) for name, lane in lanes for f in nonfinite(lane))

    def look(self, steps: int) -> None:
        """Read what the other process found, if that changed; `steps` is how many this one has taken.

        By another thread, which is waited for once: a disk that does not answer never answers, and this one trains.
        """
        if self.home is None or (self._reader is not None and self._reader.is_alive()):
            return
        if self._process_due is not None and time.monotonic() >= self._process_due and steps:
            self._process_due = None
            courier_process.start_diagnosis(self.home)
        self._reader = threading.Thread(target=self._read, args=(self.home / FINDINGS,), daemon=True)
        try:
            self._reader.start()
            self._reader.join(READ_SECONDS)
        except RuntimeError:  # no more threads may be started
            self._read(self.home / FINDINGS)
        read, self._found = self._found, None
        if read is not None:
            found, self._so_far = read
            self._compare(found, steps)

    def _read(self, path: Path) -> None:
        try:
            stat = path.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino)
            if stamp == self._stamp:
                return
            data = read_json(path)
            found = [Finding.from_json(finding) for finding in data["findings"]]
            so_far = str(data.get("verdict") or headline(found))
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.debug("%s cannot be read: %s", path, error)
            return
        self._stamp, self._found = stamp, (found, so_far)

    def conclude(self, steps: int) -> str:
        """After the last step is on disk: say what is new, and return the verdict in one line, with the command that
        shows more. Empty where this process writes nothing, and while other parts of the run go on.
        """
        if self.home is None:
            return ""
        self.look(steps)
        judged, is_over = None, False
        try:
            runs = [read_manifest(part) for part in part_folders(self.home)]
            is_over = all(run_state(run).over for run in runs)
            length = max(run.end_step or steps for run in runs)
            if length <= CLOSE_STEPS and length * sum(len(run.layers) for run in runs) <= CLOSE_VALUES:
                history = read_whole(self.home)
                found = diagnose(history)
                judged = verdict(history, found)
                self._compare(found, steps)
        except Exception as error:  # a verdict that cannot be had is no error: the record is whole
            log.debug("%s cannot be judged: %s", self.home, error)
        self.speak()
        show = f"gradwatch show {shlex.quote(str(self.home))}"
        if not is_over:
            return ""
        if judged is None and not self._so_far:
            return f"not judged yet: {show}"
        return f"verdict{'' if judged else ' so far'}: {judged or self._so_far}; more: {show}"

    def _is_own(self, finding: Finding) -> bool:
        """Whether a finding is of this Watch, where several share a run."""
        return not self.part or finding.optimizer == self.part or finding.optimizer.startswith(f"{self.part}.")

    def _compare(self, found: Iterable[Finding], steps: int) -> None:
        """Hear a diagnosis of the whole run, and take back what it has no more, nor among what follows from another."""
        # of a run with one lane a finding names none, and this is the Watch that took its steps
        named = (replace(finding, optimizer=finding.optimizer or self.part) for finding in found)
        own = [finding for finding in named if self._is_own(finding)]
        self._hear(finding for finding in own if self.since <= finding.last_step < steps)
        every = [*own, *(replace(below, optimizer=f.optimizer) for f in own for below in f.consequences)]
        self._news += [(said.finding, True) for said in self._said if said.compare(every)]

    def _hear(self, findings: Iterable[Finding]) -> None:
        """Keep what is new, or worse than it was, to be said; a severe one halts."""
        for finding in findings:
            said = next((said for said in self._said if said.is_of(finding)), None)
            if said is None:
                self._said.append(Said(finding, set(finding.layers)))
            if said is None or said.add(finding):
                self._news.append((finding, False))
                if self.halting is None and self.halt_on is not None and RANK[finding.severity] <= RANK[self.halt_on]:
                    self.halting = finding

    # ------------------------------------------------------------------------------------------------------ speaking

    def between(self, steps: int, ended_by: Policy | None = None) -> None:
        """Between two steps: say what is new, and halt if that is asked for. `steps` were taken, as many on each rank.

        Raises:
            TrainingHalted: a finding is as severe as `halt_on`, or the policy `ended_by` has left out as many steps in
                a row as its `at_most` allows. Of several ranks all raise, at the same step.
        """
        if ended_by is not None:
            self.speak()
            self.halted = True
            raise TrainingHalted(
                f"training halted: {ended_by!r} left out {ended_by.at_most} steps in a row.{self._where} "
                "Look at the gradients of those steps, lower the learning rate, or raise at_most or the policy's limit."
            )
        halts = self._due_halt if world_size() == 1 else None
        if self._news:
            self.speak(raised=halts)
        if halts is not None:
            self._halt(halts)
        elif self.halt_on is not None and world_size() > 1:
            self._agree(steps)

    def speak(self, raised: Finding | None = None) -> None:
        """Say what is new; not that which is about to be `raised`, as the exception says it.

        `logging` is the one channel. Without a handler it writes the line to stderr; a warning would point at a line of
        code that has nothing to do with it, and end the trainings of those who make errors of warnings.
        """
        while self._news:
            finding, is_back = self._news.pop(0)
            run = self.home.name if self.home is not None else "this run"
            what = f"takes back what it found in {run}" if is_back else f"found {_CALLED[finding.severity]} in {run}"
            why = "With more steps the record shows it no more." if is_back else f"{finding.cause} {finding.cure}"
            text = f"gradwatch {what}: {finding.summary}. {why}"
            if finding is not raised:
                log.log(LEVELS[finding.severity], text)
            if self.on_finding is not None and not is_back:
                self._call(self.on_finding, finding)

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
        own = 0 if self._due_halt is None else rank() + 1
        flag = torch.full((), own, dtype=torch.int64, device=self.device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        source = int(flag) - 1
        if source >= 0:
            told = [self.halting]
            dist.broadcast_object_list(told, src=source, device=self.device)
            self.halting = told[0]
            self._halt(told[0])

    @property
    def _due_halt(self) -> Finding | None:
        """Why it shall halt, unless somebody mends it."""
        is_cured = self.halting is not None and self.cured_by is not None and self.cured_by(self.halting)
        return None if is_cured else self.halting

    @property
    def _where(self) -> str:
        return f" The record is in {self.home}." if self.home is not None else ""

    def _halt(self, finding: Finding | None) -> None:
        if finding is None:
            return
        said = f"{finding.summary}. {finding.cause} {finding.cure}{self._where}"
        text = f"training halted (halt_on={self.halt_on!r}): {said}"
        self.halted = True
        raise TrainingHalted(text, finding)

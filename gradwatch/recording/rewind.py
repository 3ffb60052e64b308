"""`Rewind`: back to a snapshot when a step went wrong, and on without the batches that did it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from gradwatch.analysis.rules import Finding
from gradwatch.errors import TrainingHalted, WatchError
from gradwatch.measure.distributed import world_size
from gradwatch.recording import resume
from gradwatch.recording.arguments import plain_optimizers
from gradwatch.recording.attach import watch_of
from gradwatch.recording.clipper import READ_STEPS
from gradwatch.recording.snapshot import Snapshot, Snapshots, Training, random_state, set_random_state
from gradwatch.recording.snapshot_files import SnapshotFiles
from gradwatch.recording.tape import Tape
from gradwatch.recording.trouble import Trouble, TroubleFinder, agreed
from gradwatch.recording.watch import Watch
from gradwatch.recording.zero import refuse_acting

log = logging.getLogger("gradwatch")

CURED_BY_REWIND = {"nonfinite", "spike", "exploding"}  # rules whose findings name the step at which it began


class Rewind:
    """Takes a training back to a snapshot when it goes wrong, and on without the batches that did it.

    `for batch in rewind(loader):` around an ordinary loop on a watched optimizer. Whatever happens does so between two
    steps, as the next batch is asked for. When the global gradient norm or the training loss (as `watch.log` was given
    it) was not finite, or stood out as for `SkipSpike()`, or a finding asks for it (`halt_on=`, of a rule that says
    when it began), weights, buffers, optimizer, schedulers, scaler, random numbers and the policy's state become those
    of the newest snapshot before that step; the batches since are given again, without the suspects. A step that a
    policy or a loss scaler left out did no harm and is no reason. In a distributed run use it on every rank: all go
    back together, and all must take the same steps.

    It costs the host's memory `keep` times what the weights, the buffers and the optimizer's state take on this rank,
    and the batches since the oldest snapshot, at most `keep * every` steps of them, which are held and not copied. On
    the host norms are looked at after every step; on a GPU, and with several ranks, every 16 steps, before each
    snapshot and at the end of a pass. Each pass begins with a snapshot.

    Args:
        model: the model that `gradwatch.watch` was given.
        optimizer: the watched optimizer, or several.
        scheduler: a learning-rate scheduler, or several; or what else has `state_dict` and `load_state_dict` (averages
            of the weights, counters of your own). Other counters of a loop are not taken back.
        scaler: a `torch.amp.GradScaler`.
        every: steps between two snapshots.
        keep: how many of them are kept.
        at_most: how often it goes back. After that, something that is not finite ends the training, and what only
            stands out is said once and left alone.
        skip: how many steps' batches are left out: those of the step that went wrong, and of the `skip - 1` before it.
            Where the snapshot is nearer than that, more are left out behind it.
        disk_every: every so many snapshots, and at each rewind, one is written to the run's folder, from which `resume`
            goes on in another process; 0 for never.

    Raises:
        WatchError: an argument makes no sense, or is not what the Watch was given.

    Source: Chowdhery et al. 2022 (PaLM), arXiv:2204.02311, section 5.1: restart about 100 steps before the spike, leave
    out 200 to 500 batches.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Iterable[Optimizer],
        scheduler: Any = None,
        scaler: Any = None,
        every: int = 200,
        keep: int = 3,
        at_most: int = 3,
        skip: int = 1,
        *,
        disk_every: int = 10,
    ) -> None:
        schedulers = [] if scheduler is None else [*scheduler] if isinstance(scheduler, list | tuple) else [scheduler]
        _check({"every": every, "keep": keep, "skip": skip}, {"at_most": at_most, "disk_every": disk_every}, schedulers)
        self.every, self.keep, self.at_most, self.skip = every, keep, at_most, skip
        self.count = 0  # how often it went back
        self.epoch = 0  # how many passes through a loader are over, or were left
        self._optimizers = plain_optimizers(optimizer)
        refuse_acting(self._optimizers, {"Rewind": True})
        layout = self._watch()._stepper.layout
        if not {id(p) for p in model.parameters()} >= {id(p) for p in layout.whole.values()}:
            raise WatchError(f"Rewind(model={type(model).__name__}): wanted the model that gradwatch.watch was given")
        self._training = Training(model, self._optimizers, schedulers, scaler, layout.device)
        self._finder = TroubleFinder()
        self._files = SnapshotFiles(disk_every)
        self._snapshots = Snapshots(self._training, every, keep)
        self._start: dict[str, Any] = {}  # the random numbers with which this pass began
        self._resumed: tuple[Snapshot, dict[str, Any]] | None = None
        self._seen = 0  # rows that were looked at
        self._looked = 0  # the step before which that was
        self._floor = 0  # the first step since the last rewind
        self._is_spent = False  # whether it was said that it goes back no more

    def __call__(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The batches of the loader, and after a rewind those since the snapshot again, without the suspects.

        Raises:
            WatchError: the optimizer is not watched, or another pass begins before this one is over.
            TrainingHalted: something is not finite, and there is no way back.
        """
        watch = self._watch()
        tape, steps, wait = self._begin(loader, watch), -1, self._training.copier.before_step
        cures = watch._live.cured_by = self._cures  # an object of this pass alone
        hooks = [o.register_step_pre_hook(wait) for o in self._optimizers]
        try:
            while True:
                if watch._stepper.steps != steps and self._settle(watch, tape):
                    steps = -1
                try:
                    place, batch = tape.next()
                except StopIteration:
                    if self._settle(watch, tape, at_end=True):
                        steps = -1
                        continue
                    break
                if watch._stepper.steps != steps:  # not between the batches that are accumulated for one
                    steps = watch._stepper.steps
                    self._snapshot(watch, tape, place)
                tape.forget(place) if watch.closed else tape.note(steps, place)
                yield batch
                if watch._live.cured_by is not cures:
                    raise WatchError(
                        "another pass through rewind(loader) began inside of this one: use one Rewind, and one loop "
                        "over it at a time; of nested loops wrap the loader of one"
                    )
        finally:
            if watch._live.cured_by is cures:
                watch._live.cured_by = None
                self.epoch += 1
            wait()
            for hook in hooks:
                hook.remove()

    def resume(self, folder: str | Path) -> bool:
        """Go on from the snapshot that the run in `folder` wrote last; before the first step. Whether there is one.

        The model, the optimizer, the Watch (which goes on in that folder) and the rest become what they were. `epoch`
        is the pass that was under way: begin the loop with it. The next `rewind(loader)` passes over the batches that
        were taken before, with the random numbers with which that pass began: a `DataLoader` then has the same order.
        Call it on every rank.

        Raises:
            RunError: the snapshot cannot be read, or the run is still being recorded.
            WatchError: steps were already taken, or it is of another model, optimizer or policy.
        """
        found = self._files.newest(Path(folder))
        if found is None:
            return False
        snapshot, kept = found
        self._watch().load_state_dict({**snapshot.state["watch"], "dir": str(folder)})
        self._training.put_back(snapshot)
        self._finder.load_state_dict(snapshot.state["finder"])
        self.count, self.epoch, self._floor = kept["count"], kept["epoch"], snapshot.step
        self._resumed = found
        return True

    # -------------------------------------------------------------------------------------------------------- a pass

    def _watch(self) -> Watch:
        found = watch_of(self._optimizers[0])
        if found is None:
            raise WatchError(
                "this optimizer is not watched, and Rewind acts on what a Watch measures: call "
                "gradwatch.watch(model, optimizer) before it, and close the Watch after the loop"
            )
        watched = found._stepper.optimizers
        if {*map(id, watched)} != {*map(id, self._optimizers)}:
            own, of_watch = (", ".join(type(o).__name__ for o in each) for each in (self._optimizers, watched))
            raise WatchError(f"Rewind(optimizer=[{own}]): wanted all optimizers of one Watch, here [{of_watch}]")
        return found

    def _begin(self, loader: Iterable[Any], watch: Watch) -> Tape:
        """A pass begins."""
        device, (resumed, self._resumed) = self._training.device, (self._resumed, None)
        generator = getattr(loader, "generator", None)
        if resumed is not None:
            self._start = resumed[1]["start"]
            set_random_state(self._start, device)
            if self._start["generator"] is not None and generator is not None:
                generator.set_state(self._start["generator"])
        own = generator.get_state() if isinstance(generator, torch.Generator) else None
        self._start = {**random_state(device), "generator": own}
        tape = Tape(iter(loader))
        if resumed is not None:
            tape.skip(resumed[0].place)
            tape.left_out.update(resumed[1]["left_out"])
            set_random_state(resumed[0].state["random"], device)
        self._snapshots.clear()
        watch._recorder.remember()
        self._seen, self._looked = watch._recorder.count, watch._stepper.steps
        self._files.folder = self._folder(watch)
        watch._stepper.notes["rewind"] = self._plan()
        return tape

    def _folder(self, watch: Watch) -> Path:
        """The run's, which rank 0 knows."""
        told = [str(watch.dir)]
        if world_size() > 1 and self._files.every:
            dist.broadcast_object_list(told, src=0, device=self._training.device)
        return Path(told[0])

    def _plan(self) -> str:
        pace = "on each step" if self._reads_each_step else f"every {READ_STEPS} steps and before a snapshot"
        size = next((f" of {one.size / 1e6:,.1f} MB" for one in self._snapshots), "")
        kept = f"{self.keep} in the host's memory with the batches since the oldest"
        return f"rewind: a snapshot{size} every {self.every} steps, {kept}; norms and losses are read {pace}"

    @property
    def _reads_each_step(self) -> bool:
        return self._training.device.type == "cpu" and world_size() == 1

    def _snapshot(self, watch: Watch, tape: Tape, place: int) -> None:
        """Take one before the coming step, for which the batch at `place` is the first, if it is time."""
        stepper = watch._stepper
        if not self._snapshots.is_due(stepper.steps, stepper.layout):
            return
        own = {
            "watch": resume.saved(stepper, watch.dir, watch._writer.run.attempt),
            "finder": self._finder.state_dict(),
        }
        taken = self._snapshots.take(stepper.steps, place, stepper.layout, own)
        tape.forget(next(iter(self._snapshots)).place)
        self._files.offer(taken, self._kept(tape))
        watch._stepper.notes["rewind"] = self._plan()

    def _kept(self, tape: Tape) -> dict[str, Any]:
        """What is to be known beside a snapshot, to go on in another process."""
        return {"count": self.count, "epoch": self.epoch, "start": self._start, "left_out": sorted(tape.left_out)}

    # --------------------------------------------------------------------------------------------------------- rewinds

    def _settle(self, watch: Watch, tape: Tape, at_end: bool = False) -> bool:
        """Between two steps: whether one of the last went wrong, and the training was taken back."""
        steps = watch._stepper.steps
        now_and_then = steps // READ_STEPS != self._looked // READ_STEPS
        is_due = self._snapshots.is_due(steps, watch._stepper.layout)  # a snapshot is of a sound state
        due = at_end or self._reads_each_step or now_and_then or is_due
        if watch._stepper.is_open or not due:
            return False
        self._looked = steps
        found = [self._finder.find(watch._recorder.remember().read(self._seen)), self._asked(watch)]
        self._seen = watch._recorder.count
        trouble = agreed(min((t for t in found if t is not None), default=None), self._training.device)
        if trouble is None:
            return False
        snapshot = self._snapshots.before(trouble.step)
        if snapshot is None or self.count >= self.at_most:
            self._give_up(watch, trouble)
            return False
        self._go_back(watch, tape, snapshot, trouble)
        return True

    def _cures(self, finding: Finding) -> bool:
        """Whether going back is what a finding asks for that would halt the training, and can be done."""
        is_old = finding.last_step < self._floor
        older = self.count < self.at_most and self._snapshots.before(finding.first_step) is not None
        return finding.rule in CURED_BY_REWIND and (is_old or older)

    def _asked(self, watch: Watch) -> Trouble | None:
        """What a finding asks for."""
        finding, live = watch._live.halting, watch._live
        if finding is None or not self._cures(finding):
            return None
        if finding.last_step < self._floor:  # it is of steps that were taken back
            live.halting = None
            return None
        step = finding.first_step if finding.first_step >= self._floor else finding.last_step
        return Trouble(step, finding.summary, is_broken=False)

    def _go_back(self, watch: Watch, tape: Tape, snapshot: Snapshot, trouble: Trouble) -> None:
        """Take the training back to a snapshot, and leave the suspects out from now on."""
        stepper = watch._stepper
        suspects = tape.suspects(snapshot.step, trouble.step, self.skip)
        self.count += 1
        log.warning(
            "gradwatch rewinds %s: %s in step %d. Back to the state before step %d, without %d of the batches since "
            "(rewind %d of at most %d)",
            watch.dir.name, trouble.why, trouble.step, snapshot.step, len(suspects), self.count, self.at_most,
        )  # fmt: skip
        watch._recorder.add({"rewound_to": snapshot.step, "rewound_for": trouble.step, "left_out": len(suspects)})
        tape.left_out |= suspects
        self._files.write(snapshot, self._kept(tape))  # first: who is killed from here on resumes there
        self._snapshots.go_back(snapshot, stepper.steps)
        resume.go_back(snapshot.state["watch"], stepper)
        self._finder.load_state_dict(snapshot.state["finder"])
        watch._live.halting = None
        if tape.has_given(stepper.steps):  # at the end of a pass: gradients of the broken weights, and no step yet
            for o in self._optimizers:
                o.zero_grad()
        tape.go_back(snapshot.place, snapshot.step)
        self._floor = stepper.steps

    def _give_up(self, watch: Watch, trouble: Trouble) -> None:
        """There is no way back, or there were enough of them.

        Raises:
            TrainingHalted: what comes after it cannot be right.
        """
        why = f"it went back {self.count} times" if self.count >= self.at_most else "no older snapshot fits"
        if trouble.is_broken:
            watch._live.halted = True
            raise TrainingHalted(
                f"training halted: {trouble.why} in step {trouble.step}, and Rewind cannot help: {why}. The record is "
                f"in {watch.dir}. Look at the batches of those steps, lower the learning rate, or raise keep, at_most."
            )
        if not self._is_spent:
            log.warning("gradwatch: %s in step %d; left alone: %s", trouble.why, trouble.step, why)
        self._is_spent = True


def _check(positive: Mapping[str, int], more: Mapping[str, int], schedulers: Iterable[Any]) -> None:
    for least, settings in ((1, positive), (0, more)):
        for name, value in settings.items():
            if type(value) is not int or value < least:
                raise WatchError(f"Rewind({name}={value!r}): wanted a whole number from {least} on")
    for given in schedulers:
        if not (hasattr(given, "state_dict") and hasattr(given, "load_state_dict")):
            raise WatchError(f"Rewind(scheduler={given!r:.80}): wanted an object with state_dict and load_state_dict")

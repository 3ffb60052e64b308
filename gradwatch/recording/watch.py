"""The Watch: what a training loop talks to while it is watched. It logs, closes, resumes, and drains between steps."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from gradwatch.errors import status_of, tell, warn
from gradwatch.measure.layout import Layout
from gradwatch.measure.weight_updates import Weights
from gradwatch.recording import mlflow_target, notebook_view, open_watches, resume, signals, torch_patches
from gradwatch.recording.arguments import Settings
from gradwatch.recording.backward_calls import another_thread_is_in_one
from gradwatch.recording.callbacks import Live
from gradwatch.recording.clipper import Clipper
from gradwatch.recording.courier_process import CourierProcess
from gradwatch.recording.hooks import taken_off, untraced, watched_by_nobody
from gradwatch.recording.inside import Inside
from gradwatch.recording.layers import Source, describe, held, tell_forgotten
from gradwatch.recording.learning_rate import RateScale
from gradwatch.recording.loop_clips import Clip
from gradwatch.recording.loop_writes import StepsElsewhere
from gradwatch.recording.plan import nothing_seen, outcome, plan
from gradwatch.recording.recorder import Recorder
from gradwatch.recording.refusal import itemized, loggable
from gradwatch.recording.shared_run import Shared
from gradwatch.recording.stepper import Stepper
from gradwatch.storage.delivery_cursor import read_cursor
from gradwatch.storage.lazy_block import LazyBlock
from gradwatch.storage.null_writer import NullWriter
from gradwatch.storage.shared_folder import home_of
from gradwatch.storage.writer import RunWriter


class Watch:
    """A training loop that is recorded, made by `gradwatch.watch`: a context manager, closed at exit at the latest."""

    def __init__(
        self,
        clipper: Clipper,
        weights: Weights,
        inside: Inside,
        writer: RunWriter | NullWriter,
        source: Source,
        live: Live,
        settings: Settings,
        verbose: bool,
        shared: Shared | None = None,
    ) -> None:
        self._writer, self._source, self._live, self._shared = writer, source, live, shared
        self._verbose = verbose and self._writes
        self._courier = CourierProcess(*settings.couriers(self._writes), shared.start_courier if shared else None)
        self._closed, self._ending = False, ""  # whether it has ended; with which status, once close() has begun
        self._url_said = shared is not None and len(shared.names) > 1  # by the first of them
        self._resumed_at = 0  # the number of the first step
        run, kept, device = writer.run, source.kept(clipper.layout.names), clipper.layout.device
        self._looking, seconds = weights.looking, writer.flush_seconds
        self._recorder = Recorder(run, kept, clipper.fields, device, self._keep, seconds, self._looking)
        rates = RateScale(run.lr_scale, run.warmup)
        self._loss_graphs, self._steps_elsewhere = inside.loss_graphs, StepsElsewhere(self._looking)
        self._stepper = Stepper(clipper, weights, self._recorder, rates, self._between, self._after, inside, self)

    def _begin(self) -> None:
        """Watch from now on. Wherever this is interrupted, `_undo` takes it back."""
        self._stepper.attach()
        open_watches.enter(self, self._close_at_exit)
        signals.arm()

    def _undo(self) -> None:
        self._leave()
        self._stepper.detach(finish=False)
        signals.disarm()

    @property
    def dir(self) -> Path:
        """The folder recorded to: the run's, or of a named Watch its own in the run's. Unnamed, on ranks that write
        nothing, the folder of the runs.
        """
        return self._writer.folder

    @property
    def _writes(self) -> bool:
        """Whether this process records; of several ranks, one does."""
        return isinstance(self._writer, RunWriter)

    @property
    def _target(self) -> Mapping[str, Any] | None:
        """The MLflow run that this process writes to, as the manifest notes it; None where it writes none."""
        return self._writer.run.mlflow if self._writes else None

    @property
    def closed(self) -> bool:
        """Whether this Watch has ended."""
        return self._closed

    __reduce__ = watched_by_nobody

    @untraced
    def log(self, /, **values: float | Tensor | Sequence[int]) -> None:
        """Add scalars to the last step taken: numbers, or one-element tensors on any device (nothing waits for them).

        Tensors are kept as float32. The last value of a name in a step counts. `batch`, `sample`, `shard` may be lists.
        What cannot be recorded is left out, with a `GradwatchWarning`: a value that is no scalar, a name that gradwatch
        records itself, as `lr`, one of more than 250 characters, and the 4,001st of the run.
        """
        if self._closed:
            warn(f"watch.log({', '.join(values)}) after close(): nothing was recorded")
            return
        if not self._steps_elsewhere.are_taken(self._stepper.steps, self._stepper.layout.params):
            self._recorder.log(itemized(loggable(values, self._recorder.logged, self._looking.miss)))
        self._after()

    @untraced
    def _log_next(self, /, **values: float | Tensor) -> None:
        """Add scalars to the step that is about to begin, as `log` does to the last one."""
        if not self._closed:
            self._recorder.add(values, ahead=True)

    def _clipped(self, clip: Clip) -> None:
        self._stepper.loop_clips.add(clip)

    def _holds(self, optimizers: Iterable[Optimizer]) -> bool:
        """Whether one of these parameters is in an optimizer that is watched here."""
        mine = {id(p) for p in self._stepper.layout.params}
        return any(not mine.isdisjoint(held(o)) for o in optimizers)

    def _deliver_to(self, target: Mapping[str, Any]) -> None:
        """Name the MLflow run (`run_id`, `experiment_id`, `tracking_uri`, `joined`), unless one is named already."""
        known = self._writer.run.mlflow
        if not self._closed and known is not None and not known["run_id"]:
            self._writer.update(mlflow={**known, **target})

    def close(self, status: str = "FINISHED", timeout: float | None = None) -> None:
        """Write what is left, take the hooks off, and give the courier a moment to deliver. Twice is harmless.

        Where it is interrupted (Ctrl-C) it is not over: the next call goes on with it, at the latest that at exit.

        Args:
            status: the run's status in MLflow: FINISHED, FAILED or KILLED; of a training that was halted, FAILED. That
                of the first call counts.
            timeout: how many seconds the courier is given at most, 0 for not at all. By default 10 (1.5 after more than
                a minute: it has all but the end by then), and none where it is still importing MLflow, as after a
                training of a few seconds. It goes on without the script; what is missing is said in one line.
        """
        if self._closed:
            return
        self._ending = self._ending or ("FAILED" if self._live.halted and status == "FINISHED" else status)
        try:
            self._stepper.detach(waits=not signals.is_ending())
            self._drain()
            # else a backward may be writing to the gradients
            if self._stepper.hooks.are_here and not another_thread_is_in_one():
                with self._looking.at("what nobody trains"):
                    tell_forgotten(getattr(self, "_source", None), self._writer)
            self._courier.start(self.dir)
            self._courier.restart_if_killed(self.dir, at_once=True)
        except Exception:  # what was handed over before is written all the same
            self._end()
            raise
        self._end()
        steps, run = self._stepper.steps, self._writer.run
        seen = steps > self._resumed_at
        self._say(outcome(run, steps, self._writer.lost, self.dir) if seen else nothing_seen(run, self.dir))
        recorded, to = range(run.first_step or 0, steps), mlflow_target.place(run.mlflow)
        cursor, missing = self._courier.wait(self.dir, recorded, timeout, to)
        self._say_url(cursor)
        self._say(missing)
        self._say(self._live.conclude(steps) if seen else "")

    def _abandon(self) -> None:
        """End without a trace: in a forked process, whose parent goes on watching and writing."""
        if not self._closed:
            self._undo()
            self._writer.abandon()

    def state_dict(self) -> dict[str, Any]:
        """The policy's state, the step count and where the run is recorded, for a checkpoint.

        Waits until what is recorded so far is on disk, a few milliseconds: a run resumed from here has its past there.
        """
        if not self._closed:
            self._drain(open_too=False)
            self._writer.flush()
        return resume.saved(self._stepper, self.dir, self._writer.run.attempt)

    def _flush(self) -> None:
        """Put what is recorded so far on disk; only the thread that trains can take the rows that are on the device."""
        if not self._closed:
            if self._stepper.hooks.are_here:
                self._drain(open_too=False)
            self._writer.flush()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was saved: same policy state, next step number, and the same run folder if it is there.

        Under another policy, constraint or scale of the rates what follows is a run of its own.

        Raises:
            WatchError: steps were already taken, or the state belongs to other layers.
            RunError: that run is still being recorded, by another Watch or another process.
        """
        layout = resume.other_order(state, self._stepper)
        if layout is not None:
            self._relayout(layout)
        changed = resume.load(state, self._stepper)
        self._resumed_at = self._stepper.steps
        folder = Path(state["dir"])
        apart = resume.apart(folder, changed)
        if apart or folder.resolve() == self.dir.resolve() or isinstance(self._writer, NullWriter):
            self._writer.update(first_step=self._stepper.steps, goes_on_from=home_of(folder).name if apart else None)
        else:
            self._writer = resume.reopened(folder, int(state["attempt"]), self._writer)
            self._restart(self._stepper.layout)
            self._live.rejoin(home_of(folder), self._stepper.steps)
        self._stepper.settings.meet_again()  # those of a checkpoint
        self._writer.update(optimizers=self._stepper.settings.describe(self._stepper.layout))
        self._say(f"resumed at step {self._stepper.steps:,}{f': {apart}' if apart else f', recording to {self.dir}'}")

    def plan(self) -> str:
        """What happens on each step, in words: which way each optimizer's gradients are scaled, and why."""
        return plan(self._stepper)

    __repr__, _repr_html_, show = notebook_view.in_a_line, notebook_view.in_a_notebook, notebook_view.show

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(status_of(kind))

    def _let_go(self) -> Callable[[], bool]:
        """Hold the model and its optimizers no more; only between two steps. Whoever else holds none frees them.

        The optimizers' own hooks then keep the Stepper. What is returned takes hold of it again, and tells whether it
        was still there; if not, `close` is all that is left to do.
        """
        torch_patches.leave(self._stepper.listener)
        self._stepper.inside.stop()
        self._stepper.keeps = self._source  # which holds the model
        found, steps = weakref.ref(self._stepper), self._stepper.steps
        del self._stepper, self._source

        def hold() -> bool:
            stepper = found()
            if stepper is None:
                self._stepper = SimpleNamespace(steps=steps, detach=lambda **_: None, hooks=taken_off())  # type: ignore[assignment]
                return False
            self._stepper, self._source = stepper, stepper.keeps
            stepper.keeps = None
            torch_patches.listen(stepper.listener)
            stepper.inside.begin(stepper.steps, stepper.layout)
            return True

        return hold

    def _end(self) -> None:
        self._writer.close(self._ending)
        self._leave()
        signals.disarm()

    def _leave(self) -> None:
        """The last of closing: whatever interrupts it before, somebody will call `close` again."""
        open_watches.leave(self, self._close_at_exit)
        self._closed = True

    def _keep(self, block: LazyBlock) -> None:
        self._writer.append(block)
        with self._looking.at("what the rule of non-finite gradients says"):
            self._live.check(block)

    def _between(self) -> None:
        self._courier.start(self.dir)
        layout = self._source.changed(self._stepper.layout)
        if layout is not None:
            self._relayout(layout)
        elif self._recorder.due:
            self._drain(waits=False)
        self._live.between(self._stepper.steps, self._stepper.clipper.ended_by(self._stepper.steps))

    def _after(self) -> None:
        """A step has ended, or something was logged: a long step or validation must not hold the rows back."""
        if not self._stepper.is_open and self._recorder.due_at_once:
            self._drain(open_too=False, waits=False)

    def _relayout(self, layout: Layout) -> None:
        """Go on with other layers, or with the same ones elsewhere; what is recorded so far is handed over first."""
        self._drain()
        self._writer.update(layers=describe(layout), optimizers=self._stepper.settings.describe(layout))
        self._restart(layout)
        self._stepper.relayout(layout)

    def _restart(self, layout: Layout) -> None:
        kept, fields = self._source.kept(layout.names), self._stepper.clipper.fields
        self._recorder.restart(self._writer.run, kept, fields, layout.device)

    def _drain(self, open_too: bool = True, waits: bool = True) -> None:
        elsewhere = not self._stepper.hooks.are_here  # the training goes on meanwhile, and may add to its last row
        self._recorder.drain(None if open_too else self._recorder.count - (self._stepper.is_open or elsewhere), waits)
        self._live.look(self._stepper.steps)
        if self._loss_graphs.found != self._writer.run.loss_graph:
            self._writer.update(loss_graph=self._loss_graphs.found)
        target = self._writer.run.mlflow
        if target is not None and not target["run_id"]:
            active = mlflow_target.find_active_run()
            if active is not None:
                self._writer.update(mlflow={**target, **active})
        self._courier.restart_if_killed(self.dir)
        if not self._url_said and self._courier.process is not None:
            self._say_url(read_cursor(self.dir))

    def _close_at_exit(self) -> None:
        self.close(status_of(None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)))

    def _say_url(self, cursor: Mapping[str, Any]) -> None:
        if cursor.get("url") and not self._url_said:
            self._url_said = True
            served = str(cursor.get("tracking_uri")).startswith("http")
            self._say(f"MLflow{'' if served else ', once `gradwatch ui` runs'}: {cursor['url']}")

    def _say(self, text: str) -> None:
        """One line on stderr, unless the Watch was asked to be quiet."""
        if self._verbose and text:
            tell(f"gradwatch: {text}")

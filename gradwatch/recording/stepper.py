"""What is done in one optimizer step: who takes it together, measure, clip, record, constrain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.amp import GradScaler
from torch.optim import Optimizer

from gradwatch.errors import warn
from gradwatch.measure import fused
from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.dropped import put_back
from gradwatch.measure.layout import Layout
from gradwatch.measure.weight_updates import Weights
from gradwatch.recording import learning_rate, multi_optimizer
from gradwatch.recording.clipper import Clipped, Clipper
from gradwatch.recording.hooks import Closure, Hooks, refuse_capture, untraced
from gradwatch.recording.inside import Inside
from gradwatch.recording.learning_rate import RateScale
from gradwatch.recording.loop_clips import Clip, LoopClips
from gradwatch.recording.loop_writes import GradientWrites, WeightWrites
from gradwatch.recording.optimizer_settings import GroupSettings
from gradwatch.recording.recorder import Recorder
from gradwatch.recording.step import Step, clear_up
from gradwatch.recording.step_row import look_back, record, record_late
from gradwatch.recording.torch_patches import Listener, leave, listen

_MOST_SECONDS = 5.0  # that `detach` waits for a step that another thread is in


class Stepper:
    """Hangs on the optimizers, once attached, and acts on each of their steps; `recorder` takes the rows.

    Several optimizers that step one after the other on the same gradients take one step together: the first of them
    measures and scales for all. `between` is called before each step begins, `after` when an optimizer has stepped.
    `owner` is whom an optimizer's hooks lead to.
    """

    def __init__(
        self,
        clipper: Clipper,
        weights: Weights,
        recorder: Recorder,
        rate_scale: RateScale,
        between: Callable[[], None],
        after: Callable[[], None],
        inside: Inside | None = None,
        owner: object = None,
    ) -> None:
        self.clipper, self.weights, self.recorder, self.inside = clipper, weights, recorder, inside or Inside()
        self.between, self.after, self.rate_scale, self.optimizers = between, after, rate_scale, clipper.optimizers
        self.resumed_at, self.together = 0, True  # steps before the first row; whether the optimizers step as one
        self.taken_back = 0  # steps that a rewind has undone: the schedules do not count them
        self.notes: dict[str, str] = {}  # what others do around the steps, for the plan
        self.loop_clips, self._in_closure = LoopClips(self.optimizers), False
        self.gradient_writes, self.weight_writes = GradientWrites(weights.looking), WeightWrites(weights.looking)
        self.settings = GroupSettings(dict(zip(clipper.names, clipper.optimizers, strict=True)))
        self._joint_lane = "+".join(clipper.names)
        self._step: Step | None = None
        self._scalers: dict[Optimizer, GradScaler] = {}  # scalers that were asked for a step which has not come yet
        self.hooks = Hooks(self.optimizers, self._begin, self._end, owner)
        self.listener = Listener(self._under_scaler, self._loop_clips)  # of scaler steps and of the loop's own clips
        self.keeps: Any = None  # what shall live as long as the optimizers do

    def attach(self) -> None:
        """Hang on the optimizers. Wherever this is interrupted, `detach` takes off what is on."""
        clear_up(*self.optimizers)  # after a step that raised under another Watch
        if self.rate_scale.acts:
            learning_rate.guard(self.optimizers, self)
        self.hooks.attach()
        listen(self.listener)
        self.recorder.add(self.inside.at_first(self.steps, self.layout, self.weights.looking))

    @property
    def layout(self) -> Layout:
        """The layers that are watched."""
        return self.clipper.layout

    @property
    def steps(self) -> int:
        """How many steps were taken. One counts when its row is recorded: where that is interrupted, it never was."""
        return self.resumed_at + self.recorder.count

    @property
    def is_open(self) -> bool:
        """Whether the current step has yet to end."""
        return self._step is not None

    def detach(self, finish: bool = True, waits: bool = True) -> None:
        """Take the hooks off, and `finish` the step under way; one that this thread is in goes on without them."""
        self.hooks.remove(_MOST_SECONDS if waits else 0.0)
        self.inside.stop()
        clear_up(*self.optimizers)
        learning_rate.unguard(self)
        leave(self.listener)
        if finish and self.layout.sharding is None:  # otherwise the other ranks may be elsewhere
            self._finish(goes_on=False)

    def relayout(self, layout: Layout) -> None:
        """Go on with other layers, or the same on another device or of another dtype; only between two steps."""
        weights = self.weights.on(layout)
        self.clipper.relayout(layout)
        self.weights, self.weight_writes = weights, WeightWrites(weights.looking)

    # -------------------------------------------------------------------------------------------- what the loop calls

    def _begin(self, optimizer: Optimizer, closure: Closure | None) -> Closure | None:
        """A step begins. With a closure the gradients come later: the one returned acts when they are there."""
        refuse_capture(self.clipper.layout.device)
        fused.restore(optimizer)  # after a step that raised
        if self.rate_scale.acts:
            learning_rate.restore(optimizer)
        scaler = self._scalers.pop(optimizer, None) if self._scalers else None
        inside = len(self.optimizers) > 1 and multi_optimizer.inside_backward()
        if inside:
            multi_optimizer.check_inside(self.clipper.policy, self.layout)
        step = self._open(optimizer, scaler, inside, closure is not None)
        if self.hooks.is_removed:  # by who was told of a finding
            return None
        leads = optimizer is step.optimizers[0]
        if leads and inside:
            multi_optimizer.when_backward_ends(self._finish)
        if not leads and step.is_unscaled:
            fused.keep_scale_out(optimizer)
        step.running, step.young = optimizer, ()
        if step.rate != 1.0:
            learning_rate.due(optimizer, step.rate)
        if fused.is_scaled(optimizer):
            step.is_scaled, step.young = True, fused.momentum_to_come(optimizer)
        if closure is not None:
            return self._evaluating(closure, optimizer, step)
        if leads or step.is_lost or inside:
            self._act(step, optimizer, is_first=leads)
        return None

    def _evaluating(self, closure: Closure, optimizer: Optimizer, step: Step) -> Closure:
        """The closure, and what is done when it has run."""
        evaluated = untraced(self._evaluated)

        def evaluate(*args: Any, **kwargs: Any) -> Any:
            learning_rate.restore(optimizer)  # a closure is the script's own code
            self._in_closure = True
            try:
                loss = closure(*args, **kwargs)
            finally:
                self._in_closure = False
            if not self.hooks.is_removed:
                evaluated(optimizer, step)
                learning_rate.scale(optimizer, (self._step or step).rate)
            return loss

        return evaluate

    @without_autograd
    def _evaluated(self, optimizer: Optimizer, begun: Step) -> None:
        """The closure ran: the record and the policy's state move once a step, at its first evaluation."""
        step = self._step or begun
        joins = optimizer is not step.optimizers[0] and not step.is_lost
        if joins and multi_optimizer.have_changed(step.seen, optimizer, step.scaler):
            before, step = step, self._part(optimizer, step.scaler, step.inside)
            step.running, step.young, step.is_scaled = optimizer, before.young, before.is_scaled
        leads = optimizer is step.optimizers[0]
        self._act(step, optimizer, is_first=leads and not step.evaluations)
        step.evaluations += leads

    def _end(self, optimizer: Optimizer) -> None:
        """A step has ended."""
        step, rate = self._step, None
        if step is not None and step.evaluations and step.here is not None and optimizer is step.optimizers[0]:
            self.recorder.add({"evaluations": step.evaluations})
        if step is not None and step.young:
            fused.settle_momentum(optimizer, step.young)
        fused.restore(optimizer)
        self.settings.stepped(optimizer)
        if self.weights.renorm is not None and not (step is not None and step.left_out):
            rate = self.weights.constrain(self.clipper.held(optimizer))
        if step is not None:
            if rate is not None:
                step.renorm_rate = rate if step.renorm_rate is None else step.renorm_rate.fmax(rate)
            step.running = None
            if not self.together or len(step.optimizers) == len(self.optimizers):
                put_back([] if step.inside else step.left_out)
                self._finish()
        self.after()

    @contextmanager
    def _under_scaler(self, optimizer: Optimizer, scaler: GradScaler) -> Iterator[None]:
        """Around `scaler.step(optimizer)`: a step that does not come is one that the scaler dropped."""
        fused.restore(optimizer)  # after a step that raised: from here on the attribute is the scaler's
        if optimizer not in self.optimizers or not scaler.is_enabled():
            yield
            return
        self._scalers[optimizer] = scaler
        try:
            yield
            if self._scalers.pop(optimizer, None) is not None:
                self._dropped(optimizer, scaler)
        finally:
            self._scalers.pop(optimizer, None)

    @untraced
    @without_autograd
    def _dropped(self, optimizer: Optimizer, scaler: GradScaler) -> None:
        """A step that the scaler dropped without calling it: it is recorded, and nothing else happens."""
        step = self._open(optimizer, scaler, inside=False)
        step.running = optimizer
        if optimizer is step.optimizers[0]:
            look_back(self, step)
            record(self, step, self.clipper.dropped(step, optimizer, not self.together))
            step.is_lost = True
        step.running = None
        if not self.together or len(step.optimizers) == len(self.optimizers):
            self._finish()

    # --------------------------------------------------------------------------------------------------------- steps

    def _open(self, optimizer: Optimizer, scaler: GradScaler | None, inside: bool, closure: bool = False) -> Step:
        """Begin a step, or join the one another optimizer began."""
        step = self._step
        if step is None or not self.together or len(step.optimizers) == len(self.optimizers):
            return self._new_step(optimizer, scaler, inside)
        if optimizer in step.optimizers:
            raised = step.running is not None or step.inside  # its own step, or the backward that it was part of
            return (self._new_step if raised else self._part)(optimizer, scaler, inside)
        if step.is_lost or inside or closure or not multi_optimizer.have_changed(step.seen, optimizer, scaler):
            step.optimizers.append(optimizer)
            step.scaler, step.inside = scaler, inside
            return step
        return self._part(optimizer, scaler, inside)

    def _new_step(self, optimizer: Optimizer, scaler: GradScaler | None, inside: bool) -> Step:
        """Begin a step that `optimizer` leads."""
        if self._step is not None:
            self._finish()
        self.between()
        number = self.steps
        rate = self.rate_scale.at(number - self.taken_back) if self.rate_scale.acts else 1.0
        step = self._step = Step(optimizer, scaler, inside, rate, number)
        step.is_measured = self.weights.before_step(number, None if self.together else optimizer)
        step.grad_writes = self.gradient_writes.since(optimizer)
        step.weight_writes = self.weight_writes.since(optimizer)
        return step

    def _part(self, optimizer: Optimizer, scaler: GradScaler | None, inside: bool) -> Step:
        """From now on each optimizer's step is one of its own; this one's begins."""
        step, self.together = self._step, False
        if step is not None and step.here is not None:  # its row is of the layers of its leader only
            own = self.clipper.held(step.optimizers[0])
            present = tuple(a and b for a, b in zip(step.here, own, strict=True))
            self.recorder.amend(present=present, optimizer=self.lane(step))
        warn(
            "the watched optimizers do not step together: from now on each one's gradients are measured and clipped "
            "alone, and each optimizer.step() is a step"
        )
        return self._new_step(optimizer, scaler, inside)

    def _act(self, step: Step, optimizer: Optimizer, is_first: bool) -> None:
        """Measure the gradients, ask the policy, scale; once a step, where `is_first`, that is recorded.

        After a leader that was dropped, each of the others is clipped by its own gradients.
        """
        alone = step.is_lost or step.inside or not self.together
        if is_first:
            look_back(self, step)
        clipped = self._clip(step, optimizer, alone, is_first)
        if clipped is not None and clipped.unscaled:
            step.is_unscaled = not alone
        if is_first:
            record(self, step, clipped)
        if step.inside and clipped is not None:
            step.pieces = step.pieces or multi_optimizer.Pieces(self.layout)
            step.pieces.add(clipped.batch.layout.places or (), clipped.batch.here, clipped.fields[:-1])
        if clipped is not None and clipped.batch.skipped is not None:
            step.left_out = self.clipper.leave_out(optimizer, clipped)
            step.young = step.young or fused.momentum_to_come(optimizer)
        if not alone and len(self.optimizers) > 1:
            step.seen = multi_optimizer.seen(self.layout.params)

    def _clip(self, step: Step, optimizer: Optimizer, alone: bool, is_first: bool) -> Clipped | None:
        """What came of the gradients; None where they could not be measured. Without a policy nothing acts on them."""
        ahead = self.recorder.row_ahead() if is_first and not step.inside else None
        if self.clipper.policy is not None:
            return self.clipper.clip(step, optimizer, alone, is_first or step.inside, ahead)
        with self.weights.looking.at("grad_norm"):
            return self.clipper.clip(step, optimizer, alone, False, ahead)
        return None

    def _loop_clips(self, clip: Clip) -> None:
        """The loop has clipped: before a step, or inside an optimizer's own, whose gradients are measured by then."""
        step = self._step
        if step is None or step.running is None or step.here is None:
            self.loop_clips.add(clip)
        elif not self._in_closure:  # of a closure the first evaluation is recorded
            record_late(self, step, clip)

    def _finish(self, goes_on: bool = True) -> None:
        """After the last optimizer of a step: what is measured only every few steps."""
        step, self._step = self._step, None  # at once: whatever raises from here on, the step is over
        if step is None:
            return
        self.weight_writes.note(step.optimizers)
        found: dict[str, Any] = {}
        looks, lanes = step.is_measured or self.weights.slots, () if self.together else self.clipper.names
        samples = looks or self.inside.samples
        if samples:
            asked = looks and step.here is not None
            weights = self.weights.after_step(self.optimizers, step.renorm_rate, step.is_measured) if asked else None
            found = self.inside.end(self.layout, self.weights.looking, weights)
        if goes_on and not self.hooks.is_removed and (samples or lanes):
            self.inside.begin(self.steps, self.layout, lanes, samples)
        if step.here is None:
            return
        if step.pieces is not None:
            present, fields = step.pieces.joined()
            self.recorder.amend([*fields, None], present=present)
        if found:
            self.recorder.measured(found.pop("weights", {}))
            self.recorder.add(found.pop("micro_batches", {}))
            for table, sample in found.items():
                if sample is not None:
                    self.recorder.sampled(table, *sample)

    def lane(self, step: Step) -> str:
        """The names of the optimizers that take the step."""
        return self._joint_lane if self.together else self.clipper.names[self.optimizers.index(step.optimizers[0])]

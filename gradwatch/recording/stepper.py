"""What is done in one optimizer step: measure, ask the policy, scale, record, constrain."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from gradwatch.errors import GradwatchWarning
from gradwatch.measure import fused
from gradwatch.measure.batch import Batch, drop, gradients
from gradwatch.measure.ddp import RankNorms
from gradwatch.measure.layout import Layout
from gradwatch.measure.loss_scale import Scaled, find_scale
from gradwatch.policies.base import Policy, State
from gradwatch.recording.hooks import Closure, Hooks, refuse_capture, untraced
from gradwatch.recording.layers import held
from gradwatch.recording.multi_optimizer import Pieces, SameGradients, check_inside, inside_backward, when_backward_ends
from gradwatch.recording.policy_state import carried, keep_if
from gradwatch.recording.recorder import Recorder, Row, learning_rates
from gradwatch.recording.torch_patches import LoopClips, listen
from gradwatch.recording.weights import Weights, slot_norms

Call = Callable[[], None]


class Stepper:
    """Hangs on the optimizers and acts on each of their steps; `recorder` takes the rows.

    Several optimizers that step one after the other on the same gradients take one step together: the first of them
    measures and scales for all. `between` is called before each step begins, `after` when an optimizer has stepped.
    """

    def __init__(
        self,
        layout: Layout,
        optimizers: dict[str, Optimizer],
        policies: tuple[Policy | None, Policy | None],
        every: int,
        slots: bool,
        rank_norms: RankNorms | None = None,
    ) -> None:
        self.layout, self.names, self.optimizers = layout, tuple(optimizers), tuple(optimizers.values())
        (self.clip, self.renorm), self._weights = policies, Weights(layout)
        self.every, self.slots, self.rank_norms = every, slots, rank_norms
        self.steps, self.together = 0, True  # steps begun so far; whether the optimizers step as one
        self.state = self._first_state()
        self.policy_fields = self._policy_fields()
        # Under sharding this rank may lack a gradient that another has
        self.fields = self.policy_fields if layout.sharding is None else ("present", *self.policy_fields)
        self.loop_clips = LoopClips(self.optimizers)
        self._name = "+".join(self.names)
        self._round: list[Optimizer] = []  # those that have begun the current step
        self.is_open = False  # whether the current step has yet to end
        self._same = SameGradients()
        self._inside = False  # whether the current step is taken inside backward, an optimizer at a time
        self._pieces = Pieces(layout)
        self._evaluations = 0  # how often the closure of its leader ran
        self._lost = False  # whether the loss scaler dropped the leader of the current step before it began
        self._unscaled = False  # whether this step's gradients were unscaled here, for all optimizers that take part
        self._young: list[dict[str, Any]] = []  # param groups whose momentum comes into being in the current step
        self._scalers: dict[Optimizer, GradScaler] = {}  # scalers that were asked for a step which has not come yet
        self._scaler: GradScaler | None = None  # the one that the current step runs under

    def attach(self, recorder: Recorder, between: Call, after: Call, owner: object = None) -> None:
        """Begin to act on the optimizers' steps, for `owner` (whom an optimizer's hooks so lead to)."""
        self.recorder, self.between, self.after = recorder, between, after
        self._restore_scales()  # of a step that raised under another Watch
        self._hooks = Hooks(self.optimizers, self._begin, self._end, owner)
        self._leave = listen(self._under_scaler, self.loop_clips.add)

    def detach(self, finish: bool = True) -> None:
        """Take the hooks off, and `finish` the step under way."""
        self._restore_scales()
        self._hooks.remove()
        self._leave()
        if finish and self.layout.sharding is None:  # otherwise the other ranks may be elsewhere
            self._end_round()

    def relayout(self, layout: Layout) -> None:
        """Go on with other layers, or the same on another device or of another dtype; only between two steps."""
        old = self._first_state()
        self.layout, self._weights, self._pieces = layout, Weights(layout), Pieces(layout)
        self.state = carried(self.state, old, self._first_state())

    # -------------------------------------------------------------------------------------------- what the loop calls

    def _begin(self, optimizer: Optimizer, closure: Closure | None) -> Closure | None:
        """A step begins. With a closure the gradients come later: the one returned acts when they are there."""
        refuse_capture(self.layout.device)
        fused.restore_scale(optimizer)  # after a step that raised
        self._scaler = self._scalers.pop(optimizer, None)
        self._inside = len(self.optimizers) > 1 and inside_backward()
        if self._inside:
            check_inside(self.clip, self.layout)
        leads = self._open_round(optimizer, closure is not None)
        if leads and self._inside:
            when_backward_ends(self._end_backward)
        if not leads and self._unscaled:
            fused.set_scale(optimizer, None)
        self._young = fused.momentum_to_come(optimizer)
        if closure is None:
            if leads or self._lost or self._inside:
                self._act(optimizer, record=leads)
            return None
        evaluated = untraced(self._evaluated)

        def evaluate() -> Any:
            loss = closure()
            evaluated(optimizer)
            return loss

        return evaluate

    @torch.no_grad()
    def _evaluated(self, optimizer: Optimizer) -> None:
        """The closure ran: the record and the policy's state move once a step, at its first evaluation."""
        leads = optimizer is self._round[0]
        if not leads and not self._lost and self._differ(optimizer):
            leads = self._part(optimizer)
        self._act(optimizer, record=leads and not self._evaluations)
        self._evaluations += leads

    def _end(self, optimizer: Optimizer) -> None:
        """A step has ended."""
        if self._evaluations and optimizer is self._round[0]:
            self.recorder.note({"evaluations": self._evaluations})
        fused.settle_momentum(optimizer, self._young)
        fused.restore_scale(optimizer)
        if self.renorm is not None:
            self._weights.constrain(self.renorm, self._held(optimizer))
        self._close_round()
        self.after()

    @contextmanager
    def _under_scaler(self, optimizer: Optimizer, scaler: GradScaler) -> Iterator[None]:
        """Around `scaler.step(optimizer)`: a step that does not come is one that the scaler dropped."""
        fused.restore_scale(optimizer)  # after a step that raised: from here on the attribute is the scaler's
        if optimizer not in self.optimizers or not scaler.is_enabled():
            yield
            return
        self._scalers[optimizer] = scaler
        try:
            yield
            if self._scalers.pop(optimizer, None) is not None:
                self._record_dropped(optimizer, scaler)
        finally:
            self._scalers.pop(optimizer, None)

    # --------------------------------------------------------------------------------------------------------- steps

    def _differ(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer steps on other gradients than those that the leader of this step measured."""
        return self._same.changed(list(held(optimizer).values()), under_scaler=self._scaler is not None)

    def _part(self, optimizer: Optimizer) -> bool:
        """From now on each optimizer's step is one of its own; this one's begins."""
        lead = self._round[0]
        self.together = False
        self.recorder.correct(optimizer=self._lane(), present=tuple(self._held(lead)))
        warnings.warn(
            "the watched optimizers do not step together: from now on each one's gradients are measured and clipped "
            "alone, and each optimizer.step() is a step",
            GradwatchWarning,
            stacklevel=7,
        )
        return self._open_round(optimizer)

    def _open_round(self, optimizer: Optimizer, closure: bool = False) -> bool:
        """Begin a step, or join the one another optimizer began; returns whether this optimizer leads it."""
        if self.together and 0 < len(self._round) < len(self.optimizers):
            if optimizer not in self._round and (self._lost or self._inside or closure or not self._differ(optimizer)):
                self._round.append(optimizer)
                return False
            return self._part(optimizer)
        self._end_round()
        self.between()
        self._round, self.is_open = [optimizer], True
        self._unscaled, self._lost, self._evaluations = False, False, 0
        self.steps += 1
        if (self.steps - 1) % self.every == 0:
            self._weights.before_step()
        return True

    def _act(self, optimizer: Optimizer, record: bool) -> None:
        """Measure the gradients, ask the policy, scale; `record` is False for further evaluations of a closure.

        After a leader that was dropped, each of the others is clipped by its own gradients.
        """
        alone = self._lost or self._inside or not self.together
        scaled, batch = self._look(optimizer, alone)
        before = batch.norms().l2
        new = self.clip.apply(batch, self.state) if self.clip is not None else {}
        lost, skips = fused.dropped(optimizer), batch.skipped
        skipped = lost if skips is None else skips if lost is None else skips | lost
        if (record or self._inside) and self.clip is not None and self.clip.stateful:
            good = before.isfinite().all()
            self.state = keep_if(good if skipped is None else good & ~skipped, new, self.state)
        coef, extra = self._finish(batch, before)
        if scaled is not None and any(scaled.carries) and batch.unscale is None:
            scaled.taken_out(batch.groups)
            self._unscaled = not alone
        if record:
            self._record(batch, before, coef, extra, skipped)
        if self._inside:
            self._pieces.add(batch.here, [before, coef, *extra])
        # The one host read of the hot path, only for policies that can skip: a step cannot be undone by arithmetic.
        if skips is not None and bool(skips):
            drop(self.layout.params)
        if not alone and len(self.optimizers) > 1:
            self._same.note(self.layout.params)

    def _look(self, optimizer: Optimizer, alone: bool) -> tuple[Scaled | None, Batch]:
        """The gradients of the step that `optimizer` leads: its own where it is `alone`, else those of all."""
        optimizers = (optimizer,) if alone else self.optimizers
        scaled = find_scale(self.layout, optimizers, optimizer, self._scaler, self._held)
        here = self._held(optimizer) if alone else self.layout.held
        tensors = gradients(self.layout, here, will_change=self.clip is not None)
        return scaled, self._batch(tensors, scaled.inverse if scaled is not None else None)

    def _finish(self, batch: Batch, before: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Apply what is pending; returns the coefficient as recorded and the extra fields."""
        coef = batch.pending
        if batch.fraction is not None:
            batch.apply_pending()
            after = batch.measure()
            return torch.where(before == 0, 1.0, after / before), [after, batch.fraction]
        if coef is None:
            return self._constant("one", 1.0), []
        if fused.why_not_folded(self.optimizers, self.layout, coef):
            batch.apply_pending()
        else:
            fused.fold(self.optimizers[0], coef)
        return coef, []

    def _record(
        self, batch: Batch, norms: Tensor, coef: Tensor, extra: Sequence[Tensor], skipped: Tensor | None
    ) -> None:
        """The step's row: norms `[L]`, coefficients `[]` or `[L]`, extra fields, whether it is skipped (0-d bool)."""
        scale = None if self._scaler is None else self._scaler._scale  # get_scale() would wait for the device
        if scale is not None:
            self.recorder.log_next({"loss_scale": scale})
        own = self.rank_norms.gather() if self.rank_norms is not None else None
        if own is not None:
            own = own if scale is None else own / scale
            self.recorder.log_next({f"rank_grad_norm/{rank}": norm for rank, norm in enumerate(own.unbind())})
        rates, on_device = learning_rates(self.optimizers)
        self.recorder.log_next({**self.loop_clips.take(self.optimizers if self.together else self._round), **on_device})
        row = Row(self.steps - 1, time.time(), self._lane(), rates, batch.here)
        present = [] if self.layout.sharding is None else [batch.present()]
        self.recorder.begin(row, norms, coef, [*present, *extra], skipped)

    @untraced
    @torch.no_grad()
    def _record_dropped(self, optimizer: Optimizer, scaler: GradScaler) -> None:
        """A step that the scaler dropped without calling it: it is recorded, and nothing else happens."""
        self._scaler = scaler
        if self._open_round(optimizer):
            _, batch = self._look(optimizer, alone=not self.together)
            extra = [self._constant("zero", 0.0) for _ in self.policy_fields]
            self._record(batch, batch.norms().l2, self._constant("one", 1.0), extra, self._constant("true", True))
            self._lost = True
        self._close_round()

    def _close_round(self) -> None:
        if len(self._round) == len(self.optimizers) or not self.together:
            self._end_round()

    def _end_backward(self) -> None:
        """After a backward in which the optimizers stepped: those that did not have no gradient in it."""
        self._end_round()
        self._round = []

    def _end_round(self) -> None:
        """After the last optimizer of a step: what is measured only every few steps."""
        if not self.is_open:
            return
        self.is_open = False
        pieces = self._pieces.take()
        if pieces is not None:
            self.recorder.amend(*pieces)
        self._same.forget()
        values = self._weights.after_step()
        if values and self.slots:
            values.update({f"slot_norm/{n}": v for n, v in slot_norms(self.layout, self.optimizers).items()})
        self.recorder.measured(values)

    # ------------------------------------------------------------------------------------------------------ helpers

    def _first_state(self) -> State:
        if self.renorm is not None:
            self.renorm.init(self._no_gradients())  # a pattern that fits no layer is named before training starts
        return self.clip.init(self._no_gradients()) if self.clip is not None else {}

    def _policy_fields(self) -> tuple[str, ...]:
        """What is recorded on each step besides norm and coefficient: an element-wise policy's own numbers."""
        if self.clip is None:
            return ()
        batch = self._no_gradients()
        with torch.no_grad():
            self.clip.apply(batch, self.state)
        return ("clipped_norm", "clip_fraction") if batch.fraction is not None else ()

    def _no_gradients(self) -> Batch:
        return self._batch([None] * len(self.layout.params))

    def _batch(self, tensors: Sequence[Tensor | None], inverse: Tensor | None = None) -> Batch:
        norm_types = self.clip.norm_types if self.clip is not None else ()
        return Batch(self.layout, tensors, self.optimizers, norm_types, inverse)

    def _constant(self, name: str, value: float) -> Tensor:
        return self.layout.constant(name, lambda: torch.tensor(value, device=self.layout.device))

    def _restore_scales(self) -> None:
        for optimizer in self.optimizers:
            fused.restore_scale(optimizer)

    def _held(self, optimizer: Optimizer) -> list[bool]:
        own = held(optimizer)
        return [id(p) in own for p in self.layout.params]

    def _lane(self) -> str:
        return self._name if self.together else self.names[self.optimizers.index(self._round[0])]

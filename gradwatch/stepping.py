"""One optimizer step: the hooks that find it, and what is done in it (measure, ask the policy, scale, constrain)."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwatch.errors import GradwatchWarning
from gradwatch.fused import can_fold, dropped, fold, loss_scale, set_scale
from gradwatch.grads import Batch, drop, gradients
from gradwatch.layout import Layout
from gradwatch.policies import Policy
from gradwatch.policies.base import State, keep_if
from gradwatch.ranknorms import RankNorms
from gradwatch.recorder import Recorder, Row
from gradwatch.weights import UpdateRatio, slot_norms, weight_norms


class Stepper:
    """Hangs on the optimizers and acts on each of their steps; `recorder` takes the rows.

    Several optimizers that step one after the other on the same gradients take one step together: the first of them
    measures and scales for all. `between` is called before each step begins.
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
        self.clip, self.renorm = policies
        self.every, self.slots, self.rank_norms = every, slots, rank_norms
        self.steps = 0  # steps begun so far
        self.together = True
        self.state = self._first_state()
        self.fields = self._extra_fields()
        self._round: list[Optimizer] = []  # those that have begun the current step
        self._running: dict[Optimizer, FrameType] = {}
        self._update_ratio = UpdateRatio(layout)
        self._renormed: Tensor | None = None
        self._unscaled = False  # whether this step's gradients were unscaled here, for all optimizers that take part
        self._undo_scale: Callable[[], None] | None = None
        self._handles: list[Any] = []

    def attach(self, recorder: Recorder, between: Callable[[], None], owner: object = None) -> None:
        """Begin to act on the optimizers' steps, for `owner` (whom an optimizer's hooks so lead to)."""
        self.recorder, self.between, self.owner = recorder, between, owner
        for o in self.optimizers:
            self._handles += [o.register_step_pre_hook(self._before_step), o.register_step_post_hook(self._after_step)]

    def detach(self) -> None:
        """Take the hooks off, and finish the step under way."""
        for handle in self._handles:
            handle.remove()
        if self.layout.sharding is None:  # otherwise the other ranks may be elsewhere: one that raised stays alone here
            self._end_round()

    # -------------------------------------------------------------------------------------------------------- hooks

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._is_nested(optimizer, sys._getframe(1)):
            return None
        self._restore_scale()  # after a step that raised
        leads = self._open_round(optimizer)
        if not leads and self._unscaled:
            self._undo_scale = set_scale(optimizer, None)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            if leads:
                self._act(record=True)
            return None
        first = iter([leads])  # the record and the policy's state move once a step, not once an evaluation

        def evaluate() -> Any:  # the gradients exist only after the closure
            loss = closure()
            self._act(record=next(first, False))
            return loss

        return ((args[0], evaluate), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": evaluate})

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._running.get(optimizer) is not sys._getframe(1):
            return  # the inner step of a nested one
        del self._running[optimizer]
        self._restore_scale()
        if self.renorm is not None:
            self._constrain(self.renorm, optimizer)
        if len(self._round) == len(self.optimizers) or not self.together:
            self._end_round()

    def _is_nested(self, optimizer: Optimizer, frame: FrameType) -> bool:
        """Whether this is a step inside the optimizer's own step (a subclass that calls `super().step()`)."""
        outer = self._running.get(optimizer)
        caller = frame.f_back if outer is not None else None
        while caller is not None:
            if caller is outer:
                return True
            caller = caller.f_back
        self._running[optimizer] = frame  # an outer frame that is not on the stack belongs to a step that raised
        return False

    # -------------------------------------------------------------------------------------------------------- steps

    def _open_round(self, optimizer: Optimizer) -> bool:
        """Begin a step, or join the one another optimizer began; returns whether this optimizer leads it."""
        if self.together and 0 < len(self._round) < len(self.optimizers):
            if optimizer not in self._round:
                self._round.append(optimizer)
                return False
            self.together = False
            warnings.warn(
                "the watched optimizers do not step together: from now on each one's gradients are measured and "
                "clipped alone, and each optimizer.step() is a step",
                GradwatchWarning,
                stacklevel=5,
            )
        self._end_round()
        self.between()
        self._round, self._unscaled = [optimizer], False
        self.steps += 1
        if (self.steps - 1) % self.every == 0:
            self._update_ratio.before()
        return True

    @torch.no_grad()
    def _act(self, record: bool) -> None:
        """Measure the gradients, ask the policy, scale; `record` is False for further evaluations of a closure."""
        lead = self._round[0]
        held = None if self.together else self._held(lead)
        scale = loss_scale(lead)
        norm_types = self.clip.norm_types if self.clip is not None else ()
        unscale = None if scale is None else scale.reciprocal()
        grads = gradients(self.layout, held, will_change=self.clip is not None)
        batch = Batch(self.layout, grads, self.optimizers, norm_types, unscale)
        before = batch.norms().l2
        new = self.clip.apply(batch, self.state) if self.clip is not None else {}
        lost, skips = dropped(lead), batch.skipped
        skipped = lost if skips is None else skips if lost is None else skips | lost
        if record and self.clip is not None and self.clip.stateful:
            good = before.isfinite().all()
            self.state = keep_if(good if skipped is None else good & ~skipped, new, self.state)
        coef, extra = self._finish(batch, before)
        if self.layout.sharding is not None:
            extra = [batch.present(), *extra]
        if scale is not None and batch.unscale is None:  # applied here: the kernel must not unscale again
            self._undo_scale, self._unscaled = set_scale(lead, None), True
        if record:
            self._note_ranks(unscale)
            row = Row(self.steps - 1, time.time(), self._name(), self._learning_rates(), batch.here)
            self.recorder.begin(row, before, coef, extra, skipped)
        # The one host read of the hot path, only for policies that can skip: a step cannot be undone by arithmetic.
        if skips is not None and bool(skips):
            drop(self.layout.params)

    def _note_ranks(self, unscale: Tensor | None) -> None:
        """Record each rank's own norm with the row that is about to begin."""
        norms = self.rank_norms.gather() if self.rank_norms is not None else None
        if norms is not None:
            norms = norms if unscale is None else norms * unscale
            self.recorder.log_next({f"rank_grad_norm/{rank}": norm for rank, norm in enumerate(norms.unbind())})

    def _finish(self, batch: Batch, before: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Apply what is pending; returns the coefficient as recorded and the extra fields."""
        coef = batch.pending
        if batch.fraction is not None:
            batch.apply_pending()
            after = batch.measure()
            return torch.where(before > 0, after / before, 1.0), [after, batch.fraction]
        if coef is None:
            return self.layout.constant("one", lambda: torch.ones((), device=self.layout.device)), []
        if can_fold(self.optimizers, self.layout, coef):
            self._undo_scale = fold(self.optimizers[0], coef)
        else:
            batch.apply_pending()
        return coef, []

    @torch.no_grad()
    def _constrain(self, renorm: Policy, optimizer: Optimizer) -> None:
        held = self._held(optimizer)
        weights = [w if own else None for w, own in zip(self.layout.weights(), held, strict=True)]
        batch = Batch(self.layout, weights)
        renorm.apply(batch, {})
        if batch.fraction is not None:
            rate = torch.where(batch.present(), batch.fraction, torch.nan)
            self._renormed = rate if self._renormed is None else self._renormed.fmax(rate)

    @torch.no_grad()
    def _end_round(self) -> None:
        """After the last optimizer of a step: what is measured only every few steps."""
        if self._update_ratio.begun:
            values = {
                "weight_norm": weight_norms(self.layout),
                "update_ratio": self._update_ratio.after(),
            }
            if self._renormed is not None:
                values["renorm_rate"] = self._renormed
            if self.slots:
                values.update({f"slot_norm/{n}": v for n, v in slot_norms(self.layout, self.optimizers).items()})
            self.recorder.measured(values)
        self._renormed = None

    # ------------------------------------------------------------------------------------------------------ helpers

    def _first_state(self) -> State:
        if self.renorm is not None:
            self.renorm.init(self._no_gradients())  # a pattern that fits no layer is named before training starts
        return self.clip.init(self._no_gradients()) if self.clip is not None else {}

    def _extra_fields(self) -> tuple[str, ...]:
        """What is recorded on each step besides norm and coefficient: an element-wise policy's own numbers.

        Under sharding also which layers have a gradient on any rank: this one may lack it.
        """
        fields = () if self.layout.sharding is None else ("present",)
        if self.clip is None:
            return fields
        batch = self._no_gradients()
        with torch.no_grad():
            self.clip.apply(batch, self.state)
        return (*fields, "clipped_norm", "clip_fraction") if batch.fraction is not None else fields

    def _no_gradients(self) -> Batch:
        norm_types = self.clip.norm_types if self.clip is not None else ()
        return Batch(self.layout, [None] * len(self.layout.params), self.optimizers, norm_types)

    def _restore_scale(self) -> None:
        if self._undo_scale is not None:
            self._undo_scale()
            self._undo_scale = None

    def _held(self, optimizer: Optimizer) -> list[bool]:
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return [id(p) in own for p in self.layout.params]

    def _name(self) -> str:
        return "+".join(self.names) if self.together else self.names[self.optimizers.index(self._round[0])]

    def _learning_rates(self) -> tuple[float, ...]:
        rates = [group["lr"] for o in self.optimizers for group in o.param_groups if "lr" in group]
        for g, rate in enumerate(rates):
            if isinstance(rate, Tensor):  # capturable optimizers: no host read, it travels with the ring
                self.recorder.log_next({f"lr/{g}" if g else "lr": rate})
        return tuple(float("nan") if isinstance(rate, Tensor) else float(rate) for rate in rates)

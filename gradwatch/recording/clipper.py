"""The gradients of a step: measured, judged by the policy, scaled."""

from __future__ import annotations

from collections.abc import Mapping
from operator import methodcaller
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwatch.measure import fused, rows
from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.dropped import Dropped, drop
from gradwatch.measure.foreach import (
    MaybeTensors,
    are_plain,
    can_be_read,
    grads_of,
    is_seen_to_be_one,
    measure_plain,
    there,
)
from gradwatch.measure.gradient_histogram import GradientHistogram
from gradwatch.measure.gradients import Batch, gradients
from gradwatch.measure.layout import Layout, at
from gradwatch.measure.loss_scale import Scaled
from gradwatch.measure.multi_tensor import fill_memory
from gradwatch.measure.ring_buffer import Ahead
from gradwatch.policies import Policy
from gradwatch.policies.base import State
from gradwatch.recording.layers import held
from gradwatch.recording.step import Step
from gradwatch.recording.zero import ZeroOptimizer

_FUSED = methodcaller("get", "fused")
READ_STEPS = 16  # how often skips in a row are looked at where the kernel leaves steps out


class Clipped(NamedTuple):
    """What came of the gradients of a step, as it is recorded."""

    batch: Batch
    norms: Tensor  # before the policy, [L]
    coef: Tensor | None  # [] or [L]; None without a policy: it is 1, as the ring has it, and where there is a divisor
    extra: list[Tensor]  # the policy's own fields, [L] each
    skipped: Tensor | None  # 0-d bool; None: nothing can skip this step
    divisor: Tensor | None = None  # 0-d: all are divided by it, which the row has in the place of the coefficients
    unscaled: bool = False  # whether the loss scale was taken out of all of them
    totals: Mapping[str, Tensor] = {}  # of all stages of a pipeline, by column

    @property
    def fields(self) -> list[Tensor | None]:
        """What is recorded of each layer, in the order of `Clipper.fields`, and whether the step was skipped."""
        batch = self.batch
        if batch.layout.sharding is None:
            return [self.norms, self.coef, *batch.largest_rows, *self.extra, self.skipped]
        return [self.norms, self.coef, batch.present(), *batch.largest_rows, *self.extra, self.skipped]


class Clipper:
    """A policy, its state, and the layers and optimizers whose gradients it acts on. `histogram` sees them first."""

    def __init__(
        self,
        layout: Layout,
        optimizers: Mapping[str, Optimizer],
        policy: Policy | None,
        histogram: GradientHistogram | None = None,
    ) -> None:
        self.layout, self.names, self.optimizers = layout, tuple(optimizers), tuple(optimizers.values())
        self.policy, self.histogram = policy, histogram
        self._parts: dict[Optimizer, Layout] = {}
        self._are_plain = True  # the gradients, when they were last looked through
        self._fused: list[Any] = []  # what the param groups said of that when it was last decided whether one folds
        self._one_folds = False
        # What the policy needs beside L2, which is measured for the record
        self._norm_types = () if policy is None else tuple(p for p in policy.norm_types if p != 2.0)
        self.state = self._first_state(layout)
        self._limits = {} if policy is None else policy.limits()
        self._most: State = {}  # of what they bound, the most so far that nobody has read
        self._ended_by: Policy | None = None
        self.own_fields = self._own_fields()
        # Under sharding this rank may lack a gradient that another has
        present, looked_at = ("present",) if layout.sharding is not None else (), rows.QUANTITIES if layout.rows else ()
        self.fields = (*present, *looked_at, *self.own_fields)

    def relayout(self, layout: Layout) -> None:
        """Go on with other layers: the state of those that stay is kept."""
        first = self._first_state(layout)
        self.layout, self.state = layout, carried(self.state, self._first_state(self.layout), first)
        self._parts, self._fused = {}, []

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on with a state that was saved."""
        devices = {key: own.device for key, own in self.state.items()}
        self.state = {k: v.to(devices.get(k, self.layout.device), copy=True) for k, v in state.items()}
        self._most, self._ended_by = {}, None

    def held(self, optimizer: Optimizer) -> list[bool]:
        """Which layers the optimizer holds, `[L]`."""
        own = held(optimizer)
        return [id(p) in own for p in self.layout.params]

    def clip(self, step: Step, lead: Optimizer, alone: bool, keep_state: bool, ahead: Ahead | None = None) -> Clipped:
        """Measure and scale the gradients of a step in which `lead` steps: its own where it is `alone`, else all.

        `keep_state` is False for further evaluations of a closure: the policy's state moves once a step. `ahead` is the
        memory that the step is going to be recorded in.
        """
        scaled, batch, before = self._look(step, lead, alone, ahead)
        policy, stages = self.policy, self.layout.stages
        lost = fused.dropped(lead) if step.is_scaled else None
        if isinstance(lead, ZeroOptimizer) and lead.drops_nonfinite:
            lost = ~batch.norms().total().isfinite()
        if policy is None and stages is None:
            return Clipped(batch, before, None, [], lost)
        total = None if stages is None else batch.norms().total()
        new = policy.apply(batch, self.state) if policy is not None else {}
        skips = batch.skipped
        skipped = lost if skips is None else skips if lost is None else skips | lost
        if keep_state and policy is not None and policy.stateful:
            good = before.isfinite().all() if total is None else total.isfinite()
            old, self.state = self.state, keep_if(good if skipped is None else good & ~skipped, new, self.state)
            for key in self._limits:  # skips are counted in the steps that leave no other trace; not those of a scaler
                self.state[key] = new[key] if lost is None else torch.where(lost, old[key], new[key])
        coef, extra, divisor = self._scale(batch, before, ahead)
        unscaled = False
        if scaled is not None and any(scaled.carries) and batch.unscale is None:
            unscaled = True
            scaled.taken_out(batch.groups)
        clipped = Clipped(batch, before, coef, extra, skipped, divisor, unscaled)
        return clipped if total is None else clipped._replace(totals=self._totals(clipped, total))

    def _totals(self, clipped: Clipped, before: Tensor) -> dict[str, Tensor]:
        """Of all stages of a pipeline: the norm before the policy, after it, and their ratio, 0-d."""
        coef, extra, skipped = clipped.coef, clipped.extra, clipped.skipped
        if clipped.divisor is not None:
            coef = clipped.divisor.reciprocal()
        if coef is None or (not coef.dim() and not extra):
            ratio = self._constant("one", 1.0) if coef is None else coef
            after = before * ratio
        else:
            assert self.layout.stages is not None
            own = torch.linalg.vector_norm(extra[0] if extra else clipped.norms * coef)
            after = self.layout.stages.norm(own)
            ratio = torch.where(before == 0, 1.0, after / before)
        if skipped is not None:
            after, ratio = torch.where(skipped, 0.0, after), torch.where(skipped, 0.0, ratio)
        return {"grad_norm": before, "clipped_norm": after, "clip_coef": ratio}

    def dropped(self, step: Step, lead: Optimizer, alone: bool) -> Clipped:
        """The same of a step that the scaler drops: its gradients are measured, and nothing else happens."""
        _, batch, before = self._look(step, lead, alone)
        extra = [self._constant("zero", 0.0) for _ in self.own_fields]
        return Clipped(batch, before, self._constant("one", 1.0), extra, self._constant("true", True))

    def leave_out(self, lead: Optimizer, clipped: Clipped) -> Dropped:
        """Let the coming step happen only where the policy does not skip it.

        A fused kernel does so by itself. Otherwise one bool is read, the one host read of the hot path: a step cannot
        be undone by arithmetic. The gradients that were taken away for it, until it is over.
        """
        flag, skipped = clipped.batch.skipped, clipped.skipped
        assert flag is not None
        assert skipped is not None
        if not can_be_read(flag) and not fused.why_not_left_out(self.optimizers, self.layout):
            fused.leave_out(lead, skipped)
            self._most = {key: self.state[key].maximum(self._most.get(key, self.state[key])) for key in self._limits}
        elif bool(flag):
            self._ended_by = self._beyond(self.state)
            own = zip(self.layout.params, clipped.batch.tensors, strict=True)  # not those of optimizers that step apart
            return drop({id(p): p for p, gradient in own if gradient is not None}.values())
        return []

    def ended_by(self, steps: int) -> Policy | None:
        """The policy whose `at_most` skips in a row have come, known at the latest `READ_STEPS` of the `steps` later.

        Where the bool of each step is read, this is known with it. Where the kernel leaves steps out, one number is
        read every few steps, at the same ones on all ranks.
        """
        if self._most and steps % READ_STEPS == 0:
            self._ended_by, self._most = self._ended_by or self._beyond(self._most), {}
        return self._ended_by

    def _beyond(self, counts: State) -> Policy | None:
        found = (p for key, p in self._limits.items() if p.at_most is not None and int(counts[key]) >= p.at_most)
        return next(found, None)

    def no_gradients(self) -> Batch:
        """A batch in which no layer has a gradient: it shows what a policy is going to do."""
        return Batch(self.layout, [None] * len(self.layout.params), self.optimizers, self._norm_types)

    def _look(
        self, step: Step, lead: Optimizer, alone: bool, ahead: Ahead | None = None
    ) -> tuple[Scaled | None, Batch, Tensor]:
        """What of the loss scale is in the gradients, they themselves, and their norms `[L]` without it.

        Inside backward all is of the lead's own layers: were it of every layer, a backward would be quadratic in them.
        """
        layout = self._part(lead) if step.inside else self.layout
        scaled, inverse, measured, present = None, None, None, None
        if step.is_scaled or step.scaler is not None:
            scaled = Scaled(layout, (lead,) if alone else self.optimizers, lead, step.scaler, self.held)
            inverse = scaled.inverse
        here = None if step.inside else self.held(lead) if alone else layout.held
        tensors: MaybeTensors = grads_of(layout.params)
        # Where they are recorded: they need no copy
        into = ahead.norms if ahead is not None and layout.dtype is torch.float32 else None
        fills_memory = False
        if self._are_plain and layout.is_plain and here is None:
            found, present = measure_plain(layout, tensors, into), layout.all_here
            measured, fills_memory = found or (None, False)
        if measured is None:
            tensors, present = gradients(layout, here, will_change=self.policy is not None), None
            self._are_plain = are_plain(layout, tensors)
        batch = Batch(layout, tensors, self.optimizers, self._norm_types, inverse, present)
        if measured is None:
            measured = batch.measure(into=into, rows=rows.LargestRows(layout) if layout.rows else None)
        batch.measured, batch.fills_memory = measured, fills_memory
        if self.histogram is not None:
            self.histogram.look(batch)
        return scaled, batch, batch.measured if inverse is None else batch.norms().l2

    def _part(self, optimizer: Optimizer) -> Layout:
        """The layers of the optimizer alone."""
        if not self._parts:
            places = self.layout.places_of()
            own = {o: sorted(i for key in held(o) for i in places.get(key, ())) for o in self.optimizers}
            self._parts = {o: self.layout.part(each) for o, each in own.items()}
        return self._parts[optimizer]

    def _scale(
        self, batch: Batch, before: Tensor, ahead: Ahead | None
    ) -> tuple[Tensor | None, list[Tensor], Tensor | None]:
        """Apply what is pending; returns the coefficient as recorded, the policy's own fields, and the divisor."""
        if batch.limit is not None and batch.fraction is None and self._folds(batch):
            divisor = self._divisor(batch, before, None if ahead is None else ahead.divisor)
            if not is_seen_to_be_one(divisor):
                fused.fold(self.optimizers[0], divisor)
            return None, [], divisor
        batch.settle()
        coef = batch.pending
        if batch.fraction is not None:
            batch.apply_pending()
            after = batch.measure()
            return torch.where(before == 0, 1.0, after / before), [after, batch.fraction], None
        if coef is None:
            return None if self.policy is None else self._constant("one", 1.0), [], None
        if coef.dim() or not self._folds(batch):
            batch.apply_pending()
        elif not is_seen_to_be_one(coef):
            fused.fold(self.optimizers[0], coef.float().reciprocal())
        return coef, [], None

    def _divisor(self, batch: Batch, norms: Tensor, out: Tensor | None) -> Tensor:
        """How many times its limit the joint norm is, at least 1; in one kernel, or in torch's three."""
        assert batch.limit is not None
        (limit, p), batch.limit = batch.limit, None
        many = self.layout.all_in_one if p == 2.0 and self.layout.stages is None else None
        found = None if many is None else many.excess(norms, limit, out)
        return self.layout.excess(batch.norms().total(p), limit, out) if found is None else found

    def _folds(self, batch: Batch) -> bool:
        """Whether the kernel scales by a coefficient that all layers share: decided anew where the param groups are no
        longer fused as they were. It writes to gradients as if they filled their memory.
        """
        groups = [*map(_FUSED, self.optimizers[0].param_groups)]
        if groups != self._fused:
            self._fused, self._one_folds = groups, not fused.why_not_folded(self.optimizers, self.layout, dims=0)
        return self._one_folds and (batch.fills_memory or fill_memory(there(batch.tensors)))

    def _first_state(self, layout: Layout) -> State:
        if self.policy is None:
            return {}
        return self.policy.init(Batch(layout, [None] * len(layout.params), self.optimizers, self._norm_types))

    def _own_fields(self) -> tuple[str, ...]:
        """What is recorded on each step besides norm and coefficient: an element-wise policy's own numbers."""
        if self.policy is None:
            return ()
        batch = self.no_gradients()
        without_autograd(self.policy.apply)(batch, self.state)
        return ("clipped_norm", "clip_fraction") if batch.fraction is not None else ()

    def _constant(self, name: str, value: float) -> Tensor:
        """0-d float32, of True bool."""
        dtype = torch.bool if value is True else torch.float32
        return self.layout.constant(name, lambda: torch.full((), value, dtype=dtype, device=self.layout.device))


def keep_if(ok: Tensor, new: State, old: State) -> State:
    """`new` where `ok` (0-d bool), else `old`: a bad step leaves no trace in a policy's state."""
    return {k: v if v is old.get(k, v) else torch.where(at(v.device, ok), v, old[k]) for k, v in new.items()}


def carried(state: State, old: State, new: State) -> State:
    """`state` for other layers, on their device; `old` and `new` are the first states for the layers before and now.

    What grows with the layers keeps the values of those that were there, and starts the others as `new` has them.
    """
    out = {k: v for k, v in new.items() if k in state or k not in old}  # a key that the policy dropped stays dropped
    for key, value in state.items():
        start = out.get(key)
        if start is None or start.shape == value.shape:
            out[key] = value if start is None else value.to(start.device, start.dtype)
        else:
            out[key] = start.clone()
            out[key][tuple(slice(n) for n in value.shape)] = value.to(start.device, start.dtype)
    return out

"""The norm of a step's first micro-batch, beside that of them all: the gradient noise scale is made of both.

In the steps that are sampled `torch.autograd.backward` is heard as the loop calls it. Between the first and the second
call the gradients are those of the first micro-batch alone, and are measured there.

Legend: L layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.collectives import Sums
from gradwatch.measure.ddp_rank_norms import ddp_of
from gradwatch.measure.exact import exact_dtype
from gradwatch.measure.foreach import measure
from gradwatch.measure.gradients import Batch, gradients
from gradwatch.measure.layout import Layout
from gradwatch.measure.looking import Looking
from gradwatch.measure.writes import writes
from gradwatch.recording import backward_calls
from gradwatch.recording.hooks import untraced

WHAT = "the gradient noise scale"
Marks = list[tuple[int, int]]  # of each parameter, what tells its gradient from an earlier one; holds no memory


@dataclass
class _Heard:
    """Of one step that is sampled."""

    layout: Layout
    then: Marks  # the gradients when they were looked at last
    count: int = 0  # backward passes so far
    ranks: int = 1  # whose gradients the whole has beside the first
    squares: Tensor | None = None  # [L], of the first micro-batch's norms
    is_spoiled: bool = False  # whether what is there cannot be told from the first micro-batch's own


class MicroBatches:
    """Hears the backward passes of each step whose number `every` divides, between `begin` and `end`.

    Every call of backward that adds to the gradients is taken for a micro-batch.
    """

    def __init__(self, model: nn.Module, every: int, looking: Looking) -> None:
        self.every, self._looking = every, looking
        self._ddp = ddp_of(model)
        self._heard: _Heard | None = None
        self._known: tuple[Layout, Tensor, float, Tensor] | None = None  # what `end` knew of one

    def begin(self, step: int, layout: Layout) -> None:
        """This step is about to begin."""
        if step % self.every == 0 and self._heard is None:
            self._heard = _Heard(layout, _marks(layout.params))
            backward_calls.heard.listen(self)

    def stop(self) -> None:
        """Hear of no more, and forget what was heard."""
        backward_calls.heard.leave(self)
        self._heard = None

    @untraced
    def before(self, losses: Any) -> Marks:
        """Somebody is about to call backward: what tells the gradients that it finds from others."""
        self._before()
        return self.marks()

    def _before(self) -> None:
        with self._looking.at(WHAT):
            heard = self._heard
            if heard is None or heard.squares is not None or heard.is_spoiled:
                return
            params = heard.layout.params
            if all(p.grad is None for p in params):
                heard.count = 0  # also where a first one was thrown away
            elif heard.count == 0:
                # of a loop that zeroes its gradients all have been written to since the step before
                same = zip(params, heard.then, _marks(params), strict=True)
                heard.is_spoiled = any(then == now for p, then, now in same if p.grad is not None)
            elif heard.then != _marks(params):
                heard.is_spoiled = True  # clipped, say
            else:
                heard.squares = _squares(heard.layout)

    @untraced
    def after(self, before: Marks) -> None:
        """A backward is over that found the gradients as they were `before`."""
        with self._looking.at(WHAT):
            now, heard = self.marks(), self._heard
            if heard is None or now == before:
                return
            heard.count += 1
            if heard.count == 1:
                heard.then = now
                alone = self._ddp is not None and not self._ddp.require_backward_grad_sync
                heard.ranks = dist.get_world_size(self._ddp.process_group) if alone and self._ddp else 1

    def marks(self) -> Marks:
        """What tells the gradients from others; nothing outside of a sampled step."""
        return [] if self._heard is None else _marks(self._heard.layout.params)

    @without_autograd
    def end(self, loss_scale: Tensor | None) -> None:
        """The optimizer's step is about to be taken, on gradients that this scale is in."""
        heard = self._heard
        if heard is None:
            return
        layout, squares, count = heard.layout, heard.squares, heard.count
        if count == 1:
            self._looking.miss(WHAT, "a step has one backward, and nothing to compare it with")
        if squares is None and layout.sharding is not None:  # other ranks may know it
            squares = layout.full((len(layout.params),), math.nan).to(torch.float64)
        if squares is not None:
            factor = squares.new_full((), count)
            factor = factor if loss_scale is None else factor / loss_scale.to(factor.device)  # it is updated in place
            self._known = layout, squares, float(count * heard.ranks), factor
        self.stop()

    def norms(self) -> Sums[dict[str, Tensor | float]]:
        """After a step: `micro_grad_norm`, the norm that its gradient would have if all its micro-batches were like the
        first, and `micro_batches`, how many there were over all ranks.

        Empty for a step that was not sampled, or of which it is not known; under sharding NaN.
        """
        known, self._known = self._known, None
        if known is None:
            return {}
        layout, squares, count, factor = known
        if layout.sharding is not None:
            squares = yield from layout.sharding.add(squares)
        return {"micro_grad_norm": squares.sum().sqrt() * factor, "micro_batches": count}


def _marks(params: Sequence[Tensor]) -> Marks:
    grads = [p.grad for p in params]
    return [(id(g), writes(getattr(g, "_local_tensor", g))) for g in grads]


@without_autograd
def _squares(layout: Layout) -> Tensor:
    """The squares of the norms of this rank's part of each gradient, `[L]` float64."""
    for p in layout.params if layout.sharding is not None else ():
        grad: Any = p.grad
        if grad is not None and getattr(grad, "placements", None) != getattr(p, "placements", None):
            raise ValueError("the ranks still hold addends of gradients (Partial), whose sum is made at the step")
    batch = Batch(layout, gradients(layout, layout.held, will_change=False))
    return measure(layout, batch.groups).to(exact_dtype(layout.device)).square()

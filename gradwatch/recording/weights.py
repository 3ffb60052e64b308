"""Numbers of the weights and of the optimizer's own tensors, measured every few steps: norms and update ratios.

Legend: L layers, in the order of the Layout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwatch.measure.batch import Batch
from gradwatch.measure.distributed import local
from gradwatch.measure.layout import Layout, real, stride

if TYPE_CHECKING:
    from gradwatch.policies import Policy


class Weights:
    """The weights around one step: what a constraint does to them, and in some steps their norms and update ratios."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self._update_ratio = layout, UpdateRatio(layout)
        self._renormed: Tensor | None = None

    def before_step(self) -> None:
        """Look at the weights: this is a step in which they are measured."""
        self._update_ratio.before()

    @torch.no_grad()
    def constrain(self, renorm: Policy, held: Sequence[bool]) -> None:
        """Apply the constraint to the layers that are `held`, `[L]`."""
        weights = [w if own else None for w, own in zip(self.layout.weights(), held, strict=True)]
        batch = Batch(self.layout, weights)
        renorm.apply(batch, {})
        if batch.fraction is not None:
            rate = torch.where(batch.present(), batch.fraction, torch.nan)
            self._renormed = rate if self._renormed is None else self._renormed.fmax(rate)

    def after_step(self) -> dict[str, Tensor]:
        """What was measured in this step, `[L]` each; nothing where `before_step` was not called."""
        renormed, self._renormed = self._renormed, None
        if not self._update_ratio.begun:
            return {}
        values = {"weight_norm": weight_norms(self.layout), "update_ratio": self._update_ratio.after()}
        return values if renormed is None else {**values, "renorm_rate": renormed}


class UpdateRatio:
    """How far a step moved each layer, from at most 4,096 of its elements: `before()` the step, `after()` it.

    Two buffers are filled again and again: constant memory, and no large allocation in steady state.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout, self.begun = layout, False
        self.steps = [stride(w.numel()) for w in layout.weights()]
        self.shapes = [
            tuple(w.shape) if step == 1 else (math.ceil(w.numel() / step),)
            for w, step in zip(layout.weights(), self.steps, strict=True)
        ]
        self._buffers: dict[str, list[Tensor]] = {}

    @torch.no_grad()
    def before(self) -> None:
        """Look at the weights before the step."""
        self._look("before")
        self.begun = True

    @torch.no_grad()
    def after(self) -> Tensor:
        """‖Δw‖ / ‖w before‖ of each layer, `[L]`; NaN where the weights were all zero."""
        self.begun = False
        before, moved = self._buffers["before"], self._look("after")
        torch._foreach_sub_(moved, before)
        norms = torch.stack([*torch._foreach_norm(moved), *torch._foreach_norm(before)]).view(2, -1)
        if self.layout.sharding is not None:  # an element of a sample stands for as many as the sample's step
            steps = self.layout.constant("steps", lambda: norms.new_tensor(self.steps, dtype=torch.float64))
            norms = self.layout.sharding.add(norms.to(torch.float64) ** 2 * steps).sqrt().to(norms.dtype)
        return torch.where(norms[1] > 0, norms[0] / norms[1], torch.nan)

    def _look(self, name: str) -> list[Tensor]:
        if name not in self._buffers:  # one tensor per layer, all parts of one
            sizes = [math.prod(shape) for shape in self.shapes]
            whole = torch.empty(sum(sizes), dtype=self.layout.dtype, device=self.layout.device)
            parts = torch.split(whole, sizes)
            self._buffers[name] = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        weights = zip(self.layout.weights(), self.steps, strict=True)
        looked = [w if step == 1 else w.reshape(-1)[::step] for w, step in weights]
        torch._foreach_copy_(self._buffers[name], looked)
        return self._buffers[name]


@torch.no_grad()
def weight_norms(layout: Layout) -> Tensor:
    """The L2 norm of each layer's weights, `[L]`."""
    return Batch(layout, layout.weights()).measure()


@torch.no_grad()
def slot_norms(layout: Layout, optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """The L2 norm of each tensor the optimizers keep per parameter, `[L]` by name; NaN where there is none."""
    states: list[Mapping[str, object]] = [
        next((o.state[p] for o in optimizers if p in o.state), {}) for p in layout.params
    ]
    found: dict[str, list[Tensor | None]] = {}
    for i, (p, state) in enumerate(zip(layout.params, states, strict=True)):
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == p.shape and name != "step":
                found.setdefault(name, [None] * len(states))[i] = real(
                    local(value.coalesce()._values() if value.is_sparse else value)
                )
    batches = {name: Batch(layout, tensors) for name, tensors in found.items()}
    norms = {name: batch.measure() for name, batch in batches.items()}
    return {name: torch.where(batch.present(), norms[name], torch.nan) for name, batch in batches.items()}

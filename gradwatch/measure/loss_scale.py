"""Whose gradients still carry the loss scale when a step is measured: a `GradScaler` unscales one optimizer at a time.

Legend: L layers, in the order of the Layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.amp.grad_scaler import OptState
from torch.optim import Optimizer

from gradwatch.measure.foreach import Group, scale_
from gradwatch.measure.fused import keep_scale_out, loss_scale
from gradwatch.measure.layout import Layout


class Scaled:
    """What of the loss scale is in the gradients of a step that `lead` leads, and `optimizers` take together.

    A fused lead's gradients carry it until its kernel runs; those of the others until the scaler comes to them, unless
    the loop called `unscale_`. `held(optimizer)` says which layers are the optimizer's, `[L]`.
    """

    def __init__(
        self,
        layout: Layout,
        optimizers: Sequence[Optimizer],
        lead: Optimizer,
        scaler: GradScaler | None,
        held: Callable[[Optimizer], list[bool]],
    ) -> None:
        self.layout, self.optimizers, self.lead, self.held = layout, optimizers, lead, held
        own = loss_scale(lead)
        self.scale = own if own is not None or scaler is None else scaler._scale
        self.carries = [
            own is not None if o is lead or scaler is None else not _is_unscaled(o, scaler) for o in optimizers
        ]

    @property
    def inverse(self) -> Tensor | None:
        """What takes the scale out: 0-d, `[L]` where only some layers carry it, None where none does."""
        if self.scale is None or not any(self.carries):
            return None
        return self.scale.reciprocal() if all(self.carries) else self._where(self.carries, self.scale.reciprocal())

    def taken_out(self, groups: Sequence[Group]) -> None:
        """The scale was taken out of all gradients: what would take it out once more must not, in the lead's step.

        The scaler will unscale the others that are not fused, so theirs gets the scale back.
        """
        again = [
            c and o is not self.lead and not getattr(o, "_step_supports_amp_scaling", False)
            for o, c in zip(self.optimizers, self.carries, strict=True)
        ]
        if any(again) and self.scale is not None:
            scale_(self.layout, groups, self._where(again, self.scale))
        if loss_scale(self.lead) is not None:
            keep_scale_out(self.lead)

    def _where(self, chosen: Sequence[bool], value: Tensor) -> Tensor:
        """`value` for the layers of the chosen optimizers, 1 for the others, `[L]`."""
        held = [self.held(o) for o, c in zip(self.optimizers, chosen, strict=True) if c]
        return torch.where(self.layout.which([any(layer) for layer in zip(*held, strict=True)]), value, 1.0)


def _is_unscaled(optimizer: Optimizer, scaler: GradScaler) -> bool:
    states = scaler._per_optimizer_states
    return id(optimizer) in states and states[id(optimizer)]["stage"] is not OptState.READY

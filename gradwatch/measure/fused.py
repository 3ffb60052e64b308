"""What a fused optimizer's own kernel does to gradients: it takes out GradScaler's scale, and can put in a coefficient.

A fused kernel divides each gradient by `optimizer.grad_scale` as it reads it, and writes it back; GradScaler unscales
that way, so before the step the gradients are still scaled. Carrying 1 / coefficient as well, the attribute saves the
pass that would multiply by it. In the same way `optimizer.found_inf` lets it leave the step out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from gradwatch.measure.layout import Layout, at

_SCALED = {torch.float32, torch.bfloat16}  # the scale is float32: a float64 would lose digits
# The dtypes of weights that the kernel of a class scales, each held against the plain path by a test (test_fused.py);
# all others are scaled plainly. On a CPU torch's SGD steps by what it has not scaled, in half precision.
CLASSES = {SGD: {torch.float32}, Adam: _SCALED, AdamW: _SCALED, Adagrad: _SCALED}


def loss_scale(optimizer: Optimizer) -> Tensor | None:
    """The loss scale that the gradients still carry, 0-d; None without a scaler or after `unscale_`."""
    return getattr(optimizer, "grad_scale", None)


def is_scaled(optimizer: Optimizer) -> bool:
    """Whether somebody, as a loss scaler does, has set what the kernel does to the gradients of the step ahead."""
    return getattr(optimizer, "grad_scale", None) is not None or getattr(optimizer, "found_inf", None) is not None


def dropped(optimizer: Optimizer) -> Tensor | None:
    """Whether the scaler lets the kernel drop this step, 0-d bool; None without a scaler."""
    found: Tensor | None = getattr(optimizer, "found_inf", None)
    return None if found is None else found.reshape(()) > 0


def momentum_to_come(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The param groups of a fused SGD whose momentum comes into being in the step ahead, which may be dropped."""
    if getattr(optimizer, "found_inf", None) is None or not isinstance(optimizer, SGD):
        return []
    groups = [group for group in optimizer.param_groups if group["fused"] and group["momentum"]]
    return [group for group in groups if _has_no_momentum(optimizer, group)]


def _has_no_momentum(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    first = next((p for p in group["params"] if p.grad is not None), None)  # torch makes those of a group at once
    return first is not None and optimizer.state.get(first, {}).get("momentum_buffer") is None


def settle_momentum(optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> None:
    """After a step that made the momentum of `groups`: where it was dropped, none must stay.

    torch allocates it and leaves it unwritten. Zero is as good as none, but for dampening, which spares only a first
    step: there it is taken away again, at the price of reading one bool, until a step is not dropped.
    """
    lost = dropped(optimizer) if groups else None
    if lost is None:
        return
    for group in groups:
        states = [s for s in (optimizer.state.get(p, {}) for p in group["params"]) if "momentum_buffer" in s]
        if not group["dampening"]:
            for buffer in (s["momentum_buffer"] for s in states):
                buffer.masked_fill_(at(buffer.device, lost), 0)
        elif bool(lost):
            for s in states:
                del s["momentum_buffer"]


def why_not_folded(optimizers: Sequence[Optimizer], layout: Layout, dims: int) -> str:
    """Why the kernel cannot scale by a coefficient of `dims` dimensions, in words; empty where it can.

    It takes one fused optimizer of a known class, one coefficient, and weights of dtypes that this class scales.
    """
    if dims:
        return "each layer has a coefficient of its own"
    if why := why_not_left_out(optimizers, layout):
        return why
    others = sorted(str(dtype).removeprefix("torch.") for dtype in layout.dtypes - CLASSES[type(optimizers[0])])
    return f"some weights are {' and '.join(others)}" if others else ""


def why_not_left_out(optimizers: Sequence[Optimizer], layout: Layout) -> str:
    """Why the kernel cannot leave a step out, in words; empty where it can: one fused optimizer of a known class."""
    if len(optimizers) > 1:
        return "several optimizers are clipped together"
    fused = [bool(group.get("fused")) for group in optimizers[0].param_groups]
    if False in fused:
        return f"{f'param group {fused.index(False)} is' if True in fused else 'it is'} not fused"
    if type(optimizers[0]) not in CLASSES:
        return f"{type(optimizers[0]).__name__} is not one of {', '.join(c.__name__ for c in CLASSES)}"
    if layout.sharding is not None:
        return "the kernel takes no plain scale beside DTensors"
    if layout.mixes_devices:  # torch copies the scale without waiting for it
        return "the weights are on several kinds of device"
    return ""


def fold(optimizer: Optimizer, divisor: Tensor) -> None:
    """Let the step that follows divide by `divisor` (0-d float32), beside taking out the loss scale.

    `restore` undoes it. Division by an inf gives 0, and NaN for an inf, as multiplication by 0 does.
    """
    scale = loss_scale(optimizer)
    _replace(optimizer, "grad_scale", divisor if scale is None else scale * divisor)


def leave_out(optimizer: Optimizer, flag: Tensor) -> None:
    """Let the step that follows happen only where `flag` (0-d bool) is false; `restore` undoes it.

    `flag` says too whether the loss scaler drops the step. Gradients stay as they are.
    """
    _replace(optimizer, "found_inf", flag.float())


# Where an optimizer keeps what stands in the place of its own `grad_scale` and `found_inf`, and what those were. Known
# to all and not only to whoever set it: a step that raises never says that it has ended, and whoever comes next must
# clear up.
_REPLACED = "_gradwatch_replaced"
_ABSENT = object()


def keep_scale_out(optimizer: Optimizer) -> None:
    """Let the step that follows take out no loss scale: the gradients carry none any more. `restore` undoes it."""
    _replace(optimizer, "grad_scale", None)


def _replace(optimizer: Optimizer, name: str, value: Tensor | None) -> None:
    known: dict[str, tuple[Tensor | None, Any]] = vars(optimizer).setdefault(_REPLACED, {})
    own = known[name][1] if name in known else getattr(optimizer, name, _ABSENT)
    known[name] = (value, own)  # before it is set: an interrupt in between leaves nothing behind
    setattr(optimizer, name, value)


def restore(optimizer: Optimizer) -> None:
    """Put back what `fold`, `leave_out` and `keep_scale_out` replaced, for the scaler to delete; harmless without any.

    What somebody else has set since, as a loss scaler does before each step, stays.
    """
    replaced = vars(optimizer).get(_REPLACED)
    if replaced is None:
        return
    for name, (ours, own) in replaced.items():
        if getattr(optimizer, name, _ABSENT) is ours:
            if own is _ABSENT:
                delattr(optimizer, name)
            else:
                setattr(optimizer, name, own)
    vars(optimizer).pop(_REPLACED, None)  # last: until then it can be done again

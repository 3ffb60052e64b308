"""Lets a fused optimizer's own kernel scale the gradients, so that one coefficient for all costs no pass of its own.

A fused kernel divides each gradient by `optimizer.grad_scale` as it reads it, and writes it back; GradScaler unscales
that way. Here the attribute carries 1 / coefficient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from gradwatch.layout import Layout

# Each is held against the plain path by a test (test_fused.py); a class that is not listed is scaled plainly.
CLASSES = (SGD, Adam, AdamW, Adagrad)


def can_fold(optimizers: Sequence[Optimizer], layout: Layout, coef: Tensor | None) -> bool:
    """Whether the kernel can do it: one fused optimizer of a known class, one coefficient, float32, no GradScaler."""
    return (
        coef is not None
        and coef.dim() == 0
        and len(optimizers) == 1
        and type(optimizers[0]) in CLASSES
        and all(group.get("fused") for group in optimizers[0].param_groups)
        and layout.dtypes == {torch.float32}  # the scale is float32: float64 would lose digits
        and getattr(optimizers[0], "grad_scale", None) is None
    )


def fold(optimizer: Optimizer, coef: Tensor) -> Callable[[], None]:
    """Let the step that follows multiply by `coef` (0-d); returns what takes the scale away again.

    A coefficient of 0 gives 0, and NaN for an inf, as a multiplication does. After `scaler.unscale_` the attribute
    exists and is None, and the scaler will delete it: it is put back so.
    """
    existed = hasattr(optimizer, "grad_scale")
    optimizer.grad_scale = coef.reciprocal()  # type: ignore[attr-defined]

    def undo() -> None:
        if existed:
            optimizer.grad_scale = None  # type: ignore[attr-defined]
        else:
            del optimizer.grad_scale  # type: ignore[attr-defined]

    return undo

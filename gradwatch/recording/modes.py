"""The mode that a model trains in, and what its batch norms are set to: both change what it learns and says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from gradwatch.table import IN_LOSS

_WRAPPED = ("module", "_orig_mod", "_fsdp_wrapped_module")  # what DistributedDataParallel and others call a model


class BatchNorm(NamedTuple):
    """A batch norm that keeps running statistics."""

    name: str
    momentum: float
    mean: Tensor
    batches: Tensor | None  # how many it was given in training mode


def batch_norms(model: nn.Module) -> Iterator[BatchNorm]:
    """Those of the model whose momentum is a number; of an average over all batches it is None."""
    for name, norm in model.named_modules():
        if not isinstance(norm, _BatchNorm) or norm.running_mean is None:
            continue
        if isinstance(norm.momentum, int | float) and math.isfinite(norm.momentum):
            yield BatchNorm(name, float(norm.momentum), norm.running_mean, norm.num_batches_tracked)


def dropouts(model: nn.Module) -> Iterator[tuple[str, float]]:
    """The modules that drop a share of what they are given, and that share; what a function drops is not known."""
    for name, module in model.named_modules():
        inside = isinstance(module, nn.MultiheadAttention) or (isinstance(module, nn.RNNBase) and module.num_layers > 1)
        p = module.p if isinstance(module, _DropoutNd) else module.dropout if inside else 0
        if isinstance(p, int | float) and 0 < p <= 1:
            yield name, float(p)


class Mode:
    """Whether a model stands in eval mode. Only of one with batch norms or dropout: else it changes nothing."""

    def __init__(self, model: nn.Module, norm: BatchNorm | None) -> None:
        self._norm = norm
        while (inner := next((part for name, part in model.named_children() if name in _WRAPPED), None)) is not None:
            model = inner
        self.model = model

    @classmethod
    def of(cls, model: nn.Module) -> Mode | None:
        """That of a model, where it changes anything."""
        norm = next(batch_norms(model), None)
        drops = any(isinstance(module, _DropoutNd) and module.p > 0 for module in model.modules())
        return cls(model, norm) if drops or norm is not None else None

    def at_first(self) -> dict[str, Any]:
        """Before the first step: `norm_mean`, the largest running mean of the first batch norm; 0 before any batch."""
        return {} if self._norm is None else {"norm_mean": self._norm.mean.detach().abs().amax()}

    def now(self) -> dict[str, Any]:
        """In a step: `in_loss/norm_batches`, how many batches the first batch norm was given in training mode."""
        batches = None if self._norm is None else self._norm.batches
        return {} if batches is None else {f"{IN_LOSS}norm_batches": batches.detach().float()}

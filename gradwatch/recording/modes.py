"""The mode that a model trains in, and what its batch norms are set to: both change what it learns and says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

_WRAPPED = ("module", "_orig_mod", "_fsdp_wrapped_module")  # what DistributedDataParallel and others call a model


class BatchNorm(NamedTuple):
    """A batch norm that keeps running statistics."""

    name: str
    momentum: float
    mean: Tensor


def batch_norms(model: nn.Module) -> Iterator[BatchNorm]:
    """Those of the model, but for averages over all batches, whose momentum is None."""
    for name, norm in model.named_modules():
        if isinstance(norm, _BatchNorm) and norm.running_mean is not None and isinstance(norm.momentum, int | float):
            yield BatchNorm(name, float(norm.momentum), norm.running_mean)


class Mode:
    """Whether a model stands in eval mode, where that changes anything: it has batch norms or dropout."""

    def __init__(self, model: nn.Module) -> None:
        self._norm = next(batch_norms(model), None)
        self._matters = self._norm is not None or any(isinstance(m, _DropoutNd) and m.p > 0 for m in model.modules())
        while (inner := next((part for name, part in model.named_children() if name in _WRAPPED), None)) is not None:
            model = inner
        self._model = model

    def at_first(self) -> dict[str, Any]:
        """Before the first step: `norm_mean`, the largest running mean of the first batch norm; 0 before any batch."""
        return {} if self._norm is None else {"norm_mean": self._norm.mean.detach().abs().amax()}

    def now(self) -> dict[str, Any]:
        """Of a step in eval mode `eval_mode`, 1."""
        return {"eval_mode": 1.0} if self._matters and not self._model.training else {}

"""Whether a function is being transformed by torch.func: its tensors stand for others, without memory of their own."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch._C import _functorch


def is_inside_a_transform() -> bool:
    """Whether `vmap`, `grad` or the like is running here."""
    return _functorch.peek_interpreter_stack() is not None


def refuse_transformed(value: Any) -> None:
    """Refuse what stands for other tensors: for many at once, or for one that is differentiated.

    Raises:
        ValueError: it does.
    """
    if is_inside_a_transform() and isinstance(value, Tensor) and _functorch.is_functorch_wrapped_tensor(value):
        raise ValueError(
            "it is a tensor inside a function that torch.func transforms (vmap, grad): hand it back, and log it outside"
        )

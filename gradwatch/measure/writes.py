"""How often a tensor was written to, by torch's own count."""

from typing import TypeVar
from weakref import ref

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def writes(tensor: Tensor | None) -> int:
    """One more with each operation in place: a backward that adds to it, a `zero_()`, a clip; not what goes through
    `.data`. -1 where torch keeps no count: of a tensor made under `torch.inference_mode()`, of a lazy module's that is
    not there yet, and of none.
    """
    if tensor is None or type(tensor) in _LAZY or tensor.is_inference():
        return -1
    return tensor._version


_LAZY = (UninitializedParameter, UninitializedBuffer)


Mark = tuple[int, int]


def mark_of(tensor: Tensor) -> Mark:
    """Which tensor it is, and how often it was written to: another one where either changed."""
    return id(tensor), writes(tensor)


Of = TypeVar("Of", bound=Tensor)


def weakly(tensor: Of) -> ref[Of] | None:
    """A weak reference to it; None where torch may swap it for another as a module is moved or converted
    (`torch.utils.swap_tensors`), which it refuses to do with a tensor that somebody has one to.
    """
    may_be_swapped = is_traceable_wrapper_subclass(tensor) or torch.__future__.get_swap_module_params_on_conversion()
    return None if may_be_swapped else ref(tensor)

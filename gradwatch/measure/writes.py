"""How often a tensor was written to, by torch's own count."""

from torch import Tensor


def writes(tensor: Tensor | None) -> int:
    """One more with each operation in place: a backward that adds to it, a `zero_()`, a clip; not what goes through
    `.data`. -1 where torch keeps no count: of a tensor made under `torch.inference_mode()`, and of none.
    """
    return -1 if tensor is None or tensor.is_inference() else tensor._version


Mark = tuple[int, int]


def mark_of(tensor: Tensor) -> Mark:
    """Which tensor it is, and how often it was written to: another one where either changed."""
    return id(tensor), writes(tensor)

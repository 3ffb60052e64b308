"""The nodes of an autograd graph: what each is called, what it gives out and keeps, and those below it."""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

MOST_NODES = 5_000  # of a graph, those next to the loss first
LONGEST = 50  # operations in a row that are looked through
MOST_NAMED = 8  # operations that a loss begins with
SAME_WEIGHTS = ("T", "Transpose", "Permute", "ToCopy", "View", "Unsqueeze")  # what leaves the numbers as they are
SAME_INPUT = (*SAME_WEIGHTS, "Expand", "ReshapeAlias", "Clone", "UnsafeView")
SAME_NUMBERS = ("Sum", "Neg", "Squeeze", "Select", "View", "Unsqueeze", "Stack", "Cat")  # but for where they stand
PRODUCTS = ("Bmm", "Mm", "Mv", "Dot", "Baddbmm")
PARTED = ("Unbind", "Split", "SplitWithSizes", "UnsafeSplit", "UnsafeSplitWithSizes")  # as many outputs as parts
_MASKS = ("attn_mask", "attn_bias")  # of a fused attention, by its kernel
RECURRENT = ("MkldnnRnnLayer", "CudnnRnn")  # kernels of a whole recurrence
Node = Any  # torch.autograd.graph.Node, or what stands for one of a Function written in Python
Shape = tuple[int, ...]


def name_of(node: Node) -> str:
    """The operation that a node is of, one word: AddmmBackward0 is Addmm."""
    name = node.name  # what a Function written in Python may have as an attribute of its own
    return _operation(str(name()) if callable(name) else type(node).__name__)


@functools.lru_cache(maxsize=1_000)  # a model has few, and each is asked for thousands of times
def _operation(name: str) -> str:
    name = re.sub(r"Backward\d*$", "", name.rsplit("::", 1)[-1])
    return re.sub(r"\s+", "_", name)[:100] or "unnamed"


def with_reduction(node: Node) -> str:
    """Its operation, and where a loss is a sum that it is one."""
    return f"{name_of(node)}/sum" if getattr(node, "_saved_reduction", None) == 2 else name_of(node)


def shape_of(node: Node) -> Shape:
    """Of what the operation gives out (its first output); empty where that is not known, as of nested tensors."""
    if name_of(node) not in PARTED or is_written_in_python(node):
        return _shape_of(node)
    known = node.metadata  # kept as long as the node: torch tells of all parts each time, and each part asks for one
    if PARTED not in known:
        known[PARTED] = _shape_of(node)
    shape: Shape = known[PARTED]
    return shape


def _shape_of(node: Node) -> Shape:
    told: Sequence[Any] = getattr(node, "_input_metadata", ())
    try:
        return tuple(int(size) for size in told[0].shape) if told else ()
    except (RuntimeError, AttributeError, TypeError):  # of a nested tensor, each layout in its own way
        return ()


def text_of(shape: Shape) -> str:
    """A shape as one word, `64x10`; `1` of a single number."""
    return "x".join(map(str, shape)) or "1"


def children(node: Node) -> list[Node]:
    """The nodes that its gradient goes to."""
    return [child for child, _ in node.next_functions if child is not None]


def through(node: Node, names: Collection[str]) -> Node:
    """The first node from this one on, each time the first child, that is of none of these operations; or the last of
    `LONGEST` of them, as this is asked from each of them.
    """
    for _ in range(LONGEST):
        if name_of(node) not in names or not (below := children(node)):
            break
        node = below[0]
    return node


def walk(root: Node) -> Iterator[Node]:
    """The nodes of a graph, those next to its root first."""
    seen, waiting = {root}, deque([root])
    for _ in range(MOST_NODES):
        if not waiting:
            return
        node = waiting.popleft()
        yield node
        for child in children(node):
            if child not in seen:
                seen.add(child)
                waiting.append(child)


def is_written_in_python(node: Node) -> bool:
    """Whether a node is of a `torch.autograd.Function`, which may be called as an operation of torch is."""
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def is_normed(node: Node) -> bool:
    """Whether weights come here out of a weight norm."""
    below = (child for operand in children(node) for child in (operand, *children(operand)))
    return name_of(node) == "Mm" and any("WeightNorm" in name_of(child) for child in below)


def is_product(node: Node) -> bool:
    """Whether two things that are made are multiplied: as matrices, or one is spread over the other, as weights are."""
    if name_of(node) != "Mul":
        return name_of(node) in PRODUCTS
    operands = children(node)
    return len(operands) == 2 and len({*map(shape_of, operands)}) == 2


def beginning(loss: Any) -> str:
    """The operations that a loss begins with, but for factors: losses of a kind begin alike. Empty without a graph."""
    names: list[str] = []
    node = getattr(loss, "grad_fn", None)
    while node is not None and len(names) < MOST_NAMED:
        if (name := name_of(node)) not in ("Mul", "Div"):
            names.append(name)
        node = next(iter(children(node)), None)
    return " ".join(names)


def is_plain(kept: Any) -> bool | None:
    """Whether what is kept for backward lies there as it is: no hooks (a checkpoint's, `save_on_cpu`) bring it back.

    None where torch does not tell, as 2.6 does not. `kept` is what a node calls `_raw_saved_...`.
    """
    return kept.unpack_hook is None if hasattr(kept, "unpack_hook") else None


def kept(node: Node, name: str) -> Tensor | None:
    """What a node keeps by this name; None where it lies there in another way, or torch does not tell."""
    if not is_plain(getattr(node, f"_raw_saved_{name}", None)):
        return None
    found = getattr(node, f"_saved_{name}")
    ordinary = type(found) is Tensor and found.layout is torch.strided and not (found.is_nested or found.is_complex())
    return found if ordinary and found.numel() else None


def mask_of(attention: Node) -> Tensor | None:
    """What a fused attention adds to its logits, or which of them it lets through."""
    return next((mask for mask in (kept(attention, name) for name in _MASKS) if mask is not None), None)


def hides_its_mask(attention: Node) -> bool:
    """Whether a mask of a fused attention is kept in a way that does not tell it."""
    raw = (getattr(attention, f"_raw_saved_{name}", None) for name in _MASKS)
    return any(each is not None and not is_plain(each) for each in raw)


def signed(number: int) -> int:
    """Torch shows a negative setting of an operation as an unsigned number of 64 bits."""
    return number - 2**64 if number >= 2**63 else number

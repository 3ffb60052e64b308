"""What is compared in a loss: whether both views of an example are one, whether all examples have one embedding.

Legend: N examples, D numbers of an embedding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import torch
from torch import Tensor

from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.graph_nodes import (
    SAME_INPUT,
    SAME_WEIGHTS,
    Node,
    children,
    kept,
    name_of,
    shape_of,
    through,
    walk,
)
from gradwatch.table import IN_LOSS

LEAST_EXAMPLES = 8
MOST_EXAMPLES, MOST_MARGINS = 1 << 10, 1 << 14  # that are looked at
NEAREST = 12  # operations below a cross-entropy in which the products stand: a temperature, a margin lie between


def seen(nodes: Iterable[Node]) -> dict[str, Tensor]:
    """Numbers, 0-d, of the first of each kind among the nodes from a loss to the first weights.

    `pairs_alike`: of examples that a cross-entropy asks for one among as many others, by the products of their `[N, D]`
    embeddings, the share whose embedding and that of the one that is asked for are the same numbers.
    `embeddings_alike`: of embeddings `[N, D]` that are divided by their length, the square of the length of their mean:
    1 where all point one way. `margins_alike`: of the `[N]` that are left of margins, clamped at 0, the square of their
    mean over their mean square: 1 where all lack the same.
    Source: Wang & Isola, arXiv:2005.10242 (alignment without uniformity).
    """
    nodes, found = [*nodes], {}
    for kind, look in _KINDS.items():
        value = next((value for node in nodes for value in look(node)), None)
        if value is not None:
            found[f"{IN_LOSS}{kind}"] = value
    return found


def _pairs(node: Node) -> Iterator[Tensor]:
    if name_of(node) == "NllLoss":
        yield from (alike(*table) for table in _tables(node))


def _embeddings(node: Node) -> Iterator[Tensor]:
    """Not of gradients, whose length a penalty takes: what weights give out, or a norm behind them."""
    if name_of(node) not in ("LinalgVectorNorm", "Norm") or len(shape_of(node)) < 1 or not children(node):
        return
    made = through(children(node)[0], SAME_INPUT)
    x = kept(node, "self") if name_of(made) in _GIVEN_OUT else None
    if x is None or x.dim() != 2 or len(x) < LEAST_EXAMPLES or x.shape[1] < 2:
        return
    if shape_of(node)[0] == len(x):  # one length for each
        yield same_way(x[:: -(-len(x) // MOST_EXAMPLES)])


def _margins(node: Node) -> Iterator[Tensor]:
    """Of distances between embeddings that are added up: what else is clamped at 0 may be what a model gives out."""
    for hinge in children(node) if name_of(node) in _SUMS else ():
        left = _left(hinge)
        if left is None or left.dim() != 1 or len(left) < LEAST_EXAMPLES:
            continue
        if any(map(_is_distance, islice(walk(hinge), NEAREST))):
            yield same_size(left[:: -(-len(left) // MOST_MARGINS)].clamp(min=0))


def _left(hinge: Node) -> Tensor | None:
    """What was clamped at 0, if that is what was done."""
    if name_of(hinge) == "Relu":
        return kept(hinge, "result")
    least, most = (getattr(hinge, f"_saved_{end}", None) for end in ("min", "max"))
    at_0 = isinstance(least, int | float) and least == 0 and most is None  # of a tensor nothing is read
    return kept(hinge, "self") if name_of(hinge) in ("Clamp", "ClampMin") and at_0 else None


def _is_distance(node: Node) -> bool:
    """Whether the numbers of an embedding are added up to one, or embeddings multiplied by one another."""
    below = [through(child, SAME_WEIGHTS) for child in children(node)]
    if name_of(node) in ("Mm", "Bmm"):
        return len(below) == 2 and not any(hasattr(child, "variable") for child in below)
    several = any(len(shape) > 1 and shape[-1] > 1 for shape in map(shape_of, below))
    return several and name_of(node) in ("Norm", "LinalgVectorNorm", "Sum", "Cdist")


@without_autograd
def same_way(embeddings: Tensor) -> Tensor:
    """Of `[N, D]`: 1 where all point one way, about 1 / N where they point anywhere."""
    return torch.nn.functional.normalize(embeddings.float(), dim=1).mean(dim=0).square().sum()


@without_autograd
def same_size(left: Tensor) -> Tensor:
    """Of `[N]`: 1 where all are the same, NaN where all are 0."""
    left = left.float()
    return left.mean().square() / left.square().mean()


@without_autograd
def alike(target: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Of the places `[N]` of what is asked for, and embeddings `[N, D]`, twice."""
    asked = other[target.clamp(0, len(other) - 1)]
    return ((one == asked).all(dim=1) & (target >= 0)).float().mean()


def _tables(loss: Node) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    target = kept(loss, "target")
    if target is None or target.dim() != 1 or len(target) < LEAST_EXAMPLES:
        return
    for node in islice(walk(loss), NEAREST):
        factors = [kept(node, name) for name in ("self", "mat2")] if name_of(node) in ("Mm", "Bmm") else []
        tables = [f[0] if f.dim() == 3 and len(f) == 1 else f for f in factors if f is not None]
        if [t.dim() for t in tables] == [2, 2]:
            one, other = tables[0], tables[1].T
            if one.shape == other.shape and len(one) == len(target):
                yield target, one, other


_GIVEN_OUT = ("Addmm", "Convolution", "NativeBatchNorm", "CudnnBatchNorm", "NativeLayerNorm", "Mean", "Select")
_SUMS = ("Mean", "Sum", "Index", "MaskedSelect")
_KINDS = {"pairs_alike": _pairs, "embeddings_alike": _embeddings, "margins_alike": _margins}

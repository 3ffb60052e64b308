"""Where a recurrence or an attention runs along the batch instead of the time, by what stands above and below it.

A recurrence of torch runs along the first axis unless `batch_first=True`, and so does an attention. Axes are followed
through the graph by the settings and shapes of what is between.

Legend: T places, B rows of a batch, H units.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from gradwatch.measure.graph_nodes import (
    RECURRENT,
    Node,
    children,
    is_written_in_python,
    name_of,
    shape_of,
    signed,
    walk,
)

MOST_BETWEEN, MOST_BELOW = 40, 300  # operations
_POOLS = ("Mean", "Amax")
_ATTENTIONS = ("Softmax", "SafeSoftmax")


def wrong_axes(nodes: Sequence[Node], outer: Collection[Node]) -> Iterator[tuple[Node, Node]]:
    """The operations to which the axis that a sequence runs along is the batch, each with what gives out `[T, B, H]`.

    One that picks of the other axis, or pools it for weights above (not one of the `outer` ones, that stand between
    these and the loss); a `Convolution` along the other axis below; an `Embedding` of tokens `[T, B]`, which are texts
    by rows only if their targets say so.
    """
    first = None  # of the attentions, that which is the furthest from the loss, the next to its tokens
    for node in nodes:
        name = "" if is_written_in_python(node) else name_of(node)
        if name == "Select" or (name in _POOLS and node not in outer):
            given = children(node)[0]
            if len(shape_of(given)) == 3 and _runs_along_the_other(given, _axis_of(node)):
                yield node, given
        elif _attends(node):
            first = node
        elif _runs_along_the_first(node) and (met := _given_by_rows(node)) is not None:
            yield met, node
    if first is not None and (met := _tokens_of(first)) is not None:
        yield met, met


def _runs_along_the_other(node: Node, picked: int) -> bool:
    """Whether what gives out `[., ., H]` was made along the axis of the two that is not picked."""
    if picked not in (0, 1):
        return False
    shape = shape_of(node)
    for below, axis in _followed(node, picked):
        if _runs_along_the_first(below):
            return axis == 1
    along = {(of[0], of[2]) for n in islice(walk(node), MOST_BELOW) if _attends(n) for of in (shape_of(n),)}
    right, wrong = (shape[1 - picked], shape[picked]), (shape[picked], shape[1 - picked])
    return right not in along and wrong in along


def _runs_along_the_first(node: Node) -> bool:
    """Whether it gives out `[T, B, H]`, each place made of the one before."""
    name = name_of(node)
    if name in RECURRENT:
        return len(shape_of(node)) == 3 and not getattr(node, "_saved_batch_first", False)
    is_first = name == "Stack" and len(shape_of(node)) == 3 and getattr(node, "_saved_dim", None) == 0
    steps = children(node) if is_first else []
    return len(steps) > 2 and all(steps[i] in {*islice(walk(steps[i + 1]), MOST_BETWEEN)} for i in (0, 1))


def _attends(node: Node) -> bool:
    """Whether it gives out `[B, heads, T, .]`, each place made of all."""
    name, shape = name_of(node), shape_of(node)
    if len(shape) != 4:
        return False
    return name.startswith("ScaledDotProduct") or (name in _ATTENTIONS and shape[2] == shape[3])


def _given_by_rows(sequence: Node) -> Node | None:
    """What a recurrence `[T, B, H]` is given, if its first axis is that of the rows below and its second along them."""
    given = sequence
    if name_of(sequence) == "Stack":
        taken = (n for n in walk(sequence) if name_of(n) == "Unbind" and getattr(n, "_saved_dim", None) == 0)
        given = next(taken, sequence)
    start = next(iter(children(given)), None)
    if start is None or shape_of(start)[:2] != shape_of(sequence)[:2]:
        return None
    ends = [[*_followed(start, axis)] for axis in (0, 1)]
    (node, first), (other, second) = (end[-1] for end in ends)
    wanted = {"Convolution": (0, 2), "Embedding": (0, 1)}.get(name_of(node))
    return node if node is other and (first, second) == wanted else None


def _tokens_of(attention: Node) -> Node | None:
    """The embedding `[first, second, H]` of tokens below an attention that runs along the first."""
    rows, _, places, _ = shape_of(attention)
    tables = (node for node in islice(walk(attention), MOST_BELOW) if name_of(node) == "Embedding")
    below = (node for node in tables if len(shape_of(node)) == 3)  # one of places alone is `[T, H]`
    return next((node for node in below if rows != places and shape_of(node)[:2] == (places, rows)), None)


def _followed(node: Node, axis: int) -> Iterator[tuple[Node, int]]:
    """The nodes from this one down, and which axis of each is the one asked for, as far as it can be told."""
    for _ in range(MOST_BETWEEN):
        yield node, axis
        step = _step(node, axis)
        if step is None:
            return
        node, axis = step


def _step(node: Node, axis: int) -> tuple[Node, int] | None:
    name, shape = name_of(node), shape_of(node)
    if name in (*RECURRENT, "Stack", "Embedding", "Convolution") or is_written_in_python(node):
        return None
    child = next(iter(children(node)), None)
    if child is None:
        return None
    if name == "Permute":
        return child, signed(node._saved_dims[axis]) % len(shape)
    if name == "Transpose":
        one, other = (signed(dim) % len(shape) for dim in (node._saved_dim0, node._saved_dim1))
        return child, {one: other, other: one}.get(axis, axis)
    if name.endswith("View") or name == "ReshapeAlias":  # of a linear layer, that takes all places as rows
        product = child if name_of(child) in ("Addmm", "Mm") else None
        taken = None if product is None else next((c for c in children(product) if name_of(c).endswith("View")), None)
        child = next(iter(children(taken)), child) if taken is not None else child
    for below in (child, *children(node)):
        given = shape_of(below)
        if given == shape or (len(given) == len(shape) and given[:-1] == shape[:-1] and axis < len(shape) - 1):
            return below, axis
    return None


def _axis_of(pick: Node) -> int:
    """Of three axes the one that is picked or pooled; -1 of several, or all."""
    saved = getattr(pick, "_saved_dim", None)
    dims = [saved] if isinstance(saved, int) else [*(saved or ())]
    return signed(dims[0]) % 3 if len(dims) == 1 else -1

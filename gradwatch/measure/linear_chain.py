"""Layers of a model that follow one another with nothing between them that bends: then they are one layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from gradwatch.measure.graph_nodes import RECURRENT, SAME_INPUT, Node, children, is_written_in_python, name_of, shape_of
from gradwatch.measure.graph_values import GIVEN

MOST_BETWEEN = 50  # operations between two layers

_BY_A_CONSTANT = ("Mul", "Div")  # linear where one operand alone asks for a gradient
_LINEAR = {
    *(*SAME_INPUT, "Squeeze", "Select", "Slice", "Split", "Cat", "Stack", "ConstantPadNd", "Add", "Sub", "Neg"),
    *("Mean", "Sum", "AvgPool1D", "AvgPool2D", "AdaptiveAvgPool2D", "NativeBatchNorm", "CudnnBatchNorm"),
    *_BY_A_CONSTANT,
}


def linear_chain(nodes: Sequence[Node], own: Callable[[Node], str], is_given_data: Callable[[Node], bool]) -> list[str]:
    """The layers of a model all of which but the first are given what others make, by linear operations alone.

    `own` names the layer of an operation with weights. Those next to the loss first; empty where anything bends what
    one is given, or where it is made by what is not known to be linear.
    """
    layers = {node: own(node) for node in nodes if name_of(node) in GIVEN}
    layers = {node: layer for node, layer in layers.items() if layer}
    inner = [node for node in layers if not is_given_data(node)]
    if not inner or len(inner) == len(layers) or any(name_of(node) in RECURRENT for node in layers):
        return []
    given = (node.next_functions[GIVEN[name_of(node)].place][0] for node in inner)
    return [*layers.values()] if all(_is_made_by(each, layers) for each in given) else []


def linear_pairs(nodes: Sequence[Node], own: Callable[[Node], str]) -> Iterator[list[str]]:
    """Two layers, of which the first alone is given what the second gives out: the same features, maybe in other rows.

    What others are given too, as a residual connection or several heads are, is used as it is.
    """
    users = Counter(below for node in nodes for below in children(node))
    for node in nodes:
        if _is_layer(node) and (above := own(node)):
            below = node.next_functions[GIVEN[name_of(node)].place][0]
            while below is not None and users[below] == 1 and name_of(below) in _SAME_FEATURES:
                under = next(iter(children(below)), None)
                below = under if under is not None and shape_of(below)[-1:] == shape_of(under)[-1:] else None
            if below is not None and users[below] == 1 and _is_layer(below) and own(below) not in ("", above):
                yield [above, own(below)]


_SAME_FEATURES = ("View", "UnsafeView", "ReshapeAlias", "Clone", "ToCopy")


def _is_layer(node: Node) -> bool:
    """Whether it multiplies by weights the other way round, `[out, in]`, as nn.Linear does."""
    last = node.next_functions[-1][0] if name_of(node) in ("Addmm", "Mm") else None
    return last is not None and name_of(last) == "T"


def _is_made_by(node: Node | None, layers: dict[Node, str]) -> bool:
    """Whether all that something is made of are these layers, and all between them is linear."""
    waiting: list[Node | None] = [node]
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node is None or len(seen) > MOST_BETWEEN:
            return False
        if node in seen or node in layers:
            continue
        seen.add(node)
        name, below = name_of(node), children(node)
        if name not in _LINEAR or is_written_in_python(node):
            return False
        if name in _BY_A_CONSTANT and (len(below) > 1 or (name == "Div" and node.next_functions[0][0] is None)):
            return False
        waiting += below[:1] if name.endswith("BatchNorm") else below
    return True

"""An attention over tokens that is told nothing of where each of them stands.

Legend: B rows of a batch, T places, H units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradwatch.measure.graph_nodes import (
    PARTED,
    SAME_INPUT,
    Node,
    children,
    hides_its_mask,
    is_written_in_python,
    mask_of,
    name_of,
    shape_of,
)
from gradwatch.measure.graph_values import ATTENTIONS, factor

MOST_BELOW = 200  # operations
_OF_EACH_PLACE = {
    *SAME_INPUT, *PARTED, "Addmm", "Mm", "Bmm", "Add", "Mul", "Div", "Cat", "Select", "Slice", "Squeeze", "Stack",
    "NativeLayerNorm", "FusedRmsNorm", "NativeDropout", "Relu", "Gelu", "Silu", "Tanh", "AccumulateGrad",
}  # fmt: skip
_TOLD_APART = ("Add", "Sub", "Mul", "Cat", "Expand", "Slice", "Select")  # of which an operand may be one of places


def without_places(nodes: Sequence[Node]) -> Iterator[tuple[Node, Node]]:
    """The attention nearest its tokens and their table, if nothing on the way from the one to the other differs from
    place to place, nor does a mask: then its output for a row is that of the row in any order.

    Source: Vaswani et al., arXiv:1706.03762, section 3.5.
    """
    attentions = [node for node in nodes if name_of(node) in ATTENTIONS and len(shape_of(node)) in (3, 4)]
    if not attentions or _has_order(attentions[-1]):
        return
    seen, waiting, tables = set[Node](), [attentions[-1]], []
    while waiting and len(seen) < MOST_BELOW:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if name_of(node) == "Embedding":
            tables.append(node)
            continue
        if node is not attentions[-1] and (name_of(node) not in _OF_EACH_PLACE or _tells_places(node)):
            return
        waiting += children(node)
    shape = shape_of(tables[0]) if len(tables) == 1 and not waiting else ()
    if len(shape) == 3 and min(shape[:2]) > 1:
        yield attentions[-1], tables[0]


def _has_order(attention: Node) -> bool:
    """Whether a query may be kept from what comes after it, or a distance is added to its logits."""
    if not name_of(attention).startswith("ScaledDotProduct"):
        return False
    if attention._saved_is_causal or hides_its_mask(attention):
        return True
    mask = mask_of(attention)
    return mask is not None and mask.dim() > 1 and mask.shape[-2] > 1


def _tells_places(node: Node) -> bool:
    """Whether something that may differ from place to place comes in here: a constant, or weights of several rows."""
    name = name_of(node)
    if is_written_in_python(node):
        return True
    if name in ("Mul", "Div") and len(children(node)) == 1:
        by = factor(node)
        return by is not None and by.numel() > 1 and by.shape != shape_of(node)  # of all elements: a dropout
    if name in ("Add", "Cat") and len(children(node)) < len(node.next_functions):
        return True
    leaves = (getattr(child, "variable", None) for child in children(node)) if name in _TOLD_APART else ()
    return any(leaf is not None and leaf.dim() > 1 and leaf.shape[-2] > 1 for leaf in leaves)

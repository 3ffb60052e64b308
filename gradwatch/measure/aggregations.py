"""Where the rows of a table are given a sum of others, by a fixed graph: the aggregations of a graph network.

Legend: N nodes of that graph, D numbers of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradwatch.measure.graph_nodes import SAME_WEIGHTS, Node, kept, name_of, shape_of, through

LEAST_NODES = 8
_BY_INDEX = ("IndexAdd", "ScatterAdd", "ScatterReduce")
_BY_MATRIX = {"Mm": 1, "Bmm": 1, "SparseAddmm": 2}  # the place of what is multiplied among the operands


def aggregations(nodes: Sequence[Node]) -> Iterator[tuple[Node, Node]]:
    """Each operation that adds up rows of what was made, and what it is given `[N, D]`: a product with a matrix
    `[N, N]` that asks for no gradient, dense or sparse, or an addition by index.
    """
    for node in nodes:
        name = name_of(node)
        place = 1 if name in _BY_INDEX else _BY_MATRIX.get(name)
        if place is None or len(node.next_functions) <= place:
            continue
        made, fixed = node.next_functions[place][0], node.next_functions[place - 1][0]
        if made is None or fixed is not None or hasattr(through(made, SAME_WEIGHTS), "variable"):
            continue
        rows = shape_of(node)[-2:-1]
        if rows >= (LEAST_NODES,) and (name in _BY_INDEX or _columns(node) == rows[0]):
            yield node, made


def _columns(product: Node) -> int | None:
    """The number of columns of its first factor; None where it is not known."""
    if name_of(product) == "Bmm":
        first = kept(product, "self")
        return None if first is None else first.shape[-1]
    sizes = getattr(
        product, "_saved_mat2_sym_sizes" if name_of(product) == "SparseAddmm" else "_saved_self_sym_sizes", ()
    )
    return int(sizes[-1 if name_of(product) == "Mm" else 0]) if sizes else None

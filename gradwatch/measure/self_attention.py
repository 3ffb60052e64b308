"""Whether an attention is over what its queries are made of."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from gradwatch.measure.graph_nodes import PRODUCTS, SAME_INPUT, Node, children, name_of, walk
from gradwatch.measure.graph_values import GIVEN

NEAR_SCORES, MOST_BETWEEN = 8, 16  # nodes that are looked at, for the scores and for the weights below them


def is_of_itself(attention: Node, own: Callable[[Node], str]) -> bool:
    """Whether its queries and keys are made of the same thing, each by weights; `own` names the layer of an operation
    with weights.
    """
    fused = name_of(attention).startswith("ScaledDotProduct")
    near = islice(walk(attention), NEAR_SCORES)
    scores = attention if fused else next((node for node in near if name_of(node) in PRODUCTS), None)
    sources = [] if scores is None else [_made_of(child, own) for child, _ in scores.next_functions[:2]]
    return len(sources) == 2 and sources[0] is sources[1] is not None


def _made_of(node: Node | None, own: Callable[[Node], str]) -> Node | None:
    """What the next weights below are given, behind all that leaves its numbers as they are."""
    for _ in range(MOST_BETWEEN):
        if node is None:
            break
        given = GIVEN.get(name_of(node))
        if given is not None and own(node):
            node = node.next_functions[given.place][0]
            while node is not None and name_of(node) in SAME_INPUT:
                node = node.next_functions[0][0]
            return node
        node = next(iter(children(node)), None)
    return None

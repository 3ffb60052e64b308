"""Whether each example is looked for in a table of products with itself: both views of it are one.

Legend: N examples, D numbers of an embedding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import torch
from torch import Tensor

from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.graph_nodes import Node, name_of, walk
from gradwatch.measure.graph_values import kept
from gradwatch.table import IN_LOSS

LEAST_EXAMPLES = 8
NEAREST = 12  # operations below a cross-entropy in which the products stand: a temperature, a margin lie between


def seen(nodes: Iterable[Node]) -> dict[str, Tensor]:
    """`pairs_alike`: of examples that a cross-entropy asks for the one at their own place, `[0, 1, ..., N - 1]`, among
    the products of `[N, D]` embeddings with as many others, the share whose two embeddings are the same numbers; 0-d.

    Nothing of a loss without such a table. With both views of a batch in one (SimCLR) no example is at its own place.
    """
    found = next((table for node in nodes if name_of(node) == "NllLoss" for table in _tables(node)), None)
    return {} if found is None else {f"{IN_LOSS}pairs_alike": alike(*found)}


@without_autograd
def alike(target: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Of classes `[N]` and embeddings `[N, D]`, twice."""
    at_their_own = target == torch.arange(len(target), device=target.device)
    return ((one == other).all(dim=1) & at_their_own).float().mean()


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

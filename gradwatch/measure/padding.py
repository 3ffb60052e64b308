"""What a model makes of the padding of its rows: a state that is read behind it, a mask that is the wrong way round.

Legend: B rows of a batch, T places, V numbers of each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from gradwatch.measure.attention import MASKED
from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.graph_nodes import RECURRENT, Node, children, kept, mask_of, name_of, shape_of, signed
from gradwatch.measure.graph_values import ATTENTIONS, GIVEN

MOST_BELOW = 400  # operations
MOST_ATTENTIONS = MOST_READ = 4
MOST_ROWS = 64  # of numbers


@without_autograd
def seen(nodes: Sequence[Node]) -> list[tuple[Node, dict[str, Tensor]]]:
    """Operations, and what each makes of padding, 0-d: the token that a table has for it, or its first one; or numbers
    that are all 0.

    `padding_behind`: of a state that is read at the last place of its rows, which share of the places is padding that
    it went through just before, by the mean over the rows; not of rows that are packed. `real_masked` and
    `padding_masked`: of an attention over tokens, which shares of the real ones and of the padding it leaves out.
    """
    found = []
    for look in (_behind, _masked):
        try:
            found.append(look(nodes))
        except RuntimeError:  # what is kept was written to, of which torch tells in backward
            continue
    return [each for each in found if each is not None]


def _behind(nodes: Sequence[Node]) -> tuple[Node, dict[str, Tensor]] | None:
    picks = (_last_state(node) for node in nodes if name_of(node) == "Select")
    for last in islice((pick for pick in picks if pick is not None), MOST_READ):
        if (empty := _empty_places(last)) is not None:
            return last, {"padding_behind": empty.flip(1).cumprod(1).float().mean()}
    return None


def _masked(nodes: Sequence[Node]) -> tuple[Node, dict[str, Tensor]] | None:
    """Of the first attention that has a column for each token, or one more in front."""
    for node in islice((node for node in nodes if name_of(node) in ATTENTIONS), MOST_ATTENTIONS):
        out = _left_out(node)
        tokens = None if out is None else _empty_places(node)
        if out is None or tokens is None or len(out) % len(tokens) or out.shape[1] - tokens.shape[1] not in (0, 1):
            continue
        out = out[:: len(out) // len(tokens), -tokens.shape[1] :]  # a row for each head
        return node, {"real_masked": _share(out, ~tokens), "padding_masked": _share(out, tokens)}
    return None


def _left_out(attention: Node) -> Tensor | None:
    """Which columns the last query does not look at at all, `[B, T]`: in a causal one it looks at all."""
    if name_of(attention).startswith("ScaledDotProduct"):
        mask = mask_of(attention)
        if mask is None or mask.dim() != 4:
            return None
        columns = mask[:, 0, -1]
        return ~columns if columns.dtype == torch.bool else columns < MASKED
    p = kept(attention, "result")
    return None if p is None or p.dim() not in (3, 4) else (p[:, 0] if p.dim() == 4 else p)[:, -1] == 0


def _share(hit: Tensor, of: Tensor) -> Tensor:
    """NaN of none."""
    return (hit & of).sum().float() / of.sum()


def _last_state(pick: Node) -> Node | None:
    """What gives out the state of the last place, where that is what is picked here; else None."""
    given = next(iter(children(pick)), None)
    if given is None or len(shape := shape_of(given)) != 3:
        return None
    dim = signed(int(pick._saved_dim)) % 3
    if signed(int(pick._saved_index)) not in (-1, shape[dim] - 1):
        return None
    if name_of(given) == "Transpose" and dim == 1:
        given, dim = children(given)[0], 0
    if name_of(given) == "Stack":  # of the places, or of the layers: `h_n[-1]`
        steps = children(given)
        return steps[-1] if dim == 0 and len(steps) == shape_of(given)[0] else None
    return given if name_of(given) in RECURRENT and dim == _along(given) else None


def _along(recurrence: Node) -> int:
    """The axis of the places in what a kernel gives out; the other's is transposed above it."""
    return int(name_of(recurrence) == "CudnnRnn" and recurrence._saved_batch_first)


def _empty_places(node: Node) -> Tensor | None:
    """Which places of the rows that this is made of are padding, `[B, T]`; None where that is not known."""
    rows = 0
    for below in islice(_one_step(node), MOST_BELOW):
        name = name_of(below)
        if name == "PackPaddedSequence":
            return None
        if name == "Unbind":
            rows = rows or shape_of(below)[0]
        elif name in RECURRENT and len(shape := shape_of(below)) == 3:
            rows = rows or shape[1 - _along(below)]
        if name == "Embedding":
            return _padding_of(below, rows)
        if name in GIVEN and below.next_functions[GIVEN[name].place][0] is None:
            data = kept(below, GIVEN[name].kept)
            if data is None or not rows or data.dim() not in (2, 3):
                return None
            few = data.reshape(-1, rows, data.shape[-1])[:, :: -(-rows // MOST_ROWS)]
            return (few == 0).all(2).T
    return None


def _one_step(start: Node) -> Iterator[Node]:
    """The nodes from this one down, those next to it first; of the steps of a recurrence the last alone."""
    seen, waiting = {start}, deque([start])
    while waiting:
        node = waiting.popleft()
        yield node
        below = children(node)
        if name_of(node) == "Unbind":  # what all steps are given: the steps before it tell no more
            waiting.clear()
        for child in below[-1:] if name_of(node) == "Stack" else below:
            if child not in seen:
                seen.add(child)
                waiting.append(child)


def _padding_of(table: Node, rows: int) -> Tensor | None:
    tokens = kept(table, "indices")
    if tokens is None or tokens.dim() != 2:
        return None
    by_rows = tokens if rows in (0, len(tokens)) else tokens.T
    return by_rows == max(signed(int(table._saved_padding_idx)), 0)

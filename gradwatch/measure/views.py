"""Whether a view of a tensor under another shape keeps its axes, by the shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from torch import Tensor

Shape = tuple[int, ...]


def reorders(before: Shape, after: Shape, arranged: bool = False) -> bool:
    """Whether a view of the shape `before` as `after` has an axis in another place, which wants a transpose.

    Axes are told by their sizes. A view may split and join axes: then of the numbers of elements in front of its axes,
    before and after, each divides the next. Where one does not, and an axis of several neighbours is found again behind
    another number of elements, what is called that axis has other elements. So it is where heads are made out of
    `[T, H x D]` as `[H, T, D]`, or joined from that, whatever the sizes; unless the axes were `arranged` just before.
    """
    for old, new in _groups(before, after):
        moved = any(
            old.count(n) == new.count(n) == 1 and math.prod(old[:i]) != math.prod(new[: new.index(n)])
            for i, n in enumerate(old)
        )
        splits = sorted({math.prod(axes[:i]) for axes in (old, new) for i in range(len(axes))})
        heads = sorted((old, new), key=len)
        split = [*map(len, heads)] == [2, 3] and heads[0][0] == heads[1][1] and not arranged
        if moved and (split or any(b % a for a, b in pairwise(splits))):
            return True
    return False


def reordered_from(data: Tensor) -> Shape:
    """The shape that a batch had, or as many rows cut out of more, where it was viewed under one that `reorders` that;
    else empty.
    """
    whole = data._base
    if whole is None or whole.dim() < 2 or not (data.is_contiguous() and whole.is_contiguous()):
        return ()
    row = whole[:1].numel()
    before = (data.numel() // row, *whole.shape[1:]) if row and data.numel() % row == 0 else ()
    return before if reorders(before, tuple(data.shape), arranged=True) else ()  # its first axis is no head of another


def _groups(before: Shape, after: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """The smallest runs of neighbouring axes that hold the same elements before and after; axes of 1 left out."""
    old, new = [n for n in before if n != 1], [n for n in after if n != 1]
    i = j = 0
    while i < len(old) and j < len(new):
        ends = i + 1, j + 1
        while (a := math.prod(old[i : ends[0]])) != (b := math.prod(new[j : ends[1]])):
            ends = (ends[0] + 1, ends[1]) if a < b else (ends[0], ends[1] + 1)
            if ends[0] > len(old) or ends[1] > len(new):
                return  # of another number of elements: no view
        yield old[i : ends[0]], new[j : ends[1]]
        i, j = ends

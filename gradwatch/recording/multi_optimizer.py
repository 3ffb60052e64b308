"""Optimizers that step inside backward, one for each parameter: one backward is one step, put together from pieces.

Legend: L layers, P pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd import Variable

from gradwatch.errors import WatchError
from gradwatch.measure.layout import Layout

if TYPE_CHECKING:
    from gradwatch.policies import Policy


def inside_backward() -> bool:
    """Whether a hook of autograd has called us."""
    return torch._C._current_graph_task_id() != -1


def when_backward_ends(function: Callable[[], None]) -> None:
    """Call `function` when the backward that is running has ended."""
    Variable._execution_engine.queue_callback(function)


def check_inside(clip: Policy | None, layout: Layout) -> None:
    """Refuse what cannot be done while the other gradients do not exist yet.

    Raises:
        WatchError: the policy needs all gradients, or the parameters are spread over processes.
    """
    if clip is not None and not clip.per_layer:
        raise WatchError(
            f"clip={clip!r} needs all gradients of a step, but these optimizers step inside backward, where the other "
            "gradients do not exist yet: use a policy that looks at each layer alone (ClipByNorm, ClipByAverageNorm, "
            "ClipByValue, AGC, ClipByHistory), or call optimizer.step() after backward"
        )
    if layout.sharding is not None:
        raise WatchError(
            "these optimizers step inside backward, and their parameters are spread over processes: each would need a "
            "collective of its own, in an order that ranks need not share; call optimizer.step() after backward"
        )


class Pieces:
    """What was measured of one backward's gradients: every optimizer's own layers."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._here: list[tuple[bool, ...]] = []
        self._fields: list[list[Tensor | None]] = []

    def add(self, here: tuple[bool, ...], fields: Sequence[Tensor | None]) -> None:
        """The fields, `[L]` or `[]` each, of the layers that are `here`."""
        self._here.append(here)
        self._fields.append([None if f is None else f.expand(len(here)) for f in fields])

    def joined(self) -> tuple[tuple[bool, ...], list[Tensor | None]]:
        """Which layers were there, and each field `[L]`, a layer's value from its own piece, None where none is."""
        owner = [0] * len(self.layout.names)
        for piece, here in enumerate(self._here):
            for i in range(len(here)):
                if here[i]:
                    owner[i] = piece
        fields = [_picked(field, owner) for field in zip(*self._fields, strict=True)]
        return tuple(map(any, zip(*self._here, strict=True))), fields


def _picked(field: Sequence[Tensor | None], owner: Sequence[int]) -> Tensor | None:
    """A field of all pieces, `[L]` each, as one: layer i's value is that of piece `owner[i]`."""
    there = [piece for piece in field if piece is not None]
    return torch.stack([there[piece][i] for i, piece in enumerate(owner)]) if len(there) == len(field) else None


Seen = dict[Tensor, tuple[Tensor | None, int]]  # of each parameter: its gradient, and how often that was written to


def seen(params: Iterable[Tensor]) -> Seen:
    """The gradients as they are now, measured for all optimizers of a step: to tell them from later ones."""
    return {p: (p.grad, _version(p.grad)) for p in params}


def have_changed(seen: Seen, params: Iterable[Tensor], under_scaler: bool) -> bool:
    """Whether any of `params` has another gradient by now: a new tensor, or one that was written to.

    A loss scaler writes to a gradient when it comes to its optimizer: under one only a new tensor counts.
    """
    for p in params:
        grad, version = seen.get(p, (None, 0))
        if p.grad is not grad or (not under_scaler and _version(grad) != version):
            return True
    return False


def _version(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor._version

"""Optimizers that step inside backward, one for each parameter: one backward is one step, put together from pieces.

Legend: L layers, P pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.autograd import Variable
from torch.optim import Optimizer

from gradwatch.errors import WatchError
from gradwatch.measure.layout import Layout, at
from gradwatch.measure.writes import writes
from gradwatch.recording.layers import held

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
        self._places: list[int] = []  # of the layers of all pieces, one after the other
        self._here: list[bool] = []  # and whether each had a gradient
        self._fields: list[list[Tensor | None]] = []

    def add(self, places: Sequence[int], here: Sequence[bool], fields: Sequence[Tensor | None]) -> None:
        """The fields, one value or one for each layer, of the layers at these places that are `here`."""
        self._places += places
        self._here += here
        device = self.layout.device
        self._fields.append([None if f is None else at(device, f.expand(len(here))) for f in fields])

    def joined(self) -> tuple[tuple[bool, ...], list[Tensor | None]]:
        """Which layers were there, and each field `[L]`, a layer's value from its own piece, None where none is."""
        owner: list[int | None] = [None] * len(self.layout.names)  # where each layer is among those of the pieces
        for n, (place, here) in enumerate(zip(self._places, self._here, strict=True)):
            if here:
                owner[place] = n
        fields = [_picked(field, [n or 0 for n in owner]) for field in zip(*self._fields, strict=True)]
        return tuple(n is not None for n in owner), fields


def _picked(field: Sequence[Tensor | None], owner: Sequence[int]) -> Tensor | None:
    """A field of all pieces, one after the other, as one: layer i's value is that at `owner[i]`."""
    there = [piece for piece in field if piece is not None]
    if len(there) < len(field):
        return None
    each = torch.cat(there).unbind()
    return torch.stack([each[n] for n in owner])


Seen = dict[Tensor, tuple[Tensor | None, int]]  # of each parameter: its gradient, and how often that was written to


def seen(params: Iterable[Tensor]) -> Seen:
    """The gradients as they are now, measured for all optimizers of a step: to tell them from later ones."""
    return {p: (p.grad, writes(p.grad)) for p in params}


def have_changed(seen: Seen | None, optimizer: Optimizer, scaler: GradScaler | None) -> bool:
    """Whether an optimizer has another gradient than those `seen`: a new tensor, or one that was written to since.

    A loss scaler writes to a gradient when it comes to its optimizer: under one only a new tensor counts.
    """
    for p in held(optimizer).values():
        grad, written = (seen or {}).get(p, (None, -1))
        if p.grad is not grad or (scaler is None and writes(grad) != written):
            return True
    return False

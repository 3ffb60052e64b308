"""What the user's own loop calls of torch, seen from outside: `GradScaler.step`, and the clips of torch.nn.utils.

While at least one Watch listens, these functions carry a wrapper that changes nothing in what they do.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from types import CellType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import utils
from torch.optim import Optimizer

from gradwatch.formulas import clip_coef
from gradwatch.measure.patch import Function, Patch, Wrapped
from gradwatch.recording.loop_clips import Clip, Witness

Parameters: TypeAlias = "Tensor | Iterable[Tensor]"
BELOW_ONE = 1 - 2**-24  # the largest float32 below 1
UnderScaler = Callable[[Optimizer, torch.amp.GradScaler], AbstractContextManager[None]]
Clipped = Callable[[Clip], None]


class Listener(NamedTuple):
    """Who is told: `under_scaler(optimizer, scaler)` is entered around each `scaler.step(optimizer)`, `clipped(clip)`
    called after each clip.
    """

    under_scaler: UnderScaler
    clipped: Clipped


class _Seen(Wrapped[Listener]):
    """Who listens; and whether the loop's own clips are left out meanwhile."""

    def __init__(self) -> None:
        super().__init__(_patches)
        self.replaced = False


def _patches() -> list[Patch]:
    return [
        Patch([(torch.amp.GradScaler, "step")], _tell_of_step),
        # clip_grad_norm_ goes through this one, so it is seen with the norm that it measured
        Patch(_places(utils.clip_grads_with_norm_), _tell_of_norm),
        Patch(_places(utils.clip_grad_value_), _tell_of_value),
    ]


_seen = _Seen()


def listen(listener: Listener) -> None:
    """Tell it of every call from now on, until `leave`."""
    _seen.listen(listener)


def leave(listener: Listener) -> None:
    """Tell it no more; harmless twice, and where it was never told."""
    _seen.leave(listener)


def replace_clips() -> None:
    """From now on the clips of torch.nn.utils leave gradients alone, for as long as somebody listens."""
    _seen.replaced = True


def _places(clip: Function) -> list[tuple[Any, str]]:
    """Where a clip of torch.nn.utils is called from. A function that torch's `_no_grad` made is replaced inside it, in
    its closure's cell: so every caller is seen, also one that imported it by name.
    """
    cell = _inner(clip)
    if cell is not None:
        return [(cell, "cell_contents")]
    modules = (utils, utils.clip_grad)
    return [(module, key) for module in modules for key, value in vars(module).items() if value is clip]


def _inner(function: Function) -> CellType | None:
    """The cell that holds the function inside torch's `_no_grad` wrapper; None for any other function."""
    names: tuple[str, ...] = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells: tuple[CellType, ...] = getattr(function, "__closure__", None) or ()
    return cells[0] if names == ("func",) and callable(cells[0].cell_contents) else None


# --------------------------------------------------------------------------------------------------------- wrappers


def _tell_of_step(original: Function) -> Function:
    @functools.wraps(original)
    def step(self: torch.amp.GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        told: list[Listener] = []
        with ExitStack() as stack:
            while new := [other for other in _seen.listeners if other not in told]:  # one may bring in another
                told.append(new[0])
                stack.enter_context(new[0].under_scaler(optimizer, self))
            return original(self, optimizer, *args, **kwargs)

    return step


def _tell_of_norm(original: Function) -> Function:
    @functools.wraps(original)
    def clip(
        parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, *args: Any, **more: Any
    ) -> Any:
        if _seen.replaced:
            return None
        params = _listed(parameters)
        witness = Witness.of(params)
        out = original(params, max_norm, total_norm, *args, **more)
        max_norm = float(max_norm)  # as torch has it: it takes all that has a float, a text too
        if type(total_norm) is not Tensor:  # of sharded gradients it is a DTensor, whose value would take a collective
            tell(Clip(params, {"user_max_norm": max_norm}), witness)
        else:
            coef = clip_coef(total_norm.detach(), max_norm)
            tell(Clip(params, {"user_max_norm": max_norm, "user_grad_norm": total_norm}, coef), witness)
        return out

    return clip


def _tell_of_value(original: Function) -> Function:
    @functools.wraps(original)
    def clip(parameters: Parameters, clip_value: float, *args: Any, **more: Any) -> Any:
        if _seen.replaced:
            return None
        params = _listed(parameters)
        witness, grads = Witness.of(params), [p.grad for p in params if p.grad is not None]
        before, largest = _norm(grads, 2), _norm(grads, math.inf)
        out = original(params, clip_value, *args, **more)
        clip_value = float(clip_value)
        after = _norm(grads, 2)
        coef = None
        if before is not None and largest is not None and after is not None:
            # one element among many may be too small a part of the norm to be seen in it
            coef = torch.where(largest > clip_value, (after / before).clamp(max=BELOW_ONE), 1.0)
        tell(Clip(params, {"user_clip_value": clip_value}, coef), witness)
        return out

    return clip


def _listed(parameters: Parameters) -> list[Tensor]:
    """The parameters as a list: a generator can be walked through only once."""
    return [parameters] if isinstance(parameters, Tensor) else list(parameters)


def _norm(grads: list[Tensor], norm_type: float) -> Tensor | None:
    """The joint norm, 0-d float32; None where there is none, or it cannot be taken (sharded or sparse gradients)."""
    try:
        if not grads or not all(type(g) is Tensor and g.is_floating_point() for g in grads):
            return None
        half, rest = [g for g in grads if g.itemsize < 4], [g for g in grads if g.itemsize >= 4]
        norms = [*(torch._foreach_norm(half, norm_type, dtype=torch.float32) if half else ()),
                 *(torch._foreach_norm(rest, norm_type) if rest else ())]  # fmt: skip
        together = torch.stack([norm.to(grads[0].device, torch.float32) for norm in norms])
        norm: Tensor = torch.linalg.vector_norm(together, norm_type)
    except Exception:  # sparse gradients, no memory: what is only looked at ends no training
        return None
    return norm


def tell(clip: Clip, witness: Witness | None = None) -> None:
    """Tell those who listen of a clip.

    Plain enough for a compiled loop to trace: a clip that is compiled with fullgraph=True stays one graph.
    """
    if witness is not None:
        clip = clip._replace(witness=witness.later())
    for listener in _seen.listeners:
        listener.clipped(clip)

"""What the user's own loop calls of torch, seen from outside: `GradScaler.step`, and the clips of torch.nn.utils.

While at least one Watch listens, these functions carry a wrapper that changes nothing in what they do.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import CellType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import utils
from torch.optim import Optimizer

Function = Callable[..., Any]
Parameters: TypeAlias = "Tensor | Iterable[Tensor]"
UnderScaler = Callable[[Optimizer, torch.amp.GradScaler], AbstractContextManager[None]]
Clipped = Callable[[Sequence[Tensor], Mapping[str, Any]], None]


class LoopClips:
    """The loop's own clips of the optimizers' gradients: what to record of those since each optimizer's last step.

    Of several before one step the last counts.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._since: dict[Optimizer, dict[str, Any]] = {o: {} for o in optimizers}
        self.last: dict[str, Any] = {}  # what is known of the last ones

    def add(self, params: Sequence[Tensor], values: Mapping[str, Any]) -> None:
        """The gradients of `params` were clipped; `values` are what to record of it."""
        clipped = {id(p) for p in params}
        for optimizer, since in self._since.items():
            if any(id(p) in clipped for group in optimizer.param_groups for p in group["params"]):
                since.update(values)
                self.last.update(values)

    def take(self, optimizers: Sequence[Optimizer]) -> dict[str, Any]:
        """What to record with a step of `optimizers`; it is forgotten."""
        out: dict[str, Any] = {}
        if not self.last:
            return out
        for optimizer in optimizers:
            out.update(self._since[optimizer])
            self._since[optimizer].clear()
        return out


class _Listener(NamedTuple):
    under_scaler: UnderScaler
    clipped: Clipped


class _Seen:
    """Who listens, and what takes the wrappers off again."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.listeners: tuple[_Listener, ...] = ()  # replaced, never changed: a call may be walking through it
        self.undo: list[Callable[[], None]] = []
        self.replaced = False  # whether the loop's own clips are left out


_seen = _Seen()


def listen(under_scaler: UnderScaler, clipped: Clipped) -> Callable[[], None]:
    """Tell of every call from now on; returns what ends that. Ending it twice is harmless.

    `under_scaler(optimizer, scaler)` is entered around each `scaler.step(optimizer)`; `clipped(params, values)` is
    called after each clip, with what to record of it.
    """
    listener = _Listener(under_scaler, clipped)
    with _seen.lock:
        if not _seen.listeners:
            _seen.undo = [
                _replace(torch.amp.GradScaler, "step", _tell_of_step),
                # clip_grad_norm_ goes through this one, so it is seen with the norm that it measured
                _replace(utils, "clip_grads_with_norm_", _tell_of_norm),
                _replace(utils, "clip_grad_value_", _tell_of_value),
            ]
        _seen.listeners = (*_seen.listeners, listener)
    return functools.partial(_leave, listener)


def replace_clips() -> None:
    """From now on the clips of torch.nn.utils leave gradients alone, for as long as somebody listens."""
    _seen.replaced = True


def _leave(listener: _Listener) -> None:
    with _seen.lock:
        _seen.listeners = tuple(other for other in _seen.listeners if other is not listener)
        if not _seen.listeners:
            for undo in _seen.undo:
                undo()
            _seen.undo = []


def _replace(holder: Any, name: str, wrap: Callable[[Function], Function]) -> Callable[[], None]:
    """Let `wrap(function)` stand where `holder.name` leads to; returns the undoing.

    A function that torch's `_no_grad` made is replaced inside it, in its closure's cell: so every caller is seen, also
    one that imported it by name. What someone else has put in the place since is left alone by the undoing.
    """
    function = getattr(holder, name)
    cell = _inner(function)
    old = function if cell is None else cell.cell_contents
    new = wrap(old)
    if cell is not None:
        cell.cell_contents = new

        def undo_cell() -> None:
            if cell.cell_contents is new:
                cell.cell_contents = old

        return undo_cell
    modules = (utils, utils.clip_grad) if holder is utils else (holder,)
    places = [(m, key) for m in modules for key, value in vars(m).items() if value is function]
    for module, key in places:
        setattr(module, key, new)

    def undo() -> None:
        for module, key in places:
            if getattr(module, key) is new:
                setattr(module, key, old)

    return undo


def _inner(function: Function) -> CellType | None:
    """The cell that holds the function inside torch's `_no_grad` wrapper; None for any other function."""
    names: tuple[str, ...] = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells: tuple[CellType, ...] = getattr(function, "__closure__", None) or ()
    return cells[0] if names == ("func",) and callable(cells[0].cell_contents) else None


# --------------------------------------------------------------------------------------------------------- wrappers


def _tell_of_step(original: Function) -> Function:
    @functools.wraps(original)
    def step(self: torch.amp.GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        told: list[_Listener] = []
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
        out = original(params, max_norm, total_norm, *args, **more)
        # the norm of sharded gradients is a DTensor, whose value would take a collective
        norm = {"user_grad_norm": total_norm} if type(total_norm) is Tensor else {}
        _tell(params, {"user_max_norm": max_norm, **norm})
        return out

    return clip


def _tell_of_value(original: Function) -> Function:
    @functools.wraps(original)
    def clip(parameters: Parameters, clip_value: float, *args: Any, **more: Any) -> Any:
        if _seen.replaced:
            return None
        params = _listed(parameters)
        out = original(params, clip_value, *args, **more)
        _tell(params, {"user_clip_value": clip_value})
        return out

    return clip


def _listed(parameters: Parameters) -> list[Tensor]:
    """The parameters as a list: a generator can be walked through only once."""
    return [parameters] if isinstance(parameters, Tensor) else list(parameters)


def _tell(params: list[Tensor], values: dict[str, Any]) -> None:
    """Plain enough for a compiled loop to trace: a clip that is compiled with fullgraph=True stays one graph."""
    for listener in _seen.listeners:
        listener.clipped(params, values)

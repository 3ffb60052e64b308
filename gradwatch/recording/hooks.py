"""Finds an optimizer's steps, however they are called: nested, with a closure, compiled, after a step that raised."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from gradwatch.errors import WatchError
from gradwatch.measure.autograd import without_autograd
from gradwatch.recording.zero import ZeroOptimizer

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Closure = Callable[..., Any]  # called without arguments, or with what its optimizer has for it
P = ParamSpec("P")
R = TypeVar("R")
_TORCHS = Optimizer.profile_hook_step.__globals__  # where the wrapper of a step is written


def untraced(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, called and not traced where a compiled function calls it: what it keeps is no part of a graph.

    `torch.compiler.disable` does that, at a price that only a compiled loop need pay.
    """
    disabled: Callable[P, R] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]

    @functools.wraps(function)
    def out(*args: P.args, **kwargs: P.kwargs) -> R:
        if is_dynamo_compiling() or get_eval_frame_callback() is not None:
            return disabled(*args, **kwargs)
        return function(*args, **kwargs)

    return out


def is_captured(device: torch.device) -> bool:
    """Whether what is asked of the device now goes into a CUDA graph, and is not done before that is replayed."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def refuse_capture(device: torch.device) -> None:
    """Refuse a step that is being captured.

    Raises:
        WatchError: the current stream of `device` is captured in a CUDA graph.
    """
    if is_captured(device):
        raise WatchError(
            "optimizer.step() is being captured in a CUDA graph, whose replays would run without gradwatch: "
            "capture the forward and backward pass, and call optimizer.step() outside the graph"
        )


def closure_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Closure | None:
    """What the arguments of a step evaluate the loss by; None where there is nothing, or something of somebody's own,
    which stays as it is: a loss, a model, a function that wants arguments.
    """
    given: Closure | None = args[1] if len(args) > 1 else kwargs.get("closure")
    if not callable(given) or isinstance(given, nn.Module):
        return None
    try:
        inspect.signature(given).bind()
    except TypeError:
        return None
    except ValueError:  # written in C, and says nothing of it
        pass
    return given


def with_closure(args: tuple[Any, ...], kwargs: dict[str, Any], closure: Closure) -> Arguments:
    """The arguments of a step with another closure in the place of that which is `closure_in` them."""
    return ((args[0], closure, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": closure})


def fires_hooks(optimizer: object) -> bool:
    """Whether `Optimizer.__init__`, which puts the hooks around a class's `step`, ran for this one."""
    return bool(getattr(getattr(type(optimizer), "step", None), "hooked", False))


class Hooks:
    """Calls `begin(optimizer, closure)` before and `end(optimizer)` after each step of the optimizers, once a step,
    from `attach` to `remove`.

    `begin` returns the closure that the step shall be given instead, or None. A step inside the optimizer's own step
    (a subclass that calls `super().step()`) is part of it. `begin` runs without autograd. `owner` is whom an
    optimizer's hooks lead to.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        begin: Callable[[Optimizer, Closure | None], Closure | None],
        end: Callable[[Optimizer], None],
        owner: object = None,
    ) -> None:
        self.owner, self._begin, self._end = owner, without_autograd(begin), end
        self._optimizers = optimizers
        self._running: dict[Optimizer, FrameType] = {}
        self._thread, self.is_removed = threading.get_ident(), False  # that takes the steps

    def attach(self) -> None:
        """Put the hooks on."""
        for o in self._optimizers:
            o.register_step_pre_hook(self._before)
            o.register_step_post_hook(self._after)
            if isinstance(o, ZeroOptimizer):
                o.attach()

    @property
    def are_here(self) -> bool:
        """Whether it is this thread that takes the steps."""
        return self._thread == threading.get_ident()

    def remove(self, patience: float = 0.0) -> None:
        """Take the hooks off, as many as there are: looked for, because a handle may be lost to an interrupt.

        No step begins any more, and one that another thread is in ends as it began: that is waited for, `patience`
        seconds at most. Where a step may be walking through the hooks, one that does nothing stands in a hook's place:
        a dict that loses a key meanwhile ends the training.
        """
        self.is_removed = True
        elsewhere, until = not self.are_here, time.monotonic() + patience
        while elsewhere and self._is_in_step() and time.monotonic() < until:
            time.sleep(0.001)
        may_step = self._thread in sys._current_frames() if elsewhere else self._is_in_step()
        for o in self._optimizers:
            if isinstance(o, ZeroOptimizer):
                o.detach()
            for hooks in (o._optimizer_step_pre_hooks, o._optimizer_step_post_hooks):
                for key in [key for key, hook in hooks.items() if getattr(hook, "__self__", None) is self]:
                    if may_step:
                        hooks[key] = _nothing
                    else:
                        hooks.pop(key, None)

    def __reduce__(self) -> tuple[Callable[[], Hooks], tuple[()]]:
        """A copied optimizer is watched by nobody: the hooks that came with it do nothing."""
        return taken_off, ()

    @untraced
    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        frame = _caller()
        if optimizer in self._running and self._is_nested(optimizer, frame):
            return None
        self._thread, self._running[optimizer] = threading.get_ident(), frame
        if self.is_removed:  # looked at when the step can be seen to run: one of both threads sees the other
            del self._running[optimizer]
            return None
        closure = self._begin(optimizer, closure_in(args, kwargs))
        return None if closure is None else with_closure(args, kwargs, closure)

    @untraced
    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._running.get(optimizer) is not _caller():
            return  # the inner step of a nested one
        try:
            self._end(optimizer)
        finally:
            self._running.pop(optimizer, None)  # last: whoever takes the hooks off waits for all of it

    def _is_in_step(self) -> bool:
        """Whether the thread that takes the steps is in one of them. One that has raised is on the stack no more."""
        return _leads_from(sys._current_frames().get(self._thread), [*self._running.values()])

    def _is_nested(self, optimizer: Optimizer, frame: FrameType) -> bool:
        """Whether this is a step inside the optimizer's own step. If that is not on the stack, it has raised."""
        return _leads_from(frame.f_back, [self._running[optimizer]])


def _leads_from(frame: FrameType | None, outer: Sequence[FrameType]) -> bool:
    """Whether a frame is one of the `outer` ones, or was called from one, however deep."""
    while frame is not None:
        if any(frame is each for each in outer):
            return True
        frame = frame.f_back
    return False


def taken_off() -> Hooks:
    """Of no optimizer, and removed."""
    hooks = Hooks((), lambda *_: None, lambda *_: None)
    hooks.is_removed = True
    return hooks


def watched_by_nobody(watch: object) -> tuple[Callable[[], None], tuple[()]]:
    """What keeps its Watch, a model or a trainer, can be copied and saved: the copy has None in its place."""
    return type(None), ()


def _nothing(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Stands where a hook was."""


def _caller() -> FrameType:
    """The frame that called the hook: torch's wrapper of `step`. `untraced` and the compiler lie in between."""
    frame = sys._getframe(3)  # 1 is the hook, 2 is what `untraced` made of it
    while frame.f_globals is not _TORCHS and frame.f_back is not None and _is_between(frame):
        frame = frame.f_back
    return frame


def _is_between(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith((__name__, "torch._dynamo"))

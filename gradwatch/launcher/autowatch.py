"""Watches every optimizer that steps in this process, from its first step on, though nobody called `watch()`."""

from __future__ import annotations

import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import util
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwatch.errors import GradwatchError, GradwatchWarning, WatchError, tell
from gradwatch.launcher import discovery
from gradwatch.launcher.discovery import lost
from gradwatch.launcher.losses import Losses
from gradwatch.policies import parse
from gradwatch.recording import layers
from gradwatch.recording.attach import fires_hooks, watch, watch_of
from gradwatch.recording.hooks import untraced
from gradwatch.recording.loop_clips import Clip
from gradwatch.recording.torch_patches import listen, replace_clips
from gradwatch.recording.watch import Watch

LEAVE_SECONDS = 5.0

Hook = tuple[tuple[Any, ...], dict[str, Any]] | None


class AutoWatch:
    """What `gradwatch run` hangs on torch: `options` are those of `watch()`.

    `join(watch)` is told of every run that begins, and once a step (`join(None)`), so that its MLflow run can be named.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        losses: Losses,
        join: Callable[[Watch | None], None],
        say: Callable[[str], None],
        replace: bool,
    ) -> None:
        self.options, self.join, self.say = dict(options), join, say
        self.losses = losses
        # of the last backward: whose step came first, how many calls it was, and their sum
        self._last: tuple[weakref.ref[Watch] | None, int, Tensor | None] = (None, 0, None)
        self._early: Tensor | None = None  # the loss so far, should a closure call no backward
        self.seen = 0  # optimizers that stepped
        self._threads: set[int] = set()  # in which they did
        self.foreign = False  # whether the script watches something itself
        self._known: weakref.WeakKeyDictionary[Optimizer, Watch | None] = weakref.WeakKeyDictionary()
        self._watches: list[Watch] = []
        self._runs = 0
        self._clips: list[Clip] = []  # before the first step of their optimizer
        for role in ("clip", "renorm"):
            if isinstance(self.options.get(role), str):
                self.options[role] = parse(self.options[role])
        # a script that makes errors of warnings did not ask for ours
        warnings.filterwarnings("default", category=GradwatchWarning)
        # each finding is logged once, and that suffices where nobody called watch()
        warnings.filterwarnings("ignore", "gradwatch found", GradwatchWarning)
        if replace:
            replace_clips()
        listen(self._under_scaler, self._clipped)
        os.register_at_fork(after_in_child=self._forked)
        # a process of multiprocessing that was forked ends without atexit
        util.register_after_fork(self, lambda auto: util.Finalize(None, auto.close, ("FINISHED",), exitpriority=0))

    def close(self, status: str, timeout: float | None = None) -> None:
        """End what is still open."""
        for each in self._watches:
            each.close(status, timeout)

    def close_in_a_hurry(self, status: str) -> None:
        """End what is still open, for a few seconds at most: the process is about to go, and runs no exit function.

        In another thread: whoever leaves so may do it because this one hangs.
        """
        if not all(each.closed for each in self._watches):
            closer = threading.Thread(target=self.close, args=(status, 0.0), daemon=True)
            closer.start()
            closer.join(LEAVE_SECONDS)

    # ------------------------------------------------------------------------------------------------------- the hooks

    @untraced
    def before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hook:
        """Before each step of every optimizer. Before the gradients are there, where it is given a closure."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._begin(optimizer)
            return None
        self._meet(optimizer)
        self._early = self.losses.take()

        def evaluate() -> Any:
            loss = closure()
            self.losses.freeze()
            return loss

        return ((args[0], evaluate, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": evaluate})

    @untraced
    def after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """After each step of every optimizer."""
        if (args[1] if len(args) > 1 else kwargs.get("closure")) is not None:
            inside, watched, loss = self.losses.since, self._known.get(optimizer), self.losses.take()
            loss = loss if inside else self._early
            if watched is not None and loss is not None and not watched.closed:
                watched.log(loss=loss)

    @contextmanager
    def _under_scaler(self, optimizer: Optimizer, scaler: torch.amp.GradScaler) -> Iterator[None]:
        """Before the scaler decides: a step that it drops calls no hook."""
        if scaler.is_enabled():
            self._begin(optimizer)
        yield

    def _clipped(self, clip: Clip) -> None:
        self._clips = [*self._clips[-7:], clip]

    def _begin(self, optimizer: Optimizer) -> None:
        watched = self._meet(optimizer)
        calls, loss = self.losses.since, self.losses.take()
        if calls:
            self._last = (None if watched is None else weakref.ref(watched)), calls, loss
            if watched is not None and loss is not None:
                watched._log_next(loss=loss)
        elif watched is not None:
            self._share_loss(watched)

    def _share_loss(self, watched: Watch) -> None:
        """Two models step after the same backward: of one call the loss is that of both, of several nobody knows."""
        found, calls, loss = self._last
        first = found() if found is not None else None
        if first is watched or loss is None:
            return
        if calls == 1:
            watched._log_next(loss=loss)
        elif first is not None and not first.closed:
            first.log(loss=float("nan"))

    def _forked(self) -> None:
        """In a process that the script forked: its own optimizers are watched, not those of the parent (`ending`)."""
        for optimizer in list(self._known):
            self._known[optimizer] = None
        self._watches, self.options["run_name"] = [], f"{self.options['run_name']}-{os.getpid()}"

    # ---------------------------------------------------------------------------------------------- finding the model

    def _meet(self, optimizer: Optimizer) -> Watch | None:
        """The Watch that records this optimizer; a new one at its first step."""
        self._threads.add(threading.get_ident())
        if optimizer in self._known:
            self.join(None)
            self._clips.clear()
            return self._known[optimizer]
        if _is_inner(optimizer):
            return None
        own = watch_of(optimizer)
        self._known[optimizer] = None
        self.seen += 1
        if own is not None:
            if not self.foreign and (self.options["clip"] or self.options["renorm"]):
                self.say("the script watches its optimizer itself; --clip and --renorm do not reach it")
            self.foreign = True
            return None
        made = self._attach(optimizer)
        if made is not None:
            for clip in self._clips:
                made._clipped(clip)
        self._clips.clear()
        return made

    def _attach(self, optimizer: Optimizer) -> Watch | None:
        """Watch the optimizer, together with those of the same model; `None` where it cannot be watched."""
        self._close_lost(optimizer)
        modules, optimizers = discovery.alive()
        tops = discovery.roots(modules)
        mine, others = discovery.owners(optimizer, tops), self._others(optimizer, optimizers)
        owners = {id(o): discovery.owners(o, tops) for o in others}
        joint = {id(m) for m in mine}
        group = [optimizer, *(o for o in others if joint & {id(m) for m in owners[id(o)]})]
        modules = [m for m in tops if any(m is x for o in group for x in owners.get(id(o), mine))]
        model = discovery.model_of(group, modules)
        beside = (w for w in self._watches if w._shared is not None and not w.closed and not w._holds(group))
        first = next(beside, None)  # of the run that this one joins
        name = None
        if first is not None and first._shared is not None:
            name = self._name(modules, model, set(first._shared.names))
        elif len(group) <= len(others):
            name = self._name(modules, model, set())
        try:
            made = self._watch(model, group, name, first)
        except GradwatchError as error:
            if self.options["clip"] or self.options["renorm"]:
                raise refusal(error) from None
            self.say(f"this {type(optimizer).__name__} is not watched: {' '.join(str(error).split())}")
            return None
        for each in group:
            self._known[each] = made
        return made

    def _watch(self, model: nn.Module, group: list[Optimizer], name: str | None, first: Watch | None) -> Watch:
        """A new Watch; where these parameters were watched under another optimizer, it goes on where that one was."""
        old = next((w for w in reversed(self._watches) if not w.closed and w._holds(group)), None)
        state = old.state_dict() if old is not None and name is None else None
        if old is not None:
            self._close(old)
        options, run = dict(self.options), first if name is not None else None
        if run is None and state is None:
            self._runs += 1
            options["run_name"] += f"-{self._runs}" if self._runs > 1 else ""
        made = watch(model, group, name=name, run=run, **options)
        if state is not None:
            try:
                made.load_state_dict(state)
            except WatchError as error:
                self.say(f"a new run begins ({' '.join(str(error).split())})")
        self._watches.append(made)
        self.join(made)
        return made

    def _close_lost(self, optimizer: Optimizer) -> None:
        """A model that the script has thrown away must not live on, and its run is over; not so if this one goes on."""
        if self._threads != {threading.main_thread().ident}:
            return  # another thread may be in the middle of a step
        watches = [w for w in self._watches if not w.closed and not w._holds([optimizer])]
        for each in lost(watches) if watches else ():
            self._close(each)

    def _close(self, old: Watch) -> None:
        """End it before the script ends, and forget it."""
        old.close(timeout=0)
        self._watches.remove(old)
        for optimizer in [o for o, watched in self._known.items() if watched is old]:
            self._known[optimizer] = None

    def _others(self, optimizer: Optimizer, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """Of these, the optimizers that nobody watches yet, hold other parameters, and may step too."""
        mine = set(layers.held(optimizer))
        return [
            o
            for o in optimizers
            if o is not optimizer
            and o not in self._known
            and fires_hooks(o)
            and watch_of(o) is None
            and layers.held(o)
            and not mine & set(layers.held(o))
        ]

    def _name(self, modules: Sequence[nn.Module], model: nn.Module, taken: set[str]) -> str:
        name = "-".join(discovery.names(modules)) or type(model).__name__
        name = "".join(c if c.isalnum() or c in "_-" else "-" for c in name)[:60]
        return next(n for n in (name, *(f"{name}-{i}" for i in range(2, 10_000))) if n not in taken)


def _is_inner(optimizer: Optimizer) -> bool:
    """Whether this step happens inside that of another optimizer, which is the one that is watched."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "wrapper" and frame.f_globals.get("__name__") == Optimizer.__module__:
            outer = frame.f_locals.get("self")
            if isinstance(outer, Optimizer) and outer is not optimizer:
                return True
        frame = frame.f_back
    return False


def refusal(error: GradwatchError) -> SystemExit:
    """A policy was asked for and cannot be applied: training without it would be something else."""
    tell(f"Error: {' '.join(str(error).split())}")
    return SystemExit(2)

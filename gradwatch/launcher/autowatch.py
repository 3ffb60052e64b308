"""Watches every optimizer that steps in this process, from its first step on, though nobody called `watch()`."""

from __future__ import annotations

import gc
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import util
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwatch.errors import GradwatchError, GradwatchWarning, WatchError, tell
from gradwatch.launcher import discovery
from gradwatch.launcher.discovery import lost, params_of
from gradwatch.launcher.losses import Losses
from gradwatch.policies import parse
from gradwatch.policies.intervention import Intervention
from gradwatch.recording import layers
from gradwatch.recording.attach import settle_unheld, watch, watch_of
from gradwatch.recording.hooks import closure_in, fires_hooks, untraced, with_closure
from gradwatch.recording.loop_clips import Clip
from gradwatch.recording.torch_patches import Listener, listen, replace_clips
from gradwatch.recording.watch import Watch

LEAVE_SECONDS = 5.0

Hook = tuple[tuple[Any, ...], dict[str, Any]] | None


class Old(NamedTuple):
    """What a Watch leaves to the one that takes its place: its state, and the ids of its parameters."""

    state: Mapping[str, Any]
    params: set[int]


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
        self._lock = threading.RLock()  # held by the one that attaches
        self.foreign = False  # whether the script watches something itself
        self._known: weakref.WeakKeyDictionary[Optimizer, Watch | None] = weakref.WeakKeyDictionary()
        # the Watches that were made here, each with the other optimizers that there were when it was made
        self._watches: dict[Watch, weakref.WeakSet[Optimizer]] = {}
        self._replaced: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # in whose place another has come
        self._runs = 0
        self._clips: list[Clip] = []  # before the first step of their optimizer
        for role in ("clip", "renorm"):
            if isinstance(self.options.get(role), str):
                self.options[role] = parse(self.options[role])
        # a script that makes errors of warnings did not ask for ours
        warnings.filterwarnings("default", category=GradwatchWarning)
        if replace:
            replace_clips()
        listen(Listener(self._under_scaler, self._clipped))
        os.register_at_fork(after_in_child=self._forked)
        # a process of multiprocessing that was forked ends without atexit
        util.register_after_fork(self, lambda auto: util.Finalize(None, auto.close, ("FINISHED",), exitpriority=0))

    def close(self, status: str, timeout: float | None = None) -> None:
        """End what is still open."""
        for each in tuple(self._watches):
            each.close(status, timeout)

    def close_in_a_hurry(self, status: str) -> None:
        """End what is still open, for a few seconds at most: the process is about to go, and runs no exit function.

        In another thread: whoever leaves so may do it because this one hangs.
        """
        if not all(each.closed for each in tuple(self._watches)):
            closer = threading.Thread(target=self.close, args=(status, 0.0), daemon=True)
            closer.start()
            closer.join(LEAVE_SECONDS)

    # ------------------------------------------------------------------------------------------------------- the hooks

    @untraced
    def before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hook:
        """Before each step of every optimizer. Before the gradients are there, where it is given a closure."""
        closure = closure_in(args, kwargs)
        if closure is None:
            self._begin(optimizer)
            return None
        self._meet(optimizer)
        self._early = self.losses.take()

        def evaluate(*given: Any, **named: Any) -> Any:
            loss = closure(*given, **named)
            self.losses.freeze()
            return loss

        return with_closure(args, kwargs, evaluate)

    @untraced
    def after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """After each step of every optimizer."""
        if closure_in(args, kwargs) is not None:
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
        """In a process that the script forked: what steps there is watched anew. `signals` ended the Watches."""
        self._known.clear()
        self._replaced.clear()
        self._threads, self._lock, self._runs = set(), threading.RLock(), 0
        self._watches, self.options["run_name"] = {}, f"{self.options['run_name']}-{os.getpid()}"

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
            asked = [" ".join(pair) for pair in Intervention.of(self.options).options.items()]
            if not self.foreign and asked:
                verb = "does" if len(asked) == 1 else "do"
                self.say(f"the script watches its optimizer itself; {' and '.join(asked)} {verb} not reach it")
            self.foreign = True
            return None
        with self._lock:
            if self._known[optimizer] is not None:  # another thread has met one of the same model
                return self._known[optimizer]
            made = self._attach(optimizer)
        if made is not None:
            for clip in self._clips:
                made._clipped(clip)
        self._clips.clear()
        return made

    def _attach(self, optimizer: Optimizer) -> Watch | None:
        """Watch the optimizer, together with those of the same model; `None` where it cannot be watched."""
        old = self._make_way(optimizer)
        modules, optimizers = discovery.alive()
        free = self._free(optimizer, optimizers)
        if any(
            params_of([o]) & params_of([optimizer]) for o in free
        ):  # of those that share with it some may be garbage
            del modules, optimizers, free
            gc.collect()
            modules, optimizers = discovery.alive()
            free = self._free(optimizer, optimizers)
        tops = discovery.roots(modules)
        mine = {id(m) for m in discovery.owners(optimizer, tops)}
        group = [optimizer]
        for other in sorted(free, key=lambda o: o in self._replaced):
            if mine & {id(m) for m in discovery.owners(other, tops)} and not params_of([other]) & params_of(group):
                group.append(other)
        again = optimizer in self._replaced
        self._replaced.difference_update(group)
        owners = {id(m) for o in group for m in discovery.owners(o, tops)}
        modules = [m for m in tops if id(m) in owners]
        model = discovery.model_of(group, modules)
        first = next((w for w in self._watches if w._shared is not None and not w.closed), None)
        name = None
        if first is not None and first._shared is not None:  # the run that this one joins
            name = discovery.part_name(modules, model, group, set(first._shared.names))
        elif any(o not in group and o not in self._replaced for o in free):
            name = discovery.part_name(modules, model, group, set())
        try:
            discovery.refuse_flat(group, tops, optimizers)
            made = self._watch(model, group, name, first, old if name is None else None)
        except GradwatchError as error:
            if Intervention.of(self.options) != Intervention():
                raise refusal(error) from None
            self.say(f"this {type(optimizer).__name__} is not watched: {' '.join(str(error).split())}")
            return None
        if again:
            self._say_beside(optimizer, made)
        self._watches[made] = weakref.WeakSet(o for o in optimizers if o not in group)
        settle_unheld(optimizers)
        for each in group:
            self._known[each] = made
        return made

    def _say_beside(self, optimizer: Optimizer, made: Watch) -> None:
        """That an optimizer in whose place another has come steps again, and whose runs belong together."""
        others = [w for w in self._watches if not w.closed and w._shared is None and w._holds([optimizer])]
        if others and made._shared is None:
            also = " and clipped" if self.options["clip"] else ""
            runs = " and ".join(w.dir.name for w in (made, *others))
            self.say(
                f"this {type(optimizer).__name__} steps again beside one that was built later and shares parameters. "
                f"{runs} are one training, each recorded{also} by itself; had both been built before the first step, "
                "they were parts of one run"
            )

    def _watch(
        self, model: nn.Module, group: list[Optimizer], name: str | None, first: Watch | None, old: Old | None
    ) -> Watch:
        """A new Watch, of the run of `first`; or it goes on where an `old` one was that had these parameters."""
        options = dict(self.options)
        if old is not None and old.params != params_of(group):
            self.say(f"a new run begins: this {type(group[0]).__name__} holds other parameters than the one before it")
            old = None
        if first is None and old is None:
            self._runs += 1
            options["run_name"] += f"-{self._runs}" if self._runs > 1 else ""
        made = watch(model, group, name=name, run=first, **options)
        if old is not None:
            try:
                made.load_state_dict(old.state)
            except WatchError as error:
                self.say(f"a new run begins ({' '.join(str(error).split())})")
        self.join(made)
        return made

    def _make_way(self, optimizer: Optimizer) -> Old | None:
        """Close what is over: Watches of models that the script has thrown away, and those in whose place this comes.

        An optimizer that was there when a Watch began lives beside it, though they share parameters: both step. One
        that was made later takes the place of those that the script has thrown away, else of all that share with it;
        should one of these step again, it is met again. Returns what the last of them leaves.
        """
        if self._threads & {thread.ident for thread in threading.enumerate()} != {threading.get_ident()}:
            return None  # another thread may be in the middle of a step
        running = [w for w in self._watches if not w.closed]
        sharing = [w for w in running if w._holds([optimizer])]
        for each in lost([w for w in running if w not in sharing]) if len(running) > len(sharing) else ():
            self._close(each)
        later = [w for w in sharing if optimizer not in self._watches[w]]
        left = {w: Old(w.state_dict(), params_of(w._source.optimizers)) for w in later}
        later = (lost(later) if len(later) > 1 else []) or later
        for each in later:
            each._source.beside.append(optimizer)
            self._close(each)
        return next((left[w] for w in reversed(later) if w._shared is None), None)

    def _close(self, old: Watch) -> None:
        """End it before the script ends, and forget it."""
        old.close(timeout=0)
        del self._watches[old]
        for optimizer in [o for o, watched in self._known.items() if watched is old]:
            del self._known[optimizer]
            self._replaced.add(optimizer)

    def _free(self, optimizer: Optimizer, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """Of these, the other optimizers that nobody watches, and that may step too."""
        return [
            o
            for o in optimizers
            if o is not optimizer and o not in self._known and fires_hooks(o) and watch_of(o) is None and layers.held(o)
        ]


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

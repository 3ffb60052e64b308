"""Learning rates that are scaled around each step: `watch(lr_scale=, warmup=)`. Between steps they are the script's."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from types import CellType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch import Tensor
from torch.optim import Optimizer

from gradwatch.errors import WatchError, warn
from gradwatch.measure.patch import LOCK, Patch

Group = dict[str, Any]


@dataclass(frozen=True)
class RateScale:
    """What the learning rate of every param group is multiplied by: `scale`, and before that a linear warm-up to it."""

    scale: float = 1.0
    warmup: int = 0  # steps

    @functools.cached_property
    def acts(self) -> bool:
        """Whether it changes any rate."""
        return self != RateScale()

    def at(self, step: int) -> float:
        """The factor in a step, counted from 0: scale * min(1, (step + 1) / warmup)."""
        return self.scale * min(1.0, (step + 1) / self.warmup) if self.warmup else self.scale

    def check(self, optimizers: Sequence[Optimizer]) -> None:
        """Refuse optimizers that have no learning rate to scale.

        Raises:
            WatchError: one of them has a param group without one, or something stands in the place of its `step`.
        """
        for optimizer in optimizers if self.acts else ():
            _between_hooks(type(optimizer))
            for g, group in enumerate(optimizer.param_groups):
                if not _has_rate(group):
                    found = f"lr={group['lr']!r:.80}" if "lr" in group else "no lr"
                    raise WatchError(
                        f"lr_scale= and warmup= multiply learning rates, and param group {g} of this "
                        f"{type(optimizer).__name__} has {found}: give it a learning rate, or leave them out"
                    )


# The factor of the step that is about to begin, and what stands in the place of an optimizer's own rates while it runs.
# Known beside the optimizer, as with `fused.fold`: what an interrupt leaves, whoever comes next takes back.
_due: WeakKeyDictionary[Optimizer, float] = WeakKeyDictionary()
_replaced: WeakKeyDictionary[Optimizer, list[tuple[Group, Any, Any]]] = WeakKeyDictionary()
_warned: WeakSet[Optimizer] = WeakSet()  # of a rate that is set in a step
_guards: dict[type, tuple[Patch, set[int]]] = {}  # by class, the guard around its steps, and the ids of who asks for it
_HOOKED = Optimizer.profile_hook_step(lambda self: None).__code__


def due(optimizer: Optimizer, factor: float) -> None:
    """The step that has begun takes its rates times `factor`."""
    if factor != 1.0:
        _due[optimizer] = factor


def scale(optimizer: Optimizer, factor: float) -> None:
    """Put scaled rates in the place of the optimizer's own, until `restore`. Nothing is read from a device."""
    if factor == 1.0:
        return
    groups = [(group, group["lr"], group["lr"] * factor) for group in optimizer.param_groups if _has_rate(group)]
    _replaced[optimizer] = groups  # before one is set: an interrupt in between leaves nothing behind
    for group, _, ours in groups:
        group["lr"] = ours


def restore(optimizer: Optimizer) -> None:
    """Put back what `scale` replaced; a rate that somebody else has set since stays. Harmless where nothing was."""
    if not (_due or _replaced):
        return
    _due.pop(optimizer, None)
    is_set = False
    for group, own, ours in _replaced.get(optimizer, ()):
        if group.get("lr") is ours:
            group["lr"] = own
        else:
            is_set = True
    _replaced.pop(optimizer, None)  # last: until then it can be done again
    if is_set and optimizer not in _warned:
        _warned.add(optimizer)
        warn(
            f"{type(optimizer).__name__} sets a learning rate in its own step, around which lr_scale= and warmup= "
            "multiply it: that rate stays, with the factor in it if it was made of the one in force. Leave them out, "
            "and scale the rates where they are set"
        )


def guard(optimizers: Sequence[Optimizer], owner: object) -> None:
    """Have the steps of these optimizers scale their rates where `due` says so, until `unguard`, or the owner's end."""
    weakref.finalize(owner, _unguard, id(owner))
    with LOCK:
        for kind in map(type, optimizers):
            home = next(each for each in kind.__mro__ if "step" in vars(each))
            patch, owners = _guards.get(home) or (Patch([(_between_hooks(kind), "cell_contents")], _scaling), set())
            owners.add(id(owner))
            _guards[home] = patch, owners  # it may have been taken out since
            patch.on()


def unguard(owner: object) -> None:
    """The owner asks for no guard any more; harmless twice, and where it never did."""
    _unguard(id(owner))


def _unguard(owner: int) -> None:
    with LOCK:
        for home, (patch, owners) in [*_guards.items()]:
            owners.discard(owner)
            if not owners:
                patch.off()
                _guards.pop(home, None)


def _between_hooks(kind: type) -> CellType:
    """The cell that holds the step inside torch's wrapper, which calls the hooks. Others may have wrapped that again:
    the compiler does so to LBFGS and SparseAdam.

    Raises:
        WatchError: nothing that leads to `step` is torch's wrapper.
    """
    step = kind.step  # type: ignore[attr-defined]
    while step is not None:
        if isinstance(step, FunctionType) and step.__code__ is _HOOKED:
            return step.__closure__[step.__code__.co_freevars.index("func")]  # type: ignore[index]
        step = getattr(step, "__wrapped__", None)
    raise WatchError(
        f"lr_scale= and warmup= act between the hooks that torch calls around {kind.__name__}.step, and something "
        f"stands in its place: {kind.step!r:.80}. Let what wraps it use functools.wraps, or leave them out"  # type: ignore[attr-defined]
    )


def _scaling(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step with the rates scaled around it. It lies inside torch's own wrapper, between the hooks: every way to
    call a step leads through it, and no exception leads past its end.
    """

    @functools.wraps(step)
    def scaled(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        factor = _due.pop(optimizer, None)
        if factor is None:  # not one of ours, or a step inside the optimizer's own
            return step(optimizer, *args, **kwargs)
        try:
            scale(optimizer, factor)
            return step(optimizer, *args, **kwargs)
        finally:
            restore(optimizer)

    return scaled


def _has_rate(group: Group) -> bool:
    return isinstance(group.get("lr"), Real | Tensor)

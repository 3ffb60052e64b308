"""What the optimizers' param groups are set to, at first and where that changes; and whether their state is lost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from gradwatch.measure.layout import Layout
from gradwatch.storage.manifest import setting_of, text_of
from gradwatch.table import SETTING

_GROUPS = attrgetter("param_groups")
_NO_SETTINGS = {"params", "param_names", "name", "group_name", "initial_lr"}
Group = dict[str, Any]


class Now(NamedTuple):
    """The settings of one step. Tensors are not read, because that would wait for the device."""

    rates: tuple[float, ...]  # the learning rate of each group, in order; NaN where it is a tensor, or no number
    changed: Mapping[str, float]  # by column, the settings that have changed since the first step
    tensors: dict[str, Tensor]  # by column, the rates and settings that are tensors

    def scaled(self, factor: float) -> Now:
        """The same with every learning rate times `factor`."""
        tensors = {k: v * factor if k == "lr" or k.startswith("lr/") else v for k, v in self.tensors.items()}
        return Now(tuple(rate * factor for rate in self.rates), self.changed, tensors)


UNKNOWN = Now((), {}, {})


class GroupSettings:
    """The settings of the param groups of some optimizers, given by name.

    What can change is looked at in every step: at the identity of its values, so that a step in which nothing was set
    costs a walk over them.
    """

    def __init__(self, optimizers: Mapping[str, Optimizer]) -> None:
        self.optimizers, self._optimizers = dict(optimizers), tuple(optimizers.values())
        self._first: dict[str, list[Group]] = {name: [] for name in optimizers}
        self._keys: tuple[str, ...] = ()  # of what can change
        self._last: list[Any] = []  # its values, group by group, as they were last looked at
        self._seen: list[list[Any]] = []  # all that each group held when `_now` was made of it
        self._now = UNKNOWN
        self._start: dict[str, Any] = {}  # by column, what they were at first
        self._changed: Mapping[str, float] = {}
        self._tensors: dict[str, Tensor] = {}
        self._without_state: set[Optimizer] = set()  # and had none after their last step
        self._meet()

    def describe(self, layout: Layout) -> tuple[dict[str, Any], ...]:
        """The optimizers for the manifest, with groups that have come since: `settings` is what all groups have in
        common, and each of `groups` says which `layers` it holds and in which settings it differs.
        """
        self._meet()
        layers: dict[int, list[tuple[str, int]]] = {}  # of each parameter the layers, with their numbers of elements
        for name, p, shape in zip(layout.names, layout.params, layout.shapes, strict=True):
            layers.setdefault(id(p), []).append((name, math.prod(shape)))
        return tuple(_described(name, o, self._first[name], layers) for name, o in self.optimizers.items())

    def now(self, scale: float = 1.0) -> Now:
        """The settings as they are now, learning rates times `scale`."""
        groups = [*chain.from_iterable(map(_GROUPS, self._optimizers))]
        if len(groups) != len(self._seen) or not all(map(_holds, groups, self._seen)):
            seen = [[*group.values()] for group in groups]
            self._now = self._look(groups)
            self._seen = seen
        return self._now if scale == 1.0 else self._now.scaled(scale)

    def lost_state(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer that is about to step has no state: in its first step, and where it had some before.

        No tensor is looked at. Asked once in each step.
        """
        state = getattr(optimizer, "state", None)
        if not isinstance(state, dict) or state:
            return False
        new = optimizer not in self._without_state
        self._without_state.add(optimizer)
        return new

    def stepped(self, optimizer: Optimizer) -> None:
        """One has stepped: from now on its state is missed where it is gone."""
        if self._without_state and getattr(optimizer, "state", None):
            self._without_state.discard(optimizer)

    def _look(self, groups: Sequence[Group]) -> Now:
        """The settings of groups in which something was set."""
        values = self._values(groups)
        if len(values) != len(self._last) or not all(map(is_, values, self._last)):
            self._compare(values)
        rates, tensors = _rates(groups), dict(self._tensors)
        for g, rate in enumerate(rates):
            if isinstance(rate, Tensor):
                tensors[f"lr/{g}" if g else "lr"], rates[g] = rate, math.nan
            elif not isinstance(rate, int | float):
                rates[g] = math.nan
        return Now(tuple(rates), self._changed, tensors)

    def _values(self, groups: Sequence[Group]) -> list[Any]:
        return [value for group in groups for value in map(group.get, self._keys)]

    def meet_again(self) -> None:
        """They were loaded: what they are set to now is what the run goes on with."""
        self._first = {name: [] for name in self.optimizers}
        self._start.clear()
        self._meet()

    def _meet(self) -> None:
        """Look at groups for the first time."""
        for name, optimizer in self.optimizers.items():
            known = self._first[name]
            known += [_settings(optimizer, group) for group in optimizer.param_groups[len(known) :]]
        groups = [group for o in self.optimizers.values() for group in o.param_groups]
        keys = [key for group in groups for key, value in group.items() if any(_numbers(key, value))]
        self._keys = tuple(key for key in dict.fromkeys(keys) if key != "lr" and key not in _NO_SETTINGS)
        self._seen = []
        self._compare(self._values(groups))

    def _compare(self, values: list[Any]) -> None:
        """Note which columns are no longer what they were at first, and which are tensors."""
        changed = dict.fromkeys(self._changed, math.nan)
        tensors: dict[str, Tensor] = {}
        for place, value in enumerate(values):
            group, key = divmod(place, len(self._keys))
            for column, number in _numbers(self._keys[key], value):
                name = f"{SETTING}{column}/{group}" if group else f"{SETTING}{column}"
                if isinstance(number, Tensor):
                    tensors[name] = number
                    continue
                first = self._start.setdefault(name, number)
                counts = type(number) is int and type(first) is int  # a counter that an optimizer keeps in its group
                if name in changed or (number != first and not counts):
                    changed[name] = float(number)
        self._last, self._changed, self._tensors = values, changed, tensors


def _holds(group: Group, values: list[Any]) -> bool:
    """Whether these are a group's values, and all: no Python instruction per setting."""
    return len(group) == len(values) and all(map(is_, group.values(), values))


def _rates(groups: Iterable[Group]) -> list[Any]:
    return [group["lr"] for group in groups if "lr" in group]


def _numbers(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The numbers that a setting is, each with its column: `momentum`, or `betas.0` and `betas.1`."""
    if isinstance(value, tuple | list):
        for i, each in enumerate(value):
            yield from _numbers(f"{key}.{i}", each) if not isinstance(each, tuple | list) else ()
    elif isinstance(value, Tensor):
        if value.numel() == 1 and (value.is_floating_point() or value.is_complex()):
            yield key, value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield key, value


def _settings(optimizer: Optimizer, group: Group) -> Group:
    """The plain settings in force for a group; a rate that a scheduler moves is what the scheduler found."""
    found = {**optimizer.defaults, **{k: v for k, v in group.items() if k not in _NO_SETTINGS}}
    if "lr" in found and "initial_lr" in group:
        found["lr"] = group["initial_lr"]
    plain = {text_of(key): _plain(value) for key, value in found.items()}
    return {key: setting_of(value) for key, value in plain.items() if value is not None}


def _plain(value: Any) -> Any:
    """A setting as JSON has it; None for what is no plain value. A tensor on an accelerator is not waited for."""
    if isinstance(value, Tensor):
        known = value.numel() == 1 and value.device.type == "cpu" and not value.is_complex()
        return float(value) if known else f"tensor {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        return tuple(_plain(each) for each in value)
    return value if isinstance(value, bool | int | float | str) else None


def _described(
    name: str, optimizer: Optimizer, first: list[Group], layers: Mapping[int, list[tuple[str, int]]]
) -> dict[str, Any]:
    common = {
        key: value
        for key, value in (first[0] if first else {}).items()
        if all(key in group and _same(group[key], value) for group in first)
    }
    groups = [
        {
            "name": text_of(group.get("name", group.get("group_name", i))),
            "layers": [layer for p in group["params"] for layer, _ in layers.get(id(p), ())],
            "parameters": sum(n for p in group["params"] for _, n in layers.get(id(p), [("", p.numel())])),
            "settings": {key: value for key, value in settings.items() if key not in common},
        }
        for i, (group, settings) in enumerate(zip(optimizer.param_groups, first, strict=False))
    ]
    return {"name": name, "class": type(optimizer).__name__, "settings": common, "groups": groups}


def _same(a: Any, b: Any) -> bool:
    return bool(type(a) is type(b) and (a == b or repr(a) == repr(b)))  # NaN is itself

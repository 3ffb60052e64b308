"""Which parameters are watched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwatch.errors import WatchError
from gradwatch.history import Layer
from gradwatch.measure.distributed import is_sharded
from gradwatch.measure.fsdp import reshard
from gradwatch.measure.layout import Layout
from gradwatch.measure.slices import Split, few, fits
from gradwatch.measure.writes import writes
from gradwatch.recording.arguments import Settings
from gradwatch.recording.layer_names import (
    by_name,
    clean_name,
    free_name,
    held_by_name,
    kinds_of,
    named_layers,
    of_part,
    unique_names,
)
from gradwatch.recording.modes import batch_norms, dropouts
from gradwatch.recording.parallel import Parallel
from gradwatch.recording.zero import shown
from gradwatch.storage.manifest import text_of
from gradwatch.storage.null_writer import NullWriter
from gradwatch.storage.writer import RunWriter

MAX_MODULES = 10_000  # whose classes are recorded
MAX_LISTED = 1_000  # things in a plain list that are looked at: a longer one is of data


def tell_forgotten(source: Source | None, writer: RunWriter | NullWriter) -> None:
    """Name in the manifest what got gradients and was trained by nobody."""
    found = source.forgotten() if source is not None else ()
    if found:
        writer.update(unheld=tuple(dict.fromkeys((*writer.run.unheld, *found))))


def _hidden(model: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    """The parameters of modules that stand in a plain list, tuple, dict or object of one of the model's modules."""
    known = {id(module) for module in model.modules()}
    for path, module in model.named_modules():
        for name, value in list(vars(module).items()):
            if name.startswith("_") or isinstance(value, nn.Module | Tensor | Optimizer | type):
                continue
            named: Iterable[tuple[Any, Any]] = ()
            with suppress(Exception):  # an object of somebody's, that may not want to be looked at
                own = value if isinstance(value, dict) else getattr(value, "__dict__", {})
                named = enumerate(value) if isinstance(value, list | tuple) else [*own.items()]
            for key, part in islice(named, MAX_LISTED):
                if isinstance(part, nn.Module) and id(part) not in known:
                    yield from part.named_parameters(".".join(filter(None, (path, name, str(key)))))


class Seen(NamedTuple):
    """A param group as it was."""

    params: list[Tensor]
    device: torch.device | None  # of the first of them
    dtype: torch.dtype | None


class Source:
    """Where a Watch's layers come from, and which of them are recorded; notices when they are no longer the same."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        patterns: Sequence[str] = ("*",),
        ignored: Sequence[str] = (),
        part: str | None = None,
        parallel: Parallel | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.model, self.optimizers, self.part = model, optimizers, part
        self.parallel, self.by_name = parallel or Parallel(), by_name(optimizers, part)
        self.split: Split = {} if settings is None else settings.split
        self.rows = () if settings is None else settings.rows
        self.patterns, self.ignored = patterns, ignored
        self.beside: list[Optimizer] = []  # known, when it ends, to train what these do not
        reshard(model)
        self._of_model = {id(p) for _, p in shown(model, optimizers)}
        self._at_rest = {id(p): writes(p) for _, p in self._outside()}
        self._later: dict[str, tuple[int, int]] = {}  # what came after `watch()`: which tensor, and how often written
        self._seen: list[Seen] = []  # the groups, when they were last looked through

    def layers(self) -> dict[str, nn.Parameter]:
        """The parameters that are layers, or hold some, as they are now, in model order.

        Raises:
            WatchError: as `named_layers`, or a pattern finds none to split.
        """
        named = named_layers(self.model, self.optimizers, self.part)
        vain = next((each for each in self.split if not any(matches(name, [each]) for name in named)), None)
        if vain is not None:
            raise WatchError(f"split={{{vain!r}: ...}} fits no layer; the layers are {few(list(named))}")
        return named

    def kept(self, names: Iterable[str]) -> list[bool]:
        """Which of these layers are recorded."""
        return [matches(name, self.patterns) and not matches(name, self.ignored) for name in names]

    def recorded(self) -> dict[str, Any]:
        """What the manifest says of the model besides its layers: `unheld`, `modules`, `batch_norms`, `dropouts`."""
        leaves = (
            (self._shown(name), text_of(type(module).__name__)[:100])
            for name, module in self.model.named_modules()
            if not any(True for _ in module.children())
        )
        norms = ((self._shown(norm.name), norm.momentum) for norm in batch_norms(self.model))
        return {
            "unheld": self.unheld(),
            "modules": dict(islice(leaves, MAX_MODULES)),
            "batch_norms": dict(islice(norms, MAX_MODULES)),
            "dropouts": {self._shown(name): p for name, p in islice(dropouts(self.model), MAX_MODULES)},
        }

    def _shown(self, module: str) -> str:
        """The name of a module, that of the part before it."""
        return ".".join(filter(None, (self.part, clean_name(f"{module}.")[:-1])))

    def unheld(self, others: Iterable[Optimizer] = ()) -> tuple[str, ...]:
        """The model's parameters that ask for a gradient, are in no optimizer (nor in the `others`), and would be
        recorded if they were.
        """
        stepped = {id(p) for o in (*self.optimizers, *others) for _, p in held_by_name(o)}
        named = unique_names(shown(self.model, self.optimizers))
        found = [name for name, p in named.items() if p.requires_grad and id(p) not in stepped]
        found = [f"{self.part}.{name}" if self.part else name for name in found]
        return tuple(name for name, kept in zip(found, self.kept(found), strict=True) if kept)

    def forgotten(self) -> tuple[str, ...]:
        """What got gradients and nobody trains, and `watch()` could not see: parameters that were thawed since, those
        of modules in a plain list or dict, which the model's own parameters leave out, and those that came since
        (`meet_later`). None was written since, or another one stands in its place by now.
        """
        stepped = {id(p) for o in (*self.optimizers, *self.beside) for _, p in held_by_name(o)}
        here = unique_names((*shown(self.model, self.optimizers), *_hidden(self.model)))
        found = [
            name
            for name, p in here.items()
            if p.requires_grad and p.grad is not None and id(p) not in stepped and self._rests(name, p)
        ]
        return tuple(name for name, kept in zip(found, self.kept(found), strict=True) if kept)

    def meet_later(self) -> None:
        """Look for parameters that the model has got since `watch()`: those of layers that are made in forward."""
        known = self._of_model | self._at_rest.keys()
        for name, p in unique_names(shown(self.model, self.optimizers)).items():
            if id(p) not in known:
                self._later.setdefault(name, (id(p), writes(p)))

    def _rests(self, name: str, p: nn.Parameter) -> bool:
        """Whether nobody has written to a parameter since it was first seen; one that is made anew rests, too."""
        if id(p) in self._at_rest:
            return self._at_rest[id(p)] == writes(p)
        first, then = self._later.get(name, (id(p), -1))
        return id(p) not in self._of_model and (first != id(p) or then == writes(p))

    def _outside(self) -> Iterable[tuple[str, nn.Parameter]]:
        """The parameters that no optimizer can be missed for yet: frozen ones, and hidden ones."""
        yield from ((name, p) for name, p in self.model.named_parameters() if not p.requires_grad)
        yield from _hidden(self.model)

    def changed(self, layout: Layout) -> Layout | None:
        """The layers from now on, where they are not those of `layout` any more; else None.

        Looks on each step at which parameters the groups hold, and at where the first of each is.

        Raises:
            WatchError: parameters of the layout were replaced by others, in the model or in the optimizers.
        """
        groups = [group["params"] for o in self.optimizers for group in o.param_groups]
        if len(groups) == len(self._seen) and all(map(_is_as_seen, groups, self._seen)):
            return None
        known = dict(layout.whole)
        stepped = {i for o in self.optimizers for i in held(o)}
        self._refuse_replaced(known, stepped, first=not self._seen)
        self._seen = [Seen([*params], *_place(params)) for params in groups]
        self.meet_later()
        ids = {id(p) for p in layout.params}
        named = named_layers(self.model, self.optimizers, self.part) if stepped - ids else {}
        new = {n: p for n, p in named.items() if id(p) not in ids}
        moved = {p.device for p in layout.params} != layout.devices or {p.dtype for p in layout.params} != layout.dtypes
        here = [id(p) in stepped for p in known.values()]
        if not new and not moved and here == [*layout.of_whole(layout.held or [True] * len(layout.params))]:
            return None
        for name, p in new.items():
            known[free_name(name, known)] = p  # where one was taken out that had the name
        return self.layout(known, None if all(here) else [*here, *[True] * len(new)])

    def layout(self, layers: Mapping[str, Tensor], held: Sequence[bool] | None = None) -> Layout:
        """The layers of these parameters, and how they are spread over processes.

        Raises:
            WatchError: it is not known how, they cannot be split as asked, or the patterns leave nothing to record.
        """
        spreads, stages = self.parallel.spreads(self.model, layers), self.parallel.stages
        layout = Layout(layers, held, spreads=spreads, stages=stages, split=self.split, rows=self.rows)
        if self.rows and not layout.first_rows:
            raise WatchError(
                f"rows={self.rows!r} fits no layer of two or more dimensions; the layers are {few(layout.names)}"
            )
        if not any(self.kept(layout.names)):
            raise WatchError(
                f"layers={self.patterns!r} and ignore={self.ignored!r} leave nothing to record; the layers are "
                f"{few(layout.names)}"
            )
        return layout

    def _refuse_replaced(self, known: dict[str, Tensor], stepped: set[int], first: bool) -> None:
        model = of_part(self.part, unique_names(shown(self.model, self.optimizers)))
        here = {id(p) for p in model.values()}
        own = {n: p for n, p in known.items() if id(p) in self._of_model and id(p) not in here}
        lost = [n for n, p in own.items() if (first or n in model) and not _is_gathered(model.get(n), p)]
        stray = [n for n, p in known.items() if id(p) not in stepped]
        if lost or len(stray) == len(known):
            owner = type(self.model).__name__ if lost else kinds_of(self.optimizers)
            raise WatchError(
                f"{owner} no longer holds the parameters that watch() was given, but others: {few(lost or stray)} "
                "(fully_shard, to_empty, load_state_dict(assign=True) and replacing a module do this); build the "
                "optimizer from the parameters as they are now, and call watch() after that"
            )


def _is_gathered(shown: Tensor | None, sharded: Tensor) -> bool:
    """Whether FSDP2 shows a whole layer in the place of its parts: from a forward pass to the backward one."""
    return shown is not None and is_sharded(sharded) and not is_sharded(shown)


def _place(params: Sequence[Tensor]) -> tuple[torch.device | None, torch.dtype | None]:
    """Where the first of a group is: the others move with it."""
    return (params[0].device, params[0].dtype) if params else (None, None)


def _is_as_seen(params: Sequence[Tensor], seen: Seen) -> bool:
    """Whether a param group is as it was; no Python instruction, and no new object, for each of its parameters."""
    same = len(params) == len(seen.params) and all(map(is_, params, seen.params))
    return same and _place(params) == (seen.device, seen.dtype)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a layer's name fits one of the shell-style patterns (`*` crosses dots)."""
    return any(fits(name, pattern) for pattern in patterns)


def describe(layout: Layout) -> tuple[Layer, ...]:
    """The layers as plain data, for the manifest."""
    return tuple(
        Layer(name, tuple(shape), str(p.dtype).removeprefix("torch."), not p.requires_grad)
        for name, p, shape in zip(layout.names, layout.params, layout.shapes, strict=True)
    )


def held(optimizer: Optimizer) -> dict[int, Tensor]:
    """The parameters of all groups, by id."""
    return {id(p): p for group in optimizer.param_groups for p in group["params"]}

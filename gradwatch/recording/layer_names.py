"""What layers and optimizers are called."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from gradwatch.errors import WatchError
from gradwatch.recording.zero import shown
from gradwatch.storage.manifest import text_of

_WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:module|_orig_mod|_module|_forward_module|_fsdp_wrapped_module)\.")


def clean_name(name: str) -> str:
    """`name` without what DistributedDataParallel (`module.`), torch.compile (`_orig_mod.`) and others put in."""
    clean = _WRAPPERS.sub("", name)
    return clean if clean.isascii() else text_of(clean)  # with a lone surrogate, no file could hold it


def named_layers(model: nn.Module, optimizers: Sequence[Optimizer], part: str | None = None) -> dict[str, nn.Parameter]:
    """Every parameter that an optimizer holds, by name, in model order; a tied weight appears once.

    Parameters that are in an optimizer but not in the model come last, under the optimizer's own name for them.
    The name of the `part`, if any, is the first component of all.

    Raises:
        WatchError: no parameter of the model is in an optimizer.
    """
    stepped = {id(p): name for o in optimizers for name, p in held_by_name(o)}
    names = unique_names(shown(model, optimizers))
    layers = {name: p for name, p in names.items() if id(p) in stepped}
    if not layers:
        raise WatchError(
            f"none of the {len(names)} parameters of {type(model).__name__} is in {kinds_of(optimizers)}: pass the "
            "optimizer that was built from this model's parameters (a model that was moved or wrapped after the "
            "optimizer was built may hold new ones)"
        )
    known = {id(p) for p in layers.values()}
    for name, p in (pair for o in optimizers for pair in held_by_name(o)):
        if id(p) not in known:
            known.add(id(p))
            layers[free_name(name, layers)] = p
    return of_part(part, layers)


def free_name(name: str, taken: Mapping[str, Tensor]) -> str:
    """A name that none of these has."""
    return name if name not in taken else free_name(f"optimizer.{name}", taken)


def unique_names(named: Iterable[tuple[str, nn.Parameter]]) -> dict[str, nn.Parameter]:
    """Parameters by their clean names."""
    pairs = list(named)
    short = [clean_name(name) for name, _ in pairs]
    times = Counter(short)
    # A module that is really called "module" can make two short names equal: then both keep their long ones.
    return {s if times[s] == 1 else name: p for s, (name, p) in zip(short, pairs, strict=True)}


def held_by_name(optimizer: Optimizer) -> Iterable[tuple[str, nn.Parameter]]:
    """The parameters of an optimizer, by its own names for them."""
    for g, group in enumerate(optimizer.param_groups):
        names = group.get("param_names") or [f"param_groups.{g}.{i}" for i in range(len(group["params"]))]
        yield from zip((clean_name(n) for n in names), group["params"], strict=True)


def kinds_of(optimizers: Sequence[Optimizer]) -> str:
    """The classes of optimizers, in words."""
    return " or ".join(f"the given {type(o).__name__}" for o in optimizers)


def by_name(optimizers: Sequence[Optimizer], part: str | None = None) -> dict[str, Optimizer]:
    """The optimizers by their classes, numbered where one occurs twice; of a named part `part`, or `part.Adam` of
    several.
    """
    if part and len(optimizers) == 1:
        return {part: optimizers[0]}
    kinds = [type(o).__name__ for o in optimizers]
    names = [kind if kinds.count(kind) == 1 else f"{kind}.{i}" for i, kind in enumerate(kinds)]
    return of_part(part, dict(zip(names, optimizers, strict=True)))


def of_part(part: str | None, found: dict[str, Any]) -> dict[str, Any]:
    """Each by a name that begins with that of the part, if there is one."""
    return {f"{part}.{name}": each for name, each in found.items()} if part else found

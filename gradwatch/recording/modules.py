"""Which modules' activations are recorded, and what they are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from gradwatch.errors import WatchError
from gradwatch.measure.routers import Router, routers
from gradwatch.measure.saturation import flat_of
from gradwatch.recording.layer_names import clean_name, of_part
from gradwatch.recording.layers import matches

MOST = 200  # modules that are chosen without being asked for
MOST_NAMED = 2_000
_SAME = ("Identity", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "DropPath", "StochasticDepth")
_NEVER_CALLED = (nn.ModuleList, nn.ModuleDict)


def chosen(model: nn.Module, asked: bool | Sequence[str], part: str | None = None) -> dict[str, nn.Module]:
    """The modules whose names fit one of the patterns `asked`, or those of `default_modules` for True; none for False.

    In the order in which their outputs come: a module after those in it, else as the model defines them.

    Raises:
        WatchError: no module fits, or far too many do.
    """
    if asked is False:
        return {}
    named = dict(_by_output(model, ""))
    if asked is True:
        wanted = default_modules(model)
        found = {name: module for name, module in named.items() if id(module) in wanted}
    else:
        found = {name: module for name, module in named.items() if matches(name, asked)}
        if not 0 < len(found) <= MOST_NAMED:
            shown = ", ".join([*named][:8])
            raise WatchError(
                f"activations={tuple(asked)!r:.200} fits {len(found):,} of the {len(named):,} modules of "
                f"{type(model).__name__}: wanted patterns of 1 to {MOST_NAMED:,} names such as {shown:.200}"
            )
    return of_part(part, found)


def chosen_routers(model: nn.Module, asked: bool | Sequence[str], part: str | None = None) -> dict[str, Router]:
    """What looks like a router of experts, by name: all for True, none for False, else those that fit the patterns."""
    found = routers(model) if asked is not False else {}
    named = {name: found[id(module)] for name, module in _by_output(model, "") if id(module) in found}
    kept = {name: router for name, router in named.items() if asked is True or matches(name, asked or ())}
    return of_part(part, kept)


def default_modules(model: nn.Module) -> set[int]:
    """The ids of the modules worth looking at in any model, at most `MOST`.

    Blocks, those that stand in a list of a block (the blocks of a stage), the parts that they consist of, the
    non-linearities in them, and what has weights outside of them. In a model without blocks the non-linearities, and
    what has weights. Of too many the innermost go first.
    """
    levels = [[*_blocks(model)]]
    while levels[-1]:
        levels.append([inner for block in levels[-1] for inner in _inner_blocks(block)])
    blocks = [block for level in levels for block in level]
    inside = {id(m) for block in levels[0] for m in block.modules()}
    called = [m for m in model.modules() if not isinstance(m, _NEVER_CALLED)]
    parts = [child for block in blocks for child in block.children() if not _is_nothing_new(child)]
    rest = [m for m in called if id(m) not in inside and _has_weights(m)]
    curved = [m for m in called if flat_of(m) is not None]
    big = [m for m in parts if any(True for _ in m.children())]
    out: set[int] = set()
    for group in ([*levels[0], *rest], *levels[1:], big, curved, parts):
        more = out | {id(m) for m in group}
        if len(more) > MOST:
            return out or set(list(dict.fromkeys(id(m) for m in group))[:: -(-len(group) // MOST)])
        out = more
    return out or {id(m) for m in model.modules() if not any(True for _ in m.children())}


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules that stand in a list and consist of several."""
    found = _listed(module)
    yield from found
    for child in module.children():
        if not any(child is block for block in found):
            yield from _blocks(child)


def _inner_blocks(block: nn.Module) -> Iterator[nn.Module]:
    """Those in a list of this block's own; experts are many, and all of a kind."""
    for name, child in (("", block), *block.named_children()):
        if name != "experts":
            yield from _listed(child)


def _listed(module: nn.Module) -> list[nn.Module]:
    """The members of a list that consist of several modules; of what runs one after the other those of one class, as
    beside them there are a stem and a head.
    """
    if not isinstance(module, (nn.ModuleList, nn.Sequential, nn.ModuleDict)):
        return []
    kinds = Counter(type(child) for child in module.children())
    big = [c for c in module.children() if any(True for _ in c.children()) and not isinstance(c, _NEVER_CALLED)]
    return [c for c in big if isinstance(module, nn.ModuleList) or kinds[type(c)] > 1]


def _is_nothing_new(module: nn.Module) -> bool:
    """Whether it is never called, or gives out what it takes."""
    return isinstance(module, _NEVER_CALLED) or type(module).__name__.endswith(_SAME)


def _has_weights(module: nn.Module) -> bool:
    return is_parametrized(module) or any(True for _ in module.parameters(recurse=False))


def _by_output(module: nn.Module, path: str, seen: set[int] | None = None) -> Iterator[tuple[str, nn.Module]]:
    """Every module by its name, after those in it; one that has several names by the first."""
    seen = set() if seen is None else seen
    if id(module) in seen:
        return
    seen.add(id(module))
    for name, child in module.named_children():
        yield from _by_output(child, f"{path}.{name}" if path else name, seen)
    name = clean_name(f"{path}.")[:-1] if path else ""
    yield name or type(module).__name__, module

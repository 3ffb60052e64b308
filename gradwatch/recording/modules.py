"""Which modules' activations are recorded, and what they are called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from gradwatch.errors import WatchError
from gradwatch.measure.routers import Router, routers
from gradwatch.measure.saturation import flat_of
from gradwatch.recording.layers import clean_name, matches

MOST = 200  # modules that are chosen without being asked for
MOST_NAMED = 2_000
_SAME = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)  # give out what they take


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
    return {f"{part}.{name}" if part else name: module for name, module in found.items()}


def chosen_routers(model: nn.Module, asked: bool | Sequence[str], part: str | None = None) -> dict[str, Router]:
    """What looks like a router of experts, by name: all for True, none for False, else those that fit the patterns."""
    found = routers(model) if asked is not False else {}
    named = {name: found[id(module)] for name, module in _by_output(model, "") if id(module) in found}
    kept = {name: router for name, router in named.items() if asked is True or matches(name, asked or ())}
    return {f"{part}.{name}" if part else name: router for name, router in kept.items()}


def default_modules(model: nn.Module) -> set[int]:
    """The ids of the modules worth looking at in any model, at most `MOST`.

    Blocks, the parts that they consist of, the non-linearities in them, and what has weights outside of them. In a
    model without blocks the non-linearities, and what has weights. Of too many the innermost go first.
    """
    blocks = [*_blocks(model)]
    inside = {id(m) for block in blocks for m in block.modules()}
    parts = [child for block in blocks for child in block.children() if not isinstance(child, _SAME)]
    rest = [m for m in model.modules() if id(m) not in inside and _has_weights(m)]
    curved = [m for m in model.modules() if flat_of(m) is not None]
    out: set[int] = set()
    for group in ([*blocks, *rest], [m for m in parts if any(True for _ in m.children())], curved, parts):
        more = out | {id(m) for m in group}
        if len(more) > MOST:
            return out or set(list(dict.fromkeys(id(m) for m in group))[:: -(-len(group) // MOST)])
        out = more
    return out or {id(m) for m in model.modules() if not any(True for _ in m.children())}


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules that stand in a list with others of their class, and consist of several."""
    children = [*module.children()]
    if isinstance(module, (nn.ModuleList, nn.Sequential, nn.ModuleDict)):
        kinds = [type(child) for child in children]
        alike = [c for c in children if kinds.count(type(c)) > 1 and any(True for _ in c.children())]
        alike = [c for c in alike if not isinstance(c, (nn.ModuleList, nn.ModuleDict))]
        yield from alike
        children = [c for c in children if not any(c is block for block in alike)]
    for child in children:
        yield from _blocks(child)


def _has_weights(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))


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

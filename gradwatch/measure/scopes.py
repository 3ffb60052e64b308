"""Which layers a pattern of `only(...)` means: those of such names, or those that such an optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from torch import Tensor
from torch.optim import Optimizer

from gradwatch.errors import PolicyError
from gradwatch.measure.slices import few, fits

OPTIMIZER = "optimizer:"


def scope(
    path: tuple[str, ...],
    names: Sequence[str],
    params: Sequence[Tensor],
    optimizers: Sequence[Optimizer],
    fits_elsewhere: Callable[[tuple[str, ...], bool], bool],
) -> tuple[int, ...]:
    """The places of the layers that a shell-style pattern means, `optimizer:Muon*` by their optimizer's class: the last
    of the `path` of those that lie inside each other, whose layers these are.

    `fits_elsewhere` is told whether there are any, and says whether these are but a part of the layers, which may well
    have none of them.

    Raises:
        PolicyError: there are none.
    """
    pattern = path[-1]
    if pattern.startswith(OPTIMIZER):
        kinds = {o: type(o).__name__ for o in optimizers}
        chosen = [o for o, kind in kinds.items() if fnmatchcase(kind, pattern.removeprefix(OPTIMIZER))]
        own = {id(p) for o in chosen for group in o.param_groups for p in group["params"]}
        found = tuple(i for i, p in enumerate(params) if id(p) in own)
        known = f"the optimizers are {', '.join(kinds.values())}" if kinds else "a constraint knows no optimizers"
    else:
        found = tuple(i for i, name in enumerate(names) if fits(name, pattern))
        known = f"the layers are {few(names)}"
    if not fits_elsewhere(path, bool(found)) and not found:
        raise PolicyError(f"only({pattern!r}, ...): no layer fits; {known}")
    return found

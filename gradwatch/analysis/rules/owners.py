"""Which optimizer steps each layer, by which settings; and who else writes to the weights.

Legend: L layers, E steps before which something else than the optimizer did.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.optimizers import groups
from gradwatch.analysis.rules.facts import ADAPTIVE, own_optimizers, rates, set_rate
from gradwatch.analysis.rules.layer_facts import matrices
from gradwatch.history import Bools, Floats, History


def owners(history: History) -> list[tuple[str, dict[str, Any]]]:
    """Of each layer the class of its optimizer and the settings of its group; those of the first where not known."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    first: tuple[str, dict[str, Any]] = ("", {})
    for optimizer in own_optimizers(history):
        kind = str(optimizer.get("class", ""))
        for group, settings in zip(optimizer.get("groups") or [{}], groups(optimizer).values(), strict=True):
            first = first if first[0] else (kind, settings)
            found.update(dict.fromkeys(group.get("layers", ()), (kind, settings)))
    return [found.get(name, first) for name in history.layers]


def rate_columns(history: History) -> list[int | None]:
    """Of each layer which of the `rates` is that of its param group; None where it is not known."""
    names = [group.get("layers", ()) for o in own_optimizers(history) for group in o.get("groups") or [{}]]
    if len(names) != rates(history).shape[1]:
        return [None] * len(history.layers)
    found = {name: column for column, group in enumerate(names) for name in group}
    return [found.get(name) for name in history.layers]


def written_before(history: History) -> NDArray[np.intp]:
    """The rows of the steps before which something else than the optimizer wrote to the weights, `[E]`."""
    return np.flatnonzero(history.total("weight_writes") > 0)


def leaps_where_written(history: History, loss: Floats, least: int = 5, apart: int = 3, times: float = 2.0) -> bool:
    """Whether a loss `[T]` changes more where something else wrote to the weights between two steps, `least` times or
    more, at most before every `apart`th step: by the medians `times` what it does between all others.

    So does an inner loop that begins at weights which many tasks share (Nichol et al. 2018, arXiv:1803.02999).
    """
    written = np.isin(np.arange(1, len(loss)), written_before(history))
    moved = np.abs(np.diff(loss))
    enough = least <= written.sum() <= len(loss) / apart
    return bool(enough and np.nanmedian(moved[written]) > times * np.nanmedian(moved[~written]))


def of_muon(history: History) -> Bools:
    """Which layers are matrices that Muon orthogonalises the steps of, `[L]`.

    An optimizer of such a name may step the others by Adam: vectors, and the groups that say `use_muon=False`.
    Source: Jordan 2024, https://kellerjordan.github.io/posts/muon (and its `MuonWithAuxAdam`).
    """
    named = ["Muon" in kind and bool(settings.get("use_muon", True)) for kind, settings in owners(history)]
    return np.asarray(matrices(history) & np.array(named, bool))


def rate_by_scale(history: History) -> tuple[float, str]:
    """The rate that was set for the first optimizer whose steps are as long as its gradients; and its class, where it
    steps beside others whose are not. For it alone a clip is a learning rate.
    """
    every = own_optimizers(history)
    kinds = [str(optimizer.get("class", "")) for optimizer in every]
    scaled = [ADAPTIVE.search(kind) is None for kind in kinds]
    first = scaled.index(True) if True in scaled else 0
    kind = "" if all(scaled) else kinds[first]
    return set_rate(history, sum(len(groups(optimizer)) for optimizer in every[:first])), kind

"""Two networks that are trained in turn, and an optimizer of one that holds the other too."""

from __future__ import annotations

from typing import Any

from gradwatch.analysis.rules.facts import own_optimizers
from gradwatch.analysis.rules.finding import Finding, either, whole_run
from gradwatch.analysis.rules.layer_facts import present
from gradwatch.analysis.rules.losses import has_rivals
from gradwatch.formatting import counted
from gradwatch.history import History


def optimizer_holds_both_networks(history: History) -> list[Finding]:
    """Of two optimizers that step in turn, each for a loss of its own, one holds all that the other holds as well.

    A warning, of the lane that does.

    Alarm: its layers are its own and the other's, by their names, or by their shapes where it calls them by their
    places in its param groups; and gradients reach these in its steps. Of three optimizers or more it is not said: one
    may be meant to train several networks.
    Source: Goodfellow et al. (2014), arXiv:1406.2661, algorithm 1: each step ascends or descends the gradient of one
    network's parameters alone.
    """
    own = own_optimizers(history)
    others = [o for o in history.run.optimizers if o not in own]
    if len(own) != 1 or len(others) != 1 or not has_rivals(history):
        return []
    name, other = (str(o.get("name")) for o in (*own, *others))
    shared = _shared(history, name, _held(own[0]), _held(others[0]))
    columns = [history.layers.index(layer) for layer in shared if layer in history.layers]
    if not columns or not present(history)[:, columns].any():
        return []
    return [
        whole_run(
            history,
            "optimizer-holds-both-networks",
            tuple(history.layers[i] for i in columns),
            {"layers_of_the_other": len(columns)},
            f"The optimizer of {name} also holds {counted(len(columns), 'layer')} of {other}, and gradients reach them "
            f"in its steps: each of these moves {other} for the loss of {name}. {either(_CAUSES)}",
            "Build it from the parameters of its own network alone. Where one network only judges what another made, "
            "detach() that, and clear each optimizer's gradients before its own backward.",
            _CAUSES,
        )
    ]


_CAUSES = (
    "it was given the parameters of both networks (itertools.chain, or a module that contains the other)",
    "that loss is meant to train both",
)


def _held(optimizer: dict[str, Any]) -> list[str]:
    return [layer for group in optimizer.get("groups") or () for layer in group.get("layers", ())]


def _shared(history: History, part: str, own: list[str], others: list[str]) -> list[str]:
    """What is the other's of `own`, which has more than that; empty where it does not hold all of the other's."""
    for names in (others, [f"{part}.{layer}" for layer in others]):
        if others and {*names} < {*own}:
            return names
    shapes = {layer.name: layer.shape for layer in history.run.layers}
    placed = [layer for layer in own if ".param_groups." in layer]
    alike = [shapes.get(layer) for layer in placed] == [shapes.get(layer) for layer in others]
    return placed if alike and len(placed) < len(own) else []

"""Parameters that ask for gradients, and that no optimizer holds.

Legend: R recorded rows of the layers, L layers.
"""

from __future__ import annotations

from collections.abc import Iterable

from gradwatch.analysis.rules.finding import Finding, either, whole_run
from gradwatch.analysis.rules.layer_facts import present
from gradwatch.analysis.rules.sampled_losses import sampled
from gradwatch.history import History


def not_in_optimizer(history: History, least: int = 8) -> list[Finding]:
    """Parameters that ask for gradients and are in no optimizer of the Watch (`Run.unheld`). A warning.

    Each is named in one lane only, that of the optimizer whose model it belongs to. Not said where no layer had a
    gradient in any step, unless all that the optimizer holds is frozen. Of a copy of a part that is trained, as a
    target network is (`copy_moved`), nothing is said if it ever moved; if it never did, that it is `weights-unchanged`.
    Where no gradient came to any of them in `least` samples (`unheld_reached`): a note.
    Source: the parameters of `torch.optim.Optimizer`: what is not handed over is never updated.
    """
    frozen = all(layer.frozen for layer in history.run.layers if layer.name in history.layers)
    layers = _own(history) if frozen or present(history).any() else ()
    _, moved = sampled(history, "copy_moved")
    copies = _copies(history, layers) if len(moved) else ()
    layers = tuple(layer for layer in layers if layer not in copies)
    found = [_never_follows(history, copies)] if copies and len(moved) >= least and not moved.any() else []
    if not layers:
        return found
    _, reached = sampled(history, "unheld_reached")
    if len(reached) >= least and not reached.any():
        return [*found, _without_gradient(history, layers)]
    return [
        *found,
        whole_run(
            history,
            "not-in-optimizer",
            layers,
            {"layers": len(layers)},
            "These parameters ask for gradients and are in no optimizer of this Watch: nothing trains them.",
            "Give them to the optimizer (all of model.parameters(), built after the model is complete; layers that "
            "forward makes belong into __init__; what is thawed later by add_param_group; modules in an "
            "nn.ModuleList, not in a list), watch the optimizer that has them too, or set requires_grad_(False), "
            "which also saves their backward pass.",
        ),
    ]


_WITHOUT_GRADIENT = (
    "they are meant to rest, as a teacher, or a body below a head that is trained, or are not used",
    "what they compute was meant to be trained too, and runs under torch.no_grad(), or is detached",
)


def _without_gradient(history: History, layers: tuple[str, ...]) -> Finding:
    return whole_run(
        history,
        "not-in-optimizer",
        layers,
        {"layers": len(layers)},
        "These parameters ask for gradients, no gradient came to them, and no optimizer of this Watch has them. "
        f"{either(_WITHOUT_GRADIENT)}",
        "If they are meant to rest, say so with requires_grad_(False). If not, take no_grad() or detach() away, and "
        "give them to the optimizer.",
        _WITHOUT_GRADIENT,
        severity="note",
    )


def _copies(history: History, layers: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the parameters that no optimizer holds that stand under the names of a part that one does."""
    trained = _by_part(history.layers).values()
    return tuple(
        f"{part}.{name}" for part, names in _by_part(layers).items() if names in trained for name in names if name
    )


def _by_part(names: Iterable[str]) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {}
    for part, _, own in (name.partition(".") for name in names):
        parts.setdefault(part, []).append(own)
    return parts


_NEVER_FOLLOWS = (
    "it is a target network, or an average of the weights, that is never updated, or that its own weights are loaded "
    "into",
    "it is a reference that is meant to rest, or its first update is still to come",
)


def _never_follows(history: History, copies: tuple[str, ...]) -> Finding:
    part = copies[0].partition(".")[0]
    return whole_run(
        history,
        "weights-unchanged",
        "",
        {"layers": len(copies)},
        f"`{part}` has the names and shapes of a part that is trained, no optimizer holds it, and it is what it was "
        f"before the first step. {either(_NEVER_FOLLOWS)}",
        f"Load the trained weights into `{part}` every so many steps (target.load_state_dict(online.state_dict())), or "
        "follow them a little in each: target.lerp_(online, 0.005) of each pair of parameters, under no_grad().",
        _NEVER_FOLLOWS,
    )


def _own(history: History) -> tuple[str, ...]:
    """Of the parameters that no optimizer holds, those that belong to this lane: each is named in one lane only."""
    names = [str(o.get("name")) for o in history.run.optimizers]
    here = {part for name in dict.fromkeys(history.optimizer) for part in str(name).split("+")}

    def owner(layer: str) -> str:
        return next((name for name in names if layer.startswith(name.split(".")[0] + ".")), next(iter(names), ""))

    return tuple(layer for layer in history.run.unheld if owner(layer) in here or not here & set(names))

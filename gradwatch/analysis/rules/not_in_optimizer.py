"""Parameters that ask for gradients, and that no optimizer holds.

Legend: R recorded rows of the layers, L layers.
"""

from __future__ import annotations

from gradwatch.analysis.rules.facts import present
from gradwatch.analysis.rules.finding import Finding
from gradwatch.history import History


def not_in_optimizer(history: History) -> list[Finding]:
    """Parameters that ask for gradients and are in no optimizer of the Watch (`Run.unheld`). A warning.

    Each is named in one lane only, that of the optimizer whose model it belongs to. Not said where no layer had a
    gradient in any step.
    Source: the parameters of `torch.optim.Optimizer`: what is not handed over is never updated.
    """
    layers = _own(history) if present(history).any() else ()
    if not layers:
        return []
    return [
        Finding(
            "not-in-optimizer",
            "warning",
            layers,
            int(history.step[0]),
            int(history.step[-1]),
            {"layers": len(layers)},
            "These parameters ask for gradients and are in no optimizer of this Watch: nothing trains them.",
            "Give them to the optimizer (all of model.parameters(), built after the model is complete; layers that "
            "forward makes belong into __init__; what is thawed later by add_param_group; modules in an "
            "nn.ModuleList, not in a list), watch the optimizer that has them too, or set requires_grad_(False), "
            "which also saves their backward pass.",
        )
    ]


def _own(history: History) -> tuple[str, ...]:
    """Of the parameters that no optimizer holds, those that belong to this lane: each is named in one lane only."""
    names = [str(o.get("name")) for o in history.run.optimizers]
    here = {part for name in dict.fromkeys(history.optimizer) for part in str(name).split("+")}

    def owner(layer: str) -> str:
        return next((name for name in names if layer.startswith(name.split(".")[0] + ".")), next(iter(names), ""))

    return tuple(layer for layer in history.run.unheld if owner(layer) in here or not here & set(names))

"""The gradients of a step that must not happen: taken away for it, and put back behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

Dropped = list[tuple[Tensor, Tensor | None]]  # parameters, and the gradients that they had


def drop(params: Iterable[Tensor]) -> Dropped:
    """Take the gradients away: an optimizer leaves a parameter without one alone, state and all. What they were."""
    dropped = [(p, p.grad) for p in params]
    for p, _ in dropped:
        p.grad = None
    return dropped


def put_back(dropped: Sequence[tuple[Tensor, Tensor | None]]) -> None:
    """Give these their gradients again, where nobody gave them others: a loop may zero or reuse them in place."""
    for p, gradient in dropped:
        if p.grad is None:
            p.grad = gradient

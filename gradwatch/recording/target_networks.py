"""A part of the model that is a copy of one that is trained: a target network, an average of the weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from gradwatch.recording.hooks import is_captured
from gradwatch.recording.layer_names import clean_name
from gradwatch.recording.layers import held

MOST, ELEMENTS = 8, 64  # parameters that are compared with what they were, and elements of each


class TargetNetworks:
    """Parameters that ask for a gradient and are not trained, under the names and shapes of a part that is."""

    def __init__(self, model: nn.Module, optimizers: Iterable[Optimizer]) -> None:
        trained = {key for optimizer in optimizers for key in held(optimizer)}
        parts: dict[str, dict[str, nn.Parameter]] = defaultdict(dict)
        for name, p in model.named_parameters():
            part, _, own = clean_name(name).partition(".")
            if own and not is_lazy(p):
                parts[part][own] = p
        models = [_shapes(own) for own in parts.values() if all(id(p) in trained for p in own.values())]
        found = [
            p
            for own in parts.values()
            if _shapes(own) in models and not any(id(p) in trained for p in own.values())
            for p in own.values()
            if p.requires_grad
        ]
        alike = [p for p in found if type(p) is nn.Parameter and p.device == found[0].device]
        self._params = [] if alike and is_captured(alike[0].device) else alike[:MOST]
        self._first = [_some(p).clone() for p in self._params]

    def moved(self) -> Tensor | None:
        """Whether any is another than at first, 0-d; None without any, where they get gradients of their own, and where
        they are elsewhere by now.
        """
        pairs = [*zip(self._params, self._first, strict=True)]
        if not pairs or any(p.grad is not None or p.device != first.device for p, first in pairs):
            return None
        if is_captured(pairs[0][1].device):
            return None
        return torch.stack([(_some(p) != first).any() for p, first in pairs]).any().float()


def _shapes(own: dict[str, nn.Parameter]) -> dict[str, torch.Size]:
    return {name: p.shape for name, p in own.items()}


def _some(p: nn.Parameter) -> Tensor:
    return p.detach().reshape(-1)[:ELEMENTS]

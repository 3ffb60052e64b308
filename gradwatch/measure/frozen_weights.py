"""How much of a model is frozen as it was drawn: weights that nothing has trained."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from gradwatch.formulas import is_as_drawn
from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.layout import sample

AT_THE_BOUND = 0.95  # of it, above which the largest element of weights that are drawn evenly lies


@without_autograd
def frozen_weights(parameters: Iterable[Tensor], device: torch.device) -> dict[str, Any]:
    """Of matrices that ask for no gradient and lie whole on `device`, scalars; empty where there is none.

    `frozen_elements`: how many elements they have; `frozen_as_drawn`: how many of these are in matrices whose (sampled)
    elements are as large as weights are drawn (`formulas.is_as_drawn`); `frozen_head`: whether the last of them is a
    Linear's as torch draws it, evenly up to one over the root of its fan in, and by no step beyond. Nothing is read
    from the device.
    """
    frozen = [w for p in parameters if _is_frozen_matrix(w := p.detach(), p.requires_grad, device)]
    if not frozen:
        return {}
    drawn = [w.numel() * is_as_drawn(_root_mean_square(each := sample(w)), w.shape, each.numel()) for w in frozen]
    return {
        "frozen_elements": float(sum(w.numel() for w in frozen)),
        "frozen_as_drawn": torch.stack(drawn).sum(dtype=torch.float32),
        "frozen_head": _is_untouched(frozen[-1]),
    }


def _is_untouched(weight: Tensor) -> Tensor:
    """Whether it is drawn evenly up to 1 / sqrt(fan in), as `nn.Linear` does, 0-d: by its size and largest element.

    Source: torch's `nn.Linear.reset_parameters` (`kaiming_uniform_` with a of the root of 5).
    """
    few, bound = sample(weight), weight[0].numel() ** -0.5
    largest = few.float().abs().amax() / bound
    even = is_as_drawn(_root_mean_square(few), weight.shape, few.numel())
    untouched: Tensor = (largest < 1.001) & (largest > AT_THE_BOUND) & even
    return untouched.float() * float(weight.dim() == 2)


def _is_frozen_matrix(weight: Tensor, trains: bool, device: torch.device) -> bool:
    whole = type(weight) is Tensor and weight.device == device and weight.is_floating_point()
    return whole and not trains and sum(size > 1 for size in weight.shape) > 1


def _root_mean_square(values: Tensor) -> Tensor:
    return values.float().square().mean().sqrt()

"""Which weights begin at one number: the units of such a layer are copies of one another."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.layout import Layout, sample


@without_autograd
def constant_weights(layout: Layout) -> dict[str, Tensor]:
    """`constant_weights`: of how many trainable matrices all (sampled) elements are one number other than 0, a scalar.

    Of those that lie whole on the layout's device; nothing is read from it. Empty where there is none to look at.
    Source: Goodfellow et al., Deep Learning, section 8.4 (initial weights break the symmetry between units).
    """
    samples = [sample(w) for p, w in zip(layout.params, layout.weights(), strict=True) if _is_matrix(p, layout)]
    alike = [(values == values[0]).all() & (values[0] != 0) for values in samples]
    return {"constant_weights": torch.stack(alike).sum(dtype=torch.float32)} if alike else {}


def _is_matrix(parameter: Tensor, layout: Layout) -> bool:
    """Whether it has rows and columns, is trained, and no part of it is elsewhere."""
    whole = type(parameter.detach()) is Tensor and parameter.device == layout.device
    return whole and parameter.requires_grad and sum(size > 1 for size in parameter.shape) > 1

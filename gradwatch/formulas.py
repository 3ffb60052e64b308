"""The policies' formulas, as functions of arrays that work on numpy and torch alike.

The train side multiplies gradients by what these return; the read side uses the same functions to answer "what would
another threshold have done". Each returns coefficients shaped like `norm`; 1 means untouched.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any  # a torch.Tensor or a numpy array; both have .clip(min=, max=)

TORCH_EPS = 1e-6
RENORM_EPS = 1e-7


def clip_coef(norm: Array, max_norm: Any, eps: float = TORCH_EPS) -> Array:
    """The clip of torch: `max_norm / (norm + eps)`, at most 1.

    A norm equal to the threshold is still scaled (by 0.9999998); inf gives 0 and NaN gives NaN, as in torch.
    Source: `torch.nn.utils.clip_grads_with_norm_`.
    """
    return (max_norm / (norm + eps)).clip(max=1.0)


def clip_coef_exact(norm: Array, max_norm: Any) -> Array:
    """TensorFlow's clip: `max_norm / max(norm, max_norm)`, exactly 1 up to the threshold.

    inf gives 0, NaN gives NaN, and 0/0 (threshold and norm both 0) gives NaN, as in TensorFlow.
    Source: `tf.clip_by_norm`, without its intermediate product `t * clip_norm`, which overflows float16.
    """
    return max_norm / norm.clip(min=max_norm)


def renorm_coef(norm: Array, maxnorm: Any) -> Array:
    """Torch's renorm: `maxnorm / (norm + 1e-7)` where `norm > maxnorm`, else 1; a NaN norm gives 1.

    Source: `torch.renorm`.
    """
    return _where(norm > maxnorm, maxnorm / (norm + RENORM_EPS), 1.0)


def agc_coef(grad_norm: Array, weight_norm: Array, clipping: float, eps: float) -> Array:
    """Adaptive gradient clipping of one unit: its gradient may be `clipping` times its weights.

    `grad_norm` and `weight_norm` are norms of the same units. A unit of zero weights counts as having norm `eps`.
    Source: Brock et al. 2021, arXiv:2102.06171, eq. 3; constants as in timm `agc.py`.
    """
    max_norm = clipping * weight_norm.clip(min=eps)
    return _where(~(grad_norm < max_norm), max_norm / grad_norm.clip(min=1e-6), 1.0)


def _where(condition: Array, yes: Array, no: float) -> Array:
    return yes.where(condition, no) if hasattr(yes, "where") else np.where(condition, yes, no)

"""The policies' formulas, as functions of arrays that work on numpy and torch alike.

The train side multiplies gradients by what these return; the read side uses the same functions to answer "what would
another threshold have done". Each returns coefficients shaped like `norm`; 1 means untouched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

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


def is_as_drawn(rms: Array, shape: Sequence[int], seen: int, exact: float = 0.01) -> Array:
    """Whether weights of a matrix with this root mean square are as large as an initialisation draws them: torch's own
    (1 / sqrt(3 fan in), of an embedding 1), He's by either fan, Glorot's, or the 0.02 of language models.

    To the share `exact`, or three standard errors of the `seen` elements.
    Source: He et al., arXiv:1502.01852; Glorot & Bengio 2010; Radford et al. 2019 (0.02).
    """
    rows, inputs, behind = shape[0], math.prod(shape[1:]), shape[0] * math.prod(shape[2:])
    drawn = (3 * inputs) ** -0.5, 1.0, (2 / inputs) ** 0.5, (2 / behind) ** 0.5, (2 / (inputs + rows)) ** 0.5, 0.02
    within = max(exact, 3 * 0.71 / seen**0.5)
    near = abs(rms / drawn[0] - 1) < within
    for each in drawn[1:]:
        near |= abs(rms / each - 1) < within
    return near


def renorm_coef(norm: Array, maxnorm: Any) -> Array:
    """Torch's renorm: `maxnorm / (norm + 1e-7)` where `norm > maxnorm`, else 1; a NaN norm gives 1.

    Source: `torch.renorm`.
    """
    return _where(norm > maxnorm, maxnorm / (norm + RENORM_EPS), 1.0)


def scale_back_coef(value: Array, limit: Any) -> Array:
    """`limit / value` where a finite `value` is above the limit, else 1.

    Sources: Kimi Team 2025, arXiv:2507.20534, section 2.2 (QK-Clip: the largest logit of a head); Gouk et al. 2021,
    arXiv:1804.04368, eq. 16 (the projection: the largest singular value of a weight).
    """
    return _where((value > limit) & (value < float("inf")), limit / value, 1.0)


def agc_coef(grad_norm: Array, weight_norm: Array, clipping: float, eps: float) -> Array:
    """Adaptive gradient clipping of one unit: its gradient may be `clipping` times its weights.

    `grad_norm` and `weight_norm` are norms of the same units. A unit of zero weights counts as having norm `eps`.
    Source: Brock et al. 2021, arXiv:2102.06171, eq. 3; constants as in timm `agc.py`.
    """
    max_norm = clipping * weight_norm.clip(min=eps)
    return _where(~(grad_norm < max_norm), max_norm / grad_norm.clip(min=1e-6), 1.0)


def zclip_limit(
    norm: Array, seen: Array, mean: Array, var: Array, z: Any, warmup: int, option: str
) -> tuple[Array, Array]:
    """ZClip's bound for this `norm` (the norm itself where it is no spike), and whether it is a spike.

    Source: Kumar et al. 2025, arXiv:2504.02507; bluorion-com/ZClip.
    """
    std = var.clip(min=0) ** 0.5
    score = (norm - mean) / (std + 1e-6)
    spike = (score > z) & ~(seen < warmup)
    return _where(spike, SPIKE_TARGETS[option](mean, std, z, score), norm), spike


def zclip_moments(
    norm: Array, hold: Array, seen: Array, mean: Array, var: Array, alpha: float, warmup: int
) -> tuple[Array, Array]:
    """ZClip's mean and variance after `norm` entered them; unchanged where `hold`.

    During the warm-up (`seen < warmup`) the variance is a sum of squared deviations. Source: as `zclip_limit`.
    """
    warming = seen < warmup
    running = mean + (norm - mean) / (seen + 1)  # Welford: exact mean and population variance of the warm-up
    squares = var + (norm - mean) * (norm - running)
    squares = _where(seen + 1 == warmup, squares / warmup, squares)
    moved = alpha * mean + (1 - alpha) * norm
    spread = alpha * var + (1 - alpha) * (norm - moved) ** 2
    return (_where(warming, running, _where(hold, mean, moved)), _where(warming, squares, _where(hold, var, spread)))


SPIKE_TARGETS: dict[str, Callable[..., Array]] = {
    "adaptive_scaling": lambda mean, std, z, score: mean + z * std / (score / z),
    "mean": lambda mean, std, z, score: mean,
    "percentile": lambda mean, std, z, score: mean + z * std,
}


def _where(condition: Array, yes: Array, no: Array) -> Array:
    if hasattr(yes, "where"):
        return yes.where(condition, no)
    import numpy as np  # late: `gradwatch run` reads a policy before the script, which may set what numpy looks at

    return np.where(condition, yes, no)

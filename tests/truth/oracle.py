"""The oracle: norms and clips of a step in float64 and numpy, written without gradwatch.

It copies the gradients that an optimizer is about to consume. Legend: L layers, in the order of the model; a layer
without a gradient is None, and NaN in arrays `[L]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Seen:
    """The true gradients of one step: un-scaled, accumulated, dense, float64; complex ones as pairs of reals."""

    step: int
    grads: tuple[Any, ...]  # [L] float64 arrays or None
    eps: tuple[float, ...]  # [L] the distance from 1 to the next number of each gradient's dtype
    rates: tuple[float, ...]  # learning rates of the step, by param group
    finite: bool


def copy(params, scale=1.0):
    """The gradients of `params`, divided by the loss `scale` that they still carry."""
    return tuple(_copy(p.grad, scale) for p in params)


def _copy(grad, scale):
    if grad is None:
        return None
    grad = grad.detach()
    if grad.is_sparse:  # coalesced twice over: duplicates of an index are one element, whatever order they came in
        grad = grad.coalesce().values()
    if grad.is_complex():
        grad = torch.view_as_real(grad)
    return np.asarray(grad.to("cpu", torch.float64, copy=True).numpy() / scale)


def see(step, params, rates, scale=1.0):
    """Look at the gradients of `params` now."""
    grads = copy(params, scale)
    eps = tuple(torch.finfo(p.dtype).eps for p in params)
    return Seen(step, grads, eps, tuple(rates), all(np.isfinite(g).all() for g in grads if g is not None))


def put(params, grads, scale=1.0):
    """Replace the gradients of `params` by `grads`, what a user who clips by hand would do."""
    for p, grad in zip(params, grads, strict=True):
        if grad is not None:
            if p.grad.is_sparse:
                p.grad = p.grad.coalesce()
            into = p.grad.values() if p.grad.is_sparse else p.grad
            into = torch.view_as_real(into) if into.is_complex() else into
            into.copy_(torch.as_tensor(grad * scale))


def norms(grads):
    """The L2 norm of each gradient, `[L]`."""
    return np.array([np.nan if g is None else np.sqrt(np.square(g).sum()) for g in grads])


def total(grads):
    """The joint L2 norm."""
    return np.sqrt(sum(np.square(g).sum() for g in grads if g is not None))


# ------------------------------------------------------------------------------------------------------------- clips
# Each takes the gradients of a step and returns those that the optimizer should get, and the coefficients `[L]`.


def nothing(grads, threshold):
    """No policy."""
    return grads, _coefs(grads, 1.0)


def by_global_norm(grads, threshold):
    """`torch.nn.utils.clip_grad_norm_`."""
    return _times(grads, _coefs(grads, np.minimum(1.0, threshold / (total(grads) + 1e-6))))


def by_norm(grads, threshold):
    """`tf.clip_by_norm` of each tensor."""
    return _times(grads, threshold / np.maximum(norms(grads), threshold))


def by_value(grads, threshold):
    """`torch.nn.utils.clip_grad_value_`, real and imaginary part each; norm after / norm before, 1 for 0 / 0."""
    after = tuple(None if g is None else np.clip(g, -threshold, threshold) for g in grads)
    with np.errstate(invalid="ignore", divide="ignore"):
        return after, np.where(norms(grads) == 0, 1.0, norms(after) / norms(grads))


def halved(grads, threshold):
    """A coefficient of 1/2, always: acting twice shows, as it does not in a clip."""
    return _times(grads, _coefs(grads, 0.5))


def _coefs(grads, value):
    return np.array([np.nan if g is None else value for g in grads])


def _times(grads, coefs):
    with np.errstate(invalid="ignore"):  # 0 * inf is NaN, in torch too
        return tuple(None if g is None else g * c for g, c in zip(grads, coefs, strict=True)), coefs

"""Clipping without a Watch: one call, beside `torch.nn.utils.clip_grad_norm_`."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from gradwatch.errors import PolicyError
from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.dropped import drop
from gradwatch.measure.gradients import Batch, gradients
from gradwatch.measure.layout import Layout
from gradwatch.policies import Policy, parse


@without_autograd
def clip_grads_(parameters: Tensor | Iterable[Tensor], policy: Policy | str) -> Tensor:
    """Apply a policy to the gradients of `parameters`, in place; returns their total L2 norm before it, 0-d.

    A drop-in beside `torch.nn.utils.clip_grad_norm_`. A parameter listed twice counts once. Where the policy says skip,
    the gradients are set to None (this reads one bool from the device). Layers are called `0`, `1`, ... for `only`.

    Raises:
        PolicyError: not a policy for gradients, or one that keeps a history between steps (that needs
            `gradwatch.watch`).
    """
    policy = parse(policy) if isinstance(policy, str) else policy
    if not isinstance(policy, Policy) or policy.acts_on_weights or policy.stateful:
        why = (
            "keeps a history between steps: use gradwatch.watch"
            if getattr(policy, "stateful", False)
            else "does not act on gradients"
        )
        raise PolicyError(f"clip_grads_: {policy!r} {why}")
    batch = _batch(parameters, policy.norm_types)
    if not batch.params:
        return _nothing()
    total = batch.norms().total()
    policy.apply(batch, {})
    batch.apply_pending()
    if batch.skipped is not None and bool(batch.skipped):
        drop(batch.params)
    return total


@without_autograd
def global_norm(parameters: Tensor | Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
    """The joint norm of the gradients of `parameters`, 0-d, accumulated in at least float32.

    Parameters without a gradient are left out; no gradients at all give 0. A parameter listed twice counts once.

    Source: `torch.nn.utils.get_total_norm`, `tf.linalg.global_norm`.
    """
    batch = _batch(parameters, (float(norm_type),))
    return batch.norms().total(float(norm_type)) if batch.params else _nothing()


def _nothing() -> Tensor:
    """As torch has it."""
    return torch.zeros((), dtype=torch.float32, device=torch.get_default_device())


def _batch(parameters: Tensor | Iterable[Tensor], norm_types: tuple[float, ...]) -> Batch:
    listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    unique = list({id(p): p for p in listed}.values())
    layout = Layout({str(i): p for i, p in enumerate(unique)})
    return Batch(layout, gradients(layout), norm_types=norm_types)

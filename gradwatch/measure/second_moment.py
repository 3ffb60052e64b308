"""How large a gradient is beside Adam's own estimate of it: what a step of Adam is made of.

Legend: L layers, in the order of the Layout.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwatch.measure.collectives import Sums
from gradwatch.measure.distributed import local
from gradwatch.measure.foreach import can_be_read
from gradwatch.measure.gradients import gradients
from gradwatch.measure.layout import Layout, sample


class _Moment(NamedTuple):
    """One layer of Adam's: its place, how many elements this rank has of it, samples of g and of v at the same places,
    and what the estimate is made with.
    """

    place: int
    numel: int
    gradient: Tensor
    squares: Tensor
    beta2: float
    eps: float
    step: Any


def adam_rms(layout: Layout, optimizers: Sequence[Optimizer]) -> Sums[Tensor | None]:
    """The root mean square of g / sqrt(v̂) of each layer after a step, `[L]`; NaN where Adam keeps no such v.

    g is the gradient that the step was taken with, and v̂ = v / (1 - beta2^t), at least eps^2. About 1 where v knows
    the gradients; Wortsman et al. 2023 (arXiv:2304.13013) divide the learning rate by it where it is larger. From a
    sample of at most 4,096 elements of what a rank has of a layer. None where no optimizer has such a v.
    """
    if not any("betas" in group for o in optimizers for group in o.param_groups):
        return None
    exact = torch.float32 if layout.device.type == "mps" else torch.float64
    none = layout.constant(("none", exact), lambda: torch.zeros((), dtype=exact, device=layout.device))
    norms: list[Tensor | None] = [None] * len(layout.params)
    for group in _alike(_moments(layout, optimizers)):
        found = _unbiased(_ratio_norms(group).to(layout.device, exact), group)
        for moment, norm in zip(group, found.unbind(), strict=True):
            norms[moment.place] = norm
    squares = torch.stack([none if norm is None else norm for norm in norms]).square()
    present = layout.which([norm is not None for norm in norms])
    if layout.sharding is not None:
        squares, there = (yield from layout.sharding.add(torch.stack([squares, present.to(exact)]))).unbind()
        present = there > 0
    return torch.where(present, (squares / layout.numel()).sqrt(), torch.nan).to(layout.dtype)


def _moments(layout: Layout, optimizers: Sequence[Optimizer]) -> Iterator[_Moment]:
    kept: dict[int, tuple[Tensor, float, float, Any]] = {}  # by parameter: v on this rank, beta2, eps and the step
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for p in group["params"] if "betas" in group else ():
                state = optimizer.state.get(p, {})
                v = state.get("exp_avg_sq")
                if not isinstance(v, Tensor) or v.shape != p.shape or "step" not in state:
                    continue
                v = local(v)
                if type(v) is Tensor and v.is_floating_point():  # not kept as codes
                    kept[id(p)] = v, float(group["betas"][1]), float(group.get("eps", 0.0)), state["step"]
    squares = layout.slices([kept[id(p)][0] if id(p) in kept else None for p in layout.whole.values()])
    grads = gradients(layout, layout.held, will_change=False)
    for place, (p, gradient, v) in enumerate(zip(layout.params, grads, squares, strict=True)):
        if v is not None and gradient is not None and gradient.shape == v.shape:  # not sparse, nor complex
            own, other = _samples(gradient, v)
            yield _Moment(place, v.numel(), own, other, *kept[id(p)][1:])


def _samples(gradient: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """Elements of both at the same places."""
    if gradient.stride() != squares.stride():
        gradient, squares = gradient.contiguous(), squares.contiguous()
    return sample(gradient), sample(squares)


def _alike(moments: Iterator[_Moment]) -> Iterable[list[_Moment]]:
    """Those that are looked at together: of one device and dtype, with the same settings."""
    kinds: dict[object, list[_Moment]] = {}
    for m in moments:
        kinds.setdefault((m.gradient.device, m.gradient.dtype, m.squares.dtype, m.eps, m.beta2), []).append(m)
    return kinds.values()


def _ratio_norms(group: list[_Moment]) -> Tensor:
    """The norm of g / max(sqrt(v), eps) of each, as its sample has it."""
    wide = torch.promote_types(torch.promote_types(group[0].gradient.dtype, group[0].squares.dtype), torch.float32)
    roots = torch.cat([m.squares for m in group]).to(wide).sqrt_().clamp_min_(max(group[0].eps, torch.finfo(wide).tiny))
    ratios = torch.cat([m.gradient for m in group]).to(wide) / roots
    norms = torch._foreach_norm(torch.split(ratios, [m.squares.numel() for m in group]))
    # each of a sample stands for several
    shares = [math.sqrt(m.numel / max(1, m.squares.numel())) for m in group]
    if any(share != 1.0 for share in shares):
        torch._foreach_mul_(norms, shares)
    return torch.stack(norms)


def _unbiased(norms: Tensor, group: list[_Moment]) -> Tensor:
    """The norms by v̂ in place of v, `[M]`: t stands on the host as a rule, and is not read from a device."""
    steps, beta2 = [m.step for m in group], group[0].beta2
    far = [isinstance(step, Tensor) and not can_be_read(step) for step in steps]
    if all(far):
        return norms * (1 - beta2 ** torch.stack(steps).to(norms)).sqrt()
    if any(far):
        raise ValueError("some steps are counted on a device and some on the host")
    roots = [math.sqrt(1 - beta2 ** float(step)) for step in steps]
    return norms * roots[0] if len({*roots}) == 1 else torch.stack(torch._foreach_mul(norms.unbind(), roots))

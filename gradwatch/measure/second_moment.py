"""How large a gradient is beside Adam's own estimate of it: what a step of Adam is made of.

Legend: L layers, in the order of the Layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwatch.measure.collectives import Sums
from gradwatch.measure.distributed import local
from gradwatch.measure.foreach import can_be_read
from gradwatch.measure.gradients import gradients
from gradwatch.measure.layout import Layout

PIECE = 1 << 24  # elements that are looked at together: what is held meanwhile is of their size, or the largest layer's


class _Moment(NamedTuple):
    """One layer of Adam's: its place, the gradient g, v, and what the estimate is made with."""

    place: int
    gradient: Tensor
    squares: Tensor
    beta2: float
    eps: float
    step: Any


def adam_rms(layout: Layout, optimizers: Sequence[Optimizer]) -> Sums[Tensor | None]:
    """The root mean square of g / sqrt(v̂) of each layer after a step, `[L]`; NaN where Adam keeps no such v.

    g is the gradient that the step was taken with, and v̂ = v / (1 - beta2^t), at least eps^2. About 1 where v knows
    the gradients; Wortsman et al. 2023 (arXiv:2304.13013) divide the learning rate by it where it is larger. None where
    no optimizer has such a v.
    """
    if not any("betas" in group for o in optimizers for group in o.param_groups):
        return None
    exact = torch.float32 if layout.device.type == "mps" else torch.float64
    squares = torch.zeros(len(layout.params), dtype=exact, device=layout.device)
    present = torch.zeros_like(squares)
    for group in _pieces([*_moments(layout, optimizers)]):
        places = layout.constant(("places", *(m.place for m in group)), lambda g=group: _places(layout, g))  # type: ignore[misc]
        sums = torch.stack([norm.to(layout.device, exact) for norm in _ratio_norms(group)]).square()
        squares.index_copy_(0, places, sums * _unbiased(layout, group, exact))
        present.index_fill_(0, places, 1.0)
    if layout.sharding is not None:
        squares, present = (yield from layout.sharding.add(torch.stack([squares, present]))).unbind()
    return torch.where(present > 0, (squares / layout.numel()).sqrt(), torch.nan).to(layout.dtype)


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
            yield _Moment(place, gradient, v, *kept[id(p)][1:])


def _pieces(moments: list[_Moment]) -> Iterator[list[_Moment]]:
    """Those that are looked at together: of one device and dtype, with the same settings, and not too large."""
    kinds: dict[object, list[_Moment]] = {}
    for m in moments:
        key = m.gradient.device, m.gradient.dtype, m.squares.dtype, m.eps, m.beta2
        held = kinds.setdefault(key, [])
        if held and sum(other.squares.numel() for other in held) + m.squares.numel() > PIECE:
            yield kinds.pop(key)
            held = kinds.setdefault(key, [])
        held.append(m)
    yield from kinds.values()


def _ratio_norms(group: list[_Moment]) -> Sequence[Tensor]:
    """The norm of g / max(sqrt(v), eps) of each."""
    wide = torch.promote_types(torch.promote_types(group[0].gradient.dtype, group[0].squares.dtype), torch.float32)
    roots: Any = torch._foreach_sqrt([m.squares.to(wide) for m in group])
    torch._foreach_clamp_min_(roots, max(group[0].eps, torch.finfo(wide).tiny))
    ratios = torch._foreach_div([m.gradient.to(wide) for m in group], roots)
    return torch._foreach_norm(ratios)


def _unbiased(layout: Layout, group: list[_Moment], exact: torch.dtype) -> Tensor:
    """1 - beta2^t of each, on the layout's device: t stands on the host as a rule, and is not read from a device."""
    steps, beta2 = [m.step for m in group], group[0].beta2
    far = [isinstance(step, Tensor) and not can_be_read(step) for step in steps]
    if all(far):
        return (1 - beta2 ** torch.stack(steps).to(exact)).to(layout.device)
    if any(far):
        raise ValueError("some steps are counted on a device and some on the host")
    counts = [float(step) for step in steps]
    if len({*counts}) == 1:
        return torch.full((len(counts),), 1 - beta2 ** counts[0], dtype=exact, device=layout.device)
    return layout.numbers([1 - beta2**count for count in counts], exact)


def _places(layout: Layout, group: list[_Moment]) -> Tensor:
    return layout.numbers([m.place for m in group], torch.int64)

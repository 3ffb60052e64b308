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
from gradwatch.measure.exact import exact_dtype
from gradwatch.measure.foreach import can_be_read
from gradwatch.measure.gradients import gradients
from gradwatch.measure.layout import Layout, sample
from gradwatch.measure.samples import Samples


class _Moment(NamedTuple):
    """One layer of Adam's: its place, g and v as this rank has them, and what the estimate is made with."""

    place: int
    gradient: Tensor
    squares: Tensor
    beta2: float
    eps: float
    step: Any


def adam_rms(layout: Layout, optimizers: Sequence[Optimizer], samples: Samples | None) -> Sums[Tensor | None]:
    """The root mean square of g / sqrt(v̂) of each layer after a step, `[L]`; NaN where Adam keeps no such v.

    g is the gradient that the step was taken with, and v̂ = v / (1 - beta2^t), at least eps^2. About 1 where v knows
    the gradients; Wortsman et al. 2023 (arXiv:2304.13013) divide the learning rate by it where it is larger. From a
    sample of at most 4,096 elements of what a rank has of a layer, of all at once in `samples` of two rows where they
    are alike. None where no optimizer has such a v.
    """
    if not any("betas" in group for o in optimizers for group in o.param_groups):
        return None
    exact = exact_dtype(layout.device)
    moments = [*_moments(layout, optimizers)]
    if samples is not None and _are_alike(moments, samples):
        norms = _unbiased(_ratio_norms_at_once(moments, samples).to(exact), moments)
    else:
        norms = _norms_by_kind(layout, moments, exact)
    squares, places = norms.square(), {m.place for m in moments}
    present = layout.which([place in places for place in layout.every])
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
                v = v if type(v) is Tensor else local(v)  # of every layer on every step: no call for nothing
                if type(v) is Tensor and v.is_floating_point():  # not kept as codes
                    kept[id(p)] = v, float(group["betas"][1]), float(group.get("eps", 0.0)), state["step"]
    squares = layout.slices([kept[id(p)][0] if id(p) in kept else None for p in layout.whole.values()])
    grads = gradients(layout, layout.held, will_change=False)
    for place, (p, gradient, v) in enumerate(zip(layout.params, grads, squares, strict=True)):
        if v is not None and gradient is not None and gradient.shape == v.shape:  # not sparse, nor complex
            yield _Moment(place, gradient, v, *kept[id(p)][1:])


def _are_alike(moments: Sequence[_Moment], samples: Samples) -> bool:
    """Whether they are those of all layers, as their weights are, with one setting and one order of memory."""
    return (
        len(moments) == len(samples.sizes)
        and len({(m.eps, m.beta2) for m in moments}) == 1
        and samples.fit([m.gradient for m in moments])
        and samples.fit([m.squares for m in moments])
        and all(m.gradient.stride() == m.squares.stride() for m in moments)
    )


def _ratio_norms_at_once(moments: Sequence[_Moment], samples: Samples) -> Tensor:
    """As `_ratio_norms`, of all layers, `[L]`."""
    samples.look(0, [m.gradient for m in moments])
    samples.look(1, [m.squares for m in moments])
    of_gradients, squares = samples.rows().unbind()
    ratios = of_gradients / squares.sqrt().clamp_min_(max(moments[0].eps, torch.finfo(squares.dtype).tiny))
    layout = samples.layout
    shares = (_share(m, size) for m, size in zip(moments, samples.sizes, strict=True))
    return samples.norms(ratios[None])[0] * layout.constant("shares", lambda: layout.numbers([*shares], layout.dtype))


def _share(moment: _Moment, size: int) -> float:
    """By what the norm of a sample of this size is multiplied: each of its elements stands for several."""
    return math.sqrt(moment.squares.numel() / max(1, size))


def _norms_by_kind(layout: Layout, moments: Sequence[_Moment], exact: torch.dtype) -> Tensor:
    """The norms by v̂ of each layer, `[L]`, a kind after the other; 0 where Adam keeps no v."""
    none = layout.constant(("none", exact), lambda: torch.zeros((), dtype=exact, device=layout.device))
    norms = [none] * len(layout.params)
    for group in _alike(moments):
        found = _unbiased(_ratio_norms(group).to(layout.device, exact), group)
        for moment, norm in zip(group, found.unbind(), strict=True):
            norms[moment.place] = norm
    return torch.stack(norms)


def _samples(gradient: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """Elements of both at the same places."""
    if gradient.stride() != squares.stride():
        gradient, squares = gradient.contiguous(), squares.contiguous()
    return sample(gradient), sample(squares)


def _alike(moments: Iterable[_Moment]) -> Iterable[list[_Moment]]:
    """Those that are looked at together: of one device and dtype, with the same settings."""
    kinds: dict[object, list[_Moment]] = {}
    for m in moments:
        kinds.setdefault((m.gradient.device, m.gradient.dtype, m.squares.dtype, m.eps, m.beta2), []).append(m)
    return kinds.values()


def _ratio_norms(group: list[_Moment]) -> Tensor:
    """The norm of g / max(sqrt(v), eps) of each, as its sample has it."""
    wide = torch.promote_types(torch.promote_types(group[0].gradient.dtype, group[0].squares.dtype), torch.float32)
    of_gradients, squares = zip(*(_samples(m.gradient, m.squares) for m in group), strict=True)
    roots = torch.cat(squares).to(wide).sqrt_().clamp_min_(max(group[0].eps, torch.finfo(wide).tiny))
    ratios = torch.cat(of_gradients).to(wide) / roots
    norms = torch._foreach_norm(torch.split(ratios, [*map(Tensor.numel, squares)]))
    shares = [_share(m, part.numel()) for m, part in zip(group, squares, strict=True)]
    if any(share != 1.0 for share in shares):
        torch._foreach_mul_(norms, shares)
    return torch.stack(norms)


def _unbiased(norms: Tensor, group: Sequence[_Moment]) -> Tensor:
    """The norms by v̂ in place of v, `[M]`: t stands on the host as a rule, and is not read from a device."""
    steps, beta2 = [m.step for m in group], group[0].beta2
    far = [isinstance(step, Tensor) and not can_be_read(step) for step in steps]
    if all(far):
        return norms * (1 - beta2 ** torch.stack(steps).to(norms)).sqrt()
    if any(far):
        raise ValueError("some steps are counted on a device and some on the host")
    roots = [math.sqrt(1 - beta2 ** float(step)) for step in steps]
    return norms * roots[0] if len({*roots}) == 1 else torch.stack(torch._foreach_mul(norms.unbind(), roots))

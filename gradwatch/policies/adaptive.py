"""Thresholds that follow the run: AGC, AutoClip, ZClip, AdaGC and the element-wise history clip.

A non-finite norm never enters a state: the Watch keeps the old state for a non-finite or skipped step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gradwatch import formulas
from gradwatch.errors import PolicyError
from gradwatch.policies.base import (
    MAX_WARMUP,
    MAX_WINDOW,
    Decision,
    NormPolicy,
    Policy,
    State,
    number,
    set_fields,
    whole,
)
from gradwatch.policies.clip import clamp_

if TYPE_CHECKING:
    from torch import Tensor

    from gradwatch.measure.gradients import Batch
    from gradwatch.measure.layout import Norms


@dataclass(frozen=True, repr=False)
class AGC(Policy):
    """Adaptive gradient clipping: each unit's gradient norm may be `clipping` times its weight norm.

    A unit is a row of the weight (everything but dimension 0); a tensor of one dimension is one unit. Weight norms
    below `eps` count as `eps`, so that zero-initialised units can move. A NaN or inf stays inside its unit.
    The paper leaves the final linear layer alone: `only("<body>.*", AGC(0.01))`.

    Source: Brock et al. 2021, arXiv:2102.06171; the unit and the constants as in timm `agc.py`.

    Raises:
        PolicyError: `clipping` is not above 0, or `eps` is negative.
    """

    clipping: float = 0.01
    eps: float = 1e-3
    per_layer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        set_fields(
            self, clipping=number(self.clipping, "clipping", low=0, strict=True), eps=number(self.eps, "eps", low=0)
        )

    def apply(self, batch: Batch, state: State) -> State:
        """Scale each unit of each tensor."""
        for grad, weight in zip(batch.tensors, batch.weights, strict=True):
            if grad is not None and grad.shape != weight.shape:  # the stored rows of a sparse gradient
                raise PolicyError(
                    "AGC needs dense gradients: it compares each row with its weights. "
                    "Use only(...) to leave out layers with sparse gradients"
                )
        norms = [batch.unit_norms(units), batch.unit_norms(units, weights=True)]
        batch.scale_units(lambda grad, weight: formulas.agc_coef(grad, weight, self.clipping, self.eps), norms)
        return {}


def units(tensor: Tensor) -> tuple[int, ...]:
    """The dimensions that make one unit: all but the first; none (the whole tensor) for a tensor of one dimension."""
    return tuple(range(1, tensor.dim()))


@dataclass(frozen=True, repr=False)
class AutoClip(NormPolicy):
    """Clip the global norm to the `percentile` of the norms seen so far (the last `window`), the current one included.

    The coefficient is torch's, `c / (norm + 1e-6)`. With the default percentile 10 about 90 % of steps are clipped.

    Source: Seetharaman et al. 2020, arXiv:2007.14469; pseeth/autoclip (whose history is unbounded).

    Raises:
        PolicyError: `percentile` outside 0 to 100, or `window` outside 1 to 1,000,000.
    """

    percentile: float = 10.0
    window: int = 10_000
    stateful: ClassVar[bool] = True

    def __post_init__(self) -> None:
        set_fields(
            self,
            percentile=number(self.percentile, "percentile", low=0, high=100),
            window=whole(self.window, "window", low=1, high=MAX_WINDOW),
        )

    def init(self, batch: Batch) -> State:
        """`norms [window]` (inf where empty, so that it sorts last) and how many were seen."""
        return history(batch, self.window)

    def decide(self, norms: Norms, state: State) -> Decision:
        """One coefficient for all layers, 0-d."""
        total = norms.total()
        new = push(state, total)
        place = (self.percentile / 100) * (new["seen"].clip(max=self.window) - 1)
        ordered, low = new["norms"].sort().values, place.floor()
        at, above = (ordered.gather(0, i.long().view(1)).squeeze(0) for i in (low, place.ceil()))
        return Decision(formulas.clip_coef(total, at.lerp(above, (place - low).to(at.dtype))), state=new)


def history(batch: Batch, window: int) -> State:
    """An empty ring of norms."""
    return {"norms": batch.layout.full((window,), math.inf), "seen": batch.layout.counter()}


def push(state: State, norm: Tensor) -> State:
    """The ring with one more norm, the oldest overwritten."""
    norms, seen = state["norms"], state["seen"]
    slot = seen.remainder(len(norms)).long().view(1)
    return {"norms": norms.index_copy(0, slot, norm.to(norms.dtype).view(1)), "seen": seen + 1}


@dataclass(frozen=True, repr=False)
class ZClip(NormPolicy):
    """Clip the global norm when it is more than `z` standard deviations above its moving average.

    Mean and variance are moving averages (`alpha`), started from the first `warmup` norms. On a spike the norm is cut
    to `mean + z·σ / (zscore / z)` (`option="adaptive_scaling"`: the larger the spike, the closer to the mean), to the
    mean (`"mean"`), or always to `mean + z·σ` (`"percentile"`); the cut norm, not the spike, enters the averages, or
    nothing does with `skip_update_on_spike`. `max_norm` also caps every step, warm-up included (the authors' code has
    1.0 here; None studies ZClip itself).

    Source: Kumar et al. 2025, arXiv:2504.02507; bluorion-com/ZClip, whose averages one NaN norm destroys.

    Raises:
        PolicyError: a setting out of range.
    """

    z: float = 2.5
    alpha: float = 0.97
    warmup: int = 25
    option: str = "adaptive_scaling"
    max_norm: float | None = None
    skip_update_on_spike: bool = False
    stateful: ClassVar[bool] = True

    def __post_init__(self) -> None:
        set_fields(
            self,
            z=number(self.z, "z", low=0, strict=True),
            alpha=number(self.alpha, "alpha", low=0, high=1),
            warmup=whole(self.warmup, "warmup", low=2, high=MAX_WARMUP),
        )
        if self.max_norm is not None:
            set_fields(self, max_norm=number(self.max_norm, "max_norm", low=0))
        if self.option not in formulas.SPIKE_TARGETS:
            raise PolicyError(f"option={self.option!r}: wanted one of {', '.join(map(repr, formulas.SPIKE_TARGETS))}")

    def init(self, batch: Batch) -> State:
        """Number of norms seen, their mean, and their variance (during warm-up: the sum of squared deviations)."""
        return {name: batch.layout.counter() for name in ("seen", "mean", "var")}

    def decide(self, norms: Norms, state: State) -> Decision:
        """One coefficient for all layers, 0-d."""
        total, seen, mean, var = norms.total(), state["seen"], state["mean"], state["var"]
        norm = total.to(mean.dtype)
        threshold, spike = formulas.zclip_limit(norm, seen, mean, var, self.z, self.warmup, self.option)
        limit = threshold if self.max_norm is None else threshold.clip(max=self.max_norm)
        coef = formulas.clip_coef(norm, limit).where(norm > limit, 1.0)
        hold = spike if self.skip_update_on_spike else spike.new_zeros(())
        mean, var = formulas.zclip_moments(threshold, hold, seen, mean, var, self.alpha, self.warmup)
        return Decision(coef.to(total.dtype), state={"seen": seen + 1, "mean": mean, "var": var})


@dataclass(frozen=True, repr=False)
class AdaGC(NormPolicy):
    """Clip each tensor to `clip` times the moving average of its own clipped norms.

    For the first `warmup - 1` steps all gradients are clipped together to `warmup_norm`, and each tensor's average
    starts as the smallest clipped norm it had.

    Source: Wang et al. 2025, arXiv:2502.11034; constants of the authors' README.

    Raises:
        PolicyError: a setting out of range.
    """

    clip: float = 1.05
    beta: float = 0.98
    warmup: int = 100
    warmup_norm: float = 1.0
    stateful: ClassVar[bool] = True

    def __post_init__(self) -> None:
        set_fields(
            self,
            clip=number(self.clip, "clip", low=0, strict=True),
            beta=number(self.beta, "beta", low=0, high=1),
            warmup=whole(self.warmup, "warmup", low=0, high=MAX_WARMUP),
            warmup_norm=number(self.warmup_norm, "warmup_norm", low=0),
        )

    def init(self, batch: Batch) -> State:
        """Number of steps seen, and each layer's average `[L]` (inf until the layer has had a gradient)."""
        return {"seen": batch.layout.counter(), "average": batch.layout.full((len(batch.names),), math.inf)}

    def decide(self, norms: Norms, state: State) -> Decision:
        """Coefficients `[L]`."""
        seen, average = state["seen"], state["average"]
        warming = seen + 1 < self.warmup  # the authors count steps from 1
        own = (self.clip * average / norms.l2).clip(max=1.0).nan_to_num(nan=1.0)  # 0/0, inf/inf: nothing to clip
        own = own.where(norms.l2 == norms.l2, math.nan)  # a NaN norm, which equals nothing, stays NaN
        coef = formulas.clip_coef(norms.total(), self.warmup_norm, eps=1e-8).expand_as(own).where(warming, own)
        clipped = norms.l2 * coef
        moved = clipped.where(average.isinf(), self.beta * average + (1 - self.beta) * clipped)
        new = average.minimum(clipped).where(warming, moved)
        return Decision(coef, state={"seen": seen + 1, "average": new.where(norms.present, average)})


@dataclass(frozen=True, repr=False)
class ClipByHistory(Policy):
    """Clamp each element to `multiplier` times the running maximum of its own gradient, plus `epsilon`.

    The running maximum is Adamax's: `v ← max(0.999·v, |g|)` of the clipped gradient. An optimizer that keeps it
    (`exp_inf` of `torch.optim.Adamax`) is asked for it; otherwise the policy keeps its own, one more tensor per
    parameter. It starts at 0, so the first step clips to `epsilon` and the bound grows at most by `multiplier` a step:
    a warm-up of 30 to 50 steps is built in.

    Source: Freivalds & Liepins 2017, arXiv:1702.08727; LUMII-Syslab/DNGPU `adamax.py`.

    Raises:
        PolicyError: `multiplier` or `epsilon` is not above 0.
    """

    multiplier: float = 1.2
    epsilon: float = 1e-4
    stateful: ClassVar[bool] = True
    decay: ClassVar[float] = 0.999
    per_layer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        set_fields(
            self,
            multiplier=number(self.multiplier, "multiplier", low=0, strict=True),
            epsilon=number(self.epsilon, "epsilon", low=0, strict=True),
        )

    def init(self, batch: Batch) -> State:
        """A running maximum per layer, shaped like its weights (this rank's part), complex ones seen as real."""
        return {name: w.detach().clone().zero_() for name, w in zip(batch.names, batch.weights, strict=True)}

    def apply(self, batch: Batch, state: State) -> State:
        """Clamp in place, and move the maxima that are the policy's own."""
        slots, new = batch.slot("exp_inf"), dict(state)

        def clip(i: int, grad: Tensor) -> Tensor:
            slot, name = slots[i], batch.names[i]
            largest = slot if slot is not None else state[name] if name in state else grad.new_zeros(grad.shape)
            if largest.shape != grad.shape:
                raise PolicyError(
                    f"ClipByHistory: the gradient of {name} is sparse; it needs dense gradients. "
                    "Use only(...) to leave that layer out"
                )
            bound = largest * self.multiplier + self.epsilon
            outside = clamp_(grad, -bound, bound)
            if slot is None:
                new[name] = (self.decay * largest).maximum(grad.abs())
            else:
                new.pop(name, None)  # the optimizer keeps it from now on
            return outside

        batch.change(clip)
        return new

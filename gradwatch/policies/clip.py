"""Fixed thresholds: by value, by each tensor's norm, by the average norm, by the global norm, and your own function."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gradwatch import formulas
from gradwatch.errors import PolicyError
from gradwatch.policies.base import Decision, NormPolicy, Policy, State, number, set_fields
from gradwatch.policies.schedule import divisible, first_state, moved, now, threshold
from gradwatch.policies.threshold import Ramp

if TYPE_CHECKING:
    from torch import Tensor

    from gradwatch.measure.gradients import Batch
    from gradwatch.measure.layout import Norms

SMALLEST = 1e-30  # max_norm whose reciprocal is still well within float32


@dataclass(frozen=True, repr=False)
class ClipByGlobalNorm(NormPolicy):
    """Scale all gradients together so that their joint norm is at most `max_norm`.

    Follows torch: coefficient `max_norm / (norm + 1e-6)`, at most 1; an inf norm gives 0, a NaN norm NaN. The joint
    norm is the `norm_type`-norm of the layers' norms, measured in at least float32 (torch measures half precision in
    half precision, where a norm above 65,504 is inf).

    Source: Pascanu et al. 2013, arXiv:1211.5063; `torch.nn.utils.clip_grad_norm_`.

    Raises:
        PolicyError: `max_norm` is negative, or neither a number nor a ramp, or `norm_type` is not above 0.
    """

    max_norm: float
    norm_type: float = 2.0

    def __post_init__(self) -> None:
        norm_type = number(self.norm_type, "norm_type", low=0, strict=True)
        set_fields(
            self, max_norm=threshold(self.max_norm, "max_norm"), norm_type=norm_type, norm_types=(norm_type,),
            stateful=isinstance(self.max_norm, Ramp),
        )  # fmt: skip

    def init(self, batch: Batch) -> State:
        """The steps of a ramp."""
        return first_state(self.max_norm, batch)

    def decide(self, norms: Norms, state: State) -> Decision:
        """One coefficient for all layers, 0-d."""
        limit = now(self.max_norm, state, norms.l2)
        return Decision(formulas.clip_coef(norms.total(self.norm_type), limit), state=moved(self.max_norm, state))

    def apply(self, batch: Batch, state: State) -> State:
        """As it decides; whoever can divide need not know the coefficient, which is fewer kernels."""
        limit = self.max_norm
        if isinstance(limit, Ramp) or not SMALLEST < limit < math.inf:
            return super().apply(batch, state)
        batch.scale_to(limit, self.norm_type)
        return {}


@dataclass(frozen=True, repr=False)
class ClipByNorm(Policy):
    """Scale each tensor so that its own norm is at most `max_norm`; with `axes`, each slice over those axes.

    Follows TensorFlow, which alone has it: coefficient `max_norm / max(norm, max_norm)`, exactly 1 up to the
    threshold. Unlike TensorFlow the product `t * max_norm` is never formed, so float16 does not overflow.
    A tensor without one of the `axes` (a bias, for `axes=(1,)`) is left alone.

    Source: `tf.clip_by_norm`.

    Raises:
        PolicyError: `max_norm` is negative, or neither a number nor a ramp, or `axes` are not whole numbers.
    """

    max_norm: float
    axes: tuple[int, ...] | None = None
    per_layer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        axes = (self.axes,) if isinstance(self.axes, int) else self.axes
        if axes is not None and not (axes and all(type(a) is int for a in axes)):
            raise PolicyError(
                f"axes={self.axes!r}: wanted dimension numbers such as (1,), or None for the whole tensor"
            )
        limit = threshold(self.max_norm, "max_norm")
        set_fields(self, max_norm=limit, axes=axes and tuple(axes), stateful=isinstance(limit, Ramp))

    def init(self, batch: Batch) -> State:
        """The steps of a ramp."""
        return first_state(self.max_norm, batch)

    def apply(self, batch: Batch, state: State) -> State:
        """Whole tensors need only their norms."""

        def coef(norms: Tensor) -> Tensor:
            limit = divisible(self.max_norm, state, norms, batch.layout)
            found: Tensor = formulas.clip_coef_exact(norms, limit)
            return found

        if self.axes is None:
            batch.scale(coef(batch.norms().l2))
        else:
            batch.scale_units(coef, [batch.unit_norms(self._slices)])
        return moved(self.max_norm, state)

    def _slices(self, grad: Tensor) -> tuple[int, ...] | None:
        axes = self.axes or ()
        return axes if all(-grad.dim() <= axis < grad.dim() for axis in axes) else None


@dataclass(frozen=True, repr=False)
class ClipByAverageNorm(NormPolicy):
    """Scale each tensor so that its norm divided by its number of elements is at most `max_norm`.

    TensorFlow's definition: the "average norm" is ‖t‖₂ / numel, not the root mean square.

    Source: `tf.compat.v1.clip_by_average_norm`.

    Raises:
        PolicyError: `max_norm` is negative, or neither a number nor a ramp.
    """

    max_norm: float
    per_layer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        limit = threshold(self.max_norm, "max_norm")
        set_fields(self, max_norm=limit, stateful=isinstance(limit, Ramp))

    def init(self, batch: Batch) -> State:
        """The steps of a ramp."""
        return first_state(self.max_norm, batch)

    def decide(self, norms: Norms, state: State) -> Decision:
        """One coefficient per layer, `[L]`."""
        average = norms.l2 / norms.numel.clip(min=1)
        limit = divisible(self.max_norm, state, average, norms.layout)
        return Decision(formulas.clip_coef_exact(average, limit), state=moved(self.max_norm, state))


@dataclass(frozen=True, repr=False)
class ClipByValue(Policy):
    """Clamp every element to `[min, max]`; one number `c` means `[-c, c]`. inf becomes the bound, NaN stays NaN.

    It changes the direction of the gradient, not only its length.

    Source: `torch.nn.utils.clip_grad_value_`, `tf.clip_by_value`.

    Raises:
        PolicyError: a single negative number, or `min` above `max`.
    """

    min: float
    max: float = None  # type: ignore[assignment]  # one number given: filled in below
    per_layer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.max is None:
            bound = number(self.min, "ClipByValue's bound", low=0)
            set_fields(self, min=-bound, max=bound)
        set_fields(self, min=number(self.min, "min"), max=number(self.max, "max"))
        if self.min > self.max:
            raise PolicyError(f"ClipByValue({self.min}, {self.max}): min is above max; swap them")

    def __repr__(self) -> str:
        return f"ClipByValue({self.max})" if self.min == -self.max else f"ClipByValue({self.min}, {self.max})"

    def apply(self, batch: Batch, state: State) -> State:
        """Clamp in place; the share of elements outside the bounds is recorded."""
        batch.change(lambda _, t: clamp_(t, self.min, self.max))
        return {}


@dataclass(frozen=True, repr=False)
class ClipWith(Policy):
    """Your own function of one gradient tensor: `fn(grad) -> grad`, called for each layer that has a gradient.

    It may return a new tensor or change the one it is given and return that. It must not read values back to Python
    (`.item()`, `if tensor > ...`), or every step waits for the device. A function cannot be written as a policy text:
    `parse` refuses `ClipWith`.

    Raises:
        PolicyError: `fn` is not callable; at `watch()`, that parameters are spread over processes; at the first step,
            that it returned no tensor of the gradient's shape.
    """

    fn: Callable[[Tensor], Tensor]
    per_layer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise PolicyError(f"ClipWith({self.fn!r}): wanted a function that takes a gradient and returns one")

    def init(self, batch: Batch) -> State:
        """No state.

        Raises:
            PolicyError: the parameters are spread over processes.
        """
        if batch.layout.sharding is not None:
            raise PolicyError(
                f"{self!r}: parameters are spread over processes, and your function would see only this rank's part of "
                "a gradient; subclass NormPolicy, which gets the norms of whole layers"
            )
        return {}

    def apply(self, batch: Batch, state: State) -> State:
        """Replace each gradient by what the function returns."""
        batch.change(lambda _, t: self._replace(t))
        return {}

    def _replace(self, grad: Tensor) -> Tensor:
        before = grad.clone()
        after = self.fn(grad)
        is_tensor = hasattr(after, "detach")
        if not is_tensor or after.shape != grad.shape:
            found = f"shape {tuple(after.shape)}" if is_tensor else repr(after)
            raise PolicyError(
                f"ClipWith: {self!r} returned {found} for a gradient of shape {tuple(grad.shape)}; "
                "return a tensor of the same shape"
            )
        if after is not grad:
            grad.copy_(after)
        return grad != before


def clamp_(grad: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """Clamp in place; returns which elements were outside."""
    outside = (grad < low) | (grad > high)
    grad.clamp_(low, high)  # type: ignore[arg-type]
    return outside

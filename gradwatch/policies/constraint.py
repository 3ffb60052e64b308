"""Constraints on the weights, applied after the step: on norms of units, singular values, logits of attention heads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from gradwatch import formulas
from gradwatch.policies.base import MAX_DIM, Policy, State, number, set_fields, whole

if TYPE_CHECKING:
    from torch import Tensor

    from gradwatch.measure.gradients import Batch
    from gradwatch.measure.weight_batch import WeightBatch


@dataclass(frozen=True, repr=False)
class Renorm(Policy):
    """After the step, scale every slice along `dim` whose p-norm is above `maxnorm` back to it.

    Exactly `torch.renorm(weight, p, dim, maxnorm)`: factor `maxnorm / (norm + 1e-7)`, strictly above only, a NaN slice
    untouched. Parameters of fewer than two dimensions (biases, norms) are left alone.

    Source: `torch.renorm`.

    Raises:
        PolicyError: a setting out of range.
    """

    p: float
    dim: int
    maxnorm: float
    acts_on_weights: ClassVar[bool] = True

    def __post_init__(self) -> None:
        set_fields(
            self,
            p=number(self.p, "p", low=0, strict=True),
            dim=whole(self.dim, "dim", low=-MAX_DIM, high=MAX_DIM - 1),
            maxnorm=number(self.maxnorm, "maxnorm", low=0),
        )

    def init(self, batch: Batch) -> State:
        """No state.

        Raises:
            PolicyError: the slices are spread over ranks in a way that hides them.
        """
        batch.layout.check_units()
        return {}

    def __repr__(self) -> str:
        return f"Renorm({_text(self.p)}, {self.dim}, {self.maxnorm})"

    def apply(self, batch: Batch, state: State) -> State:
        """Scale the slices in place; the share that was scaled is the layer's `renorm_rate`."""
        renorm(batch, self.p, self.dim, self.maxnorm)
        return {}


@dataclass(frozen=True, repr=False)
class MaxNorm(Policy):
    """After the step, scale each unit's incoming weights back to an L2 norm of at most `max_value`.

    A unit is a slice along `dim`: a row of a Linear weight `[out, in]`, a filter of a convolution, a vector of an
    embedding. Use `dim=1` for transposed convolutions (`[in, out, ...]`). Usual values are 3 to 4. The formula is
    torch's renorm, not Keras', which also shrinks units below the limit. Biases are left alone.

    Source: Srivastava et al. 2014, "Dropout", section 5.1 (incoming weights of each hidden unit).

    Raises:
        PolicyError: `max_value` is negative, or `dim` is not a whole number.
    """

    max_value: float
    dim: int = 0
    acts_on_weights: ClassVar[bool] = True

    def __post_init__(self) -> None:
        set_fields(
            self,
            max_value=number(self.max_value, "max_value", low=0),
            dim=whole(self.dim, "dim", low=-MAX_DIM, high=MAX_DIM - 1),
        )

    def init(self, batch: Batch) -> State:
        """No state.

        Raises:
            PolicyError: the units are spread over ranks in a way that hides them.
        """
        batch.layout.check_units()
        return {}

    def apply(self, batch: Batch, state: State) -> State:
        """Scale the units in place; the share that was scaled is the layer's `renorm_rate`."""
        renorm(batch, 2.0, self.dim, self.max_value)
        return {}


@dataclass(frozen=True, repr=False)
class MaxSpectral(Policy):
    """After the step, scale each matrix whose largest singular value is above `max_value` back to it.

    A weight `[out, in, ...]` is a matrix of `out` rows. The singular value is that of two more power iterations a step,
    which go on from where the step before left off (thirty when the training begins): an estimate from below, so that
    a matrix may be a little above `max_value`. Biases are left alone.

    Source: Gouk et al. 2021, "Regularisation of neural networks by enforcing Lipschitz continuity", arXiv:1804.04368.

    Raises:
        PolicyError: `max_value` is not above 0.
    """

    max_value: float
    acts_on_weights: ClassVar[bool] = True
    stateful: ClassVar[bool] = True

    def __post_init__(self) -> None:
        set_fields(self, max_value=number(self.max_value, "max_value", low=0, strict=True))

    def init(self, batch: Batch) -> State:
        """The first right singular vector of each matrix, as it is now.

        Raises:
            WatchError: a matrix is spread over ranks in a way that hides its rows.
        """
        return cast("WeightBatch", batch).first_singular_vectors()

    def apply(self, batch: Batch, state: State) -> State:
        """Scale the matrices in place; `renorm_rate` is 1 for those that were scaled."""
        values, state = cast("WeightBatch", batch).largest_singular_values(state)
        alone = [math.nan] * len(values)
        batch.scale_units(lambda each: formulas.scale_back_coef(each, self.max_value), [values], alone=alone)
        return state


@dataclass(frozen=True, repr=False)
class QKClip(Policy):
    """After the step, scale queries and keys of each attention head whose largest logit was above `tau`.

    gamma = min(1, tau / S), S the head's largest logit in the step's batch; its rows of W_q and W_k, and of their
    biases, are multiplied by the root of gamma. Heads that share keys share the smallest gamma of them. Where a part of
    the keys is shared by all heads (DeepSeek's latent attention) that part is left alone and the queries that belong to
    it take the whole gamma. S is exact: the products of queries and keys are computed once more, in each step.

    Source: Kimi Team 2025, "Kimi K2", arXiv:2507.20534, section 2.2 and algorithm 1; of shared keys: Megatron-LM.

    Raises:
        PolicyError: `tau` is not above 0.
    """

    tau: float = 100.0
    acts_on_weights: ClassVar[bool] = True
    hears_attention: ClassVar[bool] = True

    def __post_init__(self) -> None:
        set_fields(self, tau=number(self.tau, "tau", low=0, strict=True))

    def apply(self, batch: Batch, state: State) -> State:
        """Scale the rows in place; the share of a layer's rows that was scaled is its `renorm_rate`."""
        weights = cast("WeightBatch", batch)
        logits, powers = weights.largest_logits()
        alone = [math.nan] * len(logits)
        batch.scale_units(
            lambda each, power: formulas.scale_back_coef(each, self.tau) ** power, [logits, powers], alone=alone
        )
        weights.note_scaled_heads(self.tau)
        return {}


def renorm(batch: Batch, p: float, dim: int, maxnorm: float) -> None:
    """`torch.renorm` of each tensor, in place; a tensor it cannot apply to (a bias) has NaN for its share of slices."""

    def others(weight: Tensor) -> tuple[int, ...] | None:
        applies = weight.dim() >= 2 and -weight.dim() <= dim < weight.dim()
        return tuple(d for d in range(weight.dim()) if d != dim % weight.dim()) if applies else None

    norms = batch.unit_norms(others, p)
    batch.scale_units(lambda each: formulas.renorm_coef(each, maxnorm), [norms], alone=[math.nan] * len(norms))


def _text(p: float) -> str:
    return "'inf'" if p == float("inf") else repr(p)

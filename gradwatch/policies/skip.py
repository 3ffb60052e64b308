"""Steps that must not happen: non-finite gradients, norms above a threshold, spikes far above the run's own norms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from gradwatch.policies.adaptive import history, push
from gradwatch.policies.base import (
    MAX_WARMUP,
    MAX_WINDOW,
    SKIPS,
    Decision,
    NormPolicy,
    State,
    number,
    set_fields,
    whole,
)
from gradwatch.policies.schedule import first_state, moved, now, threshold
from gradwatch.policies.threshold import Ramp

if TYPE_CHECKING:
    from gradwatch.measure.gradients import Batch
    from gradwatch.measure.layout import Norms


@dataclass(frozen=True, repr=False)
class Skip(NormPolicy):
    """What those that skip have in common: after `at_most` skips of it in a row the training ends (TrainingHalted).

    A step that is not left out begins the count anew; one that a loss scaler drops neither counts nor does that.
    """

    at_most: int | None = field(default=None, kw_only=True)
    can_skip: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.at_most is not None:
            set_fields(self, at_most=whole(self.at_most, "at_most", low=1, high=MAX_WARMUP), stateful=True)

    def init(self, batch: Batch) -> State:
        """`skips`: how many steps in a row, with `at_most`."""
        return {} if self.at_most is None else {SKIPS: batch.layout.counter()}

    def apply(self, batch: Batch, state: State) -> State:
        """Decide, and count."""
        decision = self.decide(batch.norms(), state)
        assert decision.skip is not None
        batch.skip(decision.skip)
        counted = {} if self.at_most is None else {SKIPS: (state[SKIPS] + 1).where(decision.skip, 0)}
        return {**(decision.state or {}), **counted}


@dataclass(frozen=True, repr=False)
class SkipNonfinite(Skip):
    """Skip the step when any gradient holds an inf or a NaN: no weight and no optimizer state moves.

    It goes by the norm, which is taken in float32: one above 3e38 is inf as well.
    A skip is not a multiplication by 0: 0 times NaN is NaN, and AdamW moves weights on a zero gradient. `at_most`: so
    many in a row end the training.

    Raises:
        PolicyError: `at_most` is not a whole number from 1 on.
    """

    def decide(self, norms: Norms, state: State) -> Decision:
        """`skip` where a norm is not finite."""
        return Decision(skip=~norms.l2.isfinite().all())


@dataclass(frozen=True, repr=False)
class SkipNorm(Skip):
    """Skip the step when the global norm is above `max_norm`, or not finite: no weight and no optimizer state moves.

    A norm equal to the threshold is not above it. In a chain it is the norm that the policies before it left.
    `at_most`: so many skips in a row end the training.

    Raises:
        PolicyError: `max_norm` is neither a ramp nor above 0, or `at_most` not a whole number from 1 on.
    """

    max_norm: float

    def __post_init__(self) -> None:
        super().__post_init__()
        limit = threshold(self.max_norm, "max_norm", strict=True)
        set_fields(self, max_norm=limit, stateful=self.stateful or isinstance(limit, Ramp))

    def init(self, batch: Batch) -> State:
        """The steps of a ramp, and `skips`."""
        return {**first_state(self.max_norm, batch), **super().init(batch)}

    def decide(self, norms: Norms, state: State) -> Decision:
        """`skip` unless the global norm is finite and at most `max_norm`."""
        total = norms.total()
        skip = ~(total.isfinite() & (total <= now(self.max_norm, state, total)))
        return Decision(skip=skip, state=moved(self.max_norm, state))


@dataclass(frozen=True, repr=False)
class SkipSpike(Skip):
    """Skip the step when the global norm is more than `sigma` standard deviations above the mean of the last `window`.

    The current norm is not part of the mean and sample deviation; nothing is skipped until half of `window` norms are
    held, nor while they are all equal. A skipped norm does not enter the window, so a lasting rise of the norms keeps
    being skipped: watch `skipped` in the record, or let `at_most` skips in a row end the training. NaN is left to
    `SkipNonfinite`.

    Source: OLMo-core's skip-step optimizers (allenai/OLMo-core), on the gradient norm alone.

    Raises:
        PolicyError: `sigma` is not above 0, `window` outside 4 to 1,000,000, or `at_most` not a whole number from 1 on.
    """

    sigma: float = 6.0
    window: int = 128
    stateful: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(
            self,
            sigma=number(self.sigma, "sigma", low=0, strict=True),
            window=whole(self.window, "window", low=4, high=MAX_WINDOW),
        )

    def init(self, batch: Batch) -> State:
        """`norms [window]` (inf where empty), how many were seen, and `skips`."""
        return {**history(batch, self.window), **super().init(batch)}

    def decide(self, norms: Norms, state: State) -> Decision:
        """`skip` where the global norm is a spike."""
        total, held = norms.total(), state["norms"].isfinite()
        kept = state["norms"].where(held, 0)
        count = held.sum()
        mean = kept.sum() / count
        std = ((kept - mean).where(held, 0).square().sum() / (count - 1)).sqrt()
        spike = (count >= self.window // 2) & (std > 0) & (total > mean + self.sigma * std)
        return Decision(skip=spike, state=push(state, total))

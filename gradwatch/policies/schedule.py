"""Policies that change over a training: `ramp`, a threshold that moves, and `after`, a policy that begins later.

Both count the steps that were taken, in the policy's state: one that was left out or not finite does not count, as it
moves no policy's state. Source of both as a schedule: the clip thresholds that language models' recipes lower by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from gradwatch import formulas
from gradwatch.errors import PolicyError
from gradwatch.policies.base import MAX_WARMUP, Policy, State, number, require_policy, set_fields, take_after, whole
from gradwatch.policies.threshold import Ramp

if TYPE_CHECKING:
    from torch import Tensor

    from gradwatch.measure.gradients import Batch
    from gradwatch.measure.layout import Layout

TAKEN = "taken"  # in a State: how many steps, 0-d
INNER = "0."  # before the keys of the policy that begins later


def ramp(start: float, end: float, steps: int) -> Ramp:
    """A threshold that goes in a line from `start` to `end` over `steps` steps, and stays: a `max_norm` of policies.

    Raises:
        PolicyError: `start` or `end` is not a finite number above 0, or `steps` not a whole number from 1 on.
    """
    ends = (number(value, name, low=0, strict=True) for name, value in (("start", start), ("end", end)))
    first, last = ends
    if math.inf in (first, last):
        raise PolicyError(f"ramp({first}, {last}, ...): wanted finite numbers, between which there is a line")
    made = Ramp(last)
    made.start, made.steps = first, whole(steps, "steps", low=1, high=MAX_WARMUP)
    return made


def threshold(value: object, name: str, *, strict: bool = False) -> float:
    """`value` as a threshold: a ramp as it is, or a number from 0 on (above it when `strict`).

    Raises:
        PolicyError: it is neither.
    """
    return value if isinstance(value, Ramp) else number(value, name, low=0, strict=strict)


def first_state(limit: float, batch: Batch) -> State:
    """What a policy with this threshold counts: nothing, but for a ramp."""
    return {TAKEN: batch.layout.counter()} if isinstance(limit, Ramp) else {}


def now(limit: float, state: State, like: Tensor) -> Any:
    """The threshold in this step: a number, or of a ramp a 0-d tensor of the kind of `like`."""
    return limit.at(state[TAKEN]).to(like.device, like.dtype) if isinstance(limit, Ramp) else limit


def divisible(limit: float, state: State, like: Tensor, layout: Layout) -> Any:
    """The threshold in this step as a 0-d tensor of the kind of `like`. A number divided by a tensor is in torch that
    number times a reciprocal, rounded twice: 1.7 / 1.7 is not 1.
    """
    if isinstance(limit, Ramp):
        return now(limit, state, like)
    return layout.constant(("limit", limit, like.device, like.dtype), lambda: like.new_full((), limit))


def moved(limit: float, state: State) -> State:
    """The count after this step."""
    return {TAKEN: state[TAKEN] + 1} if isinstance(limit, Ramp) else {}


@dataclass(frozen=True, repr=False)
class After(Policy):
    """A policy that acts only after the first `steps` steps. Made by `after(steps, policy)`."""

    steps: int
    policy: Policy
    stateful: ClassVar[bool] = True

    def __post_init__(self) -> None:
        take_after(self, self.policy)
        set_fields(self, steps=whole(self.steps, "steps", low=0, high=MAX_WARMUP), stateful=True)

    def init(self, batch: Batch) -> State:
        """The policy's own state, and how many steps were taken."""
        return {TAKEN: batch.layout.counter(), **{INNER + k: v for k, v in self.policy.init(batch).items()}}

    def apply(self, batch: Batch, state: State) -> State:
        """Apply the policy, whose state moves from the first step on; what it does is undone until its time comes."""
        begun = state[TAKEN] >= self.steps
        own = {k[len(INNER) :]: v for k, v in state.items() if k.startswith(INNER)}
        gated: Any = Gated(batch, begun)
        new = self.policy.apply(gated, own)
        for key in self.policy.limits():  # a step that it only would have left out
            new[key] = new[key].where(begun, 0)
        return {TAKEN: state[TAKEN] + 1, **{INNER + k: v for k, v in new.items()}}

    def limits(self) -> dict[str, Policy]:
        """Those of the policy."""
        return {INNER + k: p for k, p in self.policy.limits().items()}

    def __repr__(self) -> str:
        return f"after({self.steps}, {self.policy!r})"


def after(steps: int, policy: Policy) -> Policy:
    """The policy from the step on before which `steps` steps were taken; until then nothing is touched.

    Its own state moves from the first step on: `after(1000, AutoClip())` begins with the norms that it has seen.

    Raises:
        PolicyError: `steps` is not a whole number from 0 on, the policy is not one, or one that acts on weights.
    """
    require_policy(policy, "after")
    if policy.acts_on_weights:
        raise PolicyError(f"after({steps}, {policy!r}): it constrains weights; after() is for what acts on gradients")
    return After(steps, policy)


class Gated:
    """A batch on which nothing is done unless `open` (0-d bool): no step is skipped, all is multiplied by 1."""

    def __init__(self, batch: Any, is_open: Tensor) -> None:
        self._batch, self._open = batch, is_open

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def only(self, pattern: str) -> Gated:
        """Some of its layers, with the same gate."""
        return Gated(self._batch.only(pattern), self._open)

    def scale(self, coef: Tensor) -> None:
        """Scale the batch, or by 1."""
        self._batch.scale(coef.where(self._on(coef), 1.0))

    def scale_to(self, limit: float, p: float = 2.0) -> None:
        """Scale."""
        self.scale(formulas.clip_coef(self._batch.norms().total(p), limit))

    def skip(self, flag: Tensor) -> None:
        """Skip the step, or not."""
        self._batch.skip(flag & self._on(flag))

    def change(self, fn: Callable[[int, Tensor], Tensor]) -> None:
        """Change each tensor, or change it back."""

        def gated(i: int, tensor: Tensor) -> Tensor:
            before, changed = tensor.clone(), fn(i, tensor)
            tensor.copy_(tensor.where(self._on(tensor), before))
            return changed & self._on(changed) if str(changed.dtype) == "torch.bool" else changed * self._on(changed)

        self._batch.change(gated)

    def scale_units(
        self, coef: Callable[..., Tensor], norms: Sequence[Any], alone: Sequence[float] | None = None
    ) -> None:
        """Scale each unit, or by 1."""

        def gated(*of_units: Tensor) -> Tensor:
            found = coef(*of_units)
            return found.where(self._on(found), 1.0)

        self._batch.scale_units(gated, norms, alone)

    def _on(self, like: Tensor) -> Tensor:
        return self._open.to(like.device)

"""What a policy is: settings, one formula, one paper. Two bases, and the two ways to combine policies.

A policy acts on a `Batch` (gradwatch.measure.gradients): the gradients of one step, or the weights after it. A norm
policy sees only norms and answers with coefficients; an element policy asks the batch to change the tensors.

Nothing here imports torch: a policy is settings, and its formula calls methods of the tensors it is given.

Legend: L layers; State is `dict[str, Tensor]`, kept by the Watch and saved in its state_dict.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from gradwatch.errors import PolicyError
from gradwatch.policies.threshold import Ramp

if TYPE_CHECKING:
    from torch import Tensor

    from gradwatch.measure.gradients import Batch
    from gradwatch.measure.layout import Norms

State = dict[str, "Tensor"]

MAX_WINDOW = 1_000_000  # norms that a policy remembers, and sorts or sums on every step
MAX_WARMUP = 1_000_000_000  # steps
MAX_DIM = 8
SKIPS = "skips"  # in a State: how many steps the policy has left out one after the other, 0-d


class Decision(NamedTuple):
    """What a norm policy answers: coefficients `[]` or `[L]`, "this step must not happen" (0-d bool), its new state."""

    coef: Tensor | None = None
    skip: Tensor | None = None
    state: State | None = None


class Policy:
    """Base of every policy: a frozen dataclass that prints as the code that makes it."""

    norm_types: ClassVar[tuple[float, ...]] = ()  # norms it needs besides L2
    acts_on_weights: ClassVar[bool] = False
    hears_attention: ClassVar[bool] = False  # whether it goes by the logits of attention heads
    can_skip: ClassVar[bool] = False
    stateful: ClassVar[bool] = False
    per_layer: ClassVar[bool] = False  # whether a layer's fate depends on that layer alone
    at_most: int | None = None  # so many steps that it leaves out one after the other end the training

    def init(self, batch: Batch) -> State:
        """The state before the first step."""
        return {}

    def apply(self, batch: Batch, state: State) -> State:
        """Act on one step's batch; returns the new state. No host read."""
        raise NotImplementedError(f"{type(self).__name__} must define apply(batch, state), or subclass NormPolicy")

    def limits(self) -> dict[str, Policy]:
        """Where its state counts the steps left out in a row, and the policy whose `at_most` bounds them."""
        return {} if self.at_most is None else {SKIPS: self}

    def __repr__(self) -> str:
        fields = sorted(dataclasses.fields(self), key=lambda f: f.kw_only is True)  # type: ignore[arg-type]
        first = [f for f in fields[:1] if not f.kw_only]
        arguments = [_literal(getattr(self, f.name)) for f in first]
        rest = fields[len(first) :]
        values = {f.name: getattr(self, f.name) for f in rest if getattr(self, f.name) != f.default}
        arguments += [f"{name}={_literal(value)}" for name, value in values.items()]
        return f"{type(self).__name__}({', '.join(arguments)})"


class NormPolicy(Policy):
    """A policy that needs only the norms: subclasses define `decide`."""

    def decide(self, norms: Norms, state: State) -> Decision:
        """Coefficients, skip and new state from the norms of one step. Device arithmetic only."""
        raise NotImplementedError(f"{type(self).__name__} must define decide(norms, state)")

    def apply(self, batch: Batch, state: State) -> State:
        """Measure, decide, and leave the coefficients pending on the batch."""
        decision = self.decide(batch.norms(), state)
        if decision.coef is not None:
            batch.scale(decision.coef)
        if decision.skip is not None:
            batch.skip(decision.skip)
        return decision.state or {}


@dataclasses.dataclass(frozen=True, repr=False)
class Chain(Policy):
    """Policies one after the other, each on what the one before left. Made by `chain(a, b, ...)`."""

    policies: tuple[Policy, ...]

    def __post_init__(self) -> None:
        take_after(self, *self.policies)

    def init(self, batch: Batch) -> State:
        """The members' states, each key behind the member's place."""
        return {f"{i}.{k}": v for i, policy in enumerate(self.policies) for k, v in policy.init(batch).items()}

    def apply(self, batch: Batch, state: State) -> State:
        """Apply the members in order."""
        new: State = {}
        for i, policy in enumerate(self.policies):
            prefix = f"{i}."
            own = {k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)}
            new.update({prefix + k: v for k, v in policy.apply(batch, own).items()})
        return new

    def limits(self) -> dict[str, Policy]:
        """Those of the members, each key behind the member's place."""
        return {f"{i}.{k}": p for i, policy in enumerate(self.policies) for k, p in policy.limits().items()}

    def __repr__(self) -> str:
        return f"chain({', '.join(map(repr, self.policies))})"


@dataclasses.dataclass(frozen=True, repr=False)
class Only(Policy):
    """A policy that sees only the layers whose name fits a pattern. Made by `only(pattern, policy)`."""

    pattern: str
    policy: Policy

    def __post_init__(self) -> None:
        take_after(self, self.policy)

    def init(self, batch: Batch) -> State:
        """The policy's state for the layers that match.

        Raises:
            PolicyError: no layer matches.
        """
        return self.policy.init(batch.only(self.pattern))

    def apply(self, batch: Batch, state: State) -> State:
        """Apply the policy to the layers that match."""
        return self.policy.apply(batch.only(self.pattern), state)

    def limits(self) -> dict[str, Policy]:
        """Those of the policy."""
        return self.policy.limits()

    def __repr__(self) -> str:
        return f"only({self.pattern!r}, {self.policy!r})"


def chain(*policies: Policy) -> Policy:
    """Policies one after the other, each on what the one before left.

    A chain of norm policies costs one norm pass and one scale pass, however long it is.

    Raises:
        PolicyError: no policies, something that is not one, or gradients and weights mixed.
    """
    flat = tuple(p for policy in policies for p in getattr(policy, "policies", (policy,)))
    if not flat:
        raise PolicyError(
            "chain() needs at least one policy, for example chain(SkipNonfinite(), ClipByGlobalNorm(1.0))"
        )
    for policy in flat:
        require_policy(policy, "chain")
    if len({policy.acts_on_weights for policy in flat}) > 1:
        raise PolicyError(
            f"chain({', '.join(map(repr, flat))}) mixes gradient policies and weight constraints: "
            "give the constraints to renorm= and the rest to clip="
        )
    return flat[0] if len(flat) == 1 else Chain(flat)


def only(pattern: str, policy: Policy) -> Policy:
    """The policy on the layers whose name fits the shell-style `pattern` (`rnn.*`); the others stay untouched.

    `optimizer:Muon*` means the layers of the optimizers whose class fits, of those that a Watch was given.

    A skip inside it skips the whole step: half an optimizer step cannot be taken.

    Raises:
        PolicyError: the pattern is not a text, or the policy is not one.
    """
    if not isinstance(pattern, str) or not pattern:
        raise PolicyError(f"only({pattern!r}, ...): wanted a layer pattern such as 'rnn.*'")
    require_policy(policy, "only")
    return Only(pattern, policy)


def require_policy(value: object, where: str) -> None:
    """Raise PolicyError unless `value` is a policy instance."""
    if not isinstance(value, Policy):
        hint = "an instance: write its parentheses" if isinstance(value, type) else "a policy such as ClipByNorm(1.0)"
        raise PolicyError(f"{where}: found {value!r}, wanted {hint}")


def number(
    value: object, name: str, *, low: float | None = None, high: float = math.inf, strict: bool = False
) -> float:
    """`value` as a float within `low` and `high` (above `low` when `strict`).

    Raises:
        PolicyError: it is not a number, NaN, or out of range.
    """
    if isinstance(value, bool | Ramp) or not isinstance(value, int | float | str):
        raise PolicyError(f"{name}={value!r}: wanted a number")
    try:
        out = float(value)
    except (ValueError, OverflowError):
        raise PolicyError(f"{name}={value!r}: wanted a number") from None
    low = -math.inf if low is None else low
    if math.isnan(out) or not low <= out <= high or (strict and out == low):
        wanted = f"a number {'above' if strict else 'of at least'} {low:g}" if low > -math.inf else "a number"
        raise PolicyError(f"{name}={value!r}: wanted {wanted}{f' and at most {high:g}' if high < math.inf else ''}")
    return out


def whole(value: object, name: str, *, low: int, high: int) -> int:
    """`value` as an int from `low` to `high`.

    Raises:
        PolicyError: it is not one.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise PolicyError(f"{name}={value!r}: wanted a whole number from {low} to {high:,}")
    return value


def set_fields(policy: Any, **values: object) -> None:
    """Set checked values on a frozen dataclass, from its `__post_init__`."""
    for name, value in values.items():
        object.__setattr__(policy, name, value)


def take_after(policy: Policy, *members: Policy) -> None:
    """Let a policy be of the kind of those that it is made of."""
    set_fields(
        policy,
        norm_types=tuple(dict.fromkeys(p for member in members for p in member.norm_types)),
        acts_on_weights=any(member.acts_on_weights for member in members),
        hears_attention=any(member.hears_attention for member in members),
        can_skip=any(member.can_skip for member in members),
        stateful=any(member.stateful for member in members),
        per_layer=all(member.per_layer for member in members),
    )


def _literal(value: object) -> str:
    if isinstance(value, float) and math.isinf(value):
        return repr(str(value))  # 'inf': a literal that the constructors take, where inf is only a name
    return value.__name__ if isinstance(value, Callable) and hasattr(value, "__name__") else repr(value)  # type: ignore[arg-type]

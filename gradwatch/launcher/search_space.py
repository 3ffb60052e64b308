"""What a search draws from: policies and interventions with ranges in them, as in `ClipByGlobalNorm(0.1..10)`."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from gradwatch.errors import PolicyError, RunError
from gradwatch.policies.grammar import POLICIES, as_policy, parse
from gradwatch.policies.intervention import NONE, Intervention, given, skipping

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

DIGITS = 3  # of a number that is drawn: more only make a policy's text hard to read
_NUMBER = r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"(?<![\w.])({_NUMBER})\.\.({_NUMBER})(?![\w.])")
_HOLE = "range_"  # stands for a range while a policy's text is read

Choice = TypeVar("Choice")


@dataclass(frozen=True)
class Range:
    """From `low` to `high`, both included; `whole` numbers, or any. Positive ones are drawn evenly by logarithm."""

    low: float
    high: float
    whole: bool = False

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"

    @classmethod
    def read(cls, text: str, whole: bool = False) -> Range | None:
        """The range that `text` is; None for another text.

        Raises:
            RunError: its ends are not in order, or no whole numbers where these are wanted.
        """
        found = _RANGE.fullmatch(text.strip())
        if found is None:
            return None
        low, high = float(found[1]), float(found[2])
        if not low < high < float("inf"):
            raise RunError(f"{text}: wanted a range LOW..HIGH with LOW below HIGH")
        if whole and not (low.is_integer() and high.is_integer()):
            raise RunError(f"{text}: wanted a range of whole numbers, as 10..1000")
        return cls(low, high, whole)

    def draw(self, trial: BaseTrial, name: str) -> float:
        """A value of it, of the parameter `name` of a trial."""
        if self.whole:
            return int(trial.suggest_int(name, int(self.low), int(self.high), log=self.low > 0))
        return float(rounded(trial.suggest_float(name, self.low, self.high, log=self.low > 0)))


def rounded(value: Any) -> Any:
    """A number that was drawn, as it is trained with; anything else as it is."""
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


@dataclass(frozen=True)
class Template:
    """A policy's text with `ranges` in it, each with the name of its parameter: `ClipByGlobalNorm.max_norm`."""

    text: str
    ranges: tuple[tuple[str, Range], ...] = ()

    @classmethod
    def read(cls, text: str, role: str) -> Template:
        """The policy, for the role `clip` or `renorm`; one without a range as `parse` prints it.

        Raises:
            PolicyError: it is no policy at both ends of its ranges.
            RunError: the ends of a range are not in order.
        """
        if given(text) is None:
            return cls(NONE)
        texts = [found[0] for found in _RANGE.finditer(text)]
        for end in (1, 2):
            policy = as_policy(_RANGE.sub(lambda found: found[end], text), role)  # noqa: B023
        if not texts:
            return cls(repr(policy))
        named = zip(texts, _named(text), strict=True)
        return cls(text, tuple((name, _range(one, whole)) for one, (name, whole) in named))

    def draw(self, trial: BaseTrial) -> str | None:
        """A policy of it, as text; None for no policy."""
        if self.text == NONE:
            return None
        values = [_shown(one.draw(trial, name), one.whole) for name, one in self.ranges]
        return repr(parse(self.filled(values)))

    def filled(self, values: Sequence[str]) -> str:
        """The text with these in the place of the ranges."""
        left = iter(values)
        return _RANGE.sub(lambda _: next(left), self.text)


@dataclass(frozen=True)
class Space:
    """Each of these with each: what a trial of a search is drawn from. With `skip` bad steps are left out as well."""

    clips: tuple[Template, ...]
    renorms: tuple[Template, ...]
    lr_scales: tuple[float | Range, ...]
    warmups: tuple[float | Range, ...]
    skip: bool = False

    def draw(self, trial: BaseTrial) -> Intervention:
        """What a trial trains with. A choice of several is a parameter of its own."""
        clip = _choice(trial, "clip", self.clips, lambda one: one.text).draw(trial)
        renorm = _choice(trial, "renorm", self.renorms, lambda one: one.text).draw(trial)
        scale, warmup = (
            one.draw(trial, name) if isinstance(one, Range) else one
            for name, every in (("lr_scale", self.lr_scales), ("warmup", self.warmups))
            for one in (_choice(trial, f"{name} of", every, str),)
        )
        return Intervention(skipping(clip) if self.skip else clip, renorm, float(scale), int(warmup))

    @property
    def has_ranges(self) -> bool:
        """Whether a number is to be drawn."""
        drawn = any(one.ranges for one in (*self.clips, *self.renorms))
        return drawn or any(isinstance(one, Range) for one in (*self.lr_scales, *self.warmups))

    @property
    def has_choices(self) -> bool:
        """Whether there are several of a kind."""
        return any(len(options) > 1 for options in (self.clips, self.renorms, self.lr_scales, self.warmups))


def _choice(trial: BaseTrial, name: str, options: Sequence[Choice], text: Callable[[Choice], str]) -> Choice:
    if len(options) == 1:
        return options[0]
    texts = [text(one) for one in options]
    return options[texts.index(trial.suggest_categorical(name, texts))]


def _named(text: str) -> list[tuple[str, bool]]:
    """For each range of a policy's text its parameter, and whether that is a whole number.

    Raises:
        PolicyError: a range is no argument of a policy.
    """
    holes = iter(range(len(text)))
    try:
        tree = ast.parse(_RANGE.sub(lambda _: f"{_HOLE}{next(holes)}", text.strip()), mode="eval")
    except SyntaxError:
        raise PolicyError(f"{text!r} is not a policy text; write for example ClipByGlobalNorm(0.1..10)") from None
    found: dict[str, tuple[str, bool]] = {}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        policy = ast.unparse(call.func)
        known = inspect.signature(POLICIES[policy]).parameters  # known, as `as_policy` took it
        given = [*zip(known, call.args, strict=False), *((str(word.arg), word.value) for word in call.keywords)]
        for name, value in given:
            if isinstance(value, ast.Name) and value.id.startswith(_HOLE) and name in known:
                again = sum(label.startswith(f"{policy}.{name}") for label, _ in found.values())
                label = f"{policy}.{name}" + (f" {again + 1}" if again else "")
                found[value.id] = label, known[name].annotation in (int, "int")
    count = next(holes)
    if len(found) < count:
        raise PolicyError(f"{text!r}: a range stands in the place of an argument, as in ClipByGlobalNorm(0.1..10)")
    return [found[f"{_HOLE}{i}"] for i in range(count)]


def _range(text: str, whole: bool) -> Range:
    found = Range.read(text, whole)
    assert found is not None
    return found


def _shown(value: float, whole: bool) -> str:
    return str(int(value)) if whole else repr(float(value))

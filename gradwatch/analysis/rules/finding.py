"""What a rule says: a disease by name, where and when it was seen, the numbers that show it, and the cure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from gradwatch.analysis.rules.track_record import is_proven
from gradwatch.history import History

Severity = Literal["error", "warning", "note"]
Confidence = Literal["likely", "possible"]
Evidence = dict[str, float | str]
RANK: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True)
class Finding:
    """One disease in one run. `layers` are in model order and empty when the whole model is meant.

    `optimizer` is the one (or the part) whose steps are meant, where several step on their own. `consequences` are the
    findings that follow from this one; none of them has consequences of its own. `tries` are the cures that can be
    tried on an unchanged script, each as options of `gradwatch run`: `--lr-scale 0.1`. `alternatives` are the causes
    that the record leaves open, where it leaves more than one: `cause` says them too, and `cure` what tells them apart.
    """

    rule: str
    severity: Severity
    layers: tuple[str, ...]
    first_step: int
    last_step: int
    evidence: Evidence = field(default_factory=dict)
    cause: str = ""
    cure: str = ""
    optimizer: str = ""
    consequences: tuple[Finding, ...] = ()
    tries: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()

    @property
    def confidence(self) -> Confidence:
        """How sure the cause is: `likely` where none remains beside it, and the rule is one that was right so."""
        return "likely" if not self.alternatives and is_proven(self.rule) else "possible"

    @property
    def summary(self) -> str:
        """What, when and where, in one line: `nonfinite at step 50 in blocks.0.mlp.weight and 2 more`."""
        if not self.any_step:
            return f"{self.rule}: no step was recorded"
        name = self.layers[0] if self.layers else self.optimizer
        where = f" in {name}" if name else ""
        more = f" and {len(self.layers) - 1} more" if len(self.layers) > 1 else ""
        return f"{self.rule} at step {self.first_step}{where}{more}"

    @property
    def any_step(self) -> bool:
        """Whether it is about steps at all: what is said of a run without any ends before it begins."""
        return self.last_step >= self.first_step

    @property
    def docs(self) -> str:
        """The page about the rule, as a path in the project: what it means, how it is computed, when it is wrong."""
        return f"docs/findings/{self.rule}.md"

    def to_json(self) -> dict[str, Any]:
        """A dict that json can write; a number in the evidence may be inf or NaN."""
        return {
            "rule": self.rule,
            "severity": self.severity,
            "layers": list(self.layers),
            "first_step": self.first_step,
            "last_step": self.last_step,
            "evidence": dict(self.evidence),
            "cause": self.cause,
            "cure": self.cure,
            "summary": self.summary,
            "optimizer": self.optimizer,
            "docs": self.docs,
            "tries": list(self.tries),
            "confidence": self.confidence,
            "alternatives": list(self.alternatives),
            "consequences": [finding.to_json() for finding in self.consequences],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        """The finding that `to_json` wrote; null among the numbers is one that was not finite: NaN."""
        return cls(
            rule=str(data["rule"]),
            severity=data["severity"],
            layers=tuple(data["layers"]),
            first_step=int(data["first_step"]),
            last_step=int(data["last_step"]),
            evidence={key: math.nan if value is None else value for key, value in data["evidence"].items()},
            cause=data["cause"],
            cure=data["cure"],
            optimizer=data["optimizer"],
            consequences=tuple(cls.from_json(finding) for finding in data["consequences"]),
            tries=tuple(data.get("tries", ())),
            alternatives=tuple(data.get("alternatives", ())),
        )


class Why(NamedTuple):
    """What follows from the cause that a record shows: the words, its numbers, and what can be tried."""

    cause: str
    cure: str
    evidence: Evidence
    tries: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()

    def finding(
        self,
        history: History,
        rule: str,
        layers: tuple[str, ...],
        evidence: Evidence,
        severity: Severity = "warning",
        first: int | None = None,
    ) -> Finding:
        """The finding of this, from the step `first` (None: the first) to the last; its numbers follow `evidence`."""
        steps = int(history.step[0]) if first is None else first, int(history.step[-1])
        words = self.cause, self.cure
        return Finding(
            rule, severity, layers, *steps, {**evidence, **self.evidence}, *words,
            tries=self.tries, alternatives=self.alternatives,
        )  # fmt: skip


def whole_run(
    history: History,
    rule: str,
    layers: str | tuple[str, ...],
    evidence: Evidence,
    cause: str,
    cure: str,
    alternatives: tuple[str, ...] = (),
    *,
    severity: Severity = "warning",
    tries: tuple[str, ...] = (),
) -> Finding:
    """The finding of a whole run, from its first step to its last; the name of a layer counts where it is one of it."""
    if isinstance(layers, str):
        layers = (layers,) if layers in history.layers else ()
    steps = int(history.step[0]), int(history.step[-1])
    return Finding(rule, severity, layers, *steps, evidence, cause, cure, tries=tries, alternatives=alternatives)


def either(causes: Sequence[str]) -> str:
    """The causes in a sentence: `Either this, or that.`."""
    return f"Either {', or '.join(causes)}."


Rule = Callable[[History], list[Finding]]


def says_again(one: Finding, other: Finding) -> bool:
    """Whether it says what the `other` does, of the same layers of an optimizer that stepped in other company there."""
    same = {*one.optimizer.split("+")} & {*other.optimizer.split("+")} and one.layers
    return bool(same) and (one.rule, one.layers, one.cause) == (other.rule, other.layers, other.cause)

"""What a rule says: a disease by name, where and when it was seen, the numbers that show it, and the cure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from gradwatch.history import History

Severity = Literal["error", "warning", "note"]
RANK: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True)
class Finding:
    """One disease in one run. `layers` are in model order and empty when the whole model is meant.

    `optimizer` is the one (or the part) whose steps are meant, where several step on their own.
    """

    rule: str
    severity: Severity
    layers: tuple[str, ...]
    first_step: int
    last_step: int
    evidence: dict[str, float | str] = field(default_factory=dict)
    cause: str = ""
    cure: str = ""
    optimizer: str = ""

    @property
    def summary(self) -> str:
        """What, when and where, in one line: `nonfinite at step 50 in blocks.0.mlp.weight and 2 more`."""
        name = self.layers[0] if self.layers else self.optimizer
        where = f" in {name}" if name else ""
        more = f" and {len(self.layers) - 1} more" if len(self.layers) > 1 else ""
        return f"{self.rule} at step {self.first_step}{where}{more}"

    def to_json(self) -> dict[str, Any]:
        """A dict that json can write."""
        return {"summary": self.summary, **asdict(self)}


Rule = Callable[[History], list[Finding]]

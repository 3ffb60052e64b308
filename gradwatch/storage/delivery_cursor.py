"""How far a run is delivered, as `cursor.json` keeps it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gradwatch.sanitize import read_json

if TYPE_CHECKING:
    from typing_extensions import Self

CURSOR = "cursor.json"


@dataclass
class Cursor:
    """How far a run is delivered: `cursor.json`."""

    FILE: ClassVar[str] = CURSOR

    tracking_uri: str | None = None
    experiment_id: str | None = None
    run_id: str | None = None
    joined: bool = False
    url: str | None = None
    next_step: int = 0
    last_part: int = -1
    # The fields of a metric_keys.Nonfinite of nothing yet
    nonfinite: list[Any] = field(default_factory=lambda: [0, -1, ""])
    # The fields of a clip_rates.Rates; None in a cursor of an earlier version, whose folder is then asked
    clip_rates: list[Any] | None = None
    uploaded: list[str] = field(default_factory=list)
    attempt: int = 0
    done: bool = False

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The cursor of `folder`; a new one before the first delivery."""
        known = {k: v for k, v in read_cursor(folder, cls.FILE).items() if k in cls.__dataclass_fields__}
        return cls(**known)

    def save(self, folder: Path) -> None:
        """Note in `folder` how far it is: only what MLflow has answered for."""
        from gradwatch.storage.folder import write_json  # which takes numpy and pyarrow; to read a cursor takes neither

        write_json(folder / self.FILE, asdict(self))

    @property
    def mark(self) -> tuple[object, ...]:
        """Differs whenever the delivery got on."""
        return self.run_id, self.next_step, len(self.uploaded), self.attempt, self.done


def read_cursor(folder: Path, name: str = CURSOR) -> dict[str, Any]:
    """What the courier noted of its progress; empty before its first note."""
    try:
        return dict(read_json(folder / name))
    except (OSError, ValueError, TypeError):
        return {}


def is_done(cursor: dict[str, Any], folder: Path) -> bool:
    """Whether `cursor` says so of the run's present attempt: a resumed run has more to deliver."""
    try:
        attempt = read_json(folder / "run.json").get("attempt", 0)
    except (OSError, ValueError, AttributeError):
        attempt = 0
    return bool(cursor.get("done")) and cursor.get("attempt", 0) == attempt

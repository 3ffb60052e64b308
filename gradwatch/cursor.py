"""How far a run is delivered, as `cursor.json` keeps it, and how a run stands after a pass of its courier."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gradwatch.delivery import CURSOR, read_cursor
from gradwatch.stores.files import write_json
from gradwatch.stores.keys import Nonfinite


@dataclass
class Cursor:
    """How far a run is delivered: `cursor.json`."""

    tracking_uri: str | None = None
    experiment_id: str | None = None
    run_id: str | None = None
    joined: bool = False
    url: str | None = None
    next_step: int = 0
    last_part: int = -1
    nonfinite: list[Any] = field(default_factory=lambda: list(Nonfinite()))
    uploaded: list[str] = field(default_factory=list)
    attempt: int = 0
    done: bool = False

    @classmethod
    def read(cls, folder: Path) -> Cursor:
        """The cursor of `folder`; a new one before the first delivery."""
        known = {k: v for k, v in read_cursor(folder).items() if k in cls.__dataclass_fields__}
        return cls(**known)

    def save(self, folder: Path) -> None:
        """Note in `folder` how far it is: only what MLflow has answered for."""
        write_json(folder / CURSOR, asdict(self))

    @property
    def mark(self) -> tuple[object, ...]:
        """Differs whenever the delivery got on."""
        return self.run_id, self.next_step, len(self.uploaded), self.attempt, self.done


@dataclass(frozen=True)
class Outcome:
    """How one run stands after a pass: delivered whole (`done`), as far as it goes (`live`: it is not over), or not.

    `error` says why not; a `lasting` one will not pass by waiting, a `slow` one not soon.
    """

    folder: Path
    url: str | None = None
    done: bool = False
    live: bool = False
    error: str | None = None
    lasting: bool = False
    slow: bool = False

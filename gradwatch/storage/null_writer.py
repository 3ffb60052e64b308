"""Stands in for the writer of a run's folder where a process writes none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gradwatch.history import Run
from gradwatch.storage.lazy_block import LazyBlock
from gradwatch.storage.writer import FLUSH_SECONDS


class NullWriter:
    """Stands in for the writer where nothing is to be written: on every rank of a distributed run but the first."""

    def __init__(self, folder: Path, run: Run, flush_seconds: float = FLUSH_SECONDS) -> None:
        self.folder, self.run, self.flush_seconds, self.lost = folder, run, flush_seconds, 0

    def start(self) -> None:
        """Nothing."""

    def append(self, block: LazyBlock) -> None:
        """Nothing."""

    def update(self, **changes: Any) -> None:
        """Change fields of the manifest, in memory."""
        self.run = replace(self.run, **changes)

    def flush(self) -> None:
        """Nothing."""

    def close(self, status: str = "FINISHED") -> None:
        """Nothing."""

    def abandon(self) -> None:
        """Nothing."""

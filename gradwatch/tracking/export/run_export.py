"""What is exported of a run: its tables, or the few curves that MLflow gets too, under the same keys."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from gradwatch.analysis.rules import verdict
from gradwatch.errors import RunError, require
from gradwatch.history import History
from gradwatch.sanitize import public_error
from gradwatch.storage.run_state import run_state
from gradwatch.tracking.metric_keys import Point, windows
from gradwatch.tracking.run_params import run_params

TABLES, TRACKERS = ("csv", "parquet"), ("tensorboard", "wandb", "trackio")  # each tracker is an extra of its name


@dataclass(frozen=True)
class RunExport:
    """A run by its own name, whole and as the parts that share it (itself, where it has none)."""

    name: str
    whole: History
    parts: Sequence[History]

    @cached_property
    def points(self) -> list[Point]:
        """Every point that MLflow gets of the run, by step. What is not finite makes none."""
        found = [
            point
            for part in self.parts
            for window in windows(part, part.run.window, part.run.mlflow_layers, ended=run_state(part.run).over)
            for point in window.points
        ]
        return sorted(found, key=attrgetter("step"))

    def by_step(self) -> Iterator[tuple[int, float, dict[str, float]]]:
        """The points of each step: its number, unix time in seconds, and the values by key."""
        return by_step(self.points)

    @property
    def params(self) -> dict[str, str]:
        """The run's settings, as MLflow shows them, and its verdict."""
        told = {key: value for part in self.parts for key, value in run_params(part.run).items()}
        return {**told, "gradwatch.verdict": verdict(self.whole)}

    @property
    def counted(self) -> str:
        """How much of it there is: `4,500 points of 12 keys`."""
        return f"{len(self.points):,} points of {len({point.key for point in self.points}):,} keys"


def by_step(points: Iterable[Point]) -> Iterator[tuple[int, float, dict[str, float]]]:
    """The points, which are in the order of their steps, by step: its number, unix time in seconds, values by key."""
    for step, at in groupby(points, attrgetter("step")):
        found = list(at)
        yield step, found[-1].timestamp / 1000, {point.key: point.value for point in found}


def export_run(run: RunExport, target: str, out: Path) -> list[str]:
    """Export a run to `target`, one of `TABLES` or `TRACKERS`, under the folder `out`; returns what there is to say.

    What an earlier export of the same run left there is replaced.

    Raises:
        RunError: the tracker is not installed or fails, or `out` cannot be written to.
    """
    if target in TRACKERS:
        require(target, target)
    if target in TRACKERS and not run.points:
        raise RunError(f"{run.name} has no point to export yet: its first window of steps is still open")
    module = importlib.import_module(f"gradwatch.tracking.export.{'tables' if target in TABLES else target}")
    write: Callable[[RunExport, Path], list[str]] = getattr(module, f"write_{target}")
    try:
        out.mkdir(parents=True, exist_ok=True)
        return write(run, out)
    except OSError as error:
        why = error.strerror or error
        raise RunError(f"cannot write to {out}: {why}; pass --out a folder you can write to") from error
    except Exception as error:
        if target in TABLES or isinstance(error, RunError):
            raise
        raise RunError(f"{target} did not take {run.name}: {public_error(error)}") from error

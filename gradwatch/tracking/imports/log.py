"""What another tool logged of a run, as scalars by step, and the run folder that is made of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from gradwatch.errors import RunError
from gradwatch.history import Floats, History, Run
from gradwatch.sanitize import MAX_LOGGED, MAX_LOGGED_NAME, MAX_STEP, printable
from gradwatch.storage.encoding import write_part
from gradwatch.storage.folder import MANIFEST, TABLES, create_folder, now_iso, put, write_json
from gradwatch.storage.logged_names import is_loss
from gradwatch.storage.manifest import check_run
from gradwatch.table import Table, is_logged, stack
from gradwatch.tracking.mlflow_names import OWN

MAX_BYTES = 1 << 30  # of a file that is imported
LANE = "imported"  # where the optimizer's name stands in a run of ours
# What trackers call the total gradient norm before any clip, and the learning rate. In this order: of several that a
# log has, the first is meant.
MEANT = {
    "grad_norm": ("grad_norm", "grad_norm/total", "train/grad_norm", "train_grad_norm", "grad_2.0_norm_total",
                  "grad_norm_total", "gradient_norm", "train/gradient_norm"),
    "lr": ("lr", "learning_rate", "train/learning_rate", "train/lr", "train_lr"),
    "clipped_norm": ("clipped_norm/total",),
    "clip_coef": ("clip/coef",),
    "clip_rate": ("clip/rate",),
}  # fmt: skip
_LR_MONITOR = re.compile(r"lr-\w+(/pg1)?")  # Lightning's LearningRateMonitor, of one optimizer


@dataclass
class Log:
    """Scalars by name and step, unix times by step, and what the file says of the run. NaN and inf are values.

    `ours`: a table of gradwatch's own, whose columns mean what they are called.
    """

    kind: str
    scalars: dict[str, dict[int, float]] = field(default_factory=dict)
    times: dict[int, float] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    total_steps: int | None = None
    notes: list[str] = field(default_factory=list)
    ours: bool = False

    def add(self, name: str, step: int, value: float) -> None:
        """Of a step that was logged twice, the later value counts."""
        if not 0 <= step <= MAX_STEP:
            raise RunError(f"step {step} of {printable(name)} is none: wanted a number from 0 to 2^53")
        self.scalars.setdefault(name, {})[step] = value


def require_size(path: Path) -> None:
    """Refuse a file that is too large to be read whole.

    Raises:
        RunError: so it is.
    """
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise RunError(f"{path} has {size:,} bytes, and at most {MAX_BYTES:,} are imported")


def write_log(log: Log, source: str, name: str, directory: Path, params: Mapping[str, str]) -> Path:
    """A new run folder under `directory` with what was logged; returns it. `source` says where that came from.

    Raises:
        RunError: nothing was logged, or the folder cannot be written.
    """
    columns = _columns(log)
    steps = np.array(sorted({step for values in columns.values() for step in values}), np.int64)
    if not len(steps):
        raise RunError("; ".join([f"{source} holds no scalar of any step", *log.notes]))
    per_step = {key: _values(steps, values) for key, values in {"time": log.times, **columns}.items()}
    bad = _nonfinite(columns)
    if bad:
        per_step["nonfinite"] = np.fmax(per_step.get("nonfinite", 0.0), np.isin(steps, [*bad]).astype(float))
    times = per_step["time"][np.isfinite(per_step["time"])]
    begin, end = (_iso(float(t)) for t in (times.min(), times.max())) if len(times) else (now_iso(), now_iso())
    run = Run(
        name, begin, status="FINISHED", ended=end, total_steps=log.total_steps, source=source, window=1,
        params={**log.params, **params},
    )  # fmt: skip
    lane = np.full(len(steps), LANE, dtype=object)
    history = History(run, stack([]), Table(steps, np.zeros_like(steps), lane, per_step))
    try:
        check_run(run)
    except ValueError as error:
        raise RunError(f"{source} makes no run: {error}") from error
    folder = create_folder(directory, name)
    for table in TABLES:
        (folder / table).mkdir()
        temporary = folder / table / ".part-000000.parquet.tmp"
        write_part(temporary, table, history)
        put(temporary, folder / table / "part-000000.parquet")
    write_json(folder / MANIFEST, run.to_json())
    return folder


def _columns(log: Log) -> dict[str, dict[int, float]]:
    """The scalars by the names that gradwatch has for them; what is of layers is left out, and said."""
    if log.ours:
        return log.scalars
    found = dict(log.scalars)
    rates = [name for name in found if _LR_MONITOR.fullmatch(name)]
    wanted = {**MEANT, "lr": (*MEANT["lr"], *(rates if len(rates) == 1 else ()))}
    out: dict[str, dict[int, float]] = {}
    for ours, names in wanted.items():
        theirs = next((name for name in names if name in found), None)
        if theirs is not None:
            out[ours] = found.pop(theirs)
    of_layers = [name for name in found if name.startswith(OWN)]
    if of_layers:
        log.notes.append(f"{len(of_layers):,} scalars of layers and clips are left out, such as {of_layers[0]}")
    left = [name for name in found if name not in of_layers]
    if len(left) > MAX_LOGGED - len(out):
        log.notes.append(f"of {len(left):,} scalars, the first {MAX_LOGGED - len(out):,} are taken")
    for name in left[: MAX_LOGGED - len(out)]:
        out[(name if is_logged(name) else f"logged/{name}")[:MAX_LOGGED_NAME]] = found[name]
    return out


def _nonfinite(columns: Mapping[str, Mapping[int, float]]) -> set[int]:
    """The steps at which the gradient norm or a loss was logged as inf or NaN: in a column alone, NaN is no value."""
    told = [values for name, values in columns.items() if name == "grad_norm" or is_loss(name)]
    return {step for values in told for step, value in values.items() if not np.isfinite(value)}


def _values(steps: np.ndarray[tuple[int], np.dtype[np.int64]], values: Mapping[int, float]) -> Floats:
    return np.array([values.get(int(step), np.nan) for step in steps], np.float64)


def _iso(time: float) -> str:
    try:
        return datetime.fromtimestamp(time, timezone.utc).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return now_iso()

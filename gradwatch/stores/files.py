"""A run's folder: the manifest and the Parquet parts, the truth that everything else is a view of.

    run.json                  the manifest (`history.Run`)
    model.txt                 the model's structure, as torch prints it
    layers/part-*.parquet     one row per step and layer
    steps/part-*.parquet      one row per step
    cursor.json               how far the courier has come

A part is written under a temporary name and renamed, so a reader never sees half of one. `part-000007` is one flush of
the writer; `part-000000-000063` is closed: the writer has merged those flushes and will not touch them again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gradwatch.errors import RunError
from gradwatch.history import KEY_COLUMNS, History, Run, concat, empty

MANIFEST = "run.json"
TABLES = ("layers", "steps")
_PART = re.compile(r"part-(\d{6})(?:-(\d{6}))?\.parquet")


def create_folder(parent: Path, name: str, now: datetime | None = None) -> Path:
    """A new empty folder `<start time>-<name>` under `parent`.

    Raises:
        RunError: the folder cannot be made.
    """
    stamp = (now or datetime.now()).strftime("%Y%m%d-%H%M%S")
    slug = re.sub(r"[^\w.-]+", "-", name).strip("-.")[:80] or "run"
    for suffix in ["", *(f"-{i}" for i in range(2, 10_000))]:
        folder = parent / f"{stamp}-{slug}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise RunError(f"cannot create {folder}: {error.strerror}; pass dir= a folder you can write to") from error
        return folder
    raise RunError(f"{parent} already holds 10,000 runs named {stamp}-{slug}: pass another run_name")


def write_json(path: Path, data: Any) -> None:
    """Replace `path` in one step, so that a reader sees the old text or the new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(data, indent=1) + "\n")
    temporary.replace(path)


def now_iso() -> str:
    """The current time, UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def list_parts(folder: Path) -> list[tuple[int, int, Path]]:
    """`(first, last, path)` of the parts in `folder`, in order; parts that a merged one already holds are left out."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _PART.fullmatch(path.name)
        if match:
            found.append((int(match[1]), int(match[2] or match[1]), path))
    found.sort(key=lambda part: (part[0], -part[1]))
    kept: list[tuple[int, int, Path]] = []
    for part in found:
        if not kept or part[1] > kept[-1][1]:
            kept.append(part)
    return kept


def is_run_folder(path: Path) -> bool:
    """Whether `path` is the folder of a run."""
    return (path / MANIFEST).is_file()


def read_manifest(folder: Path) -> Run:
    """The run's manifest.

    Raises:
        RunError: there is none, or it cannot be read.
    """
    path = folder / MANIFEST
    try:
        return Run.from_json(json.loads(path.read_text()))
    except FileNotFoundError:
        raise RunError(f"{folder} is not a run folder: it holds no {MANIFEST}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} cannot be read as a run's manifest: {error}") from error


def read_run(folder: Path, since: int = -1) -> History:
    """The run in `folder`, or those of its parts numbered above `since`.

    Missing and unreadable parts are named in `History.problems`; the rest is read.

    Raises:
        RunError: the folder holds no readable manifest.
    """
    run = read_manifest(folder)
    problems: list[str] = []
    tables = {name: list(_read_table(folder, name, run, since, problems)) for name in TABLES}
    parts = [h for histories in tables.values() for h in histories]
    if not parts:
        return empty(run, problems)
    joined = [concat(histories) for histories in tables.values() if histories]
    history = joined[0] if len(joined) == 1 else _join(*joined)
    order = {layer.name: i for i, layer in enumerate(run.layers)}
    names = tuple(sorted(history.layers, key=lambda name: order.get(name, len(order))))
    if names != history.layers:
        columns = [history.layers.index(name) for name in names]
        history = replace(history, layers=names, per_layer={q: v[:, columns] for q, v in history.per_layer.items()})
    return replace(history, problems=tuple(problems))


def last_part(folder: Path) -> int:
    """The number of the newest part that both tables have; -1 when there is none."""
    return min(max((last for _, last, _ in list_parts(folder / t)), default=-1) for t in TABLES)


def _read_table(folder: Path, name: str, run: Run, since: int, problems: list[str]) -> Iterator[History]:
    expected = 0
    for first, last, path in list_parts(folder / name):
        if first > expected:
            problems.append(f"{name}: parts {expected} to {first - 1} are missing")
        expected = last + 1
        if last <= since:
            continue
        try:
            table = pq.read_table(path)
            yield _layers_history(table, run) if name == "layers" else _steps_history(table, run)
        except (OSError, KeyError, ValueError, TypeError, pa.ArrowException) as error:
            problems.append(f"{name}/{path.name} is unreadable ({str(error).splitlines()[0][:120]})")


def _steps_history(table: pa.Table, run: Run) -> History:
    per_step = {n: table[n].to_numpy().astype(np.float64) for n in table.column_names if n not in KEY_COLUMNS}
    optimizer = np.asarray(table["optimizer"].to_pylist(), dtype=object)
    return History(
        run, (), table["step"].to_numpy(), table["attempt"].to_numpy().astype(np.int64), optimizer, {}, per_step
    )


def _layers_history(table: pa.Table, run: Run) -> History:
    step, attempt = table["step"].to_numpy(), table["attempt"].to_numpy().astype(np.int64)
    optimizer = table["optimizer"].combine_chunks().dictionary_encode() if table.num_rows else None
    layer = table["layer"].unify_dictionaries().combine_chunks()
    layer = layer if isinstance(layer, pa.DictionaryArray) else pa.concat_arrays(layer.chunks)
    names = tuple(layer.dictionary.to_pylist())
    column = layer.indices.to_numpy()
    starts = np.ones(len(step), bool)
    starts[1:] = (np.diff(step) != 0) | (np.diff(attempt) != 0)
    row = np.cumsum(starts) - 1
    per_layer = {}
    for name in table.column_names:
        if name not in (*KEY_COLUMNS, "layer"):
            per_layer[name] = np.full((int(starts.sum()), len(names)), np.nan, np.float32)
            per_layer[name][row, column] = table[name].to_numpy()
    optimizers = np.asarray(optimizer.to_pylist() if optimizer is not None else [], dtype=object)
    return History(run, names, step[starts], attempt[starts], optimizers[starts], per_layer, {})


def _join(layers: History, steps: History) -> History:
    """The two tables side by side, on step; a step that only one of them holds has NaN in the other."""
    if np.array_equal(layers.step, steps.step) and np.array_equal(layers.attempt, steps.attempt):
        return replace(layers, per_step=steps.per_step)
    every = np.union1d(layers.step, steps.step)
    rows = {id(h): np.searchsorted(every, h.step) for h in (layers, steps)}

    def spread(h: History, values: Any, fill: Any) -> Any:
        out = np.full((len(every), *values.shape[1:]), fill, values.dtype)
        out[rows[id(h)]] = values
        return out

    attempt = np.maximum(spread(layers, layers.attempt, 0), spread(steps, steps.attempt, 0))
    names = spread(steps, np.asarray(steps.optimizer, dtype=object), None)
    names[rows[id(layers)]] = layers.optimizer
    return History(
        layers.run,
        layers.layers,
        every,
        attempt,
        names,
        {q: spread(layers, v, np.nan) for q, v in layers.per_layer.items()},
        {n: spread(steps, v, np.nan) for n, v in steps.per_step.items()},
    )

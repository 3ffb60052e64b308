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
    names, column = _codes(table["layer"])
    optimizers, who = _codes(table["optimizer"])
    starts = np.ones(len(step), bool)
    starts[1:] = (np.diff(step) != 0) | (np.diff(attempt) != 0) | (np.diff(who) != 0)
    row = np.cumsum(starts) - 1
    per_layer = {}
    for name in table.column_names:
        if name not in (*KEY_COLUMNS, "layer"):
            per_layer[name] = np.full((int(starts.sum()), len(names)), np.nan, np.float32)
            per_layer[name][row, column] = table[name].to_numpy()
    optimizer = np.asarray(optimizers, dtype=object)[who[starts]]
    return History(run, tuple(names), step[starts], attempt[starts], optimizer, per_layer, {})


def _codes(column: pa.ChunkedArray) -> tuple[list[str], Any]:
    """A dictionary column as its names and, for each row, the number of its name."""
    column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()  # of an empty table
    column = column.unify_dictionaries().combine_chunks()
    column = column if isinstance(column, pa.DictionaryArray) else pa.concat_arrays(column.chunks)
    return column.dictionary.to_pylist(), column.indices.to_numpy()


def _join(layers: History, steps: History) -> History:
    """The two tables side by side, on step and optimizer; a row that only one of them holds has NaN in the other."""
    if all(np.array_equal(getattr(layers, key), getattr(steps, key)) for key in KEY_COLUMNS):
        return replace(layers, per_step=steps.per_step)
    keys = {id(h): list(zip(h.step.tolist(), h.optimizer, strict=True)) for h in (layers, steps)}
    every = sorted({*keys[id(layers)], *keys[id(steps)]})
    place = {key: row for row, key in enumerate(every)}
    rows = {name: [place[key] for key in found] for name, found in keys.items()}

    def spread(h: History, values: Any, fill: Any) -> Any:
        out = np.full((len(every), *values.shape[1:]), fill, values.dtype)
        out[rows[id(h)]] = values
        return out

    return History(
        layers.run,
        layers.layers,
        np.array([step for step, _ in every], np.int64),
        np.maximum(spread(layers, layers.attempt, 0), spread(steps, steps.attempt, 0)),
        np.array([name for _, name in every], dtype=object),
        {q: spread(layers, v, np.nan) for q, v in layers.per_layer.items()},
        {n: spread(steps, v, np.nan) for n, v in steps.per_step.items()},
    )

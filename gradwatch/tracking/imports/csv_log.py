"""A CSV file of scalars: Lightning's `metrics.csv`, a tracker's download, gradwatch's own `steps.csv`."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

from gradwatch.errors import RunError
from gradwatch.formatting import listed
from gradwatch.tracking.imports.log import Log

STEP = ("step", "global_step", "_step", "trainer/global_step", "iteration", "iter")  # in this order, whatever the case
TIME = ("time", "_timestamp", "timestamp", "wall time", "wall_time")
COMMA_NUMBER = re.compile(r"\s*([+-]?\d*),(\d+(?:[eE][+-]?\d+)?)\s*")
LAYER = {"layer", "parameter", "param_name"}
OURS = {"optimizer", "step", "time", "grad_norm", "clipped_norm", "clip_coef"}  # a table that gradwatch exported


def read_csv_log(path: Path) -> Log:
    """The numbers of a CSV file with a header. Rows of one step are one: each column has its last cell with a value.

    An empty cell is no value; `nan` and `inf` are values. Without a column of steps, rows are counted from 0. Where `;`
    separates, a comma may stand for the decimal point. The `__MIN` and `__MAX` of a chart that Weights & Biases exports
    are left out.

    Raises:
        RunError: it is no text with a header, has no column of numbers, or a row for each layer.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            separator = max(",;\t", key=first.count)
            rows = csv.reader(file, delimiter=separator)
            header = [name.strip() for name in next(rows, [])]
            return _read(path, header, _with_points(rows) if separator == ";" else rows)
    except (UnicodeDecodeError, csv.Error) as error:
        raise RunError(f"{path} is no CSV file: {error}") from error


def _read(path: Path, header: list[str], rows: Iterable[list[str]]) -> Log:
    ours = set(header) >= OURS
    if LAYER & {name.lower() for name in header}:
        raise RunError(f"{path} has a row for each layer: wanted one for each step, such as gradwatch's steps.csv")
    log, lower = Log("gradwatch's steps.csv" if ours else "a CSV file", ours=ours), [name.lower() for name in header]
    step_at, time_at = _find(lower, STEP), _find(lower, TIME)
    lanes, texts, no_step = set(), set(), 0
    lane_at = header.index("optimizer") if ours else None
    if step_at is None:
        log.notes.append(f"there is no column of steps ({', '.join(STEP[:3])}, ...): rows are counted from 0")
    names = [_unquoted(name) for name in header]
    twice = sorted({name for name in names if name and names.count(name) > 1})
    log.notes += [f"several columns are called {listed(twice)}: the last of them counts"] if twice else []
    names = ["" if name.endswith(("__MIN", "__MAX")) and name[:-5] in names else name for name in names]
    for number, row in enumerate(rows):
        cells = [cell.strip() for cell in row]
        step = float(number) if step_at is None else _number(cells[step_at] if step_at < len(cells) else "")
        if step is None or not step.is_integer():  # NaN and inf are none either
            no_step += 1
            continue
        for at, cell in enumerate(cells[: len(names)]):
            if not cell or at in (step_at, lane_at) or not names[at]:
                continue
            value = _time(cell) if at == time_at else _number(cell)
            if value is None:
                texts.add(names[at])
            elif at == time_at:
                log.times[int(step)] = value
            else:
                log.add(names[at], int(step), value)
        lanes.add(cells[lane_at] if lane_at is not None and lane_at < len(cells) else "")
    if len(lanes) > 1:
        raise RunError(f"{path} holds the steps of {', '.join(sorted(lanes))}: import the rows of one at a time")
    log.notes += [f"{no_step:,} rows without a step, a whole number, are left out"] if no_step else []
    log.notes += [f"columns with text are left out: {listed(sorted(texts))}"] if texts else []
    for name in texts:
        log.scalars.pop(name, None)
    return log


def _with_points(rows: Iterable[list[str]]) -> Iterator[list[str]]:
    """Cells with a decimal comma as Python reads them."""
    return (
        [COMMA_NUMBER.sub(r"\1.\2", cell) if COMMA_NUMBER.fullmatch(cell) else cell for cell in row] for row in rows
    )


def _find(header: list[str], names: tuple[str, ...]) -> int | None:
    return next((header.index(name) for name in names if name in header), None)


def _unquoted(name: str) -> str:
    """Without the quote that an export puts before what a spreadsheet would take for a formula."""
    return name[1:] if name.startswith("'") and name[1:].lstrip().startswith(("=", "+", "-", "@")) else name


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _time(cell: str) -> float | None:
    """Unix seconds, of a number (of milliseconds too) or of a time as ISO 8601 writes it."""
    number = _number(cell)
    if number is not None:
        return number / 1000 if math.isfinite(number) and abs(number) > 1e11 else number
    try:
        return datetime.fromisoformat(cell.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError, OSError):
        return None

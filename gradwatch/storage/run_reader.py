"""Reads a run's folder, all of it or what is new: what a writer adds and merges meanwhile, and what is damaged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gradwatch.errors import RunError
from gradwatch.history import History
from gradwatch.sanitize import printable
from gradwatch.storage.downsample import reduced
from gradwatch.storage.folder import LOOKS, TABLES, Part, last_whole_part, links, list_tables, read_manifest
from gradwatch.storage.joining import join
from gradwatch.storage.parquet import count_values, joined, layers_blocks, limited, read_steps
from gradwatch.storage.run_state import as_it_ended
from gradwatch.table import SAMPLED, Table

MAX_GAPS = 5  # that are named


def read_run(
    folder: Path, since: int = -1, start: int = 0, at_most: int | None = None, steps_only: bool = False
) -> History:
    """The run in `folder`, or those of its parts numbered above `since`.

    Missing and unreadable parts are named in `History.problems`; the rest is read.

    Args:
        folder: the run's folder.
        since: parts up to this number are left out.
        start: steps below this one may be left out.
        at_most: a run that holds more values than this, all layers, steps and quantities, is reduced as it is read:
            see `History`.
        steps_only: only the table of the steps is read, one of a hundred bytes or so.

    Raises:
        RunError: the folder holds no readable manifest.
    """
    for _ in range(LOOKS):
        with contextlib.suppress(_GoneError):
            return _read_cut(folder, since, start, at_most, steps_only)
    raise RunError(f"{folder}: its parts went away {LOOKS} times while they were read; does a program remove them?")


class _GoneError(Exception):
    """A part was there when the folder was listed and is no more: the writer has merged it meanwhile."""


def _read_cut(folder: Path, since: int, start: int, at_most: int | None, steps_only: bool) -> History:
    run = as_it_ended(read_manifest(folder))
    problems: list[str] = []
    parts = list_tables(folder)
    whole = last_whole_part(folder, parts)
    parts |= {key: [] for key in (("layers", *SAMPLED) if steps_only else ())}
    blocks, found, *inside = (
        _read_table(folder / t, parts[t], (since, whole), start, problems) for t in (*TABLES, *SAMPLED)
    )
    steps = joined([*limited(found, folder)], folder)
    if at_most is not None and len(steps) and _values(parts["layers"]) > at_most:
        layers = reduced(blocks, steps, len(run.layers), at_most)
    else:
        layers = joined([*blocks], folder)
    order = {layer.name: i for i, layer in enumerate(run.layers)}
    places = sorted(range(len(layers.layers)), key=lambda i: order.get(layers.layers[i], len(order)))
    if places != [*range(len(places))]:
        layers = layers.of_layers(places)
    sampled = {name: joined([*one], folder) for name, one in zip(SAMPLED, inside, strict=True)}
    history = join(run, layers, steps, (), **sampled)
    if since < 0 and start <= 0 and run.source is None:
        problems += missing_steps(history.step, run.first_step, run.end_step)
    return replace(history, problems=tuple(sorted(problems)))


def missing_steps(step: NDArray[np.int64], first: int | None = None, end: int | None = None) -> list[str]:
    """The steps that a run took, going by the numbers of those before and after, and that are not among `step` `[T]`;
    also those from `first` on and those before `end`, where these are known.
    """
    edges = [] if first is None else [first - 1]
    edges += [] if end is None else [end]
    known = np.unique(np.concatenate([step, np.array(edges, np.int64)]))
    at = np.flatnonzero(np.diff(known) > 1)
    gaps = [(int(known[i]) + 1, int(known[i + 1]) - 1) for i in at]
    count = sum(b - a + 1 for a, b in gaps)
    where = ", ".join(f"{a:,} to {b:,}" if b > a else f"{a:,}" for a, b in gaps[:MAX_GAPS])
    more = f" and {len(gaps) - MAX_GAPS:,} more gaps" if len(gaps) > MAX_GAPS else ""
    return [f"{count:,} steps were not recorded: {where}{more}"] if gaps else []


def _read_table(
    table: Path, parts: Sequence[Part], between: tuple[int, int | None], start: int, problems: list[str]
) -> Iterator[Table]:
    name, expected, (since, until) = table.name, 0, between
    problems += [f"{link.relative_to(table.parent)} is a link, and is not followed" for link in links(table)]
    for part in parts:
        if part.first > expected and name not in SAMPLED:
            problems.append(f"{name}: parts {expected} to {part.first - 1} are missing")
        expected = part.last + 1
        if part.last <= since or (until is not None and part.last > until):
            continue
        try:
            if name == "steps":
                yield read_steps(part.path, start)
            else:
                yield from layers_blocks(part.path, start, SAMPLED.get(name, "layer"))
        except (OSError, KeyError, ValueError, pa.ArrowException) as error:
            if not part.path.exists():
                raise _GoneError from error
            why = printable((str(error).splitlines() or [type(error).__name__])[0][:120])
            problems.append(f"{name}/{part.path.name} is unreadable ({why})")


def _values(parts: Sequence[Part]) -> int:
    """How many values these parts of the layers table hold, as far as they can be read."""
    total = 0
    for part in parts:
        with contextlib.suppress(OSError, ValueError, pa.ArrowException):
            total += count_values(part.path)
    return total

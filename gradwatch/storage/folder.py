"""A run's folder: the manifest and the Parquet parts, the truth that everything else is a view of.

    run.json                  the manifest (`history.Run`)
    model.txt                 the model's structure, as torch prints it
    layers/part-*.parquet     one row per step and layer
    steps/part-*.parquet      one row per step
    activations/part-*        one row per sampled step and module, where activations are recorded: the flushes that have
                              any have a part
    histograms/part-*         the same of sampled steps and layers, where histograms of gradients are
    heads/part-*              the same of sampled steps and heads of attention, where QKClip clips them
    cursor.json               how far the courier has come
    findings.json             what the diagnosis said last

A part is written under a temporary name and renamed, so a reader never sees half of one. `part-000007` is one flush of
the writer, `part-000000-000063` the flushes 0 to 63, merged (`compact`).
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from gradwatch.errors import RunError
from gradwatch.history import Run
from gradwatch.sanitize import is_plain_file, is_plain_folder, read_json, refuse_links
from gradwatch.storage.manifest import run_of
from gradwatch.table import SAMPLED

FSYNC = "GRADWATCH_FSYNC"  # the environment variable
MANIFEST = "run.json"
FINDINGS = "findings.json"
TABLES = ("layers", "steps")  # each flush writes a part of these
ALL_TABLES = (*SAMPLED, *TABLES)  # and first of those of sampled steps, if it has any
FAN_IN = 64  # parts of one level that become one of the next
CLOSED_BYTES = 64 << 20
LOOKS = 100  # at a folder that somebody writes to, before it is given up
_PART = re.compile(r"part-(\d{6,18})(?:-(\d{6,18}))?\.parquet", re.ASCII)


def create_folder(parent: Path, name: str) -> Path:
    """A new empty folder `<start time>-<name>` under `parent`.

    Raises:
        RunError: the folder cannot be made.
    """
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    slug = folder_name(name)
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


def folder_name(name: str) -> str:
    """A run's name as that of a folder, which leads nowhere else, in letters that the file system has (those of an
    ASCII locale are few).
    """
    encoding = sys.getfilesystemencoding()
    known = name.encode(encoding, "replace").decode(encoding)
    return re.sub(r"[^\w.-]+", "-", known).strip("-.")[:80] or "run"


def write_json(path: Path, data: Any) -> None:
    """Replace `path` in one step, so that a reader sees the old text or the new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    with temporary.open("x") as file:  # never through a link that lies there already
        file.write(json.dumps(data, indent=1) + "\n")
    put(temporary, path)


def put(temporary: Path, path: Path) -> None:
    """Let `temporary` be `path`, in one step; where `GRADWATCH_FSYNC` is set, it is on the disk when this returns.

    Raises:
        OSError: the disk refuses. What was at `path` may have been replaced by then.
    """
    durable = os.environ.get(FSYNC, "").lower() in ("1", "true", "yes")
    if durable:
        _sync(temporary)  # first: a name must never lead to what is not there
    temporary.replace(path)
    if durable and os.name == "posix":  # elsewhere folders cannot be opened
        _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def now_iso() -> str:
    """The current time, UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


class Part(NamedTuple):
    """A Parquet file of a table: the flushes `first` to `last`."""

    first: int
    last: int
    path: Path

    @property
    def level(self) -> int:
        """0 for up to 63 flushes, 1 for 64 and more, 2 for 4,096 and more."""
        flushes = self.last - self.first + 1
        return 2 if flushes >= FAN_IN**2 else int(flushes >= FAN_IN)


def is_closed(part: Part) -> bool:
    """Whether the writer will never touch this part again."""
    return part.level == 2 or part.path.stat().st_size >= CLOSED_BYTES


def list_parts(folder: Path) -> list[Part]:
    """The parts in `folder`, in order; those that a merged one already holds are left out, and so are links: what a
    run folder of somebody else's links to is not theirs to show, or to have uploaded.
    """
    found = []
    for path in folder.iterdir() if is_plain_folder(folder) else ():
        match = _PART.fullmatch(path.name)
        if match and is_plain_file(path):
            found.append(Part(int(match[1]), int(match[2] or match[1]), path))
    found.sort(key=lambda part: (part.first, -part.last))
    kept: list[Part] = []
    for part in found:
        if not kept or part.last > kept[-1].last:
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
        return run_of(read_json(path))
    except FileNotFoundError:
        raise RunError(f"{folder} is not a run folder: it holds no {MANIFEST}") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read as a run's manifest: {error}") from error


def last_part(folder: Path) -> int:
    """The number of the newest part that both tables have; -1 when there is none."""
    return min(max((last for _, last, _ in list_parts(folder / t)), default=-1) for t in TABLES)


def list_tables(folder: Path) -> dict[str, list[Part]]:
    """The parts of each table as they were at one moment, though a writer adds parts to one table after the other and
    merges them meanwhile: all are listed until two looks in a row agree.
    """
    seen: dict[str, list[Part]] = {}
    for _ in range(LOOKS):
        now = {table: list_parts(folder / table) for table in reversed(ALL_TABLES)}  # in `steps` last
        if now == seen:
            break
        seen = now
    return seen


def last_whole_part(folder: Path, parts: Mapping[str, Sequence[Part]]) -> int | None:
    """The number of the newest of these `parts` that both tables have, where one has just one more: its writer was
    interrupted between the two, or is about to write the other. None where that is not so.
    """
    if not all(is_plain_folder(folder / t) for t in TABLES):
        return None
    lasts = sorted(max((last for _, last, _ in parts[t]), default=-1) for t in TABLES)
    return lasts[0] if lasts[1] == lasts[0] + 1 else None


def links(table: Path) -> list[Path]:
    """The links in the place of a table's folder, or of parts of it."""
    if not is_plain_folder(table):
        return [table] if table.is_symlink() else []
    with os.scandir(table) as entries:
        return sorted(table / entry.name for entry in entries if entry.is_symlink())


def tidy(folder: Path) -> None:
    """Remove half-written files, parts that a merged one holds, and the last part of a table that lacks its fellow.

    Only for the writer, who has the folder alone.

    Raises:
        RunError: a link lies there, and nothing is removed.
    """
    refuse_links(link for table in ALL_TABLES for link in links(folder / table))
    whole = last_whole_part(folder, list_tables(folder))
    for path in folder.glob(f".{MANIFEST}.*.tmp"):
        path.unlink()
    for table in ALL_TABLES:
        parts = list_parts(folder / table)
        most = last_part(folder) if table in SAMPLED else whole  # written first: the others may lack its last
        kept = {part.path for part in parts if most is None or part.last <= most}
        for path in [*(folder / table).glob(".part-*.tmp"), *(folder / table).glob("part-*.parquet")]:
            if path not in kept:
                path.unlink()

"""Which reader a file is for, and the run that is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gradwatch.errors import RunError
from gradwatch.formatting import listed
from gradwatch.tracking.imports.csv_log import read_csv_log
from gradwatch.tracking.imports.event_files import MARK, read_events
from gradwatch.tracking.imports.log import Log, require_size, write_log
from gradwatch.tracking.imports.trainer_state import NAME, read_trainer_state

OFTEN = {"trainer_state", "metrics", "steps"}  # names of a file that say nothing of the run
WANTED = f"wanted {NAME}, TensorBoard's event file, a CSV file, or a folder that holds one of these"


def import_run(path: Path, directory: Path, name: str | None, params: Mapping[str, str]) -> tuple[Path, list[str]]:
    """A run folder under `directory` made of what another tool logged; returns it, and what was left out.

    `path` is a file, or the folder of one run that holds one.

    Raises:
        RunError: it is nothing that can be read, or the folder cannot be written.
    """
    try:
        files, others = _files(path)
        for file in files:
            require_size(file)
        log = _read(files)
        if others:
            log.notes.append(f"{files[0].name} was read; what lies beside it was not: {listed(others)}")
        stem = files[0].stem  # trainer_state, metrics: the folder tells more
        given = name or (stem if len(files) == 1 and stem not in OFTEN and MARK not in stem else _parent_name(files[0]))
        return write_log(log, f"{log.kind} ({files[0].name})", given, directory, params), log.notes
    except OSError as error:
        raise RunError(f"cannot import {path}: {error.strerror or error}") from error


def _parent_name(path: Path) -> str:
    """What the folder of a file is called."""
    return path.resolve().parent.name or "imported"


def _files(path: Path) -> tuple[list[Path], list[str]]:
    """The file, or of a folder the first of the kinds it holds; of event files all. And the names of the other logs."""
    if not path.is_dir():
        return [path], []
    patterns = NAME, "steps.csv", f"*{MARK}*", "metrics.csv"
    kinds = [[file for file in sorted(path.glob(pattern)) if file.is_file()] for pattern in patterns]
    first, *others = [found for found in kinds if found] or [[]]
    if not first:
        raise RunError(f"{path} holds no log directly in it: {WANTED}")
    return first, [found[0].name for found in others]


def _read(files: list[Path]) -> Log:
    first = files[0]
    if MARK in first.name:
        return read_events(files)
    if first.suffix == ".json":
        return read_trainer_state(first)
    if first.suffix.lower() in (".csv", ".tsv"):
        return read_csv_log(first)
    raise RunError(f"{first} is nothing that can be imported by its name: {WANTED}")

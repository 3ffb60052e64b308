"""Settings from `gradwatch.toml`, or `[tool.gradwatch]` in `pyproject.toml`; the command line wins over both."""

from __future__ import annotations

import importlib
import os
import stat
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradwatch.errors import RunError
from gradwatch.sanitize import MAX_SETTINGS_FILE

FILE, PROJECT = "gradwatch.toml", "pyproject.toml"
MAX_DOTS = 1_000  # in a line: tomllib takes a time that grows with the square of a key's


@dataclass(frozen=True)
class Config:
    """What one file says: the settings of `run`, and a table for each other command."""

    path: Path | None = None
    table: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, command: str, known: Iterable[str], tables: Iterable[str] = ("sweep",)) -> dict[str, Any]:
        """The settings of `command`, by the names of its options (`run_name`). Those of `run` stand at the top.

        Other commands take those of `run` that they know too, and their own table wins.

        Raises:
            RunError: a setting is not among `known`, or there twice.
        """
        known, tables = sorted(known), set(tables)
        top = {k: v for k, v in self.table.items() if k not in tables}
        own = {} if command == "run" else self.table.get(command, {})
        if not isinstance(own, Mapping):
            raise RunError(f"{self.path}: {command} = {own!r}: wanted a table, [{command}]")
        self._refuse(top if command == "run" else own, known, "" if command == "run" else f"{command}.")
        return {_name(k): v for k, v in {**top, **own}.items() if _name(k) in known}

    def _refuse(self, found: Iterable[str], known: list[str], prefix: str) -> None:
        unknown = [key for key in found if _name(key) not in known]
        if unknown:
            names = ", ".join(known).replace("_", "-")
            raise RunError(f"{self.path}: there is no setting {prefix}{unknown[0]}; known: {names}")
        names = [_name(key) for key in found]
        twice = next((key for key in found if names.count(_name(key)) > 1), None)
        if twice is not None:
            raise RunError(f"{self.path}: {prefix}{twice} is set twice, with - and with _; wanted one of them")


def find_config(start: Path | None = None) -> Config:
    """The nearest file, in the working directory or above it; an empty Config without one.

    Raises:
        RunError: it cannot be read, or is no TOML.
    """
    folder = (start or Path.cwd()).resolve()
    for parent in (folder, *folder.parents):
        if os.path.lexists(parent / FILE):
            return Config(parent / FILE, _load(parent / FILE))
        if os.path.lexists(parent / PROJECT):
            tools = _load(parent / PROJECT).get("tool")
            table = tools.get("gradwatch") if isinstance(tools, Mapping) else None
            if table is not None and not isinstance(table, Mapping):
                raise RunError(f"{parent / PROJECT}: tool.gradwatch = {table!r}: wanted a table, [tool.gradwatch]")
            if table is not None:
                return Config(parent / PROJECT, table)
    return Config()


def _name(key: str) -> str:
    return key.replace("-", "_")


def _load(path: Path) -> dict[str, Any]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        text = _read(path)
        if any(line.count(".") > MAX_DOTS for line in text.splitlines()):
            raise RecursionError
        table: dict[str, Any] = toml.loads(text)
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
    except RecursionError:
        raise RunError(f"{path} cannot be read: it is nested too deeply") from None
    return table


def _read(path: Path) -> str:
    """The text of a file that may be a link, but to no pipe, device or folder, and is not huge."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is no file; remove it, or put the settings in its place")
    if found.st_size > MAX_SETTINGS_FILE:
        raise ValueError(f"it has {found.st_size:,} bytes, and at most {MAX_SETTINGS_FILE:,} are read")
    return path.read_text(encoding="utf-8-sig")

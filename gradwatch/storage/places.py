"""Places that stay where they are when a training changes its working directory, as Hydra and notebooks do."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

from gradwatch.errors import RunError
from gradwatch.sanitize import one_line

TRACKERS = ("mlflow", "tensorboard")  # where a run can be delivered to while it goes on
_SQLITE = re.compile(r"(sqlite(?:\+\w+)?:///)(?!/|:memory:|file:)([^?]+)(.*)", re.DOTALL)
_NAMES = ("databricks", "databricks-uc", "uc")  # what MLflow takes for a service, not for a folder


def working_directory() -> str | None:
    """The working directory; None where it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return None


def absolute_folder(path: str | Path) -> Path:
    """The folder by its path from the root on.

    Raises:
        RunError: the path is relative to a working directory that was removed.
    """
    try:
        return Path(path).absolute()
    except OSError as error:
        raise RunError(f"there is no {path}: the working directory was removed; pass dir= an absolute path") from error


def sqlite_file(uri: str) -> Path | None:
    """The database file of a `sqlite:///` URI; None for any other store."""
    match = re.match(r"sqlite(?:\+\w+)?:///([^?]+)", uri)
    return Path(unquote(match[1])).resolve() if match else None


def absolute_uri(uri: str) -> str:
    """A tracking URI as it holds in every working directory: SQLite files and folders by their absolute paths.

    Where the working directory was removed, as it is.
    """
    if working_directory() is None:
        return uri
    sqlite = _SQLITE.fullmatch(uri)
    if sqlite:
        return f"{sqlite[1]}{os.path.abspath(sqlite[2])}{sqlite[3]}"
    if re.match(r"file:[^/]", uri):
        return Path(os.path.abspath(unquote(uri.removeprefix("file:")))).as_uri()
    return uri if uri in _NAMES or re.match(r"$|[\w+.-]+:", one_line(uri)) else os.path.abspath(uri)

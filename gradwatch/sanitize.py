"""What comes from strangers, runs and names above all: how much of it is read, and text that steers nothing.

The limits are far above what a training makes, and low enough that no run can exhaust a machine. docs/security.md
lists them.
"""

from __future__ import annotations

import json
import math
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from gradwatch.errors import RunError

_USERINFO = re.compile(r"(\b[a-z][\w+.-]*://)[^\s/?#]*@", re.IGNORECASE)


def public_uri(uri: str) -> str:
    """`uri` without the user name and password it may hold: what may go to a file, a log or the screen."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if "@" in parts.netloc else uri


def public_text(text: str) -> str:
    """`text` with the user names and passwords of the addresses in it left out: what others say in their errors."""
    return _USERINFO.sub(r"\1", text)


def public_error(error: BaseException) -> str:
    """The error as one line of at most 300 characters, without the passwords of any address in it."""
    return public_text(" ".join(str(error).split()))[:300] or type(error).__name__


MAX_JSON = 32 << 20  # bytes of a manifest or another JSON file of a run folder
MAX_LAYERS = 100_000
MAX_LANES = 256  # optimizers (or parts) of one run that step on their own
MAX_NAME = 20_000  # characters of a name
MAX_STEP = 2**53  # the highest step number: what a float still counts
MAX_COUNT = 2**31 - 1  # of attempts, settings and process ids
MAX_COLUMNS = 10_000  # of a Parquet part
MAX_FOOTER = 16 << 20  # bytes of a part's own description
MAX_FOOTER_VALUES = 4_000_000  # that are in that description
MAX_GROUP_VALUES = 1 << 27  # rows x columns of a row group, and of a table made of one: 0.5 GB
MAX_JOINT_VALUES = 1 << 28  # steps x layers x quantities of parts that have few layers in common: 1 GB
MAX_STEPS_VALUES = 1 << 28  # rows x columns of a run's steps table: 2 GB
MAX_DOWNLOAD = 64 << 30  # bytes of the files that are fetched of an MLflow run

_COMMAND = re.compile(r"^(\s*)::|##(?=\[)")
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~&$!])")


# --------------------------------------------------------------------------------------------------------------- files


def is_plain_file(path: Path) -> bool:
    """Whether `path` is a file itself: no link to one, no pipe, no device."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def is_plain_folder(path: Path) -> bool:
    """Whether `path` is a folder itself, and no link to one."""
    return path.is_dir() and not path.is_symlink()


def refuse_links(paths: Iterable[Path]) -> None:
    """Refuse to write or to remove where one of these is a link: what it leads to is not the run's.

    Raises:
        RunError: so it is.
    """
    for path in paths:
        if path.is_symlink():
            raise RunError(
                f"{path} is a link, and what a run writes and removes lies in its own folder: put in its place what "
                "it leads to (another disk can be mounted there: mount --bind), or move the whole folder"
            )


def read_json(path: Path) -> Any:
    """What a JSON file says that anybody may have written.

    Raises:
        OSError: it is not there, or cannot be read.
        ValueError: it is no plain file, no JSON, too large or nested too deeply.
    """
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is a link or no file, and only files of the folder itself are read")
    if found.st_size > MAX_JSON:
        raise ValueError(f"it has {found.st_size:,} bytes, and at most {MAX_JSON:,} are read")
    try:
        return json.loads(path.read_bytes())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


# ---------------------------------------------------------------------------------------------------------------- text


def printable(text: str) -> str:
    """Text without control characters, marks that turn the direction of writing, and what else is not seen."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "�" for sign in text)


def terminal(text: str) -> str:
    """One line for a terminal or a log: no control characters, and no command to a GitHub workflow."""
    return _COMMAND.sub(lambda found: f"{found[1]}�::" if found[1] is not None else "##�", printable(text))


def markdown(text: str) -> str:
    """Text in one line that Markdown shows as it is: no element, no link, no picture."""
    return _MARKDOWN.sub(r"\\\1", printable(" ".join(text.split())))


def formula_free(value: Any) -> Any:
    """A cell of a CSV file that no spreadsheet takes for a formula (OWASP, CSV injection); numbers stay as they are."""
    return f"'{value}" if isinstance(value, str) and value.lstrip().startswith(("=", "+", "-", "@")) else value


def plain(value: Any) -> Any:
    """What JSON can hold: tuples as lists, keys as text, numbers that are not finite as None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

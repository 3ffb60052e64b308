"""What comes from strangers, runs and names above all: how much of it is read, and text that steers nothing.

The limits are far above what a training makes, and low enough that no run can exhaust a machine. docs/security.md
lists them.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus, urlsplit

from gradwatch.errors import RunError

# What a scheme is followed by. Of http, as urllib reads it, the login ends at the last @ before a /, ? or #; one whose
# password holds these makes no port of what follows the colon. Elsewhere it is SQLAlchemy's: a password may hold
# anything but an @. What is left out is never less than that.
_LOGIN = (
    r"(\bhttps?://)(?:[^{space}/?#:\[]*:(?!\d*(?:[/?#\s]|$))[^{space}@]*@)?(?:[^{space}/?#]*@)?"
    r"|(\b(?!https?:)[\w+.-]+://)(?:[^{space}:/]*:[^{space}@]*@(?:[^{space}?]*@)?|[^{space}/?#]*@)"
)
_LOGIN_OF_ADDRESS = re.compile(_LOGIN.format(space=""), re.IGNORECASE)
_LOGIN_IN_TEXT = re.compile(_LOGIN.format(space=r"\s"), re.IGNORECASE)
_SETTING = re.compile(r"[?&#;]([^\s=?&#;]*)=")
_SECRET = re.compile(
    r"pass|pwd|secret|token|credential|auth|signature|odbc_connect|(?:api|access|account|private)[_-]?key"
    r"|^(?:user|user_?name|user_?id|uid|login|key|sig)$",
    re.IGNORECASE,
)
_NO_SECRET = re.compile(r"tokens|tokeni[sz]\w*|passes|author(?!i)\w*", re.IGNORECASE)
HIDDEN = "***"  # stands for a secret
MAX_PARAM = 6_000  # characters: what MLflow keeps of a param
MAX_LINE = 10_000  # characters of a line that others wrote; the rest is left out


def is_secret(name: str) -> bool:
    """Whether what goes by this name is a secret: `api_key`, `--hf-token`, `password`; not `max_tokens`."""
    return _SECRET.search(_NO_SECRET.sub("", name.lstrip("-"))) is not None


def public_uri(uri: str) -> str:
    """`uri` without the user name and password it may hold: what may go to a file, a log or the screen.

    They may stand before the host, as urllib or SQLAlchemy reads them, or among the settings behind the `?`.
    """
    return _without_settings(_LOGIN_OF_ADDRESS.sub(_scheme, one_line(uri)), "")


def public_text(text: str) -> str:
    """`text` with the user names and passwords of the addresses in it left out: what others say in their errors."""
    own = os.environ.get("MLFLOW_TRACKING_URI")
    if own and own in text:  # whole, as it may hold spaces
        text = text.replace(own, public_uri(own))
    lines = (line[:MAX_LINE] for line in text.split("\n"))
    return "\n".join(_without_settings(_LOGIN_IN_TEXT.sub(_scheme, line), r"\s") for line in lines)


def one_line(uri: str) -> str:
    """As urllib reads an address: without tabs and line breaks, which would hide its scheme."""
    return re.sub(r"[\t\r\n]", "", uri)


def _scheme(found: re.Match[str]) -> str:
    return found[1] or found[2]


def _without_settings(text: str, space: str) -> str:
    """Without `password=...` and its like; a value ends at the next `&`, or where a character of `space` is."""
    out, at, end = "", 0, re.compile(rf"[&{space}]|$")
    for found in _SETTING.finditer(text):
        if found.start() >= at and _SECRET.search(unquote_plus(found[1])):
            ended = end.search(text, found.end())
            out, at = out + text[at : found.start(1)], ended.start() if ended else len(text)
    return re.sub(r"[?&#;]+(?=\s|$)", "", re.sub(r"(?<=[?&#;])&+", "", out + text[at:])) if at else text


def check_uri(uri: str) -> None:
    """Refuse an address that urllib cannot read.

    Raises:
        ValueError: why, in words that hold nothing of the address but its scheme.
    """
    try:
        parts = urlsplit(uri)
        if parts.scheme in ("http", "https") and (parts.port == 0 or not parts.hostname or re.search(r"\s", uri)):
            raise ValueError
    except ValueError:  # its own words may hold half a password
        scheme = uri.partition("://")[0][:20] if "://" in uri else ""
        raise ValueError(
            f"{scheme or 'it'}://... is no address: wanted such as http://host:5000, and a / ? # @ [ or space in a "
            "password as %2F %3F %23 %40 %5B %20"
        ) from None


def public_error(error: BaseException) -> str:
    """The error as one line of about 300 characters, without the passwords of any address in it."""
    return cut(public_text(" ".join(str(error).split()))) or type(error).__name__


def cut(text: str, most: int = 300) -> str:
    """A text of one line, or the words of it that come to `most` characters, and an ellipsis."""
    return text if len(text) <= most else f"{text[:most].rpartition(' ')[0] or text[:most]} …"


MAX_JSON = 32 << 20  # bytes of a manifest or another JSON file of a run folder
MAX_SETTINGS_FILE = 1 << 20  # bytes of gradwatch.toml or pyproject.toml
MAX_LAYERS = 100_000
MAX_LANES = 256  # optimizers (or parts) of one run that step on their own
MAX_NAME = 20_000  # characters of a name
MAX_STEP = 2**53  # the highest step number: what a float still counts
MAX_COUNT = 2**31 - 1  # of attempts, settings and process ids
MAX_COLUMNS = 10_000  # of a Parquet part
MAX_LOGGED = 4_000  # names of scalars that a run logs: with its own columns they fit in a part
MAX_LOGGED_NAME = 250  # characters of such a name, as many as of an MLflow key
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

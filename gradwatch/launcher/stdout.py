"""Numbers out of what a script prints: its standard output passes through unchanged, and patterns are looked for."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any

from gradwatch.errors import RunError
from gradwatch.recording import open_watches

LONGEST = 1 << 16  # characters of a line that are looked at


class Tee:
    """Stands in for `sys.stdout`. `patterns` are pairs of a name and a regular expression.

    In every line that is complete, the last group of the first match (the whole match without a group) is logged under
    the name, if it is a number.
    """

    def __init__(self, stream: Any, patterns: Sequence[tuple[str, str]]) -> None:
        self._stream, self._line = stream, ""
        self._patterns = [(name, re.compile(pattern)) for name, pattern in patterns]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Any:
        return iter(self._stream)

    def write(self, text: str) -> int:
        """Write, then look at the lines that are complete."""
        written: int = self._stream.write(text)
        if "\n" not in text and "\r" not in text:  # a script may print dots for hours
            self._line = (self._line + text)[-LONGEST:]
            return written
        *lines, self._line = re.split(r"[\r\n]", self._line + text)
        for line in lines:
            self._look(line)
        return written

    def writelines(self, lines: Any) -> None:
        """Write each."""
        for line in lines:
            self.write(line)

    def _look(self, line: str) -> None:
        for name, pattern in self._patterns:
            match = pattern.search(line)
            if match is not None:
                with contextlib.suppress(ValueError, TypeError):
                    open_watches.log(**{name: float(match[match.lastindex or 0].replace(",", ""))})


def parse_pattern(text: str) -> tuple[str, str]:
    """`NAME=PATTERN` as a pair.

    Raises:
        RunError: it is not of that form, or the pattern is no regular expression.
    """
    name, equals, pattern = text.partition("=")
    try:
        re.compile(pattern)
    except re.error as error:
        raise RunError(f"--metric-regex {text!r}: {pattern!r} is no regular expression ({error})") from error
    if not (name and equals and pattern):
        raise RunError(f"--metric-regex {text!r}: wanted NAME=PATTERN, such as 'accuracy=acc: ([0-9.]+)'")
    return name, pattern

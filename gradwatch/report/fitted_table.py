"""Tables and lines of text that fit the terminal's width: no word and no number is ever broken.

What a narrow terminal has no room for are whole columns, the least important first, and a line below names them. Where
not even the important ones fit side by side, rows are stacked: each is a few lines of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from gradwatch.sanitize import terminal

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

GAP = "  "
STACKED = "  "  # the indent of what stands below a stacked row's first cell
_BETWEEN_WORDS = re.compile(r"(?<=[A-Za-z,;]) (?=[A-Za-z])")  # `-41 % (-52 to -27 %)` stays in one piece
MOST_NAMED = 8


@dataclass(frozen=True)
class FittedTable:
    """A table of text. `ranks`: how important each column is, 0 is never left out, higher goes first, 1 wraps others.

    The first `left` columns are aligned to the left. `elsewhere` says where all columns are.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    ranks: Sequence[int]
    left: int = 1
    elsewhere: str = "A wider terminal has them."

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """The lines, at most `options.max_width` wide; a name that is longer than that stays whole."""
        headers = [terminal(header) for header in self.headers]
        rows = [[terminal(cell) for cell in row] for row in self.rows]
        columns = [list(column) for column in zip(headers, *rows, strict=True)]
        kept = self._kept(columns, options.max_width)
        if kept is None:
            yield from _stacked(headers, rows, options.max_width)
            return
        sizes = _widths([columns[i] for i in kept], options.max_width)
        lines = [_line([row[i] for i in kept], sizes, self._left(kept)) for row in (headers, *rows)]
        yield from (_text(line, "bold") for line in lines[0])
        yield _text("─" * _across(sizes), "dim")
        yield from (_text(line) for row in lines[1:] for line in row)
        dropped = [header for i, header in enumerate(headers) if i not in kept]
        if dropped:
            more = f" and {len(dropped) - MOST_NAMED} more" if len(dropped) > MOST_NAMED else ""
            said = f"Not shown for want of width: {', '.join(dropped[:MOST_NAMED])}{more}. {self.elsewhere}"
            yield from Lines([said], "dim").__rich_console__(console, options)

    def _left(self, kept: Sequence[int]) -> int:
        return sum(i < self.left for i in kept)

    def _kept(self, columns: list[list[str]], width: int) -> list[int] | None:
        """The columns that fit, the important ones first; None where these alone do not."""
        alike = [len(column) > 2 and len(set(column[1:])) == 1 for column in columns]  # says nothing of any row
        kept = [i for i, rank in enumerate(self.ranks) if rank == 0]
        if _across(_least(columns[i]) for i in kept) > width:
            return None
        for i in sorted(set(range(len(columns))) - {*kept}, key=lambda i: (alike[i], self.ranks[i])):
            size = _least if self.ranks[i] == 1 and not alike[i] else _whole  # for no other column cells are wrapped
            if _across(size(columns[j]) for j in (*kept, i)) <= width:
                kept.append(i)
        return sorted(kept)


@dataclass(frozen=True)
class Lines:
    """Lines of text, wrapped between words; what follows a wrapped line is indented as its beginning, or to `hang`."""

    lines: Sequence[str]
    style: str = ""
    hang: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """The lines; a word that is longer than the terminal is wide (an address) stays whole."""
        for line in self.lines:
            yield from (_text(part, self.style) for part in wrapped(terminal(line), options.max_width, self.hang))


@dataclass(frozen=True)
class Facts:
    """Pairs of word and value, the values below each other; each is `(word, value, style of the value)`."""

    pairs: Sequence[tuple[str, str, str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """The lines."""
        wide = max((cell_len(terminal(word)) for word, _, _ in self.pairs), default=0)
        for word, value, style in self.pairs:
            head = _padded(terminal(word), wide) + GAP
            first, *more = wrapped(head + terminal(value), options.max_width, wide + len(GAP))
            line = _text(first, style)
            line.stylize("not bold dim default", 0, len(head))
            yield line
            yield from (_text(part, style) for part in more)


def wrapped(line: str, width: int, hang: int = 0) -> list[str]:
    """The line in pieces of at most `width` cells, broken at spaces; before the later ones its indent, and `hang` more.

    A single word that is wider stays whole.
    """
    if cell_len(line) <= width:
        return [line]
    body = line.lstrip(" ")
    indent = line[: len(line) - len(body)]
    later = indent + " " * hang
    pieces, here = [], indent + body.split(" ")[0]
    for word in body.split(" ")[1:]:
        if cell_len(here) + 1 + cell_len(word) <= width:
            here += f" {word}"
        else:
            pieces.append(here.rstrip())
            here = later + word
    return [*pieces, here]


def _least(column: Sequence[str]) -> int:
    """The width that a column needs: of its header the longest word, of its cells the longest piece."""
    words = [*column[0].split(" "), *(piece for cell in column[1:] for piece in _BETWEEN_WORDS.split(cell))]
    return max(map(cell_len, words))


def _whole(column: Sequence[str]) -> int:
    """The width at which none of its cells is wrapped; its header may be."""
    return max(_least(column), *map(cell_len, column[1:]), 0)


def _across(sizes: Iterable[int]) -> int:
    """The width of columns of these sizes beside each other."""
    sizes = list(sizes)
    return sum(sizes) + len(GAP) * (len(sizes) - 1)


def _widths(columns: Sequence[Sequence[str]], width: int) -> list[int]:
    """The width of each column: what it needs, and while there is room what its cells, then its header have use for.

    Those come first that want least: one long cell does not wrap every other column.
    """
    sizes = [_least(column) for column in columns]
    for wanted in ([_whole(column) for column in columns], [max(map(cell_len, column)) for column in columns]):
        for i in sorted(range(len(sizes)), key=lambda i: wanted[i] - sizes[i]):
            sizes[i] += max(0, min(width - _across(sizes), wanted[i] - sizes[i]))
    return sizes


def _line(row: Sequence[str], sizes: Sequence[int], left: int) -> list[str]:
    """A row of the table as one line of text, or as several where a cell is wrapped."""
    cells = [_pieces(cell, size) for cell, size in zip(row, sizes, strict=True)]
    high = max(map(len, cells), default=0)
    return [
        GAP.join(
            _padded(cell[at] if at < len(cell) else "", size, right=i >= left)
            for i, (cell, size) in enumerate(zip(cells, sizes, strict=True))
        ).rstrip()
        for at in range(high)
    ]


def _pieces(cell: str, width: int) -> list[str]:
    """The cell in lines of at most `width`: of a header and of prose whole words, of a number one piece."""
    if cell_len(cell) <= width:
        return [cell]
    words = _BETWEEN_WORDS.split(cell)
    if max(map(cell_len, words)) > width:  # a header such as `p99 norm`
        words = cell.split(" ")
    lines: list[str] = []
    here = words[0]
    for word in words[1:]:
        if cell_len(here) + 1 + cell_len(word) <= width:
            here += f" {word}"
        else:
            lines, here = [*lines, here], word
    return [*lines, here]


def _stacked(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[Text]:
    """Each row as its first cell, and below it the other columns with their headers, several in a line."""
    for row in rows:
        yield from (_text(part, "bold") for part in wrapped(row[0], width, len(STACKED)))
        here = ""
        for header, cell in ((h, c) for h, c in zip(headers[1:], row[1:], strict=True) if c):
            said = f"{header}: {cell}"
            if here and len(STACKED) + cell_len(here) + len(" · ") + cell_len(said) <= width:
                here += f" · {said}"
                continue
            yield from (_text(part) for part in wrapped(STACKED + here, width, len(STACKED)) if here)
            here = said
        yield from (_text(part) for part in wrapped(STACKED + here, width, len(STACKED)) if here)


def _padded(text: str, width: int, right: bool = False) -> str:
    space = " " * max(0, width - cell_len(text))
    return space + text if right else text + space


def _text(line: str, style: str = "") -> Text:
    """A line as it is: rich neither wraps it nor cuts it."""
    return Text(line, style=style, no_wrap=True, overflow="ignore")

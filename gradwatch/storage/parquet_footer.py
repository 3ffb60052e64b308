"""What a Parquet file says of its row groups, read without pyarrow, which ends the process on some that are malformed.

`pyarrow.parquet.RowGroupMetaData.column` raises in C++, where Python cannot catch it, for a column that says to be
encrypted or whose size statistics do not fit. Thrift's compact protocol is short:
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md, and
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift numbers the fields.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from gradwatch.sanitize import MAX_FOOTER, MAX_FOOTER_VALUES, is_plain_file

_BOOLS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _MAP, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 11, 12


class Column(NamedTuple):
    """A column of a row group: its values, its bytes when unpacked, the largest value if that is known and a number."""

    values: int
    size: int
    largest: int | None


class Group(NamedTuple):
    """A row group."""

    rows: int
    columns: list[Column]


def row_groups(path: Path) -> list[Group]:
    """The row groups of a Parquet file, as it describes them.

    Raises:
        ValueError: it is no plain file, no Parquet file, or needs very much to describe itself.
        OSError: it cannot be read.
    """
    if not is_plain_file(path):
        raise ValueError("it is a link or no file")
    with path.open("rb") as raw:
        end = raw.seek(0, 2) - 8
        raw.seek(max(0, end))
        tail = raw.read(8)
        size = int.from_bytes(tail[:4], "little")
        if size > MAX_FOOTER:
            raise ValueError(f"it needs more than {MAX_FOOTER:,} bytes to describe itself")
        if tail[4:] != b"PAR1" or size > end:
            raise ValueError("it is no Parquet file, or cut short")
        raw.seek(end - size)
        data = raw.read(size)
    try:
        return [_group(group) for group in _Reader(data).struct().get(4, [])]
    except (IndexError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("what it says of its row groups cannot be understood") from None


def _group(fields: dict[int, Any]) -> Group:
    return Group(int(fields[3]), [_column(chunk[3]) for chunk in fields[1]])


def _column(fields: dict[int, Any]) -> Column:
    largest = fields.get(12, {}).get(5)  # of statistics, max_value
    return Column(int(fields[5]), int(fields[6]), largest and int.from_bytes(largest, "little", signed=True))


class _Reader:
    """Reads Thrift's compact protocol: structs as dicts by field number, lists as lists."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.left = data, 0, MAX_FOOTER_VALUES

    def struct(self) -> dict[int, Any]:
        fields, number = {}, 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            kind = head & 15
            fields[number] = kind == 1 if kind in _BOOLS else self._value(kind)
        return fields

    def _value(self, kind: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"it says more than {MAX_FOOTER_VALUES:,} things of itself")
        if kind == _STRUCT:
            return self.struct()
        if kind in _INTEGERS:
            return self._integer()
        if kind in _LISTS:
            return self._list()
        if kind == _MAP:
            return self._map()
        if kind in (*_BOOLS, _BYTE):
            return self._byte()
        if kind in (_BINARY, _DOUBLE):
            return self._bytes(self._varint() if kind == _BINARY else 8)
        raise ValueError(f"it describes itself in a way that is not known ({kind})")

    def _list(self) -> list[Any]:
        head = self._byte()
        return [self._value(head & 15) for _ in range(self._varint() if head >> 4 == 15 else head >> 4)]

    def _map(self) -> None:
        """None of those that matter here is a map."""
        size = self._varint()
        kinds = self._byte() if size else 0
        for _ in range(size):
            self._value(kinds >> 4)
            self._value(kinds & 15)

    def _bytes(self, size: int) -> bytes:
        self.at += size
        if self.at > len(self.data):
            raise IndexError
        return self.data[self.at - size : self.at]

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise IndexError

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

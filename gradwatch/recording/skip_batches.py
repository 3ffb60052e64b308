"""`gradwatch.skip`: a loader without the batches that a list names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gradwatch.errors import WatchError
from gradwatch.sanitize import read_json


class skip:  # noqa: N801  (it is called like a function, and the result iterated again and again)
    """The batches of `loader` but those whose number is listed; each pass counts from `start`.

    All are fetched, so that the others come in the order that they had. What else the loader has (`sampler`,
    `dataset`) is had through this, too; `len` is that of the loader without those that are left out.

    Args:
        loader: any iterable.
        batches: a file with a JSON list of numbers, as `gradwatch batches RUN --format json` and Lightning's
            `skip_batches.json` are; or the numbers themselves.
        start: the number of the first batch of a pass: for numbers that count on over epochs, `epoch * len(loader)`.

    Raises:
        WatchError: the file cannot be read, or holds something else.
    """

    def __init__(self, loader: Iterable[Any], batches: str | Path | Iterable[int], start: int = 0) -> None:
        self.loader, self.start = loader, start
        self.left_out = frozenset(_listed(Path(batches)) if isinstance(batches, str | Path) else batches)

    def __iter__(self) -> Iterator[Any]:
        return (batch for i, batch in enumerate(self.loader, self.start) if i not in self.left_out)

    def __len__(self) -> int:
        whole: Any = self.loader
        return len(whole) - sum(self.start <= i < self.start + len(whole) for i in self.left_out)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # before __init__, as copying asks for it
            raise AttributeError(name)
        return getattr(self.loader, name)


def _listed(path: Path) -> list[int]:
    wanted = 'wanted a JSON list of batch numbers such as [36, 37], as "gradwatch batches RUN --format json" prints it'
    try:
        found = read_json(path)
    except (OSError, ValueError) as error:
        raise WatchError(f"{path} cannot be read ({error}); {wanted}") from error
    if not isinstance(found, list) or not all(type(number) is int for number in found):
        raise WatchError(f"{path} holds {json.dumps(found):.60}; {wanted}")
    return found

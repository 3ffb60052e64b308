"""The batches of one pass through a loader: for which step each was given, and kept to be given again."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, MutableMapping
from itertools import islice
from typing import Any

from torch import Tensor

from gradwatch.errors import WatchError, warn
from gradwatch.measure.writes import writes


class Tape:
    """Gives out what `source` has, in order, each with its place from 0 on, and gives it again after `go_back`.

    What is given is a copy of the containers (a dict may be popped from), of the same tensors: a loader with a random
    order or workers could not make them again.
    """

    def __init__(self, source: Iterator[Any]) -> None:
        self.place = 0  # of the next one
        self.left_out: set[int] = set()  # places that are never given (again)
        self._source, self._first = source, 0  # the place of the first that is kept
        self._kept: deque[tuple[Any, list[tuple[Tensor, int]]]] = deque()
        self._given: list[tuple[int, int]] = []  # a step, and a place that was given for it

    def next(self) -> tuple[int, Any]:
        """The next one that is not left out, and its place.

        Raises:
            StopIteration: there are no more.
        """
        while True:
            while self.place - self._first >= len(self._kept):
                batch = next(self._source)
                tensors: list[Tensor] = []
                self._kept.append((_copied(batch, tensors), [(t, writes(t)) for t in tensors]))
            place, self.place = self.place, self.place + 1
            if place not in self.left_out:
                batch, tensors_then = self._kept[place - self._first]
                if any(writes(t) != then for t, then in tensors_then):
                    warn(
                        f"batch {place} was changed in place by the loop (tensor.mul_() and the like): given again "
                        "after a rewind it is not what it was; change a copy of it instead"
                    )
                return place, _copied(batch, [])

    def note(self, step: int, place: int) -> None:
        """The batch at this place was given for this step."""
        self._given.append((step, place))

    def has_given(self, step: int) -> bool:
        """Whether a batch was given for this step."""
        return any(taken == step for taken, _ in self._given)

    def suspects(self, since: int, step: int, count: int) -> set[int]:
        """The places of `count` steps' batches that end with those of `step`; where that is less than `count` steps
        behind the step `since`, those that begin there. Of batches that nobody has seen yet, as many are taken to make
        a step as made this one.
        """
        steps = [*dict.fromkeys(taken for taken, _ in self._given if taken >= since)]
        at = max(i for i, taken in enumerate(steps) if taken <= step)
        first = max(0, at - count + 1)
        chosen = set(steps[first : first + count])
        missing = (count - len(chosen)) * sum(taken == steps[at] for taken, _ in self._given)
        end = self._first + len(self._kept)
        return {place for taken, place in self._given if taken in chosen} | {*range(end, end + missing)}

    def go_back(self, place: int, step: int) -> None:
        """Go on from this place, which is kept; what was given from this step on is taken back."""
        self.place = place
        self._given = [(taken, at) for taken, at in self._given if taken < step]

    def skip(self, places: int) -> None:
        """Pass over so many at the beginning, without keeping them: they were given in an earlier process.

        Raises:
            WatchError: there are fewer.
        """
        found = sum(1 for _ in islice(self._source, places))
        if found < places:
            raise WatchError(
                f"resume: {places} batches of this pass were taken before, and the loader ended after {found}: pass "
                "the loader of then, begun anew"
            )
        self._first = self.place = places

    def forget(self, before: int) -> None:
        """Those before this place are asked for no more."""
        while self._first < before and self._kept:
            self._kept.popleft()
            self._first += 1
        self._given = [(taken, at) for taken, at in self._given if at >= before]


def _copied(batch: Any, tensors: list[Tensor]) -> Any:
    """The same tensors in new dicts, lists and tuples; they are added to `tensors`."""
    if isinstance(batch, Tensor):
        tensors.append(batch)
    elif isinstance(batch, MutableMapping):
        new = copy.copy(batch)
        for key in [*batch]:
            new[key] = _copied(batch[key], tensors)
        return new
    elif type(batch) in (list, tuple):
        return type(batch)(_copied(item, tensors) for item in batch)
    elif isinstance(batch, tuple) and hasattr(batch, "_make"):  # a named one
        return batch._make(_copied(item, tensors) for item in batch)
    return batch

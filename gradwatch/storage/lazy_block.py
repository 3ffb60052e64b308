"""A block of steps that becomes a History when somebody asks for it: making one is work for the thread that writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.history import History


class LazyBlock:
    """`make()` as a History; what has to be known of it before is here. It is kept once it is made.

    `sampled` are the tables of sampled steps it has rows of. `is_suspect` says that a norm in it may be inf or NaN.
    Two threads may ask at once: then it is made twice, and no lock is held in which a process might be forked.
    """

    def __init__(
        self,
        steps: Sequence[int],
        layers: Sequence[Any],
        sampled: Collection[str],
        is_suspect: bool,
        make: Callable[[], History],
    ) -> None:
        self.step: NDArray[np.int64] = np.array(steps, np.int64)
        self.layers, self.sampled, self.is_suspect = layers, sampled, is_suspect
        self._make: Callable[[], History] | None = make
        self._made: History | None = None

    def __len__(self) -> int:
        return len(self.step)

    def history(self) -> History:
        """The block as a History; raises what making it raises, each time."""
        found, make = self._made, self._make
        if found is None and make is not None:
            found = self._made = make()
            self._make = None  # with all that it was made of
        found = found or self._made  # another thread was done in between
        assert found is not None
        return found

"""Seeds the random numbers of a script from outside: Python's at once, numpy's and torch's when they are imported."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping

Call = Callable[[], None]


def seeded(then: Mapping[str, Call], seed: int | None) -> dict[str, Call]:
    """Seed `random` now; returns `then`, what to call after the imports of modules, with their seeding before it.

    Without a seed, `then` as it is.
    """
    if seed is None:
        return dict(then)
    random.seed(seed)

    def numpy() -> None:
        sys.modules["numpy"].random.seed(seed % 2**32)
        then.get("numpy", _nothing)()

    def torch() -> None:
        sys.modules["torch"].manual_seed(seed)  # of every device
        then.get("torch", _nothing)()

    return {**then, "numpy": numpy, "torch": torch}


def _nothing() -> None:
    pass

"""Seeds the random numbers of a script from outside: Python's at once, numpy's and torch's when they are imported."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable


def seeds(seed: int) -> dict[str, Callable[[], None]]:
    """Seed Python's `random` now; returns what is to be called once the module of that name is imported."""
    random.seed(seed)
    return {
        "numpy": lambda: sys.modules["numpy"].random.seed(seed % 2**32),
        "torch": lambda: sys.modules["torch"].manual_seed(seed),  # of every device
    }

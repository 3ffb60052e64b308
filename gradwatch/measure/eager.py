"""Compiled code runs as it was written while somebody wants to see inside of it: what is compiled cannot be seen."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from typing import Any

import torch


class _Eager:
    """Who wants it, and what is set meanwhile: once for all, whoever comes first and goes last."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal or a garbage collection may call `leave` in the middle of `want`
        self.wanted: set[int] = set()
        self.stance: Any = None
        self.filter: Any = None


_eager = _Eager()


def want(who: object) -> None:
    """From now on, until `leave`; harmless twice."""
    with _eager.lock:
        _eager.wanted.add(id(who))
        if _eager.stance is None:
            _eager.stance = torch.compiler.set_stance("force_eager")
            # of a hook that would be called once more for a compiled module: ours look whose call it is
            warnings.filterwarnings("ignore", "Using `torch.compile")
            _eager.filter = warnings.filters[0]


def leave(who: object) -> None:
    """No more; harmless twice, and for who never wanted it."""
    with _eager.lock:
        _eager.wanted.discard(id(who))
        if not _eager.wanted and _eager.stance is not None:
            stance, _eager.stance = _eager.stance, None
            with contextlib.suppress(ValueError):  # somebody has reset them
                warnings.filters.remove(_eager.filter)  # type: ignore[attr-defined]
            now = getattr(sys.modules.get("torch._dynamo.eval_frame"), "_stance", None)
            if now is getattr(stance, "stance", now):  # else the script has set another one meanwhile, which stays
                stance.__exit__(None, None, None)

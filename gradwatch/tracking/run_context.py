"""What MLflow asks of a process in which a run is started: the folders of the Watches that are open there.

MLflow loads this in every process that imports it, wherever gradwatch is installed: nothing is imported here.
"""

from __future__ import annotations

import sys
from typing import Any

WATCHED = "gradwatch.watched"


class RunContext:
    """A `RunContextProvider` of MLflow's, by its methods alone: MLflow itself is not imported for it."""

    def in_context(self) -> bool:
        """Whether a Watch is open in this process."""
        return bool(_open())

    def tags(self) -> dict[str, str]:
        """`gradwatch.watched`: the names of the run folders."""
        return {WATCHED: ", ".join(dict.fromkeys(str(watch.dir.name) for watch in _open()))}


def _open() -> list[Any]:
    """The open Watches; none where nothing was ever watched, without importing what knows them."""
    return list(getattr(sys.modules.get("gradwatch.recording.open_watches"), "watches", ()))

"""What one thread waits for and another one gives, in a way that a Ctrl-C in the waiting leaves whole."""

from __future__ import annotations

import contextlib
import queue


class Answer:
    """An event for one who waits. An interrupt may leave Event and Thread.join locked; a queue it does not."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()

    def give(self) -> None:
        """Let the one who waits go on."""
        self._queue.put(None)

    def wait(self, timeout: float) -> None:
        """Wait until it is given, for `timeout` seconds at most."""
        with contextlib.suppress(queue.Empty):
            self._queue.get(timeout=timeout)

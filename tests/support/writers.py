"""The writers that a test leaves at work."""

import contextlib
import threading


@contextlib.contextmanager
def writers_ended():
    """What begins to write in here ends with it: it would go on in a later test, and meet what that one patches."""
    before = threading.enumerate()
    yield
    for thread in threading.enumerate():
        writer = getattr(getattr(thread, "_target", None), "__self__", None)  # a thread that has ended has no target
        if thread.name == "gradwatch-writer" and thread not in before and writer:
            writer.end()

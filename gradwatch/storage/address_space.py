"""What to do without where the address space of the process is limited (`ulimit -v`).

Arrow reserves a gigabyte of it as it first allocates, and a thread some 70 MB; where it gets none, its C++ code ends
the process. A training must not end by what only looks at it.
"""

from __future__ import annotations

import os


def is_limited() -> bool:
    """Whether this process may not have all the address space that it asks for."""
    try:
        import resource
    except ImportError:  # Windows
        return False
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def spare() -> None:
    """Have Arrow reserve nothing, in this process and those that it starts, unless the user has said how.

    Arrow reads the variable when it is loaded; later this does nothing.
    """
    if is_limited():
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

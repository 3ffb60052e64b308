"""The boundary around what is only looked at: what raises there is left out of the record, and training goes on."""

from __future__ import annotations

from types import TracebackType

from gradwatch.errors import warn

MOST = 50  # things that are said to be left out: a loop may give each value a name of its own


class Looking:
    """`with looking.at("slot norms"):` around a quantity that nothing acts on.

    An exception ends the block and nothing else; of each quantity it is said once. Ctrl-C passes.
    """

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._looks: dict[str, _Look] = {}

    def at(self, what: str) -> _Look:
        """Look at `what`, in this block."""
        look = self._looks.get(what)
        if look is None:
            look = self._looks[what] = _Look(self, what)
        return look

    def miss(self, what: str, why: str) -> None:
        """Say, once, that `what` is left out of the record."""
        if what not in self._said and len(self._said) < MOST:
            self._said.add(what)
            others = "; of what else is left out nothing is said" if len(self._said) == MOST else ""
            warn(f"{what} cannot be recorded, training goes on: {why}{others}")


class _Look:
    """It holds nothing of a block, so that one serves all blocks of a name."""

    __slots__ = ("_looking", "_what")

    def __init__(self, looking: Looking, what: str) -> None:
        self._looking, self._what = looking, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        self._looking.miss(self._what, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        return True

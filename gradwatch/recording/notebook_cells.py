"""A notebook's cell that is run again: the Watches that its last run left open are closed."""

from __future__ import annotations

import sys
from typing import NamedTuple
from weakref import WeakKeyDictionary

from gradwatch.recording.open_watches import Open, watches


class CellRun(NamedTuple):
    """Which cell runs, and the number of the run: IPython counts them."""

    cell: str
    number: int


_made_in: WeakKeyDictionary[Open, CellRun] = WeakKeyDictionary()


def running_cell() -> CellRun | None:
    """The cell that runs, by its id, which ipykernel has from JupyterLab, VS Code and others; None where none is."""
    try:
        shell = sys.modules["IPython"].get_ipython()
        return CellRun(shell.get_parent()["metadata"]["cellId"], shell.execution_count)
    except Exception:  # no notebook, or one that does not say; whatever a shell raises is not the training's business
        return None


def of_the_last_run() -> list[Open]:
    """The open Watches that an earlier run of the running cell has made."""
    now = running_cell()
    made = ((watch, _made_in.get(watch)) for watch in tuple(watches))
    return [watch for watch, then in made if now and then and then.cell == now.cell and then.number != now.number]


def made_here(watch: Open) -> None:
    """The running cell, if there is one, made this Watch."""
    now = running_cell()
    if now is not None:
        _made_in[watch] = now

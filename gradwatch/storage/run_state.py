"""Is a run over, and was it killed? Decided here and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from gradwatch.history import Run
from gradwatch.storage.owner import is_gone


class RunState(NamedTuple):
    """`over`: no step follows. `crashed`: it ended without close, whether its manifest says so already or not."""

    over: bool
    crashed: bool


def run_state(run: Run) -> RunState:
    """The state of the run with this manifest. A trainer on another host cannot be seen: what it says is believed."""
    running = run.status == "RUNNING"
    gone = running and is_gone(run.pid, run.host, run.pid_started)
    return RunState(over=gone or not running, crashed=gone or run.crashed)


def as_it_ended(run: Run) -> Run:
    """The manifest of a run whose process was killed says RUNNING until a courier finds it: KILLED here at once."""
    return replace(run, status="KILLED", crashed=True) if run_state(run).over and run.status == "RUNNING" else run

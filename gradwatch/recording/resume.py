"""A run that goes on after its process has ended: its state must fit, and its folder is opened again."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwatch.errors import WatchError
from gradwatch.measure.layout import Layout
from gradwatch.recording.learning_rate import RateScale
from gradwatch.storage.folder import read_manifest
from gradwatch.storage.owner import here
from gradwatch.storage.shared_folder import discard
from gradwatch.storage.writer import RunWriter

if TYPE_CHECKING:
    from gradwatch.recording.stepper import Stepper


def other_order(state: Mapping[str, Any], stepper: Stepper) -> Layout | None:
    """The layers in the order in which they were saved, where it is another one.

    Raises:
        WatchError: steps were already taken.
    """
    if stepper.steps:
        raise WatchError(f"load_state_dict() after {stepper.steps} steps: load before the first optimizer.step()")
    saved, here = list(state["layers"]), list(stepper.layout.names)
    return None if saved == here or sorted(saved) != sorted(here) else stepper.layout.ordered(saved)


def saved(stepper: Stepper, folder: Path, attempt: int) -> dict[str, Any]:
    """What `load` and `reopened` need to go on from here."""
    return {
        "steps": stepper.steps,
        "taken_back": stepper.taken_back,
        "clip": repr(stepper.clipper.policy),
        "renorm": repr(stepper.weights.renorm),
        "rates": repr(stepper.rate_scale),
        "layers": list(stepper.layout.names),
        "policy_state": {k: v.clone() for k, v in stepper.clipper.state.items()},
        "renorm_state": {k: v.clone() for k, v in stepper.weights.state.items()},
        "dir": os.path.abspath(folder),  # asks no disk
        "attempt": attempt,
    }


def load(state: Mapping[str, Any], stepper: Stepper) -> list[str]:
    """Give the stepper the policy's state and the number of the next step; what is told is which settings are others.

    A policy, a constraint or a scale of the rates that is another one begins with a state of its own.

    Raises:
        WatchError: the state belongs to other layers.
    """
    found, wanted = list(state["layers"]), list(stepper.layout.names)
    if found != wanted:
        raise WatchError(
            f"this state was saved with other layers: {found!r:.200}, and this Watch has "
            f"{wanted!r:.200}; make the Watch as it was made then"
        )
    stepper.resumed_at = int(state["steps"])
    go_back(state, stepper)
    asked = _asked(state, stepper).items()
    others = [f"{name}={now} in the place of {then}" for name, (then, now) in asked if then != now]
    rates = state.get("rates", repr(RateScale()))
    return others + ["other factors of the learning rates"] * (rates != repr(stepper.rate_scale))


def _asked(state: Mapping[str, Any], stepper: Stepper) -> dict[str, tuple[str, str]]:
    """What was asked for when the state was saved, and what is now."""
    clip, renorm = repr(stepper.clipper.policy), repr(stepper.weights.renorm)
    return {"clip": (state["clip"], clip), "renorm": (state.get("renorm", renorm), renorm)}


def go_back(state: Mapping[str, Any], stepper: Stepper) -> None:
    """Give the stepper the policy's state, and let the schedules count from where it was saved; steps count on."""
    same = {name for name, (then, now) in _asked(state, stepper).items() if then == now}
    if "clip" in same:
        stepper.clipper.load_state(state["policy_state"])
    if "renorm" in same:
        stepper.weights.load_state(state.get("renorm_state", {}))
    stepper.taken_back = stepper.steps - int(state["steps"]) + int(state.get("taken_back", 0))


def apart(folder: Path, changed: Sequence[str]) -> str:
    """Why what goes on is a run of its own, beside that in `folder`; empty where it goes on in there."""
    if changed:
        return f"a run of its own, with {' and '.join(changed)}: the steps before are in {folder}"
    return "" if folder.is_dir() else f"a run of its own: {folder}, where the steps before were recorded, is not there"


# What the manifest says of the latest attempt; all else is kept (points of other windows would not fit those sent).
_OF_THE_ATTEMPT = (
    "layers", "optimizers", "every", "activations_every", "total_steps", "higher_is_better", "params", "tags", "unheld",
    "modules", "batch_norms", "dropouts",
)  # fmt: skip


def reopened(folder: Path, attempt: int, empty: RunWriter) -> RunWriter:
    """A writer for the run in `folder`, as a new attempt, in place of that of a run that has recorded nothing.

    Raises:
        RunError: the run is still being recorded, or its manifest cannot be read.
    """
    run = read_manifest(folder)
    attempt = max(attempt, run.attempt) + 1
    changes = {"attempt": attempt, "status": "RUNNING", "ended": None, "end_step": None, "crashed": False, **here()}
    changes |= {name: getattr(empty.run, name) for name in _OF_THE_ATTEMPT}
    writer = RunWriter(folder, replace(run, **changes), empty.flush_seconds)
    writer.start()
    empty.close("KILLED")
    discard(empty.folder)
    return writer

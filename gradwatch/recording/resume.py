"""A run that goes on after its process has ended: its state must fit, and its folder is opened again."""

from __future__ import annotations

from collections.abc import Mapping
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
        "dir": str(folder.resolve()),
        "attempt": attempt,
    }


def load(state: Mapping[str, Any], stepper: Stepper) -> None:
    """Give the stepper the policy's state and the number of the next step.

    Raises:
        WatchError: the state belongs to other layers or another policy.
    """
    rates, renorm = repr(stepper.rate_scale), repr(stepper.weights.renorm)
    for name, found, wanted in (
        ("learning rates", state.get("rates", repr(RateScale())), rates),
        ("policy", state["clip"], repr(stepper.clipper.policy)),
        ("constraint", state.get("renorm", renorm), renorm),
        ("layers", list(state["layers"]), list(stepper.layout.names)),
    ):
        if found != wanted:
            raise WatchError(
                f"this state was saved with other {name}: {found!r:.200}, and this Watch has "
                f"{wanted!r:.200}; make the Watch as it was made then"
            )
    stepper.resumed_at = int(state["steps"])
    go_back(state, stepper)


def go_back(state: Mapping[str, Any], stepper: Stepper) -> None:
    """Give the stepper the policy's state, and let the schedules count from where it was saved; steps count on."""
    stepper.clipper.load_state(state["policy_state"])
    stepper.weights.load_state(state.get("renorm_state", {}))
    stepper.taken_back = stepper.steps - int(state["steps"]) + int(state.get("taken_back", 0))


def reopened(folder: Path, attempt: int, empty: RunWriter) -> RunWriter:
    """A writer for the run in `folder`, as a new attempt, in place of that of a run that has recorded nothing.

    Raises:
        RunError: the run is still being recorded, or its manifest cannot be read.
    """
    run = read_manifest(folder)
    attempt = max(attempt, run.attempt) + 1
    changes = {"attempt": attempt, "status": "RUNNING", "ended": None, "end_step": None, "crashed": False, **here()}
    writer = RunWriter(
        folder,
        replace(run, **changes, layers=empty.run.layers, activations_every=empty.run.activations_every),
        empty.flush_seconds,
    )
    writer.start()
    empty.close("KILLED")
    discard(empty.folder)
    return writer

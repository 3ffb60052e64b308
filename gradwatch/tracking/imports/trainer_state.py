"""Hugging Face's `trainer_state.json`: the `log_history` of a Trainer, one entry for each time that it logged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gradwatch.errors import RunError
from gradwatch.storage.logged_names import CLOCK
from gradwatch.tracking.imports.log import Log

NAME = "trainer_state.json"
SUMMARY = "train_runtime"  # only the last entry has it, which sums up the whole training
PARAMS = ("num_train_epochs", "train_batch_size")


def read_trainer_state(path: Path) -> Log:
    """The scalars of a `trainer_state.json`; JSON's NaN and Infinity, which Python writes there, are values.

    `step` counts optimizer steps taken so far. `loss` is the mean since the entry before; `grad_norm` is that of the
    last of these steps, before the Trainer's own clip.

    Raises:
        RunError: it is no such file.
    """
    try:
        data = json.loads(path.read_bytes())
        entries = data["log_history"]
        log = Log("Hugging Face's trainer_state.json", total_steps=_count(data.get("max_steps")))
        for entry in entries:
            _add(log, entry)
    except (ArithmeticError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{path} is no trainer_state.json: wanted a log_history of entries with a step") from error
    log.params.update({key: str(data[key]) for key in PARAMS if isinstance(data.get(key), int | float)})
    return log


def _add(log: Log, entry: dict[str, Any]) -> None:
    step = int(entry["step"])
    numbers = {k: float(v) for k, v in entry.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    numbers.pop("step")
    if SUMMARY in entry:
        return
    for name, value in numbers.items():
        if not name.endswith(CLOCK):
            log.add(name, step, value)


def _count(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and 0 < value < 2**53 else None

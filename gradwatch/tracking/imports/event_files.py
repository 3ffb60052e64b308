"""TensorBoard's event files, read by the `tensorboard` package, without TensorFlow."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradwatch.errors import RunError, require
from gradwatch.tracking.imports.log import Log

MARK = "tfevents"  # in the name of every event file
FRAME = 16  # bytes around each record: its length, and the checksums of both


def read_events(paths: Sequence[Path]) -> Log:
    """The scalars of the event files of one run. Where a restart logged a step again, the later value counts.

    A file that is cut off or damaged is read as far as that goes; values are float32, as TensorBoard keeps them.

    Raises:
        RunError: tensorboard is not installed, or a file is none of its kind.
    """
    require("tensorboard", "tensorboard", ", and reads event files")
    from google.protobuf.message import DecodeError
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    log, others, events = Log("TensorBoard's event files"), Counter[str](), 0
    for path in sorted(paths):
        left = path.stat().st_size
        try:
            for record in RawEventFileLoader(str(path)).Load():
                event = Event.FromString(record)
                events, left = events + 1, left - len(record) - FRAME
                for value in event.summary.value:
                    number = _scalar(value)
                    if number is None:
                        others[value.tag] += 1
                        continue
                    log.add(value.tag, event.step, number)
                    log.times[event.step] = event.wall_time
        except DecodeError as error:
            raise RunError(f"{path} is no event file of TensorBoard: {error}") from error
        if left > 0:
            log.notes.append(f"the last {left:,} bytes of {path.name} are cut off or damaged, and left out")
    if not events:
        raise RunError(f"{paths[0]} is no event file of TensorBoard, or it is empty")
    if others:
        log.notes.append(f"{len(others):,} tags that are no scalars are left out, such as {next(iter(others))}")
    return log


def _scalar(value: Any) -> float | None:
    """A scalar as torch and the older TensorFlow write it, or as a tensor of one number; None of anything else."""
    if value.WhichOneof("value") == "simple_value":
        return float(value.simple_value)
    tensor = value.tensor
    if value.WhichOneof("value") != "tensor" or math.prod(d.size for d in tensor.tensor_shape.dim) != 1:
        return None
    from tensorboard.util.tensor_util import make_ndarray

    try:
        return float(make_ndarray(tensor).item())
    except (TypeError, ValueError, AttributeError):
        return None

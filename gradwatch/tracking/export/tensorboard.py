"""A run's curves as a TensorBoard event file, written without TensorFlow and without torch."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from gradwatch.tracking.export.run_export import RunExport

SUFFIX = ".gradwatch"  # ends the name of an event file that is ours to replace
PARAMS = "gradwatch/params"


def write_tensorboard(run: RunExport, out: Path) -> list[str]:
    """One event file in a folder of the run's name: scalars, and the settings as text and as TensorBoard's hparams.

    Values are float32, as in every event file.
    """
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder = out / run.name
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".gradwatch-", dir=out) as temporary:
        writer = EventFileWriter(temporary, filename_suffix=SUFFIX)
        begun = run.points[0].timestamp / 1000
        for event in head_events(run.name, run.params, begun)[1:]:  # the writer made the first
            writer.add_event(event)
        for step, time, values in run.by_step():
            writer.add_event(scalar_event(step, time, values))
        writer.close()
        for old in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
            old.unlink()
        for new in Path(temporary).iterdir():
            new.replace(folder / new.name)
    return [f"{folder}: {run.counted}", f"tensorboard --logdir {out}"]


def head_events(name: str, params: dict[str, str], begun: float) -> list[Any]:
    """What an event file begins with: the version of its format, and the settings."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    table = "\n".join(["| param | value |", "|---|---|", *(f"| {k} | {_cell(v)} |" for k, v in params.items())])
    return [
        Event(wall_time=begun, file_version="brain.Event:2"),
        Event(wall_time=begun, summary=_text(PARAMS, table)),
        Event(wall_time=begun, summary=hparams_pb(params, name, begun)),
    ]


def scalar_event(step: int, time: float, values: dict[str, float]) -> Any:
    """The scalars of one step."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    scalars = [Summary.Value(tag=key, simple_value=value) for key, value in values.items()]
    return Event(wall_time=time, step=step, summary=Summary(value=scalars))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _text(tag: str, text: str) -> Any:
    from tensorboard.plugins.text.summary_v2 import text_pb

    return text_pb(tag, text)

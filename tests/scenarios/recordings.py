"""The trainings of this folder as `record.py` recorded them: rules read numbers, and no network is trained for that.

What a training does after some steps is another thing on another processor; a recording is the same everywhere.
`test_recordings.py` trains some of them again.
"""

import functools
import inspect
import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import gradwatch
from gradwatch.storage.shared_folder import PARTS

FOLDER = Path(__file__).parent / "recorded"
TABLES = "layers", "steps", "activations", "histograms", "heads"
SMALL = {"compression": "zstd", "compression_level": 19, "write_statistics": False, "use_dictionary": False}
RECORDING = False  # record.py sets it: then all is trained, and kept


def recorded(name, train, folder):
    """The History of the training `name`; `train(folder)` trains it while recordings are made."""
    path = _path(name)
    if RECORDING:
        train(folder / "recorded")
        _keep(*(folder / "recorded").iterdir(), path)
        shutil.rmtree(folder / "recorded")
    assert path.exists(), f"there is no recording {path.name}; wanted: python tests/scenarios/record.py"
    return gradwatch.open_history(path)


def recording_of(train):
    """The History of `train(folder)`, a function or a partial of one, as it was recorded; None where it never was."""
    options = {}
    while isinstance(train, functools.partial):
        options, train = {**train.keywords, **options}, train.func
    path = _path(name_of(train.__name__, inspect.signature(train).bind("", **options)))
    return gradwatch.open_history(path) if path.exists() else None


def _path(name):
    return FOLDER / re.sub(r"[^\w.=+-]+", "_", name)


def _keep(run, path):
    """Copy what rules read of a run, and of its parts; who recorded it is nobody's business."""
    shutil.rmtree(path, ignore_errors=True)
    for manifest in run.rglob("run.json"):
        part = path / manifest.parent.relative_to(run)
        for table in TABLES:
            blocks = [pq.read_table(block) for block in sorted((manifest.parent / table).glob("*.parquet"))]
            if blocks:
                (part / table).mkdir(parents=True)
                whole = pa.concat_tables(blocks, promote_options="default")
                pq.write_table(whole, part / table / "part-000000.parquet", **SMALL)
        told = json.loads(manifest.read_text()) | {"pid": None, "host": None, "pid_started": None}
        (part / "run.json").write_text(json.dumps(told, indent=1) + "\n")
    for parts in run.glob(PARTS):
        shutil.copy(parts, path)


class Recorded:
    """A module of trainings, `train(folder, ...)`, each of which is read instead; all else is the module's."""

    def __init__(self, module):
        self.module = module

    def __getattr__(self, name):
        train = getattr(self.module, name)
        if not inspect.isfunction(train) or next(iter(inspect.signature(train).parameters), None) != "folder":
            return train

        @functools.wraps(train)
        def read(folder, *args, **options):
            given = inspect.signature(train).bind(folder, *args, **options)
            return recorded(name_of(train.__name__, given), lambda place: train(place, *args, **options), folder)

        return read


def name_of(function, given):
    """`function-lr=0.1-kind=Adam`: a call without its folder, as the name of a folder."""
    named = dict(given.arguments)
    named.pop("folder")
    named |= named.pop("options", {})
    return "-".join([function, *(f"{name}={_text(value)}" for name, value in named.items())])


def _text(value):
    if isinstance(value, functools.partial):
        return f"{value.func.__name__}({', '.join(f'{k}={v}' for k, v in value.keywords.items())})"
    return str(getattr(value, "__name__", value))

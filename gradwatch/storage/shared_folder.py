"""A run that several Watches share: its folder holds a folder for each part, and together they are one History.

    parts.json                the run's name and start; marks the folder as one run
    D/run.json, D/layers ...  each part is a run folder of its own
    G/run.json, G/layers ...

Each part counts its own steps and has its own writer and courier; what is said here is how they are one run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gradwatch.errors import RunError
from gradwatch.history import History, Run
from gradwatch.sanitize import is_plain_folder, printable, read_json
from gradwatch.storage.folder import MANIFEST, create_folder, is_run_folder, now_iso, read_manifest, write_json
from gradwatch.storage.manifest import run_of
from gradwatch.storage.parquet import require_alike
from gradwatch.storage.run_reader import read_run
from gradwatch.table import LAYER_IN_LOSS, SAMPLED, WAS_NAN, stack

log = logging.getLogger("gradwatch")

PARTS = "parts.json"
STATUSES = ("RUNNING", "FAILED", "KILLED", "FINISHED")  # a run has the first of these that one of its parts has


# ------------------------------------------------------------------------------------------------------------ folders


def create_shared(parent: Path, name: str) -> Path:
    """A new folder under `parent` for a run of several parts.

    Raises:
        RunError: it cannot be made.
    """
    folder = create_folder(parent, name)
    try:
        write_json(folder / PARTS, {"name": name, "created": now_iso()})
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}; make room, or pass another dir=") from error
    return folder


def create_part(shared: Path, facts: Mapping[str, Any], part: str) -> Path:
    """The new folder of `part`. `facts` is what `parts.json` says: another part may have removed it as it resumed.

    Raises:
        RunError: the run has that part already, or the folder cannot be made.
    """
    folder = shared / part
    try:
        folder.mkdir(parents=True)
        if not (shared / PARTS).exists():
            write_json(shared / PARTS, facts)
    except FileExistsError:
        raise RunError(f"{shared} holds a part {part!r} already: give this Watch another name") from None
    except OSError as error:
        raise RunError(f"cannot create {folder}: {error.strerror}; pass dir= a folder you can write to") from error
    return folder


def discard(folder: Path) -> None:
    """Remove the folder of a run that recorded nothing; with it the run of several parts whose last part it was."""
    shutil.rmtree(folder, ignore_errors=True)
    discard_empty(folder.parent)


def discard_empty(shared: Path) -> None:
    """Remove the folder of a run of several parts, if it has none."""
    with contextlib.suppress(OSError):  # another rank may be doing the same
        if is_shared(shared) and not any(path.is_dir() for path in shared.iterdir()):
            facts = read_facts(shared)
            (shared / PARTS).unlink()
            try:
                shared.rmdir()
            except OSError:  # a part was added meanwhile
                write_json(shared / PARTS, facts)


def is_shared(folder: Path) -> bool:
    """Whether `folder` is the folder of a run of several parts."""
    return (folder / PARTS).is_file()


def home_of(folder: Path) -> Path:
    """The folder of the whole run that `folder`, a run's or a part's, belongs to."""
    return folder.parent if is_shared(folder.parent) else folder


def is_run(folder: Path) -> bool:
    """Whether `folder` is the folder of a run, of several parts or not."""
    return is_run_folder(folder) or is_shared(folder)


def part_folders(run: Path) -> list[Path]:
    """The folders of a run's parts, by name (`stage2` before `stage10`), without links; `[run]` itself where it has no
    parts.
    """
    if not is_shared(run):
        return [run]
    found = [path.parent for path in run.glob(f"*/{MANIFEST}") if is_plain_folder(path.parent)]
    return sorted(found, key=lambda path: [t.zfill(20) if t.isdigit() else t for t in re.split(r"(\d+)", path.name)])


def deliverable_parts(run: Path) -> list[Path]:
    """The parts that are meant for MLflow; all, when none is (`log=None`) and the run is delivered all the same."""
    folders = part_folders(run)
    return [folder for folder in folders if len(folders) == 1 or meant_for_mlflow(folder)] or folders


def meant_for_mlflow(folder: Path) -> bool:
    """Whether the run in `folder` was recorded to be delivered; one whose manifest cannot be read is not."""
    try:
        return read_manifest(folder).mlflow is not None
    except RunError as error:
        log.warning("%s", printable(str(error)))
        return False


# ------------------------------------------------------------------------------------------------------------ reading


def read_facts(shared: Path) -> dict[str, Any]:
    """What `parts.json` says: `name` and `created`.

    Raises:
        RunError: it cannot be read.
    """
    try:
        run = run_of(read_json(shared / PARTS))
        return {"name": run.name, "created": run.created}
    except (OSError, ValueError) as error:
        raise RunError(f"{shared / PARTS} cannot be read: {error}") from error


def read_joint_manifest(folder: Path) -> Run:
    """The manifest of the run in `folder`, of all its parts that are meant for MLflow together.

    Raises:
        RunError: a manifest cannot be read.
    """
    if not is_shared(folder):
        return read_manifest(folder)
    return joint_run(read_facts(folder), [read_manifest(part) for part in deliverable_parts(folder)])


def read_whole(
    folder: Path, parts: Sequence[Path] | None = None, at_most: int | None = None, steps_only: bool = False
) -> History:
    """The run in `folder`; of one with several parts, all of them, or those in the folders `parts`.

    A run of more than `at_most` values is reduced, or those of its parts that hold more than their share: of N parts
    the N-th of the steps and the N-th of the layers, for a row of one part has all layers. With `steps_only` the
    layers are not read at all.

    Rows are by step, then part: each part counts its own steps, and a row's `optimizer` names its part. What a part
    logged is called after it (`loss/G`), if there are several. Parts that cannot be read are named in `problems`. The
    folder of a part that has no others beside it is a run's like any other.

    Raises:
        RunError: the folder is no run's, or not one of its manifests can be read.
    """
    if not is_shared(folder):
        own, home = read_run(folder, at_most=at_most, steps_only=steps_only), home_of(folder)
        is_all = home != folder and len(part_folders(home)) == 1
        return replace(own, run=replace(own.run, part=None)) if is_all else own
    problems: list[str] = []
    found: list[History] = []
    every = part_folders(folder)
    folders = every if parts is None else parts
    for path in folders:
        try:
            part = read_run(path, at_most=at_most and at_most // len(folders) ** 2, steps_only=steps_only)
            found.append(part if len(every) == 1 else _named(part, sum(len(other.run.layers) for other in found)))
        except RunError as error:
            problems.append(str(error))
    if not found:
        raise RunError(f"{folder} is a run of several parts, and holds none that can be read {'; '.join(problems)}")
    run = joint_run(read_facts(folder), [part.run for part in found])
    problems += [text for part in found for text in part.problems]
    require_alike([part.by_layer for part in found], folder)
    tables = {name: stack([getattr(part, name) for part in found]) for name in ("by_layer", "by_step", *SAMPLED)}
    in_order = {name: table.take(np.argsort(table.step, kind="stable")) for name, table in tables.items()}
    return History(run, problems=tuple(problems), **in_order)


def read_with_parts(folder: Path, at_most: int | None = None) -> tuple[History, list[History]]:
    """The run in `folder`, and its parts as each was recorded; of a run without parts, itself.

    Raises:
        RunError: the folder is no run's, or a manifest cannot be read.
    """
    whole = read_whole(folder, at_most=at_most)
    if not is_shared(folder):
        return whole, [whole]
    return whole, [read_run(part, at_most=at_most) for part in deliverable_parts(folder)]


def _named(part: History, before: int) -> History:
    """What was logged under the part's name; layers, where they are numbers, behind those of the parts `before` it."""
    name = part.run.part
    own = {*part.logged, *(f"{WAS_NAN}{key}" for key in part.logged)}
    per_step = {f"{key}/{name}" if key in own else key: values for key, values in part.per_step.items()}
    per_step |= {key: values + before for key, values in per_step.items() if key.startswith(LAYER_IN_LOSS)}
    problems = tuple(f"{name}: {text}" for text in part.problems)
    return replace(part, by_step=replace(part.by_step, values=per_step), problems=problems)


def joint_run(facts: Mapping[str, Any], runs: Sequence[Run]) -> Run:
    """One manifest out of those of the parts. Params that differ between them are called `width/G`, `width/D`."""
    params: dict[str, str] = {}
    for run in runs:
        for key, value in run.params.items():
            same = all(other.params.get(key, value) == value for other in runs)
            params[key if same else f"{key}/{run.part}"] = value
    status = joint_status(runs)
    first = next(run for run in runs if run.status == status)  # of a run under way, the process that is looked after
    return replace(
        first,
        name=facts["name"],
        created=facts["created"],
        part=None,
        layers=tuple(layer for run in runs for layer in run.layers),
        optimizers=tuple(  # each part counts the columns of its learning rates from 0, and has its own policies
            {**optimizer, **({} if i else {"first_group": 0}), "clip": run.clip, "renorm": run.renorm}
            for run in runs
            for i, optimizer in enumerate(run.optimizers)
        ),
        unheld=tuple(name for run in runs for name in run.unheld),
        dropouts={name: p for run in runs for name, p in run.dropouts.items()},
        loss_graph=tuple(row for run in runs for row in run.loss_graph),
        modules={name: kind for run in runs for name, kind in run.modules.items()},
        clip=_joint_policy({str(run.part): run.clip for run in runs}),
        renorm=_joint_policy({str(run.part): run.renorm for run in runs}),
        ended=None if status == "RUNNING" else max((run.ended for run in runs if run.ended), default=None),
        attempt=max(run.attempt for run in runs),
        tags={key: value for run in runs for key, value in run.tags.items()},
        params=params,
        mlflow=next((run.mlflow for run in runs if run.mlflow), None),
        first_step=None,  # each part counts its own
        end_step=None,
    )


def joint_status(runs: Sequence[Run]) -> str:
    """RUNNING while a part runs; then FAILED or KILLED if one of the parts is, else FINISHED."""
    return next((status for status in STATUSES if any(run.status == status for run in runs)), runs[0].status)


def _joint_policy(policies: Mapping[str, str | None]) -> str | None:
    """The policy of all parts, or `ClipByGlobalNorm(1.0) in D, AGC(0.01) in G`."""
    if len({*policies.values()}) == 1:
        return next(iter(policies.values()))
    where: dict[str, list[str]] = {}
    for part, text in policies.items():
        if text:
            where.setdefault(text, []).append(part)
    return ", ".join(f"{text} in {' and '.join(parts)}" for text, parts in where.items())


def run_folders(directory: Path) -> list[Path]:
    """The run folders at or below `directory`, oldest first; three levels deep, as those of a sweep are.

    Several parts of a run are one run. What cannot be listed, or goes away meanwhile, is passed over.
    """
    if is_run(directory):
        return [directory]
    marked: list[Path] = []
    for place, folders, files in os.walk(directory, followlinks=True):
        folder = Path(place)
        marked += [folder / name for name in (MANIFEST, PARTS) if name in files]
        if len(folder.relative_to(directory).parts) == 3:
            folders.clear()
    shared = {path.parent for path in marked if path.name == PARTS}
    found = {path.parent for path in marked if path.parent.parent not in shared}
    return sorted(found, key=lambda folder: (folder.name, folder))

"""Opening what was recorded: a run folder, an MLflow run, all runs of an experiment, or the latest one."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from gradwatch.errors import RunError, no_room_said, require
from gradwatch.recording import open_watches
from gradwatch.report import notebook  # noqa: F401  a History that is opened can plot itself
from gradwatch.storage.downsample import MAX_VALUES
from gradwatch.storage.many_runs import each
from gradwatch.storage.run_state import run_state
from gradwatch.storage.shared_folder import run_folders

if TYPE_CHECKING:
    from types import ModuleType

    from gradwatch.analysis.rules import Finding
    from gradwatch.history import History, Run
    from gradwatch.report.build import Condensed, Report

Read = TypeVar("Read")
RUNS = Path("gradwatch-runs")
DEMO = Path("gradwatch-demo")
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_EXPERIMENT = "experiment:"


def open_history(ref: str | Path, at_most: int | None = None) -> History:
    """The history of one run: a run folder, or an MLflow run id (in the store that MLflow's own settings name).

    Of a run that several Watches share, the whole run is read; the folder of one part opens that part alone.
    A run that holds more than `at_most` values (steps x layers x quantities) is reduced to about as many as it is
    read (see `History`); without it every value is read, four bytes each.

    What a Watch of this process records to it just now is first put on disk. Of one that another process records, the
    last few seconds are missing (`watch(flush_every=)`).

    Raises:
        RunError: no such run, it has no recorded step yet, or there is no memory to load what reads it.
    """
    with no_room_said():
        return _opened(ref, at_most)


def _opened(ref: str | Path, at_most: int | None = None, empty: bool = False, steps_only: bool = False) -> History:
    """`open_history`, or its steps alone; with `empty` one without a step too, where that alone is a finding."""
    from gradwatch.analysis.rules import diagnose
    from gradwatch.storage.shared_folder import read_whole

    history = _read(ref, lambda folder: read_whole(folder, at_most=at_most, steps_only=steps_only))
    found = [] if len(history) else diagnose(history)
    if not len(history) and not (empty and found):
        why = f" ({'; '.join(history.problems[:2])})" if history.problems else ""
        raise _NoStepError(f"{ref} holds no recorded step yet: {_why_empty(history.run, found)}{why}")
    return history


class _NoStepError(RunError):
    """The run is there, and nothing of it yet."""


def open_parts(ref: str, directory: Path = RUNS) -> tuple[str, History, list[History]]:
    """One run as a name of its own, its History, and those of its parts (of a run without parts, itself).

    `ref` is a run folder, an MLflow run id or `latest`. Runs of more than `MAX_VALUES` values are reduced.

    Raises:
        RunError: no such run, or it has no recorded step yet.
    """
    from gradwatch.storage.folder import folder_name
    from gradwatch.storage.shared_folder import read_with_parts

    if ref.startswith(_EXPERIMENT):
        raise RunError(f"{ref} may be many runs, and one is wanted: name a run folder, an MLflow run id or latest")
    found = _latest(directory) if ref == "latest" else ref
    with no_room_said():
        whole, parts = _read(found, lambda folder: read_with_parts(folder, MAX_VALUES))
    if not len(whole):
        raise RunError(f"{ref} holds no recorded step yet: {_why_empty(whole.run, [])}")
    local = Path(found).exists()
    return Path(found).resolve().name if local else f"{folder_name(whole.run.name)}-{str(found)[:8]}", whole, parts


def _read(ref: str | Path, read: Callable[[Path], Read]) -> Read:
    """What `read` makes of the run's folder, which is fetched of an MLflow run."""
    from gradwatch.storage.shared_folder import is_run

    if _RUN_ID.fullmatch(str(ref)) and not Path(ref).exists():
        return cast(Read, _remote().read_fetched(str(ref), read))
    if not _is_local(is_run, ref):
        wanted = "a run folder, an MLflow run id, experiment:NAME or latest"
        raise RunError(f"{ref} is no run: {_what_it_is(Path(ref))}; wanted {wanted}")
    open_watches.flush(Path(ref))
    return read(Path(ref))


def _why_empty(run: Run, found: Sequence[Finding]) -> str:
    state = run_state(run)
    if not state.over:
        where = f"process {run.pid} on {run.host}" if run.pid else "its process"
        return f"{where} has it open, and its first steps are on disk half a second after they were taken; open it then"
    if state.crashed:
        return "its process was killed before its first step, or within the half second that the first steps need"
    return "".join(["it ended before its first step", *(f". {finding.cause}" for finding in found)])


def open_histories(refs: Sequence[str], directory: Path = RUNS, empty: bool = False) -> list[History]:
    """The histories of several runs. A ref is a run folder, a folder that holds a single one, an MLflow run id,
    `experiment:NAME` or `latest`.

    With `empty` a single run may lack any step, where that alone is a finding. `latest` is the newest run folder under
    `directory`, else of the demo, else the newest watched run in MLflow. Runs of more than `MAX_VALUES` values are
    reduced (see `open_history`).

    Raises:
        RunError: a ref names no run, or a run without a recorded step.
    """
    found = [run for ref in refs for run in _alone(Path(ref)) or _runs(ref, directory)]
    return [_opened(run, MAX_VALUES, empty and len(found) == 1) for run in found]


def open_one(ref: str, who: str, instead: str = "name each of them in turn", empty: bool = False) -> History:
    """The history of the one run that a command, `who`, wants; `instead` is what to do with several.

    Raises:
        RunError: as of `open_histories`, or they are several.
    """
    histories = open_histories([ref], empty=empty)
    if len(histories) != 1:
        raise RunError(f"{ref} is {len(histories)} runs, and {who} wants one: {instead}")
    return histories[0]


def open_steps(refs: Sequence[str]) -> list[History]:
    """What a comparison needs of several runs: of their steps what it reads, without what each layer did in them.

    A ref is one of `open_histories`, or a folder that holds run folders: all of them that recorded a step, of a sweep's
    trainings the last attempt of each. So of an experiment.

    Raises:
        RunError: a ref names no run, or a run without a recorded step.
    """
    from gradwatch.analysis.kept_steps import Common, compared

    below, named = _sorted(refs)
    found: list[History] = []
    common = Common()
    for run in below:
        with _left_out(run):
            found.append(common.shared(compared(_opened(run, steps_only=True))))
    return found + [common.shared(compared(_opened(run, steps_only=True))) for run in named]


def open_report(
    refs: Sequence[str],
    metric: str | None = None,
    baseline: str | None = None,
    target: float | None = None,
    rises: bool | None = None,
) -> Report:
    """The report of one run, or of many, which are never in memory as a whole together; the refs of `open_steps`.

    The other arguments are those of `build_report`. A single run may lack any step, where that alone is a finding.

    Raises:
        RunError: as `open_steps` and `build_report` raise it.
    """
    from gradwatch.analysis.kept_steps import Common
    from gradwatch.report.build import build_comparison, build_report

    by = (metric, baseline, target, rises)
    below, named = _sorted(refs)
    found: list[str | Path] = [*below, *named]
    if len(found) > 1:
        common = Common()
        condensed = chain(each(below, _condensed_if_any), each(named, _condensed))
        runs = [run and replace(run, history=common.shared(run.history)) for run in condensed]
        known = [run for run in runs if run is not None]
        if len(known) > 1:
            return build_comparison(known, *by)
        found = [ref for ref, run in zip(found, runs, strict=True) if run is not None]
    return build_report([_opened(ref, MAX_VALUES, empty=ref in named) for ref in found], *by)


def _condensed(ref: str | Path) -> Condensed:
    from gradwatch.report.build import condense

    return condense(_opened(ref, MAX_VALUES))


def _condensed_if_any(run: str | Path) -> Condensed | None:
    """One of many runs; None where it recorded nothing."""
    with _left_out(run):
        return _condensed(run)
    return None


def _left_out(run: str | Path) -> contextlib.suppress:
    """Around the reading of one of many runs. Of MLflow's none is left out that could not be fetched just now."""
    return contextlib.suppress(RunError if isinstance(run, Path) else _NoStepError)


def _sorted(refs: Sequence[str]) -> tuple[list[str | Path], list[str | Path]]:
    """The runs in the folders and experiments among `refs`, and those that are named one by one."""
    many: dict[str, Sequence[str | Path]] = {
        ref: _runs(ref, RUNS) if ref.startswith(_EXPERIMENT) else _below(Path(ref)) for ref in refs
    }
    below = _once(run for ref in refs for run in many[ref])
    every = _once((*below, *(run for ref in refs if not many[ref] for run in _runs(ref, RUNS))))
    return below, every[len(below) :]


def _once(runs: Iterable[str | Path]) -> list[str | Path]:
    """Each run once, by whatever paths it is named."""
    return list({Path(run).resolve() if os.path.isdir(run) else run: run for run in runs}.values())


def _runs(ref: str, directory: Path) -> Sequence[str | Path]:
    """What a ref stands for."""
    if ref.startswith(_EXPERIMENT):
        return cast(list[str], _remote().watched_runs(ref[len(_EXPERIMENT) :]))
    return [_latest(directory) if ref == "latest" else ref]


def folder_to_follow(ref: str, directory: Path = RUNS) -> Path:
    """The folder of a run that may go on: `ref` itself, or the newest one for `latest`.

    Raises:
        RunError: there is no such folder.
    """
    from gradwatch.storage.shared_folder import is_run

    found = Path(_latest(directory)) if ref == "latest" else Path(ref)
    if not _is_local(is_run, found):
        raise RunError(f"{found} is not a run folder: --follow wants the folder of a run that goes on")
    return found


def _below(directory: Path) -> list[Path]:
    """The runs in a folder that is none itself; of the trainings of a sweep (`job.json`) the last attempt of each."""
    try:
        folders = [folder for folder in run_folders(directory) if folder != directory]
    except (OSError, ValueError):  # no name of a file
        return []
    last = {folder.parent: folder for folder in folders if (folder.parent / "job.json").exists()}
    return [folder for folder in folders if last.get(folder.parent, folder) == folder]


def _alone(directory: Path) -> list[Path]:
    """The only run in a folder that is none itself; nothing where there are several."""
    below = _below(directory)
    return below if len(below) == 1 else []


def _latest(directory: Path) -> str | Path:
    for place in (directory, DEMO):
        folders = run_folders(place)
        if folders:
            return folders[-1]
    try:
        return str(_remote().watched_runs()[-1])
    except RunError as error:
        raise RunError(f"there is no latest run: no run folder in {directory} or {DEMO}, and {error}") from error


def _is_local(is_run: Callable[[Path], bool], ref: str | Path) -> bool:
    """Whether `ref` is a run folder; what cannot be the name of any file is none."""
    try:
        return is_run(Path(ref))
    except (OSError, ValueError) as error:
        raise RunError(f"{str(ref)[:100]}… is no run: {getattr(error, 'strerror', None) or error}") from error


def _what_it_is(path: Path) -> str:
    if not path.exists():
        return "there is no such file or folder"
    if path.is_dir() and (folders := run_folders(path)):
        return f"it is a directory of runs, such as {folders[-1]}"
    if not path.is_dir() and any(folder.parent == path.parent for folder in run_folders(path.parent)):
        return f"it is a file; its folder {path.parent} is enough, for all runs in it"
    return f"{'it' if path.is_dir() else 'it is a file, and'} holds no run.json"


def _remote() -> ModuleType:
    require("mlflow", "mlflow", ", and only a run folder can be read without it")
    from gradwatch.tracking import reader

    return reader

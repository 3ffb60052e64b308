"""What comes of a sweep: the comparison of its runs, its report, and its summary run in MLflow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gradwatch.analysis.comparison import Comparison, settle
from gradwatch.analysis.final_values import diverged, final
from gradwatch.analysis.groups import metric_names
from gradwatch.analysis.kept_steps import Common
from gradwatch.errors import RunError
from gradwatch.history import History
from gradwatch.launcher.sweep import Job, Record, Sweep
from gradwatch.open_run import open_history
from gradwatch.recording.courier_process import wait_delivered
from gradwatch.report import render_html
from gradwatch.report.build import Condensed, build_comparison, condense
from gradwatch.report.text import comparison_text, markdown_comparison
from gradwatch.storage.delivery_cursor import read_cursor
from gradwatch.storage.downsample import MAX_VALUES
from gradwatch.storage.folder import list_parts
from gradwatch.storage.many_runs import each
from gradwatch.storage.shared_folder import deliverable_parts, run_folders
from gradwatch.tracking.tags import Tag
from gradwatch.tracking.views import as_note, run_url

FORMATS = ("csv", "md", "json")
DELIVERY_SECONDS = 120.0  # how long the couriers may take after the last training


@dataclass(frozen=True)
class Result:
    """A sweep that is over: the comparison of the runs that count, and a sentence for each that does not."""

    settled: Comparison
    runs: tuple[Condensed, ...]
    left_out: tuple[str, ...]


def look(folder: Path) -> tuple[int, float]:
    """`(steps, loss)` of a run that goes on, from its newest part of the steps; `(0, nan)` before there is one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        for part in reversed(list_parts(folder / "steps")):
            frame = pq.ParquetFile(part.path)
            names = [name for name in ("step", "loss") if name in frame.schema_arrow.names]
            table = frame.read(columns=names)
            if table.num_rows:
                losses = table["loss"].to_numpy() if "loss" in names else np.zeros(0)
                known = losses[np.isfinite(losses)]
                return int(table["step"][-1].as_py()) + 1, float(known[-1]) if len(known) else float("nan")
    except (OSError, pa.ArrowInvalid):  # merged while we looked
        pass
    return 0, float("nan")


def said_of(job: Job, record: Record) -> str:
    """How a job went, in a line: its end, its steps, its loss, what was found in it."""
    from gradwatch.analysis.rules import verdict

    how = {"finished": "finished", "timeout": "ended by --timeout", "interrupted": "interrupted"}.get(record.status)
    how = how or ("could not be started" if record.code is None else f"exit code {record.code}")
    folder, words = job.run(), [f"{how} after {record.seconds:.0f} s"]
    if folder is not None:
        try:
            history = open_history(folder, MAX_VALUES)
            names = metric_names([history]) or list(history.logged)
            words.append(f"{len(history):,} steps")
            words += [f"{names[0]} {final(history, names[0]):.4g}"] if names else []
            words.append(verdict(history))
        except RunError as error:
            words.append(str(error))
    if record.said:
        words.append(record.said)
    return f"{job.label}: {', '.join(words)}"


def result(
    jobs: Sequence[Job], metric: str | None, baseline: str | None, target: float | None, rises: bool | None
) -> Result | None:
    """The comparison of all jobs that ended well or diverged; None when there is none.

    Raises:
        RunError: none of the runs logged `metric`, or had the policy `baseline`.
    """
    runs, left_out, common = [], [], Common()
    for job, run in zip(jobs, each(jobs, _condensed), strict=True):
        record = Record.read(job)
        if record is None or run is None:
            left_out.append(f"{job.label} has no run to compare.")
        elif record.over or diverged(run.history):
            runs.append(replace(run, history=common.shared(run.history)))
        else:
            left_out.append(f"{job.label} is not compared: {record.status} after {len(run.history):,} steps.")
    if not runs:
        return None
    settled = settle([run.history for run in runs], metric, baseline, target, rises)
    return Result(settled, tuple(runs), tuple(left_out))


def _condensed(job: Job) -> Condensed | None:
    history = history_of(job)
    return None if history is None else condense(history)


def history_of(job: Job) -> History | None:
    """The run of a job: its folder, or where a launcher ran it on another machine, what arrived in MLflow."""
    folder = job.run()
    try:
        if folder is not None:
            return open_history(folder, MAX_VALUES)
        from gradwatch.tracking.reader import tagged_run

        run_id = tagged_run(Tag.SWEEP_JOB, job.folder.name)
        return None if run_id is None else open_history(run_id, MAX_VALUES)
    except (RunError, ImportError):
        return None


def write(
    found: Result, folder: Path, metric: str | None, baseline: str | None, target: float | None, rises: bool | None
) -> list[Path]:
    """`report.html` and the comparison as `comparison.csv`, `.md` and `.json` in `folder`."""
    paths = []
    if len(found.runs) > 1:
        paths.append(folder / "report.html")
        report = replace(build_comparison(found.runs, metric, baseline, target, rises), notes=found.settled.notes)
        page = render_html(report)
        paths[-1].write_text(page, encoding="utf-8")
    for kind in FORMATS:
        paths.append(folder / f"comparison.{kind}")
        paths[-1].write_text(comparison_text(found.settled, kind), encoding="utf-8")
    return paths


def publish(sweep: Sweep, jobs: Sequence[Job], found: Result, paths: Sequence[Path]) -> str:
    """Put the comparison into the sweep's summary run in MLflow, made on the first time; returns its address.

    It goes to the experiment of the sweep's runs. Runs of the sweep that were done anew lose its tag.

    Raises:
        RunError: none of the sweep's runs is in MLflow yet.
    """
    from gradwatch.tracking import client as store

    current = {job.run() for job in jobs}
    cursors = [(folder, _cursor(folder)) for job in jobs for folder in run_folders(job.folder)]
    known = [cursor for folder, cursor in cursors if folder in current and cursor.get("run_id")]
    if not known:
        raise RunError(
            f"no run of the sweep is in MLflow yet: gradwatch sync {sweep.home}, then the same command again"
        )
    uri = store.full_uri(known[0]["tracking_uri"])
    client = store.connect(uri)
    experiment = str(known[0]["experiment_id"])
    run_id = store.summary_run(client, experiment, f"sweep {sweep.name}", {Tag.SWEEP: sweep.name})
    for path in paths:
        store.upload(client, run_id, path)
    store.set_tags(client, run_id, {Tag.DESCRIPTION: _note(sweep, found)})
    for folder, cursor in cursors:
        if folder not in current and cursor.get("run_id"):
            store.set_tags(client, cursor["run_id"], {Tag.SWEEP: f"{sweep.name}, done anew"})
    client.set_terminated(run_id)
    return run_url(uri, experiment, run_id)


def wait_for_couriers(jobs: Sequence[Job]) -> None:
    """Until all runs of the jobs are in MLflow as a whole, or the time is over (`gradwatch sync` then finishes)."""
    deadline = time.monotonic() + DELIVERY_SECONDS
    folders = [folder for job in jobs if (folder := job.run()) is not None]
    for folder in [part for run in folders for part in deliverable_parts(run)]:
        wait_delivered(folder, deadline - time.monotonic())


def _cursor(folder: Path) -> dict[str, Any]:
    """What the courier of a run noted; of several parts, that of the first."""
    return next((cursor for part in deliverable_parts(folder) if (cursor := read_cursor(part))), {})


def _note(sweep: Sweep, found: Result) -> str:
    settled = found.settled
    lines = [
        f"### gradwatch sweep of `{' '.join([sweep.target, *sweep.args])[:500]}`",
        "",
        *markdown_comparison(settled.table, settled.winners, settled.notes),
        *(f"- {line}" for line in found.left_out),
    ]
    return as_note(lines)

"""A run's curves for Trackio, in its local database."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

from gradwatch.errors import RunError
from gradwatch.tracking.export.run_export import RunExport

PROJECT = "gradwatch"


def write_trackio(run: RunExport, out: Path) -> list[str]:
    """A run of Trackio's project `gradwatch`, in the database in `out`. Its points have the time of the export.

    Raises:
        RunError: the project has a run of that name already.
    """
    os.environ["TRACKIO_DIR"] = str(out.resolve())  # read as trackio is imported
    import trackio

    with contextlib.redirect_stdout(io.StringIO()):  # it prints what is of no use here
        known: list[str] = []
        with contextlib.suppress(ValueError):  # there is no such project yet
            known = [one.name for one in trackio.Api().runs(PROJECT)]
        if run.name in known:
            raise RunError(f"{out} holds a run {run.name} already: pass --out another folder")
        trackio.init(
            PROJECT, name=run.name, config=run.params, resume="never", embed=False, auto_log_gpu=False,
            auto_log_cpu=False,
        )  # fmt: skip
        for step, _, values in run.by_step():
            trackio.log(values, step)
        trackio.finish()
    return [f"{out}: {run.counted}", f"TRACKIO_DIR={out} trackio show --project {PROJECT}"]

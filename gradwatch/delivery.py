"""What a training process knows of MLflow: where its run is to be delivered, and how to start the courier.

Nothing here imports mlflow, waits for a network, or raises into the training.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
import sysconfig
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwatch.errors import GradwatchWarning
from gradwatch.processes import is_gone
from gradwatch.untrusted import read_json
from gradwatch.uri import public_uri

if TYPE_CHECKING:
    from gradwatch.history import Run

log = logging.getLogger("gradwatch")

CURSOR = "cursor.json"
# MLflow's own retries block a call for up to 20 minutes, and one that creates a run makes two of it; the courier has
# its own, between passes.
MLFLOW_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
# The courier is not a rank: it must not look like one to whatever it imports.
_RANK_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)


def find_active_run() -> dict[str, Any] | None:
    """The MLflow run that is active on the calling thread, as the manifest notes it; None when there is none.

    Reads memory only: mlflow is asked if the program imported it, and its active run is a variable of the thread.
    """
    mlflow = sys.modules.get("mlflow")
    try:
        active = mlflow.active_run() if mlflow is not None else None
        if mlflow is None or active is None:
            return None
        return {
            "tracking_uri": public_uri(str(mlflow.get_tracking_uri())),
            "experiment_id": str(active.info.experiment_id),
            "run_id": str(active.info.run_id),
            "joined": True,
        }
    except Exception as error:  # half-imported, another version, a namesake: never the training's problem
        log.debug("gradwatch: cannot ask mlflow for its active run: %s", error)
        return None


def target(run_id: str | None = None, tracking_uri: str | None = None) -> dict[str, Any] | None:
    """Where a new run is to be delivered: to `run_id`, else the active run, else a run that the courier will create.

    `tracking_uri` is the store that holds `run_id`; None is MLflow's own setting.

    Returns the manifest's `mlflow` entry, or None (and one warning) when mlflow is not installed.
    """
    if sys.modules.get("mlflow") is None and importlib.util.find_spec("mlflow") is None:
        warnings.warn(
            "mlflow is not installed: this run stays in its files. pip install 'gradwatch[mlflow]', then "
            "gradwatch sync FOLDER, delivers it; log=None keeps it there without this warning",
            GradwatchWarning,
            stacklevel=3,
        )
        return None
    active = find_active_run()
    if run_id is None and active is not None:
        return active
    where = {"tracking_uri": public_uri(tracking_uri)} if tracking_uri else {}
    return {**_settings(), **where, "run_id": run_id, "joined": run_id is not None}


def _settings() -> dict[str, Any]:
    """MLflow's own settings, as far as they are known without importing it."""
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    experiment = os.environ.get("MLFLOW_EXPERIMENT_ID")
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
    mlflow = sys.modules.get("mlflow")
    try:
        if mlflow is not None:
            uri = str(mlflow.get_tracking_uri())
            experiment = mlflow.tracking.fluent._active_experiment_id or experiment
    except Exception as error:
        log.debug("gradwatch: cannot ask mlflow for its settings: %s", error)
    return {
        "tracking_uri": public_uri(uri) if uri else None,
        "experiment_id": experiment,
        "experiment_name": None if experiment else name,
    }


def start_courier(folder: Path) -> subprocess.Popen[bytes] | None:
    """Start the process that delivers `folder` (a run, or a directory of runs) to MLflow while the training goes on.

    It is detached, in this working directory (MLflow's default store is relative to it), and logs to
    `FOLDER/courier.log`. Returns None, with one log line, when it cannot be started.
    """
    return _start(folder, "sync", "courier.log", "gradwatch sync {} delivers the run later")


def start_diagnosis(folder: Path) -> subprocess.Popen[bytes] | None:
    """Start the process that diagnoses the run in `folder` while it goes on: of a run that has no courier to do it.

    It is detached like a courier, and logs to `FOLDER/check.log`.
    """
    return _start(folder, "check", "check.log", "gradwatch check {} diagnoses the run")


def _start(folder: Path, command: str, output: str, instead: str) -> subprocess.Popen[bytes] | None:
    """`gradwatch COMMAND --follow FOLDER` as a detached process; None, and a log line that says what to do instead."""
    try:
        with open(folder / output, "ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "gradwatch", command, "--follow", str(Path(folder).resolve())],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=child_environment(),
                start_new_session=True,
            )
    except OSError as error:
        log.warning("gradwatch: cannot start %s (%s); %s", Path(output).stem, error, instead.format(folder))
        return None
    # Reaped when it ends: no zombie in a long notebook, no ResourceWarning when the handle is dropped.
    threading.Thread(target=process.wait, name=f"gradwatch-{command}", daemon=True).start()
    return process


def was_killed(process: subprocess.Popen[bytes] | None) -> bool:
    """Whether a signal ended it. Costs nothing: the thread that reaps it waits, this one only asks."""
    return process is not None and (process.poll() or 0) < 0


def child_environment() -> dict[str, str]:
    """The environment of a process that serves a training: it is no rank, and imports this gradwatch."""
    dropped = [name for name in os.environ if name in _RANK_VARIABLES or name.startswith("TORCHELASTIC_")]
    env = {name: value for name, value in os.environ.items() if name not in dropped}
    env["PYTHONSAFEPATH"] = "1"  # a user's queue.py or mlflow.py in the working directory must not be imported
    root = str(Path(__file__).resolve().parents[1])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [root, env.get("PYTHONPATH")]))
    return env


def read_cursor(folder: Path) -> dict[str, Any]:
    """What the courier noted of its progress; empty before its first note."""
    try:
        return dict(read_json(folder / CURSOR))
    except (OSError, ValueError, TypeError):
        return {}


def wait_delivered(folder: Path, timeout: float, courier: subprocess.Popen[bytes] | None = None) -> dict[str, Any]:
    """Wait until everything of the run is in MLflow, at most `timeout` seconds, or until `courier` has ended.

    Returns the courier's cursor: `done` tells whether it is, `url` where to look.
    """
    deadline = time.monotonic() + timeout
    while True:
        running = courier is None or courier.poll() is None
        cursor = read_cursor(folder)
        if is_done(cursor, folder) or not running or time.monotonic() >= deadline:
            return {**cursor, "done": is_done(cursor, folder)}
        time.sleep(0.1)


def is_done(cursor: dict[str, Any], folder: Path) -> bool:
    """Whether `cursor` says so of the run's present attempt: a resumed run has more to deliver."""
    try:
        attempt = read_json(folder / "run.json").get("attempt", 0)
    except (OSError, ValueError, AttributeError):
        attempt = 0
    return bool(cursor.get("done")) and cursor.get("attempt", 0) == attempt


def trainer_is_gone(run: Run) -> bool:
    """Whether the process that records `run` ran on this host and has ended; another host's cannot be seen."""
    return is_gone(run.pid, run.host, run.pid_started)

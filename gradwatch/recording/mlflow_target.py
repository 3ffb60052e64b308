"""What a training process knows of MLflow: where its run is to be delivered, and how to start the courier.

Nothing here imports mlflow, waits for a network, or raises into the training.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

from gradwatch.errors import warn
from gradwatch.sanitize import check_uri, public_uri
from gradwatch.storage.places import absolute_uri

log = logging.getLogger("gradwatch")


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
            "tracking_uri": absolute_uri(public_uri(str(mlflow.get_tracking_uri()))),
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
        warn(
            "mlflow is not installed: this run stays in its files. pip install 'gradwatch[mlflow]', then "
            "gradwatch sync FOLDER, delivers it; log=None keeps it there without this warning"
        )
        return None
    active = find_active_run()
    if run_id is None and active is not None:
        return active
    where = {"tracking_uri": absolute_uri(public_uri(tracking_uri))} if tracking_uri else {}
    return {**_settings(), **where, "run_id": run_id, "joined": run_id is not None}


def place(target: Mapping[str, Any] | None) -> str:
    """Where a run will appear in MLflow, in words."""
    known = target or {}
    experiment = known.get("experiment_name") or known.get("experiment_id")
    return f"{known.get('tracking_uri') or 'its default store'}{f', experiment {experiment}' if experiment else ''}"


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
        "tracking_uri": absolute_uri(public_uri(uri)) if uri and _is_address(uri) else None,
        "experiment_id": experiment,
        "experiment_name": None if experiment else name,
    }


def _is_address(uri: str) -> bool:
    """Whether MLflow's own setting is one; if not, it is said, and the run waits in its files for a better one."""
    try:
        check_uri(uri)
    except ValueError as error:
        warn(
            f"MLFLOW_TRACKING_URI {error}. This run stays in its files; gradwatch sync FOLDER delivers it when that is "
            "mended"
        )
        return False
    return True

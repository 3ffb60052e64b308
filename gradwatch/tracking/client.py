"""MLflow's side of a run: which store, which run, what it is told. With `reader` and `refusals`, what imports mlflow.

Import it late: `import mlflow` takes seconds. Every call names its run; the fluent API's active run belongs to the
thread that started it, and an asynchronous queue loses what it holds when the process ends.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import mlflow
from filelock import FileLock
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from gradwatch._version import __version__
from gradwatch.errors import RunError
from gradwatch.history import Run
from gradwatch.sanitize import MAX_PARAM, check_uri, public_uri
from gradwatch.storage.places import absolute_uri, sqlite_file
from gradwatch.tracking.artifact_places import UnfitError, require_known_place
from gradwatch.tracking.metric_keys import Nonfinite, Point
from gradwatch.tracking.mlflow_names import part_key, safe_name
from gradwatch.tracking.refusals import clear_addresses, clear_errors
from gradwatch.tracking.run_params import run_params
from gradwatch.tracking.tags import Tag, run_group
from gradwatch.tracking.views import VIEW_TAG, view_tag

ARTIFACTS = "gradwatch"
DEMO_STORE = Path("gradwatch-demo/mlflow.db")
MAX_BATCH = 1_000


# ------------------------------------------------------------------------------------------------------------- stores


def _local_store(uri: str) -> Path | None:
    """The database file, or the folder of a `file:` URI, of older releases of MLflow; None for any other store."""
    return Path(unquote(urlsplit(uri).path)) if uri.startswith("file:") else sqlite_file(uri)


def full_uri(tracking_uri: str | None = None) -> str:
    """The store that `tracking_uri` means here, from the root on: MLflow's own setting for None.

    A password that was left out of the run's files is taken from MLFLOW_TRACKING_URI when that names the same store.

    Raises:
        RunError: it is no address.
    """
    own = absolute_uri(os.environ.get("MLFLOW_TRACKING_URI") or "")
    same = bool(tracking_uri and public_uri(own) == absolute_uri(tracking_uri))
    uri = own if same else absolute_uri(tracking_uri or mlflow.get_tracking_uri())
    try:
        check_uri(uri)
    except ValueError as error:
        raise RunError(f"the tracking URI {error}") from None
    if same:
        return uri
    file = sqlite_file(uri)
    return f"sqlite:///{file}" if file else uri


def existing_store(tracking_uri: str | None = None) -> str:
    """The store to read: the one named, else MLflow's own setting, else `mlflow.db` here, else the demo's.

    Raises:
        RunError: it is a SQLite file or a folder that does not exist (opening it would create it), or no database.
    """
    uri = full_uri(tracking_uri)
    place = _local_store(uri)
    if place is not None and place.is_file():
        _check_database(place)
    if place is None or place.exists():
        return uri
    if tracking_uri is None and not os.environ.get("MLFLOW_TRACKING_URI") and DEMO_STORE.exists():
        return full_uri(f"sqlite:///{DEMO_STORE}")
    raise RunError(
        f"there is no MLflow store {place}: go to the folder that holds {place.name}, or set MLFLOW_TRACKING_URI"
    )


def connect(tracking_uri: str) -> MlflowClient:
    """A client of the store. A SQLite store is opened under a file lock: the first opening creates its tables, and
    processes that do so at once can leave it unusable for good.

    Raises:
        RunError: MLflow refuses the address, the database's driver is not installed, or the file is no database.
    """
    file = sqlite_file(tracking_uri)
    with clear_errors(public_uri(tracking_uri)), clear_addresses(public_uri(tracking_uri)):
        if file is None:
            return MlflowClient(tracking_uri)
        file.parent.mkdir(parents=True, exist_ok=True)
        _check_database(file)
        with FileLock(f"{file}.lock", timeout=120):
            return MlflowClient(tracking_uri)


def _check_database(file: Path) -> None:
    """Refuse a file that is something else: MLflow would end in a traceback, and leave a lock beside it."""
    try:
        with file.open("rb") as opened:
            begins = opened.read(16)
    except FileNotFoundError:
        return  # it is made
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror}") from error
    if begins not in (b"", b"SQLite format 3\0"):
        raise RunError(f"{file} is no SQLite database: name the mlflow.db of a store, or a new file")


# ----------------------------------------------------------------------------------------------------------- writing


def quoted(value: str) -> str:
    """A value in MLflow's search language, which knows no escapes: of quotes of both kinds the single ones are lost."""
    return f'"{value}"' if "'" in value and '"' not in value else "'" + value.replace("'", "_") + "'"


def create_run(client: MlflowClient, tracking_uri: str, run: Run, label: str) -> tuple[str, str]:
    """`(run id, experiment id)` of the MLflow run for the folder named `label`: created in the usual way, or found if
    an earlier courier died before it could note it.
    """
    with clear_errors("creating the run"):
        experiment = _experiment(client, tracking_uri, run.mlflow or {})
        found = client.search_runs([experiment], f"tags.`{Tag.FOLDER}` = {quoted(label)}", max_results=1)
        if found:
            return found[0].info.run_id, experiment
        tags = {Tag.FOLDER: quoted(label)[1:-1], **_user()}
        if run.command:  # as the run that `gradwatch run` creates in advance says it
            tags |= {"mlflow.source.name": str(run.command.get("target")), "mlflow.source.type": "LOCAL"}
        made = client.create_run(experiment, milliseconds(run.created), tags, run.name)
        return made.info.run_id, experiment


def start_run(client: MlflowClient, tracking_uri: str, name: str, tags: dict[str, str]) -> tuple[str, str]:
    """`(run id, experiment id)` of a new run, in the experiment that the environment names."""
    with clear_errors("creating the run"):
        experiment = _experiment(client, tracking_uri, {})
        return client.create_run(experiment, None, {**_user(), **tags}, name).info.run_id, experiment


def _user() -> dict[str, str]:
    """The tag that says whose run it is."""
    with contextlib.suppress(OSError, KeyError):  # a container's user may have no name
        return {"mlflow.user": getpass.getuser()}
    return {}


def summary_run(client: MlflowClient, experiment_id: str, name: str, tags: dict[str, str]) -> str:
    """The id of the run of that name and these tags in the experiment; created if there is none."""
    tagged = (f"tags.`{key}` = {quoted(value)}" for key, value in tags.items())
    wanted = " and ".join([f"attributes.run_name = {quoted(name)}", *tagged])
    with clear_errors(f"the summary in experiment {experiment_id}"):
        found = client.search_runs([experiment_id], wanted, max_results=1)
        return str((found or [client.create_run(experiment_id, None, tags, name)])[0].info.run_id)


def drop_twins(client: MlflowClient, run_id: str, experiment_id: str, label: str) -> None:
    """Delete what another request made of the run labelled so: one that a slow server carried out after all."""
    with clear_errors(f"run {run_id}"):
        for twin in client.search_runs([experiment_id], f"tags.`{Tag.FOLDER}` = {quoted(label)}"):
            if twin.info.run_id != run_id and not twin.data.metrics:
                client.delete_run(twin.info.run_id)


def settle_run(client: MlflowClient, run_id: str, status: str) -> None:
    """End a run that is still RUNNING; one that nobody put anything into is deleted."""
    run = client.get_run(run_id)
    if not (run.data.metrics or run.data.params or _has_artifacts(client, run_id)):
        client.delete_run(run_id)
    elif run.info.status == "RUNNING":
        client.set_terminated(run_id, status)


def _has_artifacts(client: MlflowClient, run_id: str) -> bool:
    """Whether somebody put a file into the run, as far as may be looked."""
    try:
        require_known_place(client, run_id)
    except UnfitError:
        return True
    return bool(client.list_artifacts(run_id))


def _experiment(client: MlflowClient, tracking_uri: str, target: dict[str, Any]) -> str:
    named = target.get("experiment_name")
    if target.get("experiment_id") or not (named or os.environ.get("MLFLOW_EXPERIMENT_NAME")):
        return str(target.get("experiment_id") or os.environ.get("MLFLOW_EXPERIMENT_ID") or "0")
    name = str(named or os.environ["MLFLOW_EXPERIMENT_NAME"])
    known = client.get_experiment_by_name(name)
    if known is None:
        file = sqlite_file(tracking_uri)
        beside = file and file.parent != Path.cwd()  # MLflow's own choice is ./mlruns, wherever the database is
        place = (file.parent / "mlartifacts" / re.sub(r"\W+", "-", name)).as_uri() if file and beside else None
        try:
            return str(client.create_experiment(name, artifact_location=place))
        except MlflowException:
            known = client.get_experiment_by_name(name)  # another courier was quicker
            if known is None:
                raise
    return str(known.experiment_id)


def join_run(client: MlflowClient, run_id: str) -> str:
    """The experiment id of the user's own run.

    Raises:
        RunError: there is no such run.
    """
    with clear_errors(f"run {run_id}"):
        return str(client.get_run(run_id).info.experiment_id)


def describe(client: MlflowClient, run_id: str, run: Run) -> None:
    """The run's params and first tags. Params are immutable, so those it has already are left alone.

    Where parts of one run give a param of the user's different values, the later one's is called `width/G`.
    """
    with clear_errors(f"run {run_id}"):
        known = client.get_run(run_id).data
        wanted = run_params(run)
        if run.part:
            wanted = {k if known.params.get(k, v) == v else part_key(k, run.part): v for k, v in wanted.items()}
        params = [Param(k, v) for k, v in wanted.items() if k not in known.params]
        group = run_group(run, known.tags.get(Tag.GROUP))
        tags = {Tag.VERSION: __version__, Tag.VERDICT: "running", Tag.GROUP: group, **run.tags}
        grows = {Tag.GROUP} if run.part else set()
        new = [RunTag(safe_name(k), str(v)) for k, v in tags.items() if k not in known.tags or k in grows]
        for start in range(0, max(len(params), len(new)), 100):
            client.log_batch(run_id, (), params[start : start + 100], new[start : start + 100])


def log_points(client: MlflowClient, run_id: str, points: Iterable[Point]) -> None:
    """Send metric points, synchronously; when this returns, MLflow has them."""
    metrics = [Metric(p.key, p.value, p.timestamp, p.step) for p in points]
    with clear_errors(f"run {run_id}"):
        for start in range(0, len(metrics), MAX_BATCH):
            client.log_batch(run_id, metrics[start : start + MAX_BATCH])


def set_tags(client: MlflowClient, run_id: str, tags: dict[str, str]) -> None:
    """Set (overwrite) tags of the run."""
    with clear_errors(f"run {run_id}"):
        client.log_batch(run_id, (), (), [RunTag(k, v[:MAX_PARAM]) for k, v in tags.items()])


def nonfinite_tags(found: Nonfinite, part: str | None = None) -> dict[str, str]:
    """Where the first inf or NaN was; nothing for a run that had none."""
    if not found.steps:
        return {}
    where = {Tag.FIRST_NONFINITE_STEP: str(found.first_step), Tag.FIRST_NONFINITE_LAYER: found.first_layer}
    return {part_key(key, part): text for key, text in where.items()}


def upload(client: MlflowClient, run_id: str, path: Path, folder: str = "") -> None:
    """Put one file under the run's artifacts, in `gradwatch/<folder>`.

    Raises:
        RunError: it is a link, MLflow refuses it, or the run's artifacts are where none may be.
    """
    if path.is_symlink():
        raise RunError(f"{path} is a link, and only files of the run's own folder are uploaded")
    with clear_errors(f"run {run_id}"):
        require_known_place(client, run_id)
        client.log_artifact(run_id, str(path), f"{ARTIFACTS}/{folder}".rstrip("/"))


def set_status(client: MlflowClient, run_id: str, status: str, ended: str | None, joined: bool) -> None:
    """Set the run's status. A joined run's is the user's own, unless its trainer was killed and left it RUNNING."""
    with clear_errors(f"run {run_id}"):
        stale = client.get_run(run_id).info.status == "RUNNING"
        if joined and not (status == "KILLED" and stale):
            return
        if status == "RUNNING":
            client.update_run(run_id, status)
        else:
            client.set_terminated(run_id, status, milliseconds(ended) if ended else None)


def set_description(client: MlflowClient, run_id: str, text: str) -> None:
    """Set the run's description, unless the user wrote one."""
    with clear_errors(f"run {run_id}"):
        own = client.get_run(run_id).data.tags.get(Tag.DESCRIPTION, "")
        if not (own and not own.startswith("### gradwatch")):
            client.set_tag(run_id, Tag.DESCRIPTION, text)


def milliseconds(iso: str) -> int:
    """Unix time in milliseconds of an ISO 8601 time; 0 of one before 1970, which MLflow refuses."""
    return max(0, int(datetime.fromisoformat(iso).timestamp() * 1000))


def show_view(client: MlflowClient, experiment_id: str, keys: Iterable[str], rises: Mapping[str, bool]) -> None:
    """Add charts for these keys to the experiment's saved view; `rises` is what `higher_is_better=` said of some."""
    text = view_tag(sorted(keys), client.get_experiment(experiment_id).tags.get(VIEW_TAG), rises)
    if text is not None:
        client.set_experiment_tag(experiment_id, VIEW_TAG, text)

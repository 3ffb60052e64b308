"""Reading back from MLflow: the history that was delivered to a run, and which runs were watched."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mlflow.exceptions import MlflowException

from gradwatch.errors import RunError
from gradwatch.history import History
from gradwatch.stores.files import read_run
from gradwatch.stores.mlflow import ARTIFACTS, clear_errors, connect, existing_store
from gradwatch.uri import public_uri


def read_mlflow_run(run_id: str, tracking_uri: str | None = None) -> History:
    """The history that was delivered to an MLflow run.

    Raises:
        RunError: no such store or run, or gradwatch delivered nothing to it yet.
    """
    uri = existing_store(tracking_uri)
    client = connect(uri)
    with _readable(uri), clear_errors(f"run {run_id} in {public_uri(uri)}"):
        name = client.get_run(run_id).info.run_name
        if not any(item.path == f"{ARTIFACTS}/run.json" for item in client.list_artifacts(run_id, ARTIFACTS)):
            raise RunError(
                f"MLflow run {run_id} ({name}) holds no {ARTIFACTS}/ artifacts: it was not watched, or its "
                "folder is not delivered yet (gradwatch sync FOLDER)"
            )
        with tempfile.TemporaryDirectory(prefix="gradwatch-") as temporary:
            client.download_artifacts(run_id, ARTIFACTS, temporary)
            return read_run(Path(temporary) / ARTIFACTS)


def watched_runs(experiment: str | None = None, tracking_uri: str | None = None) -> list[str]:
    """The ids of all watched runs of the experiment of that name (of all experiments for None), oldest first.

    Raises:
        RunError: no such store or experiment, or it holds no watched run.
    """
    uri = existing_store(tracking_uri)
    client = connect(uri)
    with _readable(uri):
        if experiment is None:
            ids = [e.experiment_id for e in client.search_experiments()]
        else:
            known = client.get_experiment_by_name(experiment)
            if known is None:
                names = ", ".join(sorted(e.name for e in client.search_experiments())[:10])
                raise RunError(f"there is no experiment {experiment!r} in {public_uri(uri)}; it holds: {names}")
            ids = [known.experiment_id]
        found: list[str] = []
        token = None
        while True:
            page = client.search_runs(
                ids,
                "tags.`gradwatch.version` != ''",
                max_results=1_000,
                order_by=["attributes.start_time ASC"],
                page_token=token,
            )
            found += [run.info.run_id for run in page]
            token = page.token
            if not token:
                break
    if not found:
        where = f"experiment {experiment!r} of {public_uri(uri)}" if experiment else public_uri(uri)
        raise RunError(f"{where} holds no run that gradwatch watched")
    return found


def watched_experiment(tracking_uri: str) -> str:
    """The id of the experiment that holds the newest watched run.

    Raises:
        RunError: the store holds none.
    """
    newest = watched_runs(tracking_uri=tracking_uri)[-1]
    with _readable(tracking_uri):
        return str(connect(tracking_uri).get_run(newest).info.experiment_id)


@contextlib.contextmanager
def _readable(uri: str) -> Iterator[None]:
    """A store that does not answer is one line: nobody who reads wants to wait for it."""
    try:
        yield
    except MlflowException as error:
        raise RunError(f"cannot read {public_uri(uri)}: {str(error).splitlines()[0][:200]}") from error

"""Reading back from MLflow: the history that was delivered to a run, which runs were watched, and what changed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.tracking import MlflowClient

from gradwatch._version import __version__
from gradwatch.errors import RunError
from gradwatch.sanitize import MAX_DOWNLOAD, MAX_LANES, printable, public_text, public_uri
from gradwatch.storage.folder import ALL_TABLES, MANIFEST
from gradwatch.storage.shared_folder import PARTS
from gradwatch.tracking.artifact_places import UnfitError, require_known_place
from gradwatch.tracking.client import ARTIFACTS, connect, existing_store, quoted
from gradwatch.tracking.refusals import clear_errors
from gradwatch.tracking.tags import Tag

Read = TypeVar("Read")
WATCHED = f"tags.`{Tag.VERSION}` != ''"
NO_TABLES = "-"
MAX_FILES = 100_000  # that a server may list for one run
_PLAIN_NAME = re.compile(r"\w[\w.-]{0,254}")  # of one file or folder: it leads nowhere else


def read_fetched(run_id: str, read: Callable[[Path], Read]) -> Read:
    """What `read` makes of the run's folder, which is fetched of an MLflow run and is gone afterwards.

    Raises:
        RunError: no such store or run, or gradwatch delivered nothing to it yet.
    """
    uri = existing_store()
    client = connect(uri)
    with _readable(uri), clear_errors(f"run {run_id} in {public_uri(uri)}"):
        name = client.get_run(run_id).info.run_name
        marks = {f"{ARTIFACTS}/{name}" for name in (MANIFEST, PARTS)}
        if not any(item.path in marks for item in _listed(client, run_id, ARTIFACTS)):
            raise RunError(
                f"MLflow run {run_id} ({name}) holds no {ARTIFACTS}/ artifacts: it was not watched, or its "
                "folder is not delivered yet (gradwatch sync FOLDER)"
            )
        with tempfile.TemporaryDirectory(prefix="gradwatch-") as temporary:
            return read(fetch(client, run_id, Path(temporary)))


def fetch(client: MlflowClient, run_id: str, to: Path) -> Path:
    """Download the files that a run folder is made of; returns the folder, below `to`.

    What a server calls them is not trusted: they are those of `files_of_a_run`, whatever else it lists, and each is
    written under its own name.

    Raises:
        UnfitError: they are more than is fetched.
    """
    left, store = MAX_DOWNLOAD, artifact_store(client, run_id)
    for path in files_of_a_run(lambda folder: _listed(client, run_id, folder)):
        download(store, path, to / path)
        left -= (to / path).stat().st_size
        if left < 0:
            raise UnfitError(f"the run holds more than the {MAX_DOWNLOAD:,} bytes that are fetched of one")
    return to / ARTIFACTS


def artifact_store(client: MlflowClient, run_id: str) -> ArtifactRepository:
    """Where the run's artifacts are.

    Raises:
        UnfitError: where none may be.
    """
    with clear_errors(f"run {run_id}"):
        require_known_place(client, run_id)
        return get_artifact_repository(client.get_run(run_id).info.artifact_uri, client.tracking_uri)


def download(store: ArtifactRepository, path: str, to: Path) -> None:
    """Download one file as `to`, and nothing else.

    MLflow's own `download_artifacts` asks the server whether it is a folder, and then takes all that is listed there.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    with clear_errors(path):
        store._download_file(path, str(to))


def _listed(client: MlflowClient, run_id: str, folder: str) -> Sequence[Any]:
    """What is directly in a folder of the run's artifacts."""
    with clear_errors(f"run {run_id}"):
        require_known_place(client, run_id)
        try:
            return list(islice(client.list_artifacts(run_id, folder), MAX_FILES + 1))
        except (KeyError, TypeError, AttributeError) as error:
            raise UnfitError(f"the server's list of the run's files cannot be understood ({error!r:.100})") from error


def files_of_a_run(list_folder: Callable[[str], Iterable[Any]]) -> Iterator[str]:
    """The paths of the manifests and Parquet parts among a run's artifacts.

    `list_folder` gives what is directly in a folder, as objects with `path` and `is_dir`. What is called otherwise than
    a run's files is left out.

    Raises:
        UnfitError: they are more than `MAX_FILES`, or more than `MAX_LANES` parts.
    """
    left, parts = MAX_FILES, MAX_LANES

    def listed(folder: str) -> Iterator[tuple[str, bool]]:
        nonlocal left
        for item in list_folder(folder):
            left -= 1
            if left < 0:
                raise UnfitError(f"the run holds more than {MAX_FILES:,} files: it is not read")
            name = str(item.path).removeprefix(f"{folder}/")
            if _PLAIN_NAME.fullmatch(name):
                yield name, bool(item.is_dir)

    def within(folder: str, whole: bool) -> Iterator[str]:
        nonlocal parts
        for name, is_dir in listed(folder):
            if name in (MANIFEST, PARTS):  # a folder of that name would be in the file's way
                yield from () if is_dir else (f"{folder}/{name}",)
            elif is_dir and name in ALL_TABLES:
                found = (file for file, inner in listed(f"{folder}/{name}") if not inner and file.endswith(".parquet"))
                yield from (f"{folder}/{name}/{file}" for file in found)
            elif is_dir and whole:
                parts -= 1
                if parts < 0:
                    raise UnfitError(f"the run holds more than {MAX_LANES} parts: it is not read")
                yield from within(f"{folder}/{name}", whole=False)

    yield from within(ARTIFACTS, whole=True)


def watched_runs(experiment: str | None = None) -> list[str]:
    """The ids of all watched runs of the experiment of that name (of all experiments for None), oldest first.

    Raises:
        RunError: no such store or experiment, or it holds no watched run.
    """
    uri = existing_store()
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
        found = [str(run.info.run_id) for run in _search(client, ids, "ASC")]
    if not found:
        where = f"experiment {experiment!r} of {public_uri(uri)}" if experiment else public_uri(uri)
        raise RunError(f"{where} holds no run that gradwatch watched")
    return found


def tagged_run(tag: str, value: str) -> str | None:
    """The id of the newest watched run in the store with this tag; None when there is none.

    Raises:
        RunError: no such store.
    """
    uri = existing_store()
    client = connect(uri)
    with _readable(uri):
        ids = [experiment.experiment_id for experiment in client.search_experiments()]
        wanted = f"{WATCHED} and tags.`{tag}` = {quoted(value)}"
        found = client.search_runs(ids, wanted, max_results=1, order_by=["attributes.start_time DESC"])
    return found[0].info.run_id if found else None


def watched_experiments(tracking_uri: str) -> dict[str, str]:
    """The experiments that hold watched runs, id to name, the one with the newest run first.

    Raises:
        RunError: the store holds none.
    """
    client = connect(tracking_uri)
    newest: dict[str, tuple[int, str]] = {}
    with _readable(tracking_uri):
        for experiment in client.search_experiments():
            last = client.search_runs(
                [experiment.experiment_id], WATCHED, max_results=1, order_by=["attributes.start_time DESC"]
            )
            if last:
                newest[str(experiment.experiment_id)] = (last[0].info.start_time, experiment.name)
    if not newest:
        raise RunError(f"{public_uri(tracking_uri)} holds no run that gradwatch watched")
    return {key: newest[key][1] for key in sorted(newest, key=lambda key: newest[key], reverse=True)}


# ------------------------------------------------------------------------------------------------------ what changed


class Fingerprint(NamedTuple):
    """What a run looked like: who looked, what costs nothing to see (`pulse`), and which tables it holds (`tables`)."""

    version: str
    pulse: str
    tables: str

    @classmethod
    def of_tags(cls, tags: dict[str, str]) -> Fingerprint:
        """The one that `gradwatch.concluded` names; an empty one for a run without that tag."""
        words = tags.get(Tag.CONCLUDED, "").split()
        return cls(*words) if len(words) == 3 else cls("", "", "")

    def __str__(self) -> str:
        return " ".join(self)


def fingerprint(client: MlflowClient, run_id: str) -> Fingerprint:
    """What the run looks like now."""
    with clear_errors(f"run {run_id}"):
        return Fingerprint(__version__, pulse(client.get_run(run_id)), tables(client, run_id))


def pulse(run: Any) -> str:
    """A fingerprint of what a search says of an MLflow run: whether it ended, was delivered, has new metrics."""
    data = run.data
    return _hash([run.info.status, run.info.end_time, data.tags.get(Tag.DELIVERED), sorted(data.metrics.items())])


def tables(client: MlflowClient, run_id: str) -> str:
    """A fingerprint of the manifests and tables among a run's artifacts; `-` while it has no table."""
    sizes: dict[str, Any] = {}

    def list_folder(folder: str) -> Sequence[Any]:
        found = _listed(client, run_id, folder)
        sizes.update({str(item.path): item.file_size for item in found})
        return found

    try:
        paths = sorted(files_of_a_run(list_folder))
    except UnfitError as error:
        return _hash(str(error))  # it has been seen; that it is not read is said where it is fetched
    found = [(path, sizes[path]) for path in paths]
    return _hash(found) if any(path.endswith(".parquet") for path in paths) else NO_TABLES


def find_watched(client: MlflowClient, experiments: Sequence[str] = ()) -> Iterator[Any]:
    """The MLflow runs that were watched, newest first: of these experiments (those that exist), or of all."""
    ids = [e.experiment_id for e in client.search_experiments() if not experiments or e.name in experiments]
    yield from _search(client, ids, "DESC") if ids else ()


def _search(client: MlflowClient, experiment_ids: Sequence[str], order: str) -> Iterator[Any]:
    token = None
    while True:
        page = client.search_runs(
            experiment_ids,
            WATCHED,
            max_results=1_000,
            order_by=[f"attributes.start_time {order}"],
            page_token=token,
        )
        yield from page
        token = page.token
        if not token:
            return


def _hash(data: Any) -> str:
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _readable(uri: str) -> Iterator[None]:
    """A store that does not answer is one line: nobody who reads wants to wait for it."""
    try:
        yield
    except (MlflowException, OSError) as error:  # an OSError: requests' own, of what an artifact store answers
        said = printable(public_text((str(error).splitlines() or [type(error).__name__])[0]))[:200]
        raise RunError(f"cannot read {public_uri(uri)}: {said}") from error

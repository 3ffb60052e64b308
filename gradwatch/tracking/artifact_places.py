"""Where a run's artifacts may be. Whoever writes runs chooses the address that MLflow's client then reads and writes.

That may be a host or a folder that is none of theirs (server-side request forgery), and MLflow sends its own login
along. So only what the operator gave is contacted: the tracking server, the place where it keeps artifacts by default
(that of experiment 0, which nobody can set over the network), and what `GRADWATCH_ARTIFACTS` names.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from gradwatch.errors import RunError
from gradwatch.sanitize import printable, public_uri
from gradwatch.storage.places import sqlite_file

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

PLACES = "GRADWATCH_ARTIFACTS"  # addresses, a space between them; set and empty: none but the server's own
_of_strangers = ContextVar("of_strangers", default=False)
CLOUDS = ("s3", "gs", "wasbs", "dbfs")  # whose host no address of a run can choose


class UnfitError(RunError):
    """What a run's artifacts are, how many or where, is not what is read."""


@lru_cache(maxsize=10_000)
def require_known_place(client: MlflowClient, run_id: str) -> None:
    """Refuse a run whose artifacts are where the operator keeps none. A run's address never changes.

    Raises:
        UnfitError: so it is.
    """
    from gradwatch.tracking.refusals import if_allowed

    place, uri = client.get_run(run_id).info.artifact_uri, client.tracking_uri
    if is_allowed(place, uri, given_places()):
        return
    experiment = if_allowed(lambda: client.get_experiment("0"))
    default = experiment.artifact_location if experiment else ""
    if not (default and _lies_in(place, default.removesuffix("/0"))):
        raise UnfitError(
            f"its artifacts are at {printable(public_uri(place))[:200]}, where this server keeps none by default: name "
            f"what may be used in {PLACES}"
        )


@contextmanager
def runs_of_strangers() -> Iterator[None]:
    """Meanwhile what is not given is not contacted: nobody has asked for just these runs."""
    token = _of_strangers.set(True)
    try:
        yield
    finally:
        _of_strangers.reset(token)


def given_places() -> Sequence[str] | None:
    """The addresses of `GRADWATCH_ARTIFACTS`; None where it is not set, and somebody has named the run."""
    text = os.environ.get(PLACES)
    if text is None:
        return [] if _of_strangers.get() else None
    return text.split()


def is_allowed(place: str, tracking_uri: str, given: Sequence[str] | None) -> bool:
    """Whether artifacts may be at `place`: with the tracking server itself, or at one of the places `given`.

    Without any (None) also in a cloud's buckets, under the credentials of this machine, and, where `tracking_uri` is
    no server's but a database's, in any local folder.
    """
    scheme, host, _ = _parts(place)
    server, own_host, _ = _parts(tracking_uri)
    remote = server in ("http", "https")
    if scheme == "mlflow-artifacts":
        return remote and host in ("", own_host)
    if (scheme in ("http", "https") and (scheme, host) == (server, own_host)) or (
        scheme == "dbfs" and not host and tracking_uri.partition(":")[0] == "databricks"
    ):
        return True
    if given is None:
        return scheme in CLOUDS or (scheme == "file" and not host and not remote)
    database = sqlite_file(tracking_uri)
    return any(_lies_in(place, root) for root in [*given, *([str(database.parent)] if database else [])])


def _lies_in(place: str, root: str) -> bool:
    scheme, host, path = _parts(place)
    *where, top = _parts(root)
    return [scheme, host] == where and bool(path) and (path + "/").startswith(top.rstrip("/") + "/")


def _parts(uri: str) -> tuple[str, str, str]:
    """Scheme, host and port, and path. No path where it leads upwards; no known scheme where it is no clear address."""
    if re.search(r"[\s\\]", uri):  # libraries differ in where a host ends
        return "?", "", ""
    if not re.match(r"[\w+.-]+:", uri):
        return "file", "", os.path.abspath(uri)
    try:
        found = urlsplit(uri)
        host = found.netloc.lower()
        if found.scheme in ("http", "https", "mlflow-artifacts") and host:
            host = f"{found.hostname}:{found.port or (80 if found.scheme == 'http' else 443)}"
    except ValueError:
        return "?", "", ""
    path = unquote(found.path) if found.scheme == "file" else found.path
    upwards = ".." in unquote(path).split("/")
    return found.scheme, host, "" if upwards else posixpath.normpath(path or "/")

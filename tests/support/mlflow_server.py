"""A real MLflow server on loopback, over SQLite or a PostgreSQL cluster of its own, and what its database holds."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gradwatch.cli.ui import server_command, server_environment
from gradwatch.storage.delivery_cursor import read_cursor
from gradwatch.storage.run_reader import read_run
from gradwatch.tracking.metric_keys import windows


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def mlflow_server(store: str, folder: Path, port: int | None = None, seconds: float = 120) -> Iterator[str]:
    """The URL of a server over `store`, with its artifacts in `folder`, while the block lasts."""
    port = port or free_port()
    command = [*server_command(port), "--artifacts-destination", str(folder / "artifacts")]
    environment = server_environment(store, "*")  # it is reached through a proxy on another port
    with open(folder / "server.log", "ab") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        until = time.monotonic() + seconds
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"no MLflow server: {(folder / 'server.log').read_text()[-2000:]}")
            time.sleep(0.1)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)  # its workers too
        process.wait()


def _answers(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
        return bool(answer.status == 200)
    return False


def until(look: Callable[[], Any], seconds: float = 90) -> Any:
    """What `look` returns, once that is true."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.5)
    return found


def status(url: str | urllib.request.Request) -> int:
    """The HTTP status of the answer."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


class Server:
    """A server over `store` that can be killed and started again, on one port; it runs from the first `start` on."""

    def __init__(self, store: str, folder: Path) -> None:
        self.store, self.folder, self.port = store, folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._running = contextlib.ExitStack()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._running.enter_context(mlflow_server(self.store, self.folder, self.port))

    def kill(self) -> None:
        """End it as `kill -9` does, if it runs."""
        self._running.close()


def postgres_program(name: str) -> str | None:
    """Where `name` of PostgreSQL's server is; Debian keeps it out of the PATH."""
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    return shutil.which(name) or next((str(path) for path in places), None)


def _postgres_user() -> str | None:
    """Whose PostgreSQL is to run: it refuses root."""
    if os.getuid():
        return None
    import pwd

    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in known), None)


@contextlib.contextmanager
def postgres(password: str = "") -> Iterator[str]:
    """The URI of a database of a PostgreSQL cluster that lasts as long as the block. With `password`, it asks for it.

    Raises:
        FileNotFoundError: PostgreSQL is not installed.
    """
    initdb, pg_ctl = postgres_program("initdb"), postgres_program("pg_ctl")
    if initdb is None or pg_ctl is None:
        raise FileNotFoundError("PostgreSQL's server is not installed (Debian: apt-get install postgresql)")
    place, port, user = Path(tempfile.mkdtemp(prefix="gradwatch-pg-")), free_port(), _postgres_user()
    try:
        if user:
            shutil.chown(place, user)

        def run(*command: str) -> None:
            done = subprocess.run(
                command, cwd=place, user=user, stdin=subprocess.DEVNULL, check=False, capture_output=True, text=True
            )
            if done.returncode:
                raise RuntimeError(f"{command[0]}: {done.stdout}{done.stderr}")

        data = str(place / "data")
        login = ["--auth=trust"]
        if password:
            (place / "password").write_text(password)
            login = ["--auth=scram-sha-256", "--pwfile", str(place / "password")]
        run(initdb, "-D", data, "-U", "mlflow", *login, "-E", "UTF8", "--no-sync", "--locale=C")
        options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories='' -c fsync=off"
        run(pg_ctl, "-D", data, "-o", options, "-l", str(place / "log"), "-w", "-t", "60", "start")
        try:
            yield f"postgresql+psycopg2://mlflow{password and ':' + password}@127.0.0.1:{port}/postgres"
        finally:
            run(pg_ctl, "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def in_the_store(store: str, run_id: str) -> Counter[Any]:
    """Every metric row of a run, as the database has them."""
    import sqlalchemy

    query = "SELECT key, step, value, timestamp FROM metrics WHERE run_uuid = :run"
    with sqlalchemy.create_engine(store).connect() as connection:
        rows = connection.execute(sqlalchemy.text(query), {"run": run_id})
        return Counter((key, step, value, stamp) for key, step, value, stamp in rows)


def wanted(folder: Path) -> Counter[Any]:
    """Every point that the files hold."""
    history = read_run(folder)
    found = windows(history, history.run.window, history.run.mlflow_layers, ended=True)
    return Counter((p.key, p.step, p.value, p.timestamp) for window in found for p in window.points)


def all_there(store: str, folder: Path) -> dict[str, Any]:
    """The cursor of `folder`; fails unless the database holds every point of it, and each once."""
    cursor = read_cursor(folder)
    found, expected = in_the_store(store, cursor["run_id"]), wanted(folder)
    assert found == expected, f"{len(expected - found)} lost, {len(found - expected)} too many"
    assert set(expected.values()) == {1}
    return cursor

"""`gradwatch ui`: MLflow's own pages on the store in use."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import click

from gradwatch.cli.options import Whole
from gradwatch.errors import RunError, require
from gradwatch.launcher.reaper import Reaper
from gradwatch.sanitize import terminal

GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL

# Measured: one worker starts in a third of the time and answers without the 44 ms of Nagle's algorithm; without the
# job consumers the server takes 0.4 GiB instead of 2.5.
LIGHT = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_ENABLE_AI_GATEWAY": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PYTHONWARNINGS": "ignore",  # of MLflow's own dependencies, at every start
    "UVICORN_ACCESS_LOG": "false",  # a line for every request of every page
    "UVICORN_LOG_LEVEL": "warning",
}


@click.command()
@click.option("--port", default=5000, show_default=True, type=Whole(1, 65535), help="The port to listen on.")
@click.option("--store", metavar="URI|FOLDER", help="The store to show, or a folder that holds mlflow.db.")
def ui(port: int, store: str | None) -> None:
    """Start the MLflow UI on the store in use, and print the address of the saved view.

    The store is MLflow's own setting (MLFLOW_TRACKING_URI), else ./mlflow.db, else that of the demo. The server
    listens on 127.0.0.1 only and runs until Ctrl-C.

    Example: gradwatch ui --store gradwatch-demo
    """
    require("mlflow", "mlflow")
    from gradwatch.tracking.client import existing_store
    from gradwatch.tracking.reader import watched_experiments
    from gradwatch.tracking.views import view_url

    uri = existing_store(_uri(store))
    served_already = uri.startswith("http")
    if not served_already:
        _check_free(port)
    for experiment, name in watched_experiments(uri).items():
        click.echo(terminal(f"{name}: {view_url(uri, experiment, f'http://127.0.0.1:{port}')}"))
    if served_already:
        click.echo("The store is a server already: open one of these addresses.")
        return
    click.echo("Ctrl-C ends the server.")
    raise SystemExit(serve(port, uri))


def _check_free(port: int) -> None:
    """Before an address is printed that leads elsewhere.

    Raises:
        RunError: another program listens there.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise RunError(f"port {port} is taken ({error.strerror}): choose another with --port") from error


def _uri(store: str | None) -> str | None:
    if store is None or "://" in store:
        return store
    path = Path(store)
    file = path / "mlflow.db" if path.is_dir() else path
    return f"sqlite:///{file.resolve()}"


def serve(port: int, uri: str) -> int:
    """Run the server until it ends, or this process does; its exit code."""
    # MLflow's server is two processes, and leaves the second when it is ended; of a SIGINT uvicorn tells in a traceback
    with Reaper(GRACE_SECONDS, first=signal.SIGTERM) as reaper:
        server = subprocess.Popen(server_command(port), env=server_environment(uri, port), start_new_session=True)
        reaper.add(server.pid)
        threading.Thread(target=server.wait, daemon=True).start()  # no zombie that the reaper would wait for
        return server.wait()


def server_command(port: int) -> list[str]:
    """The MLflow server, as light and as closed as it goes: loopback, one worker."""
    return [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]


def server_environment(uri: str, port: int | str) -> dict[str, str]:
    """Where the server finds its store, and the hosts it answers as.

    Everybody may read a command's words, and the address may hold a password. MLflow before 3.5 has no option for the
    hosts, and would not start with one.
    """
    hosts = ",".join(f"{name}:{port}" for name in ("127.0.0.1", "localhost"))
    return {**os.environ, **LIGHT, "MLFLOW_BACKEND_STORE_URI": uri, "MLFLOW_SERVER_ALLOWED_HOSTS": hosts}

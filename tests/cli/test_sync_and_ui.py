"""`gradwatch sync` and `gradwatch ui`, and the courier as the process that a training starts."""

import os
import socket
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from faulty_proxy import ok, swallow
from make_run import as_block, make_history, make_run
from mlflow_server import all_there, status

from gradwatch.cli import main
from gradwatch.cli.ui import server_command, server_environment
from gradwatch.recording import courier_process
from gradwatch.storage.folder import create_folder
from gradwatch.storage.writer import RunWriter

pytest.importorskip("mlflow")


def target(store, **changes):
    return {"tracking_uri": store, "experiment_name": "exp", "run_id": None, "joined": False, **changes}


@pytest.fixture
def run():
    def call(*arguments):
        return CliRunner().invoke(main, [str(a) for a in arguments])

    return call


def test_sync_prints_a_line_for_each_run_and_the_address_once(store, run, tmp_path):
    for name in ("a", "b"):
        make_run(tmp_path / "gradwatch-runs", name=name, window=50, mlflow=target(store))
    result = run("sync")
    assert result.exit_code == 0, result.output
    *lines, address = result.stdout.splitlines()
    assert [line.endswith(": delivered") for line in lines] == [True, True]
    assert address.startswith("MLflow: http://127.0.0.1:5000/#/experiments/1/runs?viewStateShareKey=gradwatch")
    assert address.endswith("workflowType=machine_learning (a local store is shown there by: gradwatch ui)")
    assert run("sync").exit_code == 0


def test_sync_of_one_folder_delivers_even_a_run_that_stayed_in_its_files(store, run, tmp_path):
    folder = make_run(tmp_path, window=50, mlflow=None)
    assert run("sync", tmp_path).exit_code == 2
    assert run("sync", folder, "--tracking-uri", store).exit_code == 0
    assert courier_process.wait_delivered(folder, 0)["done"]
    elsewhere = run("sync", folder, "--tracking-uri", f"sqlite:///{tmp_path}/other.db")
    assert elsewhere.exit_code == 1
    assert "already" in elsewhere.stdout


def test_sync_all_takes_the_runs_along_that_stayed_in_their_files(store, run, tmp_path):
    runs = tmp_path / "runs"
    folders = [make_run(runs, name=name, window=50, mlflow=None) for name in ("a", "b")]
    result = run("sync", runs)
    assert result.exit_code == 2
    assert "--all" in result.stderr
    result = run("sync", "--all", runs, "--tracking-uri", store)
    assert result.exit_code == 0, result.output
    assert all(courier_process.wait_delivered(folder, 0)["done"] for folder in folders)


@pytest.mark.slow
def test_sync_shows_its_progress_on_a_terminal_only(store, tmp_path):
    """The bar goes to stderr; what is printed for each run is the same with and without it."""
    import pty

    folder = make_run(tmp_path, name="bar", window=2, mlflow=target(store))
    command = [sys.executable, "-m", "gradwatch", "sync", str(folder)]
    env = courier_process.child_environment() | {"TERM": "xterm", "COLUMNS": "120"}
    master, slave = pty.openpty()
    seen, done = b"", subprocess.Popen(command, stdout=subprocess.PIPE, stderr=slave, env=env, text=True)
    os.close(slave)
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:  # the terminal's other end is closed
            break
        seen += data
    out = done.communicate()[0]
    os.close(master)
    assert done.returncode == 0
    assert b"steps" in seen
    again = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    assert again.stdout == out
    assert again.stderr == ""


@pytest.mark.slow
def test_the_server_logs_no_request(server):
    """MLflow's own logs each, and a page makes dozens."""
    assert status(f"{server[0]}/api/2.0/mlflow/experiments/search?max_results=1") == 200
    assert "GET /" not in (Path(server[1].removeprefix("sqlite:///")).parent / "server.log").read_text()


@pytest.mark.slow
def test_the_server_answers_no_page_of_a_stranger(server):
    """Whose name leads to this machine, to read the runs through the browser. MLflow by itself lets 10.* in."""
    search = f"{server[0]}/api/2.0/mlflow/experiments/search?max_results=1"
    assert status(search) == 200
    assert status(urllib.request.Request(search, headers={"Host": "10.evil.example"})) == 403


@pytest.mark.slow
def test_two_syncs_and_a_courier_at_once_deliver_once(server, proxy, tmp_path):
    """Three processes on one folder, and a server that loses answers."""
    where = {"tracking_uri": proxy.url, "experiment_name": "at-once", "run_id": None, "joined": False}
    folder = make_run(tmp_path, window=2, steps=600, mlflow=where)
    proxy.plan([fault for _ in range(6) for fault in (ok, swallow)], where="log-batch")
    command = [sys.executable, "-m", "gradwatch", "sync", str(folder)]
    env = courier_process.child_environment() | {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "5"}  # of the user, for other calls
    processes = [subprocess.Popen(command + more, env=env) for more in ([], [], ["--follow"])]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    assert proxy.left == 0
    all_there(server[1], folder)


@pytest.mark.parametrize("ref", ["experiment:mnist", "latest", "0" * 32])
def test_a_server_that_does_not_answer_is_one_line_and_no_wait(run, tmp_path, monkeypatch, ref):
    with socket.socket() as closed:  # bound but not listening: refused at once
        closed.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        result = run("show", ref)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert f"cannot read {uri}" in result.stderr


def test_sync_says_what_stays_undelivered(store, run, tmp_path):
    folder = make_run(tmp_path, mlflow=target(store, run_id="0" * 32, joined=True))
    result = run("sync", folder)
    assert result.exit_code == 1
    assert "NOT delivered" in result.output
    assert "0" * 32 in result.output


@pytest.mark.parametrize(
    "arguments", [["sync", "nowhere"], ["sync", "--follow", "nowhere"], ["ui", "--store", "nowhere"], ["ui"]]
)
def test_nothing_to_work_on_is_one_line_and_exit_2(store, run, arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_ui_prints_the_view_and_starts_a_closed_light_server(store, run, tmp_path, monkeypatch):
    run("sync", make_run(tmp_path, window=50, mlflow=target(store)))
    started = []
    monkeypatch.setattr("gradwatch.cli.ui.serve", lambda *arguments: started.append(arguments) or 0)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.listen()
        taken = run("ui", "--port", port)
        assert (taken.exit_code, taken.stdout) == (2, "")
    result = run("ui", "--port", port)
    assert f"http://127.0.0.1:{port}/#/experiments/1/runs?viewStateShareKey=gradwatch" in result.stdout
    ((served, uri),) = started
    assert (served, uri) == (port, store)
    command, env = server_command(port), server_environment(uri, port)
    assert env["MLFLOW_BACKEND_STORE_URI"] == store
    assert not any(store in word for word in command)
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--workers") + 1] == "1"
    assert "--disable-security-middleware" not in command
    assert env["MLFLOW_SERVER_ALLOWED_HOSTS"] == f"127.0.0.1:{port},localhost:{port}"
    assert env["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    options = subprocess.run(
        [sys.executable, "-m", "mlflow", "server", "--help"], capture_output=True, text=True, check=True
    )
    assert all(option in options.stdout for option in command if option.startswith("--"))


@pytest.mark.slow
def test_a_training_starts_its_courier_and_finds_everything_delivered(store, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)  # the courier must find the package by itself
    if sys.version_info >= (3, 11):
        (tmp_path / "queue.py").write_text("raise ImportError('a user file that shadows the standard library')")
    history = make_history(steps=100, window=20, mlflow=target(None), pid=os.getpid(), host=socket.gethostname(),
                           created="2026-01-01T00:00:00+00:00")  # fmt: skip
    history = replace(history, run=replace(history.run, mlflow={**history.run.mlflow, "tracking_uri": None}))
    folder = create_folder(tmp_path / "gradwatch-runs", "live")
    writer = RunWriter(folder, history.run, flush_seconds=0.01)
    process = courier_process.start_courier(folder)
    writer.append(as_block(history))
    writer.close()
    cursor = courier_process.wait_delivered(folder, 100, process)
    assert cursor["done"], (folder / "courier.log").read_text()
    assert cursor["tracking_uri"] == store  # ./mlflow.db of the user's own folder
    assert process.wait(20) == 0

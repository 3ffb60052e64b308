"""scripts/service: from the first start to a second one, and its end."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import urllib.request
from pathlib import Path

import pytest
from mlflow_server import free_port, status, until
from processes import all_ended, processes_of

mlflow = pytest.importorskip("mlflow")
ROOT = Path(__file__).parents[2]
TRAINING = """
    import torch
    from torch import nn

    import gradwatch

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradwatch.watch(model, optimizer, run_name="sick", verbose=False) as watch:
        for step in range(60):
            optimizer.zero_grad()
            loss = model(torch.randn(16, 8)).square().mean()
            (loss * float("nan") if step == 50 else loss).backward()
            optimizer.step()
            watch.log(loss=loss)
"""


@pytest.fixture
def service(tmp_path, request):
    for module in ("flask_wtf", "prometheus_client", "psycopg2"):
        pytest.importorskip(module)
    home = Path(tempfile.mkdtemp(prefix="gradwatch-service-"))
    home.chmod(0o711)  # root's PostgreSQL runs as another user, who must be able to reach its folder
    folder, ports = home / "service", (free_port(), free_port())
    command = ["--dir", str(folder), "--port", str(ports[0]), "--monitor-port", str(ports[1]), *request.param]
    output = (tmp_path / "output").open("w")
    process = subprocess.Popen(
        [ROOT / "scripts" / "service", *command],
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, "SERVICE_PYTHON": sys.executable, "SERVICE_EVERY": "1", "OMP_NUM_THREADS": "1"},
    )

    def said():
        return (tmp_path / "output").read_text()

    try:
        until(lambda: "Ctrl-C ends" in said() or process.poll() is not None, 150)
        assert process.poll() is None, said()
        yield folder, ports, process, said
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        finally:
            process.kill()
            output.close()
            shutil.rmtree(home)


def settings(folder):
    return dict(line.split("=", 1) for line in (folder / "client.env").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("service", [[]], indirect=True)
def test_a_training_that_only_records_finds_its_report_on_the_server(service, tmp_path, monkeypatch):
    folder, ports, process, said = service
    assert ("PostgreSQL, " if shutil.which("pg_ctl") else "Database:  SQLite") in said()
    for name, value in settings(folder).items():
        monkeypatch.setenv(name, value)
    password = settings(folder)["MLFLOW_TRACKING_PASSWORD"]
    assert len(password) >= 12
    assert (folder / "client.env").stat().st_mode & 0o077 == 0
    assert status(f"http://127.0.0.1:{ports[0]}/api/2.0/mlflow/experiments/search?max_results=1") == 401

    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAINING))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, script], check=True, cwd=tmp_path, env=environment, timeout=120)
    client = mlflow.MlflowClient(settings(folder)["MLFLOW_TRACKING_URI"])

    def judged():
        runs = client.search_runs(["0"], "attributes.run_name = 'sick'")
        return [run for run in runs if "gradwatch.concluded" in run.data.tags]

    (run,) = until(judged)
    assert run.info.status == "FINISHED"
    assert run.data.tags["gradwatch.verdict"].startswith("nonfinite at step 50")
    assert "nonfinite at step 50" in run.data.tags["mlflow.note.content"]
    found = {item.path.split("/")[-1] for item in client.list_artifacts(run.info.run_id, "gradwatch")}
    assert {"report.html", "overview.png", "findings.json", "run.json"} <= found
    with urllib.request.urlopen(f"http://127.0.0.1:{ports[1]}/metrics", timeout=10) as page:
        assert "gradwatch_monitor_updated_total 1.0" in page.read().decode()
    assert status(f"http://127.0.0.1:{ports[1]}/healthz") == 200

    for path in [*folder.glob("*.log"), tmp_path / "output", *(tmp_path / "gradwatch-runs").rglob("*.*")]:
        if path.is_file():
            assert password.encode() not in path.read_bytes(), path
    number = signal.SIGTERM
    process.send_signal(number)
    assert process.wait(60) == (0 if number == signal.SIGTERM else -number)
    all_ended(folder)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("service", [["--sqlite"]], indirect=True)
def test_the_service_ends_as_a_whole_when_one_of_its_processes_dies(service):
    folder, ports, process, said = service
    servers = [pid for pid in processes_of(folder) if b"basic-auth" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert servers
    for pid in servers:
        os.kill(pid, signal.SIGKILL)
    assert process.wait(60) == 1
    assert "one of the processes ended" in said()
    all_ended(folder)


def test_the_script_says_what_it_takes():
    shown = subprocess.run([ROOT / "scripts" / "service", "--help"], capture_output=True, text=True, check=True).stdout
    assert "scripts/service [--dir DIR] [--port PORT] [--monitor-port PORT] [--sqlite]" in shown
    refused = subprocess.run([ROOT / "scripts" / "service", "--prot"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "--prot is unknown" in refused.stderr


def test_a_folder_that_was_begun_on_postgres_is_not_begun_anew_on_sqlite_though_asked_for(tmp_path):
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "PG_VERSION").write_text("1\n")
    refused = subprocess.run(
        ["timeout", "20", ROOT / "scripts" / "service", "--dir", tmp_path, "--sqlite", "--port", str(free_port())],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SERVICE_PYTHON": sys.executable},
    )
    assert refused.stderr.startswith(f"Error: --sqlite, but the data is in {tmp_path}/postgres, ")
    assert (refused.stdout, refused.returncode) == ("", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["postgres"]


def test_a_folder_whose_postgres_cannot_be_used_is_not_begun_anew_on_sqlite(tmp_path):
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "PG_VERSION").write_text("1\n")
    process = subprocess.Popen(
        [ROOT / "scripts" / "service", "--dir", tmp_path, "--port", str(free_port())],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "SERVICE_PYTHON": sys.executable},
    )
    first = process.stdout.readline()
    if not first.startswith("Error"):
        process.terminate()
    process.communicate(timeout=60)
    assert first.startswith(f"Error: the data is in {tmp_path}/postgres, and ")
    assert process.returncode == 1

"""Against a real tracking server on loopback: it is restarted, it is gone, and its password is written nowhere."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from mlflow_server import Server

from gradwatch.errors import RunError
from gradwatch.sanitize import public_text, public_uri
from gradwatch.tracking.monitor import Monitor
from gradwatch.tracking.reader import find_watched, watched_runs
from gradwatch.tracking.settings import MLFLOW_SETTINGS

mlflow = pytest.importorskip("mlflow")
ROOT = Path(__file__).parents[2]
PASSWORD = "pa55w0rd-of-someone"
SCRIPT = textwrap.dedent("""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(40):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
""")


@pytest.fixture
def server(store, tmp_path, monkeypatch):
    for name, value in MLFLOW_SETTINGS.items():
        monkeypatch.setenv(name, value)
    found = Server(store, tmp_path)
    yield found
    found.kill()


def run(*command, **environment):
    return subprocess.run(
        [sys.executable, "-m", "gradwatch", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_password_in_the_tracking_uri_is_written_nowhere_and_a_restarted_server_is_served(
    server, tmp_path, monkeypatch, caplog
):
    server.start()
    uri = f"http://someone:{PASSWORD}@127.0.0.1:{server.port}"
    (tmp_path / "train.py").write_text(SCRIPT)
    settings = {"MLFLOW_TRACKING_URI": uri, "GRADWATCH_MONITORED": "true"}
    said = [
        run("run", "--show-config", **settings),
        run("run", "--experiment", "e", "train.py", **settings),
        run("sync", "gradwatch-runs", **settings),  # so short a run ends before its courier has imported MLflow
        run("monitor", "--once", **settings),
        run("show", "latest", **settings),
    ]
    assert [done.returncode for done in said] == [0] * 5, [done.stdout for done in said]
    client = mlflow.MlflowClient(uri)
    (found,) = find_watched(client)
    run_id = found.info.run_id
    assert found.data.tags["gradwatch.judged"] == "39"
    client.download_artifacts(run_id, "gradwatch", str(tmp_path))

    caplog.set_level("INFO", "gradwatch")
    monitor = Monitor(uri)
    assert monitor.run_once()
    server.kill()
    assert not monitor.run_once()
    assert not monitor.run_once()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(RunError, match="cannot read http://127"):
        watched_runs()
    said += [run("monitor", "--once", **settings), run("show", run_id, **settings)]
    assert [done.returncode for done in said[-2:]] == [1, 2]
    (folder,) = (tmp_path / "gradwatch-runs").iterdir()
    (folder / "cursor.json").unlink()
    said += [run("sync", "gradwatch-runs", **settings)]
    assert said[-1].returncode == 1
    assert "NOT delivered" in said[-1].stdout
    server.start()
    assert monitor.run_once()
    assert ["answer" in record.message for record in caplog.records if record.module == "monitor"] == [True, True]

    (found,) = find_watched(client)
    texts = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {"run.json", "courier.log", "report.html", "findings.json"} <= {Path(name).name for name in texts}
    texts |= {f"output {number}": done.stdout.encode() for number, done in enumerate(said)}
    texts |= {"log": caplog.text.encode(), "tags": str(found.data.tags).encode(), "params": str(found.data).encode()}
    assert [name for name, text in texts.items() if PASSWORD.encode() in text] == []


def test_addresses_in_the_words_of_others_lose_their_logins():
    uri = f"postgresql+psycopg2://mlflow:{PASSWORD}@db:5432/mlflow"
    assert public_uri(uri) == "postgresql+psycopg2://db:5432/mlflow"
    said = f"cannot reach {uri}, nor HTTPS://a:{PASSWORD}@host/x?y=a@b"
    assert public_text(said) == "cannot reach postgresql+psycopg2://db:5432/mlflow, nor HTTPS://host/x?y=a@b"
    assert public_text("http://host/user@example.org, a@b://c") == "http://host/user@example.org, a@b://c"
    for word in (f"http://u:{PASSWORD}@h", f"http://u:{PASSWORD}@@h/p", f"(sqlite://{PASSWORD}@h)"):
        assert not re.search(PASSWORD, public_text(word))

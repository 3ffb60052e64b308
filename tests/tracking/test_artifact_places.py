"""Whoever writes runs to a server chooses where their artifacts are: only what the operator gave is contacted."""

import json
import shutil
import socketserver
import threading

import pytest
from click.testing import CliRunner
from make_run import make_run

from gradwatch.cli import main
from gradwatch.tracking.artifact_places import is_allowed
from gradwatch.tracking.sync import sync
from gradwatch.tracking.tags import Tag

mlflow = pytest.importorskip("mlflow")

SERVER, DATABASE = "https://mlflow.example.org/prefix", "sqlite:////srv/mlflow/mlflow.db"
NOWHERE = [
    "http://169.254.169.254/latest", "http://mlflow.example.org/x", "https://mlflow.example.org:444/x",
    "https://mlflow.example.org@evil.example.org/x", "https://evil.example.org\\@mlflow.example.org/x",
    "mlflow-artifacts://evil.example.org/x", "mlflow-artifacts://mlflow.example.org:80/x", "runs:/0/x", "models:/x/1",
    "ftp://evil.example.org/x", "sftp://evil.example.org/x", "hdfs://evil.example.org/x", "r2://b@evil.example.org/x",
    "b2://b@evil.example.org/x", "abfss://b@a.evil.example.org/x", "file://evil.example.org/x", "?:/x", "http://[::1",
]  # fmt: skip
ANYBODYS = ["s3://bucket/x", "gs://bucket/x", "/etc", "file:///etc", "file:/etc", "../etc", "x"]


@pytest.mark.parametrize("place", NOWHERE)
def test_no_run_chooses_a_host(place):
    for given in (None, [], ["s3://ours", "https://artifacts.example.org/root"]):
        assert not is_allowed(place, SERVER, given)
    assert not is_allowed(place, DATABASE, [])


@pytest.mark.parametrize("place", ANYBODYS)
def test_a_strangers_run_chooses_no_bucket_and_no_folder(place):
    assert not is_allowed(place, SERVER, [])
    assert not is_allowed(place, DATABASE, [])


@pytest.mark.parametrize(
    ("place", "uri", "given"),
    [
        ("mlflow-artifacts:/0/x/artifacts", SERVER, []),
        ("mlflow-artifacts://mlflow.example.org/0/x", SERVER, []),
        ("https://mlflow.example.org/api/2.0/mlflow-artifacts/artifacts/0/x", SERVER, []),
        ("/srv/mlflow/mlartifacts/exp/x", DATABASE, []),
        ("file:///srv/mlflow/mlartifacts/exp/x", DATABASE, []),
        ("s3://ours/runs/0/x", SERVER, ["s3://ours/runs/"]),
        ("file:///mnt/runs/0/x", SERVER, ["/mnt/runs"]),
        ("s3://bucket/x", SERVER, None),
        ("/home/me/mlruns/0/x", DATABASE, None),
        ("dbfs:/databricks/mlflow-tracking/0/x", "databricks", []),
    ],
)
def test_what_the_operator_gave_may_be_used(place, uri, given):
    assert is_allowed(place, uri, given)


@pytest.mark.parametrize(
    "place",
    ["s3://ours/runs2/x", "s3://ours/runs/../x", "s3://ours2/runs/x", "file:///mnt/runs/%2e%2e/x", "/mnt/runs/../x"],
)
def test_a_place_that_was_given_ends_where_it_ends(place):
    assert not is_allowed(place, SERVER, ["s3://ours/runs", "/mnt/runs"])


@pytest.fixture
def internal():
    """The address of a service that nobody is to ask, and what it was asked."""
    asked = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            asked.append(self.request.recv(1000))
            self.request.sendall(b'HTTP/1.0 200 OK\r\n\r\n{"files": []}')

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()


def strangers_run(client, location, name):
    experiment = client.create_experiment(name, artifact_location=location)
    tags = {Tag.VERSION: "1", Tag.DELIVERED: "2026", Tag.FINDINGS: "error nonfinite", Tag.VERDICT: "running"}
    return client.create_run(experiment, tags=tags)


@pytest.mark.slow
def test_strangers_runs_lead_the_monitor_nowhere_and_hold_nobody_up(store, tmp_path, internal):
    address, asked = internal
    client = mlflow.MlflowClient(store)
    target = {"tracking_uri": store, "experiment_name": "exp", "run_id": None, "joined": False}
    own = make_run(tmp_path / "runs", steps=40, mlflow=target)
    assert CliRunner().invoke(main, ["sync", str(own)], env={"GRADWATCH_MONITORED": "1"}).exit_code == 0
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    elsewhere.mkdir()
    leads = [f"http://{address}/api/2.0/mlflow-artifacts/artifacts/x", elsewhere.as_uri(), str(elsewhere),
             f"ftp://{address}/x", "models:/x/1"]  # fmt: skip
    theirs = [strangers_run(client, location, f"theirs {i}") for i, location in enumerate(leads)]
    for run in theirs[1:3]:
        place = elsewhere / run.info.run_id / "artifacts" / "gradwatch"
        shutil.copytree(own, place)
    before = {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}
    done = CliRunner().invoke(main, ["monitor", "--once", "--tracking-uri", store, "--notify", "false"])
    assert done.exit_code == 1, done.output
    assert {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()} == before
    assert asked == []
    for run in theirs:
        assert "GRADWATCH_ARTIFACTS" in client.get_run(run.info.run_id).data.tags[Tag.CORRUPT]
    cursor = json.loads((own / "cursor.json").read_text())
    assert client.get_run(cursor["run_id"]).data.tags[Tag.VERDICT] != "running"
    for command in (["show", theirs[0].info.run_id], ["show", "experiment:theirs 3"]):  # who asks is told
        shown = CliRunner().invoke(main, command)
        assert shown.exit_code == 2
        assert "its artifacts are at" in shown.stderr
    assert asked == []


@pytest.mark.slow
def test_a_run_is_delivered_to_no_place_that_a_stranger_chose(store, tmp_path, internal):
    """Into an experiment that somebody else made under the name that the training uses."""
    address, asked = internal
    mlflow.MlflowClient(store).create_experiment("squatted", artifact_location=f"http://{address}/x")
    target = {"tracking_uri": store, "experiment_name": "squatted", "run_id": None, "joined": False}
    (outcome,) = sync(make_run(tmp_path / "runs", steps=40, mlflow=target))
    assert outcome.lasting
    assert f"its artifacts are at http://{address}/x" in outcome.error
    assert asked == []

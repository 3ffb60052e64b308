"""What the training process knows of MLflow: no import of it, no network, no exception."""

import json
import subprocess
import sys
import threading
import types

import pytest

from gradwatch.errors import GradwatchWarning
from gradwatch.recording import courier_process, mlflow_target
from gradwatch.sanitize import public_uri


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


def fake_mlflow(active):
    module = types.ModuleType("mlflow")
    module.active_run = active
    module.get_tracking_uri = lambda: "http://me:secret@host:5000"
    module.tracking = types.SimpleNamespace(fluent=types.SimpleNamespace(_active_experiment_id="7"))
    return module


def a_run():
    return types.SimpleNamespace(info=types.SimpleNamespace(run_id="r1", experiment_id=3))


@pytest.mark.parametrize(
    ("uri", "public"),
    [
        ("http://me:secret@host:5000/x", "http://host:5000/x"),
        ("postgresql://u:p@ss@db/mlflow", "postgresql://db/mlflow"),
        ("sqlite:////tmp/a@b/mlflow.db", "sqlite:////tmp/a@b/mlflow.db"),
        ("sqlite:///mlflow.db", "sqlite:///mlflow.db"),
        ("databricks", "databricks"),
    ],
)
def test_passwords_are_not_public(uri, public):
    assert public_uri(uri) == public


def test_without_mlflow_imported_there_is_no_active_run(monkeypatch):
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    assert mlflow_target.find_active_run() is None
    assert "mlflow" not in sys.modules


def test_the_active_run_is_named_without_its_password(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", fake_mlflow(a_run))
    expected = {"tracking_uri": "http://host:5000", "experiment_id": "3", "run_id": "r1", "joined": True}
    assert mlflow_target.find_active_run() == mlflow_target.target() == expected


def test_an_explicit_run_id_wins(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", fake_mlflow(a_run))
    found = mlflow_target.target("r2")
    assert (found["run_id"], found["joined"], found["experiment_id"]) == ("r2", True, "7")
    assert found["tracking_uri"] == "http://host:5000"
    assert mlflow_target.target("r2", "http://me:secret@other")["tracking_uri"] == "http://other"


def test_mlflow_that_fails_is_not_the_trainings_problem(monkeypatch):
    def broken():
        raise RuntimeError("half imported")

    monkeypatch.setitem(sys.modules, "mlflow", fake_mlflow(broken))
    assert mlflow_target.find_active_run() is None


def test_the_active_run_of_another_thread_is_not_ours(store):
    import mlflow

    mlflow.set_tracking_uri(store)
    try:
        with mlflow.start_run() as run:
            assert mlflow_target.find_active_run()["run_id"] == run.info.run_id
            seen = []
            thread = threading.Thread(target=lambda: seen.append(mlflow_target.find_active_run()))
            thread.start()
            thread.join()
            assert seen == [None]
    finally:
        mlflow.set_tracking_uri(None)


def test_the_settings_of_the_environment_name_the_store(monkeypatch):
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@host:5000")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "exp")
    assert mlflow_target.target() == {
        "tracking_uri": "http://host:5000", "experiment_id": None, "experiment_name": "exp", "run_id": None,
        "joined": False,
    }  # fmt: skip


def test_no_mlflow_gives_one_warning_and_files_only(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.warns(GradwatchWarning, match="not installed"):
        assert mlflow_target.target() is None


def test_importing_delivery_imports_no_mlflow_and_no_torch():
    code = (
        "import sys, gradwatch.recording.mlflow_target\nprint(sorted({'mlflow', 'torch', 'pyarrow'} & {*sys.modules}))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_the_courier_is_no_rank(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "kept")
    env = courier_process.child_environment()
    assert not {"RANK", "TORCHELASTIC_RUN_ID"} & set(env)
    assert env["MLFLOW_TRACKING_TOKEN"] == "kept"


def test_a_courier_that_cannot_start_is_one_log_line(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    assert courier_process.start_courier(tmp_path) is None
    assert "gradwatch sync" in caplog.text


def test_waiting_believes_only_a_cursor_of_this_attempt(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"attempt": 1}))
    (tmp_path / "cursor.json").write_text(json.dumps({"done": True, "attempt": 0, "url": "u"}))
    assert courier_process.wait_delivered(tmp_path, 0.2)["done"] is False
    (tmp_path / "cursor.json").write_text(json.dumps({"done": True, "attempt": 1, "url": "u"}))
    assert courier_process.wait_delivered(tmp_path, 5)["done"] is True

"""MLflow's run context: tags in a process that watches, nothing in any other."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gradwatch.recording import open_watches
from gradwatch.tracking.run_context import WATCHED, RunContext

try:
    import tomllib
except ImportError:
    import tomli as tomllib


def test_only_a_process_with_an_open_watch_is_in_context(monkeypatch):
    monkeypatch.setattr(open_watches, "watches", [])
    assert not RunContext().in_context()
    watch = SimpleNamespace(dir=Path("gradwatch-runs/20260131-120000-mlp"))
    monkeypatch.setattr(open_watches, "watches", [watch, watch])
    assert (RunContext().in_context(), RunContext().tags()) == (True, {WATCHED: "20260131-120000-mlp"})
    monkeypatch.delitem(sys.modules, "gradwatch.recording.open_watches")
    assert not RunContext().in_context()


def test_mlflow_users_pay_nothing_for_it():
    code = (
        "import sys, gradwatch.tracking.run_context as r; assert not r.RunContext().in_context()\n"
        "assert not {'torch', 'mlflow', 'numpy', 'pandas', 'pyarrow', 'gradwatch.recording'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_mlflow_takes_its_tags(store, monkeypatch):
    """As the entry point's object, which MLflow makes and asks."""
    import mlflow
    from mlflow.tracking.context import registry

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["mlflow.run_context_provider"] == {
        "gradwatch": f"{RunContext.__module__}:{RunContext.__name__}"
    }
    monkeypatch.setattr(registry._run_context_provider_registry, "_registry", [])
    registry._run_context_provider_registry.register(RunContext)
    monkeypatch.setattr(open_watches, "watches", [SimpleNamespace(dir=Path("a/b"))])
    mlflow.set_tracking_uri(store)
    with mlflow.start_run() as run:
        pass
    assert mlflow.get_run(run.info.run_id).data.tags[WATCHED] == "b"
    mlflow.set_tracking_uri(None)

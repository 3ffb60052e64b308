"""`gradwatch export`: what is written is what was recorded, and other trackers get what MLflow gets."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from make_run import make_history, make_run, write_shared

from gradwatch.cli import main
from gradwatch.open_run import open_history, open_parts
from gradwatch.tracking.export.run_export import RunExport, export_run
from gradwatch.tracking.metric_keys import windows


def call(*words):
    return CliRunner().invoke(main, ["export", *map(str, words)])


def exported(folder, target, out):
    result = call(folder, "--to", target, "--out", out)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return out / Path(folder).name


def read_csv(path):
    """Texts as they are, numbers as Python reads them."""
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    texts = ("optimizer", "layer", "module")
    return frame.apply(lambda c: c if c.name in texts else c.map(lambda text: float(text or "nan")))


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "runs", nan_at=50, logged=("loss", "val_accuracy", "=HYPERLINK()"))


@pytest.mark.parametrize("target", ["csv", "parquet"])
def test_the_tables_hold_every_value_to_the_bit(run, target, tmp_path):
    history, out = open_history(run), exported(run, target, tmp_path / "out")
    read = read_csv if target == "csv" else pd.read_parquet
    steps, layers = (read(out / f"{table}.{target}") for table in ("steps", "layers"))
    for name, values in history.per_step.items():
        column = f"'{name}" if target == "csv" and name.startswith("=") else name
        np.testing.assert_array_equal(steps[column], values, err_msg=name)
    assert list(layers["layer"]) == list(history.layers) * len(history)
    for name, values in history.per_layer.items():
        np.testing.assert_array_equal(layers[name].to_numpy(np.float32), values.ravel(), err_msg=name)
    assert np.isnan(steps["grad_norm"][50])


def test_no_cell_of_a_csv_file_is_a_formula(tmp_path):
    exported(make_run(tmp_path / "runs", layers=("=1+1", "@b"), steps=3), "csv", tmp_path / "out")
    (file,) = (tmp_path / "out").glob("*/layers.csv")
    assert set(read_csv(file)["layer"]) == {"'=1+1", "'@b"}


def expected(history):
    found = windows(history, history.run.window, history.run.mlflow_layers, ended=True)
    return [point for window in found for point in window.points]


def read_events(folder):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=False).Reload()
    return {key: [(e.step, e.value, e.wall_time) for e in events.Scalars(key)] for key in events.Tags()["scalars"]}


def test_tensorboard_gets_the_points_that_mlflow_gets(run, tmp_path):
    pytest.importorskip("tensorboard")
    found = read_events(exported(run, "tensorboard", tmp_path / "out"))
    points = expected(open_history(run))
    assert sorted(found) == sorted({point.key for point in points})
    assert sum(map(len, found.values())) == len(points) > 1000
    for point in points:
        assert (point.step, np.float32(point.value), point.timestamp / 1000) in found[point.key]


def test_what_was_exported_before_is_replaced_and_nothing_else(run, tmp_path):
    out = exported(run, "tensorboard", tmp_path / "out")
    (out / "events.out.tfevents.1.host").write_bytes(b"")  # somebody else's
    first = read_events(out)
    exported(run, "tensorboard", tmp_path / "out")
    assert read_events(out) == first
    assert sorted(path.suffix for path in out.iterdir()) == [".gradwatch", ".host"]


def test_the_settings_are_there_to_compare(run, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    events = EventAccumulator(str(exported(run, "tensorboard", tmp_path / "out"))).Reload()
    data = HParamsPluginData.FromString(events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content)
    params = {key: value.string_value for key, value in data.session_start_info.hparams.items()}
    assert params["gradwatch.clip"] == "ClipByGlobalNorm(1.0)"
    assert params["gradwatch.verdict"] == "nonfinite at step 50 in blocks.0.mlp.weight"


def test_a_run_of_several_parts_is_one_run_with_a_key_for_each(tmp_path):
    shared = write_shared(tmp_path / "runs", G=make_history(), D=make_history(seed=1))
    name, whole, parts = open_parts(str(shared))
    found = RunExport(name, whole, parts).points
    assert {"loss/G", "loss/D", "grad_norm/total/G", "grad_norm/D.head.bias"} <= {point.key for point in found}
    assert len(found) == sum(len(expected(part)) for part in parts)
    steps = read_csv(exported(shared, "csv", tmp_path / "out") / "steps.csv")
    assert dict(steps["optimizer"].value_counts()) == {"G": 200, "D": 200}


def test_an_open_window_waits():
    history = make_history(window=50, steps=120, status="RUNNING")
    points = RunExport("a", history, [history]).points
    assert max(point.step for point in points) == 99


@pytest.mark.parametrize("target", ["tensorboard", "wandb", "trackio"])
def test_a_tracker_that_is_not_installed_is_one_line(target, run, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = call(run, "--to", target, "--out", tmp_path / "out")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"Error: {target} is not installed: pip install 'gradwatch[{target}]'\n"
    assert not (tmp_path / "out").exists()


def test_a_tracker_that_fails_is_one_line(run, tmp_path, monkeypatch):
    def fails(*_):
        raise ValueError("no login at https://user:secret@host/x\nor so")

    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    monkeypatch.setattr("gradwatch.tracking.export.wandb.write_wandb", fails)
    result = call(run, "--to", "wandb", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr == f"Error: wandb did not take {run.name}: no login at https://host/x or so\n"


def test_a_folder_that_cannot_be_written_is_one_line(run, tmp_path):
    (tmp_path / "out").write_text("")
    result = call(run, "--to", "csv", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: cannot write to ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("ref", ["nope", "experiment:mnist"])
def test_one_run_is_wanted(ref, tmp_path):
    assert call(ref, "--to", "csv", "--out", tmp_path / "out").exit_code == 2


@pytest.mark.slow
def test_neither_torch_nor_tensorflow_nor_mlflow_is_imported(run, tmp_path):
    pytest.importorskip("tensorboard")
    code = (
        "import sys; from gradwatch.cli import main\n"
        "for to in ('csv', 'parquet', 'tensorboard'):\n"
        f"    main(['export', {str(run)!r}, '--to', to, '--out', {str(tmp_path)!r}], standalone_mode=False)\n"
        "assert not {'torch', 'mlflow', 'tensorflow'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_an_mlflow_run_is_exported_with_the_numbers_that_mlflow_has(run, tmp_path, store, monkeypatch):
    """From its own artifacts; its name leads nowhere."""
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**manifest, "name": "../../x"}))
    assert CliRunner().invoke(main, ["sync", str(run)]).exit_code == 0
    client = MlflowClient(store)
    (made,) = client.search_runs(["0"])
    assert call(made.info.run_id, "--to", "tensorboard", "--out", tmp_path / "out").exit_code == 0
    found = read_events(tmp_path / "out" / f"x-{made.info.run_id[:8]}")
    assert found.keys() == made.data.metrics.keys()
    for key, values in found.items():
        delivered = {(m.step, np.float32(m.value)) for m in client.get_metric_history(made.info.run_id, key)}
        assert {(step, np.float32(value)) for step, value, _ in values} == delivered


@pytest.mark.slow
@pytest.mark.parametrize("target", ["wandb", "trackio"])
def test_a_tracker_has_the_points(target, run, tmp_path):
    """In a process of its own, for these libraries keep settings of the process."""
    pytest.importorskip(target)
    done = subprocess.run(
        [sys.executable, "-m", "gradwatch", "export", run, "--to", target, "--out", "out"],
        cwd=tmp_path, check=True, capture_output=True, text=True,
    )  # fmt: skip
    points = expected(open_history(run))
    assert f": {len(points):,} points of " in done.stdout
    (file,) = (tmp_path / "out").glob({"wandb": "wandb/offline-run-*/*.wandb", "trackio": "gradwatch.db"}[target])
    data = file.read_bytes()
    shown = [point for point in points[:: len(points) // 100] if 1e-3 < point.value < 1]  # written alike by all
    assert len(shown) > 30
    assert [point for point in shown if repr(point.value).encode() not in data] == []


@pytest.mark.parametrize("target", ["csv", "parquet"])
def test_activations_are_a_table_of_their_own_where_there_are_any(target, tmp_path):
    history = make_history(steps=4)
    inside = replace(history.by_layer, values={"mean": history.layer("grad_norm")})
    run = RunExport("a", replace(history, activations=inside), [history])
    export_run(run, target, tmp_path)
    read = read_csv if target == "csv" else pd.read_parquet
    found = read(tmp_path / "a" / f"activations.{target}")
    assert list(found["module"][:7]) == list(history.layers)
    np.testing.assert_array_equal(found["mean"].to_numpy(np.float32), history.layer("grad_norm").ravel())

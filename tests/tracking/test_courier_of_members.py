"""Parts of one run on their way to MLflow: one run there, no key written by two, finished when all have ended."""

import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from click.testing import CliRunner
from deliveries import curve, dead_pid, target
from make_run import make_history, write_shared

from gradwatch.cli import main
from gradwatch.open_run import open_histories, open_history
from gradwatch.storage.delivery_cursor import read_cursor
from gradwatch.storage.folder import read_manifest, write_json
from gradwatch.tracking import summary
from gradwatch.tracking.client import run_params
from gradwatch.tracking.courier import Courier
from gradwatch.tracking.sync import deliverable, follow, sync
from gradwatch.tracking.views import VIEW_TAG

mlflow = pytest.importorskip("mlflow")


@pytest.fixture(autouse=True)
def rendered(monkeypatch):
    """The Histories that a report was made of."""
    made = []

    def render(history, folder):
        made.append(history)
        (folder / "report.html").write_text("<h1>report</h1>")
        return [folder / "report.html"]

    monkeypatch.setattr(summary, "render", render)
    monkeypatch.setattr("gradwatch.tracking.sync.rehearse", lambda: None)
    return made


def gan(parent, store, g=None, d=None):
    """A run of 100 steps of G and 200 of D, for the experiment `exp` of `store`."""
    common = {"window": 20, "mlflow": target(store)}
    return write_shared(
        parent,
        G=make_history(steps=100, **{**common, **(g or {})}),
        D=make_history(steps=200, seed=1, **{**common, "clip": None, "logged": ("loss",), **(d or {})}),
    )


def set_manifest(folder, **changes):
    write_json(folder / "run.json", replace(read_manifest(folder), **changes).to_json())


def the_run(store):
    client = mlflow.MlflowClient(store)
    (run,) = client.search_runs([client.get_experiment_by_name("exp").experiment_id])
    return client, run


def artifacts(client, run, path="gradwatch"):
    return {item.path.removeprefix("gradwatch/") for item in client.list_artifacts(run.info.run_id, path)}


def test_all_parts_go_to_one_mlflow_run(store, tmp_path, rendered):
    shared = gan(tmp_path, store, {"nan_at": 50, "params": {"width": "64"}}, {"nan_at": 30, "params": {"width": "32"}})
    assert all(outcome.done for outcome in sync(shared))
    client, run = the_run(store)
    assert (run.info.run_name, run.info.status) == ("gan", "FINISHED")
    assert run.data.tags["gradwatch.group"] == "D: none, lr 0.1; G: ClipByGlobalNorm(1.0), lr 0.1"
    own = {f"{key}/{part}" for part in "GD" for key in (
        "grad_norm/total", "clipped_norm/total", "update_norm/total", "clip/rate", "clip/rate_so_far",
        "clip/rate_smoothed", "clip/coef", "clip/nonfinite_steps", "lr", "loss", "Gradwatch/loss",
        "Gradwatch/norm_before", "trust_ratio/smallest", "trust_ratio/median",
    )} | {"val_accuracy/G"}  # fmt: skip
    own |= {f"Gradwatch/{name}/G" for name in ("norm_after", "norm_threshold", "clip_rate_so_far")}  # D has no policy
    layers = {key for key in run.data.metrics if key.split("/")[-1].startswith(("G.", "D."))}
    assert set(run.data.metrics) == own | layers
    assert len(layers) == (4 + 3) * 7  # D has no policy, and so no clip rates of layers
    for part, steps in (("G", 100), ("D", 200)):
        assert [step for step, _ in curve(client, run, f"lr/{part}")] == list(range(19, steps, 20))
        assert run.data.tags[f"gradwatch.first_nonfinite_step/{part}"] == {"G": "50", "D": "30"}[part]
    params = run.data.params
    assert (params["gradwatch.clip/G"], params["gradwatch.clip/D"]) == ("ClipByGlobalNorm(1.0)", "None")
    assert params["optimizer.lr/G"] == "0.1"
    assert (params["width"], params["width/G"]) == ("32", "64")  # D is delivered first
    assert run.data.tags["gradwatch.verdict"] == "nonfinite at step 30 in D.blocks.0.mlp.weight"
    assert "ClipByGlobalNorm(1.0) in G" in run.data.tags["mlflow.note.content"]
    assert artifacts(client, run) == {"G", "D", "findings.json", "parts.json", "report.html"}
    assert artifacts(client, run, "gradwatch/G") == {"G/run.json", "G/layers", "G/steps"}
    (whole,) = rendered
    assert {name: len(lane) for name, lane in whole.lanes().items()} == {"D": 200, "G": 100}


def test_params_that_parts_agree_on_keep_their_name(store, tmp_path):
    shared = gan(tmp_path, store, {"params": {"seed": "7"}}, {"params": {"seed": "7"}})
    for _ in range(2):
        list(sync(shared))
        for part in "GD":
            (shared / part / "cursor.json").unlink()
    client, run = the_run(store)  # found again without cursors
    assert {key: value for key, value in run.data.params.items() if "seed" in key} == {"seed": "7"}
    assert len(curve(client, run, "lr/G")) == 5


def test_the_run_is_finished_once_when_its_last_part_has_ended(store, tmp_path, rendered):
    here = {"pid": os.getpid(), "host": socket.gethostname()}
    shared = gan(tmp_path, store, here, here)
    set_manifest(shared / "D", status="RUNNING")
    assert {outcome.folder.name: outcome.done for outcome in sync(shared)} == {"D": False, "G": True}
    assert read_cursor(shared / "D").get("run_id") is None  # its trainer may still name an MLflow run
    assert {outcome.folder.name: outcome.done for outcome in sync(shared)} == {"D": False, "G": True}
    client, run = the_run(store)
    assert read_cursor(shared / "D")["run_id"] == run.info.run_id  # that of G
    assert (run.info.status, run.data.tags["gradwatch.verdict"], rendered) == ("RUNNING", "running", [])
    set_manifest(shared / "D", status="FAILED", ended="2026-01-01T00:10:00+00:00")
    assert all(outcome.done for outcome in sync(shared))
    client, run = the_run(store)
    assert (run.info.status, run.data.tags["gradwatch.verdict"], len(rendered)) == ("FAILED", "no findings", 1)
    set_manifest(shared / "G", attempt=1, status="RUNNING")  # resumed: it is open again, until G ends again
    Courier(shared / "G").deliver()
    assert the_run(store)[1].info.status == "RUNNING"
    set_manifest(shared / "G", attempt=1, status="FINISHED")
    assert all(outcome.done for outcome in sync(shared))
    assert (the_run(store)[1].info.status, len(rendered)) == ("FAILED", 2)


def test_a_killed_trainer_leaves_a_killed_run_of_all_its_parts(store, tmp_path, rendered):
    gone = {"pid": dead_pid(), "host": socket.gethostname()}
    shared = gan(tmp_path, store, gone, gone)
    for part in "GD":
        set_manifest(shared / part, status="RUNNING", ended=None)
    assert all(outcome.done for outcome in follow(shared, poll=0.01))
    assert [read_manifest(shared / part).status for part in "GD"] == ["KILLED", "KILLED"]
    assert (the_run(store)[1].info.status, len(rendered)) == ("KILLED", 1)


def test_couriers_of_all_parts_at_once_make_one_run(store, tmp_path, monkeypatch, rendered):
    from gradwatch.tracking import client as side

    create = side.create_run

    def slow(*args):
        time.sleep(0.3)
        return create(*args)

    monkeypatch.setattr(side, "create_run", slow)
    shared = gan(tmp_path, store)
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda part: Courier(shared / part).deliver(), "GD"))
    assert all(outcome.done for outcome in outcomes)
    assert len({read_cursor(shared / part)["run_id"] for part in "GD"}) == 1
    assert (the_run(store)[1].info.status, len(rendered)) == ("FINISHED", 1)


def test_the_first_part_to_find_the_users_run_takes_the_others_along(store, tmp_path):
    client = mlflow.MlflowClient(store)
    own, other = (client.create_run("0").info.run_id for _ in range(2))
    shared = gan(tmp_path, store, {"mlflow": target(store, run_id=own, joined=True)},
                 {"mlflow": target(store, run_id=other, joined=True)})  # fmt: skip
    assert Courier(shared / "G").deliver().done
    assert Courier(shared / "D").deliver().done
    assert {read_cursor(shared / part)["run_id"] for part in "GD"} == {own}
    run = client.get_run(own)
    assert {"lr/G", "lr/D"} <= set(run.data.metrics)
    assert run.info.status == "RUNNING"  # the user's own
    assert client.get_run(other).data.metrics == {}


def test_a_part_that_stays_in_its_files_stays_out_of_the_report(store, tmp_path, rendered):
    shared = gan(tmp_path, store, None, {"mlflow": None})
    set_manifest(shared / "D", status="RUNNING")
    assert [folder.name for folder in deliverable(tmp_path)] == ["G"]
    (outcome,) = sync(shared)
    assert outcome.done
    client, run = the_run(store)
    assert run.info.status == "FINISHED"
    assert set(rendered[0].optimizer) == {"G"}
    assert "D" not in artifacts(client, run)


def test_a_part_carried_away_is_a_run_of_its_own(store, tmp_path):
    shared = gan(tmp_path, store)
    (shared / "D").rename(tmp_path / "alone")
    (outcome,) = sync(tmp_path / "alone")
    assert outcome.done
    client, run = the_run(store)
    assert run.info.run_name == "gan/D"
    assert len(open_history(run.info.run_id)) == 200


def test_following_the_folder_of_a_run_ends_with_its_parts(store, tmp_path):
    shared = gan(tmp_path, store)
    assert [outcome.done for outcome in follow(shared, poll=0.01)] == [True, True]


def test_it_opens_by_every_kind_of_reference(store, tmp_path, monkeypatch):
    shared = gan(tmp_path / "gradwatch-runs", store)
    result = CliRunner().invoke(main, ["sync"])
    assert result.exit_code == 0, result.output
    assert [line.split(": ")[0] for line in result.stdout.splitlines()] == [
        f"gradwatch-runs/{shared.name}/D", f"gradwatch-runs/{shared.name}/G", "MLflow",
    ]  # fmt: skip
    _, run = the_run(store)
    refs = [str(shared), run.info.run_id, "experiment:exp", "latest"]
    assert [len(h) for h in open_histories(refs)] == [300] * 4
    assert [len(h) for h in open_histories(["latest"], tmp_path / "nothing")] == [300]
    shown = CliRunner().invoke(main, ["show", run.info.run_id]).stdout
    assert "300 (finished): D 200, G 100" in shown
    monkeypatch.chdir(shared / "G")
    assert CliRunner().invoke(main, ["sync", "."]).exit_code == 0
    assert len(mlflow.MlflowClient(store).search_runs([run.info.experiment_id])) == 1


def test_the_saved_view_has_charts_and_a_column_for_each_part(store, tmp_path):
    list(sync(gan(tmp_path, store)))
    client, run = the_run(store)
    state = json.loads(json.loads(client.get_experiment(run.info.experiment_id).tags[VIEW_TAG])["state"])
    keys = [chart["metricKey"] for chart in state["compareRunCharts"]]
    assert {"loss/G", "loss/D", "grad_norm/total/G", "grad_norm/total/D", "clip/rate_smoothed/D"} <= set(keys)
    columns = {"params.`gradwatch.clip/D`", "params.`gradwatch.clip/G`", "metrics.`clip/rate_so_far/D`"}
    assert columns <= set(state["selectedColumns"])


@pytest.mark.parametrize("part", [None, "G"])
def test_the_settings_of_a_part_carry_its_name(part):
    params = run_params(replace(make_history(steps=1).run, part=part))
    end = f"/{part}" if part else ""
    assert params["optimizer" + end] == "SGD"
    assert params["gradwatch.clip" + end] == "ClipByGlobalNorm(1.0)"
    assert {"seed", "gradwatch.version"} <= set(params)

"""The courier against a real SQLite store: exactly once, in windows, whatever dies in between."""

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pytest
from deliveries import curve, dead_pid, target
from make_run import as_block, changed, make_history, make_run

from gradwatch.errors import RunError
from gradwatch.open_run import open_histories, open_history
from gradwatch.recording import courier_process
from gradwatch.sanitize import markdown
from gradwatch.storage.delivery_cursor import read_cursor
from gradwatch.storage.folder import create_folder, read_manifest, write_json
from gradwatch.storage.run_reader import read_run
from gradwatch.storage.run_state import run_state
from gradwatch.storage.writer import RunWriter
from gradwatch.tracking import summary
from gradwatch.tracking import sync as syncing
from gradwatch.tracking.courier import Courier
from gradwatch.tracking.sync import follow, sync
from gradwatch.tracking.views import MAX_NOTE, VIEW_TAG, view_tag

mlflow = pytest.importorskip("mlflow")


@pytest.fixture(autouse=True)
def quick_report(monkeypatch):
    def render(history, folder):
        (folder / "report.html").write_text("<h1>report</h1>")
        return [folder / "report.html"]

    monkeypatch.setattr(summary, "render", render)


def one(outcomes):
    (outcome,) = list(outcomes)
    return outcome


def deliver(folder):
    outcome = one(sync(folder))
    assert outcome.done, outcome
    cursor = json.loads((folder / "cursor.json").read_text())
    client = mlflow.MlflowClient(cursor["tracking_uri"])
    return client, client.get_run(cursor["run_id"])


def test_a_run_that_is_delivered_is_not_said_to_be_elsewhere_too(store, tmp_path):
    folder = make_run(tmp_path, mlflow=target(store))
    deliver(folder)
    assert one(sync(folder, store)).done
    there = one(sync(folder, f"sqlite:///{tmp_path / 'other.db'}"))
    assert not there.done
    assert f"is delivered to {store} already" in there.error


def test_a_finished_run_is_delivered_whole(store, tmp_path):
    folder = make_run(tmp_path, window=20, mlflow=target(store), nan_at=50, tags={"team": "a"})
    client, run = deliver(folder)
    history = read_run(folder)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "mlp"
    expected = [(20 * w + 19, np.nanmax(history.total("grad_norm")[20 * w : 20 * w + 20])) for w in range(10)]
    np.testing.assert_allclose(curve(client, run, "grad_norm/total"), expected)
    assert run.data.metrics["clip/nonfinite_steps"] == 1
    assert run.data.params["gradwatch.clip"] == "ClipByGlobalNorm(1.0)"
    assert run.data.params["optimizer"] == "SGD"
    assert run.data.params["optimizer.lr"] == "0.1"
    assert run.data.params["seed"] == "0"
    tags = run.data.tags
    assert tags["gradwatch.verdict"].startswith("nonfinite at step 50")
    assert tags["gradwatch.worst_layer"] == "blocks.0.mlp.weight"
    assert tags["gradwatch.first_nonfinite_step"] == "50"
    assert tags["gradwatch.first_nonfinite_layer"] == "blocks.0.mlp.weight"
    assert tags["team"] == "a"
    note = tags["mlflow.note.content"]
    assert "ClipByGlobalNorm" in note
    assert f"run_uuid={run.info.run_id}" in note
    assert len(note) < MAX_NOTE
    names = {item.path for item in client.list_artifacts(run.info.run_id, "gradwatch")}
    assert {"gradwatch/run.json", "gradwatch/model.txt", "gradwatch/report.html", "gradwatch/layers"} <= names
    stamps = [m.timestamp for m in client.get_metric_history(run.info.run_id, "loss")]
    assert stamps[0] == round(1000 * history.total("time")[19])


def test_delivering_twice_adds_nothing(store, tmp_path):
    folder = make_run(tmp_path, window=20, mlflow=target(store))
    client, run = deliver(folder)
    before, rates = curve(client, run, "grad_norm/total"), curve(client, run, "clip/rate_so_far")
    deliver(folder)
    cursor = json.loads((folder / "cursor.json").read_text())
    earlier = {**cursor, "next_step": 60, "last_part": -1, "done": False, "clip_rates": None}
    write_json(folder / "cursor.json", earlier)  # died before its note; of a version that knew of no rates so far
    client, again = deliver(folder)
    assert curve(client, run, "grad_norm/total") == before
    assert curve(client, run, "clip/rate_so_far") == rates
    assert rates[-1] == (199, pytest.approx(open_history(folder).total("clip_rate").mean()))
    (folder / "cursor.json").unlink()  # even its run is found again
    client, again = deliver(folder)
    assert again.info.run_id == run.info.run_id
    assert curve(client, run, "grad_norm/total") == before
    assert len(before) == 10


def test_that_it_has_begun_is_noted_before_there_is_a_run(store, tmp_path):
    """`close()` waits for a courier that has imported MLflow, and for no other."""
    history = make_history(steps=10, mlflow=target(store), pid=os.getpid(), host=socket.gethostname(),
                           created=datetime.now(timezone.utc).isoformat(timespec="seconds"))  # fmt: skip
    folder = create_folder(tmp_path, "young")
    writer = RunWriter(folder, history.run, flush_seconds=0.01)
    writer.append(as_block(history))
    writer.close("RUNNING")
    assert Courier(folder).deliver().live
    cursor = read_cursor(folder)
    assert cursor
    assert cursor["run_id"] is None


def test_a_run_that_goes_on_gets_each_window_once(store, tmp_path):
    history = make_history(steps=100, window=20, mlflow=target(store), pid=os.getpid(), host=socket.gethostname(),
                           created="2026-01-01T00:00:00+00:00")  # fmt: skip
    folder = create_folder(tmp_path, "live")
    carrier = Courier(folder)
    for start in range(0, 100, 30):
        writer = RunWriter(folder, history.run, flush_seconds=0.01)
        writer.append(as_block(history.slice(start, start + 30)))
        writer.close("RUNNING")
        outcome = carrier.deliver()
        assert outcome.live
        assert carrier.cursor.next_step == min(start + 29, 99) // 20 * 20
    write_json(folder / "run.json", replace(history.run, status="FAILED").to_json())
    assert carrier.deliver().done
    client = mlflow.MlflowClient(store)
    run = client.get_run(carrier.cursor.run_id)
    assert [step for step, _ in curve(client, run, "lr")] == [19, 39, 59, 79, 99]
    assert run.info.status == "FAILED"


def test_what_is_found_is_told_while_the_run_goes_on_and_at_its_end(store, tmp_path, monkeypatch):
    from gradwatch.tracking import client as side

    history = make_history(steps=100, nan_at=50, window=20, mlflow=target(store), pid=os.getpid(),
                           host=socket.gethostname(), created="2026-01-01T00:00:00+00:00")  # fmt: skip
    folder = create_folder(tmp_path, "live")
    carrier = Courier(folder)
    tags_set, set_tags = [], side.set_tags
    monkeypatch.setattr(side, "set_tags", lambda *args: tags_set.append(args[2]) or set_tags(*args))
    client = mlflow.MlflowClient(store)

    def go_on(start, stop, status="RUNNING"):
        writer = RunWriter(folder, history.run, flush_seconds=0.01)
        writer.append(as_block(history.slice(start, stop)))
        writer.close(status)
        carrier.diagnosis._due = 0
        carrier.deliver()
        return client.get_run(carrier.cursor.run_id)

    tags = go_on(0, 30).data.tags
    assert (tags["gradwatch.verdict"], tags["gradwatch.findings"]) == ("running", "none")
    run = go_on(30, 60)
    assert run.info.status == "RUNNING"
    summary = "nonfinite at step 50 in blocks.0.mlp.weight"
    assert run.data.tags["gradwatch.verdict"] == summary
    assert run.data.tags["gradwatch.findings"] == f"error {summary}"
    go_on(60, 80)
    assert len([tags for tags in tags_set if "gradwatch.findings" in tags]) == 2  # only when it changes
    run = go_on(80, 100, "FAILED")
    assert run.data.tags["gradwatch.findings"] == f"error {summary}"
    local = json.loads((folder / "findings.json").read_text())
    place = client.download_artifacts(run.info.run_id, "gradwatch/findings.json", str(tmp_path))
    assert json.loads(Path(place).read_text()) == local
    (finding,) = local["findings"]
    note = run.data.tags["mlflow.note.content"]
    assert f"1. **error {summary}**: {markdown(finding['cause'] + ' ' + finding['cure'])}" in note


def test_a_store_that_is_away_does_not_keep_the_training_from_being_told(store, tmp_path, monkeypatch):
    from gradwatch.tracking import client as side

    def away(*_):
        raise OSError("connection refused")

    monkeypatch.setattr(side, "connect", away)
    folder = make_run(tmp_path, close="RUNNING", nan_at=50, mlflow=target(store), pid=os.getpid(),
                      host=socket.gethostname(), created="2026-01-01T00:00:00+00:00")  # fmt: skip
    with pytest.raises(OSError, match="refused"):
        Courier(folder).deliver()
    assert len(json.loads((folder / "findings.json").read_text())["findings"]) == 1


def test_a_resumed_run_sends_the_rest_of_its_window_and_no_step_twice(store, tmp_path):
    history = make_history(steps=100, window=20, mlflow=target(store))
    folder = create_folder(tmp_path, "resumed")
    first = RunWriter(folder, history.run, flush_seconds=0.01)
    first.append(as_block(history.slice(0, 50)))
    first.close("FAILED")
    client, run = deliver(folder)
    assert [step for step, _ in curve(client, run, "lr")] == [19, 39, 49]
    again = changed(replace(history, run=replace(history.run, attempt=1)), attempt=np.ones(100, np.int64))
    second = RunWriter(folder, again.run, flush_seconds=0.01)
    second.append(as_block(again.slice(40, 100)))  # back to the checkpoint at step 40
    second.close()
    assert not courier_process.wait_delivered(folder, 0)["done"]
    client, same = deliver(folder)
    assert same.info.run_id == run.info.run_id
    assert [step for step, _ in curve(client, run, "lr")] == [19, 39, 49, 59, 79, 99]
    assert same.info.status == "FINISHED"
    assert len(open_history(run.info.run_id)) == 100


def test_a_joined_run_keeps_what_is_the_users(store, tmp_path):
    client = mlflow.MlflowClient(store)
    own = client.create_run("0", run_name="mine", tags={"mlflow.note.content": "my words"})
    client.log_param(own.info.run_id, "seed", "42")
    folder = make_run(tmp_path, window=20, mlflow=target(store, run_id=own.info.run_id, joined=True))
    client, run = deliver(folder)
    assert run.info.run_id == own.info.run_id
    assert run.info.status == "RUNNING"
    assert run.info.run_name == "mine"
    assert run.data.params["seed"] == "42"
    assert run.data.params["optimizer"] == "SGD"
    assert run.data.tags["mlflow.note.content"] == "my words"


@pytest.mark.parametrize("joined", [False, True])
def test_a_killed_trainer_leaves_a_killed_run(store, tmp_path, joined):
    run_id = mlflow.MlflowClient(store).create_run("0").info.run_id if joined else None
    folder = make_run(tmp_path, window=20, close="RUNNING", pid=dead_pid(), host=socket.gethostname(),
                      mlflow=target(store, run_id=run_id, joined=joined))  # fmt: skip
    (outcome,) = follow(folder, poll=0.01)
    assert outcome.done
    assert read_manifest(folder).status == "KILLED"
    cursor = read_cursor(folder)
    run = mlflow.MlflowClient(store).get_run(cursor["run_id"])
    assert run.info.status == "KILLED"
    assert cursor["next_step"] == 200


def test_a_zombie_and_a_live_process_are_told_apart(tmp_path):
    run = make_history(steps=1, host=socket.gethostname(), pid=os.getpid()).run
    assert run_state(run) == (False, False)
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert run_state(replace(run, pid=process.pid)) == (True, True)
    process.wait()
    assert run_state(replace(run, pid=process.pid, host="elsewhere")) == (False, False)
    assert run_state(replace(run, status="FINISHED", pid=process.pid)) == (True, False)
    assert run_state(replace(run, status="KILLED", crashed=True)) == (True, True)


def test_the_courier_waits_for_the_users_own_run(store, tmp_path):
    from gradwatch.storage.folder import now_iso

    folder = make_run(tmp_path, close="RUNNING", window=20, created=now_iso(), mlflow=target(store))
    carrier = Courier(folder)
    assert carrier.deliver().live
    assert carrier.cursor.run_id is None
    own = mlflow.MlflowClient(store).create_run("0").info.run_id
    run = read_manifest(folder)
    write_json(folder / "run.json", replace(run, mlflow=target(store, run_id=own, joined=True)).to_json())
    carrier.deliver()
    assert carrier.cursor.run_id == own


def test_a_python_that_cannot_import_mlflow_is_not_tried_again(tmp_path, monkeypatch, caplog):
    import gradwatch.tracking.client

    caplog.set_level("INFO", "gradwatch")
    monkeypatch.setattr(syncing, "GIVE_UP_SECONDS", 0.5)  # as long as a server that is away is waited for
    monkeypatch.delattr(gradwatch.tracking, "client")
    monkeypatch.setitem(sys.modules, "gradwatch.tracking.client", None)
    folder = make_run(tmp_path, window=20, mlflow=target(None))
    (outcome,) = follow(folder, poll=0.01)
    assert (outcome.done, outcome.lasting) == (False, True)
    (line,) = [record.message for record in caplog.records]
    assert line.startswith(f"{folder}: not delivered: ")
    assert "pip install 'gradwatch[mlflow]'" in line


def test_a_server_that_is_away_is_tried_again(store, tmp_path, monkeypatch):
    from gradwatch.tracking import client as side

    send, failures = side.log_points, iter([OSError("connection refused"), OSError("connection refused")])

    def flaky(*args):
        for error in failures:
            raise error
        send(*args)

    monkeypatch.setattr(side, "log_points", flaky)
    folder = make_run(tmp_path, window=20, mlflow=target(store))
    (outcome,) = follow(folder, poll=0.01)
    assert outcome.done
    run_id = read_cursor(folder)["run_id"]
    assert len(mlflow.MlflowClient(store).get_metric_history(run_id, "lr")) == 10


def test_what_cannot_be_delivered_is_said_and_not_tried_for_ever(store, tmp_path):
    folder = make_run(tmp_path, mlflow=target(store, run_id="0" * 32, joined=True))
    (outcome,) = follow(folder, poll=0.01)
    assert not outcome.done
    assert "0" * 32 in outcome.error


def test_a_directory_is_followed_for_new_runs_and_keeps_files_only_runs(store, tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    make_run(runs, name="one", window=20, mlflow=target(store))
    make_run(runs, name="files-only", mlflow=None)
    rounds = []

    def pause(seconds, couriers):
        rounds.append([one.outcome.done for one in couriers])
        if len(rounds) == 1:
            make_run(runs, name="two", window=20, mlflow=target(store))
        else:
            shutil.rmtree(runs)

    monkeypatch.setattr("gradwatch.tracking.sync._sleep", pause)
    follow(runs, poll=0.01)
    assert rounds == [[True], [True, True]]
    assert [h.run.name for h in open_histories(["experiment:exp"])] == ["one", "two"]


def test_one_courier_at_a_time(store, tmp_path):
    from filelock import FileLock

    folder = make_run(tmp_path, mlflow=target(store))
    with FileLock(folder / "courier.lock"):
        outcome = one(sync(folder, wait=0.05))
    assert not outcome.done
    assert "another process" in outcome.error


def test_merged_parts_are_not_read_back_twice(store, tmp_path):
    from gradwatch.storage.compaction import merge
    from gradwatch.storage.folder import TABLES, list_parts

    folder = make_run(tmp_path, window=20, mlflow=target(store))
    client, run = deliver(folder)
    for table in TABLES:
        merge(list_parts(folder / table))
    cursor = read_cursor(folder)
    write_json(folder / "cursor.json", {**cursor, "done": False})
    deliver(folder)
    history = open_history(run.info.run_id)
    assert len(history) == 200
    np.testing.assert_array_equal(history.layer("grad_norm"), read_run(folder).layer("grad_norm"))


def test_a_failed_report_does_not_keep_the_data(store, tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    from gradwatch import report

    def broken(*_):
        raise ValueError("no chart today")

    for name in ("build_report", "render_html", "write_overview"):
        monkeypatch.setattr(report, name, broken, raising=False)
    client, run = deliver(make_run(tmp_path, window=20, mlflow=target(store)))
    assert run.info.status == "FINISHED"


# ---------------------------------------------------------------------------------------------------------- the view


def test_the_experiment_gets_a_saved_view_that_grows(store, tmp_path):
    client, run = deliver(make_run(tmp_path, name="a", window=20, mlflow=target(store)))
    deliver(make_run(tmp_path, name="b", window=20, mlflow=target(store), logged=("loss", "perplexity")))
    tag = json.loads(client.get_experiment(run.info.experiment_id).tags[VIEW_TAG])
    state = json.loads(tag["state"])
    keys = [chart["metricKey"] for chart in state["compareRunCharts"]]
    assert {"loss", "val_accuracy", "perplexity", "grad_norm/total", "clip/rate_so_far", "clip/rate_smoothed"} <= set(
        keys
    )
    assert "clip/rate" not in keys
    assert len(keys) == len(set(keys))
    assert {"metrics.`perplexity`", "metrics.`clip/rate_so_far`"} <= set(state["selectedColumns"])
    assert "metrics.`clip/rate`" not in state["selectedColumns"]  # which is that of the last window


def state_of(tag):
    return json.loads(json.loads(tag)["state"])


def test_the_view_groups_by_policy_and_has_the_best_first():
    first = view_tag(["loss", "grad_norm/total"])
    state = state_of(first)
    assert state["groupBy"]["groupByKeys"] == [{"mode": "tag", "groupByData": "gradwatch.group"}]
    assert state["runsHiddenMode"] == "SHOW_ALL"
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`loss`", True)
    assert {"tags.`gradwatch.verdict`", "tags.`gradwatch.worst_layer`", "metrics.`clip/rate_so_far`"} <= set(
        state["selectedColumns"]
    )
    later = view_tag(["loss", "val_accuracy"], first)  # which is known after the first epoch
    assert (state_of(later)["orderByKey"], state_of(later)["orderByAsc"]) == ("metrics.`val_accuracy`", False)
    assert view_tag(["loss"], later) is None  # a run that has not logged it yet
    told = state_of(view_tag(["loss", "temperature"], None, {"temperature": True}))
    assert (told["orderByKey"], told["orderByAsc"]) == ("metrics.`temperature`", False)
    assert state_of(view_tag(["entropy"]))["orderByKey"] == "attributes.start_time"


def test_a_view_sorted_by_hand_stays_so():
    tag = json.loads(view_tag(["loss"]))
    state = {**json.loads(tag["state"]), "orderByKey": "attributes.duration", "groupBy": None}
    text = view_tag(["loss", "val_accuracy"], json.dumps({**tag, "state": json.dumps(state)}))
    assert (state_of(text)["orderByKey"], state_of(text)["groupBy"]) == ("attributes.duration", None)


def test_a_view_of_an_older_version_is_brought_up_to_date():
    tag = json.loads(view_tag(["loss"]))
    new = json.loads(tag.pop("state"))
    columns = [column for column in new["selectedColumns"] if "worst_layer" not in column]
    old = {**new, "groupBy": None, "runsHiddenMode": "FIRST_20_RUNS", "orderByKey": "attributes.start_time",
           "orderByAsc": False, "selectedColumns": columns}  # fmt: skip
    del tag["version"]
    text = view_tag(["loss"], json.dumps({**tag, "state": json.dumps(old)}))
    state = state_of(text)
    for name in ("groupBy", "runsHiddenMode", "orderByKey", "orderByAsc"):
        assert state[name] == new[name]
    assert sorted(state["selectedColumns"]) == sorted(new["selectedColumns"])
    assert view_tag(["loss"], text) is None


def test_sections_that_came_later_join_a_view_of_the_version_before():
    """Of activations, attention, experts and the like: without them MLflow opens a section for each."""
    tag = json.loads(view_tag(["loss"]))
    new = json.loads(tag["state"])
    known = [{**one, "display": False} for one in new["compareRunSections"] if one["name"] in ("Training", "grad_norm")]
    old = {**tag, "version": 2, "state": json.dumps({**new, "compareRunSections": known})}
    sections = state_of(view_tag(["loss"], json.dumps(old)))["compareRunSections"]
    assert sections[:2] == known  # closed by hand
    assert sorted(one["name"] for one in sections) == sorted(one["name"] for one in new["compareRunSections"])
    assert not [one for one in sections if one["name"].startswith(("attention", "expert")) and one["display"]]


def test_a_view_changed_by_hand_is_kept():
    tag = json.loads(view_tag(["loss", "lr"]))
    state = json.loads(tag["state"])
    state["compareRunCharts"][0]["scaleType"] = "log"
    text = view_tag(["loss", "acc"], json.dumps({**tag, "state": json.dumps(state)}))
    charts = {c["metricKey"]: c for c in json.loads(json.loads(text)["state"])["compareRunCharts"]}
    assert charts["loss"]["scaleType"] == "log"
    assert "acc" in charts
    assert view_tag(["loss", "acc"], text) is None


def test_a_view_that_cannot_be_set_harms_nothing(store, tmp_path, monkeypatch):
    from gradwatch.tracking import client as side

    def refuse(*_):
        raise ValueError("an unknown format")

    monkeypatch.setattr(side, "show_view", refuse)
    deliver(make_run(tmp_path, window=20, mlflow=target(store)))


# ------------------------------------------------------------------------------------------------------- the store


def test_a_new_experiment_keeps_its_artifacts_beside_the_database(store, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    client, run = deliver(make_run(tmp_path, window=20, mlflow=target(store)))
    assert Path(run.info.artifact_uri.removeprefix("file://")).is_relative_to(tmp_path / "mlartifacts")


# ---------------------------------------------------------------------------------------------------------- opening


def test_opening_by_every_kind_of_reference(store, tmp_path):
    folder = make_run(tmp_path / "gradwatch-runs", window=20, mlflow=target(store))
    _, run = deliver(folder)
    refs = [str(folder), run.info.run_id, "experiment:exp", "latest"]
    assert [len(h) for h in open_histories(refs)] == [200] * 4
    assert [len(h) for h in open_histories(["latest"], tmp_path / "nothing")] == [200]


@pytest.mark.parametrize(
    ("ref", "says"),
    [
        ("nothing", "no such file"),
        (".", "holds no run.json"),
        ("0" * 32, "0" * 32),
        ("experiment:nobody", "no experiment 'nobody'"),
        ("experiment:Default", "holds no run"),
        ("latest", "no latest run"),
    ],
)
def test_a_reference_to_nothing_is_one_clear_line(store, ref, says):
    with pytest.raises(RunError, match=says) as caught:
        open_histories([ref])
    assert "\n" not in str(caught.value)


def test_an_unwatched_run_and_an_empty_run_say_so(store, tmp_path):
    plain = mlflow.MlflowClient(store).create_run("0").info.run_id
    with pytest.raises(RunError, match="holds no gradwatch/ artifacts"):
        open_history(plain)
    with pytest.raises(RunError, match="no recorded step"):
        open_history(make_run(tmp_path, steps=0, mlflow=None))


@pytest.mark.parametrize("uri", [None, "file:./mlruns", "sqlite:///other.db"])
def test_reading_never_creates_a_store(tmp_path, monkeypatch, uri):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if uri is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(RunError, match="no MLflow store"):
        open_history("0" * 32)
    assert list(tmp_path.iterdir()) == []


def test_a_run_folder_opens_without_mlflow(tmp_path):
    folder = make_run(tmp_path, mlflow=None)
    code = (
        "import sys; sys.modules['mlflow'] = None\n"
        "from gradwatch.open_run import open_history\n"
        f"print(len(open_history({str(folder)!r})), 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == [
        "200",
        "False",
    ]


def test_a_folder_that_is_followed_is_let_go_when_it_is_gone(tmp_path, monkeypatch):
    """Nothing can come of it any more; a detached courier would wait for ever."""
    pauses = []

    def pause(seconds, couriers):
        pauses.append(seconds)
        assert len(pauses) < 10
        if len(pauses) == 3:
            tmp_path.joinpath("runs").rmdir()

    monkeypatch.setattr("gradwatch.tracking.sync._sleep", pause)
    (tmp_path / "runs").mkdir()
    assert follow(tmp_path / "runs", poll=0.01) == []
    assert len(pauses) == 3
    with pytest.raises(RunError, match="there is no folder"):
        follow(tmp_path / "runs")


def test_a_run_whose_folder_is_made_anew_is_still_one_run(store, tmp_path, monkeypatch):
    """Its courier found the folder empty, for a moment: it ends with the run all the same."""
    pauses = []

    def pause(seconds, couriers):
        pauses.append(seconds)
        assert len(pauses) < 10
        if len(pauses) == 2:
            shutil.copytree(made, tmp_path / "run", dirs_exist_ok=True)

    made = make_run(tmp_path / "elsewhere", mlflow=target(store))
    (tmp_path / "run").mkdir()
    monkeypatch.setattr("gradwatch.tracking.sync._sleep", pause)
    (outcome,) = follow(tmp_path / "run", poll=0.01)
    assert outcome.done

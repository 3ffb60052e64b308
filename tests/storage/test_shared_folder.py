"""Several Watches in one run: names, folders, one History, resuming; read as a whole and part by part."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from make_run import as_block, changed, make_history, write_shared
from torch import nn
from training import mlp, train, watch

import gradwatch
from gradwatch import RunError, WatchError, open_history
from gradwatch.open_run import open_histories
from gradwatch.storage.folder import create_folder, list_parts, write_json
from gradwatch.storage.joining import concat
from gradwatch.storage.run_reader import read_run
from gradwatch.storage.shared_folder import joint_run, joint_status, part_folders, run_folders
from gradwatch.storage.writer import RunWriter
from gradwatch.table import LAYER_IN_LOSS


def model_and_optimizer(seed=0, lr=0.1):
    model = mlp(seed=seed)
    return model, torch.optim.SGD(model.parameters(), lr=lr)


@pytest.fixture
def pairs():
    return {name: model_and_optimizer(seed) for seed, name in enumerate("GD")}


def both(pairs, folder, clip=None, **options):
    g = watch(*pairs["G"], folder, name="G", run_name="gan", clip=clip, **options)
    return g, watch(*pairs["D"], folder, name="D", run=g, **options)


# -------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"run": "G"}, "run= without name="),
        ({"name": "D", "run": "unnamed"}, "has no name: give it one"),
        ({"name": "D", "run": "closed"}, "is closed: its run is over"),
        ({"name": "G", "run": "G"}, "name='G' is taken in"),
        ({"name": "D", "run": "G", "run_id": "0" * 32}, "run_id= beside run="),
        ({"name": "D", "run": 3}, "run=3: wanted the Watch"),
        *(
            ({"name": name}, "it names a folder and the layers")
            for name in ("", ".", "..", "a/b", "a.b", "a b", "-a", "x" * 65, 3)
        ),
    ],
)
def test_a_name_or_run_that_cannot_be_is_refused_and_leaves_nothing(pairs, options, says, tmp_path):
    others = {"G": {"name": "G"}, "unnamed": {}, "closed": {"name": "C"}}
    known = {kind: watch(*model_and_optimizer(), tmp_path, **o) for kind, o in others.items()}
    known["closed"].close()
    before = sorted(tmp_path.rglob("*"))
    if isinstance(options.get("run"), str):
        options = {**options, "run": known[options["run"]]}
    with pytest.raises(WatchError, match=says):
        watch(*pairs["D"], tmp_path, **options)
    assert sorted(tmp_path.rglob("*")) == before
    assert not pairs["D"][1]._optimizer_step_pre_hooks
    for handle in known.values():
        handle.close()


def test_an_optimizer_cannot_join_the_run_of_its_own_watch(pairs, tmp_path):
    with watch(*pairs["G"], tmp_path, name="G") as g:
        with pytest.raises(WatchError, match="watches this optimizer itself"):
            watch(*pairs["G"], tmp_path, name="G2", run=g)
        assert not g.closed


def test_layers_and_optimizers_carry_the_name(pairs, tmp_path):
    model, first = pairs["D"]
    second = torch.optim.Adam([nn.Parameter(torch.ones(2, dtype=torch.float64))])
    with (
        watch(*pairs["G"], tmp_path, name="G", layers=("G.0.*",), clip="only('G.2.*', ClipByNorm(0.01))") as g,
        watch(model, [first, second], tmp_path, name="D", run=g) as d,
    ):
        train(*pairs["G"], 3)
    assert [layer.name for layer in g._writer.run.layers] == ["G.0.weight", "G.0.bias", "G.2.weight", "G.2.bias"]
    assert open_history(g.dir).layers == ("G.0.weight", "G.0.bias")
    assert set(open_history(g.dir).optimizer) == {"G"}
    assert [o["name"] for o in d._writer.run.optimizers] == ["D.SGD", "D.Adam"]
    assert d._writer.run.layers[-1].name == "D.param_groups.0.0"
    assert (d._writer.run.part, d._writer.run.name) == ("D", "Sequential/D")


# --------------------------------------------------------------------------------------------------------- the record


def test_two_watches_are_one_run_and_each_records_what_it_would_alone(pairs, tmp_path):
    g, d = both(pairs, tmp_path / "runs", clip="ClipByGlobalNorm(0.1)", every=2)
    with g, d:
        for i in range(6):
            train(*pairs["D"], 2, after_step=lambda _, loss: d.log(loss=loss), seed=i)
            train(*pairs["G"], 1, after_step=lambda _, loss: g.log(loss=loss), seed=i)
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("-gan")
    assert [path.name for path in part_folders(folder)] == ["D", "G"]
    whole = open_history(folder)
    assert (whole.run.name, whole.run.status, whole.run.part) == ("gan", "FINISHED", None)
    assert (np.diff(whole.step) >= 0).all()
    assert whole.logged == ("loss/D", "loss/G")
    for name, seeds, clip in (("G", 1, "ClipByGlobalNorm(0.1)"), ("D", 2, None)):
        model, optimizer = model_and_optimizer("GD".index(name))
        with watch(model, optimizer, tmp_path / "alone", clip=clip, every=2) as alone:
            for i in range(6):
                train(model, optimizer, seeds, after_step=lambda _, loss: alone.log(loss=loss), seed=i)
        want, lane = open_history(alone.dir), whole.lanes()[name]
        assert lane.layers == tuple(f"{name}.{layer}" for layer in want.layers)
        np.testing.assert_array_equal(lane.step, want.step)
        for quantity, values in want.per_layer.items():
            np.testing.assert_array_equal(lane.layer(quantity), values)
        numbers = {column for column in want.per_step if column.startswith(LAYER_IN_LOSS)}
        for column in set(want.per_step) - numbers - {"time", "loss"}:
            np.testing.assert_array_equal(lane.total(column), want.total(column))
        for column in numbers:  # of the layers of all parts
            named = [(run.layers, of.total(column)) for run, of in ((whole.run, lane), (want.run, want))]
            here, alone_ = ([layers[int(n)].name for n in found if np.isfinite(n)] for layers, found in named)
            assert here == [f"{name}.{layer}" for layer in alone_]
        assert numbers
        np.testing.assert_array_equal(lane.total(f"loss/{name}"), want.total("loss"))


def test_watching_both_again_closes_the_old_and_begins_a_new_run(pairs, tmp_path):
    old = both(pairs, tmp_path)
    train(*pairs["G"], 2)
    new = both(pairs, tmp_path)
    assert [handle.closed for handle in (*old, *new)] == [True, True, False, False]
    assert len({handle.dir.parent for handle in (*old, *new)}) == 2
    for handle in new:
        handle.close()


def test_one_courier_is_started_for_the_whole_run_by_whoever_steps_first(pairs, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr("gradwatch.recording.courier_process.start_courier", lambda *to: started.append(to[0]))
    options = {"dir": tmp_path, "verbose": False}
    g = gradwatch.watch(*pairs["G"], name="G", **options)
    d = gradwatch.watch(*pairs["D"], name="D", run=g, **options)
    train(*pairs["D"], 1)
    assert started == [g.dir.parent]
    train(*pairs["G"], 1)
    g.close()
    d.close()
    assert started == [g.dir.parent]
    assert d._writer.run.mlflow == g._writer.run.mlflow


# ---------------------------------------------------------------------------------------------------------- resuming


@pytest.mark.parametrize("together", [True, False])
def test_resuming_goes_on_in_the_parts_of_the_old_run(pairs, tmp_path, together):
    g, d = both(pairs, tmp_path)
    for name, steps in (("G", 4), ("D", 8)):
        train(*pairs[name], steps)
    saved = {"G": g.state_dict(), "D": d.state_dict()}
    train(*pairs["G"], 3)  # lost
    g.close()
    d.close()
    g2 = watch(*pairs["G"], tmp_path, name="G", run_name="gan")
    if together:  # the order in which they are made and loaded does not matter
        d2 = watch(*pairs["D"], tmp_path, name="D", run=g2)
        g2.load_state_dict(saved["G"])
    else:
        g2.load_state_dict(saved["G"])
        d2 = watch(*pairs["D"], tmp_path, name="D", run=g2)
    d2.load_state_dict(saved["D"])
    assert [path.name for path in tmp_path.iterdir()] == [g.dir.parent.name]
    assert (g2.dir, d2.dir) == (g.dir, d.dir)
    train(*pairs["G"], 2)
    train(*pairs["D"], 2)
    g2.close()
    d2.close()
    lanes = open_history(g.dir.parent).lanes()
    assert lanes["G"].step.tolist() == list(range(6))
    assert lanes["G"].attempt.tolist() == [0] * 4 + [1] * 2
    assert lanes["D"].step.tolist() == list(range(10))


def test_the_state_of_another_name_is_refused(pairs, tmp_path):
    g, d = both(pairs, tmp_path)
    with g, d, pytest.raises(WatchError, match="other layers"):
        d.load_state_dict(g.state_dict())


# ----------------------------------------------------------------------------------------------------------- reading


def test_rows_of_one_step_by_several_optimizers_are_kept_and_an_earlier_attempts_are_not():
    one = changed(make_history(steps=6), optimizer=np.array(["A"] * 6, object))
    two = changed(make_history(steps=6, seed=1), optimizer=np.array(["B"] * 6, object))
    joined = concat([one.slice(0, 4), two.slice(0, 4), two.slice(2, 6)])
    assert joined.step.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 5]
    assert list(joined.optimizer[:4]) == ["A", "B", "A", "B"]
    again = changed(one.slice(2, 6), attempt=np.ones(4, np.int64))
    resumed = concat([joined, again])
    assert resumed.step.tolist() == [0, 0, 1, 1, 2, 3, 4, 5]
    assert resumed.attempt.tolist() == [0] * 4 + [1] * 4
    np.testing.assert_array_equal(resumed.layer("grad_norm")[4:], one.layer("grad_norm")[2:])


def test_rows_of_one_step_come_back_from_the_files_even_where_a_table_lacks_them(tmp_path):
    one = changed(make_history(steps=8), optimizer=np.array(["A"] * 8, object))
    two = changed(make_history(steps=8, seed=1), optimizer=np.array(["B"] * 8, object))
    folder = create_folder(tmp_path, "x")
    writer = RunWriter(folder, one.run, flush_seconds=0.01)
    for block in (concat([one.slice(a, a + 4), two.slice(a, a + 4)]) for a in (0, 4)):
        writer.append(as_block(block))
        while writer.queue.qsize() or writer.pending:
            pass
    writer.close()
    want = concat([one, two])
    got = read_run(folder)
    assert list(got.optimizer) == list(want.optimizer)
    np.testing.assert_array_equal(got.layer("grad_norm"), want.layer("grad_norm"))
    list_parts(folder / "steps")[0][2].write_bytes(b"")
    cut = read_run(folder)
    assert list(cut.optimizer) == list(want.optimizer)
    np.testing.assert_array_equal(cut.layer("grad_norm"), want.layer("grad_norm"))
    assert np.isnan(cut.total("grad_norm")).tolist() == [True] * 8 + [False] * 8


def test_the_folder_of_the_run_is_one_run_wherever_runs_are_looked_for(tmp_path):
    for place in (tmp_path, tmp_path / "deeper"):
        shared = write_shared(place, G=make_history(steps=10), D=make_history(steps=20, seed=1))
        assert run_folders(shared) == [shared]
        assert run_folders(place) == [shared]
        assert [len(h) for h in open_histories(["latest"], place)] == [30]
        assert len(open_history(shared / "D")) == 20
        shutil.rmtree(shared / "D")
        assert len(open_history(shared)) == 10
        shutil.rmtree(shared)


def test_parts_are_in_the_order_of_their_numbers(tmp_path):
    shared = write_shared(tmp_path, **{f"stage{i}": make_history(steps=2, layers=("w",)) for i in (10, 9, 1)})
    assert open_history(shared).layers == ("stage1.w", "stage9.w", "stage10.w")


def test_what_cannot_be_read_is_named_and_the_rest_is_read(tmp_path):
    shared = write_shared(tmp_path, A=make_history(steps=10), B=make_history(steps=10), C=make_history(steps=10))
    (shared / "A" / "run.json").write_text("{")
    shutil.rmtree(shared / "B" / "steps")
    for _, _, path in list_parts(shared / "B" / "layers"):
        path.write_bytes(b"")
    history = open_history(shared)
    assert (len(history), [*history.lanes()]) == (10, [""])
    assert sorted(text[:2] for text in history.problems if "unreadable" in text or "run.json" in text)
    assert any(text.startswith("B: layers/") for text in history.problems)
    assert any("A/run.json cannot be read" in text for text in history.problems)
    for name in "BC":
        (shared / name / "run.json").write_text("{")
    with pytest.raises(RunError, match="none that can be read"):
        open_history(shared)


def test_what_the_only_part_logged_keeps_its_name(pairs, tmp_path):
    watching = watch(*pairs["D"], tmp_path, name="D")
    train(*pairs["D"], 40, after_step=lambda _, loss: watching.log(loss=loss))
    watching.close()
    assert open_history(watching.dir.parent).logged == open_history(watching.dir).logged == ("loss",)


def test_a_part_without_a_step_does_no_harm(tmp_path):
    shared = write_shared(tmp_path, G=make_history(steps=10), D=make_history(steps=3).slice(0, 0))
    assert len(open_history(shared)) == 10
    with pytest.raises(RunError, match="no recorded step"):
        open_history(write_shared(tmp_path, "empty", G=make_history(steps=3).slice(0, 0)))


def test_the_joint_manifest_says_whose_policy_and_params_are_whose():
    def run(part, **options):
        return replace(make_history(steps=1).run, part=part, **options)

    facts = {"name": "gan", "created": "2026-01-01T00:00:00+00:00"}
    one = run("G", clip="AGC(0.01)", params={"seed": "0", "width": "64"}, status="FINISHED", ended="2026-01-02")
    two = run("D", clip=None, params={"seed": "0", "width": "32", "depth": "2"}, status="FINISHED", ended="2026-01-03")
    joint = joint_run(facts, [two, one])
    assert joint.clip == "AGC(0.01) in G"
    assert joint.renorm is None
    assert joint.params == {"seed": "0", "width/D": "32", "depth": "2", "width/G": "64"}
    assert (joint.name, joint.created, joint.ended, joint.status) == (*facts.values(), "2026-01-03", "FINISHED")
    three = run("E", clip="ClipByNorm(1.0)")
    assert joint_run(facts, [one, two, three]).clip == "AGC(0.01) in G, ClipByNorm(1.0) in E"
    assert joint_run(facts, [one, replace(one, part="H")]).clip == "AGC(0.01)"


@pytest.mark.parametrize(
    ("statuses", "joint"),
    [
        ("FINISHED FINISHED", "FINISHED"),
        ("FINISHED KILLED", "KILLED"),
        ("KILLED FAILED", "FAILED"),
        ("FAILED RUNNING", "RUNNING"),
    ],
)
def test_the_status_of_a_run_is_that_of_its_worst_part(statuses, joint):
    runs = [replace(make_history(steps=1).run, status=status) for status in statuses.split()]
    assert joint_status(runs) == joint_status(runs[::-1]) == joint


def test_a_manifest_of_before_is_read_as_a_run_without_parts(tmp_path):
    folder = create_folder(tmp_path, "old")
    run = {k: v for k, v in make_history(steps=1).run.to_json().items() if k != "part"}
    write_json(folder / "run.json", run)
    assert "part" not in json.loads((folder / "run.json").read_text())
    assert read_run(folder).run.part is None


def test_what_goes_away_while_runs_are_looked_for_is_passed_over(tmp_path, monkeypatch):
    folder = create_folder(tmp_path, "kept")
    RunWriter(folder, make_history(steps=5).run).close()
    (tmp_path / "gone").mkdir()
    scandir = os.scandir

    def without_gone(path):
        if os.path.basename(path) == "gone":
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", without_gone)
    assert run_folders(tmp_path) == [folder]

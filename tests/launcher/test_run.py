"""`gradwatch run` on scripts as people write them: what is recorded is what an oracle saw, and nothing else changes."""

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from in_the_wild import SCRIPTS, SUPPORT, environment, one

import gradwatch
from gradwatch.analysis.rules import diagnose
from gradwatch.storage.run_reader import read_run
from gradwatch.storage.shared_folder import run_folders

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # `folders` runs some seventy scripts
# script: the steps of each optimizer
STEPS = {
    "argparse_script": [300],  # more than the ring holds
    "main_module": [12],
    "trainer_class": [20],
    "closure": [8],
    "gan": [20, 20],
    "amp": [25],
    "accumulation": [20],
    "crashes": [51],
    "interrupted": [30],
    "rebuilt": [10, 5, 10],
    "loose": [15],
    "two_kinds": [15, 15],
    "in_a_thread": [10],
    "twins": [12, 12],
    "one_by_one": [10, 10, 10],
    "gan_again": [6, 6, 6, 6],
    "idle_closure": [7],
    "infogan": [8, 8, 8],
    "shared_head": [9, 9],
    "phases": [8, 4, 4],
    "one_renewed": [12, 6, 6],
    "built_late": [7, 4],
    "steps_by_a_loss": [6],
}
# optimizers that step on one backward, or come one after another: compared in tests of their own
APART = ("rebuilt", "two_kinds", "shared_head", "phases", "one_renewed", "built_late")
# compared with plain Python, not with the oracle
SILENT = ("forks", "flat_partition", "by_hand", "spawns", "clips_itself", "two_losses", "at_exit", "leaves", "strict")
CLIPS = [["--clip", "ClipByGlobalNorm(0.1)"], ["--script-clip", "replace"], ["--script-clip", "replace", "--clip",
         "ClipByGlobalNorm(0.5)"]]  # fmt: skip
SMALL = ["--clip", "ClipByGlobalNorm(0.01)"]
CLIPPED = ("shared_head", "forks", "flat_partition", "by_hand", "built_late")
OTHERS = ("clipped head", "clipped fork", "clipped partition", "clipped hand", "clipped late", "thrown_away")


def wild(how, out, commands):
    subprocess.run(
        [sys.executable, SUPPORT / "wild.py", how, out],
        input="".join(json.dumps([command]) + "\n" for command in commands),
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
        env=environment(),
        timeout=500,
    )
    return [out / str(i) for i in range(len(commands))]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Per script, the folder of its run under the oracle (`plain`) and of that under `gradwatch run` (`watched`)."""
    out = tmp_path_factory.mktemp("wild")
    names = [*STEPS, *SILENT]
    paths = [str(SCRIPTS / f"{name}.py") for name in names]
    plain = wild("oracle", out / "plain", [*([path] for path in paths), [str(SCRIPTS / "shared_head.py"), "0.01"]])
    options = ["--log", "none"]
    freed = str(SCRIPTS / "thrown_away.py")
    clips = [[*options, *clip, str(SCRIPTS / "clips_itself.py")] for clip in CLIPS]
    small = [[*options, *SMALL, str(SCRIPTS / f"{name}.py")] for name in CLIPPED]
    last = [*clips, *small, [*options, freed]]
    watched = wild("gradwatch", out / "watched", [*([*options, path] for path in paths), *last])
    return {
        "plain": dict(zip([*names, "clipped by hand"], plain, strict=True)),
        "watched": dict(zip([*names, *map(str, CLIPS), *OTHERS], watched, strict=True)),
    }


def lanes(folder):
    """`[T, L]` norms and `[T]` losses of each optimizer that was recorded, in the order of their first steps."""
    found = []
    for path in run_folders(folder / "gradwatch-runs"):
        history = gradwatch.open_history(path)
        for name, lane in history.lanes().items():
            loss = lane.total(next((k for k in (f"loss/{name}", "loss") if k in lane.logged), "loss"))
            found.append((lane.total("time")[0], lane.layer("grad_norm"), loss))
    return [(norms, loss) for _, norms, loss in sorted(found, key=lambda lane: lane[0])]


@pytest.mark.parametrize("name", [name for name in STEPS if name not in APART])
def test_the_recorded_norms_and_losses_are_those_of_the_oracle(folders, name):
    seen = pickle.loads((folders["plain"][name] / "seen").read_bytes())
    assert [len(rows) for rows in seen] == STEPS[name], "the oracle itself"
    recorded = lanes(folders["watched"][name])
    assert len(recorded) == len(seen)
    for (norms, losses), rows in zip(recorded, seen, strict=True):
        np.testing.assert_allclose(norms, np.array([norm for norm, _ in rows]), rtol=2e-6)
        true = np.array([loss for _, loss in rows])
        assert np.isfinite(losses).all()
        known = np.isfinite(true)  # what the loss scale made infinite is not known to the oracle
        assert known.mean() > 0.5
        np.testing.assert_allclose(losses[known], true[known], rtol=2e-6)


@pytest.mark.parametrize("name", [*STEPS, *SILENT])
def test_output_and_exit_code_are_those_of_plain_python(folders, name):
    plain, watched = folders["plain"][name], folders["watched"][name]
    assert (watched / "stdout").read_text() == (plain / "stdout").read_text()
    assert (watched / "code").read_text() == (plain / "code").read_text()


# -------------------------------------------------------------------------------------------- what a Watch is made of


def said(folder):
    """What gradwatch said on stderr, without the rest."""
    lines = (folder / "stderr").read_text().splitlines()
    return [line.removeprefix("gradwatch: ") for line in lines if line.startswith("gradwatch: ")]


def test_two_models_are_two_parts_of_one_run(folders):
    history = one(folders["watched"]["gan"])
    assert set(history.lanes()) == {"Generator", "Discriminator"}
    assert history.layers[0] == "Discriminator.0.weight"
    assert history.run.name == "gan"


@pytest.mark.parametrize(("name", "status"), [("at_exit", "FINISHED"), ("leaves", "FAILED")])
def test_what_is_trained_last_is_recorded(folders, name, status):
    history = one(folders["watched"][name])
    assert len(history) == 5
    assert history.run.status == status


def test_no_model_gets_the_loss_of_another(folders):
    lanes = one(folders["watched"]["two_losses"]).lanes()
    printed = np.loadtxt(folders["plain"]["two_losses"] / "stdout")
    for name, true in zip(("first", "second"), printed.T, strict=True):
        recorded = lanes[name].total(f"loss/{name}" if f"loss/{name}" in lanes[name].logged else "loss")
        np.testing.assert_allclose(recorded, true, rtol=1e-6)


def test_the_optimizers_of_one_model_share_a_watch_and_its_steps(folders):
    history = one(folders["watched"]["two_kinds"])
    assert history.layers == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert len(history) == 15
    seen = pickle.loads((folders["plain"]["two_kinds"] / "seen").read_bytes())
    matrices, vectors = (np.array([norm for norm, _ in rows]) for rows in seen)
    true = np.stack([matrices[:, 0], vectors[:, 0], matrices[:, 1], vectors[:, 1]], axis=1)
    np.testing.assert_allclose(history.layer("grad_norm"), true, rtol=2e-6)


def test_a_second_optimizer_of_a_model_goes_on_and_a_new_model_is_a_new_run(folders):
    first, second = map(gradwatch.open_history, run_folders(folders["watched"]["rebuilt"] / "gradwatch-runs"))
    assert [first.run.name, second.run.name] == ["rebuilt", "rebuilt-2"]
    assert list(first.step) == list(range(15))
    assert list(second.step) == list(range(10))
    seen = pickle.loads((folders["plain"]["rebuilt"] / "seen").read_bytes())
    true = [np.array([norm for norm, _ in rows]) for rows in seen]
    np.testing.assert_allclose(first.layer("grad_norm"), np.concatenate(true[:2]), rtol=2e-6)
    np.testing.assert_allclose(second.layer("grad_norm"), true[2], rtol=2e-6)
    assert {first.run.status, second.run.status} == {"FINISHED"}


def true_norms(folders, name):
    """`[T, L]` of each optimizer, in the order of their first steps."""
    return [np.array([n for n, _ in rows]) for rows in pickle.loads((folders["plain"][name] / "seen").read_bytes())]


@pytest.mark.parametrize(
    ("name", "parts"), [("infogan", ["generator", "critic", "generator-critic"]), ("shared_head", ["net", "net-actor"])]
)
def test_optimizers_that_share_parameters_are_parts_of_one_run(folders, name, parts):
    lanes = one(folders["watched"][name]).lanes()
    for part, true in zip(parts, true_norms(folders, name), strict=True):
        np.testing.assert_allclose(lanes[part].layer("grad_norm"), true, rtol=2e-6)
    findings = [
        found
        for lane in lanes.values()
        for found in diagnose(lane)
        if found.rule in ("no-gradient", "not-in-optimizer")
    ]
    assert not findings, "what the actor does not hold, the critic trains"


def test_optimizers_that_share_parameters_are_each_clipped(folders):
    clipped = folders["watched"]["clipped head"]
    by_hand = (folders["plain"]["clipped by hand"] / "stdout").read_text()
    assert (clipped / "stdout").read_text() == by_hand
    assert max(map(float, by_hand.split())) < 0.0101
    assert {part: len(lane) for part, lane in one(clipped).lanes().items()} == {"net": 9, "net-actor": 9}


def test_an_optimizer_that_is_taken_up_again_is_recorded_again(folders):
    histories = [gradwatch.open_history(p) for p in run_folders(folders["watched"]["phases"] / "gradwatch-runs")]
    assert [h.run.name for h in histories] == ["phases", "phases-2", "phases-3"]
    head, whole, other = true_norms(folders, "phases")
    for history, true in zip(histories, (head[:4], np.concatenate([whole, other]), head[4:]), strict=True):
        np.testing.assert_allclose(history.layer("grad_norm"), true, rtol=2e-6)


def test_an_optimizer_that_is_built_late_and_the_one_beside_it_are_recorded_clipped_and_named(folders):
    critic, actor = true_norms(folders, "built_late")
    paths = run_folders(folders["watched"]["built_late"] / "gradwatch-runs")
    histories = [gradwatch.open_history(path) for path in paths]
    assert [h.run.name for h in histories] == ["built_late", "built_late-2", "built_late-3"]
    for history, true in zip(histories, (critic[:3], actor, critic[3:]), strict=True):
        np.testing.assert_allclose(history.layer("grad_norm"), true, rtol=2e-6)
    (line,) = [line for line in said(folders["watched"]["built_late"]) if "steps again" in line]
    assert f"{paths[2].name} and {paths[1].name} are one training, each recorded by itself" in line
    clipped = folders["watched"]["clipped late"]
    assert np.loadtxt(clipped / "stdout").max() < 0.00101
    assert "each recorded and clipped by itself" in (clipped / "stderr").read_text()
    assert sorted(len(gradwatch.open_history(p)) for p in run_folders(clipped / "gradwatch-runs")) == [3, 4, 4]


def test_an_optimizer_that_is_made_anew_leaves_the_one_beside_it_where_it_was(folders):
    history = one(folders["watched"]["one_renewed"])
    fast, slow, again = true_norms(folders, "one_renewed")
    matrices, vectors = np.concatenate([fast, again]), slow
    true = np.stack([matrices[:, 0], vectors[:, 0], matrices[:, 1], vectors[:, 1]], axis=1)
    np.testing.assert_allclose(history.layer("grad_norm"), true, rtol=2e-6)


def test_a_fork_that_goes_on_with_its_parents_optimizer_is_a_run_of_its_own(folders):
    clipped = folders["watched"]["clipped fork"]
    assert np.loadtxt(clipped / "stdout").max() < 0.0101
    assert sorted(len(gradwatch.open_history(p)) for p in run_folders(clipped / "gradwatch-runs")) == [3, 4]


def test_a_model_that_is_thrown_away_ends_its_run_and_no_other(folders):
    assert (folders["watched"]["thrown_away"] / "stdout").read_text() == "freed but for the last: True\n" * 2
    histories = [gradwatch.open_history(p) for p in run_folders(folders["watched"]["thrown_away"] / "gradwatch-runs")]
    assert sorted(len(h) for h in histories) == [*[3] * 10, 10]
    assert {h.run.status for h in histories} == {"FINISHED"}


def test_modules_that_share_an_optimizer_are_told_apart(folders):
    layers = one(folders["watched"]["trainer_class"]).layers
    assert layers[0] == "GRU.weight_ih_l0"
    assert layers[-2:] == ("Linear.weight", "Linear.bias")


def test_parameters_of_no_module_are_called_as_the_script_calls_them(folders):
    assert one(folders["watched"]["loose"]).layers == ("slope", "offset")


def test_the_scripts_own_clip_is_seen_or_left_out(folders):
    kept = one(folders["watched"]["clips_itself"])
    printed = np.array((folders["plain"]["clips_itself"] / "stdout").read_text().split(), float)
    np.testing.assert_allclose(kept.total("user_grad_norm"), printed, atol=1e-5)  # of the first step too
    np.testing.assert_allclose(kept.total("grad_norm"), np.minimum(printed, 0.5), rtol=1e-4)
    clipped, left, replaced = (one(folders["watched"][str(clip)]) for clip in CLIPS)
    np.testing.assert_allclose(clipped.total("clipped_norm"), 0.1, rtol=1e-4)
    assert "user_grad_norm" not in {*left.per_step, *replaced.per_step}
    assert left.total("grad_norm")[0] == pytest.approx(printed[0], abs=1e-4)
    assert left.total("grad_norm").max() > 0.51
    np.testing.assert_allclose(replaced.total("clipped_norm"), np.minimum(replaced.total("grad_norm"), 0.5), rtol=1e-4)


def test_the_end_of_a_script_is_the_end_of_its_run(folders):
    ends = {name: one(folders["watched"][name]).run.status for name in ("amp", "crashes", "interrupted")}
    assert ends == {"amp": "FINISHED", "crashes": "FAILED", "interrupted": "KILLED"}


def test_dropped_steps_of_a_loss_scaler_are_recorded_from_the_first(folders):
    history = one(folders["watched"]["amp"])
    assert history.total("skipped")[0] == 1
    assert 0 < history.total("skipped").sum() < 10


@pytest.mark.parametrize("name", ["crashes", "interrupted"])
def test_the_traceback_is_the_scripts_own(folders, name):
    watched = (folders["watched"][name] / "stderr").read_text()
    trace = watched[watched.index("Traceback") :].split("\ngradwatch: ")[0].strip()
    assert os.path.dirname(gradwatch.__file__) not in trace
    plain = (folders["plain"][name] / "stderr").read_text()
    frames = [line for line in plain.splitlines() if ".py" in line and not any(x in line for x in ("wild.py", "runpy"))]
    assert [line for line in trace.splitlines() if ".py" in line] == frames


def test_a_script_without_an_optimizer_gets_one_sentence(folders):
    assert said(folders["watched"]["by_hand"]) == [
        "nothing was recorded: backward() was called 7 times, but no torch.optim.Optimizer stepped in this process, "
        "so the script updates its weights in another way"
    ]


def test_a_policy_that_never_acted_is_said(folders):
    (folder,) = run_folders(folders["watched"]["clipped hand"] / "gradwatch-runs")
    assert said(folders["watched"]["clipped hand"]) == [
        "nothing was recorded, and --clip ClipByGlobalNorm(0.01) never acted: backward() was called 7 times, but no "
        "torch.optim.Optimizer stepped in this process, so the script updates its weights in another way; "
        f"`gradwatch check` finds that in {folder}"
    ]
    (finding,) = diagnose(read_run(folder))
    assert finding.rule == "policy-never-acts"
    assert finding.cause.startswith("ClipByGlobalNorm(0.01) was asked for and never acted")
    assert not (folders["watched"]["by_hand"] / "gradwatch-runs").exists(), "no policy was asked for"


def test_a_flat_partition_is_not_watched_and_no_policy_goes_without_a_word(folders):
    (line,) = said(folders["watched"]["flat_partition"])
    assert line.startswith("this AdamW is not watched: AdamW steps a flat copy of 52 elements and no module's")
    assert not (folders["watched"]["flat_partition"] / "gradwatch-runs").exists(), "nothing says that it was healthy"
    refused = folders["watched"]["clipped partition"]
    assert (refused / "code").read_text() == "2"
    assert not (refused / "stdout").read_text()
    (line,) = (refused / "stderr").read_text().splitlines()
    assert line.startswith("Error: AdamW steps a flat copy")


def test_a_process_that_trains_is_watched_whoever_started_it(folders):
    folder = folders["watched"]["spawns"]
    history = one(folder)
    assert (history.run.name, len(history)) == ("spawns-spawned", 12)
    assert "nothing was recorded" not in (folder / "stderr").read_text()

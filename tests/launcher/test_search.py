"""Search: what is drawn from ranges, how trials end, and that the same command goes on; `gradwatch.objective`."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from make_run import changed, make_history
from processes import start_sweep
from torchrun import torchrun

import gradwatch
from gradwatch import PolicyError, RunError
from gradwatch.analysis.comparison import settle
from gradwatch.analysis.groups import settings
from gradwatch.cli import main
from gradwatch.launcher import search as search_module
from gradwatch.launcher.pool import End
from gradwatch.launcher.search_space import Range, Space, Template
from gradwatch.launcher.sweep import OUTPUT, Record, Sweep
from gradwatch.storage.folder import read_manifest
from gradwatch.storage.shared_folder import run_folders

ROOT = Path(gradwatch.__file__).parents[1]
# The second training that is begun, that of the first trial, stays until it is ended.
STAYS = """
import pathlib, time
import torch
begun = len(list(pathlib.Path().glob("begun-*")))
pathlib.Path(f"begun-{begun}").touch()
w = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([w], lr=0.05)
for step in range(40):
    while begun == 1 and step == 20:
        pathlib.Path("waits").touch()
        time.sleep(0.05)
    loss = w.square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
INTERRUPTED = ["--search", "2", "--metric", "loss", "--log", "none", "--lr-scale", "0.1..1"]


# ------------------------------------------------------------------------------------------------------- what is drawn


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("ClipByGlobalNorm(0.1..10)", {"ClipByGlobalNorm.max_norm": Range(0.1, 10)}),
        ("AGC(clipping=1e-3..1e-1)", {"AGC.clipping": Range(0.001, 0.1)}),
        (
            "chain(SkipSpike(window=64..256), ClipByGlobalNorm(ramp(10.0, .5..2, 1000)))",
            {"SkipSpike.window": Range(64, 256, whole=True), "ramp.end": Range(0.5, 2)},
        ),
        (
            "chain(only('a.*', ClipByNorm(1..2)), only('b.*', ClipByNorm(3..4)))",
            {"ClipByNorm.max_norm": Range(1, 2), "ClipByNorm.max_norm 2": Range(3, 4)},
        ),
        ("only('h..1', AGC(0.01))", {}),
    ],
)
def test_a_range_is_named_after_its_argument(text, names):
    assert dict(Template.read(text, "clip").ranges) == names


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("ClipByGlobalNorm(10..1)", RunError, "LOW below HIGH"),
        ("ClipByGlobalNorm(-1..1)", PolicyError, "max_norm=-1"),
        ("ClipByGlobalNorm(1..2", PolicyError, "not a policy text"),
        ("ClipByGlobalNrm(1..2)", PolicyError, "did you mean ClipByGlobalNorm"),
        ("MaxNorm(1..2)", PolicyError, "pass it as renorm="),
        ("SkipSpike(window=64.5..70.5)", PolicyError, "window"),
    ],
)
def test_a_range_that_makes_no_policy_is_refused_before_anything_is_trained(text, error, said):
    with pytest.raises(error, match=said):
        Template.read(text, "clip")


class Ends:
    """A trial that always draws the low end, or the high one."""

    def __init__(self, end):
        self.end, self.asked = end, {}

    def _suggest(self, name, low, high, log):
        self.asked[name] = log
        return (low, high)[self.end]

    suggest_float = suggest_int = _suggest

    def suggest_categorical(self, name, options):
        return options[-self.end]


@pytest.mark.parametrize(
    ("end", "label"),
    [
        (0, "lr_scale=0.1"),
        (1, "chain(SkipNonfinite(), SkipSpike(6.0), ClipByGlobalNorm(9.88)) + lr_scale=10.0 + warmup=500"),
    ],
)
def test_a_trial_is_drawn_evenly_by_the_logarithm_where_that_can_be(end, label):
    clips = tuple(Template.read(text, "clip") for text in ("none", "ClipByGlobalNorm(0.1..9.8765)"))
    trial = Ends(end)
    space = Space(clips, (Template("none"),), (Range(0.1, 10),), (Range(0, 500, whole=True),), skip=bool(end))
    assert space.draw(trial).label == label
    assert trial.asked["lr_scale"]
    assert not trial.asked["warmup"]


# ------------------------------------------------------------------------------------------------------------ the study


@pytest.fixture
def searching(tmp_path, monkeypatch):
    """`begin(wanted)` opens the study of a script; `end(search, task, ...)` is a training that ends with this loss."""
    pytest.importorskip("optuna")
    histories = {}
    monkeypatch.setattr(search_module, "history_of", lambda job: histories.get(job.folder))
    (tmp_path / "train.py").touch()

    def begin(wanted, seeds=(None,)):
        asked = Sweep(str(tmp_path / "train.py"), (), False, (), seeds, folder=tmp_path / "runs")
        asked.home.mkdir(parents=True, exist_ok=True)
        space = Space((Template.read("ClipByGlobalNorm(0.1..10)", "clip"),), (Template("none"),), (1.0,), (0,))
        return search_module.Search(asked, space, wanted, "val_loss", False)

    def end(search, task, loss=1.0, code=0, nan_at=None, cut=""):
        job = search.todo[-1]
        history = make_history(60, nan_at=nan_at, clip=job.policy.clip)
        if loss is not None:
            values = {**history.per_step, "val_loss": np.full(60, loss)}
            histories[job.folder] = changed(history, per_step=values)
        task.at_end(End(code, 1.0, cut))
        return job

    return begin, end


def test_trials_end_as_their_trainings_do(searching):
    begin, end = searching
    search = begin(4)
    tasks = search.tasks(None, False)
    assert end(search, next(tasks)).label == "none"
    best = end(search, next(tasks), 0.5)
    end(search, next(tasks), 2.0)
    end(search, next(tasks), 1.0, code=1, nan_at=40)
    end(search, next(tasks), None, code=1)
    assert next(tasks, None) is None
    assert [trial.state.name for trial in search.ended] == ["COMPLETE", "COMPLETE", "PRUNED", "FAIL"]
    assert search.has_failed
    assert len({job.folder for job in search.jobs}) == 5
    settled = search.outcome(settle([make_history(60)]), ())
    assert settled.notes[0] == (
        "A search of 4 trials by val_loss: 2 trained to their end, 1 pruned (nonfinite 1), 1 failed (failed 1)."
    )
    assert settled.notes[1].startswith(f"Best: trial 0, {best.label}, val_loss 0.5.")


def test_the_same_search_goes_on_with_the_trial_that_was_interrupted(searching):
    begin, end = searching
    search = begin(3)
    tasks = search.tasks(None, False)
    first = [end(search, next(tasks)) for _ in range(3)]
    cut = end(search, next(tasks), cut="interrupted")
    again = begin(3)
    assert [job.folder for job in again.jobs] == [job.folder for job in first]
    tasks = again.tasks(None, False)
    assert end(again, next(tasks)).folder == cut.folder
    assert next(tasks, None) is None
    assert next(begin(3).tasks(None, False), None) is None
    more = begin(4)
    tasks = more.tasks(None, False)
    assert end(more, next(tasks)).folder not in {job.folder for job in (*first, cut)}


def test_a_trial_is_the_mean_of_its_seeds_and_gives_up_with_the_first_that_fails(searching):
    begin, end = searching
    search = begin(2, seeds=(0, 1))
    tasks = search.tasks(None, False)
    for loss in (1.0, 1.0, 0.5, 1.5):
        end(search, next(tasks), loss)
    end(search, next(tasks), nan_at=40, code=1)
    assert next(tasks, None) is None, "the second seed of a trial that was pruned is not trained"
    assert [trial.value for trial in search.ended] == [1.0, None]


def test_what_was_drawn_is_known_of_a_run_and_sets_it_apart_from_none(searching):
    begin, end = searching
    search = begin(1)
    tasks = search.tasks(None, False)
    next(tasks), next(tasks)
    words = search.todo[-1].command()
    value = search.todo[-1].label.removeprefix("ClipByGlobalNorm(").removesuffix(")")
    assert len(value) < 7, "three digits"
    assert f"search.ClipByGlobalNorm.max_norm={value}" in words
    assert "gradwatch.trial=0" in words
    assert words[words.index("--halt-on") + 1] == "error"
    runs = [make_history(40, params={"search.max_norm": text}) for text in ("1.0", "2.0")]
    assert settings(runs) == [{}, {}], "else no two policies would share a setting"


def test_what_was_trained_before_is_not_trained_for_a_trial_of_the_same_policy(searching, monkeypatch):
    begin, end = searching
    search = begin(1)
    monkeypatch.setattr(Space, "draw", lambda self, trial: search_module.Intervention("ClipByGlobalNorm(1.0)"))
    job = search.asked.job(search_module.Intervention("ClipByGlobalNorm(1.0)"), None)
    job.folder.mkdir()
    Record("finished", 0, 1.0).write(job)
    monkeypatch.setattr(search_module, "history_of", lambda job: make_history(60, logged=("val_loss",)))
    assert [search.todo[-1].label for _ in search.tasks(None, False)] == ["none"]
    assert [trial.state.name for trial in search.ended] == ["COMPLETE"]


@pytest.mark.parametrize(("loss", "said"), [(1.0, "no run logged 'val_dice'; logged: "), (None, "output.log")])
def test_no_trial_is_trained_for_a_metric_that_the_script_does_not_log(searching, loss, said):
    begin, end = searching
    search = begin(3)
    search.metric = "val_dice"
    tasks = search.tasks(None, False)
    end(search, next(tasks), loss)
    with pytest.raises(RunError, match=said):
        next(tasks)
    assert not search.study.trials


@pytest.mark.parametrize("how", [{"code": 1}, {"nan_at": 59}])
def test_a_script_that_comes_apart_without_a_policy_is_searched_all_the_same(searching, how):
    begin, end = searching
    search = begin(1)
    search.metric = "val_dice"
    tasks = search.tasks(None, False)
    end(search, next(tasks), **how)
    assert next(tasks)


def test_another_text_of_the_script_is_another_study(searching):
    begin, end = searching
    search = begin(1)
    tasks = search.tasks(None, False)
    for _ in range(2):
        end(search, next(tasks))
    assert (len(search.ended), next(tasks, None)) == (1, None)
    Path(search.asked.target).write_text("# mended")
    again = begin(1)
    assert not again.ended
    assert next(again.tasks(None, False)).output not in {job.folder / OUTPUT for job in search.unchanged}


def test_a_study_goes_on_without_the_line_in_which_it_was_killed(searching):
    begin, end = searching
    search = begin(1)
    tasks = search.tasks(None, False)
    for _ in range(2):
        end(search, next(tasks))
    journal = search.asked.home / search_module.STUDY
    journal.write_bytes(journal.read_bytes() + b'{"op_code": 4, "wor')
    more = begin(2)
    tasks = more.tasks(None, False)
    end(more, next(tasks))
    assert next(tasks, None) is None
    assert len(begin(2).ended) == 2


@pytest.mark.parametrize("text", [b"not json\n", b'{"a": 1}\n', b"\xbb\xff\n", b"[1]\n"])
def test_a_file_that_is_no_study_is_refused_in_a_line(searching, text):
    begin, _ = searching
    home = begin(1).asked.home
    (home / search_module.STUDY).write_bytes(text)
    with pytest.raises(RunError, match="cannot be read as a study of Optuna"):
        begin(1)


# -------------------------------------------------------------------------------------------------------------- the CLI


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--clip", "ClipByGlobalNorm(0.1..10)"], "pass --search N"),
        (["--search", "3", "--metric", "loss"], "nothing to search"),
        (["--search", "3", "--lr-scale", "0.1..10"], "pass --metric NAME"),
        (
            ["--search", "3", "--lr-scale", "0.1..10", "--metric", "temperature"],
            "--higher-is-better or --lower-is-better",
        ),
        (["--search", "3", "--lr-scale", "0..10", "--metric", "loss"], "Invalid value for '--lr-scale'"),
        (["--search", "3", "--warmup", "0..10.5", "--metric", "loss"], "whole numbers"),
        (["--search", "3", "--lr-scale", "0.1..10", "--metric", "loss", "--cures", "latest"], "leave one of them out"),
        (["--search", "3", "--lr-scale", "0.1..10", "--metric", "loss"], "pip install 'gradwatch[optuna]'"),
    ],
)
def test_a_search_that_cannot_be_is_refused_in_a_line(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "optuna", None)
    Path("train.py").touch()
    done = CliRunner().invoke(main, ["sweep", *words, "train.py"])
    assert done.exit_code == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


SCRIPT = """
import torch
w = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([w], lr=0.1)
for step in range(2000):
    loss = w.square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_run_that_explodes_does_not_train_to_its_end(tmp_path):
    pytest.importorskip("optuna")
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "gradwatch", "sweep", "--search", "2", "--metric", "loss", "--log", "none",
               "--lr-scale", "100..1000", "--jobs", "2", "train.py"]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 pruned (exploding 2)" in " ".join(done.stdout.split())
    runs = [read_manifest(folder) for folder in run_folders(tmp_path / "gradwatch-runs")]
    assert sorted(run.end_step == 2000 for run in runs) == [False, False, True]
    assert sorted(run.tags.get("gradwatch.trial", "") for run in runs) == ["", "0", "1"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_ctrl_c_in_a_trial_and_the_same_command_goes_on_with_it(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(STAYS)
    words = [*INTERRUPTED, "train.py"]
    process = start_sweep(*words)
    deadline = time.monotonic() + 400
    while not (tmp_path / "waits").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no trial was begun"
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=200)
    assert process.returncode in (130, -signal.SIGINT), out + err
    assert err.splitlines()[-1] == "Stopped: 1 of 2 runs are finished and kept; the same command goes on."
    process = start_sweep(*words)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    assert "A search of 2 trials by loss: 2 trained to their end." in re.sub(r"\s+", " ", out)
    runs = [read_manifest(folder) for folder in run_folders(tmp_path / "gradwatch-runs")]
    assert sorted(run.status for run in runs) == ["FINISHED", "FINISHED", "FINISHED", "KILLED"]
    (killed,) = [run for run in runs if run.status == "KILLED"]
    assert killed.lr_scale in [run.lr_scale for run in runs if run.status == "FINISHED"], "the same trial again"


# ------------------------------------------------------------------------------------------------ gradwatch.objective


def test_an_objective_reports_a_training_that_goes_on_and_prunes_one_that_explodes(tmp_path):
    optuna = pytest.importorskip("optuna")

    def train(trial):
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=trial.suggest_categorical("lr", [0.1, 100.0]))
        with gradwatch.watch(model, optimizer, log=None, dir=tmp_path, verbose=False) as watch:
            for step in range(60):
                loss = sum(p.square().sum() for p in model.parameters())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                watch.log(train_loss=loss)
                if step % 20 == 19:
                    value = gradwatch.objective(trial, watch, "train_loss")
        return value

    study = optuna.create_study()
    study.enqueue_trial({"lr": 0.1})
    study.enqueue_trial({"lr": 100.0})
    study.optimize(train, n_trials=2)
    good, bad = study.trials
    assert good.state.name == "COMPLETE"
    assert list(good.intermediate_values) == [19, 39, 59]
    assert good.value == good.intermediate_values[59]
    assert bad.state.name == "PRUNED"
    assert max(bad.intermediate_values, default=0) < 59


RANKS = """
import json, os, sys
from pathlib import Path
import optuna, torch
import torch.distributed as dist
import gradwatch
dist.init_process_group("gloo")
place = Path(sys.argv[1])
seen = []

def train(trial):
    told = [trial and trial.suggest_categorical("lr", [0.1, 100.0])]
    dist.broadcast_object_list(told, src=0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=told[0])
    with gradwatch.watch(model, optimizer, log=None, dir=place / "runs", verbose=False) as watch:
        for step in range(60):
            loss = sum(p.square().sum() for p in model.parameters()) + 0 * model(torch.zeros(1, 4)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.log(train_loss=loss)
            if step % 20 == 19:
                try:
                    value = gradwatch.objective(trial, watch, "train_loss")
                except optuna.TrialPruned as why:
                    seen.append([step, str(why)])
                    raise
    seen.append([step, value])
    return value

if dist.get_rank() == 0:
    study = optuna.create_study()
    for lr in (0.1, 100.0):
        study.enqueue_trial({"lr": lr})
    study.optimize(train, n_trials=2)
    seen.append([trial.state.name for trial in study.trials])
else:
    for _ in range(2):
        try:
            train(None)
        except optuna.TrialPruned:
            pass
(place / f"rank-{dist.get_rank()}.json").write_text(json.dumps(seen))
dist.destroy_process_group()
os._exit(0)  # as ranks.leave() does
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform == "win32" or not torch.distributed.is_available(), reason="needs gloo")
def test_all_ranks_of_a_trial_get_its_value_or_are_pruned_together(tmp_path):
    pytest.importorskip("optuna")
    (tmp_path / "train.py").write_text(RANKS)
    done = torchrun(2, "train.py", ".", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    first, other = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    assert first.pop() == ["COMPLETE", "PRUNED"]
    assert first == other
    (end, value), (cut, why) = first
    assert (end, value >= 0) == (59, True)
    assert cut < 59
    assert why


def test_an_objective_of_a_run_that_is_over(tmp_path):
    optuna = pytest.importorskip("optuna")
    history = make_history(60)
    trial = optuna.trial.FixedTrial({})
    assert gradwatch.objective(trial, history, "val_accuracy") == pytest.approx(1 - math.exp(-49 / 60))
    with pytest.raises(optuna.TrialPruned, match="nonfinite at step 50"):
        gradwatch.objective(trial, make_history(60, nan_at=50), "val_accuracy")
    with pytest.raises(RunError, match="no run logged 'accuracy'"):
        gradwatch.objective(trial, history, "accuracy")


def test_the_pruner_of_the_study_decides_too():
    optuna = pytest.importorskip("optuna")
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=0.1))
    with pytest.raises(optuna.TrialPruned, match="pruner"):
        gradwatch.objective(study.ask(), make_history(60), "val_accuracy")

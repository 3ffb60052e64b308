"""`gradwatch sweep --cures`: which cures are tried, how a run is started again, and what is said of each."""

import json
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from click.testing import CliRunner
from make_run import make_run

from gradwatch.analysis.comparison import Comparison
from gradwatch.analysis.rules import Finding
from gradwatch.analysis.verdict import BETTER, NO_DIFFERENCE, NOT_JUDGED, WORSE
from gradwatch.cli import main
from gradwatch.errors import RunError
from gradwatch.history import Run
from gradwatch.launcher.arguments import Arguments
from gradwatch.launcher.cures import MOST, Command, Trial, _line, applied, collect, read_trial, recorded_command
from gradwatch.policies.intervention import Intervention
from gradwatch.storage.manifest import run_of

ROOT = Path(__file__).parents[2]
GLOBAL = "ClipByGlobalNorm(1.0)"


def finding(rule, *tries, below=()):
    return Finding(rule, "error", (), 0, 1, tries=tries, consequences=below)


def test_a_cure_is_put_on_top_of_what_the_run_had():
    had = Intervention("AGC(0.01)", "MaxNorm(3.0)", lr_scale=0.5, warmup=10)
    assert applied(had, "--lr-scale 0.1") == Intervention("AGC(0.01)", "MaxNorm(3.0)", 0.05, 10)
    assert applied(had, f"--clip '{GLOBAL}' --warmup 20") == Intervention(GLOBAL, "MaxNorm(3.0)", 0.5, 20)
    assert applied(had, "--renorm none").renorm is None
    assert applied(had, "--skip").clip == "chain(SkipNonfinite(), SkipSpike(6.0), AGC(0.01))"
    for text in ("--lr 0.1", "--clip", "--clip 'os.system(1)'", "--lr-scale x"):
        with pytest.raises(ValueError, match=r"\S"):
            applied(had, text)


def test_the_cures_of_roots_come_first_each_once_with_all_that_name_it():
    below = finding("nonfinite", "--lr-scale 0.1", "--warmup 20")
    roots = [finding("exploding", f"--clip '{GLOBAL}'", "--lr-scale 0.1", below=(below,)), finding("dead-layer")]
    assert collect(Intervention(), roots) == {
        Intervention(GLOBAL): ("exploding",),
        Intervention(lr_scale=0.1): ("exploding", "nonfinite"),
        Intervention(warmup=20): ("nonfinite",),
    }
    assert list(collect(Intervention(GLOBAL), roots)) == [
        Intervention(GLOBAL, None, 0.1),
        Intervention(GLOBAL, warmup=20),
    ]
    note = replace(finding("spike", "--skip"), severity="note")
    assert collect(Intervention(), [replace(roots[1], consequences=(note,))]) == {}
    many = [finding("spike", *(f"--warmup {n}" for n in range(2, 20)))]
    assert len(collect(Intervention(), many)) == MOST


def test_the_seed_of_a_run_gives_way_to_those_of_the_sweep():
    words = ("--lr", "0.1", "--seed", "3", "--random_state=4", "seed=5", "--seeds", "many", "7")
    assert Command("train.py", False, words).seeded({"args.seed": "3"}).args == (
        "--lr", "0.1", "--seed", "{seed}", "--random_state={seed}", "seed={seed}", "--seeds", "many", "7",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("params", "seed", "args"),
    [
        ({"args.seed": "0"}, None, ("--lr", "1", "--seed", "{seed}")),
        ({"args.seed": "0"}, 4, ("--lr", "1")),  # gradwatch seeded it
        ({"args.seed": "None"}, None, ("--lr", "1")),
        ({"args.random_seed": "0"}, None, ("--lr", "1")),
    ],
)
def test_a_script_with_an_option_for_its_seed_is_given_it(params, seed, args):
    assert Command("train.py", False, ("--lr", "1"), seed=seed).seeded(params).args == args


def described(tmp_path, **changes):
    command = {
        "target": "train.py", "module": False, "args": ["--lr", "1"], "options": ["--every", "5"], "seed": None,
        "folder": str(tmp_path), "ranks": 1, "log": "none", "experiment": None, "hidden": False, **changes,
    }  # fmt: skip
    run = Run("x", "2026-01-31T12:00:00+00:00", host=socket.gethostname(), command=command)
    return run_of(json.loads(json.dumps(run.to_json())))


def test_a_run_is_started_as_it_was_or_what_is_missing_is_said(tmp_path):
    (tmp_path / "train.py").touch()
    found = recorded_command("runs/x", described(tmp_path), launched=False)
    assert (found.target, found.args, found.options, found.folder) == (
        "train.py", ("--lr", "1"), ("--every", "5"), tmp_path,
    )  # fmt: skip
    instead = "give its script: gradwatch sweep --cures runs/x SCRIPT [ARGS...]"
    for run, words in (
        (Run("x", ""), f"is not recorded, because gradwatch run did not start it; {instead}"),
        (Run("x", "", host="elsewhere", command={"target": "t"}), "another machine (elsewhere), whose files"),
        (described(tmp_path, hidden=True), f"a secret among its script's arguments is not recorded; {instead}"),
        (described(tmp_path, target="other.py"), f"{tmp_path / 'other.py'} is no more; {instead}"),
        (described(tmp_path, folder="/nowhere", module=True), f"/nowhere is no more; {instead}"),
        (described(tmp_path, ranks=4), "by 4 processes: give their launcher too"),
    ):  # fmt: skip
        with pytest.raises(RunError) as error:
            recorded_command("runs/x", run, launched=False)
        assert words in str(error.value)
    assert recorded_command("runs/x", described(tmp_path, ranks=4), launched=True).target == "train.py"


@pytest.mark.parametrize("changes", [{"args": "x"}, {"module": 1}, {"ranks": 0}, {"target": None}, {"log": "ftp"}])
def test_a_command_of_another_kind_is_refused(tmp_path, changes):
    with pytest.raises(ValueError, match="command is"):
        described(tmp_path, **changes)


def test_no_secret_is_recorded():
    command = Arguments(["--lr", "1", "--api-key", "abc"]).recorded({"target": "t"})
    assert command == {"target": "t", "args": ["--lr", "1", "--api-key", "***"], "hidden": True}
    assert not Arguments(["--lr", "1"]).recorded({})["hidden"]


@pytest.mark.parametrize(
    ("verdict", "found", "said"),
    [
        (BETTER, [set(), set()], "lr_scale=0.1 cured it: spike in none of 2 runs, loss better."),
        (BETTER, [{"spike"}, set()], "lr_scale=0.1 helped, and did not cure it: spike in 1 of 2 runs, loss better."),
        (NOT_JUDGED, [set()],
         "lr_scale=0.1 took the finding away, and is not shown to help: spike in none of 1 run, loss not judged."),
        (NO_DIFFERENCE, [{"spike", "imbalance"}], "lr_scale=0.1 did not cure it: spike in 1 of 1 run, "
         "loss not shown to be better than unchanged; also seen: imbalance."),
        (WORSE, [set()], "lr_scale=0.1 made it worse: spike in none of 1 run, loss worse."),
    ],
)  # fmt: skip
def test_a_cure_has_cured_where_the_finding_is_gone_and_the_loss_is_better(verdict, found, said):
    assert _line(Intervention(lr_scale=0.1), ("spike",), found, [{"spike"}, set()], verdict, "loss") == said


def test_a_cure_of_what_follows_did_not_cure_the_main_finding():
    """A clip over gradients that are never set to zero."""
    cure, root = Intervention(clip="ClipByGlobalNorm(1.0)"), "gradients-accumulate"
    line = _line(cure, ("lr-too-high",), [{root}], [{root, "lr-too-high"}], BETTER, "loss", root)
    assert f"helped, and leaves {root}, which asks for another change (gradwatch check): lr-too-high in none" in line
    assert "cured it" in _line(cure, ("lr-too-high",), [set()], [{root, "lr-too-high"}], BETTER, "loss", root)
    trial = Trial("x", Intervention(), {cure: ("lr-too-high",)}, {}, "", root)
    table = pd.DataFrame({"policy": ["none", cure.label], "loss_verdict": ["baseline", BETTER]})
    runs = [SimpleNamespace(policy=label, findings=[Finding(root, "error", (), 0, 1)]) for label in table["policy"]]
    notes = trial.outcome(Comparison(table, ("loss",), (), ()), runs).notes
    assert notes[0] == f"Unchanged: {root} in 1 of 1 run, lr-too-high in none of 1 run."


def test_a_cure_that_only_gives_the_sickness_another_name_did_not_take_it_away():
    def said(verdict, found, unchanged=({"spike", "imbalance"},)):
        line = _line(Intervention(lr_scale=0.1), ("spike",), found, unchanged, verdict, "loss")
        return line.removeprefix("lr_scale=0.1 ").partition(": ")[0]

    assert said(NO_DIFFERENCE, [{"exploding"}, {"exploding", "nonfinite"}]) == "put exploding in the finding's place"
    assert said(BETTER, [{"exploding"}]) == "helped, and put exploding in the finding's place"
    for found in ([{"exploding"}, set()], [{"imbalance"}]):  # in one run of two; there before
        assert said(NO_DIFFERENCE, found) == "took the finding away, and is not shown to help"


def test_what_the_unchanged_script_does_not_show_was_not_taken_away():
    for found in ([set()], [{"spike"}]):
        said = _line(Intervention(lr_scale=0.1), ("spike",), found, [{"imbalance"}], NOT_JUDGED, "loss")
        assert said.startswith("lr_scale=0.1 had nothing to cure, as the unchanged script shows no such finding here: ")


def test_findings_of_earlier_versions_name_nothing_to_try():
    data = finding("spike", "--skip").to_json()
    assert Finding.from_json(json.loads(json.dumps(data))).tries == ("--skip",)
    del data["tries"]
    assert Finding.from_json(data).tries == ()


def test_a_healthy_run_and_options_that_do_not_go_together_are_a_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = str(make_run(tmp_path, steps=100))
    found = CliRunner().invoke(main, ["sweep", "--cures", folder])
    assert (found.exit_code, found.output.count("\n")) == (0, 1)
    assert "no finding that asks for a cure, so nothing is trained" in found.output
    found = CliRunner().invoke(main, ["sweep", "--usual-cures", "train.py"])
    assert (found.exit_code, found.output.count("\n")) == (2, 1)
    found = CliRunner().invoke(main, ["sweep", "--cures", folder, "--lr-scale", "0.1"])
    assert found.exit_code == 2
    assert "--cures and --lr-scale: the findings of" in found.output


def test_usual_cures_are_tried_whatever_was_found_and_each_says_what_it_shows(tmp_path):
    folder = str(make_run(tmp_path, steps=100))
    assert read_trial(folder, usual=False)[0] is None
    trial, run = read_trial(folder, usual=True)
    assert (trial.cures, trial.severe) == ({}, "no finding that asks for a cure")
    unchanged = Intervention.of(run)
    assert [cure.lr_scale / unchanged.lr_scale for cure in trial.usual] == pytest.approx([0.1, 0.3, 3, 10, 1, 1])
    assert trial.policies == (unchanged, *trial.usual)
    assert len({*trial.policies}) == 7
    bounded = str(make_run(tmp_path / "bounded", steps=100, clip="chain(SkipNonfinite(), AdaGC(1.05))"))
    trial, _ = read_trial(bounded, usual=True)
    assert len(trial.policies) == len({*trial.policies}) == 6, "what the run has already is no cure"


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (BETTER, "lr_scale=3.0 trains better (loss): the learning rate is too low."),
        (WORSE, "lr_scale=3.0 trains worse (loss)."),
        (NO_DIFFERENCE, "lr_scale=3.0 is not shown to train better (loss)."),
        (NOT_JUDGED, "lr_scale=3.0 is not judged against unchanged."),
    ],
)
def test_what_came_of_a_usual_cure_is_the_verdict_over_its_metric(verdict, said):
    cure = Intervention(lr_scale=3.0)
    trial = Trial("x", Intervention(), {}, {cure: "the learning rate is too low"}, "")
    table = pd.DataFrame({"policy": ["none", cure.label], "loss_verdict": ["baseline", verdict]})
    settled = Comparison(table, ("loss",), (), ())
    runs = [SimpleNamespace(policy=label, findings=()) for label in ("none", cure.label)]
    assert trial.outcome(settled, runs).notes == (said,)


SICK = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--seed", type=int)
args = parser.parse_args()
torch.manual_seed(args.seed)
inputs = torch.randn(256, 10)
targets = inputs @ torch.randn(10, 1)
model = torch.nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
for step in range(120):
    rows = torch.randint(256, (64,))
    optimizer.zero_grad()
    loss = (model(inputs[rows]) - targets[rows]).square().mean()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_third_of_a_rate_too_high_under_a_clip_is_shown_to_cure(tmp_path, monkeypatch):
    """From another folder than that of the run, with the run's own words; the first of its cures, for time."""
    (tmp_path / "sick.py").write_text(SICK)
    words = [sys.executable, "-m", "gradwatch", "run", "--log", "none", "sick.py", "--lr", "1.0", "--seed", "7"]
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    subprocess.run(words, cwd=tmp_path, check=True, timeout=200)
    (folder,) = (tmp_path / "gradwatch-runs").iterdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr("gradwatch.launcher.cures.MOST", 1)
    done = CliRunner().invoke(main, ["sweep", "--cures", str(folder), "--seed", "0", "--seed", "1", "--jobs", "2"])
    assert done.exit_code == 0, done.output
    assert "Its script, sick.py --lr 1.0 --seed '{seed}', unchanged and with\n  --clip" in done.output
    cured = "lr_scale=0.3 cured it: exploding in none of 2 runs"
    (home,) = (tmp_path / "elsewhere" / "gradwatch-runs").glob("sweep-sick-cures-*")
    for page in ("report.html", "comparison.md"):
        assert cured in (home / page).read_text().replace("\\_", "_")
    assert cured in " ".join(done.output.split())

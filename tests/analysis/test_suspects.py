"""Which batches went wrong: by steps that are known to, from the record to the loader that leaves them out."""

import json
import math

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from make_run import changed, make_history
from torch import nn
from torch.utils.data import DataLoader
from training import watch

import gradwatch
from gradwatch import GradwatchWarning, WatchError, open_history
from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.rules.step_data import data_of
from gradwatch.analysis.suspects import suspects
from gradwatch.cli import main


def trained(tmp_path, bad, log=True, rewinds=False, steps=120):
    """Step `i` sees batch 1000 + i, of two samples in a shard."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    clip = None if rewinds else "SkipNonfinite()"
    with watch(model, optimizer, tmp_path, clip=clip, delivery="none") as handle:
        loader = [(i, torch.randn(16, 4) * bad.get(i, 1.0)) for i in range(steps)]
        for i, x in gradwatch.Rewind(model, optimizer, every=10)(loader) if rewinds else loader:
            optimizer.zero_grad()
            loss = (model(x) - 1).square().mean()
            loss.backward()
            optimizer.step()
            data = {"batch": 1000 + i, "sample": [2 * i, 2 * i + 1], "shard": i // 50} if log else {}
            handle.log(loss=loss, **data)
    return handle.dir


def asked(folder, *options):
    done = CliRunner().invoke(main, ["batches", str(folder), *options])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_batches_that_were_not_finite_are_named(tmp_path):
    folder = trained(tmp_path, {40: math.nan, 90: math.inf})
    assert json.loads(asked(folder, "--format", "json")) == [1040, 1090]
    assert json.loads(asked(folder, "--format", "json", "--before", "1")) == [1039, 1040, 1089, 1090]
    assert "step 40  batch 1040  sample 80, 81  shard 0  not finite" in asked(folder)


def test_of_steps_that_stay_broken_the_first_is_named(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, tmp_path, delivery="none") as handle:
        for i in range(60):
            optimizer.zero_grad()
            (model(torch.randn(16, 4)).mean() * (math.inf if i == 40 else 1.0)).backward()
            optimizer.step()
    history = open_history(handle.dir)
    assert [one.batches for one in suspects(history, diagnose(history))] == [(40,)]


def test_a_spike_is_named_by_the_batch_of_its_largest_step(tmp_path):
    folder = trained(tmp_path, {70: 200.0})
    (spike,) = (f for f in diagnose(open_history(folder)) if f.rule == "spike")
    assert spike.first_step == 70
    assert 1070 in json.loads(asked(folder, "--format", "json"))


def test_a_finding_says_which_data_its_step_saw(tmp_path):
    for place, bad, rule in (("a", {40: math.nan}, "nonfinite"), ("b", {70: 200.0}, "spike")):
        (finding,) = (f for f in diagnose(open_history(trained(tmp_path / place, bad))) if f.rule == rule)
        (step,) = bad
        told = {name: finding.evidence[name] for name in ("batch", "sample", "shard")}
        assert told == {"batch": f"{1000 + step}", "sample": f"{2 * step}, {2 * step + 1}", "shard": f"{step // 50}"}


def test_what_a_training_was_taken_back_for_is_named(tmp_path):
    folder = trained(tmp_path, {40: math.inf}, rewinds=True)
    assert "batch 1040  sample 80, 81  shard 0  not finite, rewound" in asked(folder)


def test_without_a_logged_batch_it_is_the_step(tmp_path):
    folder = trained(tmp_path, {40: math.inf}, log=False)
    done = CliRunner().invoke(main, ["batches", str(folder), "--format", "json"])
    assert json.loads(done.stdout) == [40]
    assert "the number of the step stands for it" in done.stderr
    healthy = trained(tmp_path / "healthy", {}, log=False)
    assert asked(healthy) == "no step went wrong at once\n"


def test_lists_stay_in_the_files(tmp_path):
    history = open_history(trained(tmp_path, {}))
    assert data_of(history, 7) == {"batch": (1007,), "sample": (14, 15), "shard": (0,)}
    assert set(history.logged) == {"loss", "batch", "shard"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"loss": [1, 2]}, "wanted a number"),
        ({"sample": ["a"]}, r"sample\[0\]='a'"),
        ({"batch": list(range(5000))}, "log under fewer names"),
    ],
)
def test_other_lists_are_left_out(values, said, tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, delivery="none") as handle, pytest.warns(GradwatchWarning, match=said):
        handle.log(**values)


def test_the_list_leaves_batches_out(tmp_path):
    file = tmp_path / "skip_batches.json"
    file.write_text(asked(trained(tmp_path, {3: math.inf, 5: math.inf}, log=False), "--format", "json"))
    loader = DataLoader(torch.arange(8), 1)
    without = gradwatch.skip(loader, file)
    for _ in range(2):
        assert [int(x) for x in without] == [0, 1, 2, 4, 6, 7]
    assert len(without) == 6
    assert without.dataset is loader.dataset
    assert [int(x) for x in gradwatch.skip(loader, [10, 99], start=8)] == [0, 1, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("text", "said"), [("{}", "holds {}"), ("[1.5]", "holds"), ("[", "cannot be read"), (None, "No such file")]
)
def test_a_file_of_something_else_is_refused(text, said, tmp_path):
    file = tmp_path / "list.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(WatchError, match=f"{said}.*wanted a JSON list of batch numbers"):
        gradwatch.skip([], file)


@pytest.mark.parametrize("where", ["a loss that was NaN", "a norm that is inf"])
def test_what_is_not_finite_is_suspected_wherever_the_record_shows_it(where):
    history = make_history(60, clip=None)
    at = np.arange(60) == 40
    totals = {"was_nan/loss": at * 1.0, "loss": np.where(at, np.nan, history.total("loss"))}
    if "norm" in where:
        totals = {"grad_norm": np.where(at, np.inf, history.total("grad_norm"))}
    assert [one.step for one in suspects(changed(history, per_step={**history.per_step, **totals}), [])] == [40]

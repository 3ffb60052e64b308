"""What a training is told while it goes on: each finding once, and where asked for, its end."""

import itertools
import json
import logging
import math
import os
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from make_run import make_history
from torch import nn
from training import mlp, train, watch

import gradwatch
from gradwatch import GradwatchWarning, TrainingHalted, WatchError, open_history
from gradwatch.analysis.rules import Finding
from gradwatch.recording import courier_process
from gradwatch.recording.callbacks import Live
from gradwatch.recording.recorder import ROWS
from gradwatch.storage.folder import FINDINGS, write_json

SPIKE = Finding(
    "spike", "warning", ("0.weight",), 3, 4, {"height": 12.0}, "A step was 12 times the usual.", "Clip.",
)  # fmt: skip
EXPLODING = Finding("exploding", "error", ("0.weight", "2.weight"), 2, 4, {}, "It grew.", "Lower the rate.")


@pytest.fixture(autouse=True)
def no_process(monkeypatch):
    """The folders in which a process was started to diagnose a run; none is."""
    started = []
    monkeypatch.setattr(courier_process, "start_diagnosis", started.append)
    return started


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "gradwatch")
    return lambda: [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "gradwatch"]


def tell(folder, *findings):
    """What the other process writes."""
    write_json(folder / FINDINGS, {"run": "x", "findings": [finding.to_json() for finding in findings]})


def poison(at):
    """A `before_step` that makes one layer's gradient NaN from step `at` on."""
    steps = itertools.count()

    def act(model):
        if next(steps) >= at:
            model[0].weight.grad.fill_(math.nan)

    return act


def setting(tmp_path, **options):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, watch(model, optimizer, tmp_path, **options)


def test_a_finding_survives_its_way_through_a_file():
    cause = replace(EXPLODING, evidence={"growth": 412.5, "kind": "depth"}, consequences=(SPIKE,), optimizer="G")
    assert Finding.from_json(json.loads(json.dumps(cause.to_json()))) == cause
    unknown = Finding.from_json({**SPIKE.to_json(), "evidence": {"height": None}})
    assert math.isnan(unknown.evidence["height"])


# ------------------------------------------------------------------------------------------------------------ saying


def test_nonfinite_gradients_are_said_once_without_another_process(tmp_path, lines):
    model, optimizer, watching = setting(tmp_path)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        train(model, optimizer, 3 * ROWS, poison(5))
        assert [level for level, _ in lines()] == ["ERROR"]
        watching.close()
    ((_, text),) = lines()
    assert text.startswith("gradwatch found nonfinite at step 5 in 0.weight")
    assert [(w.category, str(w.message)) for w in warned] == [(GradwatchWarning, text)]


def test_what_the_other_process_finds_is_said_once_and_handed_over(tmp_path, lines):
    heard = []
    model, optimizer, watching = setting(tmp_path, on_finding=heard.append)
    train(model, optimizer, ROWS)
    note = replace(SPIKE, rule="clip-inert", severity="note")
    tell(watching.dir, replace(EXPLODING, consequences=(SPIKE,)), note)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        train(model, optimizer, 2 * ROWS)
        tell(watching.dir, replace(EXPLODING, last_step=100), note)  # goes on: nothing new
        train(model, optimizer, ROWS)
    assert [level for level, _ in lines()] == ["ERROR", "INFO"]
    assert [f.rule for f in heard] == ["exploding", "clip-inert"]
    assert len(warned) == 1
    assert heard[0].consequences == (SPIKE,)
    tell(watching.dir, replace(note, severity="warning"))  # worse than it was
    watching.close()
    assert [f.severity for f in heard] == ["error", "note", "warning"]


def test_a_function_that_raises_is_logged_once_and_the_training_goes_on(tmp_path, lines):
    def broken(finding):
        raise ValueError("no pager today")

    model, optimizer, watching = setting(tmp_path, on_finding=broken)
    tell(watching.dir, EXPLODING, SPIKE)
    train(model, optimizer, 2 * ROWS)
    watching.close()
    said = [text for _, text in lines() if "on_finding" in text]
    assert len(said) == 1
    assert len(open_history(watching.dir)) == 2 * ROWS


def test_a_file_that_cannot_be_read_harms_nothing(tmp_path, lines):
    model, optimizer, watching = setting(tmp_path, halt_on="warning")
    for text in ("{", "[]", '{"findings": [{}]}', '{"findings": 3}'):
        (watching.dir / FINDINGS).write_text(text)
        train(model, optimizer, ROWS + 1)
    watching.close()
    assert lines() == []


def test_warnings_that_are_errors_lose_nothing(tmp_path):
    model, optimizer, watching = setting(tmp_path)
    watching._recorder.seconds = watching._recorder.pause = math.inf  # rows leave by their number alone
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(GradwatchWarning, match="nonfinite"):
            train(model, optimizer, 2 * ROWS, poison(5))
    watching.close()
    assert len(open_history(watching.dir)) == ROWS


# ----------------------------------------------------------------------------------------------------------- halting


class Adder(nn.Module):
    """A tanh RNN whose recurrent weights are 1.5 times orthogonal."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.head = nn.RNN(2, 32, batch_first=True), nn.Linear(32, 1)
        nn.init.orthogonal_(self.rnn.weight_hh_l0, 1.5)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def explode(folder, halt_on, steps=3 * ROWS):
    """The adding problem with a recurrent weight that is too large, at a rate that no run survives."""
    model = Adder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(1)
    with gradwatch.watch(
        model, optimizer, dir=folder, log=None, verbose=False, every=1, halt_on=halt_on
    ) as watching:  # fmt: skip
        for _ in range(steps):
            x = torch.rand(20, 60, 2, generator=generator)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), x[..., 0].sum(1, keepdim=True)) ** 2
            loss.backward()
            optimizer.step()
            watching.log(loss=loss)


def test_an_exploding_run_halts_within_a_block_and_can_be_read(tmp_path):
    with pytest.raises(TrainingHalted, match="halt_on='error'") as caught:
        explode(tmp_path, "error")
    (folder,) = tmp_path.iterdir()
    history = open_history(folder)
    first = int(np.flatnonzero(history.total("nonfinite"))[0])
    finding = caught.value.finding
    assert (finding.rule, finding.first_step) == ("nonfinite", first)
    assert first < len(history) <= first + ROWS
    assert history.run.status == "FAILED"
    for part in (finding.summary, finding.cause, finding.cure, str(folder)):
        assert part in str(caught.value)
    assert next(f.severity for f in gradwatch.analysis.rules.diagnose(history)) == "error"


def test_without_halt_on_it_goes_on(tmp_path):
    explode(tmp_path, None, 2 * ROWS)
    (folder,) = tmp_path.iterdir()
    assert len(open_history(folder)) == 2 * ROWS


def test_the_step_that_raises_is_not_taken(tmp_path):
    model, optimizer, watching = setting(tmp_path, halt_on="error")
    watching._recorder.seconds = watching._recorder.pause = math.inf
    with pytest.raises(TrainingHalted):
        train(model, optimizer, 2 * ROWS, poison(ROWS - 1))
    watching.close()
    before = [p.clone() for p in model.parameters()]
    assert len(open_history(watching.dir)) == ROWS
    assert open_history(watching.dir).run.status == "FAILED"
    optimizer.zero_grad()
    assert all(torch.equal(a, b) or a.isnan().any() for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("halt_on", "finding", "halts"),
    [("error", EXPLODING, True), ("error", SPIKE, False), ("warning", SPIKE, True), (None, EXPLODING, False),
     ("warning", replace(SPIKE, severity="note"), False)],
)  # fmt: skip
def test_what_halts_is_what_was_asked_for(tmp_path, halt_on, finding, halts):
    model, optimizer, watching = setting(tmp_path, halt_on=halt_on)
    train(model, optimizer, 10)
    weights = [p.detach().clone() for p in model.parameters()]
    tell(watching.dir, finding)
    watching._recorder.drained -= 60  # time passes
    if halts:
        with pytest.raises(TrainingHalted) as caught:
            train(model, optimizer, 1)
        assert caught.value.finding == finding
        assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
        with pytest.raises(TrainingHalted):  # and so does the next
            train(model, optimizer, 1)
        again = pickle.loads(pickle.dumps(caught.value))
        assert (str(again), again.finding) == (str(caught.value), finding)
    else:
        train(model, optimizer, 1)
    watching.close()
    assert open_history(watching.dir).run.status == ("FAILED" if halts else "FINISHED")


def test_a_skipped_step_is_only_a_warning(tmp_path):
    model, optimizer, watching = setting(tmp_path, halt_on="error", clip="SkipNonfinite()")
    heard = []
    watching._live.on_finding = heard.append
    train(model, optimizer, 2 * ROWS, poison(ROWS // 2))
    watching.close()
    assert [f.severity for f in heard] == ["warning"]


def test_a_word_that_halts_nothing_is_refused(tmp_path):
    with pytest.raises(WatchError, match="halt_on='note': wanted 'error' or 'warning' or None"):
        setting(tmp_path, halt_on="note")


def test_a_resumed_run_does_not_halt_for_what_was_before(tmp_path):
    model, optimizer, watching = setting(tmp_path / "a")
    train(model, optimizer, 10)
    state = watching.state_dict()
    tell(watching.dir, replace(EXPLODING, last_step=30), replace(SPIKE, last_step=9))
    watching.close()
    heard = []
    model, optimizer, again = setting(tmp_path / "a", halt_on="error", on_finding=heard.append)
    again.load_state_dict(state)
    for _ in range(15):
        again._recorder.drained -= 60
        train(model, optimizer, 1)
    assert heard == []
    tell(again.dir, replace(EXPLODING, last_step=20))
    again._recorder.drained -= 60
    with pytest.raises(TrainingHalted):
        train(model, optimizer, 1)
    again.close()


# --------------------------------------------------------------------------------------------------------- the rest


def test_a_watch_hears_only_of_its_own_part(tmp_path):
    heard = {name: [] for name in "DG"}
    watches, models, first = {}, {}, None
    for name in "DG":
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        first = watches[name] = watch(model, optimizer, tmp_path, name=name, run=first, on_finding=heard[name].append)
        models[name] = model, optimizer
    tell(first.dir.parent, replace(EXPLODING, optimizer="D"), replace(SPIKE, optimizer="G.SGD"))
    for model, optimizer in models.values():
        train(model, optimizer, 10, poison(3) if model is models["G"][0] else None)
    for one in watches.values():
        one.close()
    assert [f.rule for f in heard["D"]] == ["exploding"]
    assert sorted(f.rule for f in heard["G"]) == ["nonfinite", "spike"]


def test_a_process_is_started_for_a_long_run_only(tmp_path, no_process):
    model, optimizer, watching = setting(tmp_path)
    train(model, optimizer, 2 * ROWS)
    assert no_process == []
    watching._live._process_due -= 10
    train(model, optimizer, 2 * ROWS)
    assert no_process == [watching.dir]
    watching.close()
    for options in ({"delivery": "none"}, {"log": "mlflow", "delivery": "none"}):
        model, optimizer, watching = setting(tmp_path, **options)
        assert watching._live._process_due is None
        watching.close()


def test_an_empty_block_of_news_costs_a_step_nothing(tmp_path):
    live = Live()
    live.between(1)
    live.check(make_history(nan_at=5))  # not attached: a rank that writes nothing
    live.look(10)
    live.speak()
    assert not live._news
    assert os.listdir(tmp_path) == []

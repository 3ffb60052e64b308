"""What a training is told while it goes on: each finding once, and where asked for, its end."""

import itertools
import json
import logging
import math
import os
import pickle
import subprocess
import sys
import threading
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from make_run import as_block, make_history
from torch import nn
from training import mlp, train, watch

import gradwatch
from gradwatch import TrainingHalted, WatchError, open_history
from gradwatch.analysis.rules import Finding, diagnose, verdict
from gradwatch.recording import callbacks, courier_process
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
    run = watching.dir.name
    assert text.startswith(f"gradwatch found an error in {run}: nonfinite at step 5 in 0.weight")
    assert warned == []  # one channel


SCRIPT = """
import math, sys, torch, gradwatch
torch.manual_seed(6)  # weights near 0, which the first step more than doubles
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watch = gradwatch.watch(model, optimizer, log=None, dir=sys.argv[1])
for step in range(200):
    optimizer.zero_grad()
    loss = model(torch.ones(1, 2)).square().sum()
    (loss * math.nan if step == 5 else loss).backward()
    optimizer.step()
before = {*sys.modules}
watch.close()
print(*({*sys.modules} - before))
"""


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("-W", "error")])
def test_a_script_without_logging_reads_each_thing_once_and_closing_imports_nothing_slow(tmp_path, flags):
    """Nor is a line of ours pointed at, nor is a training ended."""
    command = [sys.executable, *flags, "-c", SCRIPT, tmp_path]
    done = subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    _, found, recorded, verdict = done.stderr.splitlines()
    assert recorded.startswith("gradwatch: 200 steps recorded in ")
    assert found.startswith("gradwatch found an error in ")
    assert "nonfinite at step 5 in weight" in found
    assert verdict.startswith("gradwatch: verdict: nonfinite at step 5 in weight")
    assert not {"pandas", "pyarrow.compute", "mlflow", "scipy", "rich"} & {*done.stdout.split()}


def test_what_the_other_process_finds_is_said_once_and_handed_over(tmp_path, lines):
    heard = []
    model, optimizer, watching = setting(tmp_path, on_finding=heard.append)
    train(model, optimizer, ROWS)
    note = replace(SPIKE, rule="clip-inert", severity="note")
    tell(watching.dir, replace(EXPLODING, consequences=(SPIKE,)), note)
    train(model, optimizer, 2 * ROWS)
    tell(watching.dir, replace(EXPLODING, last_step=100), note)  # goes on: nothing new
    train(model, optimizer, ROWS)
    assert [level for level, _ in lines()] == ["ERROR", "INFO"]
    assert [f.rule for f in heard] == ["exploding", "clip-inert"]
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


def test_a_finding_ends_no_training_that_makes_errors_of_warnings(tmp_path, lines):
    model, optimizer, watching = setting(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, optimizer, 2 * ROWS, poison(5))
        watching.close()
    assert [level for level, _ in lines()] == ["ERROR"]
    assert len(open_history(watching.dir)) == 2 * ROWS


@pytest.fixture
def live(tmp_path):
    """A Live beside a folder in which another process writes; each look finds a file that has changed."""
    live = Live(home=tmp_path)
    dates = itertools.count(1)

    def look(*findings):
        tell(tmp_path, *findings)
        os.utime(tmp_path / FINDINGS, ns=(next(dates), next(dates)))
        live.look(100)
        live.speak()

    live.told = look
    return live


def test_findings_of_one_rule_in_other_layers_are_each_said(live, lines):
    first, second = replace(SPIKE, layers=("a", "b")), replace(SPIKE, layers=("c",))
    live.told(first)
    live.told(first, second)
    live.told(replace(first, layers=("b", "d")), second)  # the first, in one layer more
    live.told(replace(first, layers=("d",)), second)
    assert [text.split(": ")[1].split(".")[0] for _, text in lines()] == [first.summary, second.summary]


def test_what_a_later_diagnosis_has_no_more_is_taken_back_in_one_line(live, lines):
    elsewhere = replace(SPIKE, layers=("c",))
    live.told(SPIKE, elsewhere, EXPLODING)
    live.told(elsewhere, EXPLODING)
    live.told(EXPLODING)
    taken_back = [(level, text) for level, text in lines() if "takes back" in text]
    assert [level for level, _ in taken_back] == ["WARNING"] * 2
    run = live.home.name
    assert [text.split(". ")[0] for _, text in taken_back] == [
        f"gradwatch takes back what it found in {run}: {finding.summary}" for finding in (SPIKE, elsewhere)
    ]
    assert len(lines()) == 5


def test_a_named_watch_that_is_alone_takes_nothing_back_that_the_run_shows_without_its_name(tmp_path, lines):
    live = Live(home=tmp_path, part="G")
    for name in ("G", "", "G", ""):
        tell(tmp_path, replace(EXPLODING, optimizer=name))
        live.look(100)
        live.speak()
    assert len(lines()) == 1


def test_what_moves_to_other_layers_and_back_is_said_once_of_each_and_not_taken_back(live, lines):
    places = [replace(SPIKE, layers=(layer,)) for layer in "aba"]
    for place in places:
        live.told(place)
    assert [text.split(": ")[1].split(".")[0] for _, text in lines()] == [place.summary for place in places[:2]]


def test_what_has_become_a_note_is_taken_back(live, lines):
    live.told(SPIKE)
    live.told(replace(SPIKE, severity="note"))
    live.told(replace(EXPLODING, severity="note", consequences=(replace(SPIKE, severity="note"),)))
    assert ["takes back" in text for _, text in lines()].count(True) == 1


def test_what_comes_back_is_said_again_and_taken_back_no_more(live, lines):
    for found in ((SPIKE,), (), (SPIKE,), (), (SPIKE,), ()):
        live.told(*found)
    assert [text.split()[1] for _, text in lines()] == ["found", "takes", "found"]


def test_what_follows_from_another_is_not_taken_back(live, lines):
    live.told(replace(SPIKE, optimizer="G"))
    live.told(replace(EXPLODING, optimizer="G", consequences=(SPIKE,)))  # what follows is of the same optimizer
    assert [text.split()[1] for _, text in lines()] == ["found", "found"]


def test_what_the_training_saw_itself_is_not_taken_back_before_the_other_process_sees_it(live, lines):
    live.check(as_block(make_history(nan_at=5)))
    live.told()
    assert [text.split()[1] for _, text in lines()] == ["found"]


def test_what_halts_is_said_by_the_exception_alone(tmp_path, lines):
    heard = []
    model, optimizer, watching = setting(tmp_path, halt_on="error", on_finding=heard.append)
    with pytest.raises(TrainingHalted, match="nonfinite at step 5"):
        train(model, optimizer, 2 * ROWS, poison(5))
    watching.close()
    assert lines() == []
    assert [finding.rule for finding in heard] == ["nonfinite"]


# ------------------------------------------------------------------------------------------------------- the last word


def last_line(capfd):
    return capfd.readouterr().err.splitlines()[-1]


def show(folder):
    return f"gradwatch show {folder}"


def test_a_run_that_no_process_has_judged_ends_with_its_verdict(tmp_path, capfd, lines):
    heard = []
    model, optimizer, watching = setting(tmp_path, verbose=True, on_finding=heard.append)
    train(model, optimizer, 40)
    watching.close()
    assert last_line(capfd) == f"gradwatch: verdict: {verdict(open_history(watching.dir))}; more: {show(watching.dir)}"
    assert heard == diagnose(open_history(watching.dir))
    watching.close()
    assert capfd.readouterr().err == ""


def test_the_verdict_of_a_run_too_long_to_be_judged_at_once_is_the_other_process(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(callbacks, "CLOSE_VALUES", 100)
    for findings, said in ((), "not judged yet: "), ((EXPLODING,), f"verdict so far: {EXPLODING.summary}; more: "):
        model, optimizer, watching = setting(tmp_path, verbose=True)
        train(model, optimizer, 40)
        if findings:
            tell(watching.dir, *findings)
        watching.close()
        assert last_line(capfd) == f"gradwatch: {said}{show(watching.dir)}"


def test_a_verdict_that_cannot_be_had_is_no_error(tmp_path, capfd, monkeypatch, lines):
    def broken(history):
        raise ZeroDivisionError("a rule that cannot count")

    monkeypatch.setattr(callbacks, "diagnose", broken)
    model, optimizer, watching = setting(tmp_path, verbose=True)
    train(model, optimizer, 40)
    watching.close()
    assert last_line(capfd) == f"gradwatch: not judged yet: {show(watching.dir)}"
    assert lines() == []


def test_who_asked_for_quiet_and_who_saw_no_step_hears_no_verdict(tmp_path, capfd):
    model, optimizer, watching = setting(tmp_path)
    train(model, optimizer, 40)
    watching.close()
    assert "verdict" not in capfd.readouterr().err
    *_, watching = setting(tmp_path, verbose=True)
    watching.close()
    assert "verdict" not in capfd.readouterr().err


def test_the_last_part_of_a_run_to_end_says_the_verdict_of_all(tmp_path, capfd):
    watches, first = [], None
    for name in "DG":
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        first = made = watch(model, optimizer, tmp_path, name=name, run=first, verbose=True)
        train(model, optimizer, 40, poison(3) if name == "D" else None)
        watches.append(made)
    watches[0].close()
    assert "verdict" not in capfd.readouterr().err
    watches[1].close()
    said = verdict(open_history(first.dir.parent))
    assert said.startswith("nonfinite at step 3 in D.")
    assert last_line(capfd) == f"gradwatch: verdict: {said}; more: {show(first.dir.parent)}"


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
    watching._recorder.drained -= 600  # time passes
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
    assert [f.severity for f in heard] == ["warning"]
    watching.close()


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
        again._recorder.drained -= 600
        train(model, optimizer, 1)
    assert heard == []
    tell(again.dir, replace(EXPLODING, last_step=20))
    again._recorder.drained -= 600
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
    live.check(as_block(make_history(nan_at=5)))  # not attached: a rank that writes nothing
    live.look(10)
    live.speak()
    assert not live._news
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("ends", [True, False])
def test_a_disk_that_does_not_answer_holds_no_step_up(ends, tmp_path, monkeypatch):
    """A hard mount whose server is gone: whoever asks it never comes back."""
    model, optimizer, watching = setting(tmp_path, on_finding=(heard := []).append)
    asked, go_on = threading.Event(), threading.Event()
    stat = type(watching.dir).stat

    def hangs(path, **options):
        if path.name == FINDINGS and not go_on.is_set():
            asked.set()
            go_on.wait(60)
        return stat(path, **options)

    monkeypatch.setattr(callbacks, "READ_SECONDS", 0.05)
    monkeypatch.setattr(type(watching.dir), "stat", hangs)
    tell(watching.dir, EXPLODING)
    train(model, optimizer, 4 * ROWS)
    assert asked.is_set()
    assert heard == []
    if ends:  # it was slow, and no more
        go_on.set()
        watching._live._reader.join()
        train(model, optimizer, 2 * ROWS)
        assert [finding.rule for finding in heard] == ["exploding"]
    watching.close()
    go_on.set()

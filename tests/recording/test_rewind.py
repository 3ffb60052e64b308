"""`Rewind`: after a bad batch a training is, to the bit, the one that never saw it."""

import logging
import math
import os
import random
import signal
import subprocess
import sys
import weakref
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from devices import DEVICES
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.optim import lr_scheduler as lrs
from torch.utils.data import DataLoader, Dataset
from training import state_tensors, watch

import gradwatch
from gradwatch import Rewind, RunError, SkipSpike, TrainingHalted, WatchError, open_history
from gradwatch.analysis.rules import Finding
from gradwatch.cli import main
from gradwatch.recording import open_watches
from gradwatch.recording.loss_targets import LossTargets
from gradwatch.recording.snapshot import Training as Snapshots
from gradwatch.recording.snapshot import load
from gradwatch.recording.trouble import TroubleFinder, stands_out
from gradwatch.report.build import build_report
from gradwatch.report.wording import facts
from gradwatch.table import REWINDS
from gradwatch.tracking.metric_keys import windows

BAD = 87


@pytest.fixture(autouse=True)
def _closed():
    yield
    for each in [*open_watches.watches]:
        each.close()


class Data(Dataset):
    """So many batches of 16; what is at the places in `bad` is multiplied."""

    def __init__(self, batches=120, bad=(), factor=math.inf, sample=None):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(16 * batches, 6, generator=generator)
        self.y = torch.randint(3, (16 * batches,), generator=generator)
        self.bad, self.factor = {16 * place + i for place in bad for i in range(16)} | {sample}, factor

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        factor = self.factor if i in self.bad else 1.0
        is_finite = math.isfinite(factor)  # batch norm would take a finite one out of the input
        return {"x": self.x[i] * (1 if is_finite else factor), "y": self.y[i], "scale": factor if is_finite else 1.0}


class Training:
    """A loop with all that a snapshot holds: dropout and batch norm, AdamW, a schedule, a stateful policy, warm-up."""

    def __init__(
        self, tmp_path, data=None, *, fused=False, workers=0, shuffle=False, accumulate=1, device="cpu", **options
    ):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 3))
        self.model.to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, fused=fused)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.05, total_steps=1000)
        self.loader = DataLoader(data or Data(bad=[BAD]), 16, shuffle=shuffle, num_workers=workers)
        self.accumulate = accumulate
        clip = "chain(AutoClip(50, 20), ClipByValue(1.0))"
        self.watch = watch(self.model, self.optimizer, tmp_path, clip=clip, warmup=300, delivery="none", **options)

    def rewind(self, **settings):
        settings = {"every": 20, **settings}
        return Rewind(self.model, self.optimizer, self.scheduler, **settings)

    def run(self, batches, stop=None):
        """The loop; ends before the batch at place `stop`."""
        for i, given in enumerate(batches):
            if i == stop:
                break
            noise = random.random() + np.random.rand()  # a loop that draws from all of them
            batch = {name: value.to(self.model[0].weight.device) for name, value in given.items()}
            x, y = batch.pop("x"), batch.pop("y")
            loss = nn.functional.cross_entropy(self.model(x + 1e-3 * noise), y) * batch["scale"].mean()
            loss.backward()
            if i % self.accumulate == self.accumulate - 1:
                self.optimizer.step()
                self.scheduler.step()
                self.watch.log(loss=loss)
                self.optimizer.zero_grad()
        return self

    def end(self):
        self.watch.close()
        return open_history(self.watch.dir)

    def state(self):
        """Everything that must be equal."""
        own = self.watch.state_dict()["policy_state"]
        numbers = torch.get_rng_state(), torch.from_numpy(np.random.get_state()[1].astype(np.int64))
        plain = self.scheduler.state_dict(), random.getstate(), [g["lr"] for g in self.optimizer.param_groups]
        return {**self.model.state_dict(), **state_tensors(self.optimizer), **own, **dict(enumerate(numbers))}, plain


def same(a, b):
    assert a[0].keys() == b[0].keys()
    assert [k for k in a[0] if not torch.equal(a[0][k], b[0][k])] == []
    assert a[1] == b[1]


def without(loader, *places):
    return (batch for i, batch in enumerate(loader) if i not in places)


def never_saw(tmp_path, *places, stop=None, **options):
    oracle = Training(tmp_path / "oracle", **options)
    return oracle.run(without(oracle.loader, *places), stop).state()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("factor", [math.inf, math.nan, 1e6])
@pytest.mark.parametrize("fused", [False, True])
def test_the_rest_is_that_of_a_run_that_never_saw_the_batch(factor, fused, device, tmp_path, caplog):
    options = {"data": Data(bad=[BAD], factor=factor), "fused": fused, "device": device}
    training = Training(tmp_path, **options)
    rewind = training.rewind()
    training.run(rewind(training.loader))
    same(training.state(), never_saw(tmp_path, BAD, **options))
    assert rewind.count == 1
    history = training.end()
    if device == "cuda":  # where it is seen some steps later
        return
    at = np.flatnonzero(np.isfinite(history.total("rewound_to")))
    assert [history.step[at].tolist(), history.total("rewound_to")[at], history.total("rewound_for")[at]] == [
        [BAD], [80.0], [BAD],
    ]  # fmt: skip
    assert "Back to the state before step 80" in caplog.text
    assert len(history) == 120 - 1 + (BAD + 1 - 80)


class Counting(torch.optim.SGD):
    """Counts its steps in its own state, as `state_dict()` saves it, and goes by that."""

    def step(self, closure=None):
        self.state["steps"] = self.state["steps"] + 1 if "steps" in self.state else 1
        self.param_groups[0]["lr"] = 0.1 / self.state["steps"]
        return super().step(closure)


def test_what_an_optimizer_keeps_of_no_parameter_goes_back_too(tmp_path):
    ends = []
    for bad in ([20], []):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = Counting(model.parameters(), 0.1)
        draw = torch.Generator().manual_seed(1)
        data = [torch.randn(8, 4, generator=draw) * (math.inf if i == 20 else 1.0) for i in range(40)]
        given = data if bad else [x for i, x in enumerate(data) if i != 20]
        watching = watch(model, optimizer, tmp_path / str(len(bad)), delivery="none")
        for x in Rewind(model, optimizer, every=10)(given):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            watching.log(loss=loss)
        ends.append((model.weight.detach().clone(), optimizer.state["steps"]))
    assert ends[0][1] == ends[1][1] == 39
    assert torch.equal(ends[0][0], ends[1][0])


def test_without_trouble_nothing_is_changed(tmp_path):
    data = Data()
    training = Training(tmp_path, data)
    training.run(training.rewind()(training.loader))
    same(training.state(), never_saw(tmp_path, data=data))
    assert not training.end().logged.count("rewound_to")


def bad_places(training):
    return [i for i, batch in enumerate(training.loader) if not batch["x"].isfinite().all()]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shuffled_loader_goes_on_in_its_order(workers, tmp_path):
    options = {"data": Data(sample=300), "shuffle": True, "workers": workers}
    bad = bad_places(Training(tmp_path, **options))
    training = Training(tmp_path, **options)
    training.run(training.rewind()(training.loader))
    same(training.state(), never_saw(tmp_path, *bad, **options))


@pytest.mark.parametrize("accumulate", [1, 4])
def test_of_accumulated_steps_all_batches_are_left_out(accumulate, tmp_path):
    data = Data(bad=[BAD])
    training = Training(tmp_path, data, accumulate=accumulate)
    training.run(training.rewind(every=5)(training.loader))
    first = BAD - BAD % accumulate
    same(training.state(), never_saw(tmp_path, *range(first, first + accumulate), data=data, accumulate=accumulate))
    training.end()


@pytest.mark.parametrize(("skip", "left_out"), [(3, range(85, 88)), (30, range(80, 110))])
def test_more_batches_are_left_out_with_it(skip, left_out, tmp_path):
    """Those before it; where the snapshot is nearer than that, those behind it."""
    training = Training(tmp_path)
    training.run(training.rewind(skip=skip)(training.loader))
    same(training.state(), never_saw(tmp_path, *left_out))
    assert training.end().total("left_out")[BAD] == skip


def test_several_bad_batches_at_most_so_many_rewinds(tmp_path):
    data = Data(bad=[70, 85, 100])
    training = Training(tmp_path, data)
    rewind = training.rewind()
    training.run(rewind(training.loader))
    assert rewind.count == 3
    same(training.state(), never_saw(tmp_path, 70, 85, 100, data=data))
    training.end()
    training = Training(tmp_path / "again", data)
    with pytest.raises(TrainingHalted, match=r"it went back 2 times.*Look at the batches"):
        training.run(training.rewind(at_most=2)(training.loader))
    assert training.end().run.status == "FAILED"


def test_a_second_pass_begins_with_a_snapshot_of_its_own(tmp_path):
    data, states = Data(batches=90, bad=[0]), []
    for rewinds in (True, False):
        training = Training(tmp_path / f"{rewinds}", data)
        rewind = training.rewind(every=1000)
        for _ in range(2):
            training.run(rewind(training.loader) if rewinds else without(training.loader, 0))
        states.append(training.state())
        assert (rewind.count, rewind.epoch) == ((2, 2) if rewinds else (0, 0))
    same(*states)


def test_where_norms_are_read_now_and_then_it_is_the_same(tmp_path, monkeypatch):
    """As on a GPU; the last batch of a pass is seen at its end."""
    monkeypatch.setattr(Rewind, "_reads_each_step", False)
    for bad in (BAD, 119):
        data = Data(bad=[bad])
        training = Training(tmp_path / f"{bad}", data)
        training.run(training.rewind(every=5, keep=5)(training.loader))
        same(training.state(), never_saw(tmp_path / f"{bad}", bad, data=data))
        history = training.end()
        assert np.nansum(history.total("rewound_for")) == bad
        assert np.nansum(history.total("rewound_to")) == bad - bad % 5


def test_no_snapshot_is_of_a_broken_training(tmp_path, monkeypatch):
    """Where norms are read now and then they are read before each one, so that a single one is enough."""
    monkeypatch.setattr(Rewind, "_reads_each_step", False)
    data = Data(bad=[BAD])
    training = Training(tmp_path, data)
    training.run(training.rewind(every=9, keep=1)(training.loader))
    same(training.state(), never_saw(tmp_path, BAD, data=data))
    assert np.nansum(training.end().total("rewound_to")) == 81


def test_a_step_that_was_left_out_is_no_reason(tmp_path):
    training = Training(tmp_path)
    training.watch.close()
    training.watch = watch(training.model, training.optimizer, tmp_path, clip="SkipNonfinite()")
    rewind = training.rewind()

    for batch in rewind(training.loader):
        training.optimizer.zero_grad()
        nn.functional.cross_entropy(training.model[0](batch["x"]), batch["y"]).backward()
        training.optimizer.step()
    assert rewind.count == 0
    training.end()


def test_a_vanishing_or_slow_run_is_never_taken_back(tmp_path):
    torch.manual_seed(0)
    layers = [m for _ in range(12) for m in (nn.Linear(6, 6), nn.Sigmoid())]
    model = nn.Sequential(*layers, nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    with watch(model, optimizer, tmp_path, halt_on="warning") as handle:
        rewind = Rewind(model, optimizer, every=10)
        for batch in rewind(DataLoader(Data(300), 16)):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"])
            loss.backward()
            optimizer.step()
            handle.log(loss=loss)
    assert rewind.count == 0


def test_halt_on_is_what_happens_when_it_goes_back_no_more(tmp_path):
    """One switch: what would halt takes the training back, as long as it may."""
    for at_most in (0, 3):
        training = Training(tmp_path / f"{at_most}", halt_on="error", flush_every=0.01)
        batches = training.rewind(at_most=at_most)(training.loader)
        if at_most:
            training.run(batches)
            same(training.state(), never_saw(tmp_path / f"{at_most}", BAD))
        else:
            with pytest.raises(TrainingHalted):
                training.run(batches)
        training.end()


def test_a_finding_may_ask_for_it(tmp_path):
    """One that another process found: here it is handed over after step 50."""
    data = Data()
    training = Training(tmp_path, data, halt_on="error")
    rewind = training.rewind()

    def handed():
        for i, batch in enumerate(rewind(training.loader)):
            if i == 50:
                training.watch._live._hear([Finding("exploding", "error", (), 45, 49)])
            yield batch

    training.run(handed())
    assert rewind.count == 1
    same(training.state(), never_saw(tmp_path, 45, data=data))
    training.end()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_only_looked_at_never_takes_a_training_back(value, tmp_path, monkeypatch):
    monkeypatch.setattr(LossTargets, "take", lambda *_: {"in_loss/explained": torch.tensor(value)})
    training = Training(tmp_path, Data())
    rewind = training.rewind()
    training.run(rewind(training.loader))
    assert rewind.count == 0
    assert "in_loss/explained" in training.end().per_step


def test_a_finding_that_no_rewind_helps_with_halts(tmp_path):
    training = Training(tmp_path, Data(), halt_on="error")
    rewind = training.rewind()

    def handed():
        for i, batch in enumerate(rewind(training.loader)):
            if i == 50:
                training.watch._live._hear([Finding("vanishing", "error", (), 45, 49)])
            yield batch

    with pytest.raises(TrainingHalted, match="vanishing"):
        training.run(handed())
    assert rewind.count == 0


def test_stands_out_as_skip_spike_says(tmp_path):
    """The same values through the policy's own formula."""
    rng = np.random.default_rng(0)
    values = rng.lognormal(0, 0.7, 600)
    values[::37] *= 30
    finder, policy = TroubleFinder(), SkipSpike()
    state = {"norms": torch.full((128,), math.inf, dtype=torch.float64), "seen": torch.zeros((), dtype=torch.int64)}
    window: deque[float] = deque(maxlen=128)
    for value in values.tolist():
        total = torch.tensor(value, dtype=torch.float64)
        decision = policy.decide(SimpleNamespace(total=lambda total=total: total), state)
        assert bool(decision.skip) == stands_out(value, window)
        if not decision.skip:
            state = decision.state
            window.append(value)
    assert finder.state_dict() == {}


def test_a_batch_that_the_loop_changed_in_place_is_told_of(tmp_path):
    training = Training(tmp_path)

    def changing():
        for batch in training.rewind()(training.loader):
            batch["x"].add_(0.0)
            yield batch

    with pytest.warns(gradwatch.GradwatchWarning, match="changed in place by the loop"):
        training.run(changing())
    training.end()


def test_what_is_kept_is_bounded(tmp_path):
    training = Training(tmp_path, Data())
    rewind = training.rewind(every=10, keep=2)
    training.run(rewind(training.loader), stop=100)
    assert [s.step for s in rewind._snapshots] == [90, 100]
    assert "2 in the host's memory" in training.watch.plan()
    training.end()


def test_of_a_watch_that_is_closed_no_batch_is_kept(tmp_path):
    model, optimizer, step = plain()
    watching = watch(model, optimizer, tmp_path)
    alive = []

    def batches():
        for each in DataLoader(Data(60), 16):
            alive.append(weakref.ref(each["x"]))
            yield each

    for i, batch in enumerate(Rewind(model, optimizer)(batches())):
        if i == 10:
            watching.close()
        step(batch)
        if i == 59:
            assert [ref() for ref in alive[11:50]] == [None] * 39
    assert i == 59


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"every": 0}, "every=0"), ({"keep": 1.5}, "keep=1.5"), ({"at_most": -1}, "at_most=-1"),
        ({"skip": 0}, "skip=0"), ({"disk_every": True}, "disk_every=True"), ({"scheduler": 3}, "scheduler=3"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings, said, tmp_path):
    training = Training(tmp_path)
    with pytest.raises(WatchError, match=said):
        Rewind(training.model, training.optimizer, **settings)
    training.watch.close()
    with pytest.raises(WatchError, match="not watched"):
        training.rewind()


def test_a_rewind_is_in_the_report_in_show_and_in_mlflow(tmp_path):
    training = Training(tmp_path)
    training.run(training.rewind()(training.loader))
    history = training.end()
    (run,) = build_report([history]).runs
    said = f"after step {BAD} back to the state before step 80, because of step {BAD}, 1 batch left out"
    assert dict(facts(run))["rewinds"] == said
    shown = CliRunner().invoke(main, ["show", str(training.watch.dir)])
    assert said in shown.output
    points = [p for window in windows(history, 50, 16, ended=True) for p in window.points]
    told = {p.key: (p.step, p.value) for p in points if p.key in REWINDS}
    assert told == {"rewound_to": (BAD, 80.0), "rewound_for": (BAD, BAD), "left_out": (BAD, 1.0)}
    assert not set(history.logged) & set(REWINDS)


# -------------------------------------------------------------------------------------------------------------- on disk


class KilledError(Exception):
    """Stands for a signal."""


@pytest.mark.parametrize("where", ["before", "within", "after"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_killed_in_the_middle_of_a_rewind_it_resumes(where, shuffle, tmp_path, monkeypatch):
    options = {"data": Data(sample=16 * BAD), "shuffle": shuffle}
    bad = bad_places(Training(tmp_path, **options))
    training = Training(tmp_path, **options)
    put_back = Snapshots._put_back

    def killed(self, *arguments):
        if where == "after":
            put_back(self, *arguments)
        raise KilledError

    batches = training.rewind(disk_every=1)(training.loader)
    with monkeypatch.context() as patch:
        patch.setattr(Snapshots, "put_back" if where == "before" else "_put_back", killed)
        with pytest.raises(KilledError):
            training.run(batches)
    training.watch.close("KILLED")
    folder = training.watch.dir
    training = Training(tmp_path, **options)
    torch.manual_seed(99)  # what it draws from now on is the snapshot's, and the order that of the pass
    rewind = training.rewind(disk_every=1)
    assert rewind.resume(folder)
    training.run(rewind(training.loader))
    assert rewind.count == 1
    assert training.watch.dir == folder
    same(training.state(), never_saw(tmp_path, *bad, **options))
    history = training.end()
    assert history.step.tolist() == [*range(len(history))]
    assert len([*(folder / "snapshots").iterdir()]) == 2


def test_a_snapshot_of_before_the_sizes_of_groups_were_written_resumes(tmp_path):
    training = Training(tmp_path)
    training.run(training.rewind(disk_every=1)(training.loader))
    training.end()
    folder = training.watch.dir
    for path in (folder / "snapshots").iterdir():
        data = torch.load(path, weights_only=True)
        for optimizer in data["state"]["optimizers"]:
            del optimizer["sizes"]
        torch.save(data, path)
    again = Training(tmp_path)
    rewind = again.rewind(disk_every=1)
    assert rewind.resume(folder)
    again.run(rewind(again.loader))
    same(again.state(), training.state())
    again.end()


DYING = """
import os, signal, sys
from pathlib import Path
from test_rewind import BAD, Data, Snapshots, Training
Snapshots._put_back = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # the weights are back, the optimizer is not
training = Training(Path(sys.argv[1]), Data(bad=[BAD]))
training.run(training.rewind(disk_every=1)(training.loader))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_after_sigkill_in_the_middle_of_a_rewind_the_loss_is_that_of_a_run_that_never_met_the_batch(tmp_path):
    here = Path(__file__).parent
    places = [here.parents[1], here.parent / "support", here]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", DYING, str(tmp_path)], env=env, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    (folder,) = tmp_path.iterdir()
    training = Training(tmp_path, Data(bad=[BAD]))
    rewind = training.rewind(disk_every=1)
    assert rewind.resume(folder)
    training.run(rewind(training.loader))
    oracle = Training(tmp_path / "oracle")
    oracle.run(without(oracle.loader, BAD))
    same(training.state(), oracle.state())
    assert rewind.count == 1
    assert training.end().total("loss")[-1] == oracle.end().total("loss")[-1]


def test_a_scaler_goes_back_too(tmp_path):
    def train(bad, rewinds):
        torch.manual_seed(0)
        model = nn.Linear(6, 3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=7)
        own = watch(model, optimizer, tmp_path / str(rewinds), delivery="none")
        rewind = Rewind(model, optimizer, scaler=scaler, every=20)
        batches = DataLoader(Data(bad=bad, factor=1e6), 16)
        for batch in rewind(batches) if rewinds else without(batches, BAD):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"]) * batch["scale"].mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            own.log(loss=loss)
        own.close()
        return [*model.parameters(), *state_tensors(optimizer).values()], scaler.state_dict(), rewind.count

    found, scale, count = train([BAD], rewinds=True)
    expected, expected_scale, _ = train([BAD], rewinds=False)
    assert count == 1
    assert scale == expected_scale
    assert scale["scale"] == 2.0 ** (1 + 119 // 7), "it grew, before the batch and after it"
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_without_a_snapshot_on_disk_there_is_nothing_to_resume(tmp_path):
    training = Training(tmp_path)
    assert training.rewind().resume(tmp_path) is False


def test_a_disk_that_refuses_costs_the_training_nothing(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("gradwatch.recording.snapshot.torch.save", _refused)
    training = Training(tmp_path)
    with caplog.at_level(logging.WARNING):
        training.run(training.rewind(disk_every=1)(training.loader))
    same(training.state(), never_saw(tmp_path, BAD))
    assert caplog.text.count("cannot write a snapshot") == 1
    training.end()


def _refused(*_):
    raise OSError("no space left on device")


def plain(optimizer=torch.optim.AdamW, made=lambda model: model):
    """A small model, its optimizer, and a step of theirs on a batch."""
    torch.manual_seed(0)
    model = made(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
    optimizer = optimizer(model.parameters(), lr=0.01)

    def step(batch, before_step=lambda: None):
        optimizer.zero_grad()
        (nn.functional.cross_entropy(model(batch["x"]), batch["y"]) * batch["scale"].mean()).backward()
        before_step()
        optimizer.step()

    return model, optimizer, step


@pytest.mark.parametrize("other", [False, True], ids=["the same one", "another"])
def test_a_pass_inside_of_a_pass_is_refused(other, tmp_path):
    model, optimizer, step = plain()
    watch(model, optimizer, tmp_path)
    rewind = Rewind(model, optimizer)
    inner = Rewind(model, optimizer) if other else rewind
    outer = rewind(DataLoader(Data(3), 16))
    step(next(outer))
    for batch in inner(DataLoader(Data(3), 16)):
        step(batch)
    with pytest.raises(WatchError, match="another pass through rewind"):
        next(outer)


def test_a_loop_that_is_left_is_a_pass_and_may_begin_anew(tmp_path):
    model, optimizer, step = plain()
    watch(model, optimizer, tmp_path)
    rewind = Rewind(model, optimizer)
    kept = rewind(DataLoader(Data(9), 16))  # as by a notebook's traceback
    step(next(kept))
    for epoch in range(2):
        assert rewind.epoch == epoch
        for i, batch in enumerate(rewind(DataLoader(Data(9, bad=[2]), 16))):
            step(batch)
            if i == 5:
                break
        assert rewind.count == epoch + 1
    kept.close()
    assert rewind.epoch == 2


def test_what_the_watch_was_not_given_is_refused(tmp_path):
    (g, opt_g, _), (d, opt_d, _) = plain(), plain(torch.optim.SGD)
    first = watch(g, opt_g, tmp_path, name="G")
    watch(d, opt_d, tmp_path, name="D", run=first)
    with pytest.raises(WatchError, match=r"Rewind\(optimizer=\[AdamW, SGD\]\): wanted all optimizers of one Watch"):
        Rewind(nn.ModuleList([g, d]), [opt_g, opt_d])
    with pytest.raises(WatchError, match=r"Rewind\(model=Sequential\): wanted the model"):
        Rewind(d, opt_g)
    both = [torch.optim.SGD(g[0].parameters()), torch.optim.AdamW(g[2].parameters())]
    watch(g, both, tmp_path)
    with pytest.raises(WatchError, match=r"\[SGD\]\): wanted all optimizers of one Watch, here \[SGD, AdamW\]"):
        Rewind(g, both[0])


@pytest.mark.parametrize("factor", [math.inf, 1e6])
@pytest.mark.parametrize("bad", [80, 95])
def test_layers_that_come_on_the_way_have_a_snapshot_of_their_own(bad, factor, tmp_path, caplog):
    """They come with batch 80: what was before them fits no more."""
    model, optimizer, step = plain()
    watch(model, optimizer, tmp_path)
    rewind = Rewind(model, optimizer, every=50)

    def run():
        for i, batch in enumerate(rewind(DataLoader(Data(bad=[bad], factor=factor), 16))):
            if i == 80:
                model.append(nn.Linear(3, 3))
                optimizer.add_param_group({"params": model[3].parameters()})
            step(batch)

    if bad == 80 and factor == math.inf:
        with pytest.raises(TrainingHalted, match="no older snapshot fits"):
            run()
    else:
        run()
        assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert rewind.count == (bad == 95)
    assert ("Back to the state before step 81" in caplog.text) == (bad == 95)


SCHEDULES = {
    "sequential": lambda o: lrs.SequentialLR(o, [lrs.LinearLR(o, 0.1), lrs.MultiStepLR(o, [2, 4])], [6]),
    "chained": lambda o: lrs.ChainedScheduler([lrs.ExponentialLR(o, 0.9), lrs.StepLR(o, 3)]),
    "one cycle": lambda o: lrs.OneCycleLR(o, 0.1, 40),
    "cyclic": lambda o: lrs.CyclicLR(o, 0.01, 0.1, 5, cycle_momentum=False),
    "restarts": lambda o: lrs.CosineAnnealingWarmRestarts(o, 5, 2),
    "average": lambda o: torch.optim.swa_utils.SWALR(o, 0.05, anneal_epochs=5),
    "lambda": lambda o: lrs.LambdaLR(o, lambda step: 1 / (1 + step)),
    "numpy": lambda o: lrs.PolynomialLR(o, 30, np.float64(2.0)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_goes_on_as_it_would_have_also_from_disk(name, tmp_path):
    def rates(scheduler):
        out = []
        for _ in range(12):
            optimizer.step()
            scheduler.step()
            out.append(optimizer.param_groups[0]["lr"])
        return out

    _, optimizer, _ = plain(torch.optim.SGD)
    model = nn.Linear(1, 1)
    scheduler = SCHEDULES[name](optimizer)
    training = Snapshots(model, [optimizer], [scheduler], None, "cpu")
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    taken = training.take(3, 3, {})
    wanted = rates(scheduler)
    training.put_back(taken)
    assert rates(scheduler) == wanted
    taken.save(tmp_path / "one.pt", {})
    training.put_back(load(tmp_path / "one.pt")[0])
    assert rates(scheduler) == wanted


def test_a_snapshot_that_could_not_be_read_again_is_told_of_when_it_is_written(tmp_path, caplog):
    training = Training(tmp_path)
    counter = SimpleNamespace(state_dict=lambda: {"seen": deque([1])}, load_state_dict=lambda _: None)
    rewind = Rewind(training.model, training.optimizer, [training.scheduler, counter], every=20, disk_every=1)
    with caplog.at_level(logging.WARNING):
        training.run(rewind(training.loader))
    assert rewind.count == 1, "in memory it is as good"
    (said,) = (r.message for r in caplog.records if "cannot write a snapshot" in r.message)
    assert "it would hold a collections.deque" in said
    assert "\n" not in said
    assert not [*(training.watch.dir / "snapshots").iterdir()]
    training.end()


def test_a_counter_of_the_loop_goes_back_where_it_has_a_state(tmp_path):
    class Counter:
        steps = 0

        def state_dict(self):
            return {"steps": self.steps}

        def load_state_dict(self, state):
            self.steps = state["steps"]

    training, counter = Training(tmp_path), Counter()
    rewind = Rewind(training.model, training.optimizer, [training.scheduler, counter], every=20)
    for batch in rewind(training.loader):
        training.run([batch])
        counter.steps += 1
    assert [rewind.count, counter.steps] == [1, 119]
    training.end()


def test_what_an_optimizer_holds_is_made_anew_where_its_weights_are():
    p = nn.Parameter(torch.empty(4, 3, device="meta"))
    optimizer = torch.optim.AdamW([p])
    training = Snapshots(nn.Linear(1, 1), [optimizer], [], None, "cpu")
    state = {"step": torch.tensor(3.0), "row_var": torch.ones(4), "exp_avg": torch.ones(4, 3), "old": [torch.ones(2)]}
    training._put_back(optimizer, {"state": [state], "groups": [{}]})
    live = optimizer.state[p]
    assert live["step"].device.type == "cpu", "torch counts on the host"
    assert {live[key].device.type for key in ("row_var", "exp_avg")} == {"meta"}
    assert live["old"][0].device.type == "meta"


def test_batches_left_over_at_the_end_of_a_pass_bring_none_of_the_broken_gradients_along(tmp_path, monkeypatch):
    """Where norms are read now and then, the last steps of a pass are looked at when its last batches were given."""
    monkeypatch.setattr(Rewind, "_reads_each_step", False)
    training = Training(tmp_path, Data(90, bad=[87]), accumulate=4)  # steps on 88, two are left
    rewind = training.rewind()
    training.run(rewind(training.loader))
    assert rewind.count == 1, "NaN in the gradients of the two would make it two"
    assert all(bool(p.isfinite().all()) for p in training.model.parameters())
    training.end()


def test_a_loader_that_is_shorter_than_then_is_refused(tmp_path):
    training = Training(tmp_path)
    training.run(training.rewind(disk_every=1)(training.loader))
    training.end()
    again = Training(tmp_path, Data(30))
    rewind = again.rewind(disk_every=1)
    assert rewind.resume(training.watch.dir)
    with pytest.raises(WatchError, match="of this pass were taken before, and the loader ended after 30"):
        next(rewind(again.loader))
    again.end()


def test_snapshots_of_more_ranks_are_refused(tmp_path):
    folder = tmp_path / "snapshots"
    folder.mkdir()
    for rank in range(2):
        (folder / f"000001-rank-{rank}-of-2.pt").touch()
    training = Training(tmp_path / "own")
    with pytest.raises(RunError, match="is of 2 ranks, and these are 1"):
        training.rewind().resume(tmp_path)


def test_a_pass_after_a_validation_under_fsdp2_is_as_without(tmp_path):
    """After a forward pass without a backward one FSDP2 shows copies of its root's weights: not those are layers."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model, optimizer, step = plain(made=fully_shard)
        names = [name for name, _ in model.named_parameters()]
        x = torch.ones(2, 6)
        with torch.no_grad():
            model(x)
        own = watch(model, optimizer, tmp_path)
        assert list(own._stepper.layout.names) == names
        rewind = Rewind(model, optimizer, every=20)
        for batch in rewind(DataLoader(Data(bad=[BAD]), 16)):
            step(batch, before_step=lambda: model(x))
            with torch.no_grad():
                model(x)
        assert rewind.count == 1
    finally:
        dist.destroy_process_group()

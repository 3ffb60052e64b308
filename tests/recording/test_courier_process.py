"""The training's side of a delivery: it waits for MLflow only at the end, for so long, and keeps a courier alive."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from faulty_proxy import hang, ok
from mlflow_server import all_there, wanted

import gradwatch
from gradwatch.recording import courier_process
from gradwatch.recording.courier_process import CourierProcess
from gradwatch.storage.folder import read_manifest

mlflow = pytest.importorskip("mlflow")


def sleeper(_=None):
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


@pytest.fixture
def sent():
    made = []

    def start(*_):
        made.append(sleeper())
        return made[-1]

    start.made = made
    yield start
    for process in made:
        process.kill()
        process.wait()


def test_a_courier_that_was_killed_is_replaced_but_not_again_and_again(tmp_path, sent, monkeypatch):
    courier = CourierProcess(True, launch=sent)
    courier.start(tmp_path)
    courier.start(tmp_path)
    courier.restart_if_killed(tmp_path)
    assert len(sent.made) == 1
    sent.made[0].kill()
    sent.made[0].wait()
    courier.restart_if_killed(tmp_path)
    assert len(sent.made) == 1  # it was sent a moment ago
    monkeypatch.setattr(courier_process, "RESTART_SECONDS", 0.0)
    courier.restart_if_killed(tmp_path)
    courier.restart_if_killed(tmp_path)
    assert len(sent.made) == 2
    assert courier.process is sent.made[1]
    monkeypatch.setattr(courier_process, "RESTART_SECONDS", 600.0)
    sent.made[1].kill()
    sent.made[1].wait()
    courier.restart_if_killed(tmp_path, at_once=True)  # the run ends: somebody must deliver it
    assert len(sent.made) == 3


def test_a_courier_that_ended_by_itself_is_not_replaced(tmp_path):
    ended = []

    def start(*_):
        ended.append(subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"]))
        ended[-1].wait()
        return ended[-1]

    courier = CourierProcess(True, launch=start)
    courier.start(tmp_path)
    courier.restart_if_killed(tmp_path, at_once=True)
    assert len(ended) == 1
    assert "gradwatch sync" in courier.wait(tmp_path, range(5), 1.0)[1]
    assert "goes on" not in courier.wait(tmp_path, range(5), 1.0)[1]


def test_who_wants_no_courier_gets_none_and_waits_for_none(tmp_path, sent):
    courier = CourierProcess(False, launch=sent)
    courier.start(tmp_path)
    courier.restart_if_killed(tmp_path, at_once=True)
    started = time.monotonic()
    assert courier.wait(tmp_path, range(5), 60.0) == ({}, "")
    assert time.monotonic() - started < 30
    assert not sent.made


@pytest.fixture
def looks(monkeypatch):
    """How often somebody who waits has looked; nobody sleeps."""
    seen = []
    monkeypatch.setattr(courier_process.time, "sleep", seen.append)
    return seen


def test_a_courier_that_is_still_importing_mlflow_is_not_waited_for(tmp_path, sent, looks):
    courier = CourierProcess(True, launch=sent)
    courier.start(tmp_path)
    cursor, missing = courier.wait(tmp_path, range(5), to="sqlite:///m.db, experiment mnist")
    assert not looks
    assert not cursor["done"]
    assert missing == (
        "5 of 5 steps are not in MLflow yet; the courier goes on by itself, to sqlite:///m.db, experiment mnist, and "
        f"gradwatch sync {tmp_path} makes sure of it"
    )
    assert courier.wait(tmp_path, range(300, 305))[1].startswith("5 of 5 steps")  # of a run that goes on from another


def test_one_that_has_begun_is_waited_for(tmp_path, sent, looks, monkeypatch):
    courier = CourierProcess(True, launch=sent)
    courier.start(tmp_path)
    (tmp_path / "cursor.json").write_text("{}")  # nothing in it is no beginning either
    courier.wait(tmp_path, range(5))
    assert not looks
    (tmp_path / "run.json").write_text('{"attempt": 0}')
    (tmp_path / "cursor.json").write_text('{"run_id": null}')
    monkeypatch.setattr(
        courier_process.time,
        "sleep",
        lambda seconds: looks.append(seconds) or (tmp_path / "cursor.json").write_text('{"done": true}'),
    )
    cursor, missing = courier.wait(tmp_path, range(5))
    assert len(looks) == 1
    assert (cursor["done"], missing) == (True, "")


def train(watch_options, steps, close=True):
    """A small training; its Watch."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = gradwatch.watch(model, optimizer, total_steps=steps, **watch_options)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    if close:
        watch.close()
    return watch


@pytest.fixture
def away(proxy, tmp_path, monkeypatch):
    """A server that hangs, as a training and its courier find it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.url)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    monkeypatch.setattr(courier_process, "RESTART_SECONDS", 0.0)
    proxy.always = hang
    return proxy


@pytest.mark.slow
def test_close_waits_as_long_as_it_was_told_and_the_courier_goes_on(server, away, tmp_path, capfd):
    watch = train({"dir": tmp_path / "runs"}, 300, close=False)
    started = time.monotonic()
    watch.close(timeout=1.0)
    assert time.monotonic() - started < 20  # and not as long as the server hangs
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "not in MLflow yet" in line]
    assert line.startswith(
        "gradwatch: 300 of 300 steps are not in MLflow yet; the courier goes on by itself, to http://"
    )
    assert f"gradwatch sync {watch.dir}" in line
    away.always = ok
    cursor = courier_process.wait_delivered(watch.dir, 120)
    assert cursor["done"], (watch.dir / "courier.log").read_text()
    all_there(server[1], watch.dir)


@pytest.mark.slow
def test_a_courier_killed_while_the_training_goes_on_is_replaced_at_a_drain(server, away, tmp_path):
    watch = train({"dir": tmp_path / "runs", "verbose": False}, 300, close=False)
    first = watch._courier.process
    first.send_signal(signal.SIGKILL)
    first.wait()
    watch._drain()
    second = watch._courier.process
    assert second is not first
    assert second.poll() is None
    away.always = ok
    watch.close(timeout=120.0)
    assert courier_process.wait_delivered(watch.dir, 0)["done"], (watch.dir / "courier.log").read_text()
    all_there(server[1], watch.dir)


TRAINER = """
import sys, time
sys.path.insert(0, {root!r})
import torch, gradwatch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watch = gradwatch.watch(model, optimizer, total_steps=300, dir="runs")
for _ in range(300):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
watch.state_dict()  # hands over all but the last step
time.sleep(3)  # the writer writes every two seconds
print(watch.dir, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_trainer_killed_while_the_server_hangs_leaves_a_killed_run(server, away, tmp_path):
    code = TRAINER.format(root=str(Path(gradwatch.__file__).parents[1]))
    trainer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    folder = tmp_path / trainer.stdout.readline().strip()
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    until = time.monotonic() + 60
    while read_manifest(folder).status == "RUNNING" and time.monotonic() < until:
        time.sleep(0.1)
    assert read_manifest(folder).status == "KILLED"  # before the server answers
    away.always = ok
    assert courier_process.wait_delivered(folder, 120)["done"], (folder / "courier.log").read_text()
    cursor = all_there(server[1], folder)
    assert sum(wanted(folder).values()) >= 300
    assert mlflow.MlflowClient(server[0]).get_run(cursor["run_id"]).info.status == "KILLED"

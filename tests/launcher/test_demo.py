"""The demo: its data, its two trainings, and the command that runs them all and leaves a folder to look at."""

import functools
import gzip
import os
import re
import shlex
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import gradwatch
from gradwatch.cli import main
from gradwatch.cli.demo import claim
from gradwatch.errors import RunError
from gradwatch.launcher.demo import mlp, rnn
from gradwatch.launcher.demo.data import MNIST_FILES, load_images, load_text
from gradwatch.launcher.demo.jobs import demo_jobs


@pytest.fixture(autouse=True)
def one_thread():
    """As in the demo's processes: a second thread only slows such small networks down."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def mnist(tmp_path):
    """A folder with an MNIST of 100 and 50 tiny pictures, half of the files packed."""
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for name, n in zip(MNIST_FILES, (100, 100, 50, 50), strict=True):
        values = random.integers(0, 10, (n, 3, 3) if "images" in name else n).astype(np.uint8)
        data = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()
        packed = name.startswith("train")
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(data) if packed else data)
    return folder


# ------------------------------------------------------------------------------------------------------------- data


@pytest.mark.parametrize("below", [True, False])
def test_mnist_is_read_from_the_folder_or_below(mnist, below):
    data = load_images(mnist.parent if below else mnist)
    assert (data.name, data.train.shape, data.test.shape) == ("MNIST", (100, 9), (50, 9))
    raw = (mnist / "t10k-labels-idx1-ubyte").read_bytes()
    assert data.test_labels.tolist() == list(raw[8:])
    assert data.train.dtype == np.float32
    assert 0 <= data.train.min() < data.train.max() <= 9 / 255


def test_digits_need_no_files():
    data = load_images(None)
    assert (data.train.shape, data.test.shape) == ((1437, 64), (360, 64))
    assert set(data.test_labels.tolist()) == set(range(10))
    assert data.train.max() == 1


def test_text_becomes_numbers_and_back(tmp_path):
    text = "".join(chr(97 + i % 26) for i in range(30_000))
    (tmp_path / "input.txt").write_text(text)
    data = load_text(tmp_path)
    numbers = np.concatenate([data.train, data.validation])
    assert "".join(np.array(list(data.alphabet))[numbers]) == text
    assert len(data.validation) == 3000


def test_python_brings_a_text():
    data = load_text(None)
    assert len(data.train) > 200_000
    assert 60 < len(data.alphabet) <= 100


BROKEN = {"empty": b"", "not gzip": b"\x1f\x8bnope", "short": gzip.compress(b"\0\0\x08\x01\0\0\0\x64too few")}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_named(mnist, content):
    (mnist / "train-labels-idx1-ubyte.gz").write_bytes(content)
    with pytest.raises(RunError, match=r"train-labels-idx1-ubyte\.gz is not a file of MNIST"):
        load_images(mnist)


# -------------------------------------------------------------------------------------------------------- trainings


def test_clipping_changes_nothing_when_it_never_fires_and_rescues_a_run(tmp_path):
    data = load_images(None)

    def train(lr, clip):
        model = mlp.train(data, lr=lr, seed=0, epochs=8, dir=tmp_path, clip=clip)
        return float(mlp.evaluate(model, data)[1]), model.state_dict()

    (_, plain), (_, clipped) = train(0.1, None), train(0.1, "ClipByValue(1.0)")
    assert all(torch.equal(plain[name], clipped[name]) for name in plain)
    assert train(2.0, None)[0] < 0.5  # broken: 0.1 to 0.25 of the test images
    assert train(2.0, "ClipByGlobalNorm(1.0)")[0] > 0.9


def test_resuming_from_the_checkpoint_is_exact(tmp_path):
    data = load_images(None)
    settings = {"lr": 0.1, "seed": 3, "clip": "ClipByHistory(1.2)"}  # a policy with a state
    whole = mlp.train(data, epochs=3, dir=tmp_path / "whole", **settings)
    mlp.train(data, epochs=2, dir=tmp_path / "parts", **settings)
    (folder,) = (tmp_path / "parts").iterdir()
    resumed = mlp.train(data, epochs=3, dir=tmp_path / "parts", resume=folder / "checkpoint.pt", **settings)
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name

    assert list((tmp_path / "parts").iterdir()) == [folder]
    (other,) = (tmp_path / "whole").iterdir()
    history, expected = gradwatch.open_history(folder), gradwatch.open_history(other)
    assert history.step.tolist() == list(range(3 * 29))
    np.testing.assert_array_equal(history.total("loss"), expected.total("loss"))
    assert Counter(history.attempt.tolist()) == {0: 2 * 29, 1: 29}


def test_the_best_epoch_is_what_training_returns(tmp_path):
    data = load_images(None)
    model = mlp.train(data, lr=2.0, seed=0, epochs=8, dir=tmp_path, clip="ClipByHistory(1.2)")  # unsteady
    (folder,) = tmp_path.iterdir()
    history = gradwatch.open_history(folder)
    best = history.total("loss").reshape(8, 29).mean(axis=1).argmin()
    assert torch.load(folder / "checkpoint.pt")["epochs"] == best + 1
    accuracies = history.total("test_accuracy")[28::29]
    assert float(mlp.evaluate(model, data)[1]) == pytest.approx(accuracies[best])


def test_the_rnn_learns(tmp_path):
    rnn.train(load_text(None), lr=2.0, seed=0, steps=36, dir=tmp_path, clip="ClipByGlobalNorm(0.5)")
    (folder,) = tmp_path.iterdir()
    history = gradwatch.open_history(folder)
    losses = history.total("val_loss")
    assert np.flatnonzero(~np.isnan(losses)).tolist() == [5, 11, 17, 23, 29, 35]
    assert losses[35] < min(losses[5], 3.5)
    assert 0.1 < history.total("val_accuracy")[35] < 1


# ------------------------------------------------------------------------------------------------------- which runs


def test_every_policy_at_both_rates_with_three_seeds():
    jobs = demo_jobs(("mlp", "rnn"), None)
    assert Counter(job.workload for job in jobs) == {"mlp": 8 * 2 * 3, "rnn": 3 * 3}
    for job in jobs:
        for role in ("clip", "renorm"):
            gradwatch.parse(job.settings.get(role, "ClipByValue(1.0)"))
    assert len(demo_jobs(("mlp", "rnn"), None, quick=True)) == 16 + 3


def test_a_folder_may_hold_the_data_of_one_workload(mnist):
    jobs = demo_jobs(("mlp", "rnn"), mnist)
    assert {(job.workload, job.data) for job in jobs} == {("mlp", mnist), ("rnn", None)}


def test_a_folder_without_any_data_is_refused(tmp_path):
    with pytest.raises(RunError, match="holds no data of the demo"):
        demo_jobs(("mlp", "rnn"), tmp_path)


def test_a_part_of_mnist_is_refused(mnist):
    (mnist / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(RunError, match="t10k-labels-idx1-ubyte"):
        demo_jobs(("mlp",), mnist)


# ------------------------------------------------------------------------------------------------------- the folder


def test_only_what_a_demo_made_is_replaced_and_only_when_asked(tmp_path):
    out = tmp_path / "demo"
    with claim(out, force=False):
        (out / "runs" / "one").mkdir()
        (out / "mlflow.db").touch()
        (out / "notes.txt").touch()
        with pytest.raises(RunError, match="another demo is at work"):
            claim(out, force=True)
    with pytest.raises(RunError, match="--force replaces it"):
        claim(out, force=False)
    with claim(out, force=True):
        assert {path.name for path in out.iterdir() if not path.name.startswith(".")} == {"runs", "notes.txt"}
        assert not any((out / "runs").iterdir())


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "mlflow.db").write_text("mine")
    with pytest.raises(RunError, match="no demo made"):
        claim(tmp_path, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]


@pytest.mark.parametrize(("option", "words"), [("--out", "cannot write to"), ("--data", "there is no such folder")])
def test_a_folder_that_is_none_is_one_line(tmp_path, option, words):
    (tmp_path / "file").touch()
    result = CliRunner().invoke(main, ["demo", "--out", str(tmp_path / "out"), option, str(tmp_path / "file")])
    assert result.exit_code == 2
    assert re.fullmatch(rf"Error: .*{words}.*\n", result.stderr)
    assert result.stdout == ""


# ------------------------------------------------------------------------------------------------------ the command


def start(out):
    """The demo as a process of its own group, as a shell starts it."""
    root = str(Path(gradwatch.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-m", "gradwatch", "demo", "--quick", "--workload", "rnn", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=out.parent,
        env={**os.environ, "PYTHONPATH": root},
        start_new_session=True,
        # A suite that runs in the background of a script was started with Ctrl-C ignored; a shell's job is not
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )


@pytest.mark.slow
def test_the_demo_leaves_tables_reports_and_a_store(tmp_path):
    out = tmp_path / "demo"
    demo = start(out)
    shown, errors = demo.communicate(timeout=120)
    assert (demo.returncode, errors) == (0, "")
    assert "3/3" in shown
    assert f"gradwatch ui --store {shlex.quote(str(out))}" in shown
    assert "viewStateShareKey=gradwatch" in shown
    rows = re.findall(r"^(ClipByGlobalNorm\(\S+\)|none) +\d", shown, re.M)
    assert sorted(rows) == ["ClipByGlobalNorm(0.25)", "ClipByGlobalNorm(1.0)", "none"]
    assert "report-rnn.html" in (out / "report.html").read_text()
    assert "ClipByGlobalNorm(0.25)" in (out / "report-rnn.html").read_text()
    with sqlite3.connect(out / "mlflow.db") as database:
        runs = database.execute(
            "SELECT experiments.name, status FROM runs JOIN experiments USING (experiment_id)"
        ).fetchall()
        keys = database.execute("SELECT key, COUNT(DISTINCT run_uuid) FROM metrics GROUP BY key").fetchall()
    assert runs == [("gradwatch-demo-rnn", "FINISHED")] * 3
    assert {"loss": 3, "val_loss": 3, "grad_norm/total": 3, "clip/rate": 3}.items() <= dict(keys).items()
    assert len(list((out / "mlartifacts").glob("**/report.html"))) == 3
    assert sorted(os.listdir(tmp_path)) == ["demo"]
    made = {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*/run.json")}
    again, errors = start(out).communicate(timeout=60)  # the same once more is shown, not trained
    assert (again.splitlines()[1:], errors) == (shown.splitlines()[-len(again.splitlines()) + 1 :], "")
    assert {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*/run.json")} == made


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
@pytest.mark.parametrize("moment", ["runs/courier.log", "runs/*/run.json"])
def test_ctrl_c_ends_all_of_it_quietly(tmp_path, moment):
    out = tmp_path / "demo"
    demo = start(out)
    while not list(out.glob(moment)) and demo.poll() is None:
        time.sleep(0.05)
    os.killpg(demo.pid, signal.SIGINT)
    _, errors = demo.communicate(timeout=30)
    assert demo.returncode in (130, -signal.SIGINT)  # Python ends by the signal when it came inside an exec()
    assert errors.splitlines() == [f"Stopped. gradwatch sync {out / 'runs'} delivers what was recorded so far."]
    for _ in range(100):  # multiprocessing's resource tracker ends a moment after its parent
        try:
            os.killpg(demo.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("a process of the demo is still there")

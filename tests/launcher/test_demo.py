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
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from make_run import changed, make_history
from processes import all_ended, processes_of

import gradwatch
from gradwatch.analysis.rules import Finding
from gradwatch.cli import main
from gradwatch.cli.demo import claim
from gradwatch.errors import RunError
from gradwatch.launcher.demo import char_rnn, digits_mlp
from gradwatch.launcher.demo.data import MNIST_FILES, load_images, load_text
from gradwatch.launcher.demo.jobs import demo_jobs
from gradwatch.launcher.demo.summary import said
from gradwatch.launcher.fork_server import can_fork
from gradwatch.report import build_report
from gradwatch.storage.folder import read_manifest
from gradwatch.storage.run_state import run_state
from gradwatch.storage.shared_folder import run_folders


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
        torch.manual_seed(0)
        model = digits_mlp.build(64)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        with gradwatch.watch(model, optimizer, clip=clip, dir=tmp_path, delivery="none", verbose=False) as made:
            digits_mlp.train(model, optimizer, data, epochs=8)
        return gradwatch.open_history(made.dir).total("test_accuracy"), model.state_dict()

    (accuracies, plain), (_, clipped) = train(0.1, None), train(0.1, "ClipByValue(1.0)")
    assert all(torch.equal(plain[name], clipped[name]) for name in plain)
    assert np.flatnonzero(~np.isnan(accuracies)).tolist() == list(range(28, 8 * 29, 29))
    assert np.nanmax(train(2.0, None)[0]) < 0.5  # broken: 0.1 to 0.25 of the test images
    assert np.nanmax(train(2.0, "ClipByGlobalNorm(1.0)")[0]) > 0.9


def test_the_rnn_learns(tmp_path):
    data = load_text(None)
    torch.manual_seed(0)
    model = char_rnn.CharRNN(len(data.alphabet))
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    clip = "ClipByGlobalNorm(0.5)"
    with gradwatch.watch(model, optimizer, clip=clip, dir=tmp_path, delivery="none", verbose=False):
        char_rnn.train(model, optimizer, data, steps=36)
    (folder,) = tmp_path.iterdir()
    history = gradwatch.open_history(folder)
    losses = history.total("val_loss")
    assert np.flatnonzero(~np.isnan(losses)).tolist() == [5, 11, 17, 23, 29, 35]
    assert losses[35] < min(losses[5], 3.5)
    assert 0.1 < history.total("val_accuracy")[35] < 1


# ------------------------------------------------------------------------------------------------------- which runs


def test_every_policy_at_both_rates_with_three_seeds(tmp_path):
    jobs = demo_jobs(("mlp", "rnn"), None, tmp_path, quick=False)
    assert Counter(job.sweep.title for job in jobs) == {"lr0.1-mlp": 8 * 3, "lr2-mlp": 8 * 3, "lr5-rnn": 3 * 3}
    assert len({job.folder for job in jobs}) == len(jobs)
    for job in jobs:
        for text in (job.policy.clip, job.policy.renorm):
            assert text is None or repr(gradwatch.parse(text)) == text
    assert len(demo_jobs(("mlp", "rnn"), None, tmp_path, quick=True)) == 16 + 3


def test_a_folder_may_hold_the_data_of_one_workload(mnist, tmp_path):
    jobs = demo_jobs(("mlp", "rnn"), mnist, tmp_path, quick=False)
    data = {(job.sweep.title[-3:], job.command()[-1] if "--data" in job.command() else None) for job in jobs}
    assert data == {("mlp", str(mnist)), ("rnn", None)}


def test_a_folder_without_any_data_is_refused(tmp_path):
    with pytest.raises(RunError, match="holds no data of the demo"):
        demo_jobs(("mlp", "rnn"), tmp_path, tmp_path / "runs", quick=False)


def test_a_part_of_mnist_is_refused(mnist):
    (mnist / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(RunError, match="t10k-labels-idx1-ubyte"):
        demo_jobs(("mlp",), mnist, mnist, quick=False)


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
        env={**os.environ, "PYTHONPATH": root, "MARK": str(out.parent)},
        start_new_session=True,
        # A suite that runs in the background of a script was started with Ctrl-C ignored; a shell's job is not
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )


def test_runs_with_an_error_are_named_that_did_not_diverge():
    """As those that died at the chance level: a list of what diverged leaves them out."""
    lost, fine = np.geomspace(1, 1e9, 200), np.linspace(1, 0.5, 200)
    histories = [
        changed(make_history(logged=("loss",), name=name), per_step={**make_history().per_step, "loss": loss})
        for name, loss in (("lost", lost), ("dead", fine), ("well", fine))
    ]
    report = build_report(histories)
    runs = [replace(run, findings=[]) for run in report.runs]
    runs[1] = replace(runs[1], verdict="dead-layer", findings=[Finding("dead-layer", "error", (), 0, 1)])
    lines = said([replace(report, runs=runs, metrics=["loss"])])
    assert lines[-4].startswith("1 of 3 runs diverged.")
    assert lines[-3].startswith("  lost: ")
    assert lines[-2:] == ["1 of 3 have an error and did not diverge.", "  dead: dead-layer"]


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
    assert shown.splitlines()[:2] == [
        f"3 trainings, 2 at a time; what each prints is in its folder below {out / 'runs'}.",
        "Some are meant to be sick: at the MLP's rate of 2 and the RNN's of 5, training comes apart without a clip.",
    ]
    assert re.search(r"^No winner: train three seeds or more of each\. The best so far: ", shown, re.M)
    assert re.search(r"^1 of 3 runs diverged\. Some are meant.*\n  none-seed0-lr5-rnn: lr-too-high", shown, re.M)
    assert re.search(rf"^first: +\S.* show {re.escape(str(out))}/runs/\S+-none-seed0-lr5-rnn$", shown, re.M)
    assert "1 of 3 runs diverged" in (out / "report.html").read_text()
    first_page = (out / "report.html").read_text()
    assert first_page.count('class="plot"') == 4  # accuracy and norms of the comparison; the sickest run's finding, map
    linked = re.findall(r'<a href="([^"]+)"', first_page)
    assert linked == ["report-rnn.html", "report-sickest.html"]
    assert "<h1>none-seed0-lr5-rnn</h1>" in (out / "report-sickest.html").read_text()
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
    made = {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*/*/*/run.json")}
    again, errors = start(out).communicate(timeout=60)  # the same once more is shown, not trained
    assert (again.splitlines()[1:], errors) == (shown.splitlines()[-len(again.splitlines()) + 1 :], "")
    assert {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*/*/*/run.json")} == made


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks into /proc")
def test_kill_9_ends_all_of_it(tmp_path):
    """The courier too, which follows a folder for new runs, and the server that trainings are forked from."""
    out = tmp_path / "demo"
    demo = start(out)
    # the folder of a run that has recorded nothing goes when the run does
    while not list(out.glob("runs/*/*/*/steps/part-*")) and demo.poll() is None:
        time.sleep(0.05)
    assert len(processes_of(tmp_path)) > 3
    demo.kill()
    demo.communicate(timeout=60)  # whoever holds its output open would be waited for
    all_ended(tmp_path)
    (run, *_) = run_folders(out / "runs")
    assert run_state(read_manifest(run)).over


STARTING = """
import signal
from multiprocessing import util
from pathlib import Path
from gradwatch.launcher.fork_server import Forked

def blocked(*arguments):
    print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    return spawn(*arguments)

spawn, util.spawnv_passfds = util.spawnv_passfds, blocked
mask = "signal.pthread_sigmask(signal.SIG_BLOCK, [])"
Path("script.py").write_text(f"import signal; open('mask', 'w').write(str({mask}))")
Forked(["gradwatch", "run", "--log", "none", "script.py"], {}, Path("output")).wait()
print(eval(mask), Path("mask").read_text())
"""


@pytest.mark.slow
@pytest.mark.skipif(not can_fork(), reason="needs fork servers")
def test_ctrl_c_waits_while_a_fork_server_begins_and_not_in_its_forks(tmp_path):
    command = [sys.executable, "-c", STARTING]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    *_, of_the_server, afterwards = done.stdout.splitlines()  # the first is that of multiprocessing's own tracker
    assert of_the_server == "{<Signals.SIGINT: 2>}"
    assert afterwards == "set() set()"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
@pytest.mark.parametrize("moment", ["runs/courier.log", "runs/*/*/*/run.json"])
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

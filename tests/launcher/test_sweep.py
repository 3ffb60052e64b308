"""`gradwatch sweep`: which trainings there are, how their processes live and end, and what comes of them."""

import contextlib
import errno
import io
import json
import os
import re
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from gloo import AT_THE_END
from make_run import make_run
from processes import start_sweep
from rich.console import Console

import gradwatch
from gradwatch.analysis.final_values import policy_text
from gradwatch.analysis.verdict import Winner
from gradwatch.cli import main
from gradwatch.cli.sweep import _handed_on
from gradwatch.cli.sweep_output import show_training
from gradwatch.errors import RunError
from gradwatch.launcher.fork_server import can_fork
from gradwatch.launcher.local_pool import run_here
from gradwatch.launcher.pool import End, Task
from gradwatch.launcher.sweep import THREADS, Record, Sweep, policies, slots, split
from gradwatch.launcher.sweep import task as task_of
from gradwatch.policies.intervention import Intervention
from gradwatch.report.comparison_table import paste
from gradwatch.storage.folder import read_manifest
from gradwatch.storage.shared_folder import run_folders

ROOT = Path(gradwatch.__file__).parents[1]
# Learns y = 0 from a seed; `--lr` above 2 diverges, `--crash` fails, `--wait` stays until it is told to go on.
SCRIPT = """
import argparse, os, time
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--crash", action="store_true")
parser.add_argument("--wait")
args = parser.parse_args()
torch.manual_seed(args.seed)
w = torch.nn.Parameter(torch.randn(4) + 3)
optimizer = torch.optim.SGD([w], lr=args.lr)
for step in range(60):
    if step == 10 and args.crash and os.environ["GRADWATCH_SEED"] == "1":
        raise ValueError("boom")
    if step == 20 and args.wait and os.environ["GRADWATCH_SEED"] == "1":
        open("waiting", "w").close()
        while not os.path.exists(args.wait):
            time.sleep(0.05)
    loss = w.square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("X is", os.environ.get("X"), "and threads", os.environ.get("OMP_NUM_THREADS"), torch.get_num_threads())
"""
GLOBAL = "ClipByGlobalNorm(1.0)"


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A working directory with a script in it."""
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cold(*args):
    """A sweep as a shell starts it, to its end; what it printed."""
    process = start_sweep(*args)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, out + err
    return out


def asked(tmp_path, **changes):
    given = {"target": "train.py", "args": ("--seed", "{seed}"), "module": False, "folder": tmp_path,
             "policies": (Intervention(), Intervention(GLOBAL)), "seeds": (0, 1)}  # fmt: skip
    return Sweep(**{**given, **changes})


# ------------------------------------------------------------------------------------------------------------- the jobs


def test_every_policy_with_every_seed(desk):
    jobs = asked(desk).jobs()
    assert [job.label for job in jobs] == ["none, seed 0", f"{GLOBAL}, seed 0", "none, seed 1", f"{GLOBAL}, seed 1"]
    command = shlex.join(jobs[3].command())
    assert f"{shlex.quote(sys.executable)} -m gradwatch run --dir {shlex.quote(str(jobs[3].folder))}" in command
    assert f"--clip '{GLOBAL}' --renorm none --param seed=1 train.py --seed 1" in command
    assert jobs[3].environment() == {"PYTHONHASHSEED": "1", "GRADWATCH_SEED": "1"}


def test_more_policies_or_seeds_belong_to_the_same_sweep_and_another_script_is_trained_anew(desk):
    one, more = asked(desk), asked(desk, seeds=(0, 1, 2))
    assert one.home == more.home
    assert {job.folder for job in one.jobs()} < {job.folder for job in more.jobs()}
    assert asked(desk, args=("--lr", "1")).home != one.home
    before = {job.folder for job in one.jobs()}
    (desk / "train.py").write_text(SCRIPT + "# changed\n")
    assert not before & {job.folder for job in one.jobs()}


def test_policies_are_written_as_they_print():
    assert list(policies(["none", "ClipByGlobalNorm(1)"], ["MaxNorm(3)"])) == [
        Intervention(None, "MaxNorm(3.0)"),
        Intervention(GLOBAL, "MaxNorm(3.0)"),
    ]
    assert list(policies([], [])) == [Intervention()]
    with pytest.raises(RunError, match=r"ClipByGlobalNorm\(1.0\) is given twice"):
        list(policies(["ClipByGlobalNorm(1)", "ClipByGlobalNorm(1.0)"], []))


def test_learning_rates_are_policies_and_every_training_is_told_its_own(desk):
    found = list(policies(["none"], [], [1.0, 0.1], [200], skip=True))
    skip = "chain(SkipNonfinite(), SkipSpike(6.0))"
    assert [policy.label for policy in found] == [f"{skip} + warmup=200", f"{skip} + lr_scale=0.1 + warmup=200"]
    assert str(found[1]) == f"--clip '{skip}' --lr-scale 0.1 --warmup 200"
    (_, job) = asked(desk, policies=tuple(found), seeds=(None,), args=()).jobs()
    assert "--lr-scale 0.1 --warmup 200 --no-skip --clip" in shlex.join(job.command())
    (plain, *_) = asked(desk).jobs()
    assert "--lr-scale 1.0 --warmup 0 --no-skip --clip none" in shlex.join(plain.command())
    with pytest.raises(RunError, match=r"0\.5 is given twice"):
        list(policies([], [], [0.5, 0.5]))


def test_the_next_training_waits_for_the_courier_of_the_last_one(desk, monkeypatch):
    """A training does not wait for its courier: those of many short ones would all be at work at once."""
    waited = []
    monkeypatch.setattr("gradwatch.launcher.sweep.wait_delivered", lambda folder, _: waited.append(folder))
    job = asked(desk).jobs()[0]
    over = task_of(job, None).at_end
    over(End(0, 1.0))  # which left no run
    folder = make_run(job.folder)
    over(End(0, 1.0))  # whose run has no courier
    assert not waited
    (folder / "courier.log").touch()
    over(End(None, 1.0, "timeout"))
    assert not waited
    over(End(0, 1.0))
    assert waited == [folder]


def test_a_winner_whose_rate_was_scaled_can_be_pasted():
    won = Winner("", "x", GLOBAL, None, ("",), lr_scale=0.1)
    assert paste(won) == (f'clip="{GLOBAL}", lr_scale=0.1', f"--clip '{GLOBAL}' --lr-scale 0.1")


@pytest.mark.parametrize(
    ("prefix", "words"),
    [
        (
            "srun -n 1 --comment 'a b'",
            ["srun", "-n", "1", "--comment", "a b", sys.executable, "-m", "gradwatch", "run"],
        ),
        (
            "/opt/bin/torchrun --nproc-per-node 8",
            ["/opt/bin/torchrun", "--nproc-per-node", "8", "-m", "--", "gradwatch", "run"],
        ),
        ("torchrun --no-python", ["torchrun", "--no-python", sys.executable, "-m", "gradwatch", "run"]),
        ("python -m torch.distributed.run", ["python", "-m", "torch.distributed.run", "-m", "--", "gradwatch", "run"]),
    ],
)
def test_a_launcher_stands_in_front(desk, prefix, words):
    (job, *_) = asked(desk, prefix=split(prefix)).jobs()
    assert job.command()[: len(words)] == words


def test_threads_are_divided_and_gpus_dealt_out(monkeypatch):
    monkeypatch.setattr("gradwatch.launcher.sweep.cpus", lambda: 9)
    assert slots(1, [], {}) == [{}]
    assert slots(2, [], {}) == [dict.fromkeys(THREADS, "4")] * 2
    assert slots(2, [], {"OMP_NUM_THREADS": "2"})[0] == {**dict.fromkeys(THREADS, "4"), "OMP_NUM_THREADS": "2"}
    assert slots(20, [], {"OMP_NUM_THREADS": "8"})[0]["OMP_NUM_THREADS"] == "1"
    assert [slot.get("CUDA_VISIBLE_DEVICES") for slot in slots(2, ["0"], {})] == [None, None]
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in slots(3, ["4", "5"], {})] == ["4", "5", "4"]
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in slots(2, list("0123"), {})] == ["0,1", "2,3"]
    assert "CUDA_VISIBLE_DEVICES" not in slots(1, list("0123"), {})[0]


# ------------------------------------------------------------------------------------------------------------- the pool


def task(tmp_path, name, code, **options):
    return Task([sys.executable, "-c", code], {"NAME": name}, tmp_path / name, **options)


def test_the_pool_runs_as_many_at_a_time_as_it_has_slots(tmp_path):
    code = (
        "import os, time; name = os.environ['NAME']; print(name, os.environ['SLOT'])\n"
        "while name in '01' and not (os.path.exists('0') and os.path.exists('1')): time.sleep(0.05)\n"  # both at work
        "time.sleep(0.4)\n"
    )
    seen, ends = [], {}
    tasks = [task(tmp_path, str(i), code, folder=tmp_path) for i in range(5)]
    for working, ended in run_here(tasks, [{"SLOT": "a"}, {"SLOT": "b"}]):
        seen.append(len(working))
        ends |= ended
    assert sorted(ends) == [0, 1, 2, 3, 4]
    assert max(seen) <= 2
    assert {(tmp_path / str(i)).read_text().split()[1] for i in range(5)} == {"a", "b"}
    assert all(end.code == 0 for end in ends.values())


def test_the_pool_takes_a_task_when_a_slot_is_free_for_it(tmp_path):
    """So that who gives the tasks may decide on the next one by what came of the last."""
    ended = []

    def tasks():
        for number in range(3):
            assert len(ended) >= number - 1
            yield task(tmp_path, str(number), "", at_end=ended.append)

    assert sorted(number for _, ends in run_here(tasks(), [{}, {}]) for number in ends) == [0, 1, 2]


def test_the_pool_ends_what_takes_too_long_and_says_what_cannot_start(tmp_path):
    tasks = [
        task(tmp_path, "slow", "import time; time.sleep(100)", timeout=0.5),
        task(tmp_path, "bad", "raise SystemExit(3)"),
        Task(["no-such-command"], {}, tmp_path / "none"),
    ]
    ends = {number: end for _, ended in run_here(tasks, [{}, {}]) for number, end in ended.items()}
    assert (ends[0].cut, ends[0].code) == ("timeout", -signal.SIGINT)
    assert (ends[1].cut, ends[1].code) == ("", 3)
    assert ends[2].problem == "no-such-command: No such file or directory"


def test_who_stops_the_pool_leaves_no_process_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("gradwatch.launcher.local_pool.GRACE_SECONDS", 0.3)
    code = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(100)\n"
    )
    ended = []
    going = run_here([task(tmp_path, "deaf", code, at_end=ended.append), task(tmp_path, "next", code)], [{}])
    while not (tmp_path / "deaf").exists() or not (tmp_path / "deaf").read_text():
        next(going)
    going.close()
    assert [end.cut for end in ended] == ["interrupted"]
    assert not (tmp_path / "next").exists()
    pid = int((tmp_path / "deaf").read_text())
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the child's child is still there")


def test_a_ctrl_c_that_got_lost_on_its_way_still_ends_the_pool(tmp_path):
    """As in a callback of C code, or in a library's import: its exception is printed or dropped there."""
    going = run_here([task(tmp_path, "stays", "import time; time.sleep(100)")], [{}])
    next(going)
    with contextlib.suppress(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
    with pytest.raises(KeyboardInterrupt):
        next(going)


@pytest.mark.slow
@pytest.mark.skipif(not can_fork(), reason="needs a fork server")
def test_a_warm_process_lives_and_ends_as_a_fresh_one(tmp_path, server_of_our_own):
    scripts = {
        "fails": "import os, sys; print(os.environ['SLOT'], os.getpid() == os.getsid(0)); raise SystemExit(3)",
        "says": "raise SystemExit('no')",
        "raises": "import atexit; atexit.register(print, 'bye'); raise ValueError('boom')",
        "stays": "import time; time.sleep(100)",
    }
    tasks = {False: [], True: []}
    for name, code in scripts.items():
        (tmp_path / f"{name}.py").write_text(code)
        for warm, some in tasks.items():
            command = [sys.executable, "-m", "gradwatch", "run", "--log", "none", str(tmp_path / f"{name}.py")]
            some.append(Task(command, {}, tmp_path / f"{name}-{warm}", 15.0 if name == "stays" else None, warm=warm))
    for warm, some in tasks.items():
        ends = {number: end for _, ended in run_here(some, [{"SLOT": "a"}] * 4) for number, end in ended.items()}
        assert [(ends[i].cut, ends[i].code) for i in range(3)] == [("", 3), ("", 1), ("", 1)], warm
        assert ends[3].cut == "timeout"
        assert ends[3].code in (130, -signal.SIGINT)  # 130 while it starts
    for name in ("fails", "says", "raises"):
        cold, hot = ((tmp_path / f"{name}-{warm}").read_text() for warm in tasks)
        assert hot == cold
    assert "a True" in (tmp_path / "fails-True").read_text()


# ---------------------------------------------------------------------------------------------------------- the command


def records(desk):
    return {path.parent.name: json.loads(path.read_text()) for path in desk.glob("gradwatch-runs/*/*/job.json")}


@pytest.mark.slow
def test_a_sweep_compares_skips_what_is_done_and_adds_what_is_new(desk, sweep):
    options = ["--log", "none", "--jobs", "2", "--clip", "none"]
    script = ["train.py", "--lr", "0.02", "--seed", "{seed}"]
    out = sweep(*options, "--seed", "0", "--seed", "1", *script)
    first = records(desk)
    assert len(first) == 2
    assert {record["status"] for record in first.values()} == {"finished"}
    assert out.count("finished after") == 2
    out = sweep(*options, "--clip", "ClipByGlobalNorm(0.1)", "--seed", "0", "--seed", "1", *script)
    assert "2 of 4 runs are finished already" in out
    assert first.items() <= records(desk).items()
    assert re.search(r"ClipByGlobalNorm\(0.1\) +2 .*worse", out)
    assert "No policy is shown to be better than none." in out
    out = sweep(*options, "--clip", "ClipByGlobalNorm(0.1)", "--seed", "0", "--seed", "1", *script)
    assert "4 of 4 runs are finished already" in out
    (home,) = desk.glob("gradwatch-runs/sweep-train-*")
    data = json.loads((home / "comparison.json").read_text())
    assert [row["policy"] for row in data["comparison"]] == ["none", "ClipByGlobalNorm(0.1)"]
    assert "<!doctype html>" in (home / "report.html").read_text()[:20]


@pytest.mark.slow
def test_a_crash_and_a_divergence_are_results(desk, sweep):
    out = sweep("--log", "none", "--jobs", "2", "--clip", "none", "--clip", GLOBAL, "--seed", "0", "--seed", "1",
                "train.py", "--seed", "{seed}", "--lr", "1e8", "--crash", code=1)  # fmt: skip
    assert "exit code 1" in out
    assert "ValueError: boom" in out
    assert re.search(r"none, seed 0: finished after \d+ s, 60 steps, loss .*exploding", out)
    assert re.search(r"^ ?none +2 .* 2 of 2 ", out, re.M)
    assert f"{GLOBAL}, seed 1 is not compared: failed after 10 steps." in out
    failed = [name for name, record in records(desk).items() if record["status"] == "failed"]
    assert len(failed) == 2
    before = {path: path.stat().st_mtime_ns for path in desk.glob("gradwatch-runs/*/*/job.json")}
    sweep("--log", "none", "--jobs", "2", "--clip", "none", "--clip", GLOBAL, "--seed", "0", "--seed", "1",
          "train.py", "--seed", "{seed}", "--lr", "1e8", "--crash", code=1)  # fmt: skip
    changed = {path.parent.name for path, then in before.items() if path.stat().st_mtime_ns != then}
    assert changed == set(failed)


@pytest.mark.slow
def test_a_script_that_watches_itself_ends_the_sweep_after_its_first_run(desk, sweep):
    own = "import gradwatch\nwatch = gradwatch.watch(torch.nn.ParameterList([w]), optimizer, log=None)\n"
    (desk / "train.py").write_text(SCRIPT.replace("for step in range(60):", f"{own}for step in range(60):"))
    done = CliRunner().invoke(main, ["sweep", "--log", "none", "--clip", "none", "--clip", GLOBAL, "train.py"])
    assert done.exit_code == 2
    assert "the script calls watch() itself" in done.stderr
    assert len(records(desk)) == 1


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(desk, sweep):
    args = ["--log", "none", "--clip", "none", "--clip", GLOBAL, "--seed", "0", "--seed", "1", "train.py", "--seed",
            "{seed}", "--wait", "go"]  # fmt: skip
    process = start_sweep(*args)
    deadline = time.monotonic() + 200
    while not (desk / "waiting").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    assert (desk / "waiting").exists(), "no training of seed 1 began"
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), out + err
    assert err.splitlines()[-1] == "Stopped: 2 of 4 runs are finished and kept; the same command goes on."
    (home,) = desk.glob("gradwatch-runs/sweep-*")
    statuses = sorted(read_manifest(folder).status for folder in run_folders(home))
    assert statuses == ["FINISHED", "FINISHED", "KILLED"]
    (desk / "go").touch()
    out = sweep(*args)
    assert "2 of 4 runs are finished already" in out
    assert out.count("finished after") == 2
    assert re.search(r"better|worse|no difference shown", out)


@pytest.mark.slow
def test_each_run_and_the_summary_are_in_mlflow(desk, store, sweep):
    out = sweep("--clip", "none", "--clip", GLOBAL, "--seed", "3", "--set-seed", "--jobs", "2", "--experiment", "e",
                "train.py")  # fmt: skip
    assert re.search(r"Report: .*report\.html\nMLflow: http://127.0.0.1:5000/#/experiments/.*: gradwatch ui\)", out)
    with sqlite3.connect(desk / "mlflow.db") as database:
        rows = database.execute(
            "SELECT runs.name, runs.status, tags.value FROM runs JOIN tags USING (run_uuid) JOIN experiments USING "
            "(experiment_id) WHERE tags.key = 'gradwatch.sweep' AND experiments.name = 'e'"
        ).fetchall()
        (note,) = database.execute(
            "SELECT tags.value FROM tags JOIN runs USING (run_uuid) WHERE key = 'mlflow.note.content' AND "
            "runs.name LIKE 'sweep %'"
        ).fetchone()
        seeds = database.execute("SELECT value FROM params WHERE key = 'seed'").fetchall()
    (home,) = desk.glob("gradwatch-runs/sweep-*")
    name = home.name.removeprefix("sweep-")
    assert sorted(rows) == [
        (f"{GLOBAL}-seed3-train", "FINISHED", name),
        ("none-seed3-train", "FINISHED", name),
        (f"sweep {name}", "FINISHED", name),
    ]
    assert f"| {GLOBAL}".replace("_", "\\_") in note
    assert seeds == [("3",), ("3",)]
    assert {path.name for path in desk.glob("ml*/**/gradwatch/comparison.*")} == {
        "comparison.csv", "comparison.md", "comparison.json"
    }  # fmt: skip
    sweep("--clip", "none", "--clip", GLOBAL, "--seed", "3", "--set-seed", "--experiment", "e", "--jobs", "2",
          "train.py")  # fmt: skip
    with sqlite3.connect(desk / "mlflow.db") as database:
        assert database.execute("SELECT COUNT(*) FROM runs WHERE lifecycle_stage = 'active'").fetchone() == (3,)


@pytest.mark.slow
def test_set_seed_makes_a_script_without_a_seed_repeat_itself(desk, sweep):
    (desk / "train.py").write_text(
        "import random, numpy, torch\n"
        "print('drawn', random.random(), numpy.random.rand(), torch.rand(()).item())\n"
        "w = torch.nn.Parameter(torch.rand(4))\n"
        "optimizer = torch.optim.SGD([w], lr=0.1)\n"
        "w.sum().backward()\n"
        "optimizer.step()\n"
    )
    seeds = ["--seed", "5", "--seed", "6", "--set-seed"]
    sweep("--log", "none", "--clip", "none", "--clip", GLOBAL, *seeds, "--jobs", "2", "train.py")
    drawn = {}
    for path in desk.glob("gradwatch-runs/*/*/output.log"):
        seed = re.search(r"seed(\d)", path.parent.name)[1]
        drawn.setdefault(seed, set()).add(re.search("drawn (.*)", path.read_text())[1])
    assert [len(values) for values in drawn.values()] == [1, 1]
    assert drawn["5"] != drawn["6"]
    import random

    import torch

    state = torch.get_rng_state()
    random.seed(5)
    torch.manual_seed(5)
    (line,) = drawn["5"]
    assert line.split()[0] == str(random.random())
    assert line.split()[2] == str(torch.rand(()).item())
    torch.set_rng_state(state)


@pytest.mark.slow
def test_a_prefix_starts_every_training(desk):
    cold("--log", "none", "--prefix", "env X='a b'", "--jobs", "2", "--clip", GLOBAL, "train.py")
    (output,) = desk.glob("gradwatch-runs/*/*/output.log")
    assert "X is a b and threads 1 1" in output.read_text()
    (folder,) = run_folders(output.parent)
    assert policy_text(read_manifest(folder)) == GLOBAL


@pytest.mark.slow
def test_another_pool_as_the_prefix(desk):
    """The example of the docs: a launcher that hands each training to processes that are not the sweep's own."""
    shutil.copy(ROOT / "docs/examples/second_pool.py", desk)
    pool = subprocess.Popen([sys.executable, "second_pool.py", "serve", "2"], stdout=subprocess.PIPE, text=True)
    try:
        assert pool.stdout.readline() == "2 workers are waiting\n"
        submit = f"{shlex.quote(sys.executable)} second_pool.py submit"
        cold("--log", "none", "--jobs", "2", "--prefix", submit, "--clip", "none", "--clip", GLOBAL, "train.py")
    finally:
        pool.terminate()
        pool.communicate()
    outputs = [path.read_text() for path in desk.glob("gradwatch-runs/*/*/output.log")]
    assert [text.splitlines()[0] for text in outputs] == [f"in the pool of process {pool.pid}"] * 2
    assert [record["status"] for record in records(desk).values()] == ["finished"] * 2


@pytest.mark.slow
def test_torchrun_as_the_prefix(desk):
    (desk / "train.py").write_text(
        "import torch, torch.distributed as dist\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "dist.init_process_group('gloo')\n"
        "model = DistributedDataParallel(torch.nn.Linear(2, 1))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(5):\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.ones(3, 2) * (1 + dist.get_rank())).sum().backward()\n"
        "    optimizer.step()\n"
        f"dist.destroy_process_group()\n{AT_THE_END}"
    )
    torchrun = f"{shlex.quote(sys.executable)} -m torch.distributed.run --standalone --nproc-per-node 2"
    cold("--log", "none", "--prefix", torchrun, "--clip", GLOBAL, "train.py")
    (folder,) = run_folders(desk / "gradwatch-runs")
    history = gradwatch.open_history(folder)
    assert len(history) == 5
    assert history.total("grad_norm")[0] == pytest.approx((2 * 4.5**2 + 9) ** 0.5)  # the mean of both ranks' gradients


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["train.py", "--seed", "{seed}"], "without a seed: pass --seed 0"),
        (["--seed", "1", "--seed", "1", "train.py"], "a seed is given twice"),
        (["--clip", "ClipByNrm(1)", "train.py"], "ClipByNrm"),
        (["nothing.py"], "there is no script nothing.py"),
        ([], "no script"),
        (["--metric-regex", "a=(", "train.py"], "is no regular expression"),
        (["--prefix", "srun 'x", "train.py"], "cannot be split into words"),
    ],
)
def test_what_makes_no_sense_is_one_line(desk, args, words):
    result = CliRunner().invoke(main, ["sweep", *args])
    assert result.exit_code == 2
    assert re.fullmatch(r"Error: .*\n", result.stderr)
    assert words in result.stderr
    assert not list(desk.glob("gradwatch-runs/*"))


def test_settings_of_run_are_handed_on():
    command = main.get_command(click.Context(main), "sweep")
    found = command.make_context("sweep", ["--flush-every", "0.5", "--slots", "x.py"]).params
    assert _handed_on(found) == ["--flush-every", "0.5", "--slots"]


def test_what_follows_a_module_is_for_the_module():
    found = main.get_command(click.Context(main), "sweep")
    context = found.make_context("sweep", ["--every", "3", "-m", "project.train", "--every", "5", "-m", "x", "--", "y"])
    assert (context.params["module"], context.params["every"]) == ("project.train", 3)
    assert (context.params["script"], context.params["args"]) == ("--every", ("5", "-m", "x", "--", "y"))


def test_a_file_may_hold_the_settings(desk):
    (desk / "gradwatch.toml").write_text('clip = "AGC(0.01)"\n[sweep]\nclips = ["none", "ClipByNrm(1)"]\n')
    result = CliRunner().invoke(main, ["sweep", "train.py"])
    assert "ClipByNrm" in result.stderr
    assert (
        CliRunner().invoke(main, ["sweep", "--clip", "AGC(0.1)", "nothing.py"]).stderr.startswith("Error: there is no")
    )


def test_a_pipe_that_nobody_reads_is_no_folder_that_cannot_be_written_to(desk, monkeypatch):
    (job,) = asked(desk / "gradwatch-runs", policies=(Intervention(),), seeds=(None,), args=(),
                   options=("--log", "none")).jobs()  # fmt: skip
    job.folder.mkdir(parents=True)
    Record("finished", 0, 1.0).write(job)

    def echo(*args, **options):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    monkeypatch.setattr("gradwatch.cli.sweep.click.echo", echo)
    result = CliRunner().invoke(main, ["sweep", "--log", "none", "train.py"])
    assert (result.exit_code, result.stderr) == (1, "")


def test_a_run_that_an_earlier_sweep_left_at_work_is_not_started_twice(desk):
    (job,) = asked(desk / "gradwatch-runs", policies=(Intervention(),), seeds=(None,), args=(),
                   options=("--log", "none")).jobs()  # fmt: skip
    folder = make_run(job.folder, close=None, pid=os.getpid(), host=socket.gethostname())
    result = CliRunner().invoke(main, ["sweep", "--log", "none", "train.py"])
    assert result.exit_code == 2
    assert f"none is still being trained, by a sweep that was killed: end it, or wait for {folder}" in result.stderr
    assert Record.read(job) is None


def test_a_refusal_behind_the_bar_writes_no_empty_line():
    def going():
        yield set(), {}
        raise RunError("no run logged 'val_dice'")

    out = io.StringIO()
    with pytest.raises(RunError):
        show_training(1, 0, [], going(), Console(file=out))
    assert out.getvalue() == ""

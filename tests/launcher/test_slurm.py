"""`gradwatch sweep --on slurm` and `--only K`: the script of a job array, its tasks, and what comes of them."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from filelock import FileLock

import gradwatch
from gradwatch.cli import main
from gradwatch.errors import RunError
from gradwatch.launcher import slurm
from gradwatch.launcher.sweep import Sweep, policies

ROOT = Path(gradwatch.__file__).parents[1]
SCRIPT = """
import os, torch
w = torch.nn.Parameter(torch.ones(2) + int(os.environ["GRADWATCH_SEED"]))
optimizer = torch.optim.SGD([w], lr=0.1)
for _ in range(30):
    loss = w.square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
GLOBAL = "ClipByGlobalNorm(1.0)"
SWEEP = ["--log", "none", "--clip", "none", "--clip", GLOBAL, "--seed", "0", "--seed", "1"]
# A controller in a folder: runs the tasks of an array one after the other, and says what is left of it.
SBATCH = """#!{python}
import pathlib, re, subprocess, sys
place = pathlib.Path({place!r})
text = sys.stdin.read()
place.joinpath("script").write_text(text)
name = re.search("--job-name=(.*)", text)[1]
numbers = re.search("--array=([0-9,]*)", text)[1].split(",")
for number in numbers:
    place.joinpath("queue-" + name + "-" + number).touch()
subprocess.Popen(["sh", "-c", "".join(
    f"SLURM_ARRAY_TASK_ID={{n}} bash {{place}}/script >> {{place}}/log 2>&1; rm {{place}}/queue-{{name}}-{{n}};"
    for n in numbers)], start_new_session=True)
print("7;cluster")
"""
SQUEUE = """#!{python}
import pathlib, sys
(name,) = [word[7:] for word in sys.argv if word.startswith("--name=")]
for path in pathlib.Path({place!r}).glob("queue-" + name + "-*"):
    print(path.name.rpartition("-")[2], "RUNNING")
"""


@pytest.fixture
def desk(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("COLUMNS", "220")
    return tmp_path


@pytest.fixture
def controller(desk, monkeypatch):
    """A folder with an `sbatch` and a `squeue` that are first on the PATH."""
    place = desk / "controller"
    place.mkdir()
    for name, code in (("sbatch", SBATCH), ("squeue", SQUEUE)):
        (place / name).write_text(code.format(python=sys.executable, place=str(place)))
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "QUEUE_SECONDS", 0.1)
    return place


def sweep(*words, code=0):
    done = CliRunner().invoke(main, ["sweep", *SWEEP, *words, "train.py"])
    assert done.exit_code == code, done.output
    return done


def test_the_script_asks_for_what_each_training_gets_and_repeats_the_command(desk):
    words = ["--on", "slurm", "--jobs", "2", "--cpus", "4", "--gpus", "1", "--memory", "16G"]
    out = sweep(*words).stdout
    lines = out.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert "#   2: ClipByGlobalNorm(1.0), seed 0" in lines
    asked = {line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")}
    assert {"array=1,2,3,4%2", "requeue", "cpus-per-task=4", "gres=gpu:1", "mem=16384M", "open-mode=append"} < asked
    assert f"chdir={desk}" in asked
    assert "export OMP_NUM_THREADS=4" in lines
    assert lines[-1].endswith(
        f'gradwatch sweep --only "$SLURM_ARRAY_TASK_ID" {shlex.join([*SWEEP, *words, "train.py"])}'
    )
    subprocess.run(["bash", "-n"], input=out, text=True, check=True)
    assert not list(desk.glob("gradwatch-runs/*/*/job.json"))


def test_other_trainings_are_another_array(desk):
    def name(*words):
        return re.search("--job-name=(.*)", sweep("--on", "slurm", *words).stdout)[1]

    assert name() == name("--jobs", "3")
    assert name() != name("--clip", "AGC(0.01)")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_array_is_submitted_once_and_followed_to_the_table(desk, controller):
    out = sweep("--only", "2", "--on", "slurm", "--submit").stdout
    assert "ClipByGlobalNorm(1.0), seed 0: finished" in out
    assert "verdict" not in out
    out = sweep("--on", "slurm", "--submit").stdout
    assert "1 of 4 runs are finished already." in out
    assert "Submitted as SLURM job 7" in out
    assert "--array=1,3,4\n" in (controller / "script").read_text()
    assert out.count("finished after") == 3
    assert re.search(r"^ ?none +2 ", out, re.M)
    table = out[out.index("policy") : out.index("Report:")]
    again = sweep("--on", "slurm", "--submit").stdout
    assert "4 of 4 runs are finished already." in again
    assert table in again
    assert table in sweep().stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_slurm_still_has_is_followed_and_not_submitted_again(desk, controller):
    name = re.search("--job-name=(.*)", sweep("--on", "slurm").stdout)[1]
    waiting = controller / f"queue-{name}-3"
    waiting.touch()
    subprocess.Popen(["sh", "-c", f"sleep 1; rm {waiting}"])
    done = sweep("--on", "slurm", "--submit", code=2)  # nobody trained
    assert "SLURM still has 1 of the trainings" in done.stdout
    assert "no run ended well" in done.stderr
    assert not (controller / "script").exists()


def test_a_queue_that_cannot_be_read_for_a_while_is_no_end(desk, monkeypatch):
    answers = iter([{1: "PENDING", 3: "RUNNING"}, RunError("squeue refuses: busy"), {1: "RUNNING"}, {}])

    def queued(name):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(slurm, "queued", queued)
    monkeypatch.setattr(slurm, "QUEUE_SECONDS", 0.0)
    moments = [(working, set(ended)) for working, ended in slurm.follow("x", [1, 3])]
    assert moments == [({1}, set()), (set(), set()), ({0}, {1}), (set(), {0})]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "5"], "--only 5: the sweep has 4 trainings, from 1"),
        (["--submit"], "--submit is for --on slurm"),
        (["--on", "slurm", "--gpus", "0.5"], "SLURM deals out whole GPUs"),
        (["--on", "slurm", "--stop-losers"], "--stop-losers and --on slurm do not go together"),
    ],
)
def test_what_makes_no_sense_is_one_line(desk, words, said):
    done = sweep(*words, code=2)
    assert re.search(r"^Error: .*\n\Z", done.stderr, re.M)
    assert said in done.stderr.splitlines()[-1]


def test_where_there_is_no_slurm_it_is_one_line(desk, monkeypatch):
    monkeypatch.setenv("PATH", str(desk))
    done = sweep("--on", "slurm", "--submit", code=2)
    assert "Error: there is no squeue here: wanted a machine of a SLURM cluster" in done.stderr


def test_two_tasks_do_not_train_the_same(desk):
    """As when a scheduler starts one twice, or somebody starts it by hand."""
    asked = Sweep("train.py", (), False, tuple(policies(["none", GLOBAL], [])), (0, 1), options=("--log", "none"))
    folder = asked.jobs()[0].folder
    folder.mkdir(parents=True)
    with FileLock(folder / ".lock"):
        assert f"another sweep is at work in {folder}" in sweep("--only", "1", code=2).stderr


@pytest.fixture
def real():
    """A SLURM whose controller answers."""
    if (
        shutil.which("sbatch") is None
        or subprocess.run(["scontrol", "ping"], check=False, capture_output=True).returncode
    ):
        pytest.skip("needs a SLURM controller")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_slurm_trains_an_array_and_a_requeued_task_goes_on(desk, real):
    (desk / "train.py").write_text(
        "import time\n"
        "open('begun', 'a').write('x')\n"
        "while len(open('begun').read()) < 2:\n"  # the first attempt stays
        "    time.sleep(0.1)\n" + SCRIPT
    )
    words = ["--log", "none", "--clip", "none", "--seed", "0", "--on", "slurm", "--submit", "train.py"]
    process = subprocess.Popen([sys.executable, "-m", "gradwatch", "sweep", *words], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 100
    while not (desk / "begun").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    there = subprocess.run(
        ["squeue", "--me", "--noheader", "--format=%A %j"], capture_output=True, text=True, check=True
    )
    (number,) = re.findall(r"(\d+) gradwatch-train-", there.stdout)
    subprocess.run(["scontrol", "requeue", number], check=True)
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0, out
    assert "none, seed 0: finished after" in out
    assert (desk / "begun").read_text() == "xx"

"""What is started ends when who started it is killed: `kill -9` of a sweep, a demo, `gradwatch ui`."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import all_ended, kill, processes_of

import gradwatch
from gradwatch.launcher.local_pool import run_here
from gradwatch.launcher.mlflow_run import Reservation
from gradwatch.launcher.pool import Task

ROOT = Path(gradwatch.__file__).parents[1]
pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks into /proc")

POOL = """
import sys
from pathlib import Path
from gradwatch.launcher.local_pool import run_here
from gradwatch.launcher.pool import Task

folder = Path(sys.argv[1])
for _ in run_here([Task([sys.executable, "-c", (folder / name).read_text()], {}, folder / f"{name}.log")
                  for name in ("plain", "deaf")], [{}, {}]):
    pass
"""
PLAIN = """
import signal, subprocess, sys, time
try:
    print("there", flush=True)
    time.sleep(300)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""
DEAF = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
print("there", flush=True)
child.wait()
"""
SERVER = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import time; print('there', flush=True); time.sleep(300)"])
"""


@pytest.fixture
def mark(tmp_path):
    """What the processes of a test have in their environment; they end with the test, as it may go."""
    yield tmp_path
    kill(processes_of(tmp_path))


def start(mark, *words, **options):
    """A process that, with all it starts, has `mark` in its environment."""
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "MARK": str(mark), "OMP_NUM_THREADS": "1"},
        start_new_session=True,
        **options,
    )


def wait_until(is_true, process, seconds=120, said=lambda: ""):
    deadline = time.monotonic() + seconds
    while not is_true():
        assert process.poll() is None, said()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_pool_takes_its_processes_with_it(mark, tmp_path):
    """Also those that do not hear SIGINT, and what they started; each is asked before it is ended."""
    (tmp_path / "plain").write_text(PLAIN)
    (tmp_path / "deaf").write_text(DEAF)
    pool = start(mark, "-c", f"import gradwatch.launcher.local_pool as p; p.GRACE_SECONDS = 0.5\n{POOL}", tmp_path)
    logs = [tmp_path / "plain.log", tmp_path / "deaf.log"]
    wait_until(lambda: all(log.exists() and "there" in log.read_text() for log in logs), pool)
    pool.kill()
    pool.wait()
    all_ended(mark)
    assert "interrupted" in logs[0].read_text()


def test_a_pool_that_is_done_leaves_nobody_behind(tmp_path):
    """What a task left running goes on: a courier is in a session of its own; who waits for the pool's end does not."""
    before = processes_of("gradwatch.launcher.reaper")
    for _ in run_here([Task([sys.executable, "-c", ""], {"MARK": str(tmp_path)}, tmp_path / "log")], [{}]):
        pass
    assert set(processes_of("gradwatch.launcher.reaper")) <= set(before)
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_end_of_ui_is_the_end_of_its_server(mark, tmp_path, number):
    """MLflow's server is a process that starts the one that answers, and leaves it behind."""
    (tmp_path / "server").write_text(SERVER)
    code = (
        "import sys, gradwatch.cli.ui as ui\n"
        "ui.server_command = lambda port: [sys.executable, sys.argv[1]]\n"
        "ui.serve(5000, 'sqlite:///mlflow.db')"
    )
    with (tmp_path / "output").open("w") as output:
        ui = start(mark, "-c", code, tmp_path / "server", stdout=output, stderr=output)
    wait_until(lambda: "there" in (tmp_path / "output").read_text(), ui)
    ui.send_signal(number)
    ui.wait()
    all_ended(mark)


IMPORTING = """
import os, time
open(os.environ["MARK"] + "/begun", "w").close()
while not os.path.exists(os.environ["MARK"] + "/go"):
    time.sleep(0.05)
raise ImportError("no longer wanted")
"""
SHORT = """
import torch
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    weight.square().sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_short_run_ends_while_its_courier_still_imports_mlflow(mark, tmp_path):
    """However long a courier that has begun would be waited for."""
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "__init__.py").write_text(IMPORTING)
    (tmp_path / "train.py").write_text(SHORT)
    code = (
        "import gradwatch.recording.courier_process as c; c.CLOSE_SECONDS = c.LAST_SECONDS = 1e6\n"
        f"import os; os.chdir({str(tmp_path)!r}); os.environ['PYTHONPATH'] += os.pathsep + os.getcwd()\n"
        "import sys; sys.path.append(os.getcwd())\n"
        "from gradwatch.cli import main; main(['run', '--experiment', 'short', 'train.py'])"
    )
    run = start(mark, "-c", code, stderr=subprocess.PIPE)
    said = run.communicate(timeout=120)[1].decode()
    couriers = processes_of("sync\0--follow\0" + str(tmp_path))
    (tmp_path / "go").touch()
    assert run.returncode == 0, said
    assert len(couriers) == 1
    assert "5 steps recorded in" in said
    assert "5 of 5 steps are not in MLflow yet; the courier goes on by itself, to its default store" in said
    all_ended(mark)


def test_nobody_creates_a_run_for_a_script_that_is_over(mark, tmp_path, monkeypatch):
    """It is ended while it imports MLflow; once MLflow has been asked, it stays until it is answered."""
    (tmp_path / "mlflow.py").write_text(IMPORTING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("MARK", str(mark))
    reservation = Reservation({"name": "late"}, export=False)
    wait_until((tmp_path / "begun").exists, reservation._child)
    reservation.abandon()
    assert reservation.wait(60) is None
    assert "-15" in reservation.problem
    all_ended(mark)


def test_a_run_that_is_there_after_the_script_is_not_taken(monkeypatch):
    """Between the script's end and the process', too: nobody would end it."""
    code = """
import json, sys
sys.stdin.readline()
print('MLflow says something')
print(json.dumps({'run_id': 'r', 'full_uri': 'u'}), flush=True)
sys.exit(sys.stdin.readline() == 'taken\\n')
"""
    made = []

    def child(*_):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        made.append(subprocess.Popen([sys.executable, "-c", code], text=True, **pipes))
        monkeypatch.setattr(made[-1], "terminate", lambda: None)  # it has asked MLflow already
        return made[-1]

    monkeypatch.setattr("gradwatch.launcher.mlflow_run._child", child)
    for late in (False, True):
        reservation = Reservation({"name": "short"}, export=False)
        if late:
            reservation.abandon()
        made[-1].stdin.write("\n")
        made[-1].stdin.flush()
        assert reservation.wait(60) == (None if late else {"run_id": "r"})
        assert made[-1].returncode == int(not late)


@pytest.mark.parametrize(("hears", "takes"), [(False, b""), (True, b""), (True, b"taken\n")])
def test_who_creates_a_run_that_nobody_waits_for_takes_it_back_and_ends(tmp_path, hears, takes):
    """The script is over, or was killed, before MLflow had answered; or it hears that, and is about to end."""
    code = (
        "import sys, gradwatch.tracking.create_run as c\n"
        "c._create = lambda order: sys.stdin.readline() and {'run_id': 'r', 'full_uri': 'u'}\n"
        "c._settle = lambda order: print(order['run_id'], order['status'], file=sys.stderr)\n"
        "c.main('create', '{}')"
    )
    child = start(tmp_path, "-c", code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if not hears:
        child.stdout.close()
    child.stdin.write(b"MLflow answers\n" + takes)
    child.stdin.close()
    assert child.stderr.read() == (b"" if takes else b"r FINISHED\n")
    assert child.wait() == 0

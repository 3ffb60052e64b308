"""`gradwatch sweep --on ray`: the same trainings and the same table on a cluster, whichever of its nodes die."""

import csv
import os
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from processes import start_sweep

import gradwatch
from gradwatch.cli import main
from gradwatch.launcher.pool import Resources
from gradwatch.launcher.ray_pool import _train, _wanted
from gradwatch.launcher.sweep import THREADS
from gradwatch.storage.folder import read_manifest
from gradwatch.storage.shared_folder import run_folders

ROOT = Path(gradwatch.__file__).parents[1]
# On the cluster, seed 1 stays until it is told to go on.
SCRIPT = """
import argparse, os, pathlib, time
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
args = parser.parse_args()
torch.manual_seed(args.seed)
w = torch.nn.Parameter(torch.randn(4) + 3)
optimizer = torch.optim.SGD([w], lr=0.05)
for step in range(40):
    if step == 20 and args.seed == 1 and "NODE" in os.environ:
        pathlib.Path(f"waiting-{os.environ['NODE']}").touch()
        while not os.path.exists("go"):
            time.sleep(0.05)
    loss = w.square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SWEEP = ["--log", "none", "--clip", "ClipByGlobalNorm(1.0)", "--seed", "0", "--seed", "1"]
TRAIN = ["train.py", "--seed", "{seed}"]


@pytest.fixture
def desk(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def nodes():
    """A cluster of three nodes; its head has no room for a training."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        patch.setenv("RAY_ADDRESS", made.address)

        def add(name):
            return made.add_node(num_cpus=1, env_vars={"NODE": name})

        yield SimpleNamespace(add=add, remove=made.remove_node, there={name: add(name) for name in "ab"})
        made.shutdown()


def start(*args):
    return start_sweep(*SWEEP, *args, *TRAIN)


def waiting(desk, process):
    """The name of a node whose training waits to go on."""
    deadline = time.monotonic() + 120
    while not (found := list(desk.glob("waiting-*"))):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found[0].name.removeprefix("waiting-")


def finished(process):
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, out + err
    return out


def compared(folder):
    """The table of a sweep, without what depends on the machine's speed."""
    (path,) = folder.glob("sweep-*/comparison.csv")
    with path.open() as file:
        return [{name: value for name, value in row.items() if "seconds" not in name} for row in csv.DictReader(file)]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_node_that_dies_costs_its_trainings_only(desk, nodes, sweep):
    process = start("--on", "ray")
    name = waiting(desk, process)
    nodes.remove(nodes.there.pop(name), allow_graceful=False)
    (desk / "go").touch()
    out = finished(process)
    nodes.there[name] = nodes.add(name)
    assert out.count("finished after") == 2
    assert len(re.findall(r"seed 1: finished .*, tried 2 times, as its node died", out)) == 1
    sweep(*SWEEP, "--dir", "local", "--jobs", "2", *TRAIN)
    assert compared(desk / "gradwatch-runs") == compared(desk / "local")
    assert len(compared(desk / "local")) == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ctrl_c_lets_the_trainings_close_and_the_same_command_goes_on(desk, nodes):
    process = start("--on", "ray")
    waiting(desk, process)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), out + err
    assert re.search(r"^Stopped: \d of 2 runs are finished and kept; the same command goes on\.$", err, re.M)
    statuses = {read_manifest(folder).status for folder in run_folders(desk / "gradwatch-runs")}
    assert "KILLED" in statuses
    assert "RUNNING" not in statuses
    done = len(list(desk.glob("gradwatch-runs/*/*/job.json")))
    (desk / "go").touch()
    assert finished(start("--on", "ray")).count("finished after") == 2 - done


def test_each_training_gets_a_gpu_and_its_share_of_the_cpus_or_what_is_asked_for():
    def wanted(asked, *resources):
        said = []
        ray = SimpleNamespace(nodes=lambda: [{"Alive": True, "Resources": one} for one in resources])
        return (*_wanted(ray, asked, said.append), *said)

    small, large = {"CPU": 4.0}, {"CPU": 32.0, "GPU": 4.0, "memory": 2.0**30}
    assert wanted(Resources(), small) == (1, 0.0, None)
    assert wanted(Resources(), small, large) == (8, 1.0, None)
    assert wanted(Resources(gpus=0.5), small, large) == (4, 0.5, None)
    assert wanted(Resources(gpus=0), small, large) == (1, 0, None)
    *_, said = wanted(Resources(6, 2, 2**31), small, large)
    assert said.startswith("Note: no node of the Ray cluster has 6 CPU, 2 GPU, 2.14748e+09 memory: the trainings wait")


def on_a_node(place, token, **sent):
    code = "import os; print(os.environ['OMP_NUM_THREADS'], os.environ['MLFLOW_X'], os.environ['HERE'])"
    words = [sys.executable, "-c", code]
    environment = {**dict.fromkeys(THREADS, "3"), "MLFLOW_X": "sweep", "HERE": "sweep", **sent}
    return _train(sys.executable, environment, words, {}, str(place), token, None, str(place.parents[1]))


def test_a_node_says_that_it_does_not_see_the_folder_unless_a_server_gets_the_run(tmp_path, monkeypatch):
    """And its own environment comes first, but for what is the sweep's."""
    monkeypatch.setenv("MLFLOW_X", "node")
    monkeypatch.setenv("HERE", "node")
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    output = tmp_path / "job" / "output.log"
    code, _, _, said = on_a_node(output, "token")
    assert code is None
    assert f"does not see {output.parent}: pass --dir a folder on a file system that all nodes share" in said
    assert not output.parent.exists()
    code, _, _, said = on_a_node(output, "token", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert (code, said) == (0, "")
    output.write_text("token")
    assert on_a_node(output, "token")[0] == 0
    assert output.read_text() == "3 sweep node\n"


def test_without_ray_it_is_one_line(desk, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    result = CliRunner().invoke(main, ["sweep", *SWEEP, "--on", "ray", *TRAIN])
    assert result.exit_code == 2
    assert re.fullmatch(r"Error: Ray cannot be loaded \(.*ray.*\): pip install 'gradwatch\[ray\]'\n", result.stderr)


def test_ray_client_is_refused_with_the_reason(desk, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    result = CliRunner().invoke(main, ["sweep", *SWEEP, "--on", "ray", *TRAIN])
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: RAY_ADDRESS=ray://head:10001 is Ray Client")
    assert not run_folders(desk / "gradwatch-runs")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cpus", "2"], "--cpus is for --on"),
        (["--on", "ray", "--memory", "much"], "'much': wanted a size such as 16G or 512M"),
    ],
)
def test_resources_that_make_no_sense_are_one_line(desk, words, said):
    result = CliRunner().invoke(main, ["sweep", *SWEEP, *words, *TRAIN])
    assert result.exit_code == 2
    assert said in result.stderr

"""A search that gets Ctrl-C in the middle of a trial, and the same command again: here and on a cluster."""

import os
import re
import signal
import time

from processes import start_sweep

from gradwatch.storage.folder import read_manifest
from gradwatch.storage.shared_folder import run_folders

# The second training that is begun, that of the first trial, stays until it is ended.
SCRIPT = """
import pathlib, time
import torch
begun = len(list(pathlib.Path().glob("begun-*")))
pathlib.Path(f"begun-{begun}").touch()
w = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([w], lr=0.05)
for step in range(40):
    while begun == 1 and step == 20:
        pathlib.Path("waits").touch()
        time.sleep(0.05)
    loss = w.square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SEARCH = ["--search", "2", "--metric", "loss", "--log", "none", "--lr-scale", "0.1..1"]


def check(desk, *where):
    """In the folder `desk`, which is the current one."""
    (desk / "train.py").write_text(SCRIPT)
    words = [*SEARCH, *where, "train.py"]
    process = start_sweep(*words)
    deadline = time.monotonic() + 400
    while not (desk / "waits").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no trial was begun"
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=200)
    assert process.returncode in (130, -signal.SIGINT), out + err
    assert err.splitlines()[-1] == "Stopped: 1 of 2 runs are finished and kept; the same command goes on."
    process = start_sweep(*words)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    assert "A search of 2 trials by loss: 2 trained to their end." in re.sub(r"\s+", " ", out)
    runs = [read_manifest(folder) for folder in run_folders(desk / "gradwatch-runs")]
    assert sorted(run.status for run in runs) == ["FINISHED", "FINISHED", "FINISHED", "KILLED"]
    (killed,) = [run for run in runs if run.status == "KILLED"]
    assert killed.lr_scale in [run.lr_scale for run in runs if run.status == "FINISHED"], "the same trial again"

"""`gradwatch run` on scripts as people write them: what is recorded is what an oracle saw, and nothing else changes."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gradwatch
from gradwatch.stores import run_folders

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts_in_the_wild"
# script: steps of each optimizer, the ways of reaching them in the record
STEPS = {
    "argparse_script": [40],
    "main_module": [12],
    "trainer_class": [20],
    "closure": [8],
    "gan": [20, 20],
    "amp": [25],
    "accumulation": [20],
    "crashes": [51],
    "interrupted": [30],
    "rebuilt": [10, 5, 10],
    "loose": [15],
    "two_kinds": [15, 15],
}
SILENT = ("by_hand", "spawns", "clips_itself")  # compared with plain Python, not with the oracle
CLIPS = [["--clip", "ClipByGlobalNorm(0.1)"], ["--script-clip", "replace"], ["--script-clip", "replace", "--clip",
         "ClipByGlobalNorm(0.5)"]]  # fmt: skip


def environment():
    path = os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def wild(how, out, commands):
    words = json.dumps([(command, None) for command in commands])
    subprocess.run(
        [sys.executable, HERE / "wild.py", how, out], input=words, text=True, check=True, env=environment(), timeout=200
    )
    return [out / str(i) for i in range(len(commands))]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Per script, the folder of its run under the oracle (`plain`) and of that under `gradwatch run` (`watched`)."""
    out = tmp_path_factory.mktemp("wild")
    names = [*STEPS, *SILENT]
    paths = [str(SCRIPTS / f"{name}.py") for name in names]
    plain = wild("oracle", out / "plain", [[path] for path in paths])
    options = ["--log", "none"]
    clips = [[*options, *clip, str(SCRIPTS / "clips_itself.py")] for clip in CLIPS]
    watched = wild("gradwatch", out / "watched", [*([*options, path] for path in paths), *clips])
    return {
        "plain": dict(zip(names, plain, strict=True)),
        "watched": dict(zip([*names, *map(str, CLIPS)], watched, strict=True)),
    }


def lanes(folder):
    """`[T, L]` norms and `[T]` losses of each optimizer that was recorded, in the order of their first steps."""
    found = []
    for path in run_folders(folder / "gradwatch-runs"):
        history = gradwatch.open_history(path)
        for name, lane in history.lanes().items():
            loss = lane.total(next((k for k in (f"loss/{name}", "loss") if k in lane.logged), "loss"))
            found.append((lane.total("time")[0], lane.layer("grad_norm"), loss))
    return [(norms, loss) for _, norms, loss in sorted(found, key=lambda lane: lane[0])]


@pytest.mark.parametrize("name", [name for name in STEPS if name not in ("rebuilt", "two_kinds")])
def test_the_recorded_norms_and_losses_are_those_of_the_oracle(folders, name):
    seen = pickle.loads((folders["plain"][name] / "seen").read_bytes())
    assert [len(rows) for rows in seen] == STEPS[name], "the oracle itself"
    recorded = lanes(folders["watched"][name])
    assert len(recorded) == len(seen)
    for (norms, losses), rows in zip(recorded, seen, strict=True):
        np.testing.assert_allclose(norms, np.array([norm for norm, _ in rows]), rtol=2e-6)
        true = np.array([loss for _, loss in rows])
        assert np.isfinite(losses).all()
        known = np.isfinite(true)  # what the loss scale made infinite is not known to the oracle
        assert known.mean() > 0.5
        np.testing.assert_allclose(losses[known], true[known], rtol=2e-6)


@pytest.mark.parametrize("name", [*STEPS, *SILENT])
def test_output_and_exit_code_are_those_of_plain_python(folders, name):
    plain, watched = folders["plain"][name], folders["watched"][name]
    assert (watched / "stdout").read_text() == (plain / "stdout").read_text()
    assert (watched / "code").read_text() == (plain / "code").read_text()

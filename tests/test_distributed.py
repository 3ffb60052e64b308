"""Several processes: what is recorded and done equals a single process, however the tensors are spread (tests/ranks.py)."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import ranks
import torch

from gradwatch import open_history

pytestmark = pytest.mark.skipif(sys.platform == "win32" or not torch.distributed.is_available(), reason="needs gloo")
HERE = Path(__file__).parent
CASES = [
    (size, name, i)
    for size, scenarios in ranks.SCENARIOS.items()
    for name, (*_, pairs) in scenarios.items()
    for i in range(len(pairs))
]


def launch(size, script, *args):
    """`torchrun` with `size` processes on this machine."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)])}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}", script, *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """The folder in which the ranks left what they saw; all scenarios of one number of ranks run once."""
    folders = {}

    def run(size):
        if size not in folders:
            folders[size] = tmp_path_factory.mktemp(f"ranks{size}")
            done = launch(size, str(HERE / "ranks.py"), str(folders[size]))
            assert done.returncode == 0, done.stderr[-3000:]
        return folders[size]

    return run


def quantities(history):
    return sorted({*history.per_layer, "clipped_norm"})


@pytest.mark.parametrize(("size", "name", "i"), CASES, ids=str)
def test_ranks_together_are_one_process(size, name, i, launched, tmp_path):
    folder = launched(size)
    *_, dtype, unused, pairs = ranks.SCENARIOS[size][name]
    clip, renorm = pairs[i]
    (run,) = (folder / name / str(i)).iterdir()  # rank 0 alone writes
    got = open_history(run)
    seen = [torch.load(folder / f"{name}-{i}-rank{r}.pt") for r in range(size)]

    for layer, weights in seen[0]["weights"].items():
        assert all(torch.equal(weights, other["weights"][layer]) for other in seen[1:])
    for step, norms in enumerate(seen[0]["oracle"]):
        names = [n.removeprefix("module.") for n in norms]
        want = [np.nan if n is None else n for n in norms.values()]
        np.testing.assert_allclose(got.layer("grad_norm")[step], want, rtol=1e-5, err_msg=f"{names} at step {step}")
    if unused or name.endswith("bf16"):
        return  # the oracle is all there is: another split of the batch gives other gradients

    alone = ranks.train(tmp_path, lambda model: model, 1, dtype, unused, clip, renorm)
    (own,) = tmp_path.iterdir()
    want = open_history(own)
    assert (got.layers, quantities(got)) == (want.layers, quantities(want))
    for quantity in quantities(want):
        message = f"{quantity} under {clip or renorm}"
        # a layer of few elements may have some exactly at a threshold
        np.testing.assert_allclose(got.layer(quantity), want.layer(quantity), rtol=1e-5, atol=1e-7, err_msg=message)
    for layer, weights in alone["weights"].items():
        torch.testing.assert_close(seen[0]["weights"][layer], weights, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("size", [2, 4])
def test_a_plain_step_has_one_collective_however_many_layers(size, launched):
    for name, (*_, pairs) in ranks.SCENARIOS[size].items():
        for i, (clip, renorm) in enumerate(pairs):
            if renorm or "Norm(0.1)" not in (clip or "ClipByGlobalNorm(0.1)") or "Value" in (clip or ""):
                continue
            (run,) = (launched(size) / name / str(i)).iterdir()
            plain = open_history(run).total("collectives")[1::2]  # every second step also measures weights
            assert set(plain) == ({0} if name.startswith("ddp") else {1}), (name, clip)

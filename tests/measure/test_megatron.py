"""Layers of Megatron-Core on two ranks (ranks_megatron.py). Skips without it."""

import importlib.util
import sys

import numpy as np
import pytest
import torch
from torchrun import SUPPORT, torchrun

from gradwatch import open_history

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="needs gloo"),
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs megatron-core"),
]


def test_megatrons_layers_are_measured_where_each_rank_has_the_whole_and_else_refused(tmp_path):
    done = torchrun(2, SUPPORT / "ranks_megatron.py", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        seen, cut = (torch.load(tmp_path / size / f"{rank}.pt") for size in ("1", "2"))
        assert "up.weight" in seen["marked"]  # on one rank's worth of tensor parallelism, too
        (run,) = (tmp_path / "1" / "runs").iterdir()
        np.testing.assert_allclose(open_history(run).layer("grad_norm"), seen["norms"], rtol=1e-5)
        assert "up.weight is one rank's slice of a tensor-parallel layer" in cut["said"]

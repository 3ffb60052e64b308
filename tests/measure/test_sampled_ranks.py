"""What is sampled in a loop that accumulates, over several processes: two ranks record what one process does."""

import sys

import numpy as np
import pytest
import torch
from torchrun import recorded

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32" or not torch.distributed.is_available(), reason="needs gloo"),
]


KINDS = ("ddp", "ddp-no-sync", "fsdp", "tp")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return recorded(tmp_path_factory, 2, "ranks_sampled.py", *KINDS)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return recorded(tmp_path_factory, 1, "ranks_sampled.py", "one")["one"]


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_together_are_one_process(kind, ranks, alone):
    together = ranks[kind]
    np.testing.assert_allclose(together.total("grad_norm"), alone.total("grad_norm"), rtol=1e-5)
    first, wanted = (history.total("micro_grad_norm") for history in (together, alone))
    assert np.isfinite(wanted).tolist() == [True, False] * 3
    if kind == "ddp-no-sync":  # this rank's own: half of the examples, and as large as that makes it
        assert together.total("micro_batches")[0] == 6
        np.testing.assert_allclose(first, wanted, rtol=0.5)
        assert not np.allclose(first[::2], wanted[::2], rtol=1e-3)
    else:
        assert together.total("micro_batches")[0] == 3
        np.testing.assert_allclose(first, wanted, rtol=1e-5)
    assert together.histograms.layers == alone.histograms.layers == alone.layers
    assert together.histograms.step.tolist() == [0, 2, 4]
    for name, values in alone.histograms.values.items():
        np.testing.assert_allclose(together.histograms.values[name], values, atol=0.04, err_msg=name)
        assert (
            np.isclose(together.histograms.values[name], values, atol=1e-6)
        ).mean() > 0.9  # but for an element at an edge
    for name in ("sigma_max", "stable_rank"):
        assert np.isfinite(alone.layer(name)[::2, ::2]).all()
        np.testing.assert_allclose(together.layer(name), alone.layer(name), rtol=1e-4, err_msg=name)

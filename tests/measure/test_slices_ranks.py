"""Slices of tensors that are spread over processes: two ranks record and do what one process does, or say why not."""

import sys

import numpy as np
import pytest
import torch
from test_activations_ranks import recorded
from test_distributed import SUPPORT, torchrun

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32" or not torch.distributed.is_available(), reason="needs gloo"),
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return {kind: recorded(1, kind, folder / kind, "ranks_slices.py") for kind in ("one", "one-units", "one-rows")}


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "tp", "fsdp-units"])
def test_two_ranks_together_are_one_process(kind, alone, tmp_path):
    together, one = (
        recorded(2, kind, tmp_path / kind, "ranks_slices.py"),
        alone[f"one{kind[4:]}" if "-" in kind else "one"],
    )
    assert together.layers == one.layers
    assert [*one.layers[:3], one.layers[5], one.layers[-1]] == [
        *(f"experts[{i}]" for i in range(3)),
        "heads[2]",
        "inner[3]",
    ]
    for name in one.per_layer:  # all layers are small enough for the update ratio to be exact
        np.testing.assert_allclose(together.layer(name), one.layer(name), rtol=1e-5, atol=1e-7, err_msg=name)
    assert (one.layer("clip_coef") < 1).any()
    assert set(together.per_layer) == set(one.per_layer)


@pytest.mark.parametrize("kind", ["ddp-rows", "fsdp-rows", "tp-vocabulary-rows"])
def test_the_largest_row_of_two_ranks_is_that_of_one_process(kind, alone, tmp_path):
    together, one = recorded(2, kind, tmp_path / kind, "ranks_slices.py"), alone["one-rows"]
    assert np.isfinite(one.layer("row_index")[:, :2]).all()
    assert one.layer("row_index")[:, :2].max() >= 2  # a row of the other rank, too
    for name in ("row_index", "row_share", "grad_norm"):
        np.testing.assert_allclose(together.layer(name), one.layer(name), rtol=1e-5, err_msg=name)


def test_rows_that_are_cut_over_ranks_are_refused(tmp_path):
    done = torchrun(2, SUPPORT / "ranks_slices.py", "tp-rows", tmp_path / "tp")
    assert done.returncode != 0
    assert "rows are spread over ranks" in done.stdout


def test_units_of_slices_that_are_spread_over_ranks_are_refused(tmp_path):
    done = torchrun(2, SUPPORT / "ranks_slices.py", "tp-units", tmp_path / "tp")
    assert done.returncode != 0
    assert "its units are spread over ranks" in done.stdout
    assert not [*(tmp_path / "tp").glob("*")] or not [*(tmp_path / "tp").rglob("*.parquet")]

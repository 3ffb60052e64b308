"""Slices of tensors that are spread over processes: two ranks record and do what one process does, or say why not."""

import sys

import numpy as np
import pytest
import torch
from torchrun import recorded

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32" or not torch.distributed.is_available(), reason="needs gloo"),
]


SPREAD, ROWS = ("ddp", "fsdp", "tp", "fsdp-units"), ("ddp-rows", "fsdp-rows", "tp-vocabulary-rows")
REFUSED = ("tp-rows", "tp-units")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return recorded(tmp_path_factory, 2, "ranks_slices.py", *SPREAD, *ROWS, *REFUSED)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return recorded(tmp_path_factory, 1, "ranks_slices.py", "one", "one-units", "one-rows")


@pytest.mark.parametrize("kind", SPREAD)
def test_two_ranks_together_are_one_process(kind, ranks, alone):
    together, one = ranks[kind], alone["one-units" if kind.endswith("-units") else "one"]
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


@pytest.mark.parametrize("kind", ROWS)
def test_the_largest_row_of_two_ranks_is_that_of_one_process(kind, ranks, alone):
    together, one = ranks[kind], alone["one-rows"]
    assert np.isfinite(one.layer("row_index")[:, :2]).all()
    assert one.layer("row_index")[:, :2].max() >= 2  # a row of the other rank, too
    for name in ("row_index", "row_share", "grad_norm"):
        np.testing.assert_allclose(together.layer(name), one.layer(name), rtol=1e-5, err_msg=name)


def test_rows_and_units_that_are_cut_over_ranks_are_refused(ranks):
    assert "rows are spread over ranks" in ranks["tp-rows"]
    assert "its units are spread over ranks" in ranks["tp-units"]

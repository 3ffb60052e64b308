"""The table of launches is what the code of today launches, and holds the bars that were set."""

import json
from pathlib import Path

import launches
import pytest
import torch

TABLE = json.loads((Path(__file__).parents[2] / "docs" / "measurements" / "launches_fake_cuda.json").read_text())
ROWS = {(row["tensors"], row["dtype"], row["way"]): row for row in TABLE["rows"]}
QUICK = [key for key in ROWS if key[0] == 6]
pytestmark = pytest.mark.skipif(
    torch.__version__.split("+")[0] != TABLE["torch"].split("+")[0], reason="another torch takes other steps"
)


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(key, marks=[] if key in QUICK else [pytest.mark.slow], id=repr(key))
        for key in ROWS
        if key[0] < 1000
    ],  # 40 s each
)
def test_the_table_is_of_this_code(key):
    tensors, dtype, way = key
    again = "scripts/bench/launches.py -o docs/measurements/launches_fake_cuda.json prints it"
    assert launches.row(tensors, getattr(torch, dtype), way) == ROWS[key], again


def test_a_step_waits_for_nothing_and_allocates_little():
    assert {tensors for tensors, _, _ in ROWS} >= {6, 74, 147}
    assert {key: row for key, row in ROWS.items() if row["reads"] or row["copies"]} == {}
    large = {key for key, row in ROWS.items() if row["allocations"]}
    assert {way for _, _, way in large} <= {"AGC(0.01)"}  # a norm of each row of an embedding


@pytest.mark.parametrize("tensors", [6, 74])
def test_measuring_the_weights_takes_thirty_launches_at_most(tensors):
    assert ROWS[tensors, "float32", "none"]["measured"] <= 30


@pytest.mark.parametrize("tensors", [6, 74])
def test_recording_takes_half_the_launches_of_torchs_clip(tensors):
    assert ROWS[tensors, "float32", "none"]["launches"] <= ROWS[tensors, "float32", "torch clip"]["launches"] / 2

"""The table of launches is what the code of today launches, and holds the bars that were set."""

import json
from pathlib import Path

import launches
import pytest
import torch

from gradwatch.recording import torch_patches

MEASUREMENTS = Path(__file__).parents[2] / "docs" / "measurements"
TABLE = json.loads((MEASUREMENTS / "launches_fake_cuda.json").read_text())
ROWS = {(row["tensors"], row["dtype"], row["way"]): row for row in TABLE["rows"] if not row["triton"]}
AT_ONCE = {(row["tensors"], row["dtype"], row["way"]): row for row in TABLE["rows"] if row["triton"]}
QUICK = [key for key in ROWS if key[0] == 6]
WAYS = ("none", "ClipByGlobalNorm(1.0)")  # of the larger ones: the others take long to count, and nothing else
pytestmark = pytest.mark.skipif(
    torch.__version__.split("+")[0] != TABLE["torch"].split("+")[0], reason="another torch takes other steps"
)


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(key, marks=[] if key in QUICK else [pytest.mark.slow], id=repr(key))
        for key in ROWS
        if key[0] < 147 or (key[0] == 147 and key[2] in WAYS)
    ],
)
def test_the_table_is_of_this_code(key):
    tensors, dtype, way = key
    again = "scripts/bench/launches.py -o docs/measurements/launches_fake_cuda.json prints it"
    assert launches.row(tensors, getattr(torch, dtype), way) == ROWS[key], again
    if key in AT_ONCE:
        assert launches.row(tensors, getattr(torch, dtype), way, triton=True) == AT_ONCE[key], again


def test_a_step_waits_for_nothing_and_allocates_little():
    assert {tensors for tensors, _, _ in ROWS} >= {6, 74, 147}
    assert [row for row in TABLE["rows"] if row["reads"] or row["copies"]] == []
    large = {row["way"] for row in TABLE["rows"] if row["allocations"]}
    assert large <= {"AGC(0.01)"}  # a norm of each row of an embedding


@pytest.mark.parametrize(("tensors", "most"), [(6, 30), (74, 30), (147, 30), (1000, 44)])
def test_measuring_the_weights_takes_few_launches_more(tensors, most):
    assert ROWS[tensors, "float32", "none"]["measured"] <= most


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tensors", [6, 74])
@pytest.mark.parametrize(("way", "most"), [("none", 4), ("ClipByGlobalNorm(1.0)", 8)])
def test_recording_takes_four_launches_and_a_clip_four_more(tensors, way, most, dtype):
    """Three of the norms and one that brings them together; a net of more elements takes more of each, as torch's."""
    assert ROWS[tensors, dtype, way]["launches"] <= most
    larger = ROWS[147, dtype, way]["launches"] - ROWS[147, dtype, "none"]["launches"]
    assert larger <= most - 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("way", ["none", "ClipByGlobalNorm(1.0)", "ClipByNorm(1.0)"])
def test_with_triton_launches_do_not_grow_with_the_layers(way, dtype):
    rows = [AT_ONCE[tensors, dtype, way] for tensors in (74, 147, 1000)]
    large, larger, of_small_layers = (row["launches"] for row in rows)
    assert large == larger == of_small_layers + 1
    assert large <= {"none": 2, "ClipByGlobalNorm(1.0)": 3}.get(way, 6)
    assert max(row["measured"] for row in rows) <= 30


def test_a_device_launched_as_many():
    """As the profiler counted them, in ten phases of GPT-2 124M, one of which is measured. By then what a step divides
    by came of three kernels of torch's, where there is one now.
    """
    counted = json.loads((MEASUREMENTS / "gpu_h100_norms.json").read_text())["runs"]
    for run, table in zip(counted.values(), (ROWS, AT_ONCE), strict=True):
        kernels = {way: found["kernels"] for way, found in run["launches"].items()}
        for phase, way in (("gradwatch no clip + step", "none"), ("gradwatch clip + step", "ClipByGlobalNorm(1.0)")):
            row = table[147, "float32", way]
            own = 10 * (row["launches"] + 2 * (table is AT_ONCE and way != "none")) + row["measured"]
            assert kernels[phase] - kernels["step alone"] == pytest.approx(own, abs=2), way


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_agc_takes_four_launches_for_each_tensor_at_most(dtype):
    """Two norms and a multiplication; coefficients and shares are computed for the units of all tensors at once."""
    assert ROWS[74, dtype, "AGC(0.01)"]["launches"] <= 300


@pytest.mark.parametrize("tensors", [6, 74, 147])
def test_recording_takes_half_the_launches_of_torchs_clip(tensors):
    assert ROWS[tensors, "float32", "none"]["launches"] <= ROWS[tensors, "float32", "torch clip"]["launches"] / 2


@pytest.mark.parametrize(("tensors", "most"), [(74, 30), (147, 70), (1000, 61)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_coefficient_for_each_layer_takes_no_launch_for_each_small_one(tensors, most, dtype):
    assert ROWS[tensors, dtype, "ClipByNorm(1.0)"]["launches"] <= most


def test_who_counts_leaves_nothing_wrapped():
    before = torch_patches._seen.listeners
    launches.row(6, torch.float32, "none")
    assert torch_patches._seen.listeners == before

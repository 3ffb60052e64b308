"""What a step makes Python do does not grow with the number of tensors; counted, so the same on every machine."""

import json
import platform
from pathlib import Path

import host_time
import pytest
import torch

TABLE = json.loads((Path(__file__).parents[2] / "docs" / "measurements" / "host_work.json").read_text())
ROWS = {(row["tensors"], row["way"]): row for row in TABLE["rows"]}
OURS = ("none", "ClipByGlobalNorm(1.0)")


@pytest.mark.parametrize("way", OURS)
def test_python_does_nothing_for_each_tensor(way):
    few, many = host_time.row(6, way), host_time.row(74, way)
    assert (few["instructions"], few["calls"]) == (many["instructions"], many["calls"])


@pytest.mark.parametrize("way", OURS)
def test_of_147_tensors_it_is_at_most_two_thirds_of_what_torchs_clip_does(way):
    assert host_time.row(147, way)["instructions"] <= host_time.row(147, "torch clip")["instructions"] * 2 / 3


@pytest.mark.skipif(
    (platform.python_version_tuple()[:2], torch.__version__.split("+")[0])
    != (tuple(TABLE["python"].split(".")[:2]), TABLE["torch"].split("+")[0]),
    reason="another Python or torch takes other steps",
)
@pytest.mark.parametrize("way", host_time.WAYS)
def test_the_table_is_about_this_code(way):
    """To a tenth: a small change of the code needs no new table."""
    again = "scripts/bench/host_time.py -o docs/measurements/host_work.json writes it"
    found, known = host_time.row(6, way), ROWS[6, way]
    assert found["instructions"] == pytest.approx(known["instructions"], rel=0.1), again
    assert found["calls"] == pytest.approx(known["calls"], rel=0.1), again

"""What a step makes Python do does not grow with the number of tensors; counted, so the same on every machine."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
TABLE = json.loads((ROOT / "docs" / "measurements" / "host_work.json").read_text())
WAYS = ("torch clip", "none", "ClipByGlobalNorm(1.0)")
OURS = WAYS[1:]
pytestmark = pytest.mark.slow


def by_way(table):
    return {(row["tensors"], row["way"]): (row["instructions"], row["calls"]) for row in table["rows"]}


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """The rows of a process of its own: what others have imported, wrapped and left behind has a part in them."""
    path = tmp_path_factory.mktemp("counted") / "host_work.json"
    script = ROOT / "scripts" / "bench" / "host_time.py"
    subprocess.run([sys.executable, script, "-o", path], check=True, capture_output=True, timeout=200)
    return by_way(json.loads(path.read_text()))


@pytest.mark.parametrize("way", OURS)
def test_python_does_nothing_for_each_tensor(counted, way):
    assert counted[6, way] == counted[74, way] == counted[147, way] == counted[1000, way]


@pytest.mark.parametrize(("way", "share"), [("none", 2 / 5), ("ClipByGlobalNorm(1.0)", 1 / 2)])
def test_of_147_tensors_it_is_at_most_half_of_what_torchs_clip_does(counted, way, share):
    assert counted[147, way][0] <= counted[147, "torch clip"][0] * share


@pytest.mark.skipif(
    (platform.python_version_tuple()[:2], torch.__version__.split("+")[0])
    != (tuple(TABLE["python"].split(".")[:2]), TABLE["torch"].split("+")[0]),
    reason="another Python or torch takes other steps",
)
@pytest.mark.parametrize("way", WAYS)
def test_the_table_is_about_this_code(counted, way):
    """To a tenth: a small change of the code needs no new table."""
    again = "scripts/bench/host_time.py -o docs/measurements/host_work.json writes it"
    assert counted[6, way] == pytest.approx(by_way(TABLE)[6, way], rel=0.1), again

"""A rank that dies, hangs or raises: the other ends as it would without gradwatch, and its steps are recorded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not hasattr(os, "fork") or not torch.distributed.is_available(), reason="needs gloo and fork"),
]
ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"
KINDS = ["ddp", "fsdp2"]
WATCHED = ["watched", "clip", "halt_on"]
CASES = [("exits", "before the step"), ("hangs", "before the step")]
RAISES = rf"({'|'.join(KINDS)}), (bare|clip), raises, before the step, \d"


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """How the rank beside the one that ended badly did end, by case."""
    folder = tmp_path_factory.mktemp("ends")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(SUPPORT)])}
    ways = "|".join(f"{how}, {place}" for how, place in CASES)
    wanted = f"({'|'.join(KINDS)}), ({'|'.join(['bare', *WATCHED])}), ({ways}), 1|{RAISES}"
    done = subprocess.run(
        [sys.executable, SUPPORT / "ranks_that_end.py", folder, wanted],
        env=env, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((folder / "ends.json").read_text())
    return {(end["kind"], end["watched"], end["how"], end["bad"]): end for end in found}


@pytest.mark.parametrize("how", [how for how, _ in CASES])
@pytest.mark.parametrize("watched", WATCHED)
@pytest.mark.parametrize("kind", KINDS)
def test_the_other_rank_ends_as_it_would_unwatched(kind, watched, how, ends):
    end, bare = ends[kind, watched, how, 1], ends[kind, "bare", how, 1]
    assert end["code"] == bare["code"], end["said"]
    taken = end["taken"][0]
    assert end["recorded"] in (taken, taken + 1)  # a step that has begun has its row
    assert end["taken"][1] <= taken
    assert end["status"] == ("KILLED" if how == "hangs" else "FAILED")
    assert end["problems"] == []


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_beside_a_rank_that_raises_the_other_ends_as_it_would_unwatched(kind, bad, ends):
    """The record is rank 0's, whichever of the two it was."""
    end, bare = ends[kind, "clip", "raises", bad], ends[kind, "bare", "raises", bad]
    assert end["code"] == bare["code"] == 1, end["said"]
    assert end["recorded"] in (end["taken"][0], end["taken"][0] + 1)
    assert (end["status"], end["problems"]) == ("FAILED", [])

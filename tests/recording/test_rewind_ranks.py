"""`Rewind` over two ranks: all go back together, also where one alone saw why."""

import sys

import numpy as np
import pytest
import torch
from torchrun import SUPPORT, torchrun

from gradwatch import open_history

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform == "win32" or not torch.distributed.is_available(), reason="needs gloo"),
]
WRAPS = ("ddp", "zero", "fsdp1", "fsdp2")


def ranks(*words):
    """Two ranks that do what these words say, and how they ended."""
    return torchrun(2, SUPPORT / "ranks_rewind.py", *words)


def seen_by(tmp_path, *words):
    """What both ranks saw, of each way of spreading a model."""
    done = ranks(*words)
    assert done.returncode == 0, done.stderr[-4000:]
    one, other = (torch.load(tmp_path / f"rank-{rank}.pt") for rank in (0, 1))
    assert one == other
    return one


def as_one_without_the_batch(*names):
    return {name: {"equal": True, "count": 1} for name in names}


def test_two_ranks_go_back_together(tmp_path):
    assert seen_by(tmp_path, "go", tmp_path) == as_one_without_the_batch(*WRAPS)
    for name in WRAPS:
        (run,) = (tmp_path / name).iterdir()
        history = open_history(run)
        assert np.nansum(history.total("rewound_for")) == 37
        assert np.nansum(history.total("rewound_to")) == 35
        assert history.step[np.isfinite(history.total("rewound_to"))] == [39]  # before the snapshot of step 40


@pytest.mark.parametrize(("place", "names"), [("within", ("ddp", "zero", "fsdp2")), ("unwritten", ("fsdp2",))])
def test_after_sigkill_of_both_ranks_in_the_middle_of_a_rewind_they_end_as_if_they_had_never_met_the_batch(
    place, names, tmp_path
):
    """Also where one of them was killed before it had written where they go back to."""
    for name in names:
        done = ranks("die", tmp_path, name, place)
        assert done.stderr.endswith("rank 0 ended with -9\nrank 1 ended with -9\n"), done.stderr[-4000:]
    assert seen_by(tmp_path, "resume", tmp_path) == as_one_without_the_batch(*names)
    for name in names:
        (run,) = (tmp_path / name).iterdir()
        assert (np.diff(open_history(run).step[-24:]) == 1).all(), "recorded from where they went on"

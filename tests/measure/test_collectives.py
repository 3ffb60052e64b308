"""What each switch costs in collectives over two ranks, and what comes through one exactly."""

import json
import math
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist
from test_distributed import SUPPORT, torchrun

from gradwatch.measure.copies import Copies, mark
from gradwatch.measure.singular_values import AGAIN

slow = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32" or not dist.is_available(), reason="needs gloo"),
]
SAMPLED, OTHER = 4, 5  # steps


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=slow) for kind in ("ddp", "fsdp", "tp")])
def test_a_switch_costs_one_collective_in_a_sampled_step_and_none_in_another(kind, tmp_path):
    done = torchrun(2, SUPPORT / "ranks_collectives.py", kind, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    calls = json.loads((tmp_path / "collectives.json").read_text())
    plain = calls.pop("none")
    assert plain[OTHER] == (0 if kind == "ddp" else 1)
    assert {name: each[OTHER] for name, each in calls.items()} == dict.fromkeys(calls, plain[OTHER])
    more = {name: each[SAMPLED] - plain[SAMPLED] for name, each in calls.items()}
    own = 0 if kind == "ddp" else 1  # of what is measured of gradients and weights, where these are sharded
    assert more.pop("all") == sum(more.values())
    assert more == {
        "activations": 1,
        "slots": 3 * own,
        "histogram_every": own,
        "singular_values": 2 * AGAIN * own,  # one iteration needs the one before it
        "noise_scale": own,
        "rows": 0,
    }
    inf = math.inf  # of -3 and -2; -inf and -5; inf and 1; NaN and inf stay what they are among sums
    for count, (calls, sums, largest, marks) in enumerate(json.loads((tmp_path / "largest.json").read_text()), 1):
        assert calls == count  # with few ranks, with many
        np.testing.assert_equal(sums, [3.0, inf, math.nan])
        assert largest == [[-2.0, -5.0], [inf]]
        assert marks == [[7.0, 0.0], [7.0, 1.0]]


def test_what_ranks_have_in_common_is_counted_once_and_as_before_where_nothing_can_be_told():
    nothing, here, there = (
        torch.full((2, 3), math.nan),
        torch.arange(6.0).view(2, 3),
        torch.arange(6.0).view(2, 3) + 1e-6,
    )
    assert mark(nothing) == mark(torch.zeros(9)) == 0
    copies = Copies()
    several = [torch.stack([mark(x) for x in each]) for each in ((here, here), (here, there), (nothing, here))]
    assert copies.of(torch.stack(several, dim=1)).tolist() == [2, 1, 1]
    assert copies.of(torch.stack([mark(nothing)] * 6).view(2, 3)).tolist() == [2, 1, 1]
    four = torch.stack([mark(x) for x in (here, there, here, there)])[:, None]
    assert Copies().of(four).tolist() == [2]

"""What each switch costs in collectives over two ranks, and what comes through one exactly."""

import json
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torchrun import SUPPORT, torchrun

from gradwatch.errors import GradwatchWarning
from gradwatch.measure.collectives import together
from gradwatch.measure.copies import Copies, mark
from gradwatch.measure.distributed import add_up
from gradwatch.measure.looking import Looking
from gradwatch.measure.singular_values import AGAIN

slow = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32" or not dist.is_available(), reason="needs gloo"),
]
SAMPLED, OTHER = 4, 5  # steps


KINDS = ("ddp", "fsdp", "tp")


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """The folder in which two ranks left what they counted."""
    folder = tmp_path_factory.mktemp("collectives")
    done = torchrun(2, SUPPORT / "ranks_collectives.py", *KINDS, folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=slow) for kind in KINDS])
def test_all_switches_share_the_collective_of_a_sampled_step_and_only_slots_has_one_in_another(kind, launched):
    calls = json.loads((launched / kind / "collectives.json").read_text())
    plain = calls.pop("none")
    assert plain[OTHER] == (0 if kind == "ddp" else 1)
    # of the optimizer's state and the update, which are there after a step, every one is measured
    slots = dict.fromkeys(("slots", "all"), 0 if kind == "ddp" else 1)
    own = {name: each[OTHER] - plain[OTHER] for name, each in calls.items()}
    assert own == dict.fromkeys(calls, 0) | slots
    assert plain[SAMPLED] == (0 if kind == "ddp" else 2)  # that of the gradients, before the step, and one after it
    more = {name: each[SAMPLED] - plain[SAMPLED] for name, each in calls.items()}
    if kind == "ddp":  # nothing is spread but the batch
        assert {name for name, count in more.items() if count} == {"activations", "all"}
        assert more["activations"] == more["all"] == 1
    else:
        # one iteration needs the one before it, and of a matrix that is cut along its columns twice
        further = (2 if kind == "tp" else 1) * AGAIN - 1
        assert more == dict.fromkeys(calls, 0) | {"singular_values": further, "all": further}
    inf = math.inf  # of -3 and -2; -inf and -5; inf and 1; NaN and inf stay what they are among sums
    ways = json.loads((launched / kind / "largest.json").read_text())
    for count, (calls, sums, largest, marks) in enumerate(ways, 1):
        assert calls == count  # with few ranks, with many
        np.testing.assert_equal(sums, [3.0, inf, math.nan])
        assert largest == [[-2.0, -5.0], [inf]]
        assert marks == [[7.0, 0.0], [7.0, 1.0]]


def test_measurements_add_up_together_as_often_as_the_longest_of_them_alone():
    def sums(name, rounds, then=None):
        for i in range(rounds):
            yield [(i, name)]
        return then or name.upper()

    def fails():
        yield [(0, "fails")]
        raise RuntimeError("no kernel")

    asked = {"a": sums("a", 1), "f": fails(), "b": together({"c": sums("c", 3), "d": sums("d", 0)}, Looking())}
    added = []
    ranks = SimpleNamespace(reduce=added.append)
    with pytest.warns(GradwatchWarning, match="f cannot be recorded, training goes on: RuntimeError: no kernel"):
        found = add_up(together(asked, Looking()), ranks)
    assert found == {"a": "A", "b": {"c": "C", "d": "D"}}
    assert added == [[(0, "a"), (0, "fails"), (0, "c")], [(1, "c")], [(2, "c")]]


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

"""While somebody looks inside of compiled code it runs as it was written; what the script sets of that is its own."""

import pytest
import torch
from torch._dynamo import eval_frame

from gradwatch.measure import eager


@pytest.fixture(autouse=True)
def as_it_was():
    yield
    torch.compiler.set_stance("default")


def stance():
    return eval_frame._stance.stance


def test_it_is_taken_back():
    eager.want("a"), eager.want("b")
    assert stance() == "force_eager"
    eager.leave("a")
    assert stance() == "force_eager"
    eager.leave("b")
    assert stance() == "default"


def test_a_stance_that_is_set_meanwhile_stays():
    eager.want("a")
    torch.compiler.set_stance("fail_on_recompile")
    eager.leave("a")
    assert stance() == "fail_on_recompile"


def test_a_block_that_ends_meanwhile_has_ended():
    with torch.compiler.set_stance("fail_on_recompile"):
        eager.want("a")
    eager.leave("a")
    assert stance() == "default"

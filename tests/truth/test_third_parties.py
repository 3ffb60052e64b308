"""Optimizers of other packages under a Watch: what is recorded is true, and they train as they do without one.

bitsandbytes is no part of `.[dev]`: a wheel of 43 MB for one row.
"""

import importlib.util

import pytest
from third_parties import PARTIES, check


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTIES)
def test_an_optimizer_of_another_package(name):
    if importlib.util.find_spec(PARTIES[name].module.split(".")[0]) is None:
        pytest.skip(f"{PARTIES[name].package} is not installed")
    result = check(name)
    assert result.failures == ()
    if "bit" in name.split()[-1]:
        assert result.left_out, "its states are quantised"

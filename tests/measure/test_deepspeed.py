"""DeepSpeed's ZeRO on two ranks, measured as one process would be (ranks_deepspeed.py). Skips without DeepSpeed."""

import importlib.util
import re
import sys

import numpy as np
import pytest
import ranks_deepspeed
import torch
from torchrun import launched_once

from gradwatch import open_history

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="needs gloo"),
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs deepspeed"),
]
CASES = ranks_deepspeed.CASES


@pytest.fixture(scope="session")
def launched(tmp_path_factory, worker_id):
    """The folder in which both ranks left what they saw."""
    return launched_once(tmp_path_factory, worker_id, "deepspeed", 2, "ranks_deepspeed.py")


def of(folder, name):
    """What was recorded, what both ranks saw, and what one process records of the same."""
    (run,) = (folder / name / "runs").iterdir()
    seen = [torch.load(folder / name / f"{rank}.pt") for rank in range(2)]
    return open_history(run), seen


@pytest.mark.parametrize("name", [name for name in CASES if "bfloat16" not in name])
def test_the_ranks_of_zero_together_are_one_process(name, launched, tmp_path):
    _, dtype, clips, poisoned = CASES[name]
    got, seen = of(launched, name)
    folder, weights = ranks_deepspeed.alone(tmp_path, dtype, clips, poisoned)
    want = open_history(folder)
    assert got.layers == want.layers
    assert [layer.shape for layer in got.run.layers] == [layer.shape for layer in want.run.layers]
    own = {q: want.layer(q) for q in ("weight_norm", "update_ratio", "displacement")}
    norms = want.layer("grad_norm")
    if clips:  # torch's clip comes before the step, ZeRO's inside it, after the gradients were measured
        norms = norms / want.total("user_clip_coef")[:, None]
        np.testing.assert_allclose(got.total("user_step_coef"), want.total("user_clip_coef"), rtol=1e-4)
        np.testing.assert_allclose(got.total("user_max_norm"), ranks_deepspeed.CLIP)
        assert (got.total("user_step_coef") < 1).any()
    np.testing.assert_allclose(got.layer("grad_norm"), norms, rtol=1e-4)
    for quantity, values in own.items():
        np.testing.assert_allclose(got.layer(quantity), values, rtol=1e-4, err_msg=quantity)
    np.testing.assert_array_equal(got.total("skipped"), want.total("skipped"))
    assert got.total("skipped").sum() == poisoned
    np.testing.assert_allclose([got.total(column) for column in ("lr", "lr/1")], [want.total("lr"), want.total("lr/1")])
    for ones in seen:
        for layer, weight in ones["weights"].items():
            torch.testing.assert_close(weight, weights[layer].detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in CASES if "nan" not in name])
def test_the_total_norm_is_that_of_deepspeed(name, launched):
    got, seen = of(launched, name)
    np.testing.assert_allclose(got.total("grad_norm"), seen[0]["own"], rtol=1e-4)
    assert seen[0]["own"] == seen[1]["own"]


@pytest.mark.parametrize("name", CASES)
def test_what_would_act_is_refused_and_nothing_is_left_behind(name, launched):
    for ones in of(launched, name)[1]:
        assert not ones["left"]
        for asked, said in ones["said"].items():
            assert re.match(rf".*{asked}.* with DeepSpeed's ZeRO, which is measured and not acted on", said), said


def test_without_zero_it_is_clipped_as_one_process(launched, tmp_path):
    got, seen = of(launched, "stage-0")
    folder, weights = ranks_deepspeed.alone(tmp_path, torch.float32, False, False, ranks_deepspeed.STAGE_0_CLIP)
    want = open_history(folder)
    assert (want.total("clip_coef") < 1).any()
    np.testing.assert_allclose(got.layer("grad_norm"), want.layer("grad_norm"), rtol=1e-4)
    np.testing.assert_allclose(got.total("clip_coef"), want.total("clip_coef"), rtol=1e-4)
    for ones in seen:
        for layer, weight in ones["weights"].items():
            torch.testing.assert_close(weight, weights[layer].detach(), rtol=1e-4, atol=1e-6)

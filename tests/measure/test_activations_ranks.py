"""Activations over several processes: two ranks with half of the batch each record what one process with all does."""

import sys

import numpy as np
import pytest
import torch
from torchrun import recorded

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32" or not torch.distributed.is_available(), reason="needs gloo"),
]


KINDS = ("ddp", "fsdp", "tp")
REFUSED = ("clipped-fsdp", "clipped-none")


@pytest.fixture(scope="module")
def inside(tmp_path_factory):
    each = {2: (*KINDS, "compiled"), 1: ("one",)}
    return {size: recorded(tmp_path_factory, size, "ranks_inside.py", *kinds) for size, kinds in each.items()}


@pytest.fixture(scope="module")
def attention(tmp_path_factory):
    each = {2: (*KINDS, "clipped-ddp", *REFUSED), 1: ("one", "clipped-one")}
    return {size: recorded(tmp_path_factory, size, "ranks_attention.py", *kinds) for size, kinds in each.items()}


@pytest.mark.parametrize("kind", [*KINDS, "compiled"])
def test_two_ranks_together_are_one_process(kind, inside):
    together, alone = inside[2][kind].activations, inside[1]["one"].activations
    assert together.step.tolist() == alone.step.tolist() == [0, 1, 2, 4]
    assert together.layers == alone.layers == ("0", "1", "2", "3", "4")
    left_out = [2] if kind == "tp" else []  # of the outputs of "2" a rank has addends, as it says
    for name, values in alone.values.items():
        wanted = values.copy()
        wanted[:, left_out] = np.nan
        np.testing.assert_allclose(together.values[name], wanted, rtol=1e-5, err_msg=name)
    dead = alone.values["dead"][0]
    assert dead[1] == pytest.approx(1 / 3, abs=0.1)
    assert alone.values["saturated"][0, 3] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_heads_and_experts_of_two_ranks_are_those_of_one_process(kind, attention):
    both = attention[2][kind], attention[1]["one"]
    together, alone = (history.activations for history in both)
    assert together.layers == alone.layers
    assert together.step.tolist() == alone.step.tolist() == [0, 1, 2, 4]
    assert [name for name in alone.layers if "attn[" in name] == [f"{b}.attn[{i}]" for b in (0, 1) for i in range(4)]
    for name in ("logit_bound", "logit_max", "entropy"):
        np.testing.assert_allclose(together.values[name], alone.values[name], rtol=1e-4, err_msg=name)
    # From step 2 on there is a NaN, at last in everything. Under tensor parallelism both ranks have these outputs and
    # all tokens, elsewhere each has those of its half of the batch: either way each is counted once
    bad = alone.with_values("nonfinite").values["nonfinite"]
    assert not bad[:2].any()
    assert (bad[2] > 0).all()
    assert (bad[2] < bad[3]).all()
    gates = alone.with_values("tokens")
    assert gates.layers == tuple(f"{b}.mlp.2.gate[{e}]" for b in (0, 1) for e in range(3))
    assert len(np.unique(gates.values["tokens"])) > 6  # a router that prefers one
    for table in (together, alone):  # 6 examples of 5 tokens, wherever they were
        assert table.with_values("token_count").values["token_count"].sum(axis=1).tolist() == [2 * 30] * len(table)
    for name in ("nonfinite", "tokens", "token_count"):
        np.testing.assert_array_equal(together.values[name], alone.values[name], err_msg=name)
    rms = [history.layer("adam_rms")[:2] for history in both]
    assert np.isfinite(rms[1]).all()
    np.testing.assert_allclose(*rms, rtol=1e-3, atol=1e-3)


def test_logits_are_clipped_by_the_largest_of_all_ranks(attention):
    together, alone = attention[2]["clipped-ddp"], attention[1]["clipped-one"]
    np.testing.assert_array_equal(together.layer("renorm_rate"), alone.layer("renorm_rate"))
    assert np.nanmax(alone.layer("renorm_rate")) == 1
    np.testing.assert_allclose(together.layer("weight_norm"), alone.layer("weight_norm"), rtol=1e-5)


@pytest.mark.parametrize("kind", REFUSED)
def test_ranks_that_would_scale_their_weights_apart_are_refused(kind, attention):
    assert "QKClip: all ranks that share weights must scale them alike" in attention[2][kind]

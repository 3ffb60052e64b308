"""Parameters on two devices, of two dtypes: measured where they are, brought together once."""

import numpy as np
import pytest
import torch
from torch import nn
from training import ELEMENT_POLICIES, NORM_POLICIES, batches, mlp, watch

from gradwatch import open_history

POLICIES = [None, *NORM_POLICIES, *ELEMENT_POLICIES]


def split(first, second):
    """An MLP whose two layers live on these devices."""
    model = mlp(torch.float64)
    model[0].to(first)
    model[2].to(second)
    return model


def run(model, tmp_path, clip, renorm=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    first, second = model[0].weight, model[2].weight
    with watch(model, optimizer, tmp_path, clip=clip, renorm=renorm, every=2, slots=True) as handle:
        for x, y in batches(6):
            optimizer.zero_grad()
            hidden = model[1](model[0](x.to(first.device, first.dtype)))
            scores = model[2](hidden.to(second.device, second.dtype))
            loss = nn.functional.cross_entropy(scores.double(), y.to(scores.device))
            loss.backward()
            optimizer.step()
            handle.log(loss=loss)
    return open_history(handle.dir)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("devices", [("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")], ids="-".join)
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_two_devices_record_what_one_does(policy, devices, tmp_path):
    want = run(split("cpu", "cpu"), tmp_path / "one", policy, "MaxNorm(0.8)")
    got = run(split(*devices), tmp_path / "two", policy, "MaxNorm(0.8)")
    assert got.per_layer.keys() == want.per_layer.keys()
    for quantity in want.per_layer:
        np.testing.assert_allclose(got.layer(quantity), want.layer(quantity), rtol=1e-5, atol=1e-7, err_msg=quantity)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_two_dtypes_in_one_model(policy, tmp_path):
    """A float32 layer below a float64 one: the float64 twin agrees to float32's rounding."""
    mixed = mlp(torch.float64)
    mixed[0].to(torch.float32)
    want = run(mlp(torch.float64), tmp_path / "one", policy)
    got = run(mixed, tmp_path / "two", policy)
    for quantity in ("grad_norm", "clipped_norm", "clip_coef", "weight_norm"):
        np.testing.assert_allclose(got.layer(quantity), want.layer(quantity), rtol=1e-3, atol=1e-6, err_msg=quantity)

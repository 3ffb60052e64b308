"""The oracle is right: held against torch's own clips, and against gradients computed another way."""

import copy

import numpy as np
import oracle
import pytest
import torch
from matrix import Combination
from torch import nn


def truth(loop, spec="SGD without momentum", dtype=torch.float64, **settings):
    trial = Combination(loop, spec, dtype, "ClipByNorm").train(**settings)
    return [probe.truth for probe in trial.probes]


@pytest.mark.parametrize("loop", ["scaler", "scaler_unscale", "closure", "closure_keyword", "ema", "state_loaded"])
def test_the_true_gradients_are_those_of_the_plain_loop(loop):
    """To the bit: loss scales are powers of 2."""
    (got,), (want,) = truth(loop), truth("plain")
    for a, b in zip(got, want, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a.grads, b.grads, strict=True))


def test_the_accumulated_gradient_is_the_sum_over_micro_batches():
    torch.manual_seed(0)
    model = nn.Linear(6, 3).double()
    batches = [(torch.randn(4, 6).double(), torch.randn(4, 3).double()) for _ in range(3)]
    for x, y in batches:
        (model(x) - y).square().mean().backward()
    got = oracle.see(0, list(model.parameters()), [])
    for i, p in enumerate(model.parameters()):
        parts = [torch.autograd.grad((model(x) - y).square().mean(), p)[0] for x, y in batches]
        np.testing.assert_allclose(got.grads[i], sum(parts).numpy(), rtol=1e-12)


def test_a_sparse_gradient_has_the_norm_of_the_dense_one():
    words = torch.tensor([1, 1, 2, 5, 5, 5])
    dense = nn.Embedding(9, 4).double()
    sparse = nn.Embedding(9, 4, sparse=True, _weight=copy.deepcopy(dense.weight.detach()))
    for table in (dense, sparse):
        (table(words) ** 3).sum().backward()
    got, want = (oracle.norms(oracle.copy([table.weight])) for table in (sparse, dense))
    np.testing.assert_allclose(got, want, rtol=1e-14)
    assert not sparse.weight.grad.is_coalesced()  # looking leaves no trace


@pytest.mark.parametrize("threshold", [0.5, 100.0])
@pytest.mark.parametrize(("clip", "torchs"), [
    (oracle.by_global_norm, nn.utils.clip_grad_norm_),
    (oracle.by_value, nn.utils.clip_grad_value_),
])  # fmt: skip
def test_its_clips_are_torchs(clip, torchs, threshold):
    params = [nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in [(3, 4), (5,), ()]]
    for p in params[:2]:
        p.grad = torch.randn_like(p)
    want, _ = clip(oracle.copy(params), threshold)
    torchs(params, threshold)
    for p, grad in zip(params, want, strict=True):
        assert (p.grad is None) == (grad is None)
        if grad is not None:
            np.testing.assert_allclose(p.grad.numpy(), grad, rtol=1e-12)


def test_its_clip_by_norm_is_tensorflows_definition():
    grads = (np.array([3.0, 4.0]), np.array([0.3, 0.4]), None)
    after, coefs = oracle.by_norm(grads, 1.0)
    np.testing.assert_allclose(coefs, [0.2, 1.0, np.nan])
    np.testing.assert_allclose(after[0], [0.6, 0.8])


def test_what_it_puts_back_is_what_a_user_would():
    p = nn.Parameter(torch.zeros(2, 3, dtype=torch.complex128))
    p.grad = torch.randn_like(p)
    half = p.grad.clone() / 2
    oracle.put([p], oracle.halved(oracle.copy([p]), 0)[0])
    torch.testing.assert_close(p.grad, half)

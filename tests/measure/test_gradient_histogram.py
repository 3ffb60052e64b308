"""`histogram_every=`: the shares of every layer's |g| are those that numpy counts in float64."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from training import watch

from gradwatch import open_history
from gradwatch.measure.gradient_histogram import LOWER, QUANTITIES, SMALLEST
from gradwatch.measure.layout import stride


def oracle(gradient):
    """`QUANTITIES` of one layer's gradient, of the elements that are looked at."""
    flat = gradient.double().flatten().numpy()
    flat = np.abs(flat[:: stride(len(flat))])
    flat = flat[np.isfinite(flat)]
    some = flat[flat > 0]
    edges = [0.0, *(2.0**e for e in LOWER[1:]), math.inf]
    counts = [((some >= a) & (some < b)).sum() for a, b in pairwise(edges)]
    counts = [*((some < 2.0**e).sum() for e in SMALLEST.values()), *counts]
    return np.array([(flat == 0).mean(), *(count / len(some) if len(some) else math.nan for count in counts)])


def gradients(dtype):
    """Of wide spread, of few elements and many, with zeros, values that are not finite, and none."""
    generator = torch.Generator().manual_seed(0)

    def spread(*shape):
        exponents = torch.randint(-60, 20, shape, generator=generator).double()
        return (torch.randn(*shape, generator=generator).double() * torch.exp2(exponents)).to(dtype)

    some = spread(40)
    some[::3] = 0
    bad = spread(33)
    bad[5], bad[7], bad[9] = math.nan, math.inf, -math.inf
    tiny = spread(20)
    tiny[:8] = 2.0**-130
    zeros, one = torch.zeros(5, dtype=dtype), torch.ones((), dtype=dtype)
    return [spread(70, 90), spread(300, 7).T, some, bad, tiny, zeros, None, one]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("clip", [None, "ClipByGlobalNorm(1e-3)"])
def test_every_share_is_the_oracles(clip, dtype, tmp_path):
    grads = gradients(dtype)
    params = [nn.Parameter(torch.zeros((3,) if g is None else g.shape, dtype=dtype)) for g in grads]
    wanted = [np.full(len(QUANTITIES), math.nan) if g is None else oracle(g) for g in grads]
    model = nn.ParameterList(params)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, tmp_path, histogram_every=2, clip=clip) as handle:
        for _ in range(3):
            for p, g in zip(params, grads, strict=True):
                p.grad = None if g is None else g.clone()
            optimizer.step()
    table = open_history(handle.dir).histograms
    assert table.step.tolist() == [0, 2]
    assert table.layers == tuple(str(i) for i in range(len(grads)))
    for row in (0, 1):
        found = np.stack([table.values[q][row] for q in QUANTITIES], axis=1)
        np.testing.assert_allclose(found, np.stack(wanted), rtol=1e-6)
    bins = np.stack([table.values[f"2^{e}"][0] for e in LOWER])
    np.testing.assert_allclose(bins.sum(axis=0)[[0, 1, 2, 3, 4, 7]], 1, rtol=1e-6)


def train(folder, steps=5, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    seen = []
    with watch(model, optimizer, folder, **options) as handle:
        for _ in range(steps):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(4, 6)).square().mean()).backward()
            seen.append([oracle(p.grad / 2.0**14) for p in model.parameters()])
            scaler.step(optimizer)
            scaler.update()
    return open_history(handle.dir), np.array(seen), [p.detach().clone() for p in model.parameters()]


def test_a_loss_scale_is_taken_out_and_training_is_bit_identical(tmp_path):
    history, seen, weights = train(tmp_path / "with", histogram_every=2)
    found = np.stack([history.histograms.values[q] for q in QUANTITIES], axis=2)
    np.testing.assert_allclose(found, seen[::2], rtol=1e-5)
    without = train(tmp_path / "without")
    assert all(torch.equal(a, b) for a, b in zip(weights, without[2], strict=True))
    assert without[0].sampled == ()


def test_layers_that_are_not_recorded_are_not_here(tmp_path):
    history, seen, _ = train(tmp_path, histogram_every=1, ignore=["0.*"])
    assert history.histograms.layers == history.layers == ("2.weight", "2.bias")
    found = np.stack([history.histograms.values[q] for q in QUANTITIES], axis=2)
    np.testing.assert_allclose(found, seen[:, 2:], rtol=1e-5)


@pytest.mark.parametrize("every", [0, True, 1.5, "10"])
def test_what_makes_no_sense_is_refused(every, tmp_path):
    from gradwatch import WatchError

    model = nn.Linear(2, 1)
    with pytest.raises(WatchError, match="histogram_every="):
        watch(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path, histogram_every=every)

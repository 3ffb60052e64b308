"""Optimizers that step inside backward: one optimizer per parameter, one step of the record per backward."""

import cProfile
import pstats

import numpy as np
import pytest
import torch
from torch import nn
from training import batches, mlp, state_tensors, watch

from gradwatch import WatchError, open_history

PER_LAYER = ["ClipByNorm(0.02)", "ClipByValue(0.01)", "ClipByAverageNorm(0.0005)", "AGC(0.02)", "ClipByHistory()"]


def in_backward(model, cls=torch.optim.SGD, **settings):
    """Every parameter steps as soon as its gradient is there, and frees it."""
    optimizers = {p: cls([p], **settings) for p in model.parameters()}

    def step(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in optimizers:
        p.register_post_accumulate_grad_hook(step)
    return list(optimizers.values())


def run(tmp_path, *, inside, clip=None, steps=12, watched=True, skip_first=(), **options):
    """The same training with the steps inside backward and after it."""
    model, settings = mlp(), {"lr": 0.5, "momentum": 0.9}
    optimizers = in_backward(model, **settings) if inside else [torch.optim.SGD(model.parameters(), **settings)]
    handle = watch(model, optimizers, tmp_path, clip=clip, every=3, **options) if watched else None
    for i, (x, y) in enumerate(batches(steps)):
        hidden = x[:, :6].new_ones(16, 8) if i in skip_first else model[1](model[0](x))
        loss = nn.functional.cross_entropy(model[2](hidden), y)
        loss.backward()
        if not inside:
            optimizers[0].step()
            optimizers[0].zero_grad()
        if handle:
            handle.log(loss=float(i))
    state = [state_tensors(o) for o in optimizers]
    if handle:
        handle.close()
    return model, state, handle and open_history(handle.dir)


@pytest.mark.parametrize(
    "clip",
    [
        None,
        *PER_LAYER,
        "chain(ClipByNorm(0.05), ClipByValue(0.01))",
        "only('0.*', AGC(0.01))",
        "only('2.*', ClipByNorm(0.02))",
    ],
)
def test_a_backward_is_one_step_with_every_layer(clip, tmp_path):
    model, _, got = run(tmp_path / "inside", inside=True, clip=clip)
    plain, _, want = run(tmp_path / "after", inside=False, clip=clip)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert got.step.tolist() == list(range(12))
    assert got.per_layer.keys() == want.per_layer.keys()
    for quantity in want.per_layer:
        np.testing.assert_allclose(got.layer(quantity), want.layer(quantity), rtol=1e-6, err_msg=quantity)
    for name in ("grad_norm", "clipped_norm", "clip_coef", "clip_rate", "loss"):
        np.testing.assert_allclose(got.total(name), want.total(name), rtol=1e-6, err_msg=name)


def test_gradients_made_under_inference_mode_are_stepped_on_as_ever(tmp_path):
    model = mlp(torch.float32)
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (model[0], model[2])]
    with watch(model, optimizers, tmp_path) as made:
        for _ in range(3):
            with torch.inference_mode():  # evolution strategies
                for p in model.parameters():
                    p.grad = torch.ones(p.shape)
            for optimizer in optimizers:
                optimizer.step()
    assert len(open_history(made.dir)) == 3


def test_a_layer_without_a_gradient_is_absent_and_what_is_logged_stays_with_its_step(tmp_path):
    _, _, got = run(tmp_path / "inside", inside=True, clip="ClipByNorm(0.02)", skip_first=(0, 1, 5, 11))
    _, _, want = run(tmp_path / "after", inside=False, clip="ClipByNorm(0.02)", skip_first=(0, 1, 5, 11))
    assert np.isnan(want.layer("grad_norm")[[0, 1, 5, 11], 0]).all()
    np.testing.assert_allclose(got.layer("grad_norm"), want.layer("grad_norm"), rtol=1e-6)
    np.testing.assert_array_equal(got.total("loss"), np.arange(12))


def calls_of_a_backward(layers, clip, tmp_path):
    """How many functions, Python's and built-in, a backward calls in which each of so many layers steps."""
    model = nn.ParameterList(nn.Parameter(torch.ones(2)) for _ in range(layers))
    with watch(model, in_backward(model, lr=0.1), tmp_path, clip=clip, every=1000, flush_every=1000.0):
        for _ in range(2):
            sum(p.sum() for p in model).backward()
        profile = cProfile.Profile()
        profile.runcall(sum(p.sum() for p in model).backward)
    return pstats.Stats(profile).total_calls


@pytest.mark.parametrize("clip", [None, "ClipByNorm(1.0)"])
def test_a_backward_of_twice_the_layers_calls_twice_the_functions(clip, tmp_path):
    few, many = (calls_of_a_backward(layers, clip, tmp_path) for layers in (40, 80))
    assert many <= 2.1 * few


@pytest.mark.parametrize("clip", ["ClipByGlobalNorm(0.1)", "chain(ClipByNorm(1.0), SkipNonfinite())", "AdaGC()"])
def test_what_needs_all_gradients_is_refused_before_anything_moves(clip, tmp_path):
    model, untouched = mlp(), mlp()
    optimizers = in_backward(model, lr=0.5)
    handle = watch(model, optimizers, tmp_path, clip=clip)
    x, y = next(batches(1))
    with pytest.raises(WatchError, match="other gradients do not exist yet"):
        nn.functional.cross_entropy(model(x), y).backward()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), untouched.parameters(), strict=True))
    handle.close()
    assert handle._stepper.steps == 0


def test_without_a_policy_training_inside_backward_is_bit_identical(tmp_path):
    watched, state, _ = run(tmp_path, inside=True, slots=True)
    bare, bare_state, _ = run(tmp_path, inside=True, watched=False)
    assert all(torch.equal(a, b) for a, b in zip(watched.parameters(), bare.parameters(), strict=True))
    for one, other in zip(state, bare_state, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[k], other[k]) for k in one)


def test_a_max_norm_holds_inside_backward(tmp_path):
    model, _, history = run(tmp_path, inside=True, renorm="MaxNorm(0.3)")
    assert all(p.norm(dim=1).max() <= 0.3 + 1e-6 for p in model.parameters() if p.dim() > 1)
    assert np.nanmax(history.layer("renorm_rate")) > 0

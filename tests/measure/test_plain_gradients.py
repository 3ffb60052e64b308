"""Gradients that are as they were are not looked through on every step; what is special is noticed in its step."""

import pytest
import torch
from fake_cuda import step_of
from torch import nn

from gradwatch.measure.foreach import are_plain, measure_plain
from gradwatch.measure.layout import Layout
from gradwatch.policies import parse

SHAPES = {"embedding": (6, 3), "weight": (4, 3), "bias": (4,)}


def plain(shape):
    return torch.randn(shape)


def missing(shape):
    return None


def sparse(shape):
    """Not coalesced: row 1 has two entries, which add up."""
    return torch.sparse_coo_tensor([[1, 1, 4]], torch.randn(3, *shape[1:]), shape, check_invariants=True)


def of_halves(shape):
    return torch.randn(shape).bfloat16()


def wider(shape):
    return torch.randn(shape).double()


def oracle(grad):
    return 0.0 if grad is None else (grad.to_dense() if grad.is_sparse else grad).double().norm().item()


def given(params, makes):
    for p, make in zip(params.values(), makes, strict=True):
        p.grad = make(p.shape)


@pytest.mark.parametrize("clip", [None, "ClipByGlobalNorm(1e-3)", "ClipByNorm(1e-3)"])
@pytest.mark.parametrize("special", [missing, sparse])
def test_what_is_special_about_a_gradient_is_noticed_in_its_step(special, clip):
    torch.manual_seed(0)
    params = {name: nn.Parameter(torch.randn(shape)) for name, shape in SHAPES.items()}
    stepper = step_of(params, torch.optim.SGD(params.values(), lr=0.1), clip and parse(clip))
    for makes in [(plain,) * 3, (special, plain, plain), (plain,) * 3, (plain,) * 3, (special, plain, missing)]:
        given(params, makes)
        grads = [p.grad for p in params.values()]
        want = [oracle(grad) for grad in grads]
        stepper.optimizers[0].step()
        recorder = stepper.recorder
        found = recorder.ring.row(recorder.count - 1)[0].tolist()
        assert found == pytest.approx(want, rel=1e-6)
        assert recorder.rows[-1].present == tuple(grad is not None for grad in grads)
        if clip:
            left = [oracle(p.grad) for p in params.values()]
            assert max(left) <= 1e-3 * (1 + 1e-5)


@pytest.mark.parametrize("special", [missing, sparse, wider])
@pytest.mark.parametrize("place", [0, 1])
def test_torch_takes_no_list_with_a_special_gradient(special, place):
    """Which is why nobody need look for one where it took the list."""
    layout = Layout({name: nn.Parameter(torch.randn(6, 3)) for name in ("a", "b")})
    grads = [plain((6, 3)), plain((6, 3))]
    assert measure_plain(layout, grads, None)[0].tolist() == pytest.approx([oracle(g) for g in grads], rel=1e-6)
    grads[place] = special((6, 3))
    assert measure_plain(layout, grads, None) is None


@pytest.mark.parametrize("place", [0, 1])
def test_halves_among_others_are_added_up_as_those(place):
    layout = Layout({name: nn.Parameter(torch.randn(6, 3)) for name in ("a", "b")})
    grads = [plain((6, 3)), plain((6, 3))]
    grads[place] = of_halves((6, 3))
    assert measure_plain(layout, grads, None)[0].tolist() == pytest.approx([oracle(g) for g in grads], rel=1e-6)


def test_after_special_gradients_plain_ones_are_known_again():
    params = {name: nn.Parameter(torch.randn(shape)) for name, shape in SHAPES.items()}
    layout = Layout(params)
    for makes, expected in [((plain,) * 3, True), ((missing, plain, plain), False)]:
        given(params, makes)
        assert are_plain(layout, [p.grad for p in params.values()]) is expected
    given(params, (sparse, plain, plain))
    values = [params["embedding"].grad.coalesce()._values(), params["weight"].grad, params["bias"].grad]
    assert not are_plain(layout, values)

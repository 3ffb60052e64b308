"""The weights tell: under a policy they are torch's own, without one they are untouched, to the bit."""

import contextlib
import inspect
from functools import partial

import pytest
import torch
from torch import nn
from training import ALL_POLICIES, mlp, state_tensors, train, watch

from gradwatch import ClipByAverageNorm, ClipByNorm, GradwatchWarning
from gradwatch.measure.gradients import Batch
from gradwatch.measure.layout import Layout

STEPS = 60
QUIET = contextlib.nullcontext()
CLASSES = {
    name: cls
    for name, cls in vars(torch.optim).items()
    if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer
}
SPECIAL = {"SparseAdam", "LBFGS", "Muon"}  # sparse gradients, closures, matrices only: their own tests below


def make(cls, params):
    return cls(params, lr=0.05) if "lr" in inspect.signature(cls).parameters else cls(params)


def clip(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)


@pytest.mark.parametrize("name", sorted(set(CLASSES) - SPECIAL))
def test_clip_by_global_norm_gives_torchs_weights(name, tmp_path):
    want = mlp()
    train(want, make(CLASSES[name], want.parameters()), STEPS, before_step=clip)
    got = mlp()
    optimizer = make(CLASSES[name], got.parameters())
    with watch(got, optimizer, tmp_path, clip="ClipByGlobalNorm(0.1)"):
        train(got, optimizer, STEPS)
    for a, b in zip(got.parameters(), want.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_the_clip_of_that_test_matters():
    clipped, free = mlp(), mlp()
    train(clipped, torch.optim.SGD(clipped.parameters(), lr=0.05), STEPS, before_step=clip)
    train(free, torch.optim.SGD(free.parameters(), lr=0.05), STEPS)
    assert (clipped[0].weight - free[0].weight).abs().max() > 1e-3


def test_muon(tmp_path):
    def net():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False)).double()

    if "Muon" not in CLASSES:
        pytest.skip("this torch has no Muon")
    want, got = net(), net()
    train(want, CLASSES["Muon"](want.parameters()), STEPS, before_step=clip)
    optimizer = CLASSES["Muon"](got.parameters())
    with watch(got, optimizer, tmp_path, clip="ClipByGlobalNorm(0.1)"):
        train(got, optimizer, STEPS)
    for a, b in zip(got.parameters(), want.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_sparse_adam_is_clipped_on_the_values_of_its_gradient(tmp_path):
    """torch's clip refuses sparse gradients; the oracle clips the values by hand."""

    def run(before_step=None, watched=False):
        torch.manual_seed(0)
        table = nn.Embedding(10, 4, sparse=True).double()
        optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
        if watched:
            watch(table, optimizer, tmp_path, clip="ClipByGlobalNorm(0.1)")
        for i in range(STEPS):
            optimizer.zero_grad()
            table(torch.tensor([i % 10, i % 10, 3])).square().sum().backward()
            if before_step:
                before_step(table)
            optimizer.step()
        return table.weight.detach()

    def by_hand(table):
        table.weight.grad = table.weight.grad.coalesce()
        values = table.weight.grad._values()
        values.mul_((0.1 / (values.norm() + 1e-6)).clamp(max=1))

    torch.testing.assert_close(run(watched=True), run(by_hand), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@pytest.mark.parametrize("keyword", [False, True])
def test_lbfgs_is_clipped_at_every_evaluation_of_its_closure(search, keyword, tmp_path):
    def run(by_hand=False):
        model = mlp()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn=search)
        with pytest.warns(GradwatchWarning, match="line_search_fn='strong_wolfe'") if search and not by_hand else QUIET:
            handle = None if by_hand else watch(model, optimizer, tmp_path, clip="ClipByGlobalNorm(0.1)")
        x, y = torch.randn(16, 6, generator=torch.Generator().manual_seed(1)).double(), torch.arange(16) % 3

        def closure():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            if by_hand:
                clip(model)
            return loss

        for _ in range(10):
            optimizer.step(closure=closure) if keyword else optimizer.step(closure)
        if handle:
            assert handle._stepper.steps == 10
            handle.close()
        return model

    for a, b in zip(run().parameters(), run(by_hand=True).parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["foreach", "fused", "for-loop"])
@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_without_a_policy_training_is_bit_identical(name, kind, tmp_path):
    def run(watched):
        model = mlp(torch.float32)
        settings = {"foreach": kind == "foreach", "fused": kind == "fused"}
        optimizer = CLASSES[name](model.parameters(), lr=0.05, **settings)
        handle = watch(model, optimizer, tmp_path, every=3, slots=True) if watched else None
        train(model, optimizer, 100, dtype=torch.float32, after_step=handle and (lambda m, loss: handle.log(loss=loss)))
        random = torch.rand(3)
        if handle:
            handle.close()
        return [*model.parameters()], state_tensors(optimizer), random

    weights, state, random = run(watched=True)
    bare_weights, bare_state, bare_random = run(watched=False)
    assert all(torch.equal(a, b) for a, b in zip(weights, bare_weights, strict=True))
    assert state.keys() == bare_state.keys()
    assert all(torch.equal(state[k], bare_state[k]) for k in state)
    assert torch.equal(random, bare_random)


@pytest.mark.parametrize("policy", ALL_POLICIES, ids=repr)
def test_clip_rate_is_zero_exactly_when_the_weights_are_untouched(policy, tmp_path):
    free = mlp()
    train(free, torch.optim.SGD(free.parameters(), lr=0.5), 20)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with watch(model, optimizer, tmp_path, clip=policy) as handle:
        train(model, optimizer, 20)
    same = all(torch.equal(a, b) for a, b in zip(model.parameters(), free.parameters(), strict=True))
    rate = _clip_rate(handle.dir)
    assert same == (rate == 0)


@pytest.mark.parametrize("kind", [ClipByNorm, ClipByAverageNorm, partial(ClipByNorm, axes=(1,))])
def test_a_gradient_within_its_threshold_is_not_touched(kind):
    """By no rounding either: a float32 number times the reciprocal of itself is not always 1."""
    layout = Layout({"a": nn.Parameter(torch.ones(3, 2)), "b": nn.Parameter(torch.ones(2, 1))})
    grads = [torch.rand(3, 2), torch.rand(2, 1)]
    for tenths in range(30, 2000):
        batch = Batch(layout, [g.clone() for g in grads])
        kind(tenths / 10).apply(batch, {})
        coefs = batch.pending if batch.pending is not None else 1 - batch.fraction
        assert coefs.tolist() == [1, 1], tenths / 10


def _clip_rate(folder):
    from gradwatch import open_history

    return float(open_history(folder).total("clip_rate").mean())

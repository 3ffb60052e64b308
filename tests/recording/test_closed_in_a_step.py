"""A Watch that is closed in the middle of a step: from a callback, and from another thread."""

import copy
import pickle
import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from training import mlp, watch

import gradwatch
from gradwatch.recording import backward_calls, hooks, loss_targets
from gradwatch.recording.layers import Source


def fused(model, kind=torch.optim.AdamW):
    return kind(model.parameters(), lr=0.1, fused=True)


def train(model, optimizer, bad=None, steps=40, until=lambda: False):
    """Steps on random batches; in step `bad` the loss is NaN."""
    draw = torch.Generator().manual_seed(0)
    for i in range(steps):
        if until():
            break
        optimizer.zero_grad()
        out = model(torch.randn(16, 6, generator=draw).to(model[0].weight.dtype))
        (out.square().mean() * (float("nan") if i == bad else 1.0)).backward()
        optimizer.step()


def ours(optimizer):
    """What stands among an optimizer's hooks that is gradwatch's, and does something."""
    found = [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]
    return [hook for hook in found if hook.__module__.startswith("gradwatch") and hook is not hooks._nothing]


@pytest.mark.parametrize("policy", ["chain(SkipNonfinite(), ClipByGlobalNorm(0.001))", "SkipNonfinite()"])
@pytest.mark.parametrize("others", [0, 1])
def test_a_callback_that_closes_leaves_nothing_and_ends_nothing(policy, others, tmp_path):
    model = mlp(torch.float32)
    optimizer = fused(model)
    watching = watch(
        model, optimizer, tmp_path, clip=policy, on_finding=lambda finding: watching.close(), flush_every=1e-3
    )
    for _ in range(others):
        optimizer.register_step_pre_hook(lambda *_: None)
    train(model, optimizer, bad=3, steps=400, until=lambda: watching._closed)
    assert watching._closed
    assert getattr(optimizer, "grad_scale", None) is None
    assert getattr(optimizer, "found_inf", None) is None
    assert ours(optimizer) == []
    other = copy.deepcopy(model)
    bare = fused(other)
    bare.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, steps in ((model, optimizer), (other, bare)):
        train(each, steps, steps=3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@dataclass(frozen=True, repr=False)
class Slow(gradwatch.NormPolicy):
    """A clip to norm 1; in the thread "training" it tells that it is asked, and waits to be told to go on."""

    asked, go_on = threading.Event(), threading.Event()

    def decide(self, norms, state):
        if threading.current_thread().name == "training":
            self.asked.set()
            self.go_on.wait(10)
        return gradwatch.Decision(coef=(1.0 / (norms.total() + 1e-6)).clip(max=1.0))


def test_a_step_that_another_thread_is_in_ends_as_it_began(tmp_path):
    model = nn.Linear(8, 4)
    optimizer = fused(model, torch.optim.SGD)
    watching = watch(model, optimizer, tmp_path, clip=Slow())

    def step():
        for p in model.parameters():
            p.grad = torch.full_like(p, 100.0)
        before = model.weight.detach().clone()
        optimizer.step()
        moved.append(float((model.weight.detach() - before).abs().max()))

    moved = []
    training = threading.Thread(target=step, name="training")
    training.start()
    assert Slow.asked.wait(10)
    closing = threading.Thread(target=watching.close)
    closing.start()
    closing.join(0.1)
    Slow.go_on.set()
    training.join()
    closing.join()
    step()
    assert moved[0] == pytest.approx(0.1 / 36**0.5, rel=1e-4)  # clipped: 36 elements of 100 to a norm of 1
    assert moved[1] == pytest.approx(10.0, rel=1e-4)
    assert ours(optimizer) == []


def test_who_closes_while_another_trains_is_heard_no_more(tmp_path):
    for n in range(6):
        model = mlp(torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        watching = watch(model, optimizer, tmp_path / str(n), every=1)
        over = threading.Event()
        settings = {"steps": 10**9, "until": over.is_set}
        training = threading.Thread(target=train, args=(model, optimizer), kwargs=settings)
        training.start()
        try:
            while watching._stepper.steps < 3 + n:
                time.sleep(0.001)
            watching.close()
            assert backward_calls.heard.listeners == ()
            assert ours(optimizer) == []
        finally:
            over.set()
            training.join()


def test_a_copy_of_a_watched_optimizer_is_watched_by_nobody(tmp_path):
    class Whole(torch.optim.SGD):
        def __getstate__(self):
            return self.__dict__.copy()

    model = mlp()
    optimizer = Whole(model.parameters(), 0.1)
    with watch(model, optimizer, tmp_path) as watching:
        train(model, optimizer, steps=2)
        other = copy.deepcopy(optimizer)
        for group in other.param_groups:
            for p in group["params"]:
                p.grad = torch.ones_like(p)
        other.step()
        assert watching._stepper.steps == 2
        assert pickle.loads(pickle.dumps(next(iter(optimizer._optimizer_step_pre_hooks.values())))).__self__.is_removed


class Held(torch.autograd.Function):
    """The identity, whose backward tells that it runs, and waits to be told to go on."""

    runs, go_on = threading.Event(), threading.Event()

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        Held.runs.set()
        Held.go_on.wait(10)
        return grad


def test_gradients_that_another_thread_may_be_writing_to_are_not_read(tmp_path, monkeypatch):
    """To read one then was seen to end the process."""
    read = []
    monkeypatch.setattr(loss_targets, "mark_of", lambda grad: read.append("as it began"))
    monkeypatch.setattr(Source, "forgotten", lambda source: read.append("at the end") or ())
    model = mlp(torch.float32)
    optimizer = fused(model)
    train(model, optimizer, steps=1)
    training = threading.Thread(target=lambda: Held.apply(model(torch.ones(2, 6)).square().mean()).backward())
    training.start()
    try:
        assert Held.runs.wait(10)
        watching = watch(model, optimizer, tmp_path)
        assert backward_calls.heard.listeners == ()
        watching.close()
        assert read == []
    finally:
        Held.go_on.set()
        training.join()
    with watch(model, optimizer, tmp_path):
        pass
    assert {*read} == {"as it began", "at the end"}


def test_a_training_that_another_thread_was_in_is_recorded_from_its_next_step_on(tmp_path):
    model = mlp(torch.float32)
    optimizer = fused(model)
    Held.runs.clear()
    Held.go_on.clear()

    def trained():
        for _ in range(4):
            optimizer.zero_grad()
            Held.apply(nn.functional.mse_loss(model(torch.ones(2, 6)), torch.ones(2, 3))).backward()
            optimizer.step()

    training = threading.Thread(target=trained)
    training.start()
    assert Held.runs.wait(10)
    watching = watch(model, optimizer, tmp_path, every=1)
    Held.go_on.set()
    training.join()
    watching.close()
    recorded = gradwatch.open_history(watching.dir).by_step
    assert recorded.step.tolist() == [0, 1, 2, 3]
    assert np.isfinite(recorded.values["in_loss/targets"]).tolist() == [False, True, True, True]

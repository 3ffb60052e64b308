"""The plain loop under Accelerate, which needs no adapter: held against the same loop without it."""

import numpy as np
import pytest
import torch
from torch import nn
from training import batches, mlp, watch

from gradwatch import WatchError, open_history

pytest.importorskip("accelerate")
from accelerate import Accelerator

pytestmark = pytest.mark.usefixtures("own_accelerator")
CLIP = "ClipByGlobalNorm(0.1)"
EVERY = 3  # batches to a step; the last step of ten batches has one


def plain(clip=None, dtype=torch.float64):
    """Accumulation by hand; returns the model and, per step, the norms of the gradients before `clip`, float64."""
    model, norms = mlp(dtype), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    data = list(batches(10, dtype))
    for first in range(0, len(data), EVERY):
        optimizer.zero_grad()
        for x, y in data[first : first + EVERY]:
            (nn.functional.cross_entropy(model(x).float(), y) / EVERY).backward()
        norms.append([p.grad.double().norm().item() for p in model.parameters()])
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return model, norms


def accelerated(tmp_path, clip=None, dtype=torch.float64, user_clip=None, watched=True, when="after", scale=None):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=EVERY)
    if scale:  # what mixed_precision="fp16" sets on a GPU
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    model = mlp(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    data = torch.utils.data.DataLoader(list(batches(10, dtype)), batch_size=None)
    handle = watch(model, optimizer, tmp_path, clip=clip) if watched and when == "before" else None
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    handle = watch(model, optimizer, tmp_path, clip=clip) if watched and when == "after" else handle
    for x, y in data:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x).float(), y)
            accelerator.backward(loss)
            if user_clip and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), user_clip)
            optimizer.step()
            optimizer.zero_grad()
    if handle:
        handle.close()
    return model, handle and open_history(handle.dir)


@pytest.mark.parametrize("when", ["before", "after"])
def test_one_step_is_recorded_for_each_real_step(when, tmp_path):
    want, norms = plain(clip=0.1)
    got, history = accelerated(tmp_path, CLIP, when=when)
    assert history.step.tolist() == [0, 1, 2, 3]
    assert set(history.optimizer) == {"AdamW"}
    np.testing.assert_allclose(history.layer("grad_norm"), norms, rtol=1e-6)
    torch.testing.assert_close(got.state_dict(), want.state_dict(), rtol=1e-12, atol=1e-12)


def test_norms_and_thresholds_are_unscaled_under_its_scaler(tmp_path):
    want, norms = plain(clip=0.1)
    got, history = accelerated(tmp_path, CLIP, scale=1024.0)
    np.testing.assert_allclose(history.layer("grad_norm"), norms, rtol=1e-6)
    torch.testing.assert_close(got.state_dict(), want.state_dict(), rtol=1e-12, atol=1e-12)


def test_without_a_policy_training_is_bit_identical(tmp_path):
    want, _ = accelerated(tmp_path, watched=False, dtype=torch.float32)
    got, _ = accelerated(tmp_path, dtype=torch.float32)
    torch.testing.assert_close(got.state_dict(), want.state_dict(), rtol=0, atol=0)


def test_accelerates_own_clip_comes_first(tmp_path):
    _, norms = plain(clip=0.05)
    _, history = accelerated(tmp_path, user_clip=0.05)
    totals = np.linalg.norm(norms, axis=1)
    np.testing.assert_allclose(history.total("grad_norm"), np.minimum(totals, 0.05), rtol=1e-4)
    assert set(history.total("user_max_norm")) == {0.05}


def test_a_wrapper_that_hides_its_optimizer_is_refused(tmp_path):
    class Hiding(torch.optim.Optimizer):
        def __init__(self, inner):
            self.inner = inner

        @property
        def param_groups(self):
            return self.inner.param_groups

        def step(self):
            self.inner.step()

    model = mlp()
    with pytest.raises(WatchError, match=r"Hiding never called Optimizer.__init__.*pass the optimizer that it wraps"):
        watch(model, Hiding(torch.optim.SGD(model.parameters())), tmp_path)

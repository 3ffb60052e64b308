"""Rows leave a device behind the training's back: in order, whole, whoever writes on what stream, and nobody waits.

On a CPU the same is asked, where the rows are there at once; what a GPU answers, only a GPU can say.
"""

import contextlib
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from devices import DEVICES, no_waiting
from torch import nn
from training import mlp, watch

from gradwatch import open_history

POLICIES = [
    None, "ClipByGlobalNorm(1.0)", "ClipByNorm(1.0)", "AutoClip(window=16)", "SkipSpike(window=8)",
    "chain(SkipNonfinite(), ClipByGlobalNorm(1.0))", "ClipByValue(0.5)",
]  # fmt: skip


def steps_of(model, optimizer, numbers, watched=None, after=lambda n: None):
    """Steps whose gradients are n + 1 everywhere."""
    for n in numbers:
        for p in model.parameters():
            p.grad = torch.full_like(p, n + 1.0)
        optimizer.step()
        if watched is not None:
            watched.log(loss=next(model.parameters()).detach().new_full((), n))
        after(n)


def expected(model, steps):
    return math.sqrt(sum(p.numel() for p in model.parameters())) * np.arange(1.0, steps + 1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_training_waits_for_nothing_while_its_rows_leave(policy, device, tmp_path):
    """Some hundred drains, and more rows than the ring has: what is recorded is what each step had."""
    model = mlp(torch.float32).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    with watch(model, optimizer, tmp_path, clip=policy, every=3, flush_every=0.002) as handle:
        steps_of(model, optimizer, range(10), handle)  # constants are made, and pinned memory
        with no_waiting(device):
            steps_of(model, optimizer, range(10, 300), handle)
    history = open_history(handle.dir)
    assert history.step.tolist() == list(range(300))
    np.testing.assert_allclose(history.total("grad_norm"), expected(model, 300), rtol=1e-5)
    np.testing.assert_array_equal(history.total("loss"), np.arange(300.0))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ends", ["close", "state_dict"])
def test_rows_of_a_stream_that_is_far_behind_are_not_read_before_they_are_written(ends, device, tmp_path):
    model = mlp(torch.float32).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    busy = torch.randn(4096, 4096, device=device) if device == "cuda" else torch.randn(2, 2)
    handle = watch(model, optimizer, tmp_path, flush_every=1000.0)
    with torch.cuda.stream(torch.cuda.Stream()) if device == "cuda" else contextlib.nullcontext():
        steps_of(model, optimizer, range(20), after=lambda n: [busy @ busy for _ in range(10)])
    getattr(handle, ends)()
    history = open_history(handle.dir)
    handle.close()
    assert (history.total("nonfinite") == 0).all()
    np.testing.assert_allclose(history.total("grad_norm"), expected(model, 20), rtol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_two_streams_take_turns(device, tmp_path):
    model = mlp(torch.float32).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()] if device == "cuda" else [None, None]
    with watch(model, optimizer, tmp_path, flush_every=0.002) as handle:
        for n in range(200):
            if device == "cuda":
                streams[n % 2].wait_stream(streams[1 - n % 2])  # as a loop must, for its weights
            with torch.cuda.stream(streams[n % 2]) if device == "cuda" else contextlib.nullcontext():
                steps_of(model, optimizer, [n], handle)
    history = open_history(handle.dir)
    np.testing.assert_allclose(history.total("grad_norm"), expected(model, 200), rtol=1e-5)
    np.testing.assert_array_equal(history.total("loss"), np.arange(200.0))


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_a_model_compiled_for_the_device_is_recorded_as_it_is(device, tmp_path):
    def recorded(compiled):
        model = mlp(torch.float32).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
        forward = torch.compile(model, backend="inductor" if device == "cuda" else "eager") if compiled else model
        with watch(model, optimizer, tmp_path / str(compiled), clip="ClipByGlobalNorm(0.1)") as handle:
            generator = torch.Generator().manual_seed(1)
            for _ in range(6):
                x = torch.randn(16, 6, generator=generator).to(device)
                optimizer.zero_grad()
                nn.functional.cross_entropy(forward(x), torch.zeros(16, dtype=torch.long, device=device)).backward()
                optimizer.step()
        return open_history(handle.dir)

    got, want = recorded(True), recorded(False)
    assert got.layers == want.layers
    for quantity in ("grad_norm", "clip_coef"):
        np.testing.assert_allclose(got.layer(quantity), want.layer(quantity), rtol=1e-3, err_msg=quantity)


HANGS = """
import os, signal, sys, threading, time
import torch
from training import mlp, watch
model = mlp(torch.float32).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
handle = watch(model, optimizer, sys.argv[1], clip="ClipByGlobalNorm(1.0)", flush_every=0.01)
def steps(count):
    for _ in range(count):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
steps(40)
torch.cuda.synchronize()
handle._drain()
torch.cuda._sleep(1 << 37)  # a minute or more
steps(1)
print("hangs", flush=True)
if sys.argv[2] == "waits":
    torch.cuda.synchronize()
while True:
    steps(1)
    time.sleep(0.05)
"""


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("main_thread", ["waits", "steps"])
def test_sigterm_ends_a_training_whose_device_hangs(main_thread, tmp_path):
    """On a CPU the cases of `support/endings.py` imitate it. What had left the device is in the folder."""
    path = os.pathsep.join([str(Path(__file__).parents[1] / "support"), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", HANGS, tmp_path, main_thread],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "hangs\n"
        process.send_signal(signal.SIGTERM)
        assert (
            process.wait(15) == -signal.SIGTERM
        )  # which a shell calls 143; see test_a_process_that_hangs_is_soon_over
    finally:
        process.kill()
        process.wait()
    (run,) = tmp_path.iterdir()
    assert len(open_history(run)) >= 40

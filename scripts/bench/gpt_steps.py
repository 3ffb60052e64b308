"""Whole training steps of a GPT with bf16 autocast and fused AdamW, for `bench_step.py`: meant for CUDA, runs on CPU.

All variants train the same model with the same optimizer, one after the other: four copies of 1 B parameters would not
fit. A variant is entered anew for each round, takes a few steps untimed, then its steps are timed.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from bench_common import GPTS
from torch import nn
from torch.autograd import DeviceType
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, profile

from gradwatch.recording.recorder import Recorder

WHAT = {
    "phase": "median ratio of the optimizer phase (clip, recording, step) to torch clip_grad_norm_ + optimizer.step",
    "whole": "the same of a whole training step: forward and backward in bf16 autocast, then the phase",
    "launches": "of one phase: kernels on CUDA, copies and fills apart; on a CPU torch's own calls",
    "waits": "the error that torch.cuda.set_sync_debug_mode('error') raised in 3 whole steps; null: none",
}
Step = Callable[[], None]
Variant = Callable[[str, nn.Module, Optimizer], AbstractContextManager[Step]]
VARIANTS = ("torch clip + step", "gradwatch clip + step", "step alone", "gradwatch no clip + step")
BATCH = {"cuda": (4, 1024), "cpu": (2, 32)}
WARM = 3


def measure(name: str, variant: Variant, rounds: int, steps: int, device: str) -> dict[str, Any]:
    """Time, launches and waits of each variant, as `WHAT` defines them."""
    torch.manual_seed(0)
    with torch.device(device):
        net = GPTS[name]()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True)
    tokens, targets = net.batch(*BATCH[device])

    def backward() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(net(tokens).flatten(0, 1), targets.flatten())
        loss.backward()

    times: dict[str, list[tuple[float, float]]] = {v: [] for v in VARIANTS}
    launches = {}
    for r in range(rounds):
        for v in random.Random(r).sample(VARIANTS, len(VARIANTS)):
            with variant(v, net, optimizer) as step:
                whole = _timed(WARM, steps, device, backward, step)
                phase = _timed(WARM, steps, device, step)
                times[v].append((phase, whole))
                if r == 0:
                    launches[v] = _launches(step, device)
    waits = {v: _waits(partial(variant, v, net, optimizer), backward, device) for v in VARIANTS}
    bases = times["torch clip + step"]
    phase, whole = (
        {v: statistics.median(t[i] / b[i] for t, b in zip(times[v], bases, strict=True)) for v in VARIANTS}
        for i in (0, 1)
    )
    parameters = sum(p.numel() for p in net.parameters())
    return {"parameters": parameters, "tensors": len(list(net.parameters())), "batch": BATCH[device],
            "phase": phase, "whole": whole, "launches": launches, "waits": waits}  # fmt: skip


def _timed(warm: int, steps: int, device: str, *parts: Step) -> float:
    """Seconds of `steps` times all parts, after `warm` times that do not count."""
    for n in range(warm + steps):
        if n == warm:
            _synchronize(device)
            began = time.perf_counter()
        for part in parts:
            part()
    _synchronize(device)
    return time.perf_counter() - began


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _launches(step: Step, device: str) -> dict[str, int]:
    _synchronize(device)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=activities) as profiled:
        step()
        _synchronize(device)
    if device == "cuda":
        names = [e.name for e in profiled.events() if e.device_type == DeviceType.CUDA]
        kinds = ("copies" if n.startswith(("Memcpy", "Memset")) else "kernels" for n in names)
    else:
        kinds = ("calls" for e in profiled.events() if _is_call(e) and not _is_call(e.cpu_parent))
    return dict(Counter(kinds))


def _is_call(event: Any) -> bool:
    return event is not None and event.name.startswith("aten::")


def _waits(opened: Callable[[], AbstractContextManager[Step]], backward: Step, device: str) -> str | None:
    """What in three steps waited for the device; None where nothing did, and on a CPU."""
    before = torch.cuda.get_sync_debug_mode() if device == "cuda" else 0
    with (
        patch.object(Recorder, "due", property(lambda self: self.full)),
        opened() as step,
    ):  # a drain waits, and may
        try:
            for n in range(WARM + 3):
                if n == WARM and device == "cuda":
                    torch.cuda.set_sync_debug_mode("error")
                backward()
                step()
        except RuntimeError as error:
            if "synchroniz" not in str(error):
                raise
            return str(error)
        finally:
            if device == "cuda":
                torch.cuda.set_sync_debug_mode(before)
    return None

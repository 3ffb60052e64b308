"""Whole training steps of a GPT with bf16 autocast and fused AdamW, for `bench_step.py`: meant for CUDA, runs on CPU.

All variants train the same model with the same optimizer, one after the other: four copies of 1 B parameters would not
fit. A variant is entered anew for each round, takes some steps untimed, then its steps are timed. A Watch looks at the
loss in ever fewer steps, some 80 of 100,000: of a round they would be a tenth, so `a look` is timed alone.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import torch
from bench_common import GPTS
from torch import nn
from torch.autograd import DeviceType
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, profile

from gradwatch.recording.loss_targets import LossTargets

WHAT = {
    "phase": "median ratio of the optimizer phase (clip, recording, step) to torch clip_grad_norm_ + optimizer.step",
    "whole": "the same of a whole training step: forward and backward in bf16 autocast, then the phase",
    "to bare": "median ratio of a whole training step to one without clip and record",
    "a look": "by how many milliseconds a whole step is longer in which the loss is looked at; in no other figure",
    "launches": "of ten phases in a row, one of which measures the weights: kernels on CUDA, copies and fills apart; "
    "on a CPU torch's own calls",
    "waits": "the error that torch.cuda.set_sync_debug_mode('error') raised in 10 whole steps in a row; null: none",
}
Step = Callable[[], None]
Variant = Callable[[str, nn.Module, Optimizer], AbstractContextManager[Step]]
VARIANTS = ("torch clip + step", "gradwatch clip + step", "step alone", "gradwatch no clip + step")
BATCH = {"cuda": (4, 1024), "cpu": (2, 32)}
WARM = 12  # a measured step is one of them, and the first rows leave
PHASES = 4  # as many phases alone are timed as whole steps
IN_A_ROW = 10  # `every` by default: one of them is a measured one


def measure(
    name: str,
    variant: Variant,
    rounds: int,
    steps: int,
    device: str,
    batch: tuple[int, int] | None = None,
    variants: Sequence[str] = VARIANTS,
) -> dict[str, Any]:
    """Time, launches and waits of each variant, as `WHAT` defines them, on batches of so many sequences and tokens."""
    batch = batch or BATCH[device]
    net, optimizer, backward = training(name, device, batch)
    times: dict[str, list[tuple[float, float]]] = {v: [] for v in variants}
    counted = {}
    for r in range(rounds):
        for v in random.Random(r).sample(variants, len(variants)):
            with variant(v, net, optimizer) as step, without_looks():
                whole = timed(WARM, steps, device, backward, step)
                phase = timed(WARM, PHASES * steps, device, step)
                times[v].append((phase, whole))
                if r == 0:
                    counted[v] = launches(step, device)
    held_up = {v: waits(partial(variant, v, net, optimizer), backward, device) for v in variants}
    ratios = {
        what: {v: [t[i] / b[i] for t, b in zip(times[v], times[base], strict=True)] for v in variants}
        for what, i, base in (("phase", 0, VARIANTS[0]), ("whole", 1, VARIANTS[0]), ("to bare", 1, "step alone"))
        if base in variants
    }
    figures = {what: {v: statistics.median(each) for v, each in found.items()} for what, found in ratios.items()}
    parameters = sum(p.numel() for p in net.parameters())
    return {"parameters": parameters, "tensors": len(list(net.parameters())), "batch": batch, "rounds": rounds,
            "steps": steps, **figures, "to bare, each round": ratios["to bare"],
            "launches": counted, "waits": held_up,
            "a look": _look(partial(variant, VARIANTS[-1], net, optimizer), backward, device)}  # fmt: skip


def training(
    name: str, device: str, batch: tuple[int, int], autocast: bool = True
) -> tuple[nn.Module, Optimizer, Step]:
    """A new GPT, its fused AdamW, and what sets the gradients to zero and makes others."""
    torch.manual_seed(0)
    with torch.device(device):
        net = GPTS[name]()
        tokens, targets = net.batch(*batch)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True)

    def backward() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(net(tokens).flatten(0, 1), targets.flatten())
        loss.backward()

    return net, optimizer, backward


@contextmanager
def without_looks() -> Iterator[None]:
    """Within, no loss is looked at."""
    with mock.patch.object(LossTargets, "begin", lambda *_: None):  # noqa: PT008 (a Mock takes as long as what is timed)
        yield


def _look(opened: Callable[[], AbstractContextManager[Step]], backward: Step, device: str) -> float:
    """Milliseconds. Looks come with measured steps, so these are compared, with a look and without one."""
    medians = []
    for looks in (without_looks(), nullcontext()):
        with looks, opened() as step:
            times = [timed(0, 1, device, backward, step) for _ in range(6 * IN_A_ROW)]
            medians.append(statistics.median(times[2 * IN_A_ROW :: IN_A_ROW]))
    return 1e3 * (medians[1] - medians[0])


def timed(warm: int, steps: int, device: str, *parts: Step) -> float:
    """Seconds of `steps` times all parts, after `warm` times that do not count."""
    for n in range(warm + steps):
        if n == warm:
            synchronize(device)
            began = time.perf_counter()
        for part in parts:
            part()
    synchronize(device)
    return time.perf_counter() - began


def synchronize(device: str) -> None:
    """Wait until the device has done all that it was asked."""
    if device == "cuda":
        torch.cuda.synchronize()


def launches(step: Step, device: str, steps: int = IN_A_ROW) -> dict[str, int]:
    """What so many steps in a row launch, by kind."""
    events = profiled_events(step, device, steps)
    if device == "cuda":
        kinds = ("copies" if e.name.startswith(("Memcpy", "Memset")) else "kernels" for e in events)
    else:
        kinds = ("calls" for e in events if _is_call(e) and not _is_call(e.cpu_parent))
    return dict(Counter(kinds))


def profiled_events(step: Step, device: str, steps: int) -> list[Any]:
    """What so many steps in a row gave the device to do; on a CPU torch's calls, and what they call."""
    synchronize(device)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=activities) as profiled:
        for _ in range(steps):
            step()
        synchronize(device)
    events = list(profiled.events())
    if device != "cuda":
        return events
    own = (e for e in events if e.device_type == DeviceType.CUDA)
    return [e for e in own if not getattr(e, "is_user_annotation", False)]  # "Optimizer.step#..." is one


def _is_call(event: Any) -> bool:
    return event is not None and event.name.startswith("aten::")


def waits(
    opened: Callable[[], AbstractContextManager[Step]], backward: Step, device: str, steps: int = IN_A_ROW
) -> str | None:
    """What in so many steps waited for the device; None where nothing did, and on a CPU."""
    before = torch.cuda.get_sync_debug_mode() if device == "cuda" else 0
    with opened() as step:
        try:
            for n in range(IN_A_ROW + steps):  # constants are made on the first measured ones
                if n == IN_A_ROW and device == "cuda":
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

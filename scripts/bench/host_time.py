"""Counts what clipping and recording make the host do beyond the optimizer's own step: Python's work, not the clock's.

    python scripts/bench/host_time.py -o docs/measurements/host_work.json
    python scripts/bench/host_time.py --clock -o docs/measurements/host_time_cpu.json     # only on a quiet machine

Counted are the bytecode instructions that Python executes, and its calls into C, in a step of fused AdamW on tensors of
two elements, beside `clip_grad_norm_`. They are the same on every machine; what C does within a call is not counted.
The steps are those of a device whose values cannot be read for nothing, and on which one kernel takes all norms, on the
CPU's tensors.

`--clock` asks the clock instead, with the calls that a GPU would be given (`STUBBED`) answered at once: what is left is
Python's work and that of the small operations. The optimizer steps its first tensor alone, for every way alike: its own
work for each of them is many times what is looked for, and no difference of two such times is a time. It is the
processor's clock, without Python's garbage collection, as in `timeit`: the shortest of many windows of a few
milliseconds, as what disturbs only adds.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from bench_output import cpu_name
from fake_cuda import step_of, with_triton
from torch import nn

from gradwatch.measure.multi_tensor import MultiTensor
from gradwatch.policies import parse

TENSORS = (6, 74, 147, 1000)
WAYS = ("torch clip", "none", "ClipByGlobalNorm(1.0)")
FIRST = 3  # steps after which constants and state are made
ROUNDS, WINDOWS, WINDOW = 6, 40, 2_000  # steps of a window, times its tensors
MOST = 20  # steps of a window
COUNTED = "Python's work of a step beyond fused AdamW's own: bytecode instructions, and calls into C"
TIMED = "microseconds of the host in a step beyond fused AdamW's own, the calls that a GPU would be given left out"
STUBBED = (
    "_fused_adamw_",
    "_foreach_mul_",
    "_foreach_add_",
    "_foreach_sub_",
    "_foreach_copy_",
    "_foreach_norm",
    "stack",
)


def work(step: Callable[[], Any]) -> tuple[int, int]:
    """Bytecode instructions that Python executes in `step()`, and its calls into C."""
    instructions = calls = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal instructions
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        instructions += event == "opcode"
        return trace

    def profile(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "c_call"

    before = sys.gettrace(), sys.getprofile()  # a debugger's, or of whoever measures coverage
    gc.disable()  # what it collects may run Python
    try:
        sys.settrace(trace)
        step()
        sys.settrace(None)
        sys.setprofile(profile)
        step()
    finally:
        gc.enable()
        sys.setprofile(before[1])
        sys.settrace(before[0])
    return instructions, calls


@contextmanager
def taking_steps(tensors: int, way: str | None) -> Iterator[Callable[[], Any]]:
    """A step of so many tensors, after the first few; `way` None is the optimizer alone."""
    params = {str(i): nn.Parameter(torch.randn(2)) for i in range(tensors)}
    optimizer = torch.optim.AdamW(params.values(), fused=True)
    for p in params.values():
        p.grad = torch.ones_like(p)
    watched = way not in (None, "torch clip")
    policy = parse(way) if way in WAYS[2:] else None
    stepper = step_of(params, optimizer, policy, every=1_000_000) if watched else None

    def step() -> None:
        if way == "torch clip":
            nn.utils.clip_grad_norm_(params.values(), 1.0, foreach=True)
        optimizer.step()

    on_device = [
        patch(f"gradwatch.{name}.can_be_read", lambda _: False) for name in ("measure.foreach", "recording.clipper")
    ]
    with on_device[0], on_device[1], with_triton(_Unlaunched):
        if stepper is not None:
            stepper.layout.at_once = True
        for _ in range(FIRST):
            step()
        yield step
    if stepper is not None:
        stepper.detach(finish=False)  # else torch's clips stay wrapped


class _Unlaunched(MultiTensor):
    """All that the host does for kernels, but for handing them over."""

    def __init__(self, weights: Mapping[int, torch.Tensor], layers: int) -> None:
        super().__init__(weights, layers, SimpleNamespace(tl=SimpleNamespace(float32=None)))

    def _launch(self, *args: Any, **how: Any) -> None:
        pass


def of_a_step(tensors: int, way: str | None) -> tuple[int, int]:
    """The work of a step."""
    with taking_steps(tensors, way) as step:
        return work(step)


@contextmanager
def answered_at_once() -> Iterator[None]:
    """Within, the calls that a GPU would be given do nothing: norms are ones."""
    ones = functools.cache(torch.ones)
    each = functools.cache(lambda size: tuple(torch.ones(()) for _ in range(size)))
    answers: dict[str, Callable[..., Any]] = dict.fromkeys(STUBBED, lambda *args, **words: None)
    answers["_foreach_norm"] = lambda tensors, *args, **words: each(len(tensors))
    answers["stack"] = lambda tensors, dim=0, out=None: ones(len(tensors)) if out is None else out
    whole = torch.optim.Adam._init_group

    def first(optimizer: torch.optim.Adam, group: dict[str, Any], *lists: list[Any]) -> Any:
        return whole(optimizer, {**group, "params": group["params"][:1]}, *lists)

    with patch.object(torch.optim.Adam, "_init_group", first), ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(patch.object(torch, name, answer))
        yield


def microseconds(tensors: int) -> list[dict[str, Any]]:
    """What a step of each way adds to the optimizer's own; the ways take turns."""
    found: dict[str | None, float] = {}
    for way in (None, *WAYS) * ROUNDS:
        with taking_steps(tensors, way) as step, answered_at_once():
            step()
            found[way] = min(found.get(way, math.inf), *_windows(step, max(1, min(MOST, WINDOW // tensors))))
    return [{"tensors": tensors, "way": way, "microseconds": round(found[way] - found[None], 1)} for way in WAYS]


def _windows(step: Callable[[], Any], steps: int) -> list[float]:
    """Microseconds of the processor in a step, of each window of so many."""
    out = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(WINDOWS):
            begun = time.thread_time()
            for _ in range(steps):
                step()
            out.append((time.thread_time() - begun) / steps * 1e6)
    finally:
        gc.enable()
    return out


def row(tensors: int, way: str) -> dict[str, Any]:
    """What a step does beyond the optimizer's own."""
    found, alone = of_a_step(tensors, way), of_a_step(tensors, None)
    return {"tensors": tensors, "way": way, "instructions": found[0] - alone[0], "calls": found[1] - alone[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="write the table to this JSON file")
    parser.add_argument("--clock", action="store_true", help="microseconds instead of counts")
    args = parser.parse_args()
    about: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__}
    if args.clock:
        torch.set_num_threads(1)
        about = {"what": TIMED, "machine": cpu_name(), "load": round(os.getloadavg()[0], 1), **about}
        rows = [one for tensors in TENSORS for one in microseconds(tensors)]
    else:
        about = {"what": COUNTED, **about}
        rows = [row(tensors, way) for tensors in TENSORS for way in WAYS]
    for one in rows:
        print(*one.values(), sep="  ")
    if args.output:
        text = ",\n".join(json.dumps(r) for r in rows)
        args.output.write_text(f'{json.dumps(about)[:-1]}, "rows": [\n{text}\n]}}\n')


if __name__ == "__main__":
    main()

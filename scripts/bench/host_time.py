"""Counts what clipping and recording make the host do beyond the optimizer's own step: Python's work, not the clock's.

    python scripts/bench/host_time.py -o docs/measurements/host_work.json

Counted are the bytecode instructions that Python executes, and its calls into C, in a step of fused AdamW on tensors of
two elements, beside `clip_grad_norm_`. They are the same on every machine; what C does within a call is not counted.
The steps are those of a device whose values cannot be read for nothing, on the CPU's tensors.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from fake_cuda import step_of
from torch import nn

from gradwatch.policies import parse

TENSORS = (6, 74, 147, 1000)
WAYS = ("torch clip", "none", "ClipByGlobalNorm(1.0)")
FIRST = 3  # steps after which constants and state are made


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


def of_a_step(tensors: int, way: str | None) -> tuple[int, int]:
    """The work of a step of so many tensors; `way` None is the optimizer alone."""
    params = {str(i): nn.Parameter(torch.randn(2)) for i in range(tensors)}
    optimizer = torch.optim.AdamW(params.values(), fused=True)
    for p in params.values():
        p.grad = torch.ones_like(p)
    watched = way not in (None, "torch clip")
    stepper = step_of(params, optimizer, None if way == "none" else parse(str(way)), every=1000) if watched else None

    def step() -> None:
        if way == "torch clip":
            nn.utils.clip_grad_norm_(params.values(), 1.0, foreach=True)
        optimizer.step()

    on_device = [
        patch(f"gradwatch.{name}.can_be_read", lambda _: False) for name in ("measure.foreach", "recording.clipper")
    ]
    with on_device[0], on_device[1]:
        for _ in range(FIRST):
            step()
        found = work(step)
    if stepper is not None:
        stepper.detach(finish=False)  # else torch's clips stay wrapped
    return found


def row(tensors: int, way: str) -> dict[str, Any]:
    """What a step does beyond the optimizer's own."""
    found, alone = of_a_step(tensors, way), of_a_step(tensors, None)
    return {"tensors": tensors, "way": way, "instructions": found[0] - alone[0], "calls": found[1] - alone[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="write the table to this JSON file")
    args = parser.parse_args()
    rows = [row(tensors, way) for tensors in TENSORS for way in WAYS]
    for one in rows:
        print(*one.values(), sep="  ")
    if args.output:
        what = "Python's work of a step beyond fused AdamW's own: bytecode instructions, and calls into C"
        about = {"what": what, "python": platform.python_version(), "torch": torch.__version__}
        text = ",\n".join(json.dumps(r) for r in rows)
        args.output.write_text(f'{json.dumps(about)[:-1]}, "rows": [\n{text}\n]}}\n')


if __name__ == "__main__":
    main()

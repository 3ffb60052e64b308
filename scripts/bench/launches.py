"""Counts what clipping and recording launch beyond the optimizer's own step, on CUDA tensors that hold no values.

    python scripts/bench/launches.py -o docs/measurements/launches_fake_cuda.json

It needs no GPU, and none was asked: the counts are those of ATen's rules (fake_cuda.py), with Triton's kernels, as a
Watch has them on CUDA, and without. Every host read, every copy between devices and every large allocation of a step is
listed, too.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from bench_common import GPTS, MODELS
from fake_cuda import Trace, fake_cuda, parameters, step_of, take_step, with_triton

from gradwatch.policies import parse

NETS: dict[int, Callable[[], torch.nn.Module]] = {
    6: MODELS["mlp-6"], 74: MODELS["transformer-74"], 147: GPTS["gpt2-124m"], 1000: MODELS["linear-1000"],
}  # fmt: skip
DTYPES = (torch.float32, torch.bfloat16)
WAYS = ("torch clip", "none", "ClipByGlobalNorm(1.0)", "ClipByNorm(1.0)", "AGC(0.01)")
EVERY = 3  # steps from one measured step to the next


@cache
def shapes(tensors: int) -> dict[str, Sequence[int]]:
    """The parameters of the net of so many tensors."""
    with torch.device("meta"):
        return {name: tuple(p.shape) for name, p in NETS[tensors]().named_parameters()}


def trace(sizes: Mapping[str, Sequence[int]], dtype: torch.dtype, way: str | None, triton: bool = False) -> list[Trace]:
    """A step of fused AdamW on which the weights are not measured, and one on which they are."""
    with fake_cuda(), with_triton() if triton else nullcontext():
        params = parameters(sizes, dtype)
        optimizer = torch.optim.AdamW(params.values(), lr=1e-4, fused=True)
        clips = way == "torch clip"
        watched = way is not None and not clips
        policy = parse(str(way)) if watched and way != "none" else None
        stepper = step_of(params, optimizer, policy, every=EVERY) if watched else None
        for _ in range(EVERY + 2):  # constants are made by then; the next step but one is a measured one
            take_step(params, optimizer)
        traces = []
        for _ in range(2):
            for p in params.values():
                p.grad = torch.empty_like(p)
            with Trace() as seen:
                if clips:
                    torch.nn.utils.clip_grad_norm_(params.values(), 1.0, foreach=True)
                optimizer.step()
            traces.append(seen)
        if stepper is not None:
            stepper.detach(finish=False)  # else torch's clips stay wrapped, for those who are traced later too
    return traces


@cache
def _of_optimizer(tensors: int, dtype: torch.dtype) -> int:
    """The launches of the optimizer's step alone."""
    return trace(shapes(tensors), dtype, None)[0].total


def row(tensors: int, dtype: torch.dtype, way: str, triton: bool = False) -> dict[str, Any]:
    """Launches beyond those of the optimizer alone, and what a step waits for or allocates."""
    plain, measured = trace(shapes(tensors), dtype, way, triton)
    found = {
        "tensors": tensors, "dtype": str(dtype).removeprefix("torch."), "way": way, "triton": triton,
        "launches": plain.total - _of_optimizer(tensors, dtype), "measured": measured.total - plain.total,
    }  # fmt: skip
    for kind in ("reads", "copies", "allocations"):
        found[kind] = getattr(plain, kind) + getattr(measured, kind)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="write the table to this JSON file")
    args = parser.parse_args()
    rows = []
    for tensors in NETS:
        for dtype in DTYPES:
            for way in WAYS:
                for triton in (False, True) if way != WAYS[0] else (False,):
                    rows.append(row(tensors, dtype, way, triton))
                    print(*rows[-1].values(), sep="  ", flush=True)
    if args.output:
        what = "launches beyond fused AdamW's own, by ATen's rules for CUDA 12, on fake tensors; no GPU was asked"
        text = ",\n".join(json.dumps(r) for r in rows)
        args.output.write_text(
            f'{{"what": {json.dumps(what)}, "torch": "{torch.__version__}", "rows": [\n{text}\n]}}\n'
        )


if __name__ == "__main__":
    main()

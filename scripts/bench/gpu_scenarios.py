"""Trainings of tests/scenarios on a device and on the CPU beside it: do the rules say the same of both?

    python scripts/bench/gpu_scenarios.py [--every 12] [--seconds 70] -o parts.jsonl

All that a training makes, and draws at random, is made on the CPU and moved, so both train on the same numbers; what a
kernel draws (dropout) differs. A training is `held` where the same errors and warnings are said of both.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "scenarios"), str(ROOT / "tests" / "support")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._device import _device_constructors  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MADE = {*_device_constructors(), torch.from_numpy}
DRAWN_IN_PLACE = {
    getattr(torch.Tensor, f"{name}_") for name in ("uniform", "normal", "bernoulli", "exponential", "random")
}
DRAWN = {
    torch.rand_like, torch.randn_like, torch.randint_like, torch.bernoulli, torch.multinomial, torch.poisson,
    torch.Tensor.bernoulli, torch.Tensor.multinomial,
}  # fmt: skip
TO_HOST = {torch.Tensor.numpy, torch.Tensor.__array__}


class OnDevice(TorchFunctionMode):
    """Within, what a training makes without naming a device is on `DEVICE`, as the CPU would have made it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in MADE and kwargs.get("device") is None and not kwargs.get("pin_memory") and "out" not in kwargs:
            made = func(*map(_on_cpu, args), **kwargs)
            moved = made.detach().to(DEVICE)
            return moved.requires_grad_(made.requires_grad)
        if func in DRAWN and args[0].device.type == DEVICE and "device" not in kwargs:
            return func(*map(_on_cpu, args), **kwargs).to(DEVICE)
        if func in DRAWN_IN_PLACE or getattr(func, "__module__", "") == "torch.nn.init":
            args, at = (args, args[0]) if args else ((kwargs["tensor"],), kwargs.pop("tensor"))
            if at.device.type == DEVICE:
                with torch.no_grad():
                    at.copy_(func(_on_cpu(at), *args[1:], **kwargs))
                return at
        if func in TO_HOST:
            args = (_on_cpu(args[0]), *args[1:])
        return func(*args, **kwargs)


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def start(place: str) -> None:
    """A process for trainings on the device, or on the CPU: what is made where they are imported is there, too."""
    torch.set_num_threads(1)
    logging.disable()
    if place == "device":
        OnDevice().__enter__()


def trainings(every: int) -> dict[str, Callable[[Path], Any]]:
    """The twins of each rule, and every so manieth of the unseen ones, by name."""
    import unseen.every  # noqa: F401
    from twins import TWINS
    from unseen import HEALTHY, SICK

    found: dict[str, Callable[[Path], Any]] = {}
    for rule, twins in TWINS.items():
        for state, (_, train) in zip(("sick", "healthy"), twins, strict=True):
            found[f"twin, {state}: {rule}"] = train
    for name in sorted(SICK)[::every]:
        found[f"sick: {name}"] = lambda folder, train=SICK[name].train: train(folder, True).history
    for name in sorted(HEALTHY)[::every]:
        found[f"healthy: {name}"] = lambda folder, train=HEALTHY[name].train: train(folder).history
    return found


def trained(name: str, every: int) -> dict[str, Any]:
    """The errors and warnings, the first finite number of each column, and the seconds it took; or its error."""
    from gradwatch.analysis.rules import diagnose

    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            history = trainings(every)[name](Path(folder))
            columns = {name: column[np.isfinite(column)] for name, column in history.per_step.items()}
            first = {name: float(finite[0]) for name, finite in columns.items() if len(finite)}
            roots = [[root.rule, root.severity] for root in diagnose(history) if root.severity != "note"]
        except Exception as error:  # the next goes on
            text = str(error).splitlines() or [repr(error)]
            return {"error": f"{text[0]}\n{traceback.format_exc(limit=-6)}"}
    return {"said": roots, "first": first, "seconds": round(time.monotonic() - began, 1)}


def compared(cpu: dict[str, Any], device: dict[str, Any]) -> dict[str, Any]:
    """What is said on both, and which columns are there on one alone, or begin with another number."""
    found = {"cpu": cpu.get("said"), "device": device.get("said"), "held": cpu.get("said") == device.get("said")}
    if "error" in cpu or "error" in device:
        return {**found, "error": cpu.get("error") or device.get("error")}
    here, there = cpu["first"], device["first"]
    otherwise = {n: [here[n], there[n]] for n in here.keys() & there if not np.isclose(here[n], there[n], 0.01, 1e-6)}
    found |= {"missing": sorted(here.keys() - there), "more": sorted(there.keys() - here), "otherwise": otherwise}
    return {**found, "seconds": [cpu["seconds"], device["seconds"]]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=12, help="of the unseen trainings, one in so many")
    parser.add_argument("--seconds", type=float, default=70, help="what is not done by then is left out")
    parser.add_argument("--processes", type=int, default=max(2, (os.cpu_count() or 2) * 3 // 4))
    parser.add_argument("--names", default="", help="only those whose name holds one of these texts, with | between")
    parser.add_argument("-o", "--output", type=Path, required=True, help="a line of JSON for each goes there")
    args = parser.parse_args()
    deadline = time.monotonic() + args.seconds
    names = [name for name in trainings(args.every) if any(text in name for text in args.names.split("|"))]
    fresh = multiprocessing.get_context("spawn")
    few = max(1, args.processes // 4)  # a step takes longer on a device, for its launches
    pools = [fresh.Pool(few, start, ["cpu"]), fresh.Pool(args.processes - few, start, ["device"])]
    waiting = [(name, *(pool.apply_async(trained, (name, args.every)) for pool in pools)) for name in names]
    with args.output.open("a", encoding="utf-8") as out:
        while waiting and time.monotonic() < deadline:
            done = [each for each in waiting if each[1].ready() and each[2].ready()]
            waiting = [each for each in waiting if each not in done]
            for name, cpu, device in done:
                out.write(json.dumps({name: compared(cpu.get(), device.get())}) + "\n")
            out.flush()
            time.sleep(0.1)
    for pool in pools:
        pool.terminate()


if __name__ == "__main__":
    main()

"""Trainings of tests/scenarios on a device and on the CPU beside it: do the rules say the same of both?

    python scripts/bench/gpu_scenarios.py [--every 12] [--seconds 70] -o parts.jsonl

All that a training makes, and draws at random, is made on the CPU and moved, so both train on the same numbers; what a
kernel draws (dropout) differs. `one` are the trainings of which something else is said on the device, and what.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
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
DRAWN = {getattr(torch.Tensor, f"{name}_") for name in ("uniform", "normal", "bernoulli", "exponential", "random")}
TO_HOST = {torch.Tensor.numpy, torch.Tensor.__array__}


class OnDevice(TorchFunctionMode):
    """Within, what a training makes without naming a device is on `DEVICE`, as the CPU would have made it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in MADE and kwargs.get("device") is None and not kwargs.get("pin_memory") and "out" not in kwargs:
            made = func(*args, **kwargs)
            moved = made.detach().to(DEVICE)
            return moved.requires_grad_(made.requires_grad)
        if func in DRAWN and args[0].device.type != "cpu":
            return args[0].copy_(func(args[0].detach().cpu(), *args[1:], **kwargs))
        if func in TO_HOST:
            return func(args[0].detach().cpu(), *args[1:], **kwargs)
        return func(*args, **kwargs)


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


def compared(name: str, every: int) -> tuple[str, dict[str, Any]]:
    """What is said of it on the CPU and on the device, the columns that begin otherwise there, and seconds."""
    torch.set_num_threads(1)
    train = trainings(every)[name]
    found: dict[str, Any] = {}
    begun = {}
    for where in ("cpu", "device"):
        began = time.monotonic()
        try:
            begun[where], found[where] = _trained(train, on_device=where == "device")
        except Exception as error:  # the next goes on
            text = str(error).splitlines() or [repr(error)]
            found[f"error on {where}"] = f"{text[0]}\n{traceback.format_exc(limit=-6)}"
        found[f"seconds on {where}"] = round(time.monotonic() - began, 1)
    if len(begun) == 2:
        cpu, device = begun["cpu"], begun["device"]
        found["missing"], found["more"] = sorted(set(cpu) - set(device)), sorted(set(device) - set(cpu))
        both = set(cpu) & set(device)
        found["otherwise"] = {n: [cpu[n], device[n]] for n in sorted(both) if not np.isclose(cpu[n], device[n], 0.05)}
    found["held"] = found.get("cpu") == found.get("device")
    return name, found


def _trained(train: Callable[[Path], Any], on_device: bool) -> tuple[dict[str, float], list[Any]]:
    """The first finite number of each column, and the errors and warnings."""
    from gradwatch.analysis.rules import diagnose

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, OnDevice() if on_device else nullcontext():
        history = train(Path(folder))
        columns = {name: column[np.isfinite(column)] for name, column in history.per_step.items()}
        first = {name: float(finite[0]) for name, finite in columns.items() if len(finite)}
        return first, [[root.rule, root.severity] for root in diagnose(history) if root.severity != "note"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=12, help="of the unseen trainings, one in so many")
    parser.add_argument("--seconds", type=float, default=70, help="what is not done by then is left out")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--names", default="", help="only those whose name holds one of these texts, with | between")
    parser.add_argument("-o", "--output", type=Path, required=True, help="a line of JSON for each goes there")
    args = parser.parse_args()
    deadline = time.monotonic() + args.seconds
    wanted = args.names.split("|")
    names = [name for name in trainings(args.every) if any(text in name for text in wanted)]
    pool = multiprocessing.get_context("spawn").Pool(args.processes)
    waiting = [pool.apply_async(compared, (name, args.every)) for name in names]
    with args.output.open("a", encoding="utf-8") as out:
        while waiting and time.monotonic() < deadline:
            done = [result for result in waiting if result.ready()]
            waiting = [result for result in waiting if result not in done]
            for result in done:
                out.write(json.dumps(dict([result.get()])) + "\n")
            out.flush()
            time.sleep(0.1)
    pool.terminate()


if __name__ == "__main__":
    main()

"""What watching costs: the optimizer phase, torch's clip and step against gradwatch's, interleaved.

Each round times the same number of steps of every variant, in a new order; the figures are medians of the per-round
ratios to torch's `clip_grad_norm_` + `step`. Absolute times of a shared machine mean nothing, so none are the result.

    python scripts/bench_step.py [--rounds 15] [--steps 20] [-o bench_step.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import nn

import gradwatch

MAX_NORM = 1.0


def transformer() -> nn.Module:
    """74 tensors: 6 pre-norm blocks of width 256, an embedding and a final norm."""

    def block() -> nn.Module:
        return nn.ModuleDict({
            "norm1": nn.LayerNorm(256), "qkv": nn.Linear(256, 768), "proj": nn.Linear(256, 256),
            "norm2": nn.LayerNorm(256), "up": nn.Linear(256, 1024), "down": nn.Linear(1024, 256),
        })  # fmt: skip

    return nn.ModuleDict({"embed": nn.Embedding(1024, 256), "blocks": nn.ModuleList(block() for _ in range(6)),
                          "norm": nn.LayerNorm(256, bias=False)})  # fmt: skip


def thousand() -> nn.Module:
    """1,000 small tensors: 500 linear layers of width 64."""
    return nn.ModuleList(nn.Linear(64, 64) for _ in range(500))


def mlp() -> nn.Module:
    """The seeds' MLP, 6 tensors, where fixed costs dominate."""
    return nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10))


MODELS = {"transformer-74": transformer, "linear-1000": thousand, "mlp-6": mlp}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "fused AdamW": lambda params: torch.optim.AdamW(params, fused=True),
    "foreach AdamW": lambda params: torch.optim.AdamW(params, foreach=True),
    "SGD momentum": lambda params: torch.optim.SGD(params, lr=1e-3, momentum=0.9, foreach=True),
}


@contextmanager
def variant(name: str, model: nn.Module, optimizer: torch.optim.Optimizer, device: str) -> Iterator[Callable[[], None]]:
    """One step's optimizer phase: gradients are in place, weights move."""
    params = list(model.parameters())
    if name == "step alone":
        yield optimizer.step
    elif name == "torch clip + step":

        def step() -> None:
            torch.nn.utils.clip_grad_norm_(params, MAX_NORM)
            optimizer.step()

        yield step
    else:
        clip = None if "no clip" in name else f"ClipByGlobalNorm({MAX_NORM})"
        with (
            tempfile.TemporaryDirectory() as folder,
            gradwatch.watch(model, optimizer, clip=clip, log=None, dir=folder, verbose=False),
        ):
            yield optimizer.step


VARIANTS = ("torch clip + step", "gradwatch clip + step", "step alone", "gradwatch no clip + step")


def measure(model: str, optimizer: str, rounds: int, steps: int, device: str) -> dict[str, float]:
    """Median over rounds of each variant's time divided by torch's clip and step of the same round."""
    with ExitStack() as stack:
        run = {}
        for name in VARIANTS:
            torch.manual_seed(0)
            net = MODELS[model]().to(device)
            for p in net.parameters():
                p.grad = torch.randn_like(p)
            run[name] = stack.enter_context(variant(name, net, OPTIMIZERS[optimizer](net.parameters()), device))
        times: dict[str, list[float]] = {name: [] for name in VARIANTS}
        for r in range(rounds + 2):  # two rounds to warm up
            for name in random.Random(r).sample(VARIANTS, len(VARIANTS)):
                started = time.perf_counter()
                for _ in range(steps):
                    run[name]()
                if device == "cuda":
                    torch.cuda.synchronize()
                if r >= 2:
                    times[name].append(time.perf_counter() - started)
    base = times["torch clip + step"]
    return {name: statistics.median(t / b for t, b in zip(times[name], base, strict=True)) for name in VARIANTS}


def cpu_name() -> str:
    """The processor and its cores, as the kernel names them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", help="cases whose name holds this text, such as 'fused'")
    parser.add_argument("-o", "--output")
    args = parser.parse_args()
    cases = {f"{m}, {o}": (m, o) for m in MODELS for o in OPTIMIZERS}
    results = {
        name: measure(*case, args.rounds, args.steps, args.device) for name, case in cases.items() if args.only in name
    }
    machine = torch.cuda.get_device_name() if args.device == "cuda" else cpu_name()
    report = {
        "what": "median ratio to torch clip_grad_norm_ + optimizer.step; 1.00 is torch's own time",
        "machine": machine, "threads": torch.get_num_threads(), "torch": torch.__version__,
        "gradwatch": gradwatch.__version__, "rounds": args.rounds, "steps": args.steps, "ratios": results,
    }  # fmt: skip
    print(json.dumps(report, indent=1))
    if args.output:
        with open(args.output, "w") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()

"""A very long run: the memory of the process that records it, and the number of its files, over a million steps.

A small model (six tensors, gradients that are given and not computed) takes `--steps` steps under a Watch that records
to files, and logs a value at each. `--flush-every` is shorter than the default, so that the run has as many parts as
one of hours: with 0.1, a part every 0.04 seconds. Memory is what the whole process holds (resident), the most in each
twentieth of the run; files are all in the run's folder, counted as often.

    python scripts/bench/bench_long.py [--steps 1000000] [--flush-every 0.1] [-o docs/measurements/bench_long_cpu.json]
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from bench_output import STARTING_LOAD, arguments, cpu_name, publish
from bench_store import resident
from torch import nn

import gradwatch
from gradwatch.storage.folder import list_parts

LOOKS = 20  # printed; each is the most of a hundred


def long_run(steps: int, flush_every: float, parent: Path) -> dict[str, Any]:
    """Take the steps; the figures of the run."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, foreach=True)
    watch = gradwatch.watch(model, optimizer, clip="ClipByGlobalNorm(1.0)", log=None, delivery="none", dir=parent,
                            flush_every=flush_every, verbose=False)  # fmt: skip
    between, memory, files = max(1, steps // (100 * LOOKS)), [], []
    started = time.perf_counter()
    for step in range(steps):
        optimizer.step()
        watch.log(loss=1.0 / (1 + step))
        if step % between == 0:
            memory.append(resident())
            files.append(sum(1 for path in watch.dir.rglob("*") if path.is_file()))
    seconds = time.perf_counter() - started
    watch.close()
    parts = list_parts(watch.dir / "steps")
    history = gradwatch.open_history(watch.dir, at_most=60_000_000)
    if history.problems or len(history) != steps:
        raise SystemExit(f"{len(history):,} of {steps:,} steps are in the files: {history.problems}")

    def most(values: list[Any]) -> list[int]:
        size = max(1, len(values) // LOOKS)
        return [round(max(values[i : i + size])) for i in range(0, size * LOOKS, size) if values[i : i + size]]

    return {
        "steps": steps, "flush_every": flush_every, "flushes": parts[-1].last + 1, "seconds": round(seconds),
        "resident_mib": most(memory), "files": most(files), "files_at_most": max(files),
        "files_at_end": sum(1 for path in watch.dir.rglob("*") if path.is_file()),
        "mib_on_disk": round(sum(p.stat().st_size for p in watch.dir.rglob("*") if p.is_file()) / 2**20, 1),
    }  # fmt: skip


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--flush-every", type=float, default=0.1)
    parser.add_argument("--dir", help="where to write; removed afterwards")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        found = long_run(args.steps, args.flush_every, Path(folder))
    report = {
        "what": "a long run: resident memory in MiB and number of files, the most in each twentieth of it",
        "machine": cpu_name(), "load": STARTING_LOAD, "gradwatch": gradwatch.__version__,
        "torch": torch.__version__, "long": found,
    }  # fmt: skip
    publish(report, args.output)


if __name__ == "__main__":
    main()

"""What storing costs: the training thread's share of it, and a very large run written at constant memory.

Two measurements, on one machine:

- `thread`: a loop over `--thread-layers` small tensors, one step every `--period` ms for `--seconds`, watched, and
  delivered to MLflow on SQLite by the courier. Counted is all that the training thread does between two steps to store
  and deliver (`Watch._between`: asking whether a block is due, copying it from the device, making a History of it,
  handing it to the writer, looking for MLflow's active run): its own CPU time, and the clock, which also counts the
  waiting for a core. Not counted: measuring, and writing a row (`bench_step.py`). Then how long `close()` takes, and
  whether everything was in MLflow by then.
- `run`: `--layers` x `--steps` random walks (gradient norms with noise, the coefficient of a global clip, weight norms,
  update ratios, the last two at every step and at every tenth) go through a real RunWriter, faster than a training
  would hand them over: the bench waits only while more than four blocks are queued. Bytes are all that `layers/` holds,
  keys and the flags `clip_rate` and `nonfinite` included, over the recorded values of the four quantities. Memory is
  what the whole process holds, the most in each quarter of the run.

Rounds are medians. Times of a shared machine are upper bounds; the CPU time and the bytes are not its noise.

    python scripts/bench/bench_store.py [--layers 1000] [--steps 100000] [--rounds 3] [--dir DIR] [-o bench_store.json]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from bench_output import STARTING_LOAD, arguments, cpu_name, publish

from gradwatch import __version__
from gradwatch.history import History, Layer, Run
from gradwatch.storage.folder import TABLES, create_folder, list_parts, now_iso
from gradwatch.storage.lazy_block import LazyBlock
from gradwatch.storage.writer import RunWriter

BLOCK = 128  # steps that a Recorder hands over at once
FOUR = ("grad_norm", "clip_coef", "weight_norm", "update_ratio")
SPIKE = 50.0  # how far above its own norm one layer is at one step, so that a report has something to lose


# ----------------------------------------------------------------------------------------------------- a very large run


def blocks(layers: int, steps: int, every: int, seed: int = 0) -> Iterator[History]:
    """Random walks as a Recorder would hand them over: log norms that drift, with noise on each step."""
    rng = np.random.default_rng(seed)
    run = Run(
        "huge", now_iso(), layers=tuple(Layer(f"blocks.{i // 4}.{i % 4}.weight", (64, 64)) for i in range(layers)),
        optimizers=({"name": "AdamW", "class": "AdamW", "settings": {"lr": 0.001}},), clip="ClipByGlobalNorm(10.0)",
        every=every, total_steps=steps, params={"seed": str(seed)},
    )  # fmt: skip
    names = tuple(layer.name for layer in run.layers)
    grad, weight = rng.normal(-2, 1, layers), rng.normal(1, 1, layers)
    for start in range(0, steps, BLOCK):
        step = np.arange(start, min(start + BLOCK, steps))
        shape = (len(step), layers)

        def walk(at: Any, drift: float, noise: float, shape: tuple[int, int] = shape) -> tuple[Any, Any]:
            path = at + np.cumsum(drift * rng.standard_normal(shape, np.float32), axis=0)
            return np.exp(path + noise * rng.standard_normal(shape, np.float32)).astype(np.float32), path[-1]

        norm, grad = walk(grad, 0.01, 0.4)
        weights, weight = walk(weight, 1e-4, 0)
        ratio = 1e-3 * norm / weights
        if start <= steps // 3 < start + len(step):
            norm[steps // 3 - start, layers // 3] *= SPIKE
        slow = step % every != 0
        weights[slow], ratio[slow] = np.nan, np.nan
        total = np.sqrt((norm.astype(np.float64) ** 2).sum(axis=1))
        coef = np.minimum(10.0 / total, 1.0)
        per_layer = {
            "grad_norm": norm, "clip_coef": np.repeat(coef[:, None], layers, axis=1).astype(np.float32),
            "clip_rate": np.repeat(coef[:, None] < 1, layers, axis=1).astype(np.float32),
            "nonfinite": np.zeros(shape, np.float32), "weight_norm": weights, "update_ratio": ratio,
        }  # fmt: skip
        per_step = {
            "time": 1.7e9 + 0.3 * step, "grad_norm": total, "clipped_norm": total * coef, "clip_coef": coef,
            "clip_rate": (coef < 1).astype(float), "skipped": np.zeros(len(step)), "nonfinite": np.zeros(len(step)),
            "lr": np.full(len(step), 0.001), "loss": 2 * np.exp(-step / 30_000) + 0.05 * rng.random(len(step)),
        }  # fmt: skip
        who = np.full(len(step), "AdamW", dtype=object)
        yield History.of(run, names, step, np.zeros(len(step), np.int64), who, per_layer, per_step)


def write_run(parent: Path, layers: int, steps: int, every: int) -> tuple[Path, dict[str, Any]]:
    """Write such a run, and what was measured of it."""
    started, writer = time.perf_counter(), None
    files, memory = 0, []
    for block in blocks(layers, steps, every):
        if writer is None:
            folder = create_folder(parent, f"huge-{every}")
            writer = RunWriter(folder, block.run)
        writer.append(LazyBlock(block.step, block.layers, block.sampled, True, lambda block=block: block))
        while writer.queue.qsize() > 4:
            time.sleep(0.002)
        files = max(files, *(sum(1 for _ in (folder / table).glob("*.parquet")) for table in TABLES))
        memory.append(resident())
    last = time.perf_counter()
    writer.close()
    closed = time.perf_counter()
    size = sum(part.path.stat().st_size for part in list_parts(folder / "layers"))
    measured = -(-steps // every)
    values = layers * (2 * steps + 2 * measured)
    quarter = max(1, len(memory) // 4)
    return folder, {
        "every": every, "values": values, "bytes": size, "bytes_per_value": round(size / values, 3),
        "files_at_most": files, "files_at_end": {t: len(list_parts(folder / t)) for t in TABLES},
        "peak_mib_in_each_quarter": [round(max(memory[i * quarter : (i + 1) * quarter])) for i in range(4)],
        "seconds": round(last - started, 1), "close_seconds": round(closed - last, 2),
    }  # fmt: skip


def resident() -> float:
    """MiB of memory that the process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


# -------------------------------------------------------------------------------------------------- the training thread


def training_thread(layers: int, seconds: float, period: float, store: str, parent: Path) -> dict[str, float]:
    """What `Watch._between` costs the thread of a loop that steps every `period` seconds, and what `close()` takes."""
    import torch

    import gradwatch
    from gradwatch.recording.watch import Watch

    spent = {"cpu": 0.0, "clock": 0.0}
    real: Callable[[Watch], None] = Watch._between

    def between(self: Watch) -> None:
        cpu, clock = time.thread_time(), time.perf_counter()
        real(self)
        spent["cpu"] += time.thread_time() - cpu
        spent["clock"] += time.perf_counter() - clock

    model = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(16)) for _ in range(layers))
    for p in model:
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, foreach=True)
    Watch._between = between  # type: ignore[method-assign]
    try:
        os.environ["MLFLOW_TRACKING_URI"] = store
        watch = gradwatch.watch(model, optimizer, clip="ClipByGlobalNorm(1.0)", dir=parent, verbose=False)
        steps, due = 0, time.perf_counter()
        end = due + seconds
        while due < end:
            optimizer.step()
            watch.log(loss=1.0)
            steps += 1
            if steps == 1:
                spent.update(cpu=0.0, clock=0.0)  # the first step starts the courier
            due = max(due + period, time.perf_counter())
            time.sleep(max(0.0, due - time.perf_counter()))
        started = time.perf_counter()
        watch.close()
        closed = time.perf_counter() - started
    finally:
        Watch._between = real  # type: ignore[method-assign]
    cursor = gradwatch.storage.delivery_cursor.read_cursor(watch.dir)
    return {
        "steps": steps, "cpu_ms_a_step": 1000 * spent["cpu"] / steps, "clock_ms_a_step": 1000 * spent["clock"] / steps,
        "close_seconds": closed, "delivered_at_close": float(bool(cursor.get("done"))),
    }  # fmt: skip


def median_thread(args: argparse.Namespace, parent: Path) -> dict[str, float]:
    from gradwatch.tracking.client import connect

    store = f"sqlite:///{parent / 'mlflow.db'}"
    connect(store)  # a healthy store has its tables
    found = [
        training_thread(args.thread_layers, args.seconds, args.period / 1000, store, parent) for _ in range(args.rounds)
    ]
    return {key: round(statistics.median(one[key] for one in found), 4) for key in found[0]}


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--layers", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--thread-layers", type=int, default=300)
    parser.add_argument("--period", type=float, default=5.0, help="ms between two steps")
    parser.add_argument("--seconds", type=float, default=70.0, help="of training; 0 leaves this out")
    parser.add_argument("--dir", help="where to write; removed afterwards")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir, ignore_cleanup_errors=True) as folder:
        runs = []
        for every in (1, 10):
            written, facts = write_run(Path(folder), args.layers, args.steps, every)
            shutil.rmtree(written)
            runs.append(facts)
        thread = median_thread(args, Path(folder)) if args.seconds else None  # last: torch takes memory
    report = {
        "what": "storing: cost on the training thread (ms a step) and of close(); bytes, files and memory of a large "
        "run; see the script for what is counted",
        "machine": cpu_name(), "load": STARTING_LOAD, "gradwatch": __version__,
        "thread": thread and {"layers": args.thread_layers, "period_ms": args.period, "rounds": args.rounds, **thread},
        "run": {"layers": args.layers, "steps": args.steps, "quantities": FOUR, "runs": runs},
    }  # fmt: skip
    publish(report, args.output)


if __name__ == "__main__":
    main()

"""What a comparison of very many runs costs: processor time and peak memory, of `compare` and of `report`.

Writes one run of `--layers` x `--steps` (as `bench_store.py` does), then `--runs` folders that are that run with
another seed, policy, loss, norm and time in each step: its layers' Parquet is linked and not copied, so that a
thousand runs take the disk of one. `gradwatch compare` and `gradwatch report` read all of them, each in a process of
its own. Counted are the seconds of processor time of the command with the processes it starts, and the peak of the
memory that they hold together: the sum of what belongs to each alone and its share of what they share (PSS), looked at
20 times a second. With `--fewer`, the same over the first so many of the runs: what a run more adds.

Not in it: reading from a cold disk (the pages are in the cache; as the runs share their layers, those of one run).

    python scripts/bench/bench_many.py [--runs 1000] [--fewer 100] [--layers 100] [--steps 10000] [--seeds 10] [-o FILE]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from bench_output import STARTING_LOAD, arguments, cpu_name, publish
from bench_store import write_run

from gradwatch import __version__
from gradwatch.storage.encoding import write_part
from gradwatch.storage.folder import MANIFEST, list_parts, write_json
from gradwatch.storage.run_reader import read_run

LOOK_SECONDS = 0.05  # between two looks at the memory


def copies(first: Path, parent: Path, runs: int, seeds: int) -> None:
    """`runs` folders of what the first holds, `seeds` of each policy, each with a loss of its own."""
    history, rng = read_run(first), np.random.default_rng(0)
    count, last = len(history), list_parts(first / "layers")[-1].last
    for i in range(runs):
        policy, seed = divmod(i, seeds)
        clip = f"ClipByGlobalNorm({1 + policy / 10:g})" if policy else None
        run = replace(history.run, name=f"run-{i}", clip=clip, params={"seed": str(seed)})
        end = 0.5 - 0.0002 * policy + 0.02 * rng.normal()
        loss = end + 1.8 * np.exp(-np.arange(count) / (0.1 * count)) + 0.05 * rng.random(count)
        # of runs that are trained no two have these in common
        norm = history.total("grad_norm") * rng.lognormal(0, 0.01, count)
        time = history.total("time") + np.cumsum(0.01 * rng.random(count))
        own = {"loss": loss, "grad_norm": norm, "time": time}
        own |= {"clip_rate": (norm > 1 + policy / 10).astype(float)} if policy else {}
        steps = replace(history.by_step, values={**history.by_step.values, **own})
        folder = parent / f"run-{i:05d}"
        for table in ("layers", "steps"):
            (folder / table).mkdir(parents=True)
        for path in (first / "layers").iterdir():
            os.link(path, folder / "layers" / path.name)
        write_part(folder / "steps" / f"part-000000-{last:06d}.parquet", "steps", replace(history, by_step=steps))
        write_json(folder / MANIFEST, run.to_json())


def measured(*command: str) -> dict[str, float]:
    """One `gradwatch` command: seconds of processor time, and MiB at the peak, its own processes with it."""
    started, peak, most = time.perf_counter(), 0.0, 0
    process = subprocess.Popen([sys.executable, "-m", "gradwatch", *command], stdout=subprocess.DEVNULL)
    root = psutil.Process(process.pid)
    usage = None
    while usage is None:
        time.sleep(LOOK_SECONDS)
        family = [root, *_below(root)]
        peak, most = max(peak, sum(map(_held, family))), max(most, len(family))
        pid, status, found = os.wait4(process.pid, os.WNOHANG)
        usage = found if pid else None
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"gradwatch {' '.join(command)} ended with {process.returncode}")
    seconds = time.perf_counter() - started
    return {"cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1), "peak_mib": round(peak / 2**20),
            "processes": most, "seconds": round(seconds, 1)}  # fmt: skip


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _held(process: psutil.Process) -> float:
    try:
        return float(process.memory_full_info().pss)
    except psutil.Error:  # it ended meanwhile
        return 0.0


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--fewer", type=int, default=100)
    parser.add_argument("--layers", type=int, default=100)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--dir", help="where to write; removed afterwards")
    args = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(dir=args.dir) as temporary:
        first, _ = write_run(Path(temporary), args.layers, args.steps, every=10)
        page = Path(temporary) / "report.html"
        for count in (args.fewer, args.runs):
            folder = Path(temporary) / f"runs-{count}"
            copies(first, folder, count, args.seeds)
            found[str(count)] = {
                "compare": measured("compare", str(folder)),
                "report": measured("report", str(folder), "-o", str(page)),
                "page_mb": round(page.stat().st_size / 1e6, 1),
            }
    report = {
        "what": "gradwatch over many runs: processor time and peak memory (PSS) of a command with its processes",
        "machine": cpu_name(), "load": STARTING_LOAD, "gradwatch": __version__, "layers": args.layers,
        "steps": args.steps, "seeds": args.seeds, "runs": found,
    }  # fmt: skip
    publish(report, args.output)


if __name__ == "__main__":
    main()

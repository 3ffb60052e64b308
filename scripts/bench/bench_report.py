"""What a report of a very large run costs: time, memory, and the size of the page.

Writes a run of `--layers` x `--steps` (as `bench_store.py` does, one layer's norm 50 times higher at one step), then
runs `gradwatch report`, `show` and `report --format json` on it, each in a process of its own, in turn, `--rounds`
times. Counted is the whole process from its start: seconds on the clock, seconds of CPU, peak resident memory; medians.
Then: whether the spike is in the page's heatmap, and whether the page says that it shows fewer values than there are.

Not in it: writing the run, and reading it from a cold disk (the pages are in the cache).

    python scripts/bench/bench_report.py [--layers 1000] [--steps 100000] [--every 1] [--rounds 3] [-o FILE]
"""

from __future__ import annotations

import base64
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from bench_output import STARTING_LOAD, arguments, cpu_name, publish
from bench_store import write_run

from gradwatch import __version__


def timed(*command: str) -> dict[str, float]:
    """One `gradwatch` command as a process: seconds, CPU seconds, and its peak memory in MiB."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "gradwatch", *command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"gradwatch {' '.join(command)} ended with {process.returncode}")
    peak = usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    return {"seconds": seconds, "cpu_seconds": usage.ru_utime + usage.ru_stime, "peak_mib": peak}


def page_facts(page: str) -> dict[str, Any]:
    """What the page shows of the spike: the highest cell of its first heatmap, over that row's median, as a factor."""
    figures = json.loads(re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.S)[1])
    z = next(trace["z"] for figure in figures for trace in figure["data"] if trace["type"] == "heatmap")
    shape = [int(n) for n in z["shape"].split(",")]
    logs = np.frombuffer(base64.b64decode(z["bdata"]), f"<{z['dtype']}").reshape(shape)
    row = np.unravel_index(np.nanargmax(logs - np.nanmedian(logs, axis=1, keepdims=True)), logs.shape)[0]
    return {
        "cells": list(logs.shape),
        "highest_cell_over_its_row": round(float(10 ** (np.nanmax(logs[row]) - np.nanmedian(logs[row]))), 1),
        "says_so": "reduced to three values" in page,
    }


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--layers", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--dir", help="where to write; removed afterwards")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as temporary:
        folder, facts = write_run(Path(temporary), args.layers, args.steps, args.every)
        page = Path(temporary) / "report.html"
        commands = {
            "report": ("report", str(folder), "-o", str(page)),
            "show": ("show", str(folder)),
            "report --format json": ("report", str(folder), "--format", "json", "-o", f"{temporary}/report.json"),
        }
        found: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
        for _ in range(args.rounds):
            for name, command in commands.items():
                found[name].append(timed(*command))
        shown = {"mb": round(page.stat().st_size / 1e6, 2), **page_facts(page.read_text(encoding="utf-8"))}
    medians = {
        name: {key: round(statistics.median(one[key] for one in runs), 1) for key in runs[0]}
        for name, runs in found.items()
    }
    report = {
        "what": "gradwatch on one very large run: a process from start to end (medians), and the page it makes",
        "machine": cpu_name(), "load": STARTING_LOAD, "gradwatch": __version__, "rounds": args.rounds,
        "layers": args.layers, "steps": args.steps, "every": args.every, "values": facts["values"],
        "mb_on_disk": round(facts["bytes"] / 1e6), "commands": medians, "page": shown,
    }  # fmt: skip
    publish(report, args.output)


if __name__ == "__main__":
    main()

"""Counts the instructions of an optimizer phase under valgrind, for `bench_step.py --instructions`.

The script starts itself again under valgrind, which loads torch once. There each variant is run in a forked child, once
for few steps and once for more; what the second child took beyond the first is that of the steps between.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gradwatch.recording.recorder import Recorder

FEW, MORE = 3, 8  # steps; the first ones also make the optimizer's state
SETTINGS = {
    "ATEN_CPU_CAPABILITY": "avx2",  # valgrind knows no AVX-512
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",  # the same dict layouts every time
}
COUNT = re.compile(r"Collected : (\d+)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)


def inside(args: argparse.Namespace) -> bool:
    """Whether this process is the one under valgrind."""
    return args.inside is not None


def count(cases: Iterable[str], variants: Iterable[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Instructions of a step, and their ratio to the first variant's: {case: {variant: {...}}}."""
    if shutil.which("valgrind") is None:
        raise SystemExit("--instructions needs valgrind: apt-get install valgrind")
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", f"--log-file={folder}/%p.log"]
        command += [sys.executable, *sys.argv, "--inside", folder]
        subprocess.run(command, check=True, env={**os.environ, **SETTINGS}, stdout=sys.stderr)
        children = json.loads(Path(folder, "children.json").read_text())
        taken = {name: [_collected(Path(folder, f"{pid}.log")) for pid in pids] for name, pids in children.items()}
    steps = {name: (more - few) / (MORE - FEW) for name, (few, more) in taken.items()}
    names = list(variants)
    return {
        case: {
            v: {
                "instructions": round(steps[f"{case}: {v}"]),
                "ratio": steps[f"{case}: {v}"] / steps[f"{case}: {names[0]}"],
            }
            for v in names
        }
        for case in cases
    }


def run(args: argparse.Namespace, tasks: Mapping[tuple[str, str], tuple[Any, ...]]) -> None:
    """Under valgrind: a child for each task and number of steps; notes their process ids."""
    import torch._dynamo  # the first optimizer imports it: once here, not in every child

    torch.set_num_threads(1)
    Recorder.due = property(lambda self: self.full)  # type: ignore[assignment]  # valgrind is slow: drains would come every few steps
    children = {f"{case}: {v}": [_child(*task, steps=n) for n in (FEW, MORE)] for (case, v), task in tasks.items()}
    (args.inside / "children.json").write_text(json.dumps(children))


def _child(opened: Any, *case: Any, steps: int) -> int:
    pid = os.fork()
    if pid:
        if os.waitpid(pid, 0)[1]:
            raise SystemExit(f"{case}: the child that took {steps} steps failed")
        return pid
    try:
        with opened(*case) as step:
            for _ in range(steps):
                step()
            os._exit(0)  # without closing: the steps alone are counted
    finally:
        os._exit(1)


def _collected(log: Path) -> int:
    found = COUNT.search(log.read_text())
    if found is None:
        raise SystemExit(f"valgrind counted nothing: {log.read_text()[-500:]}")
    return int(found[1])

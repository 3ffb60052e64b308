"""How long it takes to start: what importing gradwatch adds to torch, and how soon the command line answers.

Each command is a fresh interpreter; the rounds go over the commands in a new order, and the figures are medians. Of a
training, `first step` is the time until its first step is taken, and the rest what its end takes, delivery included.

    python scripts/bench/bench_startup.py [--rounds 15] [-o bench_startup.json]
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_common import machine
from bench_output import arguments, publish

LOOP = "import torch; torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)"
TRAINING = """
import time
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    if step == 0:
        print(time.time())
"""
COMMANDS = {
    "python": ["-c", ""],
    "import torch": ["-c", "import torch"],
    "import torch, gradwatch": ["-c", "import torch, gradwatch"],
    "torch with an optimizer": ["-c", LOOP],
    "torch with an optimizer, gradwatch.watch": ["-c", f"{LOOP}; import gradwatch; gradwatch.watch"],
    "gradwatch --help": ["-m", "gradwatch", "--help"],
    "gradwatch report --help": ["-m", "gradwatch", "report", "--help"],
    "gradwatch sync --help": ["-m", "gradwatch", "sync", "--help"],
    "train.py": ["train.py"],
    "gradwatch run --log none train.py": ["-m", "gradwatch", "run", "--log", "none", "train.py"],
    "gradwatch run train.py": ["-m", "gradwatch", "run", "train.py"],
}
FIRST = ", first step"
ADDED = {
    "import gradwatch, beyond torch": ("import torch, gradwatch", "import torch"),
    "gradwatch.watch, beyond torch with an optimizer": (
        "torch with an optimizer, gradwatch.watch",
        "torch with an optimizer",
    ),
    **{
        f"{name}{part}, beyond python": (f"{name}{part}", f"train.py{part}")
        for name in ("gradwatch run --log none train.py", "gradwatch run train.py")
        for part in (FIRST, "")
    },
}


def timed(words: list[str], folder: str) -> dict[str, float]:
    """Seconds that the command took in all (""), and until its training took its first step, if it is one."""
    env = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # or each start compiles gradwatch anew, as no installed one does
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), env.get("PYTHONPATH")]))
    began, clock = time.perf_counter(), time.time()
    done = subprocess.run([sys.executable, *words], check=True, cwd=folder, env=env, text=True, capture_output=True)
    out = {"": time.perf_counter() - began}
    if words[-1] == "train.py":
        out[FIRST] = float(done.stdout) - clock
    return out


def _place(name: str) -> tuple[int, str]:
    """Where a figure stands among the commands; its first step stands behind it."""
    return list(COMMANDS).index(name.removesuffix(FIRST)), name


def main() -> None:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--only", default="", help="commands that hold this text, such as 'help'")
    args = parser.parse_args()
    about = machine()
    chosen = [name for name in COMMANDS if args.only in name]
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        (Path(folder) / "train.py").write_text(TRAINING)
        for r in range(args.rounds + 1):  # one to warm up, which also makes the MLflow store
            for name in random.Random(r).sample(chosen, len(chosen)):
                for part, value in timed(COMMANDS[name], folder).items():
                    if r:
                        seconds.setdefault(name + part, []).append(value)
    report = {
        "what": "seconds from the start of an interpreter to its end; medians over interleaved rounds, and over the "
        "differences within a round",
        **about,
        "rounds": args.rounds,
        "seconds": {name: round(statistics.median(seconds[name]), 3) for name in sorted(seconds, key=_place)},
        "added": {
            name: round(statistics.median(a - b for a, b in zip(seconds[more], seconds[less], strict=True)), 3)
            for name, (more, less) in ADDED.items()
            if {more, less} <= seconds.keys()
        },
    }
    publish(report, args.output)


if __name__ == "__main__":
    main()

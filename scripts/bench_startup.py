"""How long it takes to start: what importing gradwatch adds to torch, and how soon the command line answers.

Each command is a fresh interpreter; the rounds go over the commands in a new order, and the figures are medians.

    python scripts/bench_startup.py [--rounds 15] [-o bench_startup.json]
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time

from bench_common import machine
from bench_output import arguments, publish

LOOP = "import torch; torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)"
COMMANDS = {
    "python": ["-c", ""],
    "import torch": ["-c", "import torch"],
    "import torch, gradwatch": ["-c", "import torch, gradwatch"],
    "torch with an optimizer": ["-c", LOOP],
    "torch with an optimizer, gradwatch.watch": ["-c", f"{LOOP}; import gradwatch; gradwatch.watch"],
    "gradwatch --help": ["-m", "gradwatch", "--help"],
    "gradwatch report --help": ["-m", "gradwatch", "report", "--help"],
    "gradwatch sync --help": ["-m", "gradwatch", "sync", "--help"],
}
ADDED = {
    "import gradwatch, beyond torch": ("import torch, gradwatch", "import torch"),
    "gradwatch.watch, beyond torch with an optimizer": (
        "torch with an optimizer, gradwatch.watch",
        "torch with an optimizer",
    ),
}


def main() -> None:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--only", default="", help="commands that hold this text, such as 'help'")
    args = parser.parse_args()
    about = machine()
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS if args.only in name}
    for r in range(args.rounds + 1):  # one to warm up
        for name in random.Random(r).sample(list(seconds), len(seconds)):
            began = time.perf_counter()
            subprocess.run([sys.executable, *COMMANDS[name]], check=True, stdout=subprocess.DEVNULL)
            if r:
                seconds[name].append(time.perf_counter() - began)
    report = {
        "what": "seconds from the start of an interpreter to its end; medians over interleaved rounds, and over the "
        "differences within a round",
        **about,
        "rounds": args.rounds,
        "seconds": {name: round(statistics.median(times), 3) for name, times in seconds.items()},
        "added": {
            name: round(statistics.median(a - b for a, b in zip(seconds[more], seconds[less], strict=True)), 3)
            for name, (more, less) in ADDED.items()
            if {more, less} <= seconds.keys()
        },
    }
    publish(report, args.output)


if __name__ == "__main__":
    main()

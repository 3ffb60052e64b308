"""What a snapshot of `gradwatch.Rewind` costs: bytes on the host, bytes on disk, and its share of a step.

A small transformer (`bench_common.transformer`, 74 tensors) with AdamW in float32 takes steps on the CPU. Bytes are
those of the tensors of one snapshot, beside those of the weights; on disk those of its file. A snapshot is timed beside
the step of the training right before it (processor time of the thread, with one thread), and the share is the median of
these ratios over `--rounds`; with `every=200` a step pays one two-hundredth of it. Not in it: writing to disk, which a
thread of its own does. On a CPU a snapshot copies from host memory to host memory.

    python scripts/bench/bench_snapshot.py [--rounds 15] [-o FILE]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import torch
from bench_common import transformer
from bench_output import STARTING_LOAD, arguments, cpu_name, publish

import gradwatch
from gradwatch.recording.snapshot import Training

EVERY = 200  # as by default


def main() -> None:
    args = arguments(__doc__, rounds=15).parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    training = Training(model, [optimizer], [], None, "cpu")
    tokens, targets = model.batch(4, 64)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()

    shares = []
    for _ in range(args.rounds + 1):
        began = time.thread_time()
        step()
        between = time.thread_time()
        snapshot = training.take(1, 0, {})
        shares.append((time.thread_time() - between) / (between - began))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pt"
        snapshot.save(path, {})
        on_disk = path.stat().st_size
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    share = statistics.median(shares[1:])  # the first step makes the optimizer's state
    report = {
        "what": "a snapshot of Rewind: bytes, and its processor time over that of a step",
        "machine": cpu_name(), "load": STARTING_LOAD, "gradwatch": gradwatch.__version__,
        "torch": torch.__version__, "bytes": {"weights": weights, "snapshot": snapshot.size, "on_disk": on_disk},
        "bytes_per_parameter": round(snapshot.size / (weights / 4), 2), "share_of_a_step": round(share, 3),
        "share_of_each_step": round(share / EVERY, 6), "every": EVERY, "rounds": args.rounds,
    }  # fmt: skip
    publish(report, args.output)


if __name__ == "__main__":
    main()

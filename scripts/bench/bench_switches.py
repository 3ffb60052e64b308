"""What each switch that looks inside costs, as a share of a training step: in a sampled step, and in the others.

A transformer like GPT-2 small, cut to what a CPU trains, with fused AdamW and two micro-batches a step. Every switch is
watched in a training of its own; in each round every training takes four steps in a new order, of which the third is
sampled. What is reported is the median over rounds of what a switch adds, divided by the step of the same round that
is watched without one: in the sampled step of the whole step, in the others of the optimizer phase, as nothing of
theirs is outside of it. Memory is counted in steps of their own, where no clock runs.

    python scripts/bench/bench_switches.py [--rounds 25] [-o docs/measurements/bench_switches_cpu.json]
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from bench_common import OPTIMIZERS, Transformer, machine
from bench_output import arguments, publish
from gpt_steps import synchronize, without_looks
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gradwatch

EVERY = 4  # steps, of which one is sampled
PARTS = 2  # micro-batches of a step: the noise scale compares the first with all
WARM_UP = 2 * EVERY - 2  # so that a round's third step is the sampled one, and no hook waits for it between rounds
SAMPLED = 2
SIZES = {  # vocabulary, width, depth, heads, tokens, sequences of a micro-batch
    "tiny": (64, 32, 2, 2, 8, 2),
    "small": (4096, 256, 4, 8, 128, 2),
    "gpt2": (50257, 768, 12, 12, 1024, 4),  # for a GPU
}


class Switch(NamedTuple):
    """What is asked of a Watch, and how many steps there are to one that is sampled, as it is set by default."""

    asked: dict[str, Any]
    pace: int


SWITCHES = {
    "none": Switch({}, 10),
    "activations=True": Switch({"activations": True, "activations_every": EVERY}, 50),
    "slots=True": Switch({"slots": True}, 10),
    "noise_scale=True": Switch({"noise_scale": True}, 10),
    "histogram_every=100": Switch({"histogram_every": EVERY}, 100),
    "singular_values=True": Switch({"singular_values": True}, 10),
    'split={"*.qkv.weight": (0, 24)}': Switch({"split": {"*.qkv.weight": (0, 24)}}, 10),
    'rows=("embed*",)': Switch({"rows": ("embed*",)}, 10),
}
WHAT = (
    "what a switch adds to a training step that is watched without it, as a share of that step, median over rounds: "
    "sampled, the step that it samples; others, any other step; on average, at the pace that is its default"
)


class Step(NamedTuple):
    """Seconds: of a whole training step, and of its optimizer phase."""

    whole: float
    phase: float


class Training:
    """A model of its own, watched with a switch; in bf16 autocast on a GPU."""

    def __init__(self, size: str, asked: dict[str, Any], stack: ExitStack, device: str) -> None:
        torch.manual_seed(0)
        *shape, length, sequences = SIZES[size]
        self.device = device
        with torch.device(device):
            self.model = Transformer(*shape, context=length)
            self.batches = [self.model.batch(sequences, length) for _ in range(PARTS)]
        self.optimizer = OPTIMIZERS["fused AdamW"](self.model.parameters())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        watch = gradwatch.watch(self.model, self.optimizer, clip="ClipByGlobalNorm(1.0)", log=None, delivery="none",
                                dir=folder, every=EVERY, verbose=False, flush_every=3600.0, **asked)  # fmt: skip
        stack.enter_context(watch)

    def step(self) -> Step:
        """Take one step."""
        began = self._now()
        self.optimizer.zero_grad()
        for tokens, targets in self.batches:
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device != "cpu"):
                loss = F.cross_entropy(self.model(tokens).flatten(0, 1), targets.flatten())
            (loss / PARTS).backward()
        stepped = self._now()
        self.optimizer.step()
        ended = self._now()
        return Step(ended - began, ended - stepped)

    def _now(self) -> float:
        """Seconds, when the device has done all that it was asked."""
        synchronize(self.device)
        return time.perf_counter()

    def peak(self) -> list[int]:
        """Of the steps of a round, the most bytes that were held at once of what the step itself made."""
        found = []
        for _ in range(EVERY):
            with Held() as held:
                self.step()
            found.append(held.most)
        return found


class Held(TorchDispatchMode):
    """How many bytes of tensors are alive of those that were made while it is on, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and id(tensor.untyped_storage()) not in given:
                self._hold(tensor.untyped_storage())
        return out

    def _hold(self, storage: Any) -> None:
        size = storage.nbytes()
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.now -= size


def measure(size: str, rounds: int, device: str = "cpu") -> dict[str, Any]:
    """The shares of a step and the bytes of each switch."""
    steps: dict[str, list[list[Step]]] = {name: [] for name in SWITCHES}
    with ExitStack() as stack:
        stack.enter_context(without_looks())  # a look at a loss comes in ever fewer steps, of each training in others
        trainings = {name: Training(size, switch.asked, stack, device) for name, switch in SWITCHES.items()}
        for training in trainings.values():
            for _ in range(WARM_UP):
                training.step()
        for r in range(rounds):
            for name in random.Random(r).sample([*SWITCHES], len(SWITCHES)):
                steps[name].append([trainings[name].step() for _ in range(EVERY)])
        peaks = {name: training.peak() for name, training in trainings.items()}
    plain = peaks.pop("none")
    more = {name: [own - bare for own, bare in zip(peak, plain, strict=True)] for name, peak in peaks.items()}
    return {
        "clock_shares": shares(steps),
        "bytes": {n: {"sampled": m.pop(SAMPLED), "others": statistics.median(m)} for n, m in more.items()},
        "bytes_plain": plain[SAMPLED],
    }


def shares(steps: dict[str, list[list[Step]]]) -> dict[str, dict[str, float]]:
    """Of each switch what it adds to the steps of its rounds, as shares of those of the same round without any."""
    found = {}
    for name, own in steps.items():
        if name == "none":
            continue
        sampled, others = [], []
        for with_it, without in zip(own, steps["none"], strict=True):
            for place, (a, b) in enumerate(zip(with_it, without, strict=True)):
                if place == SAMPLED:
                    sampled.append((a.whole - b.whole) / b.whole)
                else:
                    others.append((a.phase - b.phase) / b.whole)
        middle, rest = statistics.median(sampled), statistics.median(others)
        pace = SWITCHES[name].pace
        found[name] = {"sampled": middle, "others": rest, "on average": (middle + (pace - 1) * rest) / pace}
    return found


def main() -> None:
    parser = arguments(__doc__, rounds=25)
    parser.add_argument("--size", choices=[*SIZES], default="small")
    args = parser.parse_args()
    report = {"what": WHAT, **machine(), "rounds": args.rounds, "model": f"{args.size}: {SIZES[args.size]}"}
    publish({**report, **measure(args.size, args.rounds)}, args.output)


if __name__ == "__main__":
    main()

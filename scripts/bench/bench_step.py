"""What watching costs: the optimizer phase, torch's clip and step against gradwatch's, interleaved; and whole steps.

Each round times the same number of steps of every variant, in a new order; the figures are medians of the per-round
ratios to torch's `clip_grad_norm_` + `step`. Absolute times of a shared machine mean nothing, so none are the result.
A variant is watched only while it is timed: a Watch listens to every call of `clip_grad_norm_`, and would slow torch's.

Rounds are short and many, because a shared machine changes its pace within seconds; so few have a drain in them. What a
drain costs is measured by `bench_store.py`.

    python scripts/bench/bench_step.py [--rounds 15] [--steps 40] [-o bench_step.json]
    python scripts/bench/bench_step.py --instructions --models mlp-6 --only fused     # counts instead of times
    python scripts/bench/bench_step.py --device cuda --models gpt2-124m,gpt-1b        # whole training steps of GPTs

`--instructions` counts the instructions of a step under valgrind, on one thread: exact where time is too noisy. A GPT
trains in bf16 autocast with fused AdamW; `gpt_steps.py` says what is measured of it.
"""

from __future__ import annotations

import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import NamedTuple

import gpt_steps
import instructions
import numpy as np
import torch
from bench_common import GPTS, MAX_NORM, MODELS, OPTIMIZERS, machine, named, small_batch
from bench_output import arguments, publish
from torch import nn

import gradwatch

WHAT = {
    "times": "median ratio to torch clip_grad_norm_ + optimizer.step; 1.00 is torch's own time",
    "whole steps": "1 + what watching without a policy adds to the optimizer phase (fused AdamW), divided by the time "
    "of forward, backward and step without gradwatch, median over rounds; a batch of N is N vectors or images, or N / "
    "16 sequences of 32 tokens",
    "instructions": "instructions of one step (valgrind, one thread, no drain), and their ratio to torch "
    "clip_grad_norm_ + optimizer.step",
}


class Batches(NamedTuple):
    """Of whole training steps: how many times a small batch, and how many steps a round has."""

    times: int
    steps: int


WHOLE = {"transformer-74": Batches(32, 3), "linear-1000": Batches(32, 6), "mlp-6": Batches(8, 200)}
SELDOM = ("torch, 1 in 10 clipped", "gradwatch, 1 in 10 clipped")


@contextmanager
def variant(name: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Callable[[], None]]:
    """One step's optimizer phase: gradients are in place, weights move."""
    params = list(model.parameters())
    if name in SELDOM:
        with variant("torch clip + step" if name == SELDOM[0] else "gradwatch clip + step", model, optimizer) as step:
            yield seldom_clipped(params, step)
    elif name == "step alone":
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


def seldom_clipped(params: list[nn.Parameter], step: Callable[[], None]) -> Callable[[], None]:
    """The step, on gradients of a norm of `MAX_NORM` and so clipped in one step in ten, else of nine tenths of it."""
    loud = [p.grad for p in params if p.grad is not None]
    torch._foreach_mul_(loud, 1.01 * MAX_NORM / torch.stack(torch._foreach_norm(loud)).norm())
    quiet, steps = torch._foreach_mul(loud, 0.9), itertools.count()

    def seldom() -> None:
        n = next(steps) % 10
        if n < 2:
            for p, gradient in zip(params, quiet if n else loud, strict=True):
                p.grad = gradient
        step()

    return seldom


def built(model: str, optimizer: str, device: str = "cpu") -> tuple[nn.Module, torch.optim.Optimizer]:
    """A new model with gradients, and its optimizer."""
    torch.manual_seed(0)
    net = MODELS[model]().to(device)
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    return net, OPTIMIZERS[optimizer](net.parameters())


def ready(name: str, model: str, optimizer: str) -> AbstractContextManager[Callable[[], None]]:
    """One step of the variant, on a new model."""
    return variant(name, *built(model, optimizer))


def measure(model: str, optimizer: str, rounds: int, steps: int, device: str) -> dict[str, float]:
    """Median over rounds of each variant's time divided by torch's clip and step of the same round; and of
    gradwatch's by torch's, where one step in ten is clipped.
    """
    variants = (*gpt_steps.VARIANTS, *SELDOM)
    pairs = {name: built(model, optimizer, device) for name in variants}
    times: dict[str, list[float]] = {name: [] for name in variants}
    for r in range(rounds + 1):  # one round to warm up
        for name in random.Random(r).sample(variants, len(variants)):
            with variant(name, *pairs[name]) as step:
                taken = gpt_steps.timed(gpt_steps.WARM, steps, device, step)
            if r:
                times[name].append(taken)
    ratios = {name: (times[name], times["torch clip + step"]) for name in gpt_steps.VARIANTS}
    ratios["1 in 10 clipped, gradwatch / torch"] = times[SELDOM[1]], times[SELDOM[0]]
    return {name: statistics.median(t / b for t, b in zip(*both, strict=True)) for name, both in ratios.items()}


def whole_steps(model: str, rounds: int) -> float:
    """What a training step takes when it is watched without a policy, as a multiple of a bare one: median over rounds.

    Forward and backward vary by more than gradwatch adds, so the difference is that of the optimizer phases alone.
    """
    names = ("step alone", "gradwatch no clip + step")
    shares = []
    with ExitStack() as stack:  # watched throughout: nothing here calls a clip that a Watch would slow
        trains = {name: stack.enter_context(_training(name, model)) for name in names}
        for r in range(rounds + 1):
            whole, phase = {}, {}
            for name in random.Random(r).sample(names, 2):
                whole[name], phase[name] = np.sum([trains[name]() for _ in range(WHOLE[model].steps)], axis=0)
            shares.append((phase[names[1]] - phase[names[0]]) / whole[names[0]])
    return float(1 + statistics.median(shares[1:]))


@contextmanager
def _training(name: str, model: str) -> Iterator[Callable[[], tuple[float, float]]]:
    """A training step, which returns how long all of it took and how long the optimizer phase, in seconds."""
    net, optimizer = built(model, "fused AdamW")
    loss = small_batch(net, WHOLE[model].times)
    with variant(name, net, optimizer) as step:

        def train() -> tuple[float, float]:
            began = time.perf_counter()
            optimizer.zero_grad()
            loss().backward()
            stepped = time.perf_counter()
            step()
            ended = time.perf_counter()
            return ended - began, ended - stepped

        yield train


def main() -> None:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--steps", type=int, default=40, help="of a round; ten times as many of the small MLP")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", default="", help=f"of {', '.join(MODELS)}, by default all; or {', '.join(GPTS)}")
    parser.add_argument("--only", default="", help="cases whose name holds this text, such as 'fused'")
    parser.add_argument("--instructions", action="store_true", help="count instructions instead of time (CPU)")
    instructions.add_arguments(parser)
    args = parser.parse_args()
    models = named("--models", args.models, MODELS | GPTS) if args.models else list(MODELS)
    cases = {f"{m}, {o}": (m, o) for m in models if m in MODELS for o in OPTIMIZERS if args.only in f"{m}, {o}"}
    if instructions.inside(args):
        instructions.run(args, {(case, v): (ready, v, *cases[case]) for case in cases for v in gpt_steps.VARIANTS})
        return
    report = {"what": WHAT["instructions" if args.instructions else "times"], **machine(args.device)}
    if args.instructions:
        report["instructions"] = instructions.count(cases, gpt_steps.VARIANTS)
    else:
        report |= {"rounds": args.rounds, "steps": args.steps}
        report["ratios"] = {
            name: measure(*case, args.rounds, args.steps * (10 if case[0] == "mlp-6" else 1), args.device)
            for name, case in cases.items()
        }
        if args.device == "cpu" and not args.only:
            report["whole steps"] = WHAT["whole steps"]
            report["whole step ratios"] = {
                f"{m}, batch of {32 * WHOLE[m].times}": whole_steps(m, args.rounds) for m in models if m in WHOLE
            }
        gpts = [m for m in models if m in GPTS]
        if gpts:
            report["gpt figures"] = gpt_steps.WHAT
            report["gpts"] = {m: gpt_steps.measure(m, variant, args.rounds, args.steps, args.device) for m in gpts}
    publish(report, args.output)


if __name__ == "__main__":
    main()

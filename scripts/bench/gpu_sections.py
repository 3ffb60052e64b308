"""What `scripts/bench/gpu` asks of a device, a section at a time: each part is tried, and a line of JSON comes of it.

    python scripts/bench/gpu_sections.py probes [--tiny] -o parts.jsonl

A part that can be right or wrong says whether it `held`. Without a CUDA device the same is asked of the CPU, where
nothing waits and nothing is launched; what only a device can show is left out there.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import operator
import platform
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import bench_switches
import gpt_steps
import gpu_probes
import torch
from bench_common import GPTS, MODELS, machine
from bench_step import measure, variant
from gpu_probes import DEVICE, synchronize, watch
from torch import nn

from gradwatch.measure.multi_tensor import multi_tensor

Part = Callable[[], dict[str, Any]]
SMALL = {"transformer-74": 300, "linear-1000": 40, "mlp-6": 600}  # steps of a round, some tenths of a second
TENSORS = (6, 74, 147, 1000)
HOST_STEPS = 20  # of a window: the device's queue holds what they launch
HOST_WAYS: dict[str, tuple[str | None, dict[str, Any] | None]] = {  # the policy, and what is asked of a Watch
    "alone": (None, None),
    "torch clip": (None, None),
    "none": (None, {"every": 1_000_000}),
    "none, every=10": (None, {"every": 10}),
    "ClipByGlobalNorm(1.0)": ("ClipByGlobalNorm(1.0)", {"every": 1_000_000}),
    "ClipByGlobalNorm(1.0), every=10": ("ClipByGlobalNorm(1.0)", {"every": 10}),
    "ClipByNorm(1.0)": ("ClipByNorm(1.0)", {"every": 1_000_000}),
}
OPTIONAL = ("mlflow", "plotly", "matplotlib", "triton", "pytest", "pytest-timeout", "pytest-xdist")


class Size(NamedTuple):
    """How much is asked: of a GPU, or to see that the script runs."""

    rounds: int
    steps: int


def sections(tiny: bool) -> dict[str, dict[str, Part]]:
    """The parts of each section."""
    return {
        "machine": {"about": about, "copy": partial(copy_rate, 1 << (20 if tiny else 30))},
        "probes": gpu_probes.PROBES,
        "gpt2-124m": {
            **gpt("gpt2-124m", Size(5, 40), (4, 1024), gpt_steps.VARIANTS, tiny),
            **gpt("gpt2-124m", Size(5, 40), (20, 1024), gpt_steps.VARIANTS[2:], tiny),
            "by kernels": partial(kernels, tiny),
        },
        "gpt-1b": gpt("gpt-1b", Size(3, 10), (4, 1024), gpt_steps.VARIANTS, tiny),
        "small": {
            name: partial(small, name, Size(1, 2) if tiny else Size(5, SMALL[name])) for name in small_nets(tiny)
        },
        "host": {f"{n} tensors": partial(host, n, tiny) for n in ((6,) if tiny else TENSORS)},
        "drains": {f"{layers} layers": partial(drain, layers, tiny) for layers in ((5,) if tiny else (147, 1000))},
        "memory": {str(way): partial(memory, way, tiny) for way in WAYS},
        "switches": {"of a training step": partial(switches, tiny)},
    }


def about() -> dict[str, Any]:
    """The machine, and what is installed there."""
    installed = {d.metadata["Name"].lower() for d in importlib.metadata.distributions() if d.metadata["Name"]}
    found = {**machine(DEVICE.type), "missing": sorted(set(OPTIONAL) - installed), "platform": platform.platform()}
    if DEVICE.type == "cuda":
        facts = torch.cuda.get_device_properties(DEVICE)
        found |= {"cuda": torch.version.cuda, "capability": f"{facts.major}.{facts.minor}"}
        found |= {"memory GB": round(facts.total_memory / 1e9, 1)}
    return found


def copy_rate(size: int) -> dict[str, Any]:
    """TB/s of a copy on the device, what is read and what is written counted."""
    a, b = (torch.ones(size, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    b.copy_(a)
    times = []
    for _ in range(5):
        synchronize()
        began = time.perf_counter()
        for _ in range(10):
            b.copy_(a)
        synchronize()
        times.append(time.perf_counter() - began)
    return {"TB/s": 10 * 2 * size / statistics.median(times) / 1e12}


# -------------------------------------------------------------------------------------------------------------- clocks


def gpt(name: str, size: Size, batch: tuple[int, int], variants: Sequence[str], tiny: bool) -> dict[str, Part]:
    """Whole steps on batches of (sequences, tokens)."""
    if tiny:
        name, size, batch = "gpt-tiny", Size(1, 2), (batch[0] // 2, 32)
    measured = partial(gpt_steps.measure, name, variant, *size, DEVICE.type, batch, variants)
    return {f"{name}, {batch[0]} x {batch[1]}": measured}


def kernels(tiny: bool) -> dict[str, Any]:
    """Milliseconds of what a clip is made of, in torch's kernels and in ours: the least is that of a round.

    What a clip cannot do without is the norms, and a step whose kernel divides by a scale.
    """
    with torch.device(DEVICE):
        params = [p.detach() for p in GPTS["gpt-tiny" if tiny else "gpt2-124m"]().parameters()]
        grads, scale = [torch.randn_like(p) for p in params], torch.ones(())
        first, second = ([torch.zeros_like(p) for p in params] for _ in range(2))
        counts = [torch.zeros(()) for _ in params]

    def step(**scaled: Any) -> None:
        torch._fused_adamw_(
            params, grads, first, second, [], counts, lr=1e-5, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8,
            amsgrad=False, maximize=False, **scaled,
        )  # fmt: skip

    calls: dict[str, Callable[[], Any]] = {
        "norms": lambda: torch._foreach_norm(grads),
        "a multiplication": lambda: torch._foreach_mul_(grads, scale),
        "a step": step,
        "a step that scales": partial(step, grad_scale=scale),
    }
    many, index = multi_tensor(dict(enumerate(grads)), len(grads)), tuple(range(len(grads)))
    if many is not None:
        calls["norms at once"] = lambda: many.norms(many.pointers(grads, index))
    times = 3 if tiny else 20
    ms = {name: min(device_ms(call, times) for _ in range(5)) for name, call in calls.items()}
    host = {name: min(host_us(calls[name], times) for _ in range(5)) for name in calls if "norms" in name}
    with_torch = ms["norms"] + ms["a multiplication"] + ms["a step"]
    least = ms.get("norms at once", ms["norms"]) + ms["a step that scales"]
    return {"device ms": ms, "host us": host, "least, to torch's clip + step": least / with_torch}


def host_us(call: Callable[[], Any], times: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Microseconds until so many calls are handed over, each; without Python's garbage collection, as in `timeit`."""
    synchronize()
    gc.disable()
    began = clock()
    for _ in range(times):
        call()
    taken = clock() - began
    gc.enable()
    synchronize()
    return 1e6 * taken / times


def device_ms(call: Callable[[], Any], times: int) -> float:
    """What the kernels of a call take, whatever the host does meanwhile; on a CPU the call."""
    if DEVICE.type != "cuda":
        return 1e3 * gpt_steps.timed(0, times, DEVICE.type, call) / times
    call()
    events = gpt_steps.profiled_events(call, DEVICE.type, times)
    return sum(e.time_range.elapsed_us() for e in events) / times / 1e3


def small_nets(tiny: bool) -> list[str]:
    """Where fixed costs and launches dominate."""
    return ["mlp-6"] if tiny else list(MODELS)


def small(name: str, size: Size) -> dict[str, Any]:
    """The ratios of the optimizer phase to torch's clip and step."""
    return {"ratios": measure(name, "fused AdamW", size.rounds, size.steps, DEVICE.type)}


def host(tensors: int, tiny: bool) -> dict[str, Any]:
    """Microseconds of the host's processor in a step beyond fused AdamW's own, on tensors of two elements: median over
    rounds, of each the least of some short windows, at whose beginning the device is done, so that nothing waits for
    it. With `every=10` the steps that measure the weights are among them, one in ten.
    """
    rounds, windows = (1, 2) if tiny else (5, 8 if tensors < 500 else 3)
    found: dict[str, list[float]] = {name: [] for name in HOST_WAYS}
    for name, (clip, options) in [*HOST_WAYS.items()] * rounds:
        model = nn.ParameterList(nn.Parameter(torch.randn(2, device=DEVICE)) for _ in range(tensors))
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        gpu_probes.fill(model)
        with nullcontext() if options is None else watch(model, optimizer, clip, flush_every=1000.0, **options):
            step = partial(_clip_and_step, list(model), optimizer) if name == "torch clip" else optimizer.step
            taken = [host_us(step, HOST_STEPS, time.thread_time) for _ in range(1 + windows)]
        found[name].append(min(taken[1:]))
    alone = found.pop("alone")
    more = {name: statistics.median(map(operator.sub, own, alone)) for name, own in found.items()}
    return {name: round(us, 1) for name, us in {**more, "alone": statistics.median(alone)}.items()}


def _clip_and_step(params: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    nn.utils.clip_grad_norm_(params, 1.0)
    optimizer.step()


def drain(layers: int, tiny: bool) -> dict[str, Any]:
    """Milliseconds that a drain of 100 rows takes on the training's thread: sending it, and handing it over."""
    rows, rounds = (8, 2) if tiny else (100, 5)
    model = gpu_probes.matrices(layers, 4)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    gpu_probes.fill(model)
    sends, hands = [], []
    with watch(model, optimizer, "ClipByGlobalNorm(1.0)", flush_every=1000.0) as handle:
        recorder = handle._recorder
        for _ in range(rounds + 1):
            for _ in range(rows):
                optimizer.step()
            synchronize()
            began = time.perf_counter()
            recorder.drain(waits=False)
            sent = time.perf_counter()
            synchronize()
            landed = time.perf_counter()
            recorder.drain()
            sends.append(sent - began)
            hands.append(time.perf_counter() - landed)
    return {"rows": rows, "send ms": 1e3 * min(sends[1:]), "hand over ms": 1e3 * min(hands[1:])}


def switches(tiny: bool) -> dict[str, Any]:
    """What each switch that looks inside adds to a step of GPT-2 124M on two micro-batches of 4 x 1024."""
    return bench_switches.measure("tiny" if tiny else "gpt2", 2 if tiny else 7, DEVICE.type)


# -------------------------------------------------------------------------------------------------------------- memory

WAYS = (
    "step alone", "torch clip", None, "ClipByGlobalNorm(1.0)", "ClipByNorm(1.0)", "AGC(0.01)", "AutoClip()",
    "ClipByHistory()", "chain(SkipNonfinite(), ClipByGlobalNorm(1.0))",
)  # fmt: skip


def memory(way: str | None, tiny: bool) -> dict[str, Any]:
    """MiB at the peak of a phase that measures weights, above what was there before it, with fused AdamW."""
    with torch.device(DEVICE):
        net = GPTS["gpt-tiny" if tiny else "gpt2-124m"]()
    params = list(net.parameters())
    optimizer = torch.optim.AdamW(params, lr=1e-5, fused=True)
    for p in params:
        p.grad = torch.randn_like(p)
    with watched(net, optimizer, way):
        peaks = []
        for _ in range(4):  # the first makes the optimizer's state, and our constants
            before = peak(start=True)
            if way == "torch clip":
                nn.utils.clip_grad_norm_(params, 1.0)
            optimizer.step()
            synchronize()
            peaks.append(peak() - before)
    return {"first step": peaks[0] / 2**20, "later": max(peaks[1:]) / 2**20, "weights": bytes_of(params) / 2**20}


@contextmanager
def watched(net: nn.Module, optimizer: torch.optim.Optimizer, way: str | None) -> Iterator[None]:
    """The policy, every step a measured one; nothing where the way is torch's."""
    if way in ("step alone", "torch clip"):
        yield
        return
    with watch(net, optimizer, way, every=1):
        yield


def bytes_of(tensors: list[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def peak(start: bool = False) -> int:
    """Bytes allocated on the device at the peak since the last start; at a start, those allocated now."""
    if DEVICE.type != "cuda":
        return 0
    if not start:
        return torch.cuda.max_memory_allocated(DEVICE)
    torch.cuda.reset_peak_memory_stats(DEVICE)
    return torch.cuda.memory_allocated(DEVICE)


# ----------------------------------------------------------------------------------------------------------------- run


def tried(part: Part) -> dict[str, Any]:
    """What it found, or its error."""
    began = time.monotonic()
    try:
        found = part()
    except Exception:  # the next part goes on
        found = {"error": traceback.format_exc(limit=-4)[::-1][:1500][::-1]}
        found["error"] = f"{found['error'].strip().splitlines()[-1]}\n{found['error']}"
    return {**found, "seconds": round(time.monotonic() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", choices=sections(True))
    parser.add_argument("--tiny", action="store_true", help="small models and few rounds")
    parser.add_argument("-o", "--output", type=Path, required=True, help="a line of JSON for each part goes there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, args.output.open("a", encoding="utf-8") as out:
        gpu_probes.folder = folder
        for name, part in sections(args.tiny)[args.section].items():
            out.write(json.dumps({name: tried(part)}) + "\n")
            out.flush()


if __name__ == "__main__":
    main()

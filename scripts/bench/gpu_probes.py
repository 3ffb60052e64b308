"""Questions that only a device can answer, for gpu_sections.py: each is put, and says whether what was claimed `held`.

On a CPU each runs too, as far as it can: it shows that the question is put rightly, not what a device would answer.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import gpt_steps
import launches
import torch
from bench_common import MODELS
from torch import nn

import gradwatch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
folder = "."  # where runs go; set by whoever asks


def synchronize() -> None:
    """Wait until the device has done all that was asked of it."""
    gpt_steps.synchronize(DEVICE.type)


def watch(model: nn.Module, optimizer: torch.optim.Optimizer, clip: str | None = None, **options: Any) -> Any:
    """A Watch that writes files only, in a folder that goes with this process."""
    settings = {"log": None, "dir": folder, "verbose": False, **options}
    return gradwatch.watch(model, optimizer, clip=clip, **settings)


def matrices(layers: int, width: int, dtype: torch.dtype = torch.float32) -> nn.ParameterList:
    """So many square parameters."""
    torch.manual_seed(0)
    return nn.ParameterList(nn.Parameter(torch.randn(width, width).to(DEVICE, dtype)) for _ in range(layers))


def fill(model: nn.Module, seed: int = 0) -> None:
    """Give every parameter a random gradient, always the same for a seed."""
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator).to(p.device, p.dtype)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Within, a wait for the device raises."""
    if DEVICE.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if DEVICE.type == "cuda":
            torch.cuda.set_sync_debug_mode(0)


# -------------------------------------------------------------------------------------------------------------- probes


def halves_are_rounded_once() -> dict[str, Any]:
    """Is a half gradient multiplied by the float32 coefficient? The largest relative error, against half an ulp."""
    found: dict[str, Any] = {"held": True}
    for dtype in (torch.bfloat16, torch.float16):
        model = matrices(8, 64, dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        fill(model)
        wanted = [p.grad.double() for p in model.parameters() if p.grad is not None]
        share, norm = 0.3337, float(torch.stack([w.norm() for w in wanted]).norm())
        with watch(model, optimizer, f"ClipByGlobalNorm({share * norm})"):
            optimizer.step()
        pairs = zip(model.parameters(), wanted, strict=True)
        errors = [((p.grad.double() - w * share).abs() / (w * share).abs().clamp(min=1e-3)).max() for p, w in pairs]
        error, most = float(torch.stack(errors).max()), torch.finfo(dtype).eps / 2 * 1.01
        found[str(dtype)] = {"error": error, "at most": most}
        found["held"] &= error <= most
    return found


def nothing_waits() -> dict[str, Any]:
    """Which trainings wait for the device, drains among their steps: the error, or null; `bare` is torch alone."""
    found = {}
    for name, settings, clip, logged in TRAININGS:
        bare, watched = (_waits(settings, clip, logged, is_watched) for is_watched in (False, True))
        found[name] = {"bare": bare, "watched": watched}
    return {"trainings": found, "held": not any(f["watched"] and not f["bare"] for f in found.values())}


TRAININGS: list[tuple[str, dict[str, Any], str | None, Callable[[nn.Module], Any] | None]] = [
    ("no policy", {}, None, None),
    ("a clip", {}, "ClipByGlobalNorm(1.0)", None),
    ("a loss of the device", {}, "ClipByGlobalNorm(1.0)", lambda model: next(model.parameters()).detach()[0, 0]),
    ("a loss of the CPU", {}, None, lambda model: torch.tensor(1.0)),
    ("a rate of the CPU", {"lr": 1e-3, "as tensor": True}, None, None),
    ("AutoClip", {}, "AutoClip(window=16)", None),
    ("per layer", {}, "ClipByNorm(1.0)", None),
    ("a skip by the kernel", {}, "chain(SkipNonfinite(), ClipByGlobalNorm(1.0))", None),
]


def _waits(settings: dict[str, Any], clip: str | None, logged: Any, is_watched: bool) -> str | None:
    model = matrices(8, 64)
    lr = torch.tensor(settings["lr"]) if settings.get("as tensor") else 1e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
    with watch(model, optimizer, clip, every=5, flush_every=0.001) if is_watched else nullcontext() as handle:
        for n in range(30):
            fill(model, n)
            synchronize()
            try:
                with no_waiting() if n >= 10 else nullcontext():
                    optimizer.step()
                    if handle is not None and logged is not None:
                        handle.log(loss=logged(model))
            except RuntimeError as error:
                return str(error).splitlines()[0]
    return None


def looks_inside_wait_for_nothing() -> dict[str, Any]:
    """Whole steps of a GPT, its loss looked at in many: the error, or null; `bare` is torch alone."""
    found: dict[str, Any] = {"held": True}
    for what, autocast in (("", False), ("autocast, ", True)):
        net, optimizer, backward = gpt_steps.training("gpt-tiny", DEVICE.type, (4, 32), autocast)
        bare, watched = (
            gpt_steps.waits(partial(_opened, net, optimizer, is_watched), backward, DEVICE.type, steps=55)
            for is_watched in (False, True)
        )
        found |= {f"{what}bare": bare, f"{what}watched": watched}
        found["held"] &= watched is None or bare is not None
    return found


@contextmanager
def _opened(net: nn.Module, optimizer: torch.optim.Optimizer, is_watched: bool) -> Iterator[Callable[[], Any]]:
    with watch(net, optimizer, "ClipByGlobalNorm(1.0)", every=1, flush_every=0.01) if is_watched else nullcontext():
        yield optimizer.step


def layers_that_come_and_go() -> dict[str, Any]:
    """Experts without a token: does a new pattern wait, or leave a constant?"""
    model, chance = matrices(24, 16), random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with watch(model, optimizer, "ClipByGlobalNorm(1.0)", every=10**6) as handle:
        kept = 0
        for n in range(40):
            fill(model, n)
            if n > 3:
                for p in model.parameters():
                    p.grad = None if chance.random() < 0.2 else p.grad
            kept = len(handle._stepper.layout._constants) if n == 10 else kept
            with no_waiting() if n >= 10 else nullcontext():
                optimizer.step()
        more = len(handle._stepper.layout._constants) - kept
    return {"constants more": more, "held": more == 0}


def both_kinds_of_device() -> dict[str, Any]:
    """A fused optimizer of CPU and device weights: is the CPU's gradient scaled by what was recorded?"""
    torch.manual_seed(0)
    big, little = nn.Parameter(torch.randn(2048, 2048, device=DEVICE)), nn.Parameter(torch.randn(64))
    optimizer, wrong = torch.optim.AdamW([big, little], lr=0.1, fused=True), 0
    with watch(nn.ParameterList([big, little]), optimizer, "ClipByGlobalNorm(0.5)"):
        for n in range(20):
            big.grad, little.grad = torch.randn_like(big) * (1 + n), torch.ones(64)
            norm = float((big.grad.double().norm() ** 2 + 64).sqrt())
            for _ in range(20 if DEVICE.type == "cuda" else 0):
                big.grad @ big.grad  # the device is busy, so what is copied to the host comes late
            optimizer.step()
            wrong += not torch.allclose(little.grad, torch.full((64,), min(1.0, 0.5 / norm)), rtol=1e-3)
    return {"steps scaled wrongly": wrong, "of": 20, "held": wrong == 0}


def another_stream() -> dict[str, Any]:
    """Steps on a side stream that is far behind, closed on the default one: are rows read before they are written?"""
    model, width = matrices(8, 64), 4096 if DEVICE.type == "cuda" else 2
    x = torch.randn(width, width, device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    fill(model)
    synchronize()
    handle = watch(model, optimizer)
    with torch.cuda.stream(torch.cuda.Stream()) if DEVICE.type == "cuda" else nullcontext():
        for _ in range(20):
            for _ in range(10):
                x @ x
            optimizer.step()
    handle.close()
    history = gradwatch.open_history(handle.dir)
    bad = int((history.total("nonfinite") > 0).sum())
    return {"rows": len(history), "not finite": bad, "held": len(history) == 20 and bad == 0}


NETS = {6: "mlp-6", 74: "transformer-74"}  # of these also by the rules: that takes minutes of 1,000
LAUNCHING = ("torch clip", "none", "ClipByGlobalNorm(1.0)", "ClipByNorm(1.0)")


def launches_by_the_rules() -> dict[str, Any]:
    """Kernels beyond the optimizer's own, of a plain step and of a measured one, by ATen's rules for CUDA 12."""
    rows = {(n, way): launches.row(n, torch.float32, way) for n in NETS for way in LAUNCHING}
    return {f"{NETS[n]}, {way}": [row["launches"], row["launches"] + row["measured"]] for (n, way), row in rows.items()}


def launches_of_the_device() -> dict[str, Any]:
    """The same, as the profiler saw them."""
    found: dict[str, Any] = {}
    for name in (*NETS.values(), *(["linear-1000"] if DEVICE.type == "cuda" else [])):
        alone = _kernels(name, None)[0]
        found |= {f"{name}, {way}": [n - alone for n in _kernels(name, way)] for way in LAUNCHING}
    return found


def _kernels(name: str, way: str | None) -> list[int]:
    """Of a plain step and of a measured one."""
    net = MODELS[name]().to(DEVICE)
    params = list(net.parameters())
    optimizer = torch.optim.AdamW(params, lr=1e-5, fused=True)
    for p in params:
        p.grad = torch.randn_like(p)
    clips = way == "torch clip"

    def step() -> None:
        if clips:
            nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()

    bare = way is None or clips
    with nullcontext() if bare else watch(net, optimizer, None if way == "none" else way, every=5, flush_every=1e3):
        for _ in range(11):
            step()  # the next is plain, and the one after four more is measured
        counts = [Counter(gpt_steps.launches(step, DEVICE.type, 1))["kernels"]]
        for _ in range(3):
            step()
        counts.append(Counter(gpt_steps.launches(step, DEVICE.type, 1))["kernels"])
    return counts


PROBES = {
    probe.__name__.replace("_", " "): probe
    for probe in (
        halves_are_rounded_once, nothing_waits, looks_inside_wait_for_nothing, layers_that_come_and_go,
        both_kinds_of_device, another_stream, launches_by_the_rules, launches_of_the_device,
    )
}  # fmt: skip

"""Optimizers that are not torch's, each trained three times: bare, watched, and watched under a clip.

Legend: L layers, in the order of the model.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import oracle
import torch
import torch._dynamo
from attach import attach
from torch import nn

from gradwatch.errors import GradwatchWarning
from gradwatch.storage.joining import concat

STEPS, MAX_NORM = 6, 0.05
Made = tuple[nn.Module, Any, Callable[[torch.Tensor], None]]  # model, optimizer, what stands for loss.backward()


@dataclass(frozen=True)
class Party:
    """An optimizer of another package: how it is made from a model."""

    package: str  # as `pip` calls it
    module: str
    make: Callable[[Any, nn.Module], Made]


class Result(NamedTuple):
    """What came of one: how far the recorded norms are from the oracle's, at most, and what was wrong."""

    norm_error: float
    slots: tuple[str, ...]  # those of which a norm is recorded
    left_out: tuple[str, ...]  # and those of which there is none
    failures: tuple[str, ...]


def plain(name: str, **options: Any) -> Callable[[Any, nn.Module], Made]:
    """An optimizer that is made from parameters."""

    def make(module: Any, model: nn.Module) -> Made:
        for part in name.split(".")[:-1]:
            module = getattr(module, part)
        optimizer = getattr(module, name.rpartition(".")[2])(model.parameters(), **options)
        if hasattr(optimizer, "train"):
            optimizer.train()
        return model, optimizer, torch.Tensor.backward

    return make


def fabric(module: Any, model: nn.Module) -> Made:
    """Lightning Fabric wraps both, and does backward itself."""
    made = module.Fabric(accelerator="cpu", devices=1)
    model, optimizer = made.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    return model, optimizer, made.backward


def zero(module: Any, model: nn.Module) -> Made:
    """Optimizer states spread over ranks; here there is one."""
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    optimizer = module.ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    return model, optimizer, torch.Tensor.backward


PARTIES = {
    "schedule-free AdamW": Party("schedulefree", "schedulefree", plain("AdamWScheduleFree", lr=1e-2)),
    "schedule-free SGD": Party("schedulefree", "schedulefree", plain("SGDScheduleFree", lr=1e-2)),
    "bitsandbytes AdamW8bit": Party("bitsandbytes", "bitsandbytes", plain("optim.AdamW8bit", lr=1e-2)),
    "torchao AdamW8bit": Party("torchao", "torchao.optim", plain("AdamW8bit", lr=1e-2)),
    "torchao AdamW4bit": Party("torchao", "torchao.optim", plain("AdamW4bit", lr=1e-2)),
    "heavyball AdamW": Party("heavyball", "heavyball", plain("AdamW", lr=1e-2)),
    "heavyball SOAP": Party("heavyball", "heavyball", plain("SOAP", lr=1e-2)),
    "transformers Adafactor": Party("transformers", "transformers.optimization", plain("Adafactor")),
    "Lightning Fabric": Party("lightning", "lightning.fabric", fabric),
    "ZeroRedundancyOptimizer": Party("torch", "torch.distributed.optim", zero),
}


def version(party: Party) -> str:
    """The installed version of its package."""
    return importlib.metadata.version(party.package).split("+")[0]


def _as_it_is(function: Any = None, **_: Any) -> Any:
    """In the place of `torch.compile`."""
    return _as_it_is if function is None else function


@torch._dynamo.config.patch(disable=True)  # most compile their step, for minutes
@mock.patch("torch.compile", _as_it_is)  # what compiles a full graph takes that for an error
def check(name: str) -> Result:
    """Train it three times and compare.

    Raises:
        ImportError: it is not installed.
    """
    party = PARTIES[name]
    module = importlib.import_module(party.module)
    if party.package == "heavyball":
        module.utils.compile_mode = None  # it compiles each step for minutes
    bare, _, _, _ = _train(party, module, watched=False)
    weights, seen, blocks, said = _train(party, module, watched=True, slots=True)
    history, failures = concat(blocks), []
    if not all(map(torch.equal, weights, bare)):
        failures.append("the weights are not those of the bare training")
    want = np.array([oracle.norms(grads) for grads in seen])
    found = history.layer("grad_norm")
    error = float(np.max(np.abs(found - want) / want)) if found.shape == want.shape else float("inf")
    if not error < 2e-5:
        failures.append(f"the norms are off by {error:.1e}")
    clipped, _, blocks, _ = _train(party, module, watched=True, clip=f"ClipByGlobalNorm({MAX_NORM})")
    byhand, _, _, _ = _train(party, module, watched=False, by_hand=True)
    if not (concat(blocks).total("clip_coef") < 1).all():
        failures.append("a step was not clipped")
    if not all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(clipped, byhand, strict=True)):
        failures.append("the weights under a clip are not those of clip_grad_norm_")
    slots = tuple(q.removeprefix("slot_norm/") for q in history.per_layer if q.startswith("slot_norm/"))
    left_out = tuple(text.split()[0].removeprefix("slot_norm/") for text in said if text.startswith("slot_norm/"))
    return Result(error, slots, left_out, tuple(failures))


def _train(party: Party, module: Any, watched: bool, by_hand: bool = False, clip: str | None = None, **options: Any):
    """Train; the weights, the gradients that the oracle saw before each step, the recorded blocks and the warnings."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 3))
    model, optimizer, backward = party.make(module, model)
    params, seen, blocks, said = list(model.parameters()), [], [], []
    handle = None
    if watched:
        handle, blocks = attach(model, optimizer, clip, **options)
    data = torch.Generator().manual_seed(1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", GradwatchWarning)
        for _ in range(STEPS):
            inputs, labels = torch.randn(16, 64, generator=data), torch.randint(3, (16,), generator=data)
            optimizer.zero_grad()
            backward(nn.functional.cross_entropy(model(inputs), labels))
            seen.append(oracle.copy(params))
            if by_hand:
                nn.utils.clip_grad_norm_(params, MAX_NORM)
            optimizer.step()
        if handle is not None:
            handle.close()
    said = [str(w.message) for w in told if isinstance(w.message, GradwatchWarning)]
    return [p.detach().clone() for p in params], seen, blocks, said

"""One run of a loop: what the loop is given, what looks at its gradients, and where gradwatch is attached."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import oracle
import torch

STEPS = 4


@dataclass
class Probe:
    """What is seen of one attachment: the truth before each optimizer step, and what the optimizer consumed."""

    named: dict[str, torch.nn.Parameter]
    truth: list[oracle.Seen] = field(default_factory=list)
    consumed: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    handle: Any = None  # the Watch, in a watched run
    blocks: list[Any] = field(default_factory=list)  # what it recorded


@dataclass
class Trial:
    """A loop asks it for everything that differs between runs: model, batches, optimizer, attachment.

    `watch(model, optimizer)` attaches gradwatch and returns the Watch and its record; None leaves the loop bare.
    `by_hand(grads)` is what a user does who clips by hand; None leaves gradients alone.
    """

    make: Callable[..., torch.optim.Optimizer]
    dtype: torch.dtype
    device: torch.device
    watch: Callable[..., Any] | None = None
    by_hand: Callable[..., Any] | None = None
    step: int = -1
    probes: list[Probe] = field(default_factory=list)
    losses: list[torch.Tensor] = field(default_factory=list)
    left: tuple[Any, ...] = ()  # everything with a state, after the loop

    def bits(self):
        """Every number that training left behind, as bytes by name: weights, optimizer state, losses, ..."""
        found: dict[str, Any] = {}
        for i, thing in enumerate(self.left):
            _flatten(thing.state_dict(), f"{type(thing).__name__}.{i}", found)
            if isinstance(thing, torch.nn.Module):
                _flatten({f"{name}.grad": p.grad for name, p in thing.named_parameters()}, type(thing).__name__, found)
        _flatten(self.losses, "loss", found)
        _flatten(torch.get_rng_state(), "random numbers", found)
        if self.device.type == "cuda":
            _flatten(torch.cuda.get_rng_state(self.device), "random numbers of the device", found)
        return found

    def weights(self):
        """The parameters of the models."""
        return [p.detach() for thing in self.left if isinstance(thing, torch.nn.Module) for p in thing.parameters()]

    def put(self, model):
        """The model in the run's dtype, on its device; dropout uses the global random numbers."""
        return model.to(self.device, self.dtype)

    def optimizer(self, params, **settings):
        """The run's optimizer over a model's parameters, or over groups of parameters."""
        params = params.parameters() if isinstance(params, torch.nn.Module) else params
        return self.make(params, self.dtype, **settings)

    def batches(self, features=6, targets=3, rows=8):
        """The same inputs and targets in every run."""
        for step, batch in enumerate(_batches(features, targets, rows, self.device, self.dtype)):
            self.step = step
            yield batch

    def loss(self, out, target):
        """Mean squared error, remembered for the comparison of runs."""
        loss = (out - target).square().mean()
        self.losses.append(loss.detach().clone())
        return loss

    def attach(self, model, optimizer):
        """Where a user calls `gradwatch.watch`; returns what to call when the gradients are ready."""
        optimizers = optimizer if isinstance(optimizer, list) else [optimizer]
        held = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
        probe = Probe({name: p for name, p in model.named_parameters() if id(p) in held})
        self.probes.append(probe)
        if self.watch is not None:
            probe.handle, probe.blocks = self.watch(model, optimizer)
        for o in optimizers:  # after gradwatch's own hook: what it sees is what the optimizer gets
            o.register_step_pre_hook(lambda o, args, kwargs: self._consume(probe, o, args, kwargs))
        params = list(probe.named.values())

        def look(scale=1.0):
            rates = [float(group["lr"]) for o in optimizers for group in o.param_groups if "lr" in group]
            seen = oracle.see(self.step, params, rates, scale)
            probe.truth.append(seen)
            if self.by_hand is not None and (seen.finite or scale == 1):  # else the scaler drops this step
                oracle.put(params, self.by_hand(seen.grads), scale)

        return look

    def _consume(self, probe, optimizer, args, kwargs):
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        named = {name: p for name, p in probe.named.items() if id(p) in own}

        def note():
            scale = getattr(optimizer, "grad_scale", None)  # a fused kernel divides by it as it reads
            found_inf = getattr(optimizer, "found_inf", None)
            if found_inf is None or not found_inf.item():
                grads = oracle.copy(named.values(), 1.0 if scale is None else scale.item())
                probe.consumed.append((self.step, dict(zip(named, grads, strict=True))))

        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            note()
            return None

        def evaluate():
            loss = closure()
            note()
            return loss

        return ((args[0], evaluate), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": evaluate})


@functools.cache
def _batches(features, targets, rows, device, dtype):
    generator = torch.Generator().manual_seed(1)
    return [
        tuple(torch.randn(rows, n, generator=generator).to(device, dtype) for n in (features, targets))
        for _ in range(STEPS)
    ]


def _flatten(value, name, found):
    if isinstance(value, dict):
        for key, inner in value.items():
            _flatten(inner, f"{name}.{key}", found)
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            _flatten(inner, f"{name}.{i}", found)
    elif isinstance(value, torch.Tensor):
        dense = value.detach().coalesce().to_dense() if value.is_sparse else value.detach()
        raw = dense.cpu().contiguous().reshape(-1).view(torch.uint8)
        found[name] = (value.dtype, tuple(value.shape), raw.numpy().tobytes())
    else:
        found[name] = repr(value)

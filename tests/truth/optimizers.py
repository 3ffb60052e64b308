"""The optimizers of the matrix: every class of torch.optim in each of its forms, and some that are not torch's own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer

SWITCHES = {  # form -> the settings that make it
    "for-loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True},
    "maximize": {"maximize": True},
    "fused maximize": {"fused": True, "maximize": True},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.05, "momentum": 0.9},
    "LBFGS": {"lr": 0.1, "max_iter": 3},
    "Adam": {"lr": 0.01, "weight_decay": 0.01},
}


class Plain(Optimizer):
    """Gradient descent as a paper's repository writes it."""

    def __init__(self, params, lr=0.05):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    count = self.state[p].setdefault("count", torch.zeros((), device=p.device))
                    count += 1
                    p.add_(p.grad, alpha=-group["lr"])
        return loss


class Super(torch.optim.AdamW):
    """A subclass that calls the step of its parent: torch's hooks fire twice."""

    def step(self, closure=None):
        return super().step(closure)


class Lookahead(Optimizer):
    """An optimizer around another one: every second step the weights go halfway back. Zhang et al. 2019."""

    def __init__(self, params, lr=0.05):
        super().__init__(params, {"lr": lr})
        self.inner = torch.optim.SGD(self.param_groups, lr=lr, momentum=0.9)
        self.param_groups = self.inner.param_groups
        self.slow = [p.detach().clone() for group in self.param_groups for p in group["params"]]
        self.taken = 0

    def step(self, closure=None):
        loss = self.inner.step(closure)
        self.taken += 1
        if self.taken % 2 == 0:
            fast = [p for group in self.param_groups for p in group["params"]]
            with torch.no_grad():
                for slow, p in zip(self.slow, fast, strict=True):
                    slow.lerp_(p, 0.5)
                    p.copy_(slow)
        return loss


@dataclass(frozen=True)
class Spec:
    """One optimizer in one form; called with parameters (or groups of them) it makes it."""

    name: str
    form: str
    cls: Callable[..., Optimizer]
    settings: dict[str, Any] = field(default_factory=dict)

    def __call__(self, params, dtype, **settings):
        """The optimizer; in float16, where an epsilon of 1e-8 is 0, with a larger one."""
        if dtype == torch.float16 and isinstance(_default_eps(self.cls), float):
            settings["eps"] = 1e-3
        return self.cls(matrices(params) if self.name == "Muon" else params, **{**self.settings, **settings})

    def __str__(self):
        return f"{self.name} {self.form}".strip()


@functools.cache
def _default_eps(cls):
    eps = inspect.signature(cls).parameters.get("eps")
    return None if eps is None else eps.default


def matrices(params):
    """What Muon can take; the other parameters are in no optimizer, and so are not watched."""
    params = list(params)
    if params and isinstance(params[0], dict):
        return [{**group, "params": matrices(group["params"])} for group in params]
    return [p for p in params if p.ndim == 2]


def specs():
    """Every class of torch.optim in every form that its signature knows, then the others."""
    made = []
    for name, cls in sorted(vars(torch.optim).items()):
        if not (inspect.isclass(cls) and issubclass(cls, Optimizer)) or cls is Optimizer:
            continue
        known = inspect.signature(cls).parameters
        settings = SETTINGS.get(name, {"lr": 0.01})
        forms = {form: switch for form, switch in SWITCHES.items() if switch.keys() <= known.keys()}
        if "for-loop" not in forms:
            forms = {"": {}, **forms}
        made += [Spec(name, form, cls, {**settings, **switch}) for form, switch in forms.items()]
    made.append(Spec("SGD", "without momentum", torch.optim.SGD, {"lr": 0.05}))
    made.append(Spec("SGD", "nesterov", torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}))
    made.append(
        Spec("LBFGS", "strong_wolfe", torch.optim.LBFGS, {**SETTINGS["LBFGS"], "line_search_fn": "strong_wolfe"})
    )
    made += [Spec("Plain", "not torch's", Plain), Spec("Super", "calls super().step()", Super, {"lr": 0.01})]
    made.append(Spec("Lookahead", "around SGD", Lookahead))
    return made


SPECS = {str(spec): spec for spec in specs()}

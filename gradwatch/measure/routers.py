"""Looks at routers of mixtures of experts, in the steps that are sampled: which share of the tokens each expert gets.

Legend: E experts, k of them for each token, N tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.copies import mark
from gradwatch.measure.distributed import local

QUANTITIES = ("tokens", "token_count")
ROUTERS = ("gate", "router", "gating")  # what routers are called, beside a module called experts
CHOICES = ("top_k", "num_experts_per_tok", "k")  # attributes that say how many experts a token gets
EXPERTS = 512  # of a router that are told apart


class Router(NamedTuple):
    """A module whose output names the experts of each token, or has a score for each: the `choices` highest."""

    module: nn.Module
    experts: int
    choices: int


def routers(model: nn.Module) -> dict[int, Router]:
    """What looks like a router in any model, by the module's id: it stands beside the `experts`, however many."""
    found: dict[int, Router] = {}
    for parent in model.modules():
        children = dict(parent.named_children())
        experts, router = children.get("experts"), next((children[n] for n in ROUTERS if n in children), None)
        if experts is None or router is None:
            continue
        is_list = isinstance(experts, (nn.ModuleList, nn.ModuleDict))
        count = len(experts) if is_list else _whole((experts, parent), ("num_experts",))  # type: ignore[arg-type]
        choices = _whole((router, parent), CHOICES) or 1
        if count and 1 < count <= EXPERTS and choices < count:
            found[id(router)] = Router(router, count, choices)
    return found


def _whole(modules: tuple[nn.Module, ...], names: tuple[str, ...]) -> int:
    values = (getattr(module, name, None) for module in modules for name in names)
    return next((value for value in values if type(value) is int and value > 0), 0)


class Tokens:
    """Counts, of each of the routers (by name), the tokens of each expert in this step."""

    def __init__(self, found: Mapping[str, Router], group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.names = {id(router.module): name for name, router in found.items()}
        self._routers = {id(router.module): router for router in found.values()}
        self._counts: dict[int, Tensor] = {}
        self._marks: dict[int, Tensor] = {}  # of what routers give, where other ranks may have the same

    def clear(self) -> None:
        """Forget what was counted."""
        self._counts, self._marks = {}, {}

    @without_autograd
    def add(self, module: nn.Module, output: Any) -> None:
        """One more call of a router that counts."""
        router, key = self._routers[id(module)], id(module)
        given = output if isinstance(output, (tuple, list)) else (output,)
        values = [local(value.detach()) for value in given if isinstance(value, Tensor) and value.dim()]
        chosen = _chosen(values, router)
        if chosen is not None:
            if self.group is not None:  # by what is no count: of counts ranks may have the same by chance
                found = mark(next((value for value in values if value.is_floating_point()), chosen))
                self._marks[key] = found if key not in self._marks else self._marks[key] + found
            edges = torch.arange(router.experts + 1, device=chosen.device)
            counts = torch.searchsorted(chosen.flatten().sort().values, edges).diff()
            before = self._counts.get(key)
            self._counts[key] = counts if before is None else before + counts

    def sums(self, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        """What adds up over ranks, `[E]` of each router."""
        found = ((self._counts.get(key), router.experts) for key, router in self._routers.items())
        return [
            torch.zeros(n, dtype=dtype, device=device) if counts is None else counts.to(device, dtype)
            for counts, n in found
        ]

    def marked(self, device: torch.device) -> list[Tensor]:
        """As `mark`, of all calls of each router; 0 where there were none."""
        found = (self._marks.get(key) for key in self._routers)
        return [torch.zeros((), dtype=torch.float64, device=device) if m is None else m.to(device) for m in found]

    def joined(self, sums: list[Tensor]) -> tuple[tuple[str, ...], Tensor]:
        """Names such as `h.0.moe.gate[3]`, and `[2, E]` of `QUANTITIES` for the experts of all routers."""
        names = [f"{self.names[key]}[{e}]" for key, router in self._routers.items() for e in range(router.experts)]
        found = [torch.stack([counts / counts.sum(), counts]) for counts in sums]
        return tuple(names), torch.cat(found, dim=1) if found else torch.zeros(
            len(QUANTITIES), 0, dtype=torch.float32, device="cpu"
        )


def _chosen(values: list[Tensor], router: Router) -> Tensor | None:
    """Which experts each token is sent to, `[N, k]`: what the router says, or the highest of its scores."""
    for value in values:  # groups of experts and a bias for the choice alone are in it
        if value.dtype in (torch.int32, torch.int64) and value.dim() > 1 and value.shape[-1] < router.experts:
            return value
    for value in values:
        if value.is_floating_point() and value.shape[-1] == router.experts:
            return value.topk(router.choices).indices
    return None

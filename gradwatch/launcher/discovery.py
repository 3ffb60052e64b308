"""Whose parameters an optimizer holds, found without being told: the modules and optimizers that are alive."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from gradwatch.errors import WatchError
from gradwatch.measure.distributed import world_size
from gradwatch.recording.layers import held
from gradwatch.recording.watch import Watch


class Models(nn.Module):
    """Several models that one optimizer holds, side by side, each under a name."""


class Loose(nn.Module):
    """Parameters that no module holds, by the optimizer's own names or those of the script's variables."""

    def __init__(self, named: dict[str, Any]) -> None:
        super().__init__()
        self._named = named

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, Any]]:
        """The tensors by name: they need not be `nn.Parameter`."""
        yield from self._named.items()

    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        """The tensors."""
        yield from self._named.values()


def alive() -> tuple[list[nn.Module], list[Optimizer]]:
    """The script's modules and optimizers that exist, oldest first as far as the collector knows."""
    found = [o for o in gc.get_objects() if issubclass(type(o), (nn.Module, Optimizer))]
    modules = [o for o in found if isinstance(o, nn.Module) and not isinstance(o, Models | Loose)]
    return modules, [o for o in found if isinstance(o, Optimizer)]


def roots(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Those that are in no other one."""
    inner = {id(child) for module in modules for child in module._modules.values()}
    return [module for module in modules if id(module) not in inner]


def owners(optimizer: Optimizer, tops: Sequence[nn.Module]) -> list[nn.Module]:
    """The fewest of `tops` that hold the optimizer's parameters: one that holds them all, else as many as it takes.

    Of several that would do, the one with the fewest parameters.
    """
    left = set(held(optimizer))
    sets = [(module, {id(p) for p in module.parameters()}) for module in tops]
    found: list[nn.Module] = []
    while left:
        module, params = max(sets, key=lambda s: (len(s[1] & left), -len(s[1])), default=(None, set()))
        if module is None or not params & left:
            break
        found.append(module)
        left -= params
    return sorted(found, key=tops.index)


def model_of(optimizers: Sequence[Optimizer], modules: Sequence[nn.Module]) -> nn.Module:
    """What `watch()` is to be given as the model of these optimizers."""
    if len(modules) == 1:
        return modules[0]
    if modules:
        model = Models()
        for module, name in zip(modules, names(modules), strict=True):
            model.add_module(name, module)
        return model
    return Loose({name: p for o in optimizers for name, p in _loose_names(o)})


def flat_partition(optimizer: Optimizer, tops: Sequence[nn.Module], optimizers: Sequence[Optimizer], ranks: int) -> int:
    """The elements of a flat copy that the optimizer holds of a model's parameters, or of this rank's share; else 0.

    ZeRO and Megatron's distributed optimizer keep one: 1-D tensors that no module holds, as large as the trainable
    parameters of a module that are in no optimizer (those of all or some of the `ranks` together, but for a few per
    cent of padding), or in the place of parameters that were emptied (ZeRO-3). The module's own parameters get the
    gradients then: those of a module that is only called with other parameters (`functional_call`) get none.
    """
    own = held(optimizer)
    size = sum(p.numel() for p in own.values())
    here = {id(p) for module in tops for p in module.parameters()}
    if not size or here & own.keys() or any(p.dim() != 1 for p in own.values()):
        return 0
    taken = params_of(optimizers)
    slack = 2 * ranks * len(optimizer.param_groups)
    for module in tops:
        left = [p for p in module.parameters() if p.requires_grad and id(p) not in taken]
        total = sum(p.numel() for p in left)
        shares = (k for k in range(1, ranks + 1) if ranks % k == 0)
        alike = total and any(abs(k * size - total) <= 0.05 * total + slack for k in shares)
        if any(not p.numel() for p in left) or (alike and any(map(_gets_gradients, left))):
            return size
    return 0


def _gets_gradients(p: nn.Parameter) -> bool:
    """Whether somebody takes the gradients of a parameter that no optimizer holds.

    One is there, or a hook that moves it elsewhere; or the parameter is a view of a buffer of many, as ZeRO lays them.
    """
    hooks = getattr(p, "_post_accumulate_grad_hooks", None) or p._backward_hooks
    return p.grad is not None or bool(hooks) or p.untyped_storage().nbytes() > p.numel() * p.element_size()


def refuse_flat(group: Sequence[Optimizer], tops: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
    """Refuse optimizers that step a flat copy of a model, or of a rank's share of it.

    Raises:
        WatchError: one of the group does.
    """
    for optimizer in group:
        size = flat_partition(optimizer, tops, optimizers, world_size())
        if size:
            raise WatchError(
                f"{type(optimizer).__name__} steps a flat copy of {size:,} elements and no module's parameters: ZeRO "
                "and Megatron's distributed optimizer give each rank such a share, in which neither a layer nor the "
                "joint norm can be seen. DeepSpeed's ZeRO is measured where the script calls gradwatch.watch(engine, "
                "optimizer) after deepspeed.initialize, and clips by its own gradient_clipping; else use DDP or "
                "fully_shard (FSDP2)"
            )


def params_of(optimizers: Iterable[Optimizer]) -> set[int]:
    """The ids of the parameters that they hold."""
    return {key for o in optimizers for key in held(o)}


def names(modules: Sequence[nn.Module]) -> list[str]:
    """What to call these modules beside each other: the script's own variables, else their classes, numbered."""
    variables = _variables()
    found = [variables.get(id(module), type(module).__name__) for module in modules]
    return [n if found.count(n) == 1 else f"{n}-{i}" for i, n in enumerate(found)]


def part_name(modules: Sequence[nn.Module], model: nn.Module, group: Sequence[Optimizer], taken: Set[str]) -> str:
    """What to call a Watch that shares a run: as its models; a further one as its optimizer too, or numbered."""
    name = "-".join(names(modules)) or type(model).__name__
    variables = _variables()
    own = [f"{name}-{variables[id(o)]}" for o in group if id(o) in variables]
    wanted = (name, *own, *(f"{name}-{i}" for i in range(2, 10_000)))
    plain = ("".join(c if c.isalnum() or c in "_-" else "-" for c in text) for text in wanted)
    return next(text[:60] for text in plain if text[:60] not in taken)


def _loose_names(optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    variables = _variables()
    for g, group in enumerate(optimizer.param_groups):
        known = group.get("param_names")
        for i, p in enumerate(group["params"]):
            yield known[i] if known else variables.get(id(p), f"param_groups.{g}.{i}"), p


def _variables() -> dict[int, str]:
    """The global variables of the script, by the id of their value: of several, the first (not that of a loop)."""
    variables = reversed(vars(sys.modules["__main__"]).items())
    return {id(value): name for name, value in variables if not name.startswith("_")}


def lost(watches: Sequence[Watch]) -> list[Watch]:
    """Those that alone kept their optimizers, which are freed now; `close` is all that is left to do with them.

    Runs the garbage collector. Only between two steps.
    """
    hold_again = [watch._let_go() for watch in watches]
    gc.collect()
    kept = [hold() for hold in hold_again]
    return [watch for watch, is_kept in zip(watches, kept, strict=True) if not is_kept]

"""Hears of attention as it is called: `scaled_dot_product_attention`, and the softmax of one that is written out.

Legend: B examples, H heads, T queries, S keys, D features of a head.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from gradwatch.measure.looking import Looking
from gradwatch.measure.patch import Function, Patch, Wrapped


class Calls:
    """Which of a module's calls in a step count: not those without autograd, and of a checkpointed part one of two."""

    def __init__(self) -> None:
        self.outside = False  # whether a call of this step was outside of backward

    def clear(self) -> None:
        """The next step is another one."""
        self.outside = False

    def counts(self) -> bool:
        """Whether the call under way does."""
        again = torch._C._current_graph_task_id() != -1  # in backward: a checkpointed part is computed once more
        if not torch.is_grad_enabled() or (again and self.outside):
            return False
        self.outside |= not again
        return True


class AttentionCalls:
    """Is told, between `begin` and `stop`, of every attention inside a call of the modules `known` (ids)."""

    def __init__(self, known: Collection[int], looking: Looking | None = None) -> None:
        self._known, self.looking = known, looking or Looking()
        self._inside: list[nn.Module] = []  # the modules whose calls are under way
        self._hooks: list[Any] = []

    def begin(self) -> None:
        """Listen; nothing where no module can hold an attention. Harmless twice."""
        if self._known and not self._hooks:
            self._hooks = [
                register_module_forward_pre_hook(self._entered),
                register_module_forward_hook(self._left),
            ]
            _heard.listen(self)

    def stop(self) -> None:
        """Listen no more."""
        for hook in self._hooks:
            hook.remove()
        _heard.leave(self)
        self._hooks, self._inside = [], []

    def _entered(self, module: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling():
            self._inside.append(module)

    def _left(self, module: nn.Module, args: Any, output: Any) -> None:
        """The module's forward pass is over, and so are those that began in it and never ended (a checkpoint's)."""
        for at in range(len(self._inside) - 1, -1, -1):
            if self._inside[at] is module:
                del self._inside[at:]
                return

    @property
    def innermost(self) -> nn.Module | None:
        """The known module that is being called, and no other one in it."""
        return next((m for m in reversed(self._inside) if id(m) in self._known), None)

    def scores(self, q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> None:
        """Somebody calls `scaled_dot_product_attention`."""
        raise NotImplementedError

    def softmax(self, x: Tensor, dim: Any) -> None:
        """Somebody takes a softmax."""
        raise NotImplementedError


def by_head(x: Tensor, heads: int | None = None) -> Tensor:
    """As `[B, H, T, ...]`: without heads there is one, and what stands before the heads are examples."""
    if x.ndim == 3:
        return x.reshape(-1, heads, *x.shape[1:]) if heads else x[:, None]
    return x[None, None] if x.ndim == 2 else x.flatten(0, x.ndim - 4) if x.ndim > 4 else x


def mask_by_head(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """The mask of these queries and keys as `[B, H, T, S]`: torch reads it against the shape that they were given in,
    from its end.
    """
    return None if mask is None else by_head(mask.expand(*q.shape[:-1], k.shape[-2]))


def _patches() -> list[Patch]:
    return [
        Patch([(nn.functional, "scaled_dot_product_attention")], _tell_of_scores),
        Patch([(torch.Tensor, "softmax")], _tell_of_softmax),  # nn.functional's goes through it
        Patch([(torch, "softmax")], _tell_of_softmax),
    ]


_heard: Wrapped[AttentionCalls] = Wrapped(_patches)


def _tell_of_scores(original: Function) -> Function:
    @functools.wraps(original)
    def attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **words: Any) -> Any:
        given = {**dict(zip(("attn_mask", "dropout_p", "is_causal"), args, strict=False)), **words}
        for listener in _heard.listeners:
            with listener.looking.at("attention"):
                listener.scores(
                    query, key, given.get("attn_mask"), bool(given.get("is_causal", False)), given.get("scale")
                )
        return original(query, key, value, *args, **words)

    return attention


def _tell_of_softmax(original: Function) -> Function:
    @functools.wraps(original)
    def softmax(*args: Any, **words: Any) -> Any:
        x, dim = (*args, None, None)[:2] if args else (words.get("input"), None)
        for listener in _heard.listeners if isinstance(x, Tensor) else ():
            with listener.looking.at("attention"):
                listener.softmax(x, words.get("dim", dim))
        return original(*args, **words)

    return softmax

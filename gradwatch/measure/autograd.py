"""Work without autograd that gives it back whatever is raised, wherever."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def without_autograd(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, run without autograd.

    As `torch.no_grad()`, which a Ctrl-C as it is entered or left leaves in force for good: the next `backward()` of the
    training then raises. Here nothing can come between what is switched and the `try`, nor before it is given back:
    Python looks for signals after a call, not before one.
    """

    @functools.wraps(function)
    def out(*args: P.args, **kwargs: P.kwargs) -> R:
        enabled = torch.is_grad_enabled()
        try:
            torch._C._set_grad_enabled(False)
            found = function(*args, **kwargs)
        finally:
            torch._C._set_grad_enabled(enabled)
        return found

    return out

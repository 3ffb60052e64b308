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
    is_enabled, switch = torch.is_grad_enabled, torch._C._set_grad_enabled

    @functools.wraps(function)
    def out(*args: P.args, **kwargs: P.kwargs) -> R:
        enabled = is_enabled()
        try:
            switch(False)
            found = function(*args, **kwargs)
        finally:
            switch(enabled)
        return found

    return out

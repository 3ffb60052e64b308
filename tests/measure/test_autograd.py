"""Autograd is given back however a function that runs without it ends."""

import contextlib

import pytest
import torch
from interrupts import Injected, Stop
from torch.autograd import grad_mode
from torch.utils import _contextlib

from gradwatch.measure import autograd
from gradwatch.measure.autograd import without_autograd


@without_autograd
def work(x):
    assert not torch.is_grad_enabled()
    return x * 2


@pytest.mark.parametrize("enabled", [True, False])
def test_it_runs_without_and_gives_back_what_was(enabled):
    with torch.set_grad_enabled(enabled):
        assert not work(torch.ones(1, requires_grad=True)).requires_grad
        assert torch.is_grad_enabled() is enabled


def test_wherever_it_is_interrupted_gradients_are_on_again():
    """`torch.no_grad()`'s own files too, should it come back."""
    files = {module.__file__ for module in (autograd, grad_mode, _contextlib)} | {__file__}
    at, left = 0, []
    while True:
        with Injected(files, at, calls=True, fresh=True) as injected, contextlib.suppress(Stop):
            work(torch.ones(1))
        if not torch.is_grad_enabled():
            left.append(injected.places[-1])
            torch._C._set_grad_enabled(True)
        if not injected.raised:
            break
        at += 1
    assert left == []
    assert at > 3, "the places were not reached"

"""A loop that steps another optimizer than the watched one is told so, once; one that only looks is not."""

import warnings

import pytest
import torch
from torch import nn
from training import watch

from gradwatch import GradwatchWarning, open_history

SAID = "without a step of the watched optimizer"


def step(model, optimizer):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def loop(tmp_path, first, later):
    """Six steps with the watched optimizer, then what `later` does a dozen times, each logged."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    with watch(model, optimizer, tmp_path) as handle:
        for _ in range(first):
            handle.log(loss=step(model, optimizer))
        losses = []
        for _ in range(12):
            losses.append(later(model).item())
            handle.log(loss=losses[-1])
    return handle, losses


@pytest.mark.parametrize(("first", "last"), [(6, "the last one was step 5"), (0, "there was none")])
def test_an_optimizer_that_is_made_anew_is_told_of_once(first, last, tmp_path):
    def anew(model):
        return step(model, torch.optim.Adam(model.parameters()))

    with pytest.warns(GradwatchWarning, match=SAID) as told:
        handle, losses = loop(tmp_path, first, anew)
    assert [last in str(each.message) for each in told if SAID in str(each.message)] == [True]
    if first:
        history = open_history(handle.dir)
        assert len(history) == 6
        assert history.total("loss")[-1] == pytest.approx(losses[8])  # from the tenth on they are left out


@pytest.mark.parametrize("writes", [0, 8])
def test_a_loop_that_evaluates_is_not(writes, tmp_path):
    """Though it writes to the weights, as an average that is loaded, or a forward pass that clamps them."""
    left = [writes]

    def evaluate(model):
        with torch.no_grad():
            if left[0]:
                left[0] -= 1
                model.weight.mul_(0.5)
            return model(torch.randn(8, 4)).square().mean()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop(tmp_path, 6, evaluate)

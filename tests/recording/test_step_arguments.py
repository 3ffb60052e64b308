"""What an optimizer's step is given: a closure is evaluated in its place, anything else stays what it is."""

import pytest
import torch
from torch import nn
from training import batches, mlp, watch

from gradwatch import open_history


class ByLoss(torch.optim.SGD):
    def step(self, loss, model=None):
        assert isinstance(loss, torch.Tensor)
        return super().step()


class ByModel(torch.optim.SGD):
    def step(self, model):
        assert isinstance(model, nn.Module)
        return super().step()


class ByResiduals(torch.optim.SGD):
    def step(self, residuals):
        assert residuals(2.0) == 4.0
        return super().step()


class WithoutBackward(torch.optim.SGD):
    def step(self, closure):
        closure(False, scaled=True)
        return super().step()


GIVEN = {
    "a loss": (ByLoss, lambda model, loss: loss),
    "a model": (ByModel, lambda model, loss: model),
    "a function of numbers": (ByResiduals, lambda model, loss: lambda number: 2 * number),
}


@pytest.mark.parametrize("what", GIVEN)
def test_what_is_no_closure_reaches_the_step_as_it_is(what, tmp_path):
    kind, given = GIVEN[what]
    model = mlp()
    optimizer = kind(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as handle:
        for x, y in batches(4):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step(given(model, loss))
    history = open_history(handle.dir)
    assert len(history) == 4
    assert (history.total("grad_norm") > 0).all()


def test_a_closure_is_called_with_what_its_optimizer_has_for_it(tmp_path):
    model, calls = mlp(), []
    optimizer = WithoutBackward(model.parameters(), lr=0.1)

    def closure(backward=True, scaled=False):
        calls.append((backward, scaled))

    with watch(model, optimizer, tmp_path) as handle:
        optimizer.step(closure)
    assert calls == [(False, True)]
    assert len(open_history(handle.dir)) == 1

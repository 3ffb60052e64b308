"""Parameters that no optimizer holds: whether gradients come to them is recorded, and what is said goes by it."""

import pytest
import torch
from torch import nn
from training import watch

from gradwatch import open_history
from gradwatch.analysis.rules import diagnose


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)


def trained(tmp_path, forward, steps=120, before=None):
    """A head is trained on what `forward` makes of a batch; its body is in no optimizer."""
    torch.manual_seed(0)
    model = Two()
    if before:
        before(model)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as handle:
        for _ in range(steps):
            x = torch.randn(16, 6)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(forward(model, x), x[:, :3].argmax(1))
            loss.backward()
            optimizer.step()
            handle.log(loss=loss)
    history = open_history(handle.dir)
    reached = history.total("in_loss/unheld_reached")
    found = [f for f in diagnose(history) if f.rule == "not-in-optimizer"]
    return reached[~torch.tensor(reached).isnan().numpy()], found


def as_one(model, x):
    return model.head(model.body(x).relu())


@torch.no_grad()
def features(model, x):
    return model.body(x).relu()


def on_features(model, x):
    return model.head(features(model, x))


def test_what_gets_gradients_and_is_not_trained_is_a_warning(tmp_path):
    reached, (found,) = trained(tmp_path, as_one)
    assert set(reached) == {1.0}
    assert (found.severity, found.layers) == ("warning", ("body.weight", "body.bias"))


def test_what_rests_under_no_grad_is_a_note_with_both_causes(tmp_path):
    reached, (found,) = trained(tmp_path, on_features)
    assert set(reached) == {0.0}
    assert (found.severity, found.layers, len(found.alternatives)) == ("note", ("body.weight", "body.bias"), 2)


@pytest.mark.parametrize("passes", [1, 3])
def test_what_an_earlier_training_left_is_no_gradient_that_came(passes, tmp_path):
    def before(model):
        for _ in range(passes):
            as_one(model, torch.randn(16, 6)).sum().backward()

    reached, (found,) = trained(tmp_path, on_features, before=before)
    assert set(reached) == {0.0}
    assert found.severity == "note"


def test_a_part_that_is_never_used_is_told_as_such(tmp_path):
    def with_spare(model):
        model.spare = nn.Linear(2, 2)

    def both(model, x):
        return model.head(features(model, x))

    _, (found,) = trained(tmp_path, both, before=with_spare)
    assert (found.severity, len(found.layers)) == ("note", 4)


def test_of_a_model_that_is_held_as_a_whole_nothing_is_recorded(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as handle:
        for _ in range(5):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    assert "in_loss/unheld_reached" not in open_history(handle.dir).per_step

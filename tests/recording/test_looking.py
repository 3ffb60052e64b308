"""What is only looked at never ends a training: it is left out of the record, with one warning."""

import inspect

import numpy as np
import pytest
import torch
from torch import nn
from training import mlp, watch

import gradwatch
from gradwatch.errors import GradwatchWarning
from gradwatch.measure import weight_updates
from gradwatch.recording import clipper, optimizer_settings


class Packed(torch.Tensor):
    """A tensor that says it is float32 and holds codes, as the states of torchao's 8-bit optimizers."""

    @staticmethod
    def __new__(cls, codes):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes):
        self.codes = codes

    def __tensor_flatten__(self):
        return ["codes"], None

    __tensor_unflatten__ = None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(f"{func} of codes")


class Quantised(torch.optim.SGD):
    """SGD that keeps 8-bit codes of the large layers, numbers of the small ones, and a third tensor that is packed."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                large = p.numel() > 10
                codes = torch.ones(p.shape, dtype=torch.uint8)
                self.state[p].update(m=codes if large else p.grad.abs(), packed=Packed(codes))
        return super().step(closure)


def quiet_steps(model, optimizer, count=4):
    for _ in range(count):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()


def test_slots_of_quantised_optimizers_are_left_out_and_the_rest_is_measured(tmp_path):
    model = mlp(torch.float32)
    optimizer = Quantised(model.parameters(), lr=0.1, momentum=0.9)
    small = np.array([p.numel() <= 10 for p in model.parameters()])
    assert set(small) == {True, False}
    with watch(model, optimizer, tmp_path, slots=True, every=1) as handle, pytest.warns(GradwatchWarning) as told:
        quiet_steps(model, optimizer)
    history = gradwatch.open_history(handle.dir)
    want = [p.numel() ** 0.5 for p in model.parameters()]
    np.testing.assert_allclose(history.layer("slot_norm/m")[0], np.where(small, want, np.nan), rtol=1e-6)
    assert np.isfinite(history.layer("slot_norm/momentum_buffer")).all()
    assert "slot_norm/packed" not in history.per_layer
    texts = [str(w.message) for w in told]
    assert len(texts) == 2, "one note a quantity, not one a step"
    assert [text.split(";")[0] for text in texts] == [
        "slot_norm/m cannot be recorded, training goes on: torch.uint8 holds codes",
        "slot_norm/packed cannot be recorded, training goes on: Packed holds codes",
    ]


QUANTITIES = {
    "update_ratio": (weight_updates.UpdateRatio, "before"),
    "update_ratio after": (weight_updates.UpdateRatio, "after"),
    "weight_norm": (weight_updates, "weight_norms"),
    "slot_norm": (weight_updates, "slot_norms"),
    "lr": (optimizer_settings.GroupSettings, "now"),
    "grad_norm": (clipper.Clipper, "clip"),
}


@pytest.mark.parametrize("error", [RuntimeError, torch.OutOfMemoryError, KeyError])
@pytest.mark.parametrize("what", QUANTITIES)
def test_a_quantity_that_cannot_be_taken_leaves_the_training_and_the_others_alone(what, error, tmp_path, monkeypatch):
    place, name = QUANTITIES[what]
    what = what.split()[0]
    bare = mlp(torch.float32)
    quiet_steps(bare, torch.optim.Adam(bare.parameters()), 6)
    model = mlp(torch.float32)
    optimizer = torch.optim.Adam(model.parameters())
    with watch(model, optimizer, tmp_path, slots=True, every=1) as handle:
        quiet_steps(model, optimizer, 2)

        def fails(*_, **__):
            raise error("cannot be measured")

        def fails_as_a_sum(*_, **__):
            yield fails()

        with monkeypatch.context() as patch:
            is_sum = inspect.isgeneratorfunction(getattr(place, name))
            patch.setattr(place, name, fails_as_a_sum if is_sum else fails)
            with pytest.warns(GradwatchWarning, match=f"{what} cannot be recorded") as told:
                quiet_steps(model, optimizer, 2)
        handle.log(loss=0.5)
        assert len(told) == 1
        quiet_steps(model, optimizer, 2)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), bare.parameters(), strict=True))
    history = gradwatch.open_history(handle.dir)
    assert history.step.tolist() == list(range(6))
    table = {
        "update_ratio": history.layer("update_ratio"),
        "weight_norm": history.layer("weight_norm"),
        "slot_norm": history.layer("slot_norm/exp_avg"),
        "grad_norm": history.layer("grad_norm"),
    }
    table = {key: values.any(axis=1) & np.isfinite(values).all(axis=1) for key, values in table.items()}
    table["lr"] = np.isfinite(history.total("lr"))
    missing = [True, True, False, False, True, True]
    for key, there in table.items():
        assert there.tolist() == (missing if key == what else [True] * 6), key
    assert history.total("loss")[3] == 0.5
    if what == "grad_norm":
        for total in ("grad_norm", "clipped_norm", "clip_rate", "nonfinite"):
            assert np.isfinite(history.total(total)).tolist() == missing, total


def test_a_policy_that_cannot_act_is_an_error(tmp_path, monkeypatch):
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, clip="ClipByGlobalNorm(1.0)"):

        def fails(*_, **__):
            raise RuntimeError("no kernel")

        with monkeypatch.context() as patch:
            patch.setattr(clipper.Clipper, "clip", fails)
            with pytest.raises(RuntimeError, match="no kernel"):
                quiet_steps(model, optimizer, 1)


class Relative(torch.optim.SGD):
    """An optimizer whose groups have no rate, as Adafactor's with relative_step."""

    def step(self, closure=None):
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] = 0.1
        super().step(closure)
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate


def test_a_learning_rate_that_is_no_number_is_absent(tmp_path):
    model = mlp(torch.float32)
    optimizer = Relative(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["lr"] = None
    with watch(model, optimizer, tmp_path) as handle:
        quiet_steps(model, optimizer)
    history = gradwatch.open_history(handle.dir)
    assert len(history) == 4
    assert np.isnan(history.total("lr")).all()


def test_a_loss_that_cannot_be_copied_is_left_out(tmp_path):
    """As `gradwatch run` hands it over, before the step: nobody of the script's asked for it."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as handle:
        with pytest.warns(GradwatchWarning, match="loss cannot be recorded"):
            handle._log_next(loss=torch.ones((), device="meta"))
        quiet_steps(model, optimizer, 2)
    assert "loss" not in gradwatch.open_history(handle.dir).logged


def test_a_warning_points_at_the_line_of_the_program_and_not_at_one_of_ours(tmp_path, monkeypatch):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = watch(model, optimizer, tmp_path, every=1)
    monkeypatch.setattr(weight_updates, "measure", None)
    model(torch.ones(1, 6, dtype=torch.float64)).sum().backward()
    with pytest.warns(GradwatchWarning, match="weight_norm") as in_a_step:
        optimizer.step()
    handle.close()
    with pytest.warns(GradwatchWarning, match="after close") as after:
        handle.log(loss=0.5)
    assert {warning.filename for warning in (*in_a_step, *after)} == {__file__}

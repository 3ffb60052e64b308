"""Engines whose optimizers step flat copies, and tensors that are slices without saying of what: refused by name."""

import pytest
import torch
from torch import nn

import gradwatch
from gradwatch.recording import parallel

QUIET = {"log": None, "verbose": False}


def wrapper(module):
    """An optimizer's wrapper as that library has one: it is no torch optimizer, and holds one."""
    kind = type("Wrapper", (), {"__module__": module})
    made = kind()
    made.optimizer = torch.optim.SGD([nn.Parameter(torch.ones(9))], lr=0.1)
    return made


@pytest.mark.parametrize(
    "module",
    ["deepspeed.runtime.zero.stage_1_and_2", "deepspeed.runtime.zero.stage3", "megatron.core.optimizer.optimizer"],
)
def test_an_engine_that_steps_flat_copies_is_refused_with_its_reason(module, tmp_path):
    with pytest.raises(gradwatch.WatchError, match="Wrapper steps flat copies of the parameters"):
        gradwatch.watch(nn.Linear(2, 2), wrapper(module), dir=tmp_path, **QUIET)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("mark", "value", "said"), [("allreduce", False, "experts="), ("tensor_model_parallel", True, "Megatron")]
)
def test_a_slice_that_is_marked_as_one_is_refused_among_several_ranks(mark, value, said, tmp_path, monkeypatch):
    model = nn.Linear(2, 2)
    setattr(model.weight, mark, value)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradwatch.watch(model, optimizer, dir=tmp_path, **QUIET).close()  # one rank holds all of it
    monkeypatch.setattr(parallel, "world_size", lambda: 2)
    with pytest.raises(gradwatch.WatchError, match=f"weight is .*{said}"):
        gradwatch.watch(model, optimizer, dir=tmp_path, **QUIET)

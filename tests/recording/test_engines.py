"""Engines whose optimizers step flat copies, and tensors that are slices without saying of what: refused by name."""

import sys
import types

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
    [
        "deepspeed.runtime.zero.mics",
        "deepspeed.runtime.fp16.unfused_optimizer",
        "deepspeed.runtime.bf16_optimizer",
        "megatron.core.optimizer.optimizer",
    ],
)
def test_an_engine_that_steps_flat_copies_is_refused_with_its_reason(module, tmp_path):
    with pytest.raises(gradwatch.WatchError, match="Wrapper steps copies of the parameters"):
        gradwatch.watch(nn.Linear(2, 2), wrapper(module), dir=tmp_path, **QUIET)
    assert not any(tmp_path.iterdir())


def zero(**settings):
    """DeepSpeed's optimizer of stage 1 and 2, as far as is looked at before it is watched."""
    made = type("DeepSpeedZeroOptimizer", (), {"__module__": "deepspeed.runtime.zero.stage_1_and_2"})()
    param = nn.Parameter(torch.ones(9))
    param.allreduce = settings.pop("allreduce", True)
    vars(made).update({"optimizer": torch.optim.SGD([param]), "dtype": torch.float32, "bit16_groups": [[param]]})
    vars(made).update({"step": lambda: None, **settings})
    return made


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cpu_offload": True}, "offloaded"),
        ({"offload_optimizer": True}, "offloaded"),
        ({"dtype": torch.float16}, "float16"),
        ({"torch_autocast_gradscaler": object()}, "float16"),
        ({"optimizer": type("MuonWithAuxAdam", (torch.optim.SGD,), {})([nn.Parameter(torch.ones(2))])}, "Muon"),
        ({"allreduce": False}, "experts"),
    ],
)
def test_ways_of_zero_that_were_not_tried_are_refused(settings, said, tmp_path):
    with pytest.raises(gradwatch.WatchError, match=f"DeepSpeedZeroOptimizer with .*{said}"):
        gradwatch.watch(nn.Linear(2, 2), zero(**settings), dir=tmp_path, **QUIET)
    assert not any(tmp_path.iterdir())


def test_zero_of_another_version_is_refused_with_its_reason(tmp_path):
    with pytest.raises(gradwatch.WatchError, match=r"not where DeepSpeed 0.19, .* has them: AttributeError"):
        gradwatch.watch(nn.Linear(2, 2), zero(), dir=tmp_path, **QUIET)
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


@pytest.mark.parametrize("size", [1, 2, None])
def test_megatrons_marks_mean_slices_only_where_its_ranks_share_layers(size, tmp_path, monkeypatch):
    """It marks the layers of its tensor-parallel classes on any number of ranks, also where each has all of them."""
    state = types.ModuleType("megatron.core.parallel_state")
    state.get_tensor_model_parallel_group = lambda check_initialized=True: None if size is None else "a group"
    state.get_tensor_model_parallel_world_size = lambda: size
    monkeypatch.setitem(sys.modules, state.__name__, state)
    monkeypatch.setattr(parallel, "world_size", lambda: 2)
    model = nn.Linear(2, 2)
    model.weight.tensor_model_parallel = True
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if size == 1:
        gradwatch.watch(model, optimizer, dir=tmp_path, **QUIET).close()
        return
    with pytest.raises(gradwatch.WatchError, match="weight is one rank's slice"):
        gradwatch.watch(model, optimizer, dir=tmp_path, **QUIET)

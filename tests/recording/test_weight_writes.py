"""How often something else than the optimizer writes to the weights between two steps."""

import copy

import numpy as np
import pytest
import torch
from training import mlp, train, watch

from gradwatch import open_history


def written(folder, between, make=torch.optim.SGD, **options):
    """`weight_writes` of eight steps, `between` which the loop does something."""
    model = mlp()
    optimizer = make(model.parameters(), lr=0.1)
    kept = copy.deepcopy(model.state_dict())
    with watch(model, optimizer, folder, **options) as watching:
        for step in range(8):
            train(model, optimizer, 1)
            between(model, kept, step)
    return open_history(watching.dir).total("weight_writes").tolist()


def load(model, kept, step):
    if step % 3 == 2:
        model.load_state_dict(kept)


@torch.no_grad()
def shrink(model, kept, step):
    for p in model.parameters():
        p.mul_(0.9).add_(0.1)


@pytest.mark.parametrize("options", [{}, {"clip": "ClipByGlobalNorm(1e-3)"}, {"renorm": "MaxNorm(0.5)"}, {"every": 1}])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize(
    ("between", "writes"),
    [
        (lambda *_: None, [0] * 7),
        (load, [0, 0, 1, 0, 0, 1, 0]),
        (shrink, [2] * 7),
        (lambda model, *_: model(torch.ones(1, 6, dtype=torch.float64)), [0] * 7),
    ],
)
def test_what_the_loop_writes_counts_and_what_the_optimizer_and_the_policy_write_does_not(
    between, writes, make, options, tmp_path
):
    assert written(tmp_path, between, make, **options) == pytest.approx([np.nan, *writes], nan_ok=True)


@pytest.mark.filterwarnings("ignore:the watched optimizers do not step together")
def test_optimizers_that_step_apart_have_counts_of_their_own(tmp_path):
    first, second = mlp(), mlp(seed=1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (first, second)]
    both = torch.nn.ModuleList([first, second])
    with watch(both, optimizers, tmp_path) as watching:
        for _ in range(4):
            train(first, optimizers[0], 1)
            train(second, optimizers[1], 1)
            with torch.no_grad():
                second[0].weight.mul_(0.5)
    lanes = open_history(watching.dir).lanes()
    assert [np.nansum(lane.total("weight_writes")) for lane in lanes.values()] == [0, 3]


@pytest.mark.filterwarnings("ignore:.*cannot be recorded, training goes on")
def test_a_tensor_that_does_not_count_ends_no_training(tmp_path):
    class Uncounted(torch.nn.Parameter):
        @property
        def _version(self):
            raise RuntimeError("Inference tensors do not track version counter.")

    model = mlp()
    model[0].weight = Uncounted(model[0].weight.detach())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as watching:
        train(model, optimizer, 4)
    history = open_history(watching.dir)
    assert (len(history), np.isnan(history.total("weight_writes")).all()) == (4, True)

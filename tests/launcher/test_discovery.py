"""What is found of an optimizer: whether it steps a flat copy of a model, or tensors of the script's own."""

import pytest
import torch
from torch import nn

from gradwatch.launcher.discovery import flat_partition


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))  # 49 elements


def flat(*sizes):
    return torch.optim.AdamW([{"params": [torch.zeros(n, requires_grad=True)]} for n in sizes])


@pytest.mark.parametrize(
    ("sizes", "ranks"),
    [((49,), 1), ((52,), 1), ((32, 18), 1), ((26,), 2), ((13,), 4), ((26,), 4)],
    ids=["whole", "padded", "two groups", "half", "quarter", "half, beside tensor parallelism"],
)
def test_a_flat_copy_of_a_model_is_known_by_its_size(sizes, ranks):
    optimizer = flat(*sizes)
    assert flat_partition(optimizer, [net()], [optimizer], ranks) == sum(sizes)


def test_a_flat_copy_of_parameters_that_were_emptied_is_known():
    model, optimizer = net(), flat(1000)
    for p in model.parameters():
        p.data = torch.empty(0)
    assert flat_partition(optimizer, [model], [optimizer], 2) == 1000


def own(*shape):
    return torch.optim.LBFGS([torch.zeros(shape, requires_grad=True)])


@pytest.mark.parametrize(
    "optimizer",
    [own(1, 3, 16, 16), own(7, 7), own(1), own(12), own()],
    ids=["image", "49 in 2-D", "alpha", "prompt", "0-d"],
)
def test_tensors_of_the_scripts_own_are_no_copy(optimizer):
    assert flat_partition(optimizer, [net(), nn.Linear(64, 64)], [optimizer], 1) == 0


def test_a_vector_as_large_as_a_model_that_an_optimizer_trains_is_no_copy():
    model, vector = net(), flat(49)
    beside = torch.optim.SGD(model.parameters())
    assert flat_partition(vector, [model], [vector, beside], 1) == 0
    assert flat_partition(beside, [model], [vector, beside], 1) == 0
    for p in model.parameters():
        p.requires_grad_(False)
    assert flat_partition(vector, [model], [vector], 1) == 0, "a frozen model"

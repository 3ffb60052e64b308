"""What is found of an optimizer: whether it steps a flat copy of a model, or tensors of the script's own."""

import pytest
import torch
from torch import nn

from gradwatch.errors import WatchError
from gradwatch.launcher.discovery import flat_partition, refuse_flat


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))  # 49 elements


def trained():
    """A model whose parameters have gradients, which somebody else puts into a flat copy."""
    model = net()
    model(torch.ones(4)).backward()
    return model


def hooked():
    """A model whose gradients are taken as they come, as ZeRO-2 does."""
    model = net()
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    model(torch.ones(4)).backward()
    return model


def in_a_buffer():
    """A model whose parameters are views of one buffer, as ZeRO-1 and Megatron lay them."""
    model = net()
    buffer = nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(buffer, model.parameters())
    return model


def flat(*sizes):
    return torch.optim.AdamW([{"params": [torch.zeros(n, requires_grad=True)]} for n in sizes])


@pytest.mark.parametrize(
    ("sizes", "ranks"),
    [((49,), 1), ((52,), 1), ((32, 18), 1), ((26,), 2), ((13,), 4), ((26,), 4)],
    ids=["whole", "padded", "two groups", "half", "quarter", "half, beside tensor parallelism"],
)
@pytest.mark.parametrize("model", [trained, hooked, in_a_buffer])
def test_a_flat_copy_of_a_model_is_known_by_its_size(sizes, ranks, model):
    optimizer = flat(*sizes)
    assert flat_partition(optimizer, [model()], [optimizer], ranks) == sum(sizes)


def test_a_vector_that_a_model_is_called_with_is_no_copy():
    """It is as large as the model and begins with its values, but it gets the gradients, and the model none."""
    model = net()
    vector = nn.utils.parameters_to_vector(model.parameters()).detach().requires_grad_()
    optimizer = torch.optim.Adam([vector])
    sizes = {name: p.shape for name, p in model.named_parameters()}
    pieces = vector.split([size.numel() for size in sizes.values()])
    params = {name: piece.view(size) for (name, size), piece in zip(sizes.items(), pieces, strict=True)}
    torch.func.functional_call(model, params, (torch.ones(4),)).backward()
    assert vector.grad.any()
    assert flat_partition(optimizer, [model], [optimizer], 1) == 0
    refuse_flat([optimizer], [model], [optimizer])
    model(torch.ones(4)).backward()
    with pytest.raises(WatchError, match="flat copy of 49 elements"):
        refuse_flat([optimizer], [model], [optimizer])


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
    assert flat_partition(optimizer, [trained(), nn.Linear(64, 64)], [optimizer], 1) == 0


def test_a_vector_as_large_as_a_model_that_an_optimizer_trains_is_no_copy():
    model, vector = trained(), flat(49)
    beside = torch.optim.SGD(model.parameters())
    assert flat_partition(vector, [model], [vector, beside], 1) == 0
    assert flat_partition(beside, [model], [vector, beside], 1) == 0
    for p in model.parameters():
        p.requires_grad_(False)
    assert flat_partition(vector, [model], [vector], 1) == 0, "a frozen model"

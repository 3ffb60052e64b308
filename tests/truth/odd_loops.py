"""The loops over odd models: layers that take no part, shared, sparse, complex, empty and strided parameters."""

from __future__ import annotations

import torch
from loops import loop, mlp, ordinary
from torch import nn
from trial import STEPS

# ------------------------------------------------------------------------------------------- who takes part in a step


def two_heads(t, used, set_to_none):
    """The second of two layers takes part only in the steps `used`."""
    model = t.put(nn.ModuleDict({"always": nn.Linear(6, 3), "seldom": nn.Linear(6, 3)}))
    optimizer = t.optimizer(model)
    look = t.attach(model, optimizer)
    for x, y in t.batches():
        optimizer.zero_grad(set_to_none=set_to_none)
        out = model["always"](x) + (model["seldom"](x) if t.step in used else 0)
        t.loss(out, y).backward()
        look()
        optimizer.step()
    return model, optimizer


@loop
def sometimes_unused(t):
    """A layer that some steps do not use: its gradient is None."""
    return two_heads(t, used=(1, 2), set_to_none=True)


@loop
def zeroed_gradients(t):
    """`zero_grad(set_to_none=False)`: a layer that is not used has a gradient of zeros."""
    return two_heads(t, used=(0, 2), set_to_none=False)


@loop
def frozen(t):
    """A frozen layer, held by the optimizer."""
    model = t.put(mlp())
    model[0].requires_grad_(False)
    return ordinary(t, model)


@loop
def frozen_midway(t):
    """A layer is frozen during training, another unfrozen."""
    model = t.put(mlp())
    model[0].requires_grad_(False)
    optimizer = t.optimizer(model)
    look = t.attach(model, optimizer)
    for x, y in t.batches():
        if t.step == 2:
            model[0].requires_grad_(True)
            model[3].bias.requires_grad_(False)
        optimizer.zero_grad()
        t.loss(model(x), y).backward()
        look()
        optimizer.step()
    return model, optimizer


class Adapted(nn.Linear):
    """A linear layer and its low-rank adaptation."""

    def __init__(self):
        super().__init__(6, 3)
        self.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.zeros(3, 2))

    def forward(self, x):
        return super().forward(x) + x @ self.down.T @ self.up.T


@loop
def lora(t):
    """LoRA: the base is frozen and in no optimizer."""
    model = t.put(Adapted())
    optimizer = t.optimizer([p for p in model.parameters() if p.requires_grad])
    look = t.attach(model, optimizer)
    for x, y in t.batches():
        optimizer.zero_grad()
        t.loss(model(x), y).backward()
        look()
        optimizer.step()
    return model, optimizer


@loop
def tied(t):
    """Tied weights."""
    model = t.put(nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3)))
    model[2].weight = model[0].weight
    return ordinary(t, model)


@loop
def weight_norm(t):
    """A module under `parametrizations.weight_norm`."""
    wrapped = nn.utils.parametrizations.weight_norm(nn.Linear(6, 8))
    return ordinary(t, t.put(nn.Sequential(wrapped, nn.Tanh(), nn.Linear(8, 3))))


@loop
def orthogonal(t):
    """A module under `parametrizations.orthogonal`."""
    wrapped = nn.utils.parametrizations.orthogonal(nn.Linear(6, 8))
    return ordinary(t, t.put(nn.Sequential(wrapped, nn.Tanh(), nn.Linear(8, 3))))


# ---------------------------------------------------------------------------------------------------- odd parameters


class Words(nn.Module):
    """Looks up its own words, some of them twice, and goes on with what follows."""

    def __init__(self, *rest, width=3):
        super().__init__()
        self.table, self.rest = nn.Embedding(10, width, sparse=True), nn.Sequential(*rest)

    def forward(self, x):
        words = torch.tensor([7, 7, 3, 3, 3, 1, 0, 9], device=x.device)
        return self.rest(self.table(words))


@loop(every_form=True)
def sparse(t):
    """Sparse gradients of an embedding; an index occurs more than once."""
    return ordinary(t, t.put(Words()))


@loop(every_form=True)
def sparse_and_dense(t):
    """Sparse gradients of an embedding beside dense ones."""
    return ordinary(t, t.put(Words(nn.Tanh(), nn.Linear(4, 3), width=4)))


class Bag(nn.Module):
    """A linear map, and parameters of odd shapes that scale and shift what comes out."""

    def __init__(self, **odd):
        super().__init__()
        self.first = nn.Linear(6, 3)
        for name, value in odd.items():
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, x):
        out = self.first(x)
        for name, p in self.named_parameters(recurse=False):
            out = out * p if name.startswith("scale") else out + p.sum()
        return out


@loop
def zero_d(t):
    """0-d parameters."""
    return ordinary(t, t.put(Bag(scale=torch.tensor(1.5), shift=torch.tensor(0.5))))


@loop
def empty(t):
    """Parameters without elements."""
    return ordinary(t, t.put(Bag(none=torch.zeros(0, 4), nothing=torch.zeros(0))))


@loop(dtypes=(torch.float64, torch.float32))
def complex_numbers(t):
    """Complex parameters beside real ones."""
    kind = torch.complex128 if t.dtype == torch.float64 else torch.complex64
    model = nn.ModuleDict({"real": t.put(nn.Linear(6, 3)), "complex": nn.Linear(6, 3).to(t.device, kind)})
    for p in model["complex"].parameters():
        p.data = torch.randn(p.shape, dtype=kind).to(t.device)
    optimizer = t.optimizer(model)
    look = t.attach(model, optimizer)
    for x, y in t.batches():
        optimizer.zero_grad()
        t.loss(model["real"](x) + model["complex"](x.to(kind)).abs(), y).backward()
        look()
        optimizer.step()
    return model, optimizer


@loop
def mixed_dtypes(t):
    """float64, float32 and the run's dtype in one model."""

    class Cast(nn.Linear):
        def forward(self, x):
            return super().forward(x.to(self.weight.dtype))

    model = nn.Sequential(Cast(6, 5, dtype=torch.float64), Cast(5, 4), Cast(4, 3, dtype=t.dtype))
    return ordinary(t, model.to(t.device))


# ----------------------------------------------------------------------------------------------------- odd gradients


@loop
def channels_last(t):
    """A convolution in `channels_last`."""
    model = nn.Sequential(nn.Unflatten(1, (2, 3, 3)), nn.Conv2d(2, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3))
    return ordinary(t, t.put(model).to(memory_format=torch.channels_last), features=18)


def strided(tensor):
    """A copy, transposed and with gaps in memory."""
    wide = torch.zeros(*tensor.shape[::-1], 2, dtype=tensor.dtype, device=tensor.device)
    return wide[..., 0].permute(*reversed(range(tensor.dim()))).copy_(tensor)


@loop
def non_contiguous(t):
    """Gradients put in place by hand, transposed and with gaps in memory."""
    model = t.put(mlp())
    optimizer = t.optimizer(model)
    look = t.attach(model, optimizer)
    params = list(model.parameters())
    for x, y in t.batches():
        for p, grad in zip(params, torch.autograd.grad(t.loss(model(x), y), params), strict=True):
            p.grad = strided(grad)
        look()
        optimizer.step()
    return model, optimizer


@loop
def large(t):
    """Gradients whose squares overflow float16."""
    model = t.put(mlp())
    optimizer = t.optimizer(model, lr=1e-5)  # so that the weights stay finite
    look = t.attach(model, optimizer)
    for x, y in t.batches():
        optimizer.zero_grad()
        (t.loss(model(x), y) * 4096).backward()
        look()
        optimizer.step()
    return model, optimizer


def poisoned(t, value):
    model = t.put(mlp())
    optimizer = t.optimizer(model)
    look = t.attach(model, optimizer)
    for x, y in t.batches():
        optimizer.zero_grad()
        t.loss(model(x), y).backward()
        if t.step == STEPS - 1:
            model[0].weight.grad[1, 2] = value
        look()
        optimizer.step()
    return model, optimizer


@loop
def infinite(t):
    """An inf in the last gradient."""
    return poisoned(t, torch.inf)


@loop
def not_a_number(t):
    """A NaN in the last gradient."""
    return poisoned(t, torch.nan)

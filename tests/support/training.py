"""Small trainings for tests of the train side, and the policies that every law is checked on."""

import torch
from torch import nn

import gradwatch
from gradwatch import (
    AGC,
    AdaGC,
    AutoClip,
    ClipByAverageNorm,
    ClipByGlobalNorm,
    ClipByHistory,
    ClipByNorm,
    ClipByValue,
    ClipWith,
    SkipNonfinite,
    SkipNorm,
    SkipSpike,
    ZClip,
    after,
    chain,
    only,
    ramp,
)

NORM_POLICIES = [
    ClipByGlobalNorm(0.1),
    ClipByGlobalNorm(0.1, norm_type=1.0),
    ClipByGlobalNorm(0.1, norm_type=float("inf")),
    ClipByNorm(0.05),
    ClipByAverageNorm(1e-4),
    AutoClip(10, window=20),
    ZClip(warmup=5, max_norm=0.2),
    AdaGC(warmup=5),
    only("0.*", ClipByGlobalNorm(0.05)),
    chain(ClipByNorm(0.05), ClipByGlobalNorm(0.06)),
    chain(ClipByNorm(ramp(0.1, 0.05, 8)), after(4, ClipByGlobalNorm(ramp(0.2, 0.05, 10)))),
]
SKIP_POLICIES = [
    SkipNonfinite(),
    SkipNorm(0.5),
    SkipSpike(3.0, window=8),
    chain(SkipNonfinite(at_most=8), SkipNorm(0.5, at_most=8), SkipSpike(3.0, window=8, at_most=8)),
    chain(SkipNonfinite(), ClipByGlobalNorm(0.1)),
    after(4, SkipNorm(ramp(0.8, 0.4, 10), at_most=8)),
]
ELEMENT_POLICIES = [
    ClipByValue(0.01),
    ClipByValue(-0.02, 0.01),
    ClipByNorm(0.01, axes=(1,)),
    AGC(0.01),
    ClipByHistory(),
    chain(ClipByGlobalNorm(0.1), ClipByValue(0.01), ClipByNorm(0.05)),
    after(4, only("0.*", chain(ClipByValue(0.01), AGC(0.01)))),
]
ALL_POLICIES = [*NORM_POLICIES, *SKIP_POLICIES, *ELEMENT_POLICIES]


def halve(grad):
    return grad * 0.5


CALLABLE = ClipWith(halve)


def mlp(dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def batches(steps, dtype=torch.float64, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        yield (
            torch.randn(16, 6, generator=generator, dtype=torch.float64).to(dtype),
            torch.randint(3, (16,), generator=generator),
        )


def train(model, optimizer, steps=30, before_step=None, dtype=torch.float64, after_step=None, seed=1):
    """A plain loop; `before_step(model)` and `after_step(model, loss)` stand where a user's own lines would."""
    device = next(model.parameters()).device
    for x, y in batches(steps, dtype, seed):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.to(device)).float(), y.to(device))
        loss.backward()
        if before_step:
            before_step(model)
        optimizer.step()
        if after_step:
            after_step(model, loss)
    return model


def watch(model, optimizer, tmp_path, **options):
    """`gradwatch.watch` with files only, in `tmp_path`, saying nothing, and by its steps alone: a slow machine's clock
    would read what is on the device, and what was found, at other steps.
    """
    own = {"log": None, "dir": tmp_path, "verbose": False, "flush_every": 600.0}
    return gradwatch.watch(model, optimizer, **{**own, **options})


def state_tensors(optimizer):
    """Every tensor an optimizer keeps, by parameter and name."""
    return {
        (i, name): value.clone()
        for i, state in enumerate(optimizer.state.values())
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
    }

"""`only("optimizer:Muon*", policy)`: a policy on the layers of some optimizers, and on no others."""

import pytest
import torch
from torch import nn
from training import watch

import gradwatch
from gradwatch import ClipByGlobalNorm, PolicyError, chain, only, open_history


def two_kinds():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    matrices = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    return model, [torch.optim.SGD(matrices, lr=0.1, momentum=0.9), torch.optim.AdamW(rest, lr=0.01)]


def clipped(folder, policy, steps=3):
    model, optimizers = two_kinds()
    with watch(model, optimizers, folder, clip=policy) as handle:
        for _ in range(steps):
            model.zero_grad()
            (100 * model(torch.ones(5, 4, dtype=torch.float64)).square().mean()).backward()
            for optimizer in optimizers:
                optimizer.step()
    return open_history(handle.dir)


@pytest.mark.parametrize("pattern", ["optimizer:Adam*", "optimizer:AdamW", "optimizer:*W"])
def test_a_policy_acts_on_the_layers_of_the_optimizers_that_fit(pattern, tmp_path):
    history = clipped(tmp_path, only(pattern, ClipByGlobalNorm(0.01)))
    biases = [i for i, name in enumerate(history.layers) if name.endswith("bias")]
    matrices = [i for i in range(len(history.layers)) if i not in biases]
    assert (history.layer("clip_coef")[:, matrices] == 1).all()
    joint = (history.layer("clipped_norm")[:, biases] ** 2).sum(axis=1) ** 0.5
    assert joint == pytest.approx([0.01] * 3, rel=1e-3)


def test_each_kind_may_have_a_norm_of_its_own(tmp_path):
    both = chain(only("optimizer:SGD", ClipByGlobalNorm(0.5)), only("optimizer:AdamW", ClipByGlobalNorm(0.01)))
    history = clipped(tmp_path, both)
    of = {name: i for i, name in enumerate(history.layers)}
    norms = history.layer("clipped_norm")
    for kind, limit in (("weight", 0.5), ("bias", 0.01)):
        at = [i for name, i in of.items() if name.endswith(kind)]
        assert (norms[:, at] ** 2).sum(axis=1) ** 0.5 == pytest.approx([limit] * 3, rel=1e-3)


def test_an_optimizer_that_is_not_there_is_named_before_training_starts(tmp_path):
    with pytest.raises(
        PolicyError, match=r"only\('optimizer:Muon\*', \.\.\.\): no layer fits; the optimizers are SGD, AdamW"
    ):
        clipped(tmp_path, only("optimizer:Muon*", ClipByGlobalNorm(1.0)))
    model, optimizers = two_kinds()
    constraint = only("optimizer:SGD", gradwatch.MaxNorm(1.0))
    with pytest.raises(PolicyError, match="a constraint knows no optimizers"):
        watch(model, optimizers, tmp_path, renorm=constraint)

"""`adam_rms`: the root mean square of g / sqrt(v) after a step is that of float64 from the optimizer's state."""

import numpy as np
import pytest
import torch
from torch import nn
from training import watch

from gradwatch import open_history
from gradwatch.measure import second_moment


def train(folder, kind, steps=5, every=1, width=8, dtype=torch.float32, unused=True, **options):
    """Train; what was recorded, and the oracle's numbers of each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3)).to(dtype)
    if unused:
        model.unused = nn.Linear(2, 2).to(dtype)
    optimizer = kind(model.parameters(), **options)
    wanted = []
    with watch(model, optimizer, folder, slots=True, every=every, clip="ClipByGlobalNorm(0.1)") as handle:
        for step in range(steps):
            optimizer.zero_grad()
            scale = 300.0 if step == 3 else 1.0
            (scale * model[:3](torch.randn(4, 6, dtype=dtype)).square().mean()).backward()
            optimizer.step()
            wanted.append([rms(p, optimizer.state.get(p, {}), optimizer.param_groups[0]) for p in model.parameters()])
    return open_history(handle.dir), np.array(wanted)


def rms(p, state, group):
    if p.grad is None:
        return np.nan
    g, v = p.grad.double().numpy(), state["exp_avg_sq"].double().numpy()
    bias = 1 - group["betas"][1] ** float(state["step"])
    return np.sqrt((g**2 / np.maximum(v, group["eps"] ** 2)).mean() * bias)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(torch.optim.Adam, {"lr": 0.01}), (torch.optim.AdamW, {"lr": 0.01, "betas": (0.9, 0.95), "fused": True}),
     (torch.optim.AdamW, {"lr": 0.01, "eps": 0.05}), (torch.optim.NAdam, {"lr": 0.01}),
     (torch.optim.Adam, {"lr": 0.01, "dtype": torch.bfloat16}),
     (torch.optim.Adam, {"lr": 0.01, "dtype": torch.double})],
)  # fmt: skip
@pytest.mark.parametrize("unused", [True, False])
def test_every_number_is_the_oracles(kind, options, unused, tmp_path, monkeypatch):
    other = "_ratio_norms_at_once" if unused else "_norms_by_kind"  # where all layers are alike they are one
    monkeypatch.setattr(second_moment, other, lambda *_: pytest.fail(other))
    history, wanted = train(tmp_path, kind, unused=unused, **options)
    np.testing.assert_allclose(history.layer("adam_rms"), wanted, rtol=1e-5)
    assert np.isnan(history.layer("adam_rms")[:, -2:]).all() == unused


def test_it_is_measured_on_every_step_whatever_the_pace_and_of_large_layers_estimated(tmp_path):
    history, wanted = train(tmp_path / "small", torch.optim.Adam, every=4)
    np.testing.assert_allclose(history.layer("adam_rms"), wanted, rtol=1e-5)
    assert np.flatnonzero(np.isfinite(history.layer("weight_norm")[:, 0])).tolist() == [0, 4]
    for unused in (True, False):  # 18,000 and 9,000 elements
        history, wanted = train(tmp_path / f"large {unused}", torch.optim.Adam, every=4, width=3000, unused=unused)
        np.testing.assert_allclose(history.layer("adam_rms"), wanted, rtol=0.05)


def test_layers_that_have_a_gradient_now_and_then(tmp_path):
    """Of gradients in another order of memory than v, of layers with other counts of steps than the others."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Conv2d(2, 3, 3), nn.Linear(4, 2), nn.Linear(4, 2)])
    optimizer, wanted = torch.optim.Adam(model.parameters(), lr=0.01), []
    with watch(model, optimizer, tmp_path, slots=True, every=100) as handle:
        for step in range(8):
            optimizer.zero_grad()
            for p in (*model[0].parameters(), *model[1 + step % 2].parameters()):
                p.grad = torch.randn_like(p)
            model[0].weight.grad = model[0].weight.grad.to(memory_format=torch.channels_last)
            optimizer.step()
            wanted.append([rms(p, optimizer.state.get(p, {}), optimizer.param_groups[0]) for p in model.parameters()])
    np.testing.assert_allclose(open_history(handle.dir).layer("adam_rms"), wanted, rtol=1e-5)


def test_an_optimizer_without_it_has_none(tmp_path):
    for kind in (torch.optim.SGD, torch.optim.Lion) if hasattr(torch.optim, "Lion") else (torch.optim.SGD,):
        model = nn.Linear(3, 1)
        optimizer = kind(model.parameters(), lr=0.01)
        with watch(model, optimizer, tmp_path, slots=True, every=1) as handle:
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        assert "adam_rms" not in open_history(handle.dir).per_layer

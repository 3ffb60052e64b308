"""What a training sets for its own tensors, the default dtype and device, changes nothing of what is recorded."""

from functools import cache

import numpy as np
import pytest
import torch
from devices import DEVICES
from torch import nn
from training import watch

from gradwatch import clip_grads_, global_norm, open_history

DEFAULTS = {
    "float64": lambda: torch.set_default_dtype(torch.float64),
    "bfloat16": lambda: torch.set_default_dtype(torch.bfloat16),
    "device": lambda: torch.set_default_device("cuda" if torch.cuda.is_available() else "meta"),
}
POLICIES = [
    None, "ClipByGlobalNorm(1.0)", "ClipByNorm(0.1)", "ClipByValue(0.01)", "AGC(0.01)", "AutoClip(window=8)", "AdaGC()",
    "SkipSpike(window=8)", "chain(SkipNonfinite(), ClipByGlobalNorm(1.0))",
]  # fmt: skip
INSIDE = {"activations": True, "activations_every": 3, "slots": True, "noise_scale": True, "singular_values": True,
          "histogram_every": 4, "rows": ("0.*",), "split": {"*linear1.weight": (0, 4)},
          "renorm": "MaxNorm(2.0)"}  # fmt: skip


@pytest.fixture(autouse=True)
def _as_they_were():
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)


def backward(model, tokens, targets):
    """Half of a loss over time, of which the last two targets are left out."""
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    (loss / 2).backward()
    return loss


def recorded(folder, policy, device, default=None, **inside):
    """All columns of a training; the default is set when its own tensors are there, and before it is watched."""
    torch.manual_seed(0)
    attention = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(8, 16), attention, nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=True)
    tokens, targets = (torch.randint(8, (6, 12, 7)).to(device) for _ in range(2))
    targets[:, :, -2:] = -100
    backward(model, tokens[0], targets[0])
    optimizer.step()  # makes its state
    if default is not None:
        DEFAULTS[default]()
    with watch(model, optimizer, folder, clip=policy, every=2, flush_every=0.01, **inside) as handle:
        for n in range(12):
            optimizer.zero_grad()
            for part in (2 * n % 6, (2 * n + 1) % 6):
                loss = backward(model, tokens[part], targets[part])
            optimizer.step()
            handle.log(loss=loss.detach())
    history = open_history(handle.dir)
    assert len(history) == 12
    tables = {name: getattr(history, name) for name in history.sampled}
    found = {**history.per_step, **history.per_layer}
    found |= {f"{name}, {key}": values for name, table in tables.items() for key, values in table.values.items()}
    return {
        name: values for name, values in found.items() if name != "time" and np.asarray(values).dtype.kind in "fiub"
    }


def assert_equal(found, wanted):
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """`plain(policy, device)`: what is recorded where nothing is set, of which there is one."""
    return cache(lambda *asked: recorded(tmp_path_factory.mktemp("plain"), *asked))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("default", DEFAULTS)
def test_what_is_recorded_is_the_same(default, policy, device, plain, tmp_path):
    wanted = plain(policy, device)
    found = recorded(tmp_path / "other", policy, device, default)
    assert wanted.keys() >= {"grad_norm", "weight_norm", "update_ratio", "loss"}
    assert_equal(found, wanted)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("default", DEFAULTS)
def test_what_is_seen_inside_is_the_same(default, device, tmp_path):
    wanted = recorded(tmp_path / "plain", "ClipByGlobalNorm(1.0)", device, **INSIDE)
    found = recorded(tmp_path / "other", "ClipByGlobalNorm(1.0)", device, default, **INSIDE)
    assert_equal(found, wanted)


@pytest.mark.parametrize("default", DEFAULTS)
def test_the_norm_of_nothing_is_where_torch_has_it(default):
    DEFAULTS[default]()
    wanted = torch.nn.utils.clip_grad_norm_([], 1.0)
    assert {n.device for n in (clip_grads_([], "ClipByGlobalNorm(1.0)"), global_norm([]))} == {wanted.device}

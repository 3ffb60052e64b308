"""What is looked at of gradients, weights and the optimizer's state is that of float64 in every kind of loop.

Of activations, attention and experts this is tested in the files of their names, over ranks in `test_*_ranks.py`.
"""

import numpy as np
import pytest
import torch
from test_gradient_histogram import oracle as shares
from torch import nn
from torch.utils.checkpoint import checkpoint
from training import watch

from gradwatch import open_history
from gradwatch.measure.gradient_histogram import QUANTITIES

LOOPS = {
    "plain": {},
    "accumulation": {"parts": 3},
    "a loss scale": {"scale": 2.0**10},
    "a loss scale in a fused kernel": {"scale": 2.0**10, "fused": True},
    "autocast": {"autocast": True},
    "checkpointed, reentrant": {"again": True},
    "checkpointed": {"again": False},
    "compiled": {"compiled": True},
    "all of it": {"parts": 2, "scale": 1000.0, "autocast": True, "again": False},
}
ASKED = {
    "every": 1,
    "slots": True,
    "histogram_every": 1,
    "singular_values": True,
    "rows": ("words.*",),
    "split": {"inner.weight": (0, 2)},
}


class Net(nn.Module):
    def __init__(self, again):
        super().__init__()
        self.words, self.inner, self.out, self.again = nn.Embedding(11, 6), nn.Linear(6, 8), nn.Linear(8, 3), again
        with torch.no_grad():
            for p in self.parameters():
                if p.dim() > 1:  # singular values that a power iteration tells apart
                    u, _, v = torch.linalg.svd(p, full_matrices=False)
                    p.copy_(u * 4.0 ** -torch.arange(u.shape[1]) @ v)

    def part(self, x):
        return self.inner(x).tanh()

    def forward(self, x):
        h = self.words(x)
        return self.out(self.part(h) if self.again is None else checkpoint(self.part, h, use_reentrant=self.again))


def train(folder, asked=ASKED, parts=1, scale=None, fused=False, autocast=False, again=None, compiled=False):
    """Train; what was recorded, and the oracle's numbers of each step; the weights."""
    torch.manual_seed(0)
    model = Net(again)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    wanted = []
    with watch(model, optimizer, folder, noise_scale=bool(asked) and parts > 1, **asked) as handle:
        run = torch.compile(model, backend="eager") if compiled else model
        for _ in range(4):
            first = None
            for _ in range(parts):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = nn.functional.cross_entropy(run(torch.randint(11, (6,))).float(), torch.randint(3, (6,)))
                scaler.scale(loss / parts).backward()
                first = [p.grad.double() / (scale or 1.0) for p in model.parameters()] if first is None else first
            g = [p.grad.double() / (scale or 1.0) for p in model.parameters()]
            before = [p.detach().double() for p in model.parameters()]
            scaler.step(optimizer)
            scaler.update()
            wanted.append(oracle(model, optimizer, before, g, first, parts))
            optimizer.zero_grad()
    return open_history(handle.dir), wanted, [p.detach().clone() for p in model.parameters()]


def layers(model, tensors):
    """The slices of `inner.weight` are layers; `{name: tensor}`."""
    named = dict(zip((name for name, _ in model.named_parameters()), tensors, strict=True))
    halves = dict(zip(("inner.weight[0]", "inner.weight[1]"), named["inner.weight"].chunk(2), strict=True))
    return {
        n: t for name, each in named.items() for n, t in (halves if name == "inner.weight" else {name: each}).items()
    }


def oracle(model, optimizer, before, g, first, parts):
    """By quantity: `[L]` of a step, and scalars."""
    params = [*model.parameters()]
    slots = {s: layers(model, [optimizer.state[p][s].double() for p in params]) for s in ("exp_avg", "exp_avg_sq")}
    (beta2,) = {group["betas"][1] for group in optimizer.param_groups}
    steps = float(optimizer.state[params[0]]["step"])
    found = {f"slot_norm/{s}": [t.norm() for t in each.values()] for s, each in slots.items()}
    found |= {q: [] for q in ("grad_norm", "weight_norm", "update_ratio", "sigma_max", "stable_rank", "adam_rms")}
    weights, gradients = layers(model, [p.detach().double() for p in params]), layers(model, g)
    for name, w in weights.items():
        was, grad, sigma = layers(model, before)[name], gradients[name], torch.linalg.matrix_norm
        found["grad_norm"].append(grad.norm())
        found["weight_norm"].append(w.norm())
        found["update_ratio"].append((w - was).norm() / was.norm())
        top = sigma(w, 2) if w.dim() > 1 else torch.nan
        found["sigma_max"].append(top)
        found["stable_rank"].append((w.norm() / top) ** 2)
        estimate = (slots["exp_avg_sq"][name] / (1 - beta2**steps)).clamp(min=1e-16)
        found["adam_rms"].append((grad.square() / estimate).mean().sqrt())
    rows = g[0].norm(dim=1)
    scalars = {"micro_grad_norm": float(torch.cat([x.flatten() for x in first]).norm()) * parts,
               "grad_norm": float(torch.cat([x.flatten() for x in g]).norm()),
               "update_norm": float(torch.cat([(p.detach().double() - b).flatten()
                                               for p, b in zip(params, before, strict=True)]).norm())}  # fmt: skip
    found = {name: np.array([float(x) for x in each]) for name, each in found.items()}
    row = {"row_share": float(rows.max() / rows.norm()), "row_index": float(rows.argmax())}
    return found, scalars, row, np.stack([shares(grad) for grad in gradients.values()])


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_every_number_is_the_oracles(loop, tmp_path):
    history, wanted, weights = train(tmp_path / "on", **loop)
    assert len(history) == len(wanted) == 4
    for i, (found, scalars, row, spread) in enumerate(wanted):
        for name, each in found.items():
            np.testing.assert_allclose(history.layer(name)[i], each, rtol=2e-4, err_msg=name)
        for name, value in row.items():
            np.testing.assert_allclose(history.layer(name)[i, 0], value, rtol=1e-5, err_msg=name)
            assert np.isnan(history.layer(name)[i, 1:]).all()
        table = np.stack([history.histograms.values[q][i] for q in QUANTITIES], axis=1)
        np.testing.assert_allclose(table, spread, rtol=1e-5)
        assert history.total("grad_norm")[i] == pytest.approx(scalars["grad_norm"], rel=1e-5)
        assert history.total("update_norm")[i] == pytest.approx(scalars["update_norm"], rel=1e-2)
        if loop.get("parts", 1) > 1:
            assert history.total("micro_grad_norm")[i] == pytest.approx(scalars["micro_grad_norm"], rel=1e-5)
            assert history.total("micro_batches")[i] == loop["parts"]
    assert all(torch.equal(a, b) for a, b in zip(weights, train(tmp_path / "off", {}, **loop)[2], strict=True))

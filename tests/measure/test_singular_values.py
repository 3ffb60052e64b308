"""`singular_values=`: the largest singular value is that of LAPACK in float64, where power iteration has come to it."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from training import watch

from gradwatch import WatchError, open_history
from gradwatch.analysis.rules import diagnose
from gradwatch.measure import weight_batch
from gradwatch.measure.distributed import add_up
from gradwatch.measure.layout import Layout
from gradwatch.measure.singular_values import AGAIN, FIRST, PowerIteration, SingularValues
from gradwatch.measure.slices import fits


def spread(rows, columns, gap=0.8):
    """A matrix of known singular values, which fall by `gap` from one to the next."""
    generator = torch.Generator().manual_seed(0)
    few = min(rows, columns)
    q, p = (torch.linalg.qr(torch.randn(n, few, generator=generator, dtype=torch.float64))[0] for n in (rows, columns))
    return 3.0 * q @ torch.diag(gap ** torch.arange(few, dtype=torch.float64)) @ p.T


def oracle(weight):
    values = np.linalg.svd(weight.detach().double().reshape(len(weight), -1).numpy(), compute_uv=False)
    return values[0], (values**2).sum() / values[0] ** 2


def train(folder, steps=6, dtype=torch.float32, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(4, 6, 3), nn.Flatten(), nn.Linear(24, 10), nn.Tanh(), nn.Linear(10, 30)).to(dtype)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.copy_(spread(len(p), p[0].numel()).view(p.shape))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    wanted = []
    with watch(model, optimizer, folder, every=2, **options) as handle:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(5, 4, 6, dtype=dtype)).square().mean().backward()
            optimizer.step()
            wanted.append([oracle(p) if p.ndim > 1 else (np.nan, np.nan) for p in model.parameters()])
    return open_history(handle.dir), np.array(wanted), [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-5), (torch.float64, 1e-5), (torch.bfloat16, 1e-4)])
def test_every_number_is_the_oracles(dtype, rtol, tmp_path):
    history, wanted, _ = train(tmp_path, dtype=dtype, singular_values=True)
    assert history.layer_step[~np.isnan(history.layer("sigma_max")).all(axis=1)].tolist() == [0, 2, 4]
    np.testing.assert_allclose(history.layer("sigma_max")[::2], wanted[::2, :, 0], rtol=rtol)
    np.testing.assert_allclose(history.layer("stable_rank")[::2], wanted[::2, :, 1], rtol=2 * rtol)


def test_training_is_bit_identical_and_without_it_there_is_none(tmp_path):
    with_, without = (train(tmp_path / str(on), singular_values=on) for on in (True, False))
    assert all(torch.equal(a, b) for a, b in zip(with_[2], without[2], strict=True))
    assert not {"sigma_max", "stable_rank"} & set(without[0].per_layer)


def test_patterns_choose_the_weights(tmp_path):
    history, wanted, _ = train(tmp_path, singular_values=["4.*"])
    known = ~np.isnan(history.layer("sigma_max")).all(axis=0)
    assert [name for name, is_known in zip(history.layers, known, strict=True) if is_known] == ["4.weight"]
    np.testing.assert_allclose(history.layer("sigma_max")[0, 4], wanted[0, 4, 0], rtol=1e-5)


def test_each_measurement_goes_on_where_the_last_one_was():
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(200, 100, dtype=torch.float64))
    values = SingularValues(Layout({"w": weight}), ["*"])
    found = [float(add_up(values.measure(), None)) for _ in range(30)]
    v = torch.arange(1, 101, dtype=torch.float64).square().sin()
    wanted = []
    for times in (FIRST, *[AGAIN] * 29):
        for _ in range(times):
            v = weight.detach().T @ (weight.detach() @ (v / v.norm()))
        wanted.append(float(v.norm().sqrt()))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    true = oracle(weight)[0]
    assert found == sorted(found)
    assert 0.98 * true < found[0] <= found[-1] < true * (1 + 1e-6)
    assert true - found[-1] < 0.3 * (true - found[0])


def test_a_weight_that_was_zero_or_not_finite_is_measured_again_when_it_is_not():
    weight = nn.Parameter(torch.zeros(5, 4))
    values = SingularValues(Layout({"w": weight}), ["*"])
    assert float(add_up(values.measure(), None)) == 0
    with torch.no_grad():
        weight.fill_(torch.nan)
    assert torch.isnan(add_up(values.measure(), None)).all()
    with torch.no_grad():
        weight.copy_(spread(5, 4))
    for _ in range(10):
        found = add_up(values.measure(), None)
    assert float(found) == pytest.approx(3, rel=1e-4)


class Products(TorchDispatchMode):
    """Counts the products of matrices."""

    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += func.overloadpacket in (torch.ops.aten.mv, torch.ops.aten.bmm)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("how", "patterns"), [(0, ["*"]), (1, ["*"]), (2, ["*"]), ((1, 2), ["*"]), (0, ["w[[]1]", "w[[]2]", "w[[]5]"])]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slices_of_a_tensor_are_multiplied_together_and_each_has_its_own_number(how, patterns, dtype):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(6, 6, 6).to(dtype))
    dim = how if isinstance(how, int) else how[0]
    slices = weight.unbind(dim) if dim == how else weight.chunk(how[1], dim)
    layout = Layout({"w": weight}, split={"w": how})
    values = SingularValues(layout, patterns)
    add_up(values.measure(), None)
    with Products() as products:
        for _ in range(20):
            found = add_up(values.measure(), None)
    asked = [i for i, name in enumerate(layout.names) if any(fits(name, pattern) for pattern in patterns)]
    wanted = [oracle(slices[i].float())[0] for i in asked]
    np.testing.assert_allclose(found[asked], wanted, rtol=1e-3)
    assert found.isnan().sum() == len(slices) - len(asked)
    together = dtype == torch.float32 and dim == how and patterns == ["*"]
    assert products.calls == 20 * 2 * AGAIN * (1 if together else len(asked))


@pytest.mark.parametrize("asked", ["*.weight", 3, [1], ["bias"], ["nothing"]])
def test_what_makes_no_sense_is_refused(asked, tmp_path):
    model = nn.Linear(2, 1)
    with pytest.raises(WatchError, match="singular_values="):
        watch(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path, singular_values=asked)


def test_the_plan_says_what_is_sampled(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, singular_values=True, histogram_every=7, noise_scale=True) as handle:
        text = handle.plan()
    assert "weight norms and update ratios, and the largest singular value of 1 matrices, every 10 steps" in text
    assert "a histogram of each layer's gradient every 7 steps" in text
    assert "the first micro-batch's gradient norm every 10 steps" in text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_matrix_above_the_bound_is_scaled_back_and_no_other_is_touched(dtype, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(4, 6, 3), nn.Flatten(), nn.Linear(24, 10), nn.Linear(10, 3)).to(dtype)
    with torch.no_grad():
        for p, largest in ((model[0].weight, 2.0), (model[2].weight, 0.4), (model[3].weight, 0.0)):
            p.copy_(largest / 3 * spread(len(p), p[0].numel()).view(p.shape))
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, tmp_path, every=1, renorm="MaxSpectral(0.5)") as handle:
        for _ in range(2):
            model(torch.randn(5, 4, 6, dtype=dtype)).square().mean().backward()
            optimizer.step()
    assert oracle(model[0].weight)[0] == pytest.approx(0.5, rel=1e-4 if dtype == torch.float32 else 4e-3)
    near = before[0].double() * (0.5 / oracle(before[0])[0])
    torch.testing.assert_close(model[0].weight.double(), near, rtol=1e-4 if dtype == torch.float32 else 1e-2, atol=1e-9)
    assert all(torch.equal(a, b) for a, b in zip([*model.parameters()][1:], before[1:], strict=True))
    rates = open_history(handle.dir).layer("renorm_rate")
    assert rates[0, [0, 2, 4]].tolist() == [1, 0, 0]
    assert np.isnan(rates[:, [1, 3, 5]]).all()


def test_weights_that_grow_are_held_at_the_bound_from_step_to_step(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(20, 15, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    found = []
    with watch(model, optimizer, tmp_path, every=1, renorm="MaxSpectral(1.0)") as handle:
        for _ in range(30):
            model.weight.grad = -torch.randn(15, 20)
            optimizer.step()
            found.append(oracle(model.weight)[0])
    assert max(found) < 1.02
    assert found[-1] > 0.98
    assert [f for f in diagnose(open_history(handle.dir)) if f.rule == "renorm-binds"] == []


def test_a_matrix_that_holds_a_nan_is_left_as_it_is(tmp_path):
    model = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[math.nan, 5.0, 1.0], [2.0, 3.0, 4.0]]))
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, tmp_path, renorm="MaxSpectral(1.0)"):
        model.weight.grad = torch.zeros(2, 3)
        optimizer.step()
    np.testing.assert_array_equal(model.weight.detach(), before)


def test_a_bound_works_out_once_which_matrices_it_holds(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(weight_batch, "PowerIteration", lambda *args: made.append(args) or PowerIteration(*args))
    model = nn.Sequential(nn.Linear(20, 15), nn.Linear(15, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    with watch(model, optimizer, tmp_path, renorm="chain(MaxSpectral(1.0), only('0.*', MaxSpectral(0.5)))"):
        for _ in range(5):
            model(torch.randn(4, 20)).sum().backward()
            optimizer.step()
    assert len(made) == 2

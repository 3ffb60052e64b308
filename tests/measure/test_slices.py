"""`split=`: slices of a parameter are layers, and all that happens to them is what happens to parameters of their own.

The oracle is a twin of the same model whose slices are parameters: same numbers, same weights, whatever the policy.
"""

import numpy as np
import pytest
import torch
from torch import nn
from training import CALLABLE, ELEMENT_POLICIES, NORM_POLICIES, SKIP_POLICIES, watch

from gradwatch import ClipByNorm, MaxNorm, PolicyError, WatchError, chain, only, open_history
from gradwatch.measure.layout import Layout
from gradwatch.measure.slices import fits
from gradwatch.policies import parse

EXPERTS = 4


class Whole(nn.Module):
    """A first layer, and experts in one tensor, along `dim`; with `bias` one of `[E, M]`."""

    def __init__(self, dim, dtype):
        super().__init__()
        parts = parameters(dtype)
        self.first = nn.Parameter(parts["first"])
        self.w = nn.Parameter(torch.stack(parts["w"], dim))
        self.b = nn.Parameter(torch.stack(parts["b"]))
        self.dim = dim

    def forward(self, x):
        return run(x, self.first, self.w.unbind(self.dim), self.b.unbind())


class Twin(nn.Module):
    """The same with a parameter for each slice."""

    def __init__(self, dtype):
        super().__init__()
        parts = parameters(dtype)
        self.first = nn.Parameter(parts["first"])
        self.w, self.b = (nn.ParameterList(map(nn.Parameter, parts[name])) for name in "wb")

    def forward(self, x):
        return run(x, self.first, self.w, self.b)


def parameters(dtype):
    generator = torch.Generator().manual_seed(0)

    def made(*shape):
        return torch.randn(*shape, generator=generator).to(dtype) / 2

    return {"first": made(5, 6), "w": [made(5, 3) for _ in range(EXPERTS)], "b": [made(3) for _ in range(EXPERTS)]}


def run(x, first, w, b):
    hidden = torch.tanh(x @ first.T)
    return sum((i + 1) * (hidden @ weight + bias) for i, (weight, bias) in enumerate(zip(w, b, strict=True)))


def train(model, optimizer, steps=8, before_step=lambda model: None, scaler=None):
    generator, dtype = torch.Generator().manual_seed(1), model.first.dtype
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(2):  # it accumulates
            loss = model(torch.randn(7, 6, generator=generator).to(dtype)).float().square().mean()
            (loss if scaler is None else scaler.scale(loss)).backward()
        before_step(model)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()


def slices(model, dim):
    """Its weights by the twin's names."""
    named = {"first": model.first}
    named.update({f"w.{i}": w for i, w in enumerate(model.w.unbind(dim))})
    named.update({f"b.{i}": b for i, b in enumerate(model.b.unbind())})
    return named


def both(folder, dim=0, dtype=torch.float64, make=lambda p: torch.optim.Adam(p, lr=0.01), scaler=False, **options):
    """The histories and the weights of the model whose tensors are split and of its twin."""
    found = []
    for name, model in (("split", Whole(dim, dtype)), ("twin", Twin(dtype))):
        optimizer = make(model.parameters())
        own = {"split": {"w": dim, "b": 0}} if name == "split" else {}
        with watch(model, optimizer, folder / name, every=2, **own, **options) as handle:
            train(model, optimizer, scaler=torch.amp.GradScaler("cpu", init_scale=8.0) if scaler else None)
        weights = slices(model, dim) if name == "split" else dict(model.named_parameters())
        found += [open_history(handle.dir), weights]
    return found


def assert_same(history, weights, twin, others, rtol=1e-6):
    assert [name.replace("[", ".").replace("]", "") for name in history.layers] == list(twin.layers) == [*others]
    for name in twin.per_layer:
        np.testing.assert_allclose(history.layer(name), twin.layer(name), rtol=rtol, err_msg=name)
    assert set(history.per_layer) == set(twin.per_layer)
    for name in ("grad_norm", "clipped_norm", "clip_coef", "skipped"):
        np.testing.assert_allclose(history.total(name), twin.total(name), rtol=rtol, err_msg=name)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, others[name], rtol=rtol, atol=1e-9)
    assert [layer.shape for layer in history.run.layers] == [layer.shape for layer in twin.run.layers]


# Those of the common list, of which some look at a layer that is not here
POLICIES = [parse(repr(p).replace("'0.*'", "'w*'")) for p in (*NORM_POLICIES, *SKIP_POLICIES, *ELEMENT_POLICIES)]


@pytest.mark.parametrize("policy", [None, CALLABLE, *POLICIES], ids=repr)
@pytest.mark.parametrize("dim", [0, 1])
def test_a_slice_is_what_a_parameter_of_its_own_is(policy, dim, tmp_path):
    settings = {"slots": True, "histogram_every": 2, "singular_values": True, "noise_scale": True}
    found = both(tmp_path, dim, clip=policy, renorm=MaxNorm(1.0), **settings)
    assert_same(*found)
    first, second = found[0].histograms, found[2].histograms
    for name, values in second.values.items():
        np.testing.assert_allclose(first.values[name], values, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("scaler", [False, True])
def test_under_a_loss_scale_and_with_fused_optimizers(dim, fused, scaler, tmp_path):
    def make(params):
        return torch.optim.SGD(params, lr=0.01, momentum=0.9, fused=fused)

    found = both(tmp_path, dim, torch.float32, make, scaler, clip=chain(ClipByNorm(0.2), only("w*", ClipByNorm(0.1))))
    assert_same(*found, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_root_of_the_slices_squares_is_the_norm_in_float64_and_training_stays_bit_identical(dtype, tmp_path):
    wanted, weights = [], []
    for split in (None, {"w": 1, "b": -2}):
        model = Whole(1, dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with watch(model, optimizer, tmp_path / str(split), **({"split": split} if split else {})) as handle:
            train(model, optimizer, before_step=lambda m: wanted.append([p.grad.double() for p in m.parameters()]))
        weights.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    history = open_history(handle.dir)
    assert history.layers == ("first", *(f"w[{i}]" for i in range(4)), *(f"b[{i}]" for i in range(4)))
    for norms, (_, w, b) in zip(history.layer("grad_norm"), wanted[len(wanted) // 2 :], strict=True):
        np.testing.assert_allclose(norms[1:5], w.norm(dim=(0, 2)), rtol=1e-6)
        np.testing.assert_allclose(norms[5:], b.norm(dim=1), rtol=1e-6)
        np.testing.assert_allclose(np.sqrt((norms[1:5].astype(np.float64) ** 2).sum()), w.norm(), rtol=1e-6)


def test_equal_pieces_of_a_dimension_are_heads(tmp_path):
    model = nn.Linear(6, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, split={"weight": (0, 4)}) as handle:
        model(torch.randn(3, 6)).square().mean().backward()
        optimizer.step()
    history = open_history(handle.dir)
    assert [layer.shape for layer in history.run.layers] == [*[(2, 6)] * 4, (8,)]
    wanted = model.weight.grad.double().unflatten(0, (4, 2)).norm(dim=(1, 2))
    np.testing.assert_allclose(history.layer("grad_norm")[0, :4], wanted, rtol=1e-6)


def test_optimizers_that_step_inside_backward(tmp_path):
    found = []
    for name, model in (("split", Whole(0, torch.float64)), ("twin", Twin(torch.float64))):
        optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}

        def step(p, optimizers=optimizers):
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in optimizers:
            p.register_post_accumulate_grad_hook(step)
        own = {"split": {"w": 0, "b": 0}} if name == "split" else {}
        with watch(model, optimizers.values(), tmp_path / name, clip=ClipByNorm(0.1), **own) as handle:
            for seed in range(4):
                torch.manual_seed(seed)
                model(torch.randn(7, 6, dtype=torch.float64)).square().mean().backward()
        found += [open_history(handle.dir), slices(model, 0) if name == "split" else dict(model.named_parameters())]
    assert_same(*found)


def test_a_run_is_resumed_with_its_slices(tmp_path):
    def begun():
        model = Whole(0, torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        return model, optimizer, watch(model, optimizer, tmp_path, clip="AdaGC(warmup=2)", split={"w": 0})

    model, optimizer, handle = begun()
    train(model, optimizer, 4)
    state = handle.state_dict()
    handle.close()
    model, optimizer, handle = begun()
    handle.load_state_dict(state)
    train(model, optimizer, 3)
    handle.close()
    history = open_history(handle.dir)
    assert history.step.tolist() == [*range(7)]
    assert history.layers == ("first", "w[0]", "w[1]", "w[2]", "w[3]", "b")
    model, optimizer = Whole(0, torch.float64), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with (
        watch(model, optimizer, tmp_path, clip="AdaGC(warmup=2)") as other,
        pytest.raises(WatchError, match="other layers"),
    ):
        other.load_state_dict(state)


def test_layers_that_come_later_are_cut_too(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, split={"*.weight": (0, 2)}) as handle:
        for grown in (False, True):
            if grown:
                model.append(nn.Linear(4, 2))
                optimizer.add_param_group({"params": model[1].parameters()})
            model(torch.randn(5, 3)).square().mean().backward()
            optimizer.step()
    history = open_history(handle.dir)
    assert [name for name in history.layers if name.startswith("1.")] == ["1.weight[0]", "1.weight[1]", "1.bias"]
    assert np.isfinite(history.layer("grad_norm")[-1]).all()
    assert history.run.optimizers[0]["groups"][1]["layers"] == ["1.weight[0]", "1.weight[1]", "1.bias"]


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ({"none*": 0}, "fits no layer"),
        ({"b": 2}, "along dimension 2, which it has not"),
        ({"w": (0, 3)}, "are no 3 equal pieces"),
        ({"w": 0.5}, "wanted patterns of layers with a dimension"),
        ({"w": (0, 0)}, "are no 0 equal pieces"),
        (["w"], "wanted patterns of layers with a dimension"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_a_reason(split, said, tmp_path):
    model = Whole(0, torch.float32)
    with pytest.raises(WatchError, match=said):
        watch(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path, split=split)


def test_too_many_slices_are_refused():
    with pytest.raises(WatchError, match="into 4,097 layers"):
        Layout({"emb": torch.zeros(4097, 1)}, split={"emb": 0})


def test_names_of_slices_and_patterns(tmp_path):
    assert fits("a.w[7]", "a.w[7]")
    assert fits("a.w[7]", "*[7]")
    assert fits("a.w[7]", "a.w")
    assert fits("a.w[7]", "a.*")
    assert fits("a.w7", "a.w[7]")
    assert not fits("a.w[8]", "a.w[7]")
    assert not fits("a.w[17]", "a.w[7]")
    assert not fits("a.w[7]", "b.w")
    model = Whole(0, torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(PolicyError, match="no layer fits"):
        watch(model, optimizer, tmp_path, clip=only("w[9]", ClipByNorm(1.0)), split={"w": 0})


def test_one_launch_takes_slices_that_lie_side_by_side():
    """Only where elements do not lie side by side is a list taken apart."""
    p = torch.randn(3, 4, 5)
    assert not Layout({"w": p}, split={"w": 0}).strided
    assert Layout({"w": p, "v": p}, split={"w": 1}).strided == {0, 1, 2, 3}


@pytest.mark.parametrize("how", [0, (0, 2)])
def test_a_sparse_gradient_of_a_tensor_that_is_cut_is_refused_with_the_reason(how, tmp_path):
    model = nn.ParameterDict({"w": nn.Parameter(torch.ones(4, 3))})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, split={"w": how}, clip="ClipByNorm(1.0)"):
        model["w"].grad = torch.sparse_coo_tensor([[1, 3, 2]], torch.ones(3, 3), (4, 3))
        with pytest.raises(WatchError, match="cannot cut a sparse gradient"):
            optimizer.step()

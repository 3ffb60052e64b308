"""What the loop may do to a model and an optimizer that are watched: add, take out, move, replace, reload."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from training import batches, mlp, train, watch

import gradwatch
from gradwatch import WatchError, open_history
from gradwatch.measure.gradients import Batch
from gradwatch.measure.layout import Layout
from gradwatch.policies import parse
from gradwatch.recording.clipper import carried
from gradwatch.report import build_report, render_html

NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")


def sgd(params, **settings):
    return torch.optim.SGD(params, lr=0.1, **settings)


def norms_of(model):
    return [p.grad.norm().item() for p in model.parameters()]


# ------------------------------------------------------------------------------------- parameters that are added later


@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("clip", ["ClipByGlobalNorm(0.1)", "ClipByNorm(0.05)", "ClipByValue(0.01)"])
def test_added_parameters_are_layers_from_then_on(clip, cls, tmp_path):
    def by_hand(held):
        if "Global" in clip:
            nn.utils.clip_grad_norm_(held, 0.1)
        elif "Value" in clip:
            nn.utils.clip_grad_value_(held, 0.01)
        else:
            for p in held:
                p.grad.mul_(0.05 / p.grad.norm().clamp(min=0.05))

    def run(watched):
        model, norms = mlp(), []
        optimizer = cls(model[2].parameters(), lr=0.05)
        handle = watch(model, optimizer, tmp_path, clip=clip, every=2, ignore=("*.bias",)) if watched else None

        def before(model):
            held = [p for group in optimizer.param_groups for p in group["params"]]
            norms.append([p.grad.norm().item() if any(p is h for h in held) else np.nan for p in model.parameters()])
            if not watched:
                by_hand(held)

        train(model, optimizer, 5, before_step=before)
        optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.01})
        train(model, optimizer, 5, before_step=before, seed=2)
        if handle:
            handle.close()
        return [*model.parameters()], np.array(norms), handle

    weights, norms, handle = run(True)
    for a, b in zip(weights, run(False)[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    history = open_history(handle.dir)
    assert history.step.tolist() == list(range(10))
    assert history.layers == ("2.weight", "0.weight")  # as they were, then the new ones; the ignored are not recorded
    np.testing.assert_allclose(history.layer("grad_norm"), norms[:, [2, 0]], rtol=1e-6)
    assert np.isfinite(history.layer("update_ratio")[6::2]).all()
    np.testing.assert_allclose(history.total("grad_norm"), np.sqrt(np.nansum(norms**2, axis=1)), rtol=1e-6)
    np.testing.assert_array_equal(history.total("lr/1"), [np.nan] * 5 + [0.01] * 5)
    names = [layer["name"] for layer in json.loads((handle.dir / "run.json").read_text())["layers"]]
    assert names == ["2.weight", "2.bias", "0.weight", "0.bias"]
    assert "0.weight" in render_html(build_report([history]))


@pytest.mark.parametrize(("add", "name"), [
    (lambda optimizer, p: optimizer.add_param_group({"params": [p]}), "param_groups.1.0"),
    (lambda optimizer, p: optimizer.param_groups[0]["params"].insert(1, p), "param_groups.0.1"),
])  # fmt: skip
def test_a_parameter_that_no_model_holds_is_named_by_its_place(add, name, tmp_path):
    model, (early, late) = mlp(), (nn.Parameter(torch.ones(()).double()) for _ in range(2))
    optimizer = sgd([*model.parameters(), early])
    with watch(model, optimizer, tmp_path) as handle:
        train(model, optimizer, 2)
        add(optimizer, late)
        late.grad = torch.tensor(3.0).double()
        optimizer.step()
    history = open_history(handle.dir)
    assert history.layers == (*NAMES, "param_groups.0.4", name)
    assert history.layer("grad_norm")[:, 5].tolist() == pytest.approx([np.nan, np.nan, 3.0], nan_ok=True)


POLICIES = [
    "AdaGC(warmup=0)",
    "AutoClip(50, window=5)",
    "ZClip()",
    "ClipByHistory()",
    "chain(SkipSpike(3, window=8), AdaGC())",
    "only('0.*', AdaGC())",
    "only('new*', ClipByHistory())",
]


@pytest.mark.parametrize("text", POLICIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_policys_state_keeps_what_it_knew(text, dtype):
    few, policy = {"0.weight": torch.ones(2, 3), "0.bias": torch.ones(2), "new": torch.ones(2)}, parse(text)
    more = {k: v.to(dtype) for k, v in {**few, "0.scale": torch.ones(2), "newer": torch.ones(4)}.items()}
    before, after = (Batch(Layout(params), [None] * len(params)) for params in (few, more))
    old, new = policy.init(before), policy.init(after)
    state = {k: torch.rand_like(v) for k, v in old.items()}
    got = carried(state, old, new)
    assert got.keys() == new.keys()
    for key, value in got.items():
        assert (value.shape, value.dtype) == (new[key].shape, new[key].dtype)
        if key not in state:
            assert torch.equal(value, new[key])
            continue
        length = len(state[key]) if state[key].dim() else None
        torch.testing.assert_close(value[:length] if length else value, state[key].to(value.dtype))
        if length:
            assert torch.equal(value[length:], new[key][length:])
    assert carried({k: v for k, v in state.items() if k != "0.bias"}, old, new).keys() == new.keys() - (
        {"0.bias"} & state.keys()
    )  # what the optimizer keeps from some step on, the policy does not take up again


def test_a_policy_that_learns_goes_on_learning(tmp_path):
    model = mlp()
    optimizer = sgd(model[2].parameters())
    with watch(model, optimizer, tmp_path, clip="AdaGC(warmup=0, beta=0.5)") as handle:
        train(model, optimizer, 5)
        old = handle.state_dict()["policy_state"]["average"]
        optimizer.add_param_group({"params": list(model[0].parameters())})
        train(model, optimizer, 1)
        new = handle.state_dict()["policy_state"]["average"]
        ((x, y),) = batches(1)
    history = open_history(handle.dir)
    clipped = history.layer("clipped_norm")[5]
    np.testing.assert_allclose(new[:2], 0.5 * old + 0.5 * torch.tensor(clipped[:2]), rtol=1e-6)
    np.testing.assert_allclose(new[2:], clipped[2:], rtol=1e-6)


def test_a_parameter_in_the_place_of_another_is_another_layer(tmp_path):
    model = mlp()
    optimizer = sgd(model.parameters())
    with watch(model, optimizer, tmp_path) as handle:
        for size in (1.0, 2.0, 3.0):
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(()))]})
            optimizer.param_groups[1]["params"][0].grad = torch.tensor(size)
            optimizer.step()
            optimizer.param_groups.pop()
    norms = open_history(handle.dir).layer("grad_norm")[:, 4:]
    np.testing.assert_array_equal(norms, np.where(np.eye(3) == 1, [1, 2, 3], np.nan))


def test_parameters_that_are_taken_out_are_absent(tmp_path):
    model = mlp()
    optimizer = sgd([{"params": list(part.parameters())} for part in (model[0], model[2])])
    with watch(model, optimizer, tmp_path, clip="ClipByGlobalNorm(0.1)") as handle:
        train(model, optimizer, 2)
        group = optimizer.param_groups.pop(0)
        train(model, optimizer, 2)
        optimizer.param_groups.append(group)
        train(model, optimizer, 2)
    history = open_history(handle.dir)
    assert history.layers == NAMES
    assert (
        np.isnan(history.layer("grad_norm")).tolist()
        == [[False] * 4] * 2 + [[True, True, False, False]] * 2 + [[False] * 4] * 2
    )
    np.testing.assert_allclose(history.total("clipped_norm"), 0.1, rtol=1e-5)


# ----------------------------------------------------------------------------------------------------- moved models


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.float64, torch.float32)])
@pytest.mark.parametrize("clip", ["ClipByGlobalNorm(0.1)", "chain(AutoClip(50), AdaGC())", "ClipByHistory()"])
def test_a_model_that_changes_its_dtype_is_followed(clip, dtypes, start, tmp_path):
    first, then = dtypes
    model, norms = mlp(first), []
    optimizer = sgd(model.parameters())
    with watch(model, optimizer, tmp_path, clip=clip, every=1) as handle:
        handle.log(note=7.0)
        handle.log(tensor=torch.tensor(8.0))
        note = lambda m: norms.append(norms_of(m))  # noqa: E731
        train(model, optimizer, start, before_step=note, dtype=first)
        model.to(then)
        train(model, optimizer, 4, before_step=note, dtype=then)
        state = handle.state_dict()["policy_state"]
    assert {v.dtype for v in state.values() if v.dim()} <= {then}
    history = open_history(handle.dir)
    assert history.step.tolist() == list(range(start + 4))
    np.testing.assert_allclose(history.layer("grad_norm"), norms, rtol=1e-5)
    assert (history.layer("update_ratio") > 0).all()
    assert history.total("note")[0] == 7
    assert history.total("tensor")[0] == 8
    assert {layer.dtype for layer in history.run.layers} == {str(then).removeprefix("torch.")}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("start", [0, 3])
def test_a_model_that_is_moved_is_followed(start, tmp_path):
    model, norms = mlp(torch.float32), []
    optimizer = sgd(model.parameters())
    with watch(model, optimizer, tmp_path, clip="chain(AutoClip(50), AdaGC())", every=1) as handle:
        train(model, optimizer, start, before_step=lambda m: norms.append(norms_of(m)), dtype=torch.float32)
        model.cuda()
        for x, y in batches(4, torch.float32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
            norms.append(norms_of(model))
            optimizer.step()
        assert {v.device.type for v in handle.state_dict()["policy_state"].values()} == {"cuda"}
    np.testing.assert_allclose(open_history(handle.dir).layer("grad_norm"), norms, rtol=1e-5)


# ------------------------------------------------------------------------------------------------ replaced parameters


def assign(model):
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)


def materialize(model):
    model.to("meta")
    model.to_empty(device="cpu")


def replace_module(model):
    model[2] = nn.Linear(8, 3).double()


def weight_norm(model):
    nn.utils.parametrize.register_parametrization(model[2], "weight", nn.Identity())
    model[2].parametrizations.weight.original = nn.Parameter(torch.ones(3, 8).double())


@pytest.mark.parametrize(("surgery", "names"), [
    (assign, "0.weight, 0.bias, 2.weight, 2.bias"),
    (materialize, "0.weight, 0.bias, 2.weight, 2.bias"),
    (replace_module, "2.weight, 2.bias"),
    (weight_norm, "2.weight"),
])  # fmt: skip
def test_a_model_whose_parameters_were_replaced_is_named_at_the_first_step(surgery, names, tmp_path):
    model = mlp()
    optimizer = sgd(model.parameters())
    with watch(model, optimizer, tmp_path) as handle:
        surgery(model)
        for _ in range(2):
            with pytest.raises(WatchError, match=rf"Sequential no longer holds .*: {names} \(.*call watch\(\) after"):
                optimizer.step()
    assert not list((handle.dir / "steps").iterdir())


def test_an_optimizer_whose_parameters_were_replaced_is_named_at_any_step(tmp_path):
    model = mlp()
    optimizer = sgd(model.parameters())
    with watch(model, optimizer, tmp_path) as handle:
        train(model, optimizer, 3)
        optimizer.param_groups[0]["params"] = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
        with pytest.raises(
            WatchError, match=r"the given SGD no longer holds .*: 0.weight, .*call watch\(\) after that"
        ):
            optimizer.step()
    assert len(open_history(handle.dir)) == 3


def test_a_replaced_layer_is_named_when_its_group_is_added(tmp_path):
    model = mlp()
    optimizer = sgd(model.parameters())
    with watch(model, optimizer, tmp_path):
        train(model, optimizer, 3)
        replace_module(model)
        optimizer.add_param_group({"params": list(model[2].parameters())})
        with pytest.raises(WatchError, match=r"Sequential no longer holds .*: 2.weight, 2.bias \("):
            optimizer.step()


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_parameter_in_the_place_of_another_is_seen_wherever_it_stands(place, tmp_path):
    model = mlp()
    optimizer = sgd(model.parameters())
    with watch(model, optimizer, tmp_path, clip="ClipByGlobalNorm(0.01)") as handle:
        train(model, optimizer, 2)
        new = nn.Parameter(torch.ones(5, dtype=torch.float64))
        optimizer.param_groups[0]["params"][place] = new
        new.grad = torch.ones_like(new)
        optimizer.step()
    history = open_history(handle.dir)
    assert history.layers == (*NAMES, f"param_groups.0.{place}")
    assert np.isnan(history.layer("grad_norm")[2, place])
    assert history.layer("grad_norm")[2, 4] == pytest.approx(5**0.5)
    assert new.grad.norm() < 0.011


def test_a_parameter_replaced_in_model_and_optimizer_is_named_wherever_it_stands(tmp_path):
    model = mlp()
    optimizer = sgd(model.parameters())
    with watch(model, optimizer, tmp_path):
        train(model, optimizer, 2)
        model[0].bias = optimizer.param_groups[0]["params"][1] = nn.Parameter(model[0].bias.detach().clone())
        with pytest.raises(WatchError, match=r"Sequential no longer holds .*: 0.bias \("):
            optimizer.step()


def test_what_keeps_its_parameters_goes_on(tmp_path):
    """Wrapping, a parametrization, loading a checkpoint, a reloaded optimizer: the tensors are the same."""
    model = mlp()
    optimizer = sgd(model.parameters(), momentum=0.9)
    with watch(model, optimizer, tmp_path) as handle:
        model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()})
        nn.utils.parametrize.register_parametrization(model[2], "weight", nn.Identity())
        train(nn.Sequential(model), optimizer, 2)
        optimizer.load_state_dict(optimizer.state_dict())
        train(model, optimizer, 2)
        model[2] = nn.Linear(8, 3).double()  # a head that is not trained: the old one is no part of the model any more
        train(model, optimizer, 2)
    history = open_history(handle.dir)
    assert history.layers == NAMES
    assert np.isnan(history.layer("grad_norm")[:, 2]).tolist() == [False] * 4 + [True] * 2


def test_a_module_that_was_taken_out_is_no_mistake(tmp_path):
    model = mlp()
    optimizer = sgd(model.parameters())
    with watch(model, optimizer, tmp_path) as handle:
        train(model, optimizer, 2)
        del model[2]
        model.append(nn.Identity())
        model.append(nn.Linear(8, 3).double())
        optimizer.add_param_group({"params": list(model[3].parameters())})
        train(model, optimizer, 2)
    assert open_history(handle.dir).layers == (*NAMES, "3.weight", "3.bias")


# -------------------------------------------------------------------------------------------------------- resuming


def test_a_state_with_the_layers_in_another_order_is_taken(tmp_path):
    """Saved by a run that added a group; the resumed one builds its optimizer with all of them at once."""
    clip = "chain(AdaGC(warmup=0), only('*.weight', AdaGC(warmup=0, beta=0.5)))"
    model = mlp()
    optimizer = sgd(model[2].parameters())
    handle = watch(model, optimizer, tmp_path, clip=clip, ignore=("*.bias",))
    train(model, optimizer, 3, seed=1)
    optimizer.add_param_group({"params": list(model[0].parameters())})
    train(model, optimizer, 3, seed=2)
    state, weights = handle.state_dict(), {k: v.clone() for k, v in model.state_dict().items()}
    train(model, optimizer, 3, seed=3)
    handle.close()
    want = open_history(handle.dir)

    again = mlp()
    again.load_state_dict(weights)
    optimizer = sgd([{"params": list(part.parameters())} for part in (again[0], again[2])])
    resumed = watch(again, optimizer, tmp_path, clip=clip, ignore=("*.bias",))
    assert resumed.state_dict()["layers"] == list(NAMES)
    resumed.load_state_dict(state)
    assert (resumed.dir, resumed.state_dict()["layers"]) == (handle.dir, ["2.weight", "2.bias", "0.weight", "0.bias"])
    train(again, optimizer, 3, seed=3)
    resumed.close()
    assert all(map(torch.equal, model.parameters(), again.parameters()))
    got = open_history(handle.dir)
    assert got.attempt.tolist() == [0] * 6 + [1] * 3
    assert got.layers == want.layers
    np.testing.assert_array_equal(got.layer("clip_coef"), want.layer("clip_coef"))


def test_a_state_of_other_layers_is_still_refused(tmp_path):
    model = mlp()
    state = watch(model, sgd(model.parameters()), tmp_path).state_dict()
    with watch(model, sgd(model[2].parameters()), tmp_path) as handle, pytest.raises(WatchError, match="other layers"):
        handle.load_state_dict(state)


def test_the_manifest_names_the_classes_of_the_modules(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Tanh(), nn.LayerNorm(2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradwatch.watch(torch.compile(model), optimizer, name="D", log=None, dir=tmp_path, verbose=False) as handle:
        optimizer.step()
    want = {"D.0": "Linear", "D.1.0": "Tanh", "D.1.1": "LayerNorm"}
    assert gradwatch.open_history(handle.dir).run.modules == want
    assert gradwatch.open_history(handle.dir.parent).run.modules == want


def test_groups_that_take_turns_are_those_that_are_clipped(tmp_path):
    """As many are missing as before, and others."""
    model = nn.ModuleDict({name: nn.Linear(3, 3) for name in ("enc", "mid", "dec")})
    optimizer = torch.optim.SGD([{"params": [*part.parameters()]} for part in model.values()], lr=1.0)
    groups = dict(zip(model, optimizer.param_groups, strict=True))
    seen = []
    with watch(model, optimizer, tmp_path, clip="ClipByGlobalNorm(0.01)") as handle:
        for named in (("enc", "mid", "dec"), ("enc",), ("dec",), ("mid", "dec"), ("enc",)):
            optimizer.param_groups[:] = [groups[name] for name in named]
            model.zero_grad()
            sum(part(torch.ones(2, 3)).sum() for part in model.values()).backward()
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.step()
            moved = torch.stack([(p - b).norm() for p, b in zip(model.parameters(), before, strict=True)]).norm()
            assert float(moved) == pytest.approx(0.01, rel=1e-3)
            seen.append([name in named for name in model for _ in range(2)])
    norms = open_history(handle.dir).layer("grad_norm")
    np.testing.assert_array_equal(np.isfinite(norms), seen)


def test_parameters_of_several_optimizers_that_are_in_no_model_are_layers_each(tmp_path):
    model, alpha, beta = nn.Linear(2, 1), torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    optimizers = [sgd(params) for params in (model.parameters(), [alpha], [beta])]
    with watch(model, optimizers, tmp_path, clip="ClipByGlobalNorm(0.01)") as handle:
        (model(torch.ones(3, 2)).sum() + 100 * alpha.sum() + 100 * beta.sum()).backward()
        for optimizer in optimizers:
            optimizer.step()
    history = open_history(handle.dir)
    assert history.layers == ("weight", "bias", "param_groups.0.0", "optimizer.param_groups.0.0")
    assert history.total("grad_norm")[0] == pytest.approx((3 * 3**2 + 2 * 100**2) ** 0.5)
    assert max(abs(float(alpha)), abs(float(beta))) < 0.01

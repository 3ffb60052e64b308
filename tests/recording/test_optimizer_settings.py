"""What the manifest says of an optimizer is what its param groups are set to, and every change is in the record."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from training import mlp, train, watch

import gradwatch
from gradwatch.analysis.groups import by_setting
from gradwatch.analysis.optimizers import as_code, differing, group_texts, settings
from gradwatch.measure.layout import Layout
from gradwatch.recording.optimizer_settings import GroupSettings
from gradwatch.storage.manifest import run_of


def manifest(handle):
    return json.loads((handle.dir / "run.json").read_text())["optimizers"]


def decay_groups(model, decay=0.1, lr=1e-3):
    """The two groups of nanoGPT: matrices decay, vectors do not."""
    params = list(model.parameters())
    return torch.optim.AdamW(
        [
            {"params": [p for p in params if p.dim() > 1], "weight_decay": decay, "name": "decay"},
            {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=lr,
        betas=(0.9, 0.95),
    )


def test_the_settings_are_those_of_the_groups(tmp_path):
    model = mlp(torch.float32)
    with watch(model, decay_groups(model), tmp_path) as handle:
        pass
    (found,) = manifest(handle)
    assert (found["settings"]["lr"], found["settings"]["betas"]) == (1e-3, [0.9, 0.95])
    assert "weight_decay" not in found["settings"]
    sizes = [p.numel() for p in model.parameters()]
    assert found["groups"] == [
        {"name": "decay", "layers": ["0.weight", "2.weight"], "parameters": sizes[0] + sizes[2],
         "settings": {"weight_decay": 0.1}},
        {"name": "1", "layers": ["0.bias", "2.bias"], "parameters": sizes[1] + sizes[3],
         "settings": {"weight_decay": 0.0}},
    ]  # fmt: skip
    assert settings(found)["weight_decay"] == "0.1, 0.0"
    assert differing(found) == {"decay": {"weight_decay": "0.1"}, "1": {"weight_decay": "0.0"}}
    assert "weight_decay=[0.1, 0.0]" in as_code(found)
    assert group_texts(found)[0] == f"decay (2 layers, {sizes[0] + sizes[2]:,} parameters): weight_decay=0.1"


def test_two_runs_whose_groups_differ_are_two_settings_and_not_two_seeds(tmp_path):
    histories = []
    for decay in (0.1, 0.9):
        model = mlp(torch.float32)
        optimizer = torch.optim.AdamW([{"params": list(model.parameters()), "weight_decay": decay, "lr": 0.1}])
        with watch(model, optimizer, tmp_path, params={"seed": len(histories)}) as handle:
            train(model, optimizer, 2, dtype=torch.float32)
        histories.append(gradwatch.open_history(handle.dir))
    assert [dict(values) for values in by_setting(histories)] == [{"weight_decay": "0.1"}, {"weight_decay": "0.9"}]


def test_the_same_settings_for_other_layers_are_another_setting(tmp_path):
    histories = []
    for size in (1, 3):
        model = mlp(torch.float32)
        params = list(model.parameters())
        optimizer = torch.optim.SGD([{"params": params[:size], "lr": 0.1}, {"params": params[size:], "lr": 0.2}])
        with watch(model, optimizer, tmp_path) as handle:
            train(model, optimizer, 2, dtype=torch.float32)
        histories.append(gradwatch.open_history(handle.dir))
    assert [dict(values) for values in by_setting(histories)] == [
        {"layers of the param groups": "1, 3"},
        {"layers of the param groups": "3, 1"},
    ]


def test_the_rate_is_the_one_that_a_scheduler_started_from(tmp_path):
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    with watch(model, optimizer, tmp_path) as handle:
        pass
    assert manifest(handle)[0]["settings"]["lr"] == 0.5


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_every_change_is_recorded_on_its_step_and_exactly(kind, tmp_path):
    model = mlp(torch.float32)
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[2].parameters()), "weight_decay": 0.25}]
    optimizer = kind(groups, lr=0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
    with watch(model, optimizer, tmp_path) as handle:
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20)
        wanted, decay = [], []
        for step in range(12):
            group = optimizer.param_groups[0]
            wanted.append(group["momentum"] if kind is torch.optim.SGD else group["betas"][0])
            if step == 6:
                optimizer.param_groups[1]["weight_decay"] = 0
            decay.append(optimizer.param_groups[1]["weight_decay"])
            train(model, optimizer, 1, dtype=torch.float32)
            schedule.step()
    assert len(set(wanted)) > 6
    history = gradwatch.open_history(handle.dir)
    moving = "setting/momentum" if kind is torch.optim.SGD else "setting/betas.0"
    first = wanted.index(next(value for value in wanted if value != 0.9))
    np.testing.assert_array_equal(history.total(moving)[first:], wanted[first:])
    np.testing.assert_array_equal(history.total("setting/weight_decay/1")[6:], decay[6:])
    assert not {"setting/weight_decay", "setting/eps", "setting/betas.1", "setting/dampening"} & set(history.per_step)
    assert not [name for name in history.logged if name.startswith("setting/")]
    with pytest.warns(gradwatch.errors.GradwatchWarning, match="records setting/x itself"):
        watch(model, optimizer, tmp_path).log(**{"setting/x": 1.0})


def test_groups_that_have_come_or_gone_are_seen():
    params = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    optimizer = torch.optim.SGD([{"params": [p], "lr": 0.1 + i} for i, p in enumerate(params[:2])])
    settings = GroupSettings({"SGD": optimizer})
    assert settings.now().rates == (0.1, 1.1)
    last = optimizer.param_groups.pop()
    assert settings.now().rates == (0.1,)
    optimizer.param_groups.append(last)
    assert settings.now().rates == (0.1, 1.1)
    optimizer.add_param_group({"params": [params[2]], "lr": 2.1})
    assert settings.now().rates == (0.1, 1.1, 2.1)


def test_what_never_changes_has_no_column_and_a_counter_is_no_setting(tmp_path):
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.param_groups[0]["k"] = 0
    with watch(model, optimizer, tmp_path) as handle:
        for _ in range(4):
            optimizer.param_groups[0]["k"] += 1
            train(model, optimizer, 1, dtype=torch.float32)
    assert not [n for n in gradwatch.open_history(handle.dir).per_step if n.startswith("setting/")]


def test_a_setting_that_is_a_tensor_travels_without_being_read(tmp_path):
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    decay = optimizer.param_groups[0]["weight_decay"] = torch.tensor(0.5)
    with watch(model, optimizer, tmp_path) as handle:
        for _ in range(3):
            for p in model.parameters():
                p.grad = torch.zeros_like(p)
            optimizer.step()
            decay.mul_(0.5)
    np.testing.assert_array_equal(gradwatch.open_history(handle.dir).total("setting/weight_decay"), [0.5, 0.25, 0.125])
    assert manifest(handle)[0]["settings"]["weight_decay"] == 0.5


def test_settings_on_a_device_that_holds_no_values_are_not_read():
    model = nn.Linear(2, 2, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = GroupSettings({"SGD": optimizer})
    optimizer.param_groups[0].update(lr=torch.ones((), device="meta"), momentum=torch.ones((), device="meta"))
    now = found.now()
    assert set(now.tensors) == {"lr", "setting/momentum"}
    assert np.isnan(now.rates[0])
    assert GroupSettings({"SGD": optimizer}).describe(Layout({}))[0]["settings"]["momentum"] == "tensor ()"


def test_a_group_that_is_added_is_in_the_manifest_and_the_others_are_as_they_were(tmp_path):
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as handle:
        train(model, optimizer, 1, dtype=torch.float32)
        optimizer.param_groups[0]["lr"] = 0.01
        optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.3})
        train(model, optimizer, 2, dtype=torch.float32)
    (found,) = manifest(handle)
    assert [group["settings"] for group in found["groups"]] == [{"lr": 0.1}, {"lr": 0.3}]
    assert found["groups"][1]["layers"] == ["2.weight", "2.bias"]


def test_loading_a_state_is_a_change_like_any_other(tmp_path):
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = optimizer.state_dict()
    state["param_groups"][0]["momentum"] = 0.5
    with watch(model, optimizer, tmp_path) as handle:
        train(model, optimizer, 1, dtype=torch.float32)
        optimizer.load_state_dict(state)
        train(model, optimizer, 1, dtype=torch.float32)
    assert gradwatch.open_history(handle.dir).total("setting/momentum")[1] == 0.5


def test_a_manifest_of_an_earlier_version_still_says_its_settings():
    old = {"name": "AdamW", "class": "AdamW", "settings": {"lr": 0.1, "betas": [0.9, 0.999], "amsgrad": False}}
    assert settings(old) == {"lr": "0.1", "betas": "(0.9, 0.999)", "amsgrad": "False"}
    assert as_code(old) == "AdamW(lr=0.1, betas=(0.9, 0.999))"
    assert group_texts(old) == []


def test_of_many_groups_the_texts_differ_where_any_value_does():
    def layerwise(middle):
        rates = [1e-3] * 10 + [middle] + [1e-4] * 10
        return {"class": "Adam", "groups": [{"name": str(i), "settings": {"lr": r}} for i, r in enumerate(rates)]}

    one, other = settings(layerwise(5e-4))["lr"], settings(layerwise(6e-4))["lr"]
    assert one.startswith("0.001, ..., 0.0001 (21 groups, ")
    assert one != other
    assert group_texts(layerwise(5e-4))[-1] == "13 more"


@pytest.mark.parametrize(
    "groups",
    [3, [3], [{"name": 3}], [{"layers": "abc"}], [{"layers": [3]}], [{"parameters": -1}], [{"settings": [1]}]],
    ids=repr,
)
def test_a_manifest_whose_groups_are_of_another_kind_is_refused(groups):
    data = {"name": "x", "created": "2026-01-01", "optimizers": [{"name": "SGD", "groups": groups}]}
    with pytest.raises(ValueError, match=r"optimizers\[0\] is"):
        run_of(data)


@pytest.mark.slow  # mlflow takes seconds to import
def test_mlflow_has_the_settings_of_all_groups_and_of_each(tmp_path):
    client = pytest.importorskip("gradwatch.tracking.client")
    model = mlp(torch.float32)
    with watch(model, decay_groups(model), tmp_path) as handle:
        train(model, next(iter(handle._stepper.optimizers)), 1, dtype=torch.float32)
    params = client.run_params(gradwatch.open_history(handle.dir).run)
    assert params["optimizer.lr"] == "0.001"
    assert params["optimizer.weight_decay"] == "0.1, 0.0"
    assert params["optimizer.group.decay.weight_decay"] == "0.1"
    assert params["optimizer.group.1.weight_decay"] == "0.0"
    assert params["optimizer.groups"].startswith("decay (2 layers, ")

"""The Watch as its user meets it: attaching, odd loops, errors, closing, resuming."""

import copy
import json
import math
import pickle
import re
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from training import CALLABLE, batches, mlp, state_tensors, train, watch

import gradwatch
from gradwatch import GradwatchWarning, PolicyError, WatchError, open_history
from gradwatch.recording.layer_names import clean_name
from gradwatch.report import build_report
from gradwatch.report.wording import facts


@pytest.fixture
def pair():
    model = mlp()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


# ----------------------------------------------------------------------------------------------------- before training


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"clip": "ClipByGlobalNorm(-1)"}, "max_norm=-1: wanted a number of at least 0"),
        ({"clip": "ClipByGlobalNrom(1)"}, "ClipByGlobalNrom is not a policy gradwatch knows"),
        ({"clip": "MaxNorm(3)"}, "pass it as renorm="),
        ({"renorm": "ClipByNorm(3)"}, "pass it as clip="),
        ({"clip": 1.0}, "wanted a policy such as"),
        ({"clip": "only('rnn.*', ClipByNorm(1))"}, "no layer fits; the layers are 0.weight"),
        ({"renorm": "only('rnn.*', MaxNorm(1))"}, "no layer fits"),
        ({"every": 0}, "every=0: wanted a whole number"),
        ({"tracking_uri": "sqlite:///other.db"}, "without run_id=: it says which store holds that run"),
        ({"log": "wandb"}, "log='wandb': wanted None, one of 'mlflow', 'tensorboard'"),
        ({"layers": ("nothing",)}, "leave nothing to record"),
    ],
)
def test_mistakes_are_named_before_training_starts(pair, options, says, tmp_path):
    with pytest.raises(
        (WatchError, PolicyError), match=says.replace("(", r"\(").replace(")", r"\)").replace("*", r"\*")
    ):
        watch(*pair, tmp_path, **options)
    assert not list(tmp_path.iterdir())  # and nothing is left behind
    assert not pair[1]._optimizer_step_pre_hooks


def test_an_optimizer_of_another_model_is_refused(pair, tmp_path):
    with pytest.raises(WatchError, match="none of the 4 parameters of Sequential is in the given SGD"):
        watch(mlp(), pair[1], tmp_path)


def test_an_unwritable_dir_is_named(pair, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(gradwatch.RunError, match="Not a directory; pass dir="):
        watch(*pair, tmp_path / "file")


def test_names_are_the_models_own(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
            self.module = nn.Linear(4, 4)
            self.head.weight = self.embed.weight

    model = Tied()
    temperature = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1)
    handle = watch(torch.compile(model), optimizer, tmp_path)
    names = handle._stepper.layout.names
    handle.close()
    # once for the tied weight; without _orig_mod.; a submodule called "module" loses its name only if no two clash
    assert names == ("embed.weight", "weight", "bias", "param_groups.0.3")


@pytest.mark.parametrize("wrapper", ["module", "_orig_mod", "_module", "_forward_module"])
def test_no_wrapper_shows_in_a_name(wrapper):
    assert clean_name(f"{wrapper}.conv.weight") == "conv.weight"
    assert clean_name(f"{wrapper}s.conv.weight") == f"{wrapper}s.conv.weight"


# --------------------------------------------------------------------------------------------------------- odd loops


def test_accumulated_micro_batches_are_one_step_of_their_sum(pair, tmp_path):
    model, optimizer = pair
    with watch(model, optimizer, tmp_path) as handle:
        for _ in range(3):
            model(torch.ones(4, 6).double()).sum().backward()
        want = [p.grad.norm().item() for p in model.parameters()]
        optimizer.step()
    np.testing.assert_allclose(open_history(handle.dir).layer("grad_norm")[0], want, rtol=1e-6)


def test_a_subclass_that_calls_super_step_is_one_step(tmp_path):
    class Twice(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    model = mlp()
    torch.optim.SGD(model.parameters(), lr=0.1)  # hooks the parent class's step too, as any use of it does
    optimizer = Twice(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, clip="ClipByGlobalNorm(0.1)") as handle:
        train(model, optimizer, 4)
    assert len(open_history(handle.dir)) == 4
    want = mlp()
    train(
        want,
        torch.optim.SGD(want.parameters(), lr=0.1),
        4,
        before_step=lambda m: nn.utils.clip_grad_norm_(m.parameters(), 0.1),
    )
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(model.parameters(), want.parameters(), strict=True))


def test_a_step_that_raised_does_not_end_the_watching(tmp_path):
    class Fragile(torch.optim.SGD):
        fails = False

        def step(self, closure=None):
            if self.fails:
                raise RuntimeError("out of memory")
            return super().step(closure)

    model = mlp()
    optimizer = Fragile(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, renorm="MaxNorm(0.01)") as handle:
        train(model, optimizer, 2)
        optimizer.fails = True
        with pytest.raises(RuntimeError, match="out of memory"):
            optimizer.step()
        optimizer.fails = False
        model[0].weight.data.fill_(1.0)
        train(model, optimizer, 2)
    assert len(open_history(handle.dir)) == 5
    assert model[0].weight.norm(dim=1).max() < 0.0101  # the hook after the step still runs


@pytest.mark.parametrize(
    "renorm", ["MaxNorm(0.1)", "Renorm(1.0, 0, 0.1)", "MaxSpectral(0.1)", "only('*', MaxNorm(0.1))"]
)
def test_a_constraint_leaves_a_frozen_weight_alone(renorm, tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    model[0].weight.requires_grad_(False)
    with watch(model, optimizer, tmp_path, renorm=renorm, every=1) as handle:
        train(model, optimizer, 2)
        model[-1].requires_grad_(False)
        frozen = [p.detach().clone() for p in model[-1].parameters()]
        with torch.no_grad():
            model[0].weight.mul_(2.0)
        train(model, optimizer, 2)
    assert torch.equal(model[0].weight, 2 * before[0])
    assert all(torch.equal(p, was) for p, was in zip(model[-1].parameters(), frozen, strict=True))
    rates = open_history(handle.dir).layer("renorm_rate")
    assert np.isnan(rates[:, 0]).all()
    assert rates[0, -2] == 1
    assert np.isnan(rates[2:, -2]).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_skip_nonfinite_leaves_no_trace(bad, tmp_path):
    """With it in the lead the bad step might as well not have been: weights, optimizer, policy state."""

    def run(poisoned):
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        handle = watch(model, optimizer, tmp_path, clip="chain(SkipNonfinite(), AutoClip(50), ClipByHistory())")
        train(model, optimizer, 6)
        if poisoned:
            for p in model.parameters():
                p.grad = torch.full_like(p, bad)
            here = [p.grad for p in model.parameters()]
            optimizer.step()
            assert all(p.grad is g for p, g in zip(model.parameters(), here, strict=True))  # a loop may reuse them
        train(model, optimizer, 6, seed=2)
        handle.close()
        return [*model.parameters()], state_tensors(optimizer), handle.state_dict()["policy_state"]

    weights, state, policy = run(poisoned=True)
    want_weights, want_state, want_policy = run(poisoned=False)
    assert all(torch.equal(a, b) for a, b in zip(weights, want_weights, strict=True))
    assert all(torch.equal(state[k], want_state[k]) for k in want_state)
    assert all(torch.equal(policy[k], want_policy[k]) for k in want_policy)


def test_a_multiplication_by_zero_would_have_left_one(pair):
    """Why a skip is not a coefficient of 0: NaN stays, and AdamW moves weights on a zero gradient."""
    model, _ = pair
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(model, optimizer, 3)
    before = model[0].weight.clone()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert (model[0].weight - before).abs().max() > 0.01


def test_skip_spike_skips_the_spike_and_nothing_else(tmp_path):
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    norms = [1.0, 1.1, 0.9, 1.05, 0.95] * 4 + [100.0] + [1.0] * 3
    with watch(model, optimizer, tmp_path, clip="SkipSpike(6, window=16)") as handle:
        for norm in norms:
            model.weight.grad = torch.tensor([[norm]])
            optimizer.step()
    skipped = open_history(handle.dir).total("skipped")
    assert np.flatnonzero(skipped).tolist() == [20]


def test_two_optimizers_that_step_together_share_one_norm(tmp_path):
    def run(by_hand):
        model = mlp()
        first, second = (
            torch.optim.SGD(model[0].parameters(), lr=0.1),
            torch.optim.Adam(model[2].parameters(), lr=0.1),
        )
        handle = None if by_hand else watch(model, [first, second], tmp_path, clip="ClipByGlobalNorm(0.1)", every=2)

        class Both:
            def zero_grad(self):
                first.zero_grad()
                second.zero_grad()

            def step(self):
                first.step()
                second.step()

        train(model, Both(), 10, before_step=by_hand and (lambda m: nn.utils.clip_grad_norm_(m.parameters(), 0.1)))
        if handle:
            handle.close()
        return model, handle

    want, _ = run(by_hand=True)
    got, handle = run(by_hand=False)
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(got.parameters(), want.parameters(), strict=True))
    history = open_history(handle.dir)
    assert len(history) == 10
    assert set(history.optimizer) == {"SGD+Adam"}
    assert np.isfinite(history.layer("update_ratio")[::2]).all()
    assert (history.layer("update_ratio")[::2] > 0).all()  # measured after the second of them, not between


@pytest.mark.parametrize("closures", [False, True])
@pytest.mark.parametrize("to_none", [False, True])
def test_two_optimizers_that_take_turns_are_measured_each_at_its_own_step(to_none, closures, tmp_path):
    """A GAN under one Watch: strictly in turn, so that only the gradients tell that it is no step of both."""
    model = mlp()
    optimizers = [torch.optim.SGD(model[i].parameters(), lr=0.1) for i in (0, 2)]
    true = []
    with watch(model, optimizers, tmp_path, clip="ClipByGlobalNorm(0.1)") as handle:
        for i, (x, y) in enumerate(batches(8)):
            optimizer, own = optimizers[i % 2], [*model[2 * (i % 2)].parameters()]

            def closure(x=x, y=y, optimizer=optimizer, own=own):
                optimizer.zero_grad(set_to_none=to_none)
                nn.functional.cross_entropy(model(x), y).backward()
                true.append(torch.stack([p.grad.norm() for p in own]).norm().item())

            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                if closures:
                    optimizer.step(closure)
                else:
                    closure()
                    optimizer.step()
            assert len([w for w in caught if w.category is GradwatchWarning]) == (i == 1)
            if i:  # before the second step nobody can know
                left = torch.stack([p.grad.norm() for p in own]).norm().item()
                assert left == pytest.approx(min(0.1, true[-1]), rel=1e-4)
    history = open_history(handle.dir)
    assert list(history.optimizer) == ["SGD.0", "SGD.1"] * 4
    np.testing.assert_allclose(history.total("grad_norm"), true, rtol=1e-6)
    assert np.isnan(history.layer("grad_norm")[::2, 2:]).all()
    assert np.isnan(history.layer("grad_norm")[1::2, :2]).all()


def test_two_optimizers_that_step_apart_are_told_so_once(tmp_path):
    model = mlp()
    first, second = torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.SGD(model[2].parameters(), lr=0.1)
    with watch(model, [first, second], tmp_path, clip="ClipByGlobalNorm(0.1)") as handle:
        with pytest.warns(GradwatchWarning, match="do not step together") as caught:
            train(model, first, 2)
        assert caught[0].filename == train.__code__.co_filename  # the line that steps
        train(model, second, 3)
    history = open_history(handle.dir)
    assert list(history.optimizer) == ["SGD.0", "SGD.0", "SGD.1", "SGD.1", "SGD.1"]
    assert np.isnan(history.layer("grad_norm")[-1]).tolist() == [True, True, False, False]


def test_a_callable_is_a_policy(pair, tmp_path):
    model, optimizer = pair
    with watch(model, optimizer, tmp_path, clip=CALLABLE) as handle:
        train(model, optimizer, 3)
    history = open_history(handle.dir)
    assert history.run.clip == "ClipWith(halve)"
    np.testing.assert_allclose(history.layer("clip_coef"), 0.5, rtol=1e-6)


def test_a_policy_class_of_ones_own(pair, tmp_path):
    import dataclasses

    @dataclasses.dataclass(frozen=True, repr=False)
    class Thirds(gradwatch.NormPolicy):
        factor: float = 1 / 3

        def decide(self, norms, state):
            return gradwatch.Decision(coef=torch.full_like(norms.l2, self.factor))

    model, optimizer = pair
    with watch(model, optimizer, tmp_path, clip=gradwatch.chain(Thirds(), Thirds(0.5))) as handle:
        train(model, optimizer, 3)
    np.testing.assert_allclose(open_history(handle.dir).layer("clip_coef"), 1 / 6, rtol=1e-6)


def test_history_clip_asks_adamax_for_its_maximum(tmp_path):
    """The optimizer's own `exp_inf` bounds the next gradient; the policy keeps no second copy."""
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.Adamax(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, clip="ClipByHistory()") as handle:
        for _ in range(3):
            largest = optimizer.state[model.weight].get("exp_inf", torch.zeros(1, 1)).item()
            model.weight.grad = torch.tensor([[10.0]])
            optimizer.step()
            assert model.weight.grad.item() == pytest.approx(1.2 * largest + 1e-4)
        assert handle.state_dict()["policy_state"] == {}


# ------------------------------------------------------------------------------------------------ logging and closing


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"loss": torch.ones(3)}, "tensor of shape"),
        ({"sample": torch.arange(3)}, r"or a list of numbers as \.tolist"),
        ({"loss": "high"}, "'high'"),
        ({"loss": np.complex64(1 + 2j)}, "1.*2"),
        ({"self": "high"}, "'high'"),
    ],
)
def test_what_cannot_be_logged_is_left_out_and_nothing_else_is_lost(pair, values, says, tmp_path):
    model, optimizer = pair
    with watch(model, optimizer, tmp_path) as handle:
        train(model, optimizer, 3)
        with pytest.warns(GradwatchWarning, match=says):
            handle.log(**values)
    assert len(open_history(handle.dir)) == 3


def test_a_name_that_is_recorded_anyway_is_left_out_and_what_is_logged_with_it_is_not(pair, tmp_path):
    model, optimizer = pair
    with watch(model, optimizer, tmp_path) as handle:
        train(model, optimizer, 3)
        with pytest.warns(GradwatchWarning, match="lr=.* cannot be recorded.* gradwatch records lr itself") as caught:
            handle.log(lr=7.0, accuracy=0.5)
    assert [w.filename for w in caught] == [__file__]
    history = open_history(handle.dir)
    np.testing.assert_array_equal(history.total("accuracy"), [np.nan, np.nan, 0.5])
    assert history.logged == ("accuracy",)
    assert 7.0 not in history.total("lr")


def test_log_after_close_warns_and_does_not_raise(pair, tmp_path):
    handle = watch(*pair, tmp_path)
    handle.close()
    handle.close()
    with pytest.warns(GradwatchWarning, match="after close") as caught:
        handle.log(loss=1.0)
    assert caught[0].filename == __file__


def test_close_takes_the_hooks_off(pair, tmp_path):
    model, optimizer = pair
    watch(model, optimizer, tmp_path).close()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_watching_again_replaces_the_old_watch(pair, tmp_path, capsys):
    model, optimizer = pair
    old = watch(model, optimizer, tmp_path, verbose=True)
    train(model, optimizer, 2)
    with watch(model, optimizer, tmp_path) as new:
        train(model, optimizer, 3)
    assert "was watched already" in capsys.readouterr().err
    assert (len(open_history(old.dir)), len(open_history(new.dir))) == (2, 3)
    assert open_history(old.dir).run.status == "FINISHED"


@pytest.mark.parametrize(("error", "status"), [(ValueError, "FAILED"), (KeyboardInterrupt, "KILLED")])
def test_the_status_tells_how_the_loop_ended(pair, error, status, tmp_path):
    model, optimizer = pair
    handle = watch(model, optimizer, tmp_path)

    def loop():
        with handle:
            train(model, optimizer, 2)
            raise error

    with pytest.raises(error):
        loop()
    history = open_history(handle.dir)
    assert (history.run.status, len(history)) == (status, 2)


# One fork for each END: torch is imported once, and each goes to the end of its interpreter, as a script does.
SCRIPT = """
import gc, os, sys, torch, gradwatch
torch.optim.SGD([torch.zeros(1)], lr=0.1)  # torch imports its compiler with the first optimizer
gc.freeze()  # else every fork walks through, and so copies, all of torch as its interpreter ends
for number, end in enumerate(sys.argv[2:]):
    pid = os.fork()
    if not pid:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    os._exit(0)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watch = gradwatch.watch(model, optimizer, log=None, dir=f"{sys.argv[1]}/{number}", verbose=False)
for _ in range(7):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
exec(end)
"""
ENDS = {
    "pass": (0, "FINISHED"),
    "sys.exit(3)": (3, "FINISHED"),
    "1 / 0": (1, "FAILED"),
    "raise KeyboardInterrupt": (-signal.SIGINT, "KILLED"),
    "watch.close(); sys.exit(any(m.split('.')[0] == 'mlflow' for m in sys.modules))": (0, "FINISHED"),
}


@pytest.mark.slow
def test_scripts_that_never_close_lose_nothing_and_none_imports_mlflow(tmp_path):
    command = [sys.executable, "-c", SCRIPT, tmp_path, *ENDS]
    codes = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    assert [int(code) for code in codes.split()] == [code for code, _ in ENDS.values()]
    for number, (_, status) in enumerate(ENDS.values()):
        history = open_history(next((tmp_path / str(number)).iterdir()))
        assert (history.run.status, len(history)) == (status, 7)


@pytest.mark.slow
def test_it_works_where_mlflow_is_not_installed(pair, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    real = gradwatch.recording.attach._delivery.importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *a: None if name == "mlflow" else real(name, *a))
    model, optimizer = pair
    with (
        pytest.warns(GradwatchWarning, match="mlflow is not installed") as caught,
        gradwatch.watch(model, optimizer, dir=tmp_path, verbose=False) as handle,
    ):
        train(model, optimizer, 3)
    assert len(caught) == 1
    history = open_history(handle.dir)
    assert (len(history), history.run.mlflow) == (3, None)


# ---------------------------------------------------------------------------------------------------------- resuming


def test_a_resumed_watch_says_where_it_records(pair, tmp_path, capsys):
    """`watch()` has said another folder, which resuming leaves empty and removes."""
    with watch(*pair, tmp_path) as first:
        train(*pair, 3)
        state = first.state_dict()
    with watch(*pair, tmp_path, verbose=True) as second:
        second.load_state_dict(state)
    assert f"resumed at step 3, recording to {first.dir}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "policy",
    [
        {"clip": "AutoClip(50)"},
        {"clip": "ZClip(warmup=4)"},
        {"clip": "AdaGC(warmup=4)"},
        {"clip": "ClipByHistory()"},
        {"clip": "chain(SkipNonfinite(), SkipSpike(3, window=8), ClipByNorm(0.1))"},
        {"renorm": "chain(MaxNorm(0.9), only('0.*', MaxSpectral(0.7)))"},
    ],
    ids=lambda policy: "".join(policy.values()),
)
def test_resuming_goes_on_as_if_nothing_happened(policy, tmp_path):
    def start():
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        return model, optimizer, watch(model, optimizer, tmp_path, **policy)

    model, optimizer, handle = start()
    train(model, optimizer, 12)
    whole = handle.dir
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), handle.state_dict()))
    train(model, optimizer, 12, seed=2)
    handle.close()
    want, trained = open_history(whole), model

    model, optimizer, handle = start()
    torch.save(saved, tmp_path / "checkpoint.pt")
    weights, slots, state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    model.load_state_dict(weights)
    optimizer.load_state_dict(slots)
    handle.load_state_dict(state)
    assert handle.dir == whole
    train(model, optimizer, 12, seed=2)
    handle.close()

    got = open_history(whole)
    assert got.step.tolist() == list(range(24))
    assert got.attempt.tolist() == [0] * 12 + [1] * 12
    np.testing.assert_array_equal(got.layer("clip_coef"), want.layer("clip_coef"))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), trained.parameters(), strict=True))
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([whole.name, "checkpoint.pt"])


def test_the_manifest_of_a_resumed_run_is_that_of_its_latest_attempt(tmp_path):
    def start(lr, **options):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        return model, optimizer, watch(model, optimizer, tmp_path, **options)

    model, optimizer, before = start(0.1, total_steps=20, every=10, params={"data": "small"})
    train(model, optimizer, 12)
    state = before.state_dict()
    before.close()
    later = {"total_steps": 200, "every": 5, "params": {"data": "large"}, "higher_is_better": {"score": True}}
    model, optimizer, handle = start(0.01, **later)
    handle.load_state_dict(state)
    train(model, optimizer, 12)
    handle.close()
    run = open_history(before.dir).run
    assert {name: getattr(run, name) for name in later} == later | {"params": run.params}
    assert run.params["data"] == "large"
    assert run.optimizers[0]["settings"]["lr"] == 0.01
    assert run.attempt == 1


def test_the_settings_of_a_checkpoint_are_those_of_the_run(tmp_path):
    """Though the Watch was made before the optimizer was loaded."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as handle:
        train(model, optimizer, 6)
        saved = optimizer.state_dict(), handle.state_dict()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with watch(model, optimizer, tmp_path) as handle:
        optimizer.load_state_dict(saved[0])
        handle.load_state_dict(saved[1])
        train(model, optimizer, 6)
    history = open_history(handle.dir)
    assert {*history.total("lr")} == {history.run.optimizers[0]["settings"]["lr"]} == {0.1}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"clip": "ZClip()"}, "clip=ZClip("),
        ({}, "clip=None in the place of AutoClip(50"),
        ({"clip": "AutoClip(50)", "renorm": "MaxNorm(1)"}, "renorm=MaxNorm(1"),
        ({"clip": "AutoClip(50)", "lr_scale": 0.5}, "other factors of the learning rates"),
    ],
)
def test_what_goes_on_with_other_settings_is_a_run_of_its_own(pair, tmp_path, capsys, options, said):
    model, optimizer = pair
    with watch(model, optimizer, tmp_path, clip="AutoClip(50)") as before:
        train(model, optimizer, 6)
        state = before.state_dict()
    capsys.readouterr()
    with watch(model, optimizer, tmp_path, verbose=True, **options) as after:
        after.load_state_dict(state)
        train(model, optimizer, 4)
    shown = capsys.readouterr().err
    assert f"resumed at step 6: a run of its own, with {said}" in shown
    assert f"are in {before.dir}" in shown
    assert f"4 steps recorded in {after.dir}" in shown
    assert open_history(before.dir).step.tolist() == list(range(6))
    assert open_history(after.dir).step.tolist() == list(range(6, 10))
    assert str(open_history(after.dir).run.clip or "").split("(")[0] == options.get("clip", "").split("(")[0]
    assert open_history(before.dir).run.goes_on_from is None
    assert open_history(after.dir).run.goes_on_from == before.dir.name
    (summary,) = build_report([open_history(after.dir)]).runs
    assert dict(facts(summary))["resumed"] == f"at step 6; the steps before are in {before.dir.name}"


def test_a_run_whose_folder_is_gone_is_resumed_as_one_of_its_own(pair, tmp_path, capsys):
    model, optimizer = pair
    with watch(model, optimizer, tmp_path) as before:
        train(model, optimizer, 6)
        state = before.state_dict()
    with watch(model, optimizer, tmp_path, verbose=True) as after:
        shutil.rmtree(before.dir)
        after.load_state_dict(state)
        train(model, optimizer, 4)
    shown = capsys.readouterr().err
    assert f"{before.dir}, where the steps before were recorded, is not there" in shown
    assert f"4 steps recorded in {after.dir}" in shown


def test_a_watched_model_and_optimizer_can_be_copied_and_pickled(pair, tmp_path):
    model, optimizer = pair
    with watch(model, optimizer, tmp_path):
        copied = copy.deepcopy(model), copy.deepcopy(optimizer)
        pickle.loads(pickle.dumps((model, optimizer)))
        train(copied[0], torch.optim.SGD(copied[0].parameters(), lr=0.1), 2)


def test_plan_says_when_a_value_is_read(pair, tmp_path):
    with watch(*pair, tmp_path, clip="SkipNonfinite()") as handle:
        assert "one bool is read" in handle.plan()
    with watch(*pair, tmp_path, clip="ClipByNorm(1)") as handle:
        assert "one bool is read" not in handle.plan()


# ---------------------------------------------------------------------------------------------------------- one shot


def test_clip_grads_returns_the_norm_before(pair):
    model, _ = pair
    model(torch.ones(4, 6).double()).sum().backward()
    want = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    assert gradwatch.clip_grads_(model.parameters(), "ClipByGlobalNorm(0.1)") == want
    assert gradwatch.global_norm(model.parameters()).item() == pytest.approx(0.1, rel=1e-5)


def test_clip_grads_refuses_what_it_cannot_do(pair):
    model, _ = pair
    for policy in ("AutoClip(10)", "MaxNorm(1)"):
        with pytest.raises(PolicyError, match=r"history between steps|does not act on gradients"):
            gradwatch.clip_grads_(model.parameters(), policy)


def test_no_gradients_at_all(pair, tmp_path):
    model, optimizer = pair
    assert gradwatch.clip_grads_([], "ClipByNorm(1)").item() == 0
    with warnings.catch_warnings(), watch(model, optimizer, tmp_path, clip="ClipByGlobalNorm(1)") as handle:
        warnings.simplefilter("error")
        optimizer.step()
    history = open_history(handle.dir)
    assert (history.total("grad_norm").item(), np.isnan(history.layer("grad_norm")).all()) == (0, True)
    assert json.loads((handle.dir / "run.json").read_text())["status"] == "FINISHED"


def test_a_watch_shows_what_the_documentation_lists():
    """What is for gradwatch alone begins with an underscore."""
    text = (Path(__file__).parents[2] / "docs/recording.md").read_text()
    listed = text[text.index("\n`Watch` has ") : text.index("\n\n", text.index("\n`Watch` has "))]
    documented = re.findall(r"`([a-z_]+)(?:\([a-z_, *]*\))?`", listed)
    assert {name for name in vars(gradwatch.Watch) if not name.startswith("_")} == set(documented)

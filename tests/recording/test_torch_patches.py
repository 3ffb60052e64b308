"""Loops that do more than backward and step: loss scaling, clips of their own, closures. The record stays true."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_  # by name, before gradwatch
from training import batches, mlp, state_tensors, train, watch

from gradwatch import GradwatchWarning, open_history
from gradwatch.measure import foreach
from gradwatch.recording import torch_patches

INF = float("inf")


def scaled_steps(model, optimizers, scaler, steps=12, bad=(), unscale=False, before_step=None, seed=1):
    """A loop under GradScaler; `bad` maps a step to the parameter whose gradient overflows in it."""
    for i, (x, y) in enumerate(batches(steps, torch.float32, seed)):
        model.zero_grad()
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        if i in dict(bad):
            dict(bad)[i].grad.view(-1)[0] = INF
        if unscale:
            for o in optimizers:
                scaler.unscale_(o)
        if before_step:
            before_step(i)
        for o in optimizers:
            scaler.step(o)
        scaler.update()


def grad_scaler(**settings):
    return torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4, **settings)


# ------------------------------------------------------------------------------------- steps that the scaler drops


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize(
    "clip", [None, "ClipByGlobalNorm(0.1)", "AutoClip(50)", "ClipByValue(0.01)", "SkipNonfinite()"]
)
def test_a_step_that_the_scaler_drops_is_recorded_as_a_fused_one_is(clip, unscale, tmp_path):
    def run(fused):
        model = mlp(torch.float32)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=fused)
        with watch(model, optimizer, tmp_path, clip=clip, every=3) as handle:
            scaled_steps(model, [optimizer], grad_scaler(), bad=[(5, model[0].bias)], unscale=unscale)
        return open_history(handle.dir)

    dropped, fused = run(False), run(True)
    assert dropped.step.tolist() == list(range(12))
    assert dropped.total("skipped").tolist() == [0] * 5 + [1] + [0] * 6
    assert (dropped.per_step.keys(), dropped.per_layer.keys()) == (fused.per_step.keys(), fused.per_layer.keys())
    for name in ("skipped", "clip_coef", "clipped_norm", "nonfinite", "clip_rate", "loss_scale", "lr"):
        np.testing.assert_allclose(dropped.total(name)[5], fused.total(name)[5], err_msg=name)
    for quantity in ("grad_norm", "clip_coef", "clip_rate", "nonfinite", "weight_norm", "update_ratio"):
        np.testing.assert_allclose(dropped.layer(quantity)[5], fused.layer(quantity)[5], rtol=1e-4, err_msg=quantity)


def test_its_norms_are_those_of_the_unscaled_gradients(tmp_path):
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model, optimizer, tmp_path) as handle:
        scaled_steps(model, [optimizer], grad_scaler(), steps=1, bad=[(0, model[0].bias)])
    plain = mlp(torch.float32)
    ((x, y),) = batches(1, torch.float32)
    nn.functional.cross_entropy(plain(x), y).backward()
    want = [p.grad.norm().item() for p in plain.parameters()]
    want[1] = INF
    np.testing.assert_allclose(open_history(handle.dir).layer("grad_norm")[0], want, rtol=1e-6)


def test_nothing_else_happens_in_it(tmp_path):
    """Gradients, weights and the policy's state are what they are without that step; the constraint waits."""

    def run(bad):
        model = mlp(torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        handle = watch(model, optimizer, tmp_path, clip="AutoClip(50)", renorm="MaxNorm(0.1)")
        scaler = grad_scaler()
        if bad:
            weights = [p.clone() for p in model.parameters()]
            scaled_steps(model, [optimizer], scaler, steps=1, bad=[(0, model[2].bias)], seed=9)
            assert all(map(torch.equal, weights, model.parameters()))
            assert model[0].weight.norm(dim=1).max() > 0.2
            assert model[2].bias.grad.isinf().any()
        scaled_steps(model, [optimizer], scaler)
        state = handle.state_dict()
        handle.close()
        return [*model.parameters()], state_tensors(optimizer), state

    weights, slots, state = run(bad=True)
    want_weights, want_slots, want_state = run(bad=False)
    assert all(map(torch.equal, weights, want_weights))
    assert all(torch.equal(slots[k], want_slots[k]) for k in want_slots)
    assert all(torch.equal(state["policy_state"][k], want_state["policy_state"][k]) for k in want_state["policy_state"])
    assert (state["steps"], want_state["steps"]) == (13, 12)


class Reads(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.name() in ("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("fused", [False, True])
def test_only_the_scaler_itself_reads_from_the_device(fused, tmp_path, monkeypatch):
    monkeypatch.setattr(foreach, "can_be_read", lambda tensor: False)  # as on a device

    def run(watched):
        model = mlp(torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=fused, foreach=not fused)
        handle = (
            watch(model, optimizer, tmp_path, clip="ClipByGlobalNorm(0.1)", renorm="MaxNorm(1.0)") if watched else None
        )
        with Reads() as reads:
            scaled_steps(model, [optimizer], grad_scaler(), bad=[(0, model[0].bias), (5, model[0].bias)])
            count = reads.count
        if handle:
            handle.close()
        return count

    assert run(True) == run(False)


def test_a_step_that_raised_was_not_dropped(tmp_path):
    model = mlp(torch.float32)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.05), grad_scaler()
    with watch(model, optimizer, tmp_path) as handle:
        scaled_steps(model, [optimizer], scaler, steps=2)
        model.zero_grad()
        with pytest.raises(AssertionError, match="No inf checks"):
            scaler.step(optimizer)
        scaler = grad_scaler()
        scaled_steps(model, [optimizer], scaler, steps=2)
    assert open_history(handle.dir).step.tolist() == [0, 1, 2, 3]


def test_a_scaler_that_is_switched_off_is_as_if_it_were_not_there(tmp_path):
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model, optimizer, tmp_path) as handle:
        scaled_steps(model, [optimizer], grad_scaler(enabled=False), steps=3, bad=[(1, model[0].bias)])
    history = open_history(handle.dir)
    assert history.total("skipped").tolist() == [0, 0, 0]
    assert "loss_scale" not in history.per_step


@pytest.mark.parametrize("fused", [False, True])
def test_the_loss_scale_is_the_one_the_step_ran_under(fused, tmp_path, monkeypatch):
    def get_scale(self):
        raise AssertionError("get_scale() waits for the device")

    model, seen = mlp(torch.float32), []
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.05, fused=fused, foreach=not fused), grad_scaler()
    with watch(model, optimizer, tmp_path) as handle:
        with monkeypatch.context() as patch:
            patch.setattr(torch.amp.GradScaler, "get_scale", get_scale)
            bad = [(2, model[0].bias)]
            scaled_steps(model, [optimizer], scaler, bad=bad, before_step=lambda i: seen.append(scaler._scale.item()))
        optimizer.step()
        with pytest.warns(GradwatchWarning, match=r"loss_scale=.*gradwatch records loss_scale itself"):
            handle.log(loss_scale=1.0)
    assert len(set(seen)) > 2  # it grew, and it was halved
    assert open_history(handle.dir).total("loss_scale").tolist() == pytest.approx([*seen, np.nan], nan_ok=True)


# -------------------------------------------------------------------------------- a scaler and several optimizers


def two(model, kinds):
    return [
        torch.optim.SGD(part.parameters(), lr=0.05, fused=fused, foreach=not fused)
        for part, fused in zip((model[0], model[2]), kinds, strict=True)
    ]


@pytest.mark.parametrize("kinds", [(False, False), (True, True), (False, True), (True, False)])
@pytest.mark.parametrize(("clip", "by_hand"), [
    (None, lambda params: None),
    ("ClipByGlobalNorm(0.1)", lambda params: nn.utils.clip_grad_norm_(params, 0.1)),
    ("ClipByValue(0.01)", lambda params: nn.utils.clip_grad_value_(params, 0.01)),
])  # fmt: skip
def test_a_joint_norm_is_of_unscaled_gradients_whichever_the_scaler_has_unscaled(clip, by_hand, kinds, tmp_path):
    model, norms = mlp(torch.float32), []
    optimizers = two(model, kinds)
    with watch(model, optimizers, tmp_path, clip=clip) as handle:
        scaled_steps(model, optimizers, grad_scaler())
    want = mlp(torch.float32)

    def clip_by_hand(i):
        norms.append([p.grad.norm().item() for p in want.parameters()])
        by_hand(want.parameters())

    scaled_steps(want, two(want, kinds), grad_scaler(), unscale=True, before_step=clip_by_hand)
    np.testing.assert_allclose(open_history(handle.dir).layer("grad_norm"), norms, rtol=1e-4)
    for a, b in zip(model.parameters(), want.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("fused", [False, True])
def test_after_a_leader_that_was_dropped_the_others_are_clipped_by_their_own_gradients(fused, tmp_path):
    def three(model):
        kind = {"lr": 0.05, "fused": fused, "foreach": not fused}
        rest = [torch.optim.SGD([p], **kind) for p in model[2].parameters()]
        return [torch.optim.SGD(model[0].parameters(), lr=0.05), *rest]

    model = mlp(torch.float32)
    optimizers = three(model)
    with watch(model, optimizers, tmp_path, clip="ClipByGlobalNorm(0.35)") as handle:
        scaled_steps(model, optimizers, grad_scaler(), bad=[(5, model[0].bias)])
    history = open_history(handle.dir)
    assert history.step.tolist() == list(range(12))
    assert history.total("skipped").tolist() == [0] * 5 + [1] + [0] * 6
    assert set(history.optimizer) == {"SGD.0+SGD.1+SGD.2"}
    want = mlp(torch.float32)

    def by_hand(i):
        for params in [[want[2].weight], [want[2].bias]] if i == 5 else [want.parameters()]:
            nn.utils.clip_grad_norm_(params, 0.35)

    scaled_steps(want, three(want), grad_scaler(), bad=[(5, want[0].bias)], unscale=True, before_step=by_hand)
    for a, b in zip(model.parameters(), want.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


# ------------------------------------------------------------------------------------------- clips of the loop's own


class Sharded(torch.Tensor):
    """Stands in for a DTensor, whose value no one process knows."""


CLIPS = {
    "by name": (lambda m: clip_grad_norm_(m.parameters(), 0.1), {"user_max_norm": 0.1}),
    "module": (lambda m: nn.utils.clip_grad_norm_(list(m.parameters()), max_norm=0.1), {"user_max_norm": 0.1}),
    "keywords": (
        lambda m: clip_grad_norm_(max_norm=0.1, parameters=m.parameters(), norm_type=1, foreach=False),
        {"user_max_norm": 0.1},
    ),
    "one tensor": (lambda m: clip_grad_norm_(m[0].weight, 0.1), {"user_max_norm": 0.1}),
    "measuring": (lambda m: clip_grad_norm_(m.parameters(), INF), {"user_max_norm": INF}),
    "with norm": (
        lambda m: clip_grads_with_norm_(m.parameters(), 0.1, torch.tensor(3.0, dtype=torch.float64)),
        {"user_max_norm": 0.1, "user_grad_norm": 3.0},
    ),
    "sharded": (
        lambda m: clip_grads_with_norm_(m.parameters(), 0.1, torch.tensor(3.0).double().as_subclass(Sharded)),
        {"user_max_norm": 0.1},
    ),
    "by value": (lambda m: clip_grad_value_(m.parameters(), 0.01), {"user_clip_value": 0.01}),
    "value keywords": (
        lambda m: nn.utils.clip_grad_value_(clip_value=0.01, parameters=m[0].weight),
        {"user_clip_value": 0.01},
    ),
}
COLUMNS = ("user_max_norm", "user_grad_norm", "user_clip_value")


@pytest.mark.parametrize("form", CLIPS)
def test_a_clip_of_the_loops_own_is_recorded_with_the_step_that_follows(form, tmp_path):
    clip, want = CLIPS[form]

    def run(watched):
        model, returned = mlp(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def every_second(model):
            if len(returned) % 2:
                returned.append(clip(model))
            else:
                returned.append(None)

        handle = watch(model, optimizer, tmp_path) if watched else None
        train(model, optimizer, 6, before_step=every_second)
        if handle:
            handle.close()
        return [*model.parameters()], returned, handle

    weights, returned, handle = run(True)
    assert all(map(torch.equal, weights, run(False)[0]))  # it clips as it does without us
    history = open_history(handle.dir)
    measured = [np.nan if norm is None else norm.item() for norm in returned]
    columns = {name: [np.nan, value] * 3 for name, value in want.items()}
    if not np.isnan(measured).all():
        columns["user_grad_norm"] = measured
    assert set(COLUMNS) & history.per_step.keys() == columns.keys()
    for name, values in columns.items():
        np.testing.assert_allclose(history.total(name), values, rtol=1e-6)


def test_a_loop_without_clips_has_no_such_columns(tmp_path):
    model, other = mlp(), mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as handle:
        train(model, optimizer, 3, before_step=lambda m: clip_grad_norm_(other.parameters(), 1.0))  # not of this model
        for name in COLUMNS:
            with pytest.warns(GradwatchWarning, match="records"):
                handle.log(**{name: 1.0})
        assert "itself clips" not in handle.plan()
    assert not set(COLUMNS) & open_history(handle.dir).per_step.keys()


def test_each_of_two_optimizers_that_step_apart_has_its_own_clips(tmp_path):
    model = mlp()
    first, second = torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.SGD(model[2].parameters(), lr=0.1)
    with watch(model, [first, second], tmp_path) as handle:
        train(model, first, 1)
        with pytest.warns(match="do not step together"):
            train(model, first, 1)
        for (x, y), norm in zip(batches(2), (1.0, 2.0), strict=True):
            nn.functional.cross_entropy(model(x), y).backward()
            clip_grad_norm_(model[0].parameters(), norm)
            clip_grad_norm_(model[2].parameters(), 10 * norm)
            second.step()
            first.step()
    assert open_history(handle.dir).total("user_max_norm")[2:].tolist() == [10, 1, 20, 2]


def test_the_norm_that_the_loop_measured_is_not_read(tmp_path):
    def reads(watched):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
        handle = watch(model, optimizer, tmp_path) if watched else None
        with Reads() as mode:
            train(model, optimizer, 4, before_step=lambda m: clip_grad_norm_(m.parameters(), 0.1))
            count = mode.count
        if handle:
            handle.close()
        return count

    assert reads(True) == reads(False)


def test_a_clip_inside_a_closure_belongs_to_its_step(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as handle:
        for i, (x, y) in enumerate(batches(3)):

            def closure(x=x, y=y, i=i):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                if i == 1:
                    clip_grad_norm_(model.parameters(), 0.1)
                return loss

            optimizer.step(closure)
    np.testing.assert_array_equal(open_history(handle.dir).total("user_max_norm"), [np.nan, 0.1, np.nan])


def test_the_plan_says_that_the_loop_clips_too(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, clip="ClipByGlobalNorm(1.0)") as handle:
        train(model, optimizer, 2, before_step=lambda m: clip_grad_norm_(m.parameters(), 1.0))
        assert "the loop itself clips: clip_grad_norm_(max_norm=1.0)" in handle.plan()


def test_the_warning_of_an_exhausted_generator_is_still_torchs_own(tmp_path):
    model = mlp()

    def warned():
        with warnings.catch_warnings(record=True) as caught:  # torch 2.6 has none
            warnings.simplefilter("always")
            clip_grad_norm_((p for p in ()), 1.0)
        return [(warning.filename, str(warning.message)) for warning in caught]

    alone = warned()
    with watch(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path):
        assert warned() == alone


# -------------------------------------------------------------------------------------------------------- closures


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@pytest.mark.parametrize("keyword", [False, True])
def test_the_record_says_how_often_a_closure_ran(search, keyword, tmp_path):
    model, calls = mlp(), []
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn=search)
    (x, y), *_ = batches(1)

    def closure():
        calls[-1] += 1
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    with watch(model, optimizer, tmp_path) as handle:
        for _ in range(6):
            calls.append(0)
            optimizer.step(closure=closure) if keyword else optimizer.step(closure)
        with pytest.warns(GradwatchWarning, match="records evaluations itself"):
            handle.log(evaluations=1)
    history = open_history(handle.dir)
    assert history.total("evaluations").tolist() == calls
    assert max(calls) > 1


def test_a_step_without_a_closure_has_no_evaluations(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as handle:
        train(model, optimizer, 2)
        optimizer.step(lambda: model(torch.ones(1, 6).double()).sum().backward())
        train(model, optimizer, 1)
    np.testing.assert_array_equal(open_history(handle.dir).total("evaluations"), [np.nan, np.nan, 1, np.nan])


@pytest.mark.parametrize(("clip", "search", "warned"), [
    ("ClipByGlobalNorm(0.1)", "strong_wolfe", True),
    ("ClipByGlobalNorm(0.1)", None, False),
    (None, "strong_wolfe", False),
])  # fmt: skip
def test_a_line_search_and_a_clip_do_not_go_together(clip, search, warned, tmp_path):
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn=search)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        watch(model, optimizer, tmp_path, clip=clip).close()
    assert [str(w.message)[:44] for w in caught] == ["LBFGS(line_search_fn='strong_wolfe') with cl"] * warned
    assert all((w.category, w.filename) == (GradwatchWarning, gradwatch_caller()) for w in caught)


def gradwatch_caller():
    return watch.__code__.co_filename  # tests/support/training.py, whose line calls gradwatch.watch


# ----------------------------------------------------------------------------------------------- torch's functions


@pytest.fixture
def no_other_watch(monkeypatch):
    """As if no Watch that another test left open were listening."""
    monkeypatch.setattr(torch_patches, "_seen", torch_patches._Seen())


def test_torchs_functions_are_its_own_again_when_the_last_watch_is_closed(no_other_watch, tmp_path):
    def functions():
        cells = [f.__closure__[0].cell_contents for f in (nn.utils.clip_grads_with_norm_, nn.utils.clip_grad_value_)]
        return [torch.amp.GradScaler.step, *cells]

    own, pairs = functions(), []
    for _ in range(2):
        model = mlp()
        pairs.append(watch(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path))
    assert all(a is not b for a, b in zip(own, functions(), strict=True))
    pairs[0].close()
    assert all(a is not b for a, b in zip(own, functions(), strict=True))
    pairs[1].close()
    assert all(a is b for a, b in zip(own, functions(), strict=True))


def test_what_someone_else_put_around_them_stays(no_other_watch, tmp_path, monkeypatch):
    calls = []

    def around(function):
        def other(*args, **kwargs):
            calls.append(function.__name__)
            return function(*args, **kwargs)

        return other

    cell = nn.utils.clip_grad_value_.__closure__[0]
    own = torch.amp.GradScaler.step, cell.cell_contents
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = watch(model, optimizer, tmp_path)
    theirs = around(torch.amp.GradScaler.step), around(cell.cell_contents)
    torch.amp.GradScaler.step, cell.cell_contents = theirs
    monkeypatch.setattr(nn.utils, "clip_grad_norm_", around(nn.utils.clip_grad_norm_))

    def clip(i):
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        nn.utils.clip_grad_value_(model.parameters(), 0.1)

    try:
        scaled_steps(model, [optimizer], grad_scaler(), steps=2, before_step=clip, bad=[(0, model[0].bias)])
        handle.close()
        assert (torch.amp.GradScaler.step, cell.cell_contents) == theirs
        with watch(model, optimizer, tmp_path) as again:
            scaled_steps(model, [optimizer], grad_scaler(), steps=2, before_step=clip, bad=[(1, model[0].bias)])
    finally:
        torch.amp.GradScaler.step, cell.cell_contents = own
    assert calls == ["clip_grad_norm_", "clip_grad_value_", "step"] * 4
    for folder, skipped in ((handle.dir, [1, 0]), (again.dir, [0, 1])):
        history = open_history(folder)
        assert history.total("skipped").tolist() == skipped
        assert (history.total("user_max_norm") == 0.1).all()
        assert (history.total("user_clip_value") == 0.1).all()


def test_functions_that_are_made_otherwise_are_seen_through_their_modules(no_other_watch, tmp_path, monkeypatch):
    """A torch whose clips are plain functions: replaced where they are found, and by the name clip_grad_norm_ uses."""
    module = nn.utils.clip_grad
    for name, inside in (("clip_grads_with_norm_", "_clip_grads_with_norm_"), ("clip_grad_value_", "clip_grad_value_")):
        plain = torch.no_grad()(getattr(module, inside).__closure__[0].cell_contents)
        monkeypatch.setattr(nn.utils, name, plain)
        monkeypatch.setattr(module, inside, plain)
    before = {(m, k): v for m in (nn.utils, module) for k, v in vars(m).items()}
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as handle:
        train(model, optimizer, 1, before_step=lambda m: clip_grad_norm_(m.parameters(), 0.1))
        train(model, optimizer, 1, before_step=lambda m: nn.utils.clip_grad_value_(m.parameters(), 0.2))
    history = open_history(handle.dir)
    np.testing.assert_array_equal(history.total("user_max_norm"), [0.1, np.nan])
    np.testing.assert_array_equal(history.total("user_clip_value"), [np.nan, 0.2])
    assert before == {(m, k): v for m in (nn.utils, module) for k, v in vars(m).items()}

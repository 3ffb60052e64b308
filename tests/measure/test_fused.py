"""A fused optimizer's kernel scales by itself: held against the plain path, class by class."""

import numpy as np
import pytest
import torch
from devices import DEVICES, skip_unless_fused
from torch import nn
from training import batches, mlp, state_tensors, train, watch

from gradwatch import ClipByGlobalNorm, open_history
from gradwatch.measure.fused import CLASSES
from gradwatch.recording import torch_patches

SETTINGS = {torch.optim.SGD: {"lr": 0.3, "momentum": 0.9}, torch.optim.Adagrad: {"lr": 0.1}}


def run(cls, tmp_path, *, watched, fused, clip="ClipByGlobalNorm(0.1)", steps=60, dtype=torch.float32,
        device="cpu"):  # fmt: skip
    model = mlp(dtype).to(device)
    optimizer = cls(model.parameters(), fused=fused, **SETTINGS.get(cls, {"lr": 0.05}))
    seen = []

    def by_hand(model):
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    def after(model, loss):
        seen.append([p.grad.clone() for p in model.parameters()])

    handle = watch(model, optimizer, tmp_path, clip=clip) if watched else None
    train(model, optimizer, steps, before_step=None if watched else by_hand, dtype=dtype, after_step=after)
    if handle:
        handle.close()
    return model, optimizer, seen


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cls", CLASSES)
def test_the_kernel_scales_as_torchs_clip_does(cls, device, tmp_path):
    skip_unless_fused(cls, device)
    model, optimizer, seen = run(cls, tmp_path, watched=True, fused=True, device=device)
    want_model, want_optimizer, want_seen = run(cls, tmp_path, watched=False, fused=True, device=device)
    for got, want in ((model.parameters(), want_model.parameters()), *zip(seen, want_seen, strict=True)):
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-6)  # 60 steps of roundings in float32
    state, want_state = state_tensors(optimizer), state_tensors(want_optimizer)
    assert state.keys() == want_state.keys()
    for key in state:
        torch.testing.assert_close(state[key], want_state[key], rtol=2e-4, atol=2e-6)
    assert not hasattr(optimizer, "grad_scale")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("cls", "dtype"), [(cls, dtype) for cls, dtypes in CLASSES.items() for dtype in dtypes])
def test_one_step_agrees_to_rounding(cls, dtype, device, tmp_path):
    """In bfloat16 to two units in the last place: torch's clip rounds its norm and coefficient to it as well."""
    skip_unless_fused(cls, device)
    rtol = 2e-6 if dtype is torch.float32 else 2**-7
    model, _, seen = run(cls, tmp_path, watched=True, fused=True, steps=1, device=device, dtype=dtype)
    want, _, want_seen = run(cls, tmp_path, watched=False, fused=False, steps=1, device=device, dtype=dtype)
    for a, b in zip([*model.parameters(), *seen[0]], [*want.parameters(), *want_seen[0]], strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol / 20)


@pytest.mark.parametrize("fused", [(True, False, True), (False, True, False)])
def test_a_group_that_is_no_longer_fused_is_clipped_all_the_same(fused, tmp_path):
    """As where a state is loaded that was saved from another optimizer."""
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    handle = watch(model, optimizer, tmp_path, clip=ClipByGlobalNorm(1e-3), every=1)
    for is_fused in fused:
        optimizer.param_groups[0]["fused"] = is_fused
        before = [p.detach().clone() for p in model.parameters()]
        for p in model.parameters():
            p.grad = torch.full_like(p, 0.3)
        optimizer.step()
        moved = torch.linalg.vector_norm(
            torch.cat([(p - was).detach().flatten() for p, was in zip(model.parameters(), before, strict=True)])
        )
        assert float(moved) == pytest.approx(0.1 * 1e-3, rel=1e-2)
    handle.close()
    history = open_history(handle.dir)
    np.testing.assert_allclose(history.layer("clip_coef") * history.total("grad_norm")[:, None], 1e-3, rtol=1e-2)


@pytest.mark.parametrize("limit", [0.0, 1e-38, 1e-20, 1.0, 1e30, float("inf")])
def test_a_kernel_that_divides_takes_any_threshold(limit, tmp_path):
    def gradients(watched):
        model = mlp(torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0, fused=True)
        handle = watch(model, optimizer, tmp_path, clip=ClipByGlobalNorm(limit)) if watched else None
        for p in model.parameters():
            p.grad = torch.full_like(p, 0.3)
        if not watched:
            nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        if handle:
            handle.close()
        return [p.grad for p in model.parameters()]

    for got, want in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-42)


class Count(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.scales = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.scales += func.name().startswith("aten::_foreach_mul_.")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("settings", "clip", "passes"), [
    ({"fused": True}, "ClipByGlobalNorm(0.1)", 0),
    ({"fused": True}, "chain(ClipByGlobalNorm(0.1), ZClip())", 0),
    ({"fused": True}, "ClipByNorm(0.1)", 1),  # one coefficient per layer: the kernel takes only one for all
    ({"fused": True, "dtype": torch.float64}, "ClipByGlobalNorm(0.1)", 1),
])  # fmt: skip
def test_when_the_scale_pass_is_gone(settings, clip, passes, tmp_path):
    settings = dict(settings)
    model = mlp(settings.pop("dtype", torch.float32))
    optimizer = torch.optim.AdamW(model.parameters(), **settings)
    with watch(model, optimizer, tmp_path, clip=clip):
        for _ in range(2):
            for p in model.parameters():
                p.grad = torch.randn_like(p)
            with Count() as count:
                optimizer.step()
    assert count.scales == passes


@pytest.mark.parametrize("clip", ["ClipByGlobalNorm(0.1)", "AutoClip()"])
@pytest.mark.parametrize("others", ["there", "missing"])
def test_no_kernel_writes_to_a_gradient_that_is_expanded(clip, others, tmp_path, monkeypatch):
    """It would write beyond its memory. torch's clip raises, and so does this."""
    weight, bias = nn.Parameter(torch.zeros(64, 16)), nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight, bias], 0.1, fused=True)
    with watch(nn.ParameterList([weight, bias]), optimizer, tmp_path, clip=clip):
        for _ in range(2):
            weight.grad = torch.randn(16, 64).T  # in another order: it fills its memory
            bias.grad = torch.ones(3) if others == "there" else None
            optimizer.step()
        stepped = []
        monkeypatch.setattr(torch, "_fused_sgd_", lambda *args, **words: stepped.append(words))
        weight.grad = torch.full((1, 16), 100.0).expand(64, 16)
        with pytest.raises(RuntimeError, match="refers to a single memory location"):
            optimizer.step()
        assert not stepped


def test_a_step_that_raised_leaves_no_scale_behind(tmp_path):
    model = mlp(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with watch(model, optimizer, tmp_path, clip="ClipByGlobalNorm(0.1)"):
        train(model, optimizer, 2, dtype=torch.float32)
        optimizer.param_groups[0]["betas"] = None
        with pytest.raises(TypeError):
            optimizer.step()
        optimizer.param_groups[0]["betas"] = (0.9, 0.999)
        model[0].weight.grad = torch.full_like(model[0].weight, 3.0)
        optimizer.step()
    total = torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()
    assert total == pytest.approx(0.1, rel=1e-5)


def interrupt_one_step(optimizer, step):
    """Let one step raise when gradwatch's own hook has run, as an allocation that fails or Ctrl-C does."""

    def raise_it(*_):
        raise KeyboardInterrupt

    handle = optimizer.register_step_pre_hook(raise_it)
    with pytest.raises(KeyboardInterrupt):
        step(optimizer)
    handle.remove()


def moves_like_a_fresh_one(model, optimizer):
    """Whether a step moves the weights as far as one of an optimizer that was never watched."""
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.full_like(p, 0.5)
    optimizer.step()
    unit = optimizer.param_groups[0]["lr"] * 0.5
    moved = [(a - b.detach()) / unit for a, b in zip(before, model.parameters(), strict=True)]
    return all(torch.allclose(m, torch.ones_like(m), rtol=1e-3) for m in moved)


@pytest.mark.parametrize("under_scaler", [False, True])
@pytest.mark.parametrize("ending", ["close", "abandon", "close fails", "next watch"])
def test_nothing_set_for_a_step_that_was_interrupted_outlives_it(ending, under_scaler, tmp_path, monkeypatch):
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=under_scaler)
    handle = watch(model, optimizer, tmp_path, clip="ClipByGlobalNorm(0.001)")
    train(model, optimizer, 2, dtype=torch.float32)
    for p in model.parameters():
        p.grad = torch.full_like(p, 0.5)
    scaler.scale(torch.zeros(()))  # a scaler makes its scale when first used
    interrupt_one_step(optimizer, scaler.step)
    scaler.update(1.0)
    if ending == "close":
        handle.close()
    elif ending == "abandon":
        handle._abandon()
    elif ending == "close fails":
        monkeypatch.setattr(handle, "_drain", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            handle.close()
    else:
        handle._stepper.hooks.remove()  # a Watch that ended in no way of its own
        torch_patches.leave(handle._stepper.listener)
    if ending == "next watch":
        with watch(model, optimizer, tmp_path / "next") as later:
            for p in model.parameters():
                p.grad = torch.full_like(p, 0.5)
            optimizer.step()
        got = open_history(later.dir).layer("grad_norm")[-1]
        want = [p.grad.norm().item() for p in model.parameters()]
        np.testing.assert_allclose(got, want, rtol=1e-5)
        handle.close()
    if under_scaler:  # torch's own scaler leaves its attributes on an optimizer whose step raised
        assert optimizer.grad_scale.item() == 2.0**10
        del optimizer.grad_scale, optimizer.found_inf
    assert not hasattr(optimizer, "grad_scale")
    assert moves_like_a_fresh_one(model, optimizer)


@pytest.mark.parametrize("clears", [True, False])
def test_a_scaler_goes_on_after_an_interrupted_step_as_it_would_unwatched(clears, tmp_path):
    def weights(watched):
        model = mlp(torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        scaler.scale(torch.zeros(()))

        def step(*_):
            for p in model.parameters():
                p.grad = torch.full_like(p, 0.5 * scaler.get_scale())
            scaler.step(optimizer)
            scaler.update(2.0**8)  # another scale than that of the step that was interrupted

        handle = watch(model, optimizer, tmp_path, clip="ClipByGlobalNorm(1000.0)") if watched else None
        step()
        interrupt_one_step(optimizer, step)
        if clears:  # what torch's scaler left, and would multiply the next scale by
            del optimizer.grad_scale, optimizer.found_inf
        scaler.update(2.0**6)
        step()
        if handle:
            handle.close()
        return list(model.parameters())

    for a, b in zip(weights(True), weights(False), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_a_scaler_that_unscaled_finds_its_attribute_again(tmp_path):
    def train_with_scaler(watched):
        model = mlp(torch.float32)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        handle = watch(model, optimizer, tmp_path, clip="ClipByGlobalNorm(0.1)") if watched else None
        for x, y in batches(10, torch.float32):
            optimizer.zero_grad()
            scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
            scaler.unscale_(optimizer)
            if not watched:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
        if handle:
            handle.close()
        return model

    for a, b in zip(train_with_scaler(True).parameters(), train_with_scaler(False).parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def amp(tmp_path, *, watched, clip, by_hand=lambda params: None, bad_step=None, dtype=torch.float32):
    """A fused optimizer under GradScaler, in the order most people write; the oracle unscales first, then clips."""
    model = mlp(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
    handle = watch(model, optimizer, tmp_path, clip=clip, every=3) if watched else None
    norms = []
    for i, (x, y) in enumerate(batches(12, dtype)):
        optimizer.zero_grad()
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        if i == bad_step:
            model[0].bias.grad[0] = float("inf")
        if not watched:
            scaler.unscale_(optimizer)
            norms.append([p.grad.norm().item() for p in model.parameters()])
            by_hand(list(model.parameters()))
        scaler.step(optimizer)
        scaler.update()
    if handle:
        handle.close()
    return model, optimizer, norms, handle and open_history(handle.dir)


def each(params):
    for p in params:
        p.grad.mul_(0.05 / p.grad.norm().clamp(min=0.05))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("clip", "by_hand"), [
    ("ClipByGlobalNorm(0.1)", lambda params: nn.utils.clip_grad_norm_(params, 0.1)),
    ("ClipByNorm(0.05)", each),
    ("ClipByValue(0.01)", lambda params: nn.utils.clip_grad_value_(params, 0.01)),
    ("SkipNonfinite()", lambda params: None),
])  # fmt: skip
def test_a_threshold_is_in_unscaled_units_under_a_scaler(clip, by_hand, dtype, tmp_path):
    model, _, _, history = amp(tmp_path, watched=True, clip=clip, dtype=dtype)
    want, _, norms, _ = amp(tmp_path, watched=False, clip=clip, by_hand=by_hand, dtype=dtype)
    np.testing.assert_allclose(history.layer("grad_norm"), norms, rtol=1e-3)
    for a, b in zip(model.parameters(), want.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_under_a_scaler_and_without_a_policy_training_is_bit_identical(tmp_path):
    def plain():
        model = mlp(torch.float32)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
        for x, y in batches(12, torch.float32):
            optimizer.zero_grad()
            scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
        return model

    model, optimizer, _, history = amp(tmp_path, watched=True, clip=None)
    for a, b in zip(model.parameters(), plain().parameters(), strict=True):
        assert torch.equal(a, b)
    assert 0.01 < history.total("grad_norm").max() < 10  # not 1,024 times that
    assert not hasattr(optimizer, "grad_scale")


@pytest.mark.parametrize("clip", [None, "ClipByGlobalNorm(0.1)", "ClipByNorm(0.05)", "AutoClip(50)"])
def test_a_step_that_the_scaler_drops_is_recorded_as_skipped(clip, tmp_path):
    model, optimizer, _, history = amp(tmp_path, watched=True, clip=clip, bad_step=5)
    assert history.total("skipped").tolist() == [0] * 5 + [1] + [0] * 6
    assert history.nonfinite.tolist() == [0, 1, 0, 0]
    assert all(p.isfinite().all() for p in model.parameters())
    assert {state["step"].item() for state in optimizer.state.values()} == {11}


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_non_finite_norm_does_what_it_does_in_torch(bad, tmp_path):
    def step(by_hand):
        model = mlp(torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
        handle = None if by_hand else watch(model, optimizer, tmp_path, clip="ClipByGlobalNorm(0.1)")
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        model[0].bias.grad[0] = bad
        if by_hand:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        if handle:
            handle.close()
        return [*model.parameters()]

    for a, b in zip(step(by_hand=False), step(by_hand=True), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


# --------------------------------------------------------------------- SGD's momentum, when its first steps are dropped


@pytest.fixture
def poisoned_memory():
    """What is allocated and not written holds NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def momentum_after(drops, steps, tmp_path, watched=True, **settings):
    """Fused SGD under a scaler; the steps in `drops` come before the others and overflow."""
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=True, **{"momentum": 0.9, **settings})
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    handle = watch(model, optimizer, tmp_path) if watched else None
    for i, (x, y) in enumerate([*batches(drops, torch.float32, seed=7), *batches(steps, torch.float32)]):
        optimizer.zero_grad()
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        if i < drops:
            model[0].bias.grad[0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
    if handle:
        handle.close()
    return [*model.parameters()], state_tensors(optimizer)


SGDS = [{}, {"nesterov": True}, {"weight_decay": 0.1}, {"maximize": True}, {"dampening": 0.5}, {"dampening": 1.0}]


@pytest.mark.parametrize("settings", SGDS, ids=repr)
@pytest.mark.parametrize("drops", [1, 3])
def test_dropped_first_steps_leave_no_momentum(drops, settings, poisoned_memory, tmp_path):
    weights, state = momentum_after(drops, 4, tmp_path, **settings)
    want_weights, want_state = momentum_after(0, 4, tmp_path, watched=False, **settings)
    assert all(map(torch.equal, weights, want_weights))
    assert all(torch.equal(state[key], want_state[key]) for key in want_state)


def test_in_plain_torch_they_leave_whatever_was_in_memory(poisoned_memory, tmp_path):
    weights, _ = momentum_after(1, 4, tmp_path, watched=False)
    assert weights[0].isnan().any()


@pytest.mark.parametrize(
    ("clip", "settings", "wanted"),
    [
        ("ClipByGlobalNorm(0.1)", {"fused": True}, "AdamW: its fused kernel scales (grad_scale): no pass of its own"),
        ("ClipByGlobalNorm(0.1)", {}, "one pass that scales all gradients; not in the kernel, because it is not fused"),
        ("ClipByNorm(0.1)", {"fused": True}, "one pass that scales each layer by its own; not in the kernel, because"),
        ("ClipByValue(0.1)", {"fused": True}, "AdamW: each tensor is changed by the policy itself"),
        ("SkipNonfinite()", {"fused": True}, "nothing is scaled: the policy only lets steps happen or not"),
    ],
)
def test_the_plan_names_the_way_that_is_taken(clip, settings, wanted, tmp_path):
    model = mlp(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), **settings)
    with watch(model, optimizer, tmp_path, clip=clip) as handle:
        text = handle.plan()
        assert wanted in text
        batch = next(iter(batches(1, torch.float32)))
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        scales = []
        optimizer.register_step_pre_hook(lambda o, *_: scales.append(getattr(o, "grad_scale", None)))
        optimizer.step()
    assert ("its fused kernel scales" in text) == (scales[0] is not None)


def test_the_plan_says_why_a_kernel_does_not_scale(tmp_path):
    model = mlp(torch.float32)
    first, second = [p for n, p in model.named_parameters() if n[0] == "0"], list(model.parameters())[2:]
    apart = [torch.optim.AdamW(first, fused=True), torch.optim.AdamW(second, fused=True)]
    with watch(model, apart, tmp_path, clip="ClipByGlobalNorm(0.1)") as handle:
        assert handle.plan().count("because several optimizers are clipped together") == 2
    mixed = torch.optim.AdamW([{"params": first, "fused": True}, {"params": second}])
    with watch(model, mixed, tmp_path, clip="ClipByGlobalNorm(0.1)") as handle:
        assert "AdamW (2 param groups)" in handle.plan()
        assert "because param group 1 is not fused" in handle.plan()


@pytest.mark.parametrize(("cls", "dtype", "folds"), [
    (torch.optim.AdamW, torch.float64, False),
    (torch.optim.AdamW, torch.bfloat16, True),
    (torch.optim.AdamW, torch.float16, False),
    (torch.optim.SGD, torch.bfloat16, False),
])  # fmt: skip
def test_the_dtypes_of_weights_that_a_kernel_scales(cls, dtype, folds, tmp_path):
    model = mlp(dtype)
    optimizer = cls(model.parameters(), lr=0.1, fused=True)
    with watch(model, optimizer, tmp_path, clip="ClipByGlobalNorm(1e-3)") as handle:
        why = f"because some weights are {str(dtype).removeprefix('torch.')}"
        assert ("its fused kernel scales" if folds else why) in handle.plan()
        for p in model.parameters():
            p.grad = torch.full_like(p, 0.3)
        scales = []
        optimizer.register_step_pre_hook(lambda o, *_: scales.append(getattr(o, "grad_scale", None)))
        optimizer.step()
    assert (scales[0] is not None) == folds
    assert float(torch.stack([p.grad.float().norm() for p in model.parameters()]).norm()) == pytest.approx(
        1e-3, rel=0.01
    )

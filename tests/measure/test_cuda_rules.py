"""CUDA's rules where they differ from a CPU's, kept without a GPU: its rounding is imitated, its tensors are fake.

What only a GPU can show is marked `gpu`.
"""

import contextlib
import random
import string
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from devices import DEVICES, skip_unless_fused
from fake_cuda import Trace, fake_cuda, parameters, step_of, take_step, with_triton
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._python_dispatch import TorchDispatchMode
from training import ELEMENT_POLICIES, NORM_POLICIES, mlp, state_tensors, watch

from gradwatch import (
    AGC,
    ClipByGlobalNorm,
    ClipByNorm,
    Decision,
    NormPolicy,
    SkipNonfinite,
    SkipNorm,
    SkipSpike,
    open_history,
)
from gradwatch.measure import foreach, multi_tensor, small_tensors
from gradwatch.measure.foreach import scale_
from gradwatch.measure.fused import CLASSES, why_not_folded
from gradwatch.measure.gradients import Batch
from gradwatch.measure.layout import Layout
from gradwatch.policies import parse
from gradwatch.recording.plan import plan as stepper_plan

HALVES = [torch.float16, torch.bfloat16]


# ------------------------------------------------------------------------------------------------------------- rounding


class CudaRounding(TorchDispatchMode):
    """A factor without dimensions takes the dtype of the tensor before it multiplies (BinaryFunctor in Loops.cuh)."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name()
        if name.startswith(("aten::mul", "aten::div")) and isinstance(args[1], torch.Tensor):
            args = (args[0], as_cuda_reads(args[0], args[1]), *args[2:])
        if name in ("aten::_foreach_mul_.Tensor", "aten::_foreach_mul_.List"):
            factors = [args[1]] * len(args[0]) if name.endswith("Tensor") else args[1]
            read = [as_cuda_reads(t, f) for t, f in zip(args[0], factors, strict=True)]
            return torch.ops.aten._foreach_mul_.List(args[0], read)
        return func(*args, **(kwargs or {}))


def as_cuda_reads(tensor, factor):
    return factor.to(tensor.dtype) if tensor.dim() and not factor.dim() and tensor.dtype in HALVES else factor


def test_the_imitation_rounds_as_cuda_does():
    ones, coef = torch.ones(2, dtype=torch.bfloat16), torch.tensor(0.999)
    with CudaRounding():
        torch._foreach_mul_([ones], coef)
    assert ones.tolist() == [1, 1]
    ones = torch.full((2,), 3.0, dtype=torch.bfloat16)
    assert (ones * torch.tensor(1.006)).tolist() == [3.015625] * 2  # as a CPU does it
    with CudaRounding():
        assert (ones * torch.tensor(1.006)).tolist() == [3.03125] * 2


def halves(dtype, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    shapes = [(40, 30), (64,), (), (3, 5, 7)]
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(device, dtype) for s in shapes]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize("absent", [[], [1]])
def test_each_half_is_multiplied_by_the_whole_coefficient_and_rounded_once(dtype, per_layer, absent, device):
    tensors = halves(dtype, device)
    coef = torch.linspace(0.9871, 0.9996, 4) if per_layer else torch.tensor(0.5712)
    want = [(t.double() * c.double()).to(dtype) for t, c in zip(halves(dtype), coef.expand(4), strict=True)]
    layout = Layout({str(i): nn.Parameter(t.clone()) for i, t in enumerate(tensors)})
    batch = Batch(layout, [None if i in absent else t for i, t in enumerate(tensors)])
    with CudaRounding():
        scale_(layout, batch.groups, coef.to(device))
    for i, (got, wanted, before) in enumerate(zip(tensors, want, halves(dtype), strict=True)):
        assert torch.equal(got.cpu(), before if i in absent else wanted), i


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
@pytest.mark.parametrize(("blocks", "times"), [(57, 1), (20, 3)])
def test_small_tensors_that_are_scaled_together_are_as_if_each_was_alone(dtype, blocks, times, device, monkeypatch):
    """Large ones among them, one that is not contiguous, one without dimensions, and one that is absent."""
    monkeypatch.setattr(multi_tensor, "kernels", lambda: None)
    monkeypatch.setattr(foreach, "can_be_read", lambda _: False)
    monkeypatch.setattr(small_tensors, "SMALL", 2**14)
    monkeypatch.setattr(small_tensors, "ROOM", 64 * blocks)
    generator = torch.Generator().manual_seed(0)
    shapes = [(), (200, 90), *((1 + i % 5, 3, 7) for i in range(40))]
    numbers = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    numbers[7] = numbers[7].transpose(0, 2)
    tensors = [n.to(device, dtype) for n in numbers]
    coef = torch.linspace(
        0.9871, 0.9996, len(tensors), dtype=torch.float64 if dtype is torch.float64 else torch.float32
    )
    want = [(t.double() * c.double().to(device)).to(dtype) for t, c in zip(tensors, coef, strict=True)]
    want[11] = tensors[11].clone()
    layout = Layout({str(i): nn.Parameter(t.clone()) for i, t in enumerate(tensors)})
    batch = Batch(layout, [None if i == 11 else t for i, t in enumerate(tensors)])
    calls = []
    for name in ("_foreach_mul_", "_foreach_copy_"):
        plain = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda a, b, plain=plain: (calls.append(len(a)), plain(a, b)))
    with CudaRounding():
        scale_(layout, batch.groups, coef.to(device))
    assert all(map(torch.equal, tensors, want))
    passes = 2 if dtype in HALVES else 1  # there and back again, or a multiplication
    assert sum(calls) == 2 + 39 * passes
    assert calls[-1] == 2  # the large one, and the one that is not contiguous
    assert len(calls) == 1 + times * passes


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("policy", [AGC(0.01), ClipByNorm(0.9, axes=(0,)), ClipByNorm(0.9)], ids=repr)
def test_what_an_element_policy_does_to_a_half_is_rounded_once(policy, dtype, device):
    """A bias is one unit, whose coefficient has no dimensions."""
    double, half = ([t.to(device, kind) for t in halves(dtype) if t.dim()] for kind in (torch.float64, dtype))
    for tensors in (double, half):
        layout = Layout({str(i): nn.Parameter(t.clone()) for i, t in enumerate(tensors)})
        batch = Batch(layout, tensors)
        with CudaRounding(), torch.no_grad():
            policy.apply(batch, {})
            batch.apply_pending()
    for got, wanted in zip(half, double, strict=True):
        kind = torch.finfo(dtype)
        torch.testing.assert_close(
            got.double(), wanted, rtol=kind.eps / 2 * 1.001, atol=kind.smallest_normal * kind.eps
        )


# ------------------------------------------------------------------------------------------------ waits and constants


SHAPES = {"a": (6, 4), "b": (6,), "c": (3, 6), "d": (3,)}
POLICIES = [None, *NORM_POLICIES, *(p for p in ELEMENT_POLICIES if not isinstance(p, AGC))]


@pytest.mark.parametrize("policy", [None, *NORM_POLICIES, *ELEMENT_POLICIES], ids=repr)
def test_a_pattern_of_present_gradients_makes_nothing_that_stays(policy):
    """Experts without a token, layers that are dropped: any pattern may come, and there is no end of them."""
    names = {f"{group}.{name}": shape for group in "01" for name, shape in SHAPES.items()}
    patterns = random.Random(0)
    with fake_cuda():
        params = parameters(names, torch.bfloat16)
        optimizer = torch.optim.AdamW(params.values(), fused=True)
        stepper = step_of(params, optimizer, policy, every=3)
        for _ in range(3):  # the optimizer's state and our constants are made, of steps that measure weights too
            take_step(params, optimizer)
            take_step(params, optimizer, absent=lambda i: i % 2 == 1)
        kept = len(stepper.layout._constants)
        with Trace() as trace:
            for _ in range(12):
                take_step(params, optimizer, absent=lambda i: patterns.random() < 0.3)
        assert len(stepper.layout._constants) == kept
        assert trace.reads == trace.copies == []


def test_the_trace_sees_what_waits():
    with fake_cuda(), Trace() as trace:
        x = torch.empty(4, device="cuda")
        torch.tensor([1.0, 2.0], device="cuda")
        x.copy_(torch.empty(4))
        x.to("cpu")
        with pytest.raises(DataDependentOutputException):
            float(x.sum())
    assert "cpu to cuda:0" in trace.copies
    assert "cuda:0 to cpu" in trace.copies
    assert trace.copies.count("cpu to cuda:0") >= 2
    assert trace.reads == ["_local_scalar_dense"]


@pytest.mark.parametrize("value", [0.25, [0.25], [[0.25]]])
def test_a_value_that_is_on_the_cpu_is_no_copy_to_the_device(value):
    with fake_cuda():
        params = parameters(SHAPES, torch.float32)
        optimizer = torch.optim.AdamW(params.values(), fused=True)
        recorder = step_of(params, optimizer).recorder
        for _ in range(2):
            take_step(params, optimizer)
        logged = torch.tensor(value, dtype=torch.float64)  # fake, but it knows what it was made of
        with Trace() as trace:
            recorder.log({"accuracy": logged})
    assert trace.copies == []
    assert recorder.values[-1][1:] == ("accuracy", 0.25)


def test_a_learning_rate_that_is_on_the_cpu_is_no_copy_to_the_device():
    with fake_cuda():
        params = parameters(SHAPES, torch.float32)
        optimizer = torch.optim.SGD(params.values(), lr=0.1)
        recorder = step_of(params, optimizer).recorder
        take_step(params, optimizer)
        optimizer.param_groups[0]["lr"] = torch.tensor(0.5)
        for p in params.values():
            p.grad = torch.empty_like(p)
        optimizer.step = lambda: None  # torch's own step with such a rate waits; ours must not
        with Trace() as trace:
            recorder.add({"lr": optimizer.param_groups[0]["lr"]})
    assert trace.copies == []
    assert recorder.values[-1][1:] == ("lr", 0.5)


@dataclass(frozen=True, repr=False)
class Fixed(NormPolicy):
    """A coefficient of one's own, wherever it is and of whatever dtype."""

    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    def decide(self, norms, state):
        return Decision(torch.full((), 0.5, dtype=self.dtype, device=self.device))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.float32, torch.int64])
@pytest.mark.parametrize("fused", [True, False])
def test_a_coefficient_of_any_dtype_is_applied(dtype, fused, tmp_path):
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    before = [p.detach().clone() for p in model.parameters()]
    with watch(model, optimizer, tmp_path, clip=Fixed(dtype)) as handle:
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
    factor = 0.0 if dtype is torch.int64 else 0.5
    for p, was in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), was - 0.1 * factor)
    np.testing.assert_allclose(open_history(handle.dir).total("clip_coef"), factor)


def test_a_kernel_does_not_scale_weights_on_two_kinds_of_device():
    """torch brings the scale to the CPU without waiting for it, and the kernel there reads whatever is in its place."""
    with fake_cuda():
        gpu, cpu = parameters({"a": (3, 2)}, torch.float32), parameters({"b": (2,)}, torch.float32, "cpu")
        both = {**gpu, **cpu}
        optimizer = torch.optim.AdamW(both.values(), fused=True)
        assert "several kinds of device" in why_not_folded([optimizer], Layout(both), dims=0)
        for alone in (gpu, cpu):
            assert not why_not_folded([torch.optim.AdamW(alone.values(), fused=True)], Layout(alone), dims=0)
        step_of(both, optimizer, ClipByGlobalNorm(1.0))
        scales = []
        optimizer.register_step_pre_hook(lambda o, *_: scales.append(getattr(o, "grad_scale", None)))
        take_step(both, optimizer)
    assert scales == [None]


# -------------------------------------------------------------------------------------------------------------- skips


SKIPS = [
    SkipNonfinite(),
    SkipNorm(1.0),
    SkipSpike(3.0, window=8),
    parse("chain(SkipNonfinite(), ClipByGlobalNorm(1.0))"),
]


def test_the_plan_says_that_skips_in_a_row_are_read_now_and_then():
    with fake_cuda():
        params = parameters({"a": (3, 2)}, torch.float32)
        optimizer = torch.optim.AdamW(params.values(), fused=True)
        stepper = step_of(params, optimizer, parse("chain(SkipNonfinite(at_most=4), ClipByGlobalNorm(1.0))"), every=100)
        assert "one number is read every 16 steps, for at_most" in stepper_plan(stepper)


@pytest.mark.parametrize(
    ("kernels", "words"),
    [(contextlib.nullcontext, "in torch's calls for lists"), (with_triton, "in one kernel for all")],
)
def test_the_plan_says_how_norms_are_taken(kernels, words, monkeypatch):
    monkeypatch.setattr(multi_tensor, "kernels", lambda: None)  # of the device, where there is one
    with fake_cuda(), kernels():
        params = parameters(dict.fromkeys(string.ascii_letters, (3, 2)), torch.float32)
        stepper = step_of(params, torch.optim.AdamW(params.values(), fused=True))
        assert f"52 layers, one norm pass a step on cuda:0, {words}\n" in stepper_plan(stepper)


@pytest.mark.parametrize("settings", [{"fused": True}, {"foreach": True}], ids=str)
@pytest.mark.parametrize("policy", SKIPS, ids=repr)
def test_a_fused_kernel_leaves_steps_out_and_nobody_reads_whether(policy, settings):
    """The others read one bool; `plan()` says which."""
    with fake_cuda():
        params = parameters({"a": (3, 2), "b": (2,)}, torch.float32)
        optimizer = torch.optim.AdamW(params.values(), **settings)
        stepper = step_of(params, optimizer, policy, every=100)
        founds = []
        optimizer.register_step_pre_hook(lambda o, *_: founds.append(hasattr(o, "found_inf")))
        if settings == {"foreach": True}:
            with pytest.raises(DataDependentOutputException):
                take_step(params, optimizer)
            assert "one bool is read" in stepper_plan(stepper)
            assert "it is not fused" in stepper_plan(stepper)
            return
        take_step(params, optimizer)
        take_step(params, optimizer)
        with Trace() as seen:
            take_step(params, optimizer)
        assert "nothing is read" in stepper_plan(stepper)
    assert (seen.reads, seen.copies) == ([], [])
    assert founds == [True] * 3
    assert not hasattr(optimizer, "found_inf")


SGD = torch.optim.SGD
KERNELS = [(cls, {}) for cls in CLASSES] + [
    (SGD, {"momentum": 0.9}), (SGD, {"momentum": 0.9, "dampening": 0.5}), (SGD, {"momentum": 0.9, "weight_decay": 0.1}),
]  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("cls", "settings"), KERNELS, ids=str)
def test_what_the_kernel_leaves_out_is_what_a_step_without_gradients_is(cls, settings, device, tmp_path, monkeypatch):
    """Weights, momentum, step counts; the first step skipped, too. The CPU's kernels are taken for a device's."""
    skip_unless_fused(cls, device)

    def trained(read):
        monkeypatch.setattr("gradwatch.recording.clipper.can_be_read", lambda _: read)
        model = mlp(torch.float32).to(device)
        optimizer = cls(model.parameters(), lr=0.1, fused=True, **settings)
        with watch(
            model, optimizer, tmp_path / str(read), clip="chain(SkipNonfinite(), ClipByGlobalNorm(0.5))"
        ) as handle:
            for step in range(9):
                for p in model.parameters():
                    value = torch.nan if step in (0, 1, 5) else step + 1.0
                    p.grad = torch.full_like(p, value)
                optimizer.step()
        kept = [p.detach().clone() for p in model.parameters()]
        states = [v for key, v in sorted(state_tensors(optimizer).items())]
        return kept, states, open_history(handle.dir)

    want, got = trained(True), trained(False)
    for a, b in zip([*got[0], *got[1]], [*want[0], *want[1]], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert got[2].total("skipped").tolist() == [1, 1, 0, 0, 0, 1, 0, 0, 0]
    np.testing.assert_array_equal(got[2].total("skipped"), want[2].total("skipped"))


# ----------------------------------------------------------------------------------------------------------- on a GPU


@pytest.fixture
def no_waiting():
    """A wait for the device is an error, from the moment that what is yielded is called."""
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode(0)


def on_cuda(dtype, clip, tmp_path, **settings):
    model = mlp(dtype).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), **settings)
    return model, optimizer, watch(model, optimizer, tmp_path, clip=clip, flush_every=1000.0)


def cuda_steps(model, optimizer, count, absent=lambda i: False):
    for n in range(count):
        for i, p in enumerate(model.parameters()):
            p.grad = None if absent(n + i) else torch.ones_like(p)
        optimizer.step()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_changing_patterns_wait_for_nothing_on_a_gpu(policy, dtype, no_waiting, tmp_path):
    model, optimizer, handle = on_cuda(dtype, policy, tmp_path, fused=True)
    cuda_steps(model, optimizer, 24)
    cuda_steps(model, optimizer, 24, absent=lambda n: n % 3 == 0)
    no_waiting()
    cuda_steps(model, optimizer, 40, absent=lambda n: n % 5 == 0 or n % 7 == 0)
    torch.cuda.set_sync_debug_mode(0)
    handle.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_values_of_the_cpu_wait_for_nothing_on_a_gpu(no_waiting, tmp_path):
    model, optimizer, handle = on_cuda(torch.float32, Fixed(torch.float64), tmp_path, fused=True)
    cuda_steps(model, optimizer, 12)
    accuracy = torch.tensor(0.75)
    no_waiting()
    for _ in range(12):
        cuda_steps(model, optimizer, 1)
        handle.log(accuracy=accuracy)
    torch.cuda.set_sync_debug_mode(0)
    handle.close()
    np.testing.assert_allclose(open_history(handle.dir).total("accuracy")[-12:], 0.75)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_a_fused_optimizer_over_cpu_and_cuda_takes_the_clipped_gradients(optimizer, tmp_path):
    def moved(devices):
        model = mlp(torch.float32)
        model[0].to(devices[0])
        model[2].to(devices[1])
        made = optimizer(model.parameters(), lr=0.1, fused=True)
        with watch(model, made, tmp_path / "-".join(devices), clip="ClipByGlobalNorm(0.01)"):
            for _ in range(20):
                for p in model.parameters():
                    p.grad = torch.ones_like(p)
                made.step()
        return [p.detach().cpu() for p in model.parameters()]

    for got, want in zip(moved(("cpu", "cuda")), moved(("cpu", "cpu")), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)

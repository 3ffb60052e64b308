"""One kernel for many tensors: on a CUDA device, and without one in Triton's interpreter, where Triton is installed."""

import importlib.util
import logging
import math

import pytest
import torch
from devices import DEVICES, no_waiting
from torch import nn

from gradwatch.measure import multi_tensor
from gradwatch.measure.foreach import measure, measure_plain, scale_
from gradwatch.measure.gradients import Batch
from gradwatch.measure.layout import Layout
from gradwatch.measure.multi_tensor import CHUNK, SMALL, SUMS, MultiTensor
from gradwatch.measure.rows import LargestRows
from gradwatch.measure.samples import Samples
from gradwatch.measure.second_moment import adam_rms
from gradwatch.measure.weight_updates import UpdateRatio

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KERNELS = ["sums_of_squares", "roots", "norms_of_small", "excess", "multiply", "sample"]
SHAPES = [(), (3,), (0, 4), (CHUNK,), (CHUNK + 1,), (7, 5, 3), (300, 257), (1, 1), (2, 3, 4, 5)]


@pytest.fixture
def kernels(request):
    """The module of the kernels, for the device of the test."""
    device = request.getfixturevalue("device")
    if device == "cpu" and torch.cuda.is_available():
        pytest.skip("Triton's interpreter and its compiler cannot be had in one process")
    pytest.importorskip("triton")
    path = multi_tensor.__file__.replace("multi_tensor.py", "triton_kernels.py")
    spec = importlib.util.spec_from_file_location(f"kernels_{device}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tensors_of(dtype, device, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(device, dtype) for s in SHAPES]


def small_of(dtype, device, seed=0):
    """Of which a program may go over each whole."""
    return [t for t in tensors_of(dtype, device, seed) if t.numel() <= SMALL]


def laid_out(weights, kernels, rows=()):
    """A layout whose lists are gone over in one kernel, wherever they are."""
    layout = Layout({str(i): nn.Parameter(w) for i, w in enumerate(weights)}, rows=rows)
    # As on a device: only a CPU's norms are taken by rows, but for those that are looked at
    layout.at_once, layout.by_rows = True, frozenset(layout.first_rows)
    for device, dtype in {(w.device, w.dtype) for w in weights}:
        own = {i: w for i, w in layout._weights_of(device, dtype).items() if w.numel()}
        layout._multi[device, dtype] = MultiTensor(own, len(weights), kernels)
    return layout


def norms_of(tensors):
    return [0.0 if t is None else float(t.double().norm()) for t in tensors]


def are_equal(got, wanted, device):
    """Bit by bit; Triton's interpreter cuts a bfloat16 off where a device rounds it."""
    cut = device == "cpu" and wanted[0].dtype is torch.bfloat16
    return all(map(torch.allclose if cut else torch.equal, got, wanted, *([[2**-7] * len(got)] if cut else [])))


def refuse(monkeypatch, *names):
    """Whatever torch's calls for lists would be asked raises."""
    for name in names or ("_foreach_norm", "_foreach_mul_"):
        monkeypatch.setattr(torch, name, lambda *args, **words: pytest.fail("torch was asked"))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("absent", [[], [0, 6]])
def test_norms_are_those_of_each_layer(kernels, dtype, absent, device, monkeypatch):
    layout = laid_out(tensors_of(dtype, device), kernels)
    grads = [None if i in absent else g for i, g in enumerate(tensors_of(dtype, device, 1))]
    refuse(monkeypatch)
    groups = Batch(layout, grads).groups
    assert measure(layout, groups).tolist() == pytest.approx(norms_of(grads), rel=1e-6)
    into = torch.full((2, len(grads)), -1.0, device=device)
    assert measure(layout, groups, into=into[0]).data_ptr() == into.data_ptr()
    assert into[0].tolist() == pytest.approx(norms_of(grads), rel=1e-6)
    assert into[1].tolist() == [-1] * len(grads)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("absent", [[], [0, 5]])
def test_of_small_layers_in_one_kernel(kernels, dtype, absent, device, monkeypatch):
    monkeypatch.setattr(kernels, "sums_of_squares", None)
    layout = laid_out(small_of(dtype, device), kernels)
    grads = [None if i in absent else g for i, g in enumerate(small_of(dtype, device, 1))]
    refuse(monkeypatch)
    assert measure(layout, Batch(layout, grads).groups).tolist() == pytest.approx(norms_of(grads), rel=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layers", [4, SUMS, SUMS + 1, 1000])
@pytest.mark.parametrize("bad", [None, float("nan"), float("inf"), 1e30])
def test_how_many_times_its_limit_a_joint_norm_is(kernels, layers, bad, device):
    """As torch's clip has it: 1 of a norm below the limit, NaN of a NaN, and squares that float32 does not hold."""
    layout = laid_out([torch.ones(2, device=device) for _ in range(layers)], kernels)
    norms = torch.rand(layers, generator=torch.Generator().manual_seed(0)).to(device)
    norms[-1] = norms[-1] if bad is None else bad
    out = torch.full((3,), -1.0, device=device)
    for limit in (1e-3, 0.7, 50.0):
        wanted = layout.excess(torch.linalg.vector_norm(norms), limit)
        found = layout.all_in_one.excess(norms, limit, out[1])
        assert found.data_ptr() == out[1].data_ptr()
        assert torch.allclose(found, wanted, rtol=1e-6, equal_nan=True)
        assert out[::2].tolist() == [-1.0, -1.0]
        assert torch.allclose(layout.all_in_one.excess(norms, limit), wanted, rtol=1e-6, equal_nan=True)
    assert layout.all_in_one.excess(norms.double(), 1.0) is None


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_the_default_dtype_of_a_training_changes_nothing(kernels, default, device):
    layout = laid_out(tensors_of(torch.float32, device), kernels)
    grads = tensors_of(torch.float32, device, 1)
    torch.set_default_dtype(default)
    try:
        norms = measure(layout, Batch(layout, grads).groups)
        measure(layout, Batch(layout, grads).groups, into=norms)  # what was compiled for the one is for the other
    finally:
        torch.set_default_dtype(torch.float32)
    assert norms.dtype is torch.float32
    assert norms.tolist() == pytest.approx(norms_of(grads), rel=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_layers_of_two_dtypes_and_of_one_that_torch_measures(kernels, device):
    weights = [t for dtype in (*DTYPES, torch.float32) for t in tensors_of(dtype, device, len(str(dtype)))]
    layout = laid_out(weights, kernels)
    del layout._multi[torch.device(weights[0].device), torch.float16]
    layout._multi[weights[0].device, torch.float16] = None
    into = torch.empty(len(weights), device=device)
    assert measure(layout, Batch(layout, weights).groups, into=into) is into
    assert into.tolist() == pytest.approx(norms_of(weights), rel=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_looked_at_beside_it(kernels, dtype, device, monkeypatch):
    grads, patterns = tensors_of(dtype, device, 1), ("6", "8", "2")
    plain = Layout({str(i): nn.Parameter(w) for i, w in enumerate(tensors_of(dtype, device))}, rows=patterns)
    plain.at_once = False
    batches = [Batch(plain, grads), Batch(laid_out(tensors_of(dtype, device), kernels, patterns), grads)]
    wanted = batches[0].measure(rows=LargestRows(plain))
    refuse(monkeypatch)
    norms = batches[1].measure(rows=LargestRows(batches[1].layout))
    assert torch.allclose(norms, wanted, rtol=1e-5)
    for found, own in zip(*(b.largest_rows for b in batches), strict=True):
        assert torch.allclose(found, own, rtol=1e-5, equal_nan=True)
    assert batches[0].largest_rows[0].isfinite().tolist() == [str(i) in ("6", "8") for i in range(len(grads))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", KERNELS)
def test_what_was_compiled_is_handed_on(kernels, name, device, monkeypatch):
    """In the interpreter nothing is: there what was is made up."""
    made = small_of if name == "norms_of_small" else tensors_of
    layout = laid_out(made(torch.float32, device), kernels)
    kernel, asked = getattr(kernels, name), []

    class Counted:
        arg_names = kernel.arg_names

        def __getitem__(self, grid):
            def compiled(*args, **constants):
                asked.append(name)
                return kernel[grid](*args, **constants) or {(*grid, 1, 1)[:3]: kernel[grid]}

            return compiled

    monkeypatch.setattr(kernels, name, Counted())
    for n in range(3):
        grads = made(torch.float32, device, n)
        wanted = norms_of(grads)
        batch = Batch(layout, grads)
        norms = measure(layout, batch.groups)
        assert norms.tolist() == pytest.approx(wanted, rel=1e-6)
        limit = 1.0 + n
        assert float(layout.all_in_one.excess(norms, limit)) == pytest.approx(math.hypot(*wanted) / limit, rel=1e-5)
        scale_(layout, batch.groups, torch.tensor(0.5, device=device))
        assert norms_of(grads) == pytest.approx([0.5 * norm for norm in wanted], rel=1e-6)
        samples = Samples(layout, 1)
        samples.look(0, grads)
        assert samples.rows()[0].any()
    assert asked == [name]


@pytest.mark.parametrize("device", DEVICES)
def test_what_was_launched_is_not_again_where_a_triton_does_not_hand_on_what_it_compiled(kernels, device, monkeypatch):
    layout, multiply = laid_out(tensors_of(torch.float32, device), kernels), kernels.multiply

    class Other:
        def __getitem__(self, grid):
            return lambda *args, **constants: (multiply[grid](*args, **constants), object())[1]

    monkeypatch.setattr(kernels, "multiply", Other())
    grads = tensors_of(torch.float32, device, 1)
    wanted = [0.5 * norm for norm in norms_of(grads)]
    scale_(layout, Batch(layout, grads).groups, torch.tensor(0.5, device=device))
    assert norms_of(grads) == pytest.approx(wanted, rel=1e-6)
    assert layout.multi_tensor(layout.device, torch.float32).works


@pytest.mark.parametrize("device", DEVICES)
def test_a_triton_that_wants_no_constants_there_is_asked_as_it_is_meant_to_be(kernels, device, monkeypatch):
    layout = laid_out(tensors_of(torch.float32, device), kernels)
    roots, refused = kernels.roots, []

    def refuse_constants(*args):
        refused.append(len(args))
        raise TypeError("function takes exactly 12 arguments (14 given)")

    class Older:
        arg_names = roots.arg_names

        def __getitem__(self, grid):
            def compiled(*args, **constants):
                roots[grid](*args, **constants)
                return {(*grid, 1, 1)[:3]: refuse_constants}

            return compiled

    monkeypatch.setattr(kernels, "roots", Older())
    for n in range(3):
        grads = tensors_of(torch.float32, device, n)
        assert measure(layout, Batch(layout, grads).groups).tolist() == pytest.approx(norms_of(grads), rel=1e-6)
    assert len(refused) == 1
    assert layout.multi_tensor(layout.device, torch.float32).works


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_a_number_that_is_none_stays_in_its_layer(kernels, bad, device):
    layout = laid_out(tensors_of(torch.float32, device), kernels)
    grads = tensors_of(torch.float32, device, 1)
    grads[6][-1, -1] = bad
    norms = measure(layout, Batch(layout, grads).groups)
    assert torch.allclose(norms[6], grads[6].norm(), equal_nan=True)
    grads[6].zero_()
    assert norms[7:].tolist() == pytest.approx(norms_of(grads[7:]), rel=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_addresses_that_no_16_bytes_divide_and_other_orders_of_memory(kernels, dtype, device, monkeypatch):
    weights = [torch.zeros(300, 257), torch.zeros(2, 3, 4, 5), torch.zeros(CHUNK + 3), torch.zeros(9)]
    layout = laid_out([w.to(device, dtype) for w in weights], kernels)
    grads = [
        torch.randn(257, 300, device=device).to(dtype).T,
        torch.randn(2, 3, 4, 5, device=device).to(dtype).to(memory_format=torch.channels_last),
        torch.randn(CHUNK + 4, device=device).to(dtype)[1:],
        torch.randn(10, device=device).to(dtype)[:-1],
    ]
    refuse(monkeypatch)
    assert measure(layout, Batch(layout, grads).groups).tolist() == pytest.approx(norms_of(grads), rel=1e-6)
    factor = torch.tensor(0.3337, device=device)
    wanted = [(g.double() * factor.double()).to(dtype) for g in grads]
    scale_(layout, Batch(layout, grads).groups, factor)
    assert are_equal(grads, wanted, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("which", ["missing", "sparse", "wider", "larger", "gaps", "one number", "a subclass"])
def test_what_a_kernel_would_misread_is_left_to_torch(kernels, which, device):
    weights = [torch.randn(6, 4, device=device) for _ in range(4)]
    layout = laid_out(weights, kernels)
    grads = [torch.randn(6, 4, device=device) for _ in range(4)]
    grads[2] = {
        "missing": lambda g: None,
        "sparse": lambda g: g.to_sparse(),
        "wider": lambda g: g.double(),
        "larger": lambda g: torch.cat([g, g]),
        "gaps": lambda g: torch.cat([g, g], 1)[:, ::2],
        "one number": lambda g: g[0, 0].expand(6, 4),
        "a subclass": lambda g: g.as_subclass(type("Mine", (torch.Tensor,), {})),
    }[which](grads[2])
    many = layout.multi_tensor(weights[0].device, torch.float32)
    assert many.pointers(grads, layout.every) is None
    if which not in ("sparse", "larger", "a subclass"):
        found = measure_plain(layout, grads, None)
        found = found and found[0]
        assert found is None if which in ("missing", "wider") else found.tolist() == pytest.approx(norms_of(grads))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize("absent", [[], [0, 6]])
def test_each_product_is_rounded_once_and_nothing_beside_it_is_touched(
    kernels, dtype, per_layer, absent, device, monkeypatch
):
    layout = laid_out(tensors_of(dtype, device), kernels)
    room = torch.full((sum(t.numel() + 5 for t in tensors_of(dtype, device)),), 3.0, dtype=dtype, device=device)
    grads, start = [], 0
    for t in tensors_of(dtype, device, 1):
        grads.append(room[start : start + t.numel()].view(t.shape))
        grads[-1].copy_(t)
        start += t.numel() + 5
    coef = (
        torch.linspace(0.9871, 0.9996, len(grads), device=device) if per_layer else torch.tensor(0.5712, device=device)
    )
    factors = coef.double().expand(len(grads))
    wanted = [g.clone() if i in absent else (g.double() * factors[i]).to(dtype) for i, g in enumerate(grads)]
    versions = [g._version for g in grads]
    refuse(monkeypatch)
    batch = Batch(layout, [None if i in absent else g for i, g in enumerate(grads)])
    scale_(layout, batch.groups, coef)
    assert are_equal(grads, wanted, device)
    assert all(
        g._version > v for i, (g, v) in enumerate(zip(grads, versions, strict=True)) if i not in absent and g.numel()
    )
    for g in grads:
        g.fill_(3.0)
    assert (room == 3.0).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtypes", [DTYPES, DTYPES[:1], DTYPES[1:2]])
def test_samples_are_those_that_torch_takes(kernels, dtypes, device, monkeypatch):
    shapes = [*SHAPES, (4096,), (4097,), (64, 64, 64)]
    layout = laid_out([torch.randn(s, device=device).to(d) for d in dtypes for s in shapes], kernels)
    plain = Layout(dict(layout.whole))
    monkeypatch.setattr(plain, "multi_tensor", lambda *_: None)
    wanted, found = Samples(plain, 2), Samples(layout, 2)
    wanted.look(1, plain.weights())
    refuse(monkeypatch, "cat")
    found.look(1, layout.weights())
    assert torch.equal(found.rows(), wanted.rows())
    assert found.rows()[1].any()


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_beside_second_moments_are_sampled_at_once(kernels, device, monkeypatch):
    layout = laid_out([torch.randn(s, device=device) for s in [*SHAPES, (64, 64, 64)]], kernels)
    optimizer, samples = torch.optim.AdamW(layout.params, fused=True), Samples(layout, 2)
    for p in layout.params:
        p.grad = torch.randn_like(p)
    optimizer.step()

    def rms(samples):
        with pytest.raises(StopIteration) as ended:
            next(adam_rms(layout, [optimizer], samples))
        return ended.value.value

    wanted = rms(None)
    refuse(monkeypatch, "cat")
    rms(samples)  # constants are made
    with no_waiting(device):
        found = rms(samples)
    assert torch.allclose(found, wanted, rtol=1e-6, equal_nan=True)
    assert wanted[-1] > 0.5


@pytest.mark.parametrize("device", DEVICES)
def test_other_memory_is_found_again(kernels, device):
    layout = laid_out(tensors_of(torch.float32, device), kernels)
    many = layout.multi_tensor(layout.device, torch.float32)
    for n in range(2 * multi_tensor.KEPT):
        grads = tensors_of(torch.float32, device, n)
        with no_waiting(device):
            found = measure_plain(layout, grads, None)[0] if n % 2 else measure(layout, Batch(layout, grads).groups)
        if n:
            assert found.tolist() == pytest.approx(norms_of(grads), rel=1e-6)
    assert len(many._known) <= multi_tensor.KEPT


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", KERNELS)
def test_where_a_kernel_fails_torch_does_it(kernels, name, device, monkeypatch, caplog):
    shape = (8, 8) if name == "norms_of_small" else (260, 260)
    layout = laid_out([torch.randn(shape, device=device) for _ in range(5)], kernels)

    class Failing:
        def __getitem__(self, grid):
            raise OSError("no compiler")

    monkeypatch.setattr(kernels, name, Failing())
    grads = [torch.randn(shape, device=device) for _ in range(5)]
    wanted = [g * 0.5 for g in grads]
    with caplog.at_level(logging.INFO, "gradwatch"):
        UpdateRatio(layout).before()
        norms = measure(layout, Batch(layout, grads).groups)
        assert norms.tolist() == pytest.approx(norms_of(grads), rel=1e-6)
        assert (layout.all_in_one.excess(norms, 1.0) is None) is (name != "multiply")
        scale_(layout, Batch(layout, grads).groups, torch.tensor(0.5, device=device))
    assert all(map(torch.equal, grads, wanted))
    assert caplog.text.count("no compiler") == 1


@pytest.mark.parametrize("device", DEVICES)
def test_without_memory_for_the_addresses_torch_does_it(kernels, device, monkeypatch, caplog):
    layout = laid_out([torch.randn(8, 8, device=device) for _ in range(5)], kernels)
    monkeypatch.setattr(MultiTensor, "sent", lambda *_: (_ for _ in ()).throw(RuntimeError("cannot pin")))
    grads = [torch.randn(8, 8, device=device) for _ in range(5)]
    with caplog.at_level(logging.INFO, "gradwatch"):
        for _ in range(2):
            assert measure_plain(layout, grads, None)[0].tolist() == pytest.approx(norms_of(grads), rel=1e-6)
    assert caplog.text.count("cannot pin") == 1


@pytest.mark.parametrize("device", DEVICES[1:])
def test_on_a_device_they_are_what_is_taken(device, monkeypatch):
    pytest.importorskip("triton")
    multi_tensor.kernels.cache_clear()
    tensors = tensors_of(torch.float32, device) * 2
    layout = Layout({str(i): nn.Parameter(t) for i, t in enumerate(tensors)})
    refuse(monkeypatch)
    assert measure(layout, Batch(layout, list(layout.params)).groups).tolist() == pytest.approx(
        norms_of(layout.params), rel=1e-6
    )


def test_the_switch_and_a_missing_triton_leave_torch(monkeypatch):
    monkeypatch.setenv(multi_tensor.SWITCH, "0")
    multi_tensor.kernels.cache_clear()
    try:
        assert multi_tensor.kernels() is None
        monkeypatch.delenv(multi_tensor.SWITCH)
        multi_tensor.kernels.cache_clear()
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        assert multi_tensor.kernels() is None
    finally:
        multi_tensor.kernels.cache_clear()

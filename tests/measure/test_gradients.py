"""No host read between drains: the path runs where reading a value is impossible, and where copies are refused."""

import cProfile
import math
import pstats

import pytest
import torch
from fake_cuda import fake_cuda, parameters, step_of, take_step
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from training import ELEMENT_POLICIES, NORM_POLICIES

from gradwatch import ClipByGlobalNorm, MaxNorm, MaxSpectral, SkipNonfinite, SkipNorm, SkipSpike, chain
from gradwatch.history import Layer, Run
from gradwatch.measure.gradients import Batch
from gradwatch.measure.layout import Layout
from gradwatch.measure.weight_updates import Weights
from gradwatch.policies import parse
from gradwatch.recording.clipper import Clipper
from gradwatch.recording.learning_rate import RateScale
from gradwatch.recording.recorder import ROWS, Recorder
from gradwatch.recording.stepper import Stepper

SHAPES = {"0.weight": (8, 6), "0.bias": (8,), "1.weight": (3, 8), "1.bias": (3,)}
POLICIES = [None, *NORM_POLICIES, *ELEMENT_POLICIES]
RENORM = chain(MaxNorm(1.0), MaxSpectral(1.0))


def stepping(policy, model, renorm=None, every=2, slots=False, **settings):
    """A Stepper on the model with a Recorder that keeps its blocks in a list."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **settings)
    layout = Layout(dict(model.named_parameters()))
    clipper, weights = Clipper(layout, {"SGD": optimizer}, policy), Weights(layout, renorm, every, slots)
    blocks = []
    run = Run("test", "now", layers=tuple(Layer(name, tuple(p.shape)) for name, p in model.named_parameters()))
    recorder = Recorder(run, [True] * len(run.layers), clipper.fields, layout.device, blocks.append)
    stepper = Stepper(clipper, weights, recorder, RateScale(), lambda: None, lambda: None)
    stepper.attach()
    return stepper, optimizer, recorder


def steps(model, optimizer, count, recorder=None):
    for _ in range(count):
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()
        if recorder:
            recorder.log({"loss": model[0].weight.sum()})


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_a_step_runs_on_tensors_that_hold_no_values(policy):
    with fake_cuda():
        params = parameters(SHAPES, torch.float32)
        optimizer = torch.optim.SGD(params.values(), lr=0.1, momentum=0.9)
        recorder = step_of(params, optimizer, policy, RENORM, every=2, slots=True).recorder
        for _ in range(5):
            take_step(params, optimizer)
            recorder.log({"loss": params["0.bias"].sum()})
        assert len(recorder.rows) == 5


@pytest.mark.parametrize("policy", [SkipNonfinite(), SkipNorm(1.0), SkipSpike(3.0, window=8)], ids=repr)
def test_what_decides_a_skip_needs_no_value_either(policy):
    """Only acting on it does: one bool, in stepping.py, said by watch.plan()."""
    with FakeTensorMode():
        layout = Layout({"w": nn.Parameter(torch.randn(4))})
        batch = Batch(layout, [torch.randn(4)])
        policy.apply(batch, policy.init(batch))
        with pytest.raises(DataDependentOutputException):
            bool(batch.skipped)


class NoCopies(TorchDispatchMode):
    """Refuses what waits for a device or brings Python numbers to it; stands in for a GPU's synchronization error."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name()
        masked = name == "aten::index.Tensor" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if masked or name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::lift_fresh"):
            raise AssertionError(f"{name} in the hot path")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_a_steady_step_copies_nothing_between_host_and_device(policy):
    with fake_cuda():
        params = parameters(SHAPES, torch.float32)
        optimizer = torch.optim.SGD(params.values(), lr=0.1, momentum=0.9, foreach=True)
        recorder = step_of(params, optimizer, policy, RENORM, every=2, slots=True).recorder
        for _ in range(3):  # constants are made on the first steps
            take_step(params, optimizer)
        loss = torch.zeros((), device="cuda")
        with NoCopies():
            for _ in range(4):
                optimizer.step()
                recorder.log({"loss": loss})


FIRST = [  # a policy, the optimizer's settings, and the layers of two that it scales
    ("ClipByGlobalNorm(100.0)", {"fused": True}, []),
    ("ZClip(max_norm=100.0)", {"fused": True}, []),
    ("ClipByGlobalNorm(100.0)", {"foreach": True}, []),
    ("ClipByGlobalNorm(1.0)", {"foreach": True}, [0, 1]),
    ("ClipByNorm(100.0)", {}, []),
    ("ClipByNorm(3.0)", {}, [1]),
    ("AGC(100.0)", {}, []),
    ("only('b', AGC(0.01))", {}, [1]),
]


@pytest.mark.parametrize(("policy", "settings", "scaled"), FIRST)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_cpu_a_clip_that_does_not_fire_touches_nothing(policy, settings, scaled, dtype):
    model = nn.ParameterDict({"a": nn.Parameter(torch.ones(3, 2, dtype=dtype)), "b": torch.ones(8, 2, dtype=dtype)})
    _, optimizer, recorder = stepping(parse(policy), model, every=1000, **settings)
    seen = []
    optimizer.register_step_pre_hook(
        lambda o, *_: seen.append(([p.grad._version for p in model.parameters()], hasattr(o, "grad_scale")))
    )
    for _ in range(2):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
    written, folded = [i for i, version in enumerate(seen[-1][0]) if version], seen[-1][1]
    assert {*written} <= {*scaled}
    assert not folded
    assert [i for i, p in enumerate(model.parameters()) if not torch.equal(p.grad, torch.ones_like(p))] == scaled
    coefs = recorder.ring.buffer[1, recorder.ring.fields.index("clip_coef")]
    assert [i for i, coef in enumerate(coefs.tolist()) if coef != 1] == scaled


def test_that_mode_would_see_a_read():
    x = torch.ones(2)
    for read in (lambda: x.sum().item(), lambda: bool(x[0] > 0), lambda: x[x > 0], lambda: torch.tensor(1.0)):
        with pytest.raises(AssertionError), NoCopies():
            read()


@pytest.mark.parametrize("policy", [p for p in NORM_POLICIES if "norm_type" not in repr(p)], ids=repr)
def test_a_norm_policy_costs_one_norm_pass_and_one_scale_pass(policy):
    class Count(TorchDispatchMode):
        passes: dict = {}

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            name = func.name()
            self.passes[name] = self.passes.get(name, 0) + 1
            return func(*args, **(kwargs or {}))

    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    _, optimizer, _ = stepping(policy, model, every=1000, foreach=True)
    steps(model, optimizer, 2)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    with Count() as count:
        count.passes.clear()
        optimizer.step()
    scales = [n for name, n in count.passes.items() if name.startswith("aten::_foreach_mul_.")]
    assert count.passes["aten::_foreach_norm.Scalar"] == 1
    assert 1 <= sum(scales) <= 2  # ours where it fires, and the optimizer's own momentum


def test_memory_is_constant_and_rows_leave_in_order():
    model = nn.Sequential(nn.Linear(6, 8))
    stepper, optimizer, recorder = stepping(None, model, slots=True)
    seen = []
    recorder.sink = lambda block: seen.extend(block.step.tolist())
    stepper.between = lambda: recorder.drain() if recorder.due else None
    recorder.seconds = recorder.pause = math.inf  # rows leave by their number alone
    buffer = recorder.ring.buffer.data_ptr()
    steps(model, optimizer, 3 * ROWS + 5)
    assert seen == list(range(3 * ROWS))
    recorder.drain()
    assert seen == list(range(3 * ROWS + 5))
    assert recorder.ring.buffer.data_ptr() == buffer
    assert recorder.rows == recorder.values == []


def calls_of_a_step(layers, clip, watched):
    """How many functions, Python's and built-in, one step calls."""
    model = nn.ParameterList(nn.Parameter(torch.randn(2)) for _ in range(layers))
    if watched:
        _, optimizer, _ = stepping(clip, model, every=10**6, fused=True)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    for p in model.parameters():
        p.grad = torch.randn_like(p)

    def step():
        if not watched and clip is not None:
            nn.utils.clip_grad_norm_(list(model.parameters()), clip.max_norm)
        optimizer.step()

    for _ in range(3):
        step()
    profile = cProfile.Profile()
    profile.runcall(step)
    return pstats.Stats(profile).total_calls


@pytest.mark.parametrize("clip", [None, ClipByGlobalNorm(1.0)], ids=repr)
def test_watching_calls_as_many_functions_for_a_thousand_layers_as_for_ten(clip):
    added = {n: calls_of_a_step(n, clip, True) - calls_of_a_step(n, None, False) for n in (10, 1000)}
    assert abs(added[1000] - added[10]) < 10  # torch's own counters may begin
    assert added[10] <= 200


def test_watching_calls_fewer_functions_than_torchs_clip():
    clip = ClipByGlobalNorm(1.0)
    assert calls_of_a_step(1000, clip, True) < calls_of_a_step(1000, clip, False)


@pytest.mark.parametrize("is_measured", [True, False])
def test_norms_that_are_first_asked_for_after_a_coefficient_was_applied_count_it_in_once(is_measured):
    gradient = torch.tensor([3.0, 4.0])
    batch = Batch(Layout({"w": torch.zeros(2)}), [gradient])
    if is_measured:
        batch.measured = batch.measure()
    batch.scale(torch.tensor(0.5))
    batch.apply_pending()
    assert batch.norms().l2.item() == gradient.norm().item() == 2.5


def test_what_is_known_of_some_layers_of_some_layers_is_of_these():
    shapes = {"a.0": 1, "a.1": 2, "b.0": 3, "b.1": 4}
    params = {name: torch.zeros(n) for name, n in shapes.items()}
    gradients = [None if name == "b.0" else torch.ones(n) for name, n in shapes.items()]
    norms = Batch(Layout(params), gradients).only("b.*").only("b.*").only("*.1").norms()
    assert (norms.names, norms.l2.tolist(), norms.numel.tolist()) == (("b.1",), [2.0], [4.0])
    assert norms.present.tolist() == [True]


def test_that_a_step_was_dropped_is_a_bool_as_that_it_was_skipped_is(monkeypatch):
    layout = Layout({"w": nn.Parameter(torch.ones(2))})
    optimizer = torch.optim.SGD(layout.params, lr=0.1)
    clipper = Clipper(layout, {"SGD": optimizer}, SkipNorm(1.0))
    monkeypatch.setattr(clipper, "_look", lambda *_: (None, Batch(layout, [torch.ones(2)]), torch.ones(1)))
    dropped = clipper.dropped(None, optimizer, alone=True)
    assert dropped.skipped.dtype is torch.bool
    assert bool(dropped.skipped)

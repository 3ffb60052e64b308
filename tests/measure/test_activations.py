"""Activations: every number is that of a float64 oracle, however the loop runs the model; and nothing is left behind.

The oracle's tensors are noted by the model's own forward pass, not by hooks.
"""

import copy
import pickle
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from training import watch

from gradwatch import open_history
from gradwatch.errors import WatchError
from gradwatch.measure import activations
from gradwatch.measure.activations import QUANTITIES, Activations, tensor_of
from gradwatch.measure.distributed import add_up
from gradwatch.recording.modules import MOST, chosen

CURVES = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "gelu": nn.GELU, "silu": nn.SiLU, "elu": nn.ELU,
          "mish": nn.Mish, "hardswish": nn.Hardswish}  # fmt: skip
NOTES = {"now": None}  # what the forward pass gives out by module, while the oracle listens


def note(name, y, x=None):
    if NOTES["now"] is not None:
        NOTES["now"][name].append((y.detach().double(), None if x is None else x.detach().double()))
    return y


class Block(nn.Module):
    def __init__(self, name, curve):
        super().__init__()
        self.name, self.up, self.act, self.down = name, nn.Linear(6, 12), CURVES[curve](), nn.Linear(12, 6)

    def forward(self, x):
        h = note(f"{self.name}.up", self.up(x))
        h = note(f"{self.name}.down", self.down(note(f"{self.name}.act", self.act(h), h)))
        return note(self.name, x + h)


class Net(nn.Module):
    def __init__(self, curve="relu", how=None):
        super().__init__()
        self.embed, self.how = nn.Linear(5, 6), how
        self.blocks = nn.ModuleList(Block(f"blocks.{i}", curve) for i in range(2))
        self.head = nn.Linear(6, 3)
        with torch.no_grad():
            self.embed.weight.mul_(8)  # so that there is something to saturate
            self.blocks[0].up.bias[:4] = -100.0
            self.blocks[1].up.bias[2] = 100.0

    def forward(self, x):
        h = note("embed", self.embed(x))
        for block in self.blocks:
            h = block(h) if self.how is None else checkpoint(block, h, use_reentrant=self.how == "reentrant")
        return note("head", self.head(h))


def flat(kind, x, y):
    """Where the slope is less than 1 % of its largest, by autograd on the oracle's own input."""
    x = x.clone().requires_grad_()
    grid = torch.linspace(-20, 20, 400_001, dtype=torch.float64, requires_grad=True)
    (steepest,) = torch.autograd.grad(kind(grid).sum(), grid)
    (slope,) = torch.autograd.grad(kind(x).sum(), x)
    share = slope.abs() / steepest.abs().max()
    out = share < 0.01
    return (
        out & (x < -2) if isinstance(kind, (nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish)) else out
    )  # not where the slope changes its sign


def oracle(notes, model):
    """By module: rms, max, zeros, saturated, dead, nonfinite."""
    found = {}
    for name, calls in notes.items():
        y = torch.cat([y.reshape(-1, y.shape[-1]) for y, _ in calls])
        numbers = [y.square().mean().sqrt(), y.abs().max(), (y == 0).double().mean(), np.nan, np.nan,
                   (~y.isfinite()).double().sum()]  # fmt: skip
        if name.endswith(".act"):
            x = torch.cat([x.reshape(-1, x.shape[-1]) for _, x in calls])
            held = flat(model.get_submodule(name), x, y)
            numbers[3:5] = held.double().mean(), held.all(dim=0).double().mean()
        found[name] = [float(n) for n in numbers]
    return found


def train(model, folder, steps=3, loop="plain", watched=True, dtype=torch.float32):
    """Train; what was recorded of step 1, and what the oracle noted of it."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    ours = {"activations": True, "activations_every": 50} if watched else {}
    handle = watch(model, optimizer, folder, **ours)
    run = torch.compile(model, backend="eager") if loop == "compile" else model
    seen = defaultdict(list)
    for step in range(steps):
        for part in range(3 if loop == "accumulation" else 1):
            NOTES["now"] = seen if step == 1 else None  # not in backward, where a checkpointed part runs again
            with torch.autocast("cpu", torch.bfloat16, enabled=loop == "autocast"):
                loss = run(torch.randn(5 + part, 7, 5, dtype=dtype)).float().square().mean()
            NOTES["now"] = None
            loss.backward()
        if loop == "evaluation":
            with torch.no_grad():
                run(100 * torch.randn(4, 7, 5))
        optimizer.step()
        optimizer.zero_grad()
    handle.close()
    return handle, seen


@pytest.mark.parametrize(
    ("loop", "how"),
    [("plain", None), ("accumulation", None), ("plain", "reentrant"), ("accumulation", "not reentrant"),
     ("evaluation", None), ("autocast", None), ("autocast", "reentrant"), ("compile", None)],
)  # fmt: skip
def test_every_number_is_the_oracles(loop, how, tmp_path):
    torch.manual_seed(0)
    model = Net("relu", how)
    handle, notes = train(model, tmp_path, loop=loop)
    compare(open_history(handle.dir).activations, oracle(notes, model))


@pytest.mark.parametrize("curve", CURVES)
def test_each_non_linearity_is_flat_where_its_slope_is(curve, tmp_path):
    torch.manual_seed(0)
    model = Net(curve)
    handle, notes = train(model, tmp_path)
    wanted = oracle(notes, model)
    assert 0 < wanted["blocks.0.act"][3] < 1
    compare(open_history(handle.dir).activations, wanted)


def compare(table, wanted, tolerance=2e-6):
    assert table.layers == tuple(wanted)  # in the order in which they came
    row = np.flatnonzero(table.step == 1)[0]
    for i, quantity in enumerate(QUANTITIES[:-1]):
        found = table.values[quantity][row]
        np.testing.assert_allclose(found, [wanted[n][i] for n in table.layers], rtol=tolerance, err_msg=quantity)
    assert table.values["order"][row].tolist() == [*range(len(wanted))]


def test_the_first_two_steps_are_sampled_and_then_every_nth(tmp_path):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    handle = watch(model, optimizer, tmp_path, activations=("*.act",), activations_every=3)
    for _ in range(8):
        model(torch.randn(2, 5)).sum().backward()
        optimizer.step()
    handle.close()
    history = open_history(handle.dir)
    assert history.activations.step.tolist() == [0, 1, 3, 6]
    assert history.activations.layers == ("blocks.0.act", "blocks.1.act")
    assert np.isnan(history.activations.values["dead"]).all()  # two examples do not tell a dead unit from an idle one
    frame = pd.read_parquet(handle.dir / "activations")
    assert len(frame) == 8
    assert set(QUANTITIES) < set(frame.columns)
    assert history.slice(1, 4).activations.step.tolist() == [1, 3]
    assert history.run.activations_every == 3


@pytest.mark.parametrize("how", [None, "reentrant", "not reentrant"])
def test_training_is_bit_identical(how, tmp_path):
    def weights(watched):
        torch.manual_seed(0)
        model = Net("gelu", how)
        model.blocks[0].down = nn.Sequential(model.blocks[0].down, nn.Dropout(0.5))
        train(model, tmp_path, steps=6, loop="accumulation", watched=watched)
        return [*model.parameters(), torch.rand(3)]

    assert all(torch.equal(a, b) for a, b in zip(weights(True), weights(False), strict=True))


def hooks():
    return len(nn.modules.module._global_forward_hooks)


def test_no_weight_is_computed_to_be_looked_at(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 2))
    before = copy.deepcopy(model.state_dict())
    watch(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path, activations=True).close()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_without_activations_there_is_not_one_hook_and_outside_of_sampled_steps_neither(tmp_path):
    before, seen = hooks(), []
    for asked in (False, True):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        handle = watch(model, optimizer, tmp_path, activations=asked, activations_every=5)
        for _ in range(7):
            seen.append(hooks() - before)
            assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
            model(torch.randn(2, 5)).sum().backward()
            optimizer.step()
        handle.close()
    assert seen == [0] * 7 + [2, 2, 0, 0, 0, 2, 0]  # of outputs, and of where attention is called
    assert hooks() == before


def test_a_model_is_copied_and_pickled_in_a_sampled_step_as_ever(tmp_path):
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU())
    handle = watch(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path, activations=True)
    model(torch.randn(2, 5))
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert not same[1]._forward_hooks
    handle.close()


def test_compiled_code_runs_as_compiled_but_in_sampled_steps(tmp_path):
    compiled = []

    def backend(graph, _):
        compiled.append(graph)
        return lambda *a: ran.append(1) or graph(*a)

    ran, model = [], nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    handle = watch(model, optimizer, tmp_path, activations=True, activations_every=4)
    run = torch.compile(model, backend=backend)
    for _ in range(7):
        run(torch.randn(2, 5)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    handle.close()
    assert len(compiled) == 1  # one graph: no break
    assert len(ran) == 4  # steps 2, 3, 5, 6
    assert open_history(handle.dir).activations.step.tolist() == [0, 1, 4]


def test_compiled_code_runs_compiled_again_after_two_watches_have_sampled_in_turn(tmp_path):
    ran, pairs = [], []
    for _ in range(2):
        model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        watched = watch(model, optimizer, tmp_path, activations=True, activations_every=50)
        run = torch.compile(model, backend=lambda graph, _: lambda *a: ran.append(1) or graph(*a))
        pairs.append((run, optimizer, watched))
    for _ in range(4):
        for run, optimizer, _ in pairs:
            run(torch.randn(2, 5)).sum().backward()
            optimizer.step()
    assert len(ran) == 4  # steps 2 and 3 of both
    for _, _, watched in pairs:
        watched.close()


def test_a_nan_is_named_where_it_was_born(tmp_path):
    model = Net()
    model.blocks[0].act.register_forward_hook(lambda m, a, y: y.log())  # of a zero, and of less than that
    handle, _ = train(model, tmp_path, steps=2)
    table = open_history(handle.dir).activations
    bad = {n for n, count in zip(table.layers, table.values["nonfinite"][0], strict=True) if count > 0}
    assert {"blocks.0.down", "blocks.0", "blocks.1", "head"} <= bad
    assert not {"embed", "blocks.0.up"} & bad
    assert table.values["max"][0][table.layers.index("head")] == np.inf


def test_nothing_is_read_from_the_device_between_drains():
    from test_gradients import NoCopies

    model = Net()
    inside = Activations(chosen(model, True))
    for _ in range(2):
        inside.begin(0)
        with NoCopies():
            model(torch.randn(2, 7, 5)).sum().backward()
            assert add_up(inside.end(torch.device("cpu")), None).values.shape == (len(QUANTITIES), 10)


@pytest.mark.parametrize("asked", [("nothing.*",), (), "*", (1,), 3])
def test_what_makes_no_sense_is_refused(asked, tmp_path):
    model = Net()
    with pytest.raises(WatchError, match="activations="):
        watch(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path, activations=asked)
    assert hooks() == 0


def test_of_a_deep_model_the_blocks_are_kept():
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)) for _ in range(150))
    names = chosen(nn.ModuleDict({"blocks": blocks, "head": nn.Linear(1, 1)}), True)
    assert len(names) <= MOST
    assert {"head", *(f"blocks.{i}" for i in range(150))} <= names.keys()


def test_of_an_output_with_its_loss_the_loss_does_not_count():
    logits = torch.ones(2, 3)
    for output in ((logits.sum(), logits), {"loss": logits.sum(), "logits": logits}, [(None, logits)]):
        assert torch.equal(tensor_of(output), logits)
    assert tensor_of(logits.sum()) is None
    assert tensor_of({}) is None


def test_many_calls_in_a_step_are_kept_as_one(monkeypatch, tmp_path):
    """An agent acts many times between two steps: what is kept of it does not grow."""

    def seen(most):
        monkeypatch.setattr(activations, "MOST_CALLS", most)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"activations": True, "activations_every": 1, "every": 1}
        with watch(model, optimizer, tmp_path / str(most), **options) as handle:
            for _ in range(3):
                loss = sum(model(torch.randn(4, 3)).square().mean() for _ in range(20))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return open_history(handle.dir).activations

    few, all_of_them = seen(4), seen(1000)
    assert few.layers == all_of_them.layers
    for name in ("rms", "max", "zeros", "dead", "nonfinite"):
        np.testing.assert_allclose(few.values[name], all_of_them.values[name], rtol=1e-6)

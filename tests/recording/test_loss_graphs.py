"""The first losses are heard as backward is called on them: noted in the manifest, and nothing stays behind."""

import json

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F

import gradwatch
from gradwatch.recording import backward_calls
from gradwatch.recording.loss_graphs import MOST_LOSSES
from gradwatch.storage.manifest import run_of

X, Y = torch.randn(16, 6), torch.arange(16) % 4


@pytest.fixture(autouse=True)
def backward_is_torchs_again():
    for listener in backward_calls.heard.listeners:  # a Watch of another test that saw no loss
        listener.stop()
    before = torch.autograd.backward
    yield
    assert torch.autograd.backward is before


def watched(net, folder, optimizer=None, **options):
    optimizer = optimizer or optim.SGD(net.parameters(), 0.1)
    return gradwatch.watch(net, optimizer, log=None, dir=folder, verbose=False, **options), optimizer


def graph_of(watch):
    manifest = json.loads((watch.dir / "run.json").read_text(encoding="utf-8"))
    assert run_of(manifest).loss_graph == tuple(manifest["loss_graph"])
    return manifest["loss_graph"]


def hears(watch):
    """Whether it waits for a loss of layers that were not reached yet."""
    return watch._loss_graphs in backward_calls.heard.listeners


def test_it_is_heard_once_and_torchs_own_function_is_back_after_the_first_step(tmp_path):
    torchs, net = torch.autograd.backward, nn.Linear(6, 4)
    watch, optimizer = watched(net, tmp_path)
    assert torch.autograd.backward is not torchs
    with watch:
        for step in range(3):
            F.cross_entropy(net(X), Y).backward()
            assert not hears(watch)
            assert (torch.autograd.backward is torchs) == (step > 0)
            optimizer.step()
            assert torch.autograd.backward is torchs
    path, softmax, given = graph_of(watch)
    assert (path["operations"], softmax["operation"]) == ("NllLoss LogSoftmax Addmm", "LogSoftmax")
    assert given == {"what": "input", "operation": "Addmm", "shape": "16x4", "layer": "weight"}


def test_a_watch_that_hears_of_no_loss_leaves_nothing_behind(tmp_path):
    watch, _ = watched(nn.Linear(6, 4), tmp_path)
    watch.close()
    assert graph_of(watch) == []


def test_losses_are_heard_until_each_layer_was_reached(tmp_path):
    net = nn.ModuleDict({"a": nn.Linear(6, 4), "b": nn.Linear(6, 1)})
    watch, optimizer = watched(net, tmp_path)
    with watch:
        F.cross_entropy(net["a"](X), Y).backward()
        (torch.ones(2, requires_grad=True) * 2).sum().backward()  # somebody else's
        assert hears(watch)
        net["b"](X).abs().mean().backward()
        assert not hears(watch)
        optimizer.step()
    assert {row["layer"] for row in graph_of(watch)} == {"a.weight", "b.weight"}


def test_of_a_layer_that_no_loss_reaches_it_waits_so_long_and_no_longer(tmp_path):
    net = nn.ModuleDict({"a": nn.Linear(6, 4), "b": nn.Linear(6, 1)})
    watch, optimizer = watched(net, tmp_path)
    with watch:
        for i in range(MOST_LOSSES):
            assert hears(watch), i
            F.cross_entropy(net["a"](X), Y).backward()
            optimizer.step()
        assert not hears(watch)
    assert len(graph_of(watch)) == 3  # what is seen again is noted once


def test_losses_that_reach_none_of_the_layers_are_not_walked_for_ever(tmp_path):
    watch, _ = watched(nn.Linear(6, 4), tmp_path)
    other = torch.ones(2, requires_grad=True)
    with watch:
        for _ in range(MOST_LOSSES):
            assert hears(watch)
            other.square().sum().backward()
        assert not hears(watch)
    assert graph_of(watch) == []


def test_who_hears_of_backward_for_another_reason_leaves_first_or_last(tmp_path):
    torchs = torch.autograd.backward
    for unused in (0, 1):  # a layer that no loss reaches: heard for longer than the first step
        net = nn.ModuleDict({"a": nn.Linear(6, 4), **({"b": nn.Linear(6, 1)} if unused else {})})
        watch, optimizer = watched(net, tmp_path / str(unused), noise_scale=True, every=3)
        with watch:
            for _ in range(2 * MOST_LOSSES):
                F.cross_entropy(net["a"](X), Y).backward()
                F.cross_entropy(net["a"](X), Y).backward()
                optimizer.step()
                optimizer.zero_grad()
        assert torch.autograd.backward is torchs
        assert graph_of(watch)


def test_two_models_have_the_graph_of_their_own_loss(tmp_path):
    nets = nn.Linear(6, 4), nn.Linear(6, 1)
    found = []
    for net, loss in zip(nets, (lambda out: F.cross_entropy(out, Y), lambda out: out.square().mean()), strict=True):
        watch, optimizer = watched(net, tmp_path / str(len(found)))
        with watch:
            loss(net(X)).backward()
            optimizer.step()
        found.append([row["operations"] for row in graph_of(watch) if row["what"] == "path"])
    assert found == [["NllLoss LogSoftmax Addmm"], ["Mean Pow Addmm"]]


@pytest.mark.parametrize("how", ["method", "function", "by its name", "several"])
def test_however_backward_is_called(how, tmp_path):
    net = nn.Linear(6, 4)
    watch, optimizer = watched(net, tmp_path)
    with watch:
        loss = F.cross_entropy(net(X), Y)
        if how == "method":
            loss.backward()
        elif how == "function":
            torch.autograd.backward(loss)
        elif how == "by its name":
            torch.autograd.backward(tensors=[loss])
        else:
            torch.autograd.backward((loss, net(X).mean()))
        optimizer.step()
    assert graph_of(watch)[0]["operations"] == "NllLoss LogSoftmax Addmm"


def test_what_raises_while_it_is_looked_at_is_said_once_and_training_goes_on(tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("a graph of another torch")

    monkeypatch.setattr("gradwatch.recording.loss_graphs.LossGraph", broken)
    net = nn.Linear(6, 4)
    watch, optimizer = watched(net, tmp_path)
    with pytest.warns(UserWarning, match="how the loss is made cannot be recorded, training goes on: RuntimeError"):
        F.cross_entropy(net(X), Y).backward()
    with watch:
        F.cross_entropy(net(X), Y).backward()  # said once
        optimizer.step()
    assert graph_of(watch) == []


def test_a_compiled_model_shows_what_stands_around_it(tmp_path):
    net = nn.Sequential(nn.Linear(6, 4), nn.Softmax(1))
    watch, optimizer = watched(net, tmp_path)
    compiled = torch.compile(net, backend="aot_eager")
    with watch:
        for _ in range(2):
            F.cross_entropy(compiled(X), Y).backward()
            optimizer.step()
    (path,) = [row for row in graph_of(watch) if row["what"] == "path"]
    assert path["operations"].startswith("NllLoss LogSoftmax CompiledFunction")


def test_the_weights_are_the_same_to_the_last_bit(tmp_path):
    def trained(watching):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 4))
        optimizer = optim.Adam(net.parameters(), 0.01)
        watch = watched(net, tmp_path, optimizer)[0] if watching else None
        for _ in range(5):
            optimizer.zero_grad()
            F.cross_entropy(net(X), Y).backward()
            optimizer.step()
        if watch:
            watch.close()
        return [*net.parameters(), torch.get_rng_state()]

    assert all(map(torch.equal, trained(False), trained(True)))


@pytest.mark.parametrize(
    "row",
    [
        "text",
        {"what": 3},
        {"what": "view", "shape": "4x", "of": "4"},
        {"what": "path", "operations": "A B", "shapes": "1", "operands": "1 1"},
        {"what": "softmax", "shape": "9" * 40},
        {"what": "softmax", "shape": "4x4", "dim": 0, "layer": 7},
    ],
)
def test_a_manifest_whose_graph_is_none_is_refused(row, tmp_path):
    watch, _ = watched(nn.Linear(6, 4), tmp_path)
    watch.close()
    manifest = json.loads((watch.dir / "run.json").read_text(encoding="utf-8"))
    with pytest.raises(ValueError, match="loss_graph"):
        run_of({**manifest, "loss_graph": [row]})

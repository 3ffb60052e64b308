"""torch.compile, of the model and of the optimizer's step, and CUDA graphs: each step is acted on once, or refused."""

import shutil

import numpy as np
import pytest
import torch
from torch import nn
from training import batches, mlp, train, watch

from gradwatch import WatchError, open_history

INDUCTOR = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a compiler")]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Twice(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.05, foreach=True),
    "tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.05), foreach=False),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.05, fused=True),
    "twice": lambda p: Twice(p, lr=0.1),
}


def whole_step(model, optimizer):
    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def pieces(model, optimizer, do):
    """The same with a step of its own: `do()` stands for `optimizer.step()`."""

    def step(x, y):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        do()

    return step


def inside(optimizer):
    def do():
        optimizer.step()

    return do


FORMS = {
    "step": lambda m, o, b: pieces(m, o, torch.compile(o.step, backend=b)),
    "inside": lambda m, o, b: pieces(m, o, torch.compile(inside(o), backend=b)),
    "whole": lambda m, o, b: torch.compile(whole_step(m, o), backend=b),
    "model": lambda m, o, b: whole_step(torch.compile(m, backend=b), o),
}


def run(optimizer, tmp_path, form=None, backend=None, steps=6, **options):
    dtype = torch.float32 if optimizer == "fused" else torch.float64  # the kernel takes the coefficient in float32
    model = mlp(dtype)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    with watch(model, optimizer, tmp_path, **options) as handle:
        step = FORMS[form](model, optimizer, backend) if form else whole_step(model, optimizer)
        for x, y in batches(steps, dtype):
            step(x, y)
    return [*model.parameters()], open_history(handle.dir)


CASES = [
    *(
        pytest.param(
            form,
            optimizer,
            "ClipByGlobalNorm(0.1)",
            "eager",
            marks=[] if form in ("step", "whole") and optimizer == "SGD" else pytest.mark.slow,
        )
        for form in FORMS
        for optimizer in OPTIMIZERS
    ),
    *(
        pytest.param(form, "SGD", clip, "eager", marks=pytest.mark.slow)
        for form in ("step", "whole")
        for clip in ("AutoClip(50)", "ClipByValue(0.01)")
    ),
    pytest.param("step", "Adam", "ClipByGlobalNorm(0.1)", "inductor", marks=INDUCTOR),
]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "optimizer", "clip", "backend"), CASES)
def test_a_compiled_step_is_acted_on_once(clip, optimizer, form, backend, tmp_path):
    weights, history = run(optimizer, tmp_path, form, backend, clip=clip, renorm="MaxNorm(0.5)")
    assert optimizer == "fused" or torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0  # it was compiled
    want_weights, want = run(optimizer, tmp_path, clip=clip, renorm="MaxNorm(0.5)")
    assert history.step.tolist() == list(range(6))
    assert history.layers == want.layers
    for quantity in ("grad_norm", "clip_coef", "weight_norm", "update_ratio", "renorm_rate"):
        np.testing.assert_allclose(history.layer(quantity), want.layer(quantity), rtol=1e-4, err_msg=quantity)
    np.testing.assert_allclose(history.total("lr"), want.total("lr"))
    for a, b in zip(weights, want_weights, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)  # a compiled Adam corrects its bias in float32


@pytest.mark.slow
@pytest.mark.parametrize("form", ["step", "inside", "whole"])
@pytest.mark.parametrize("optimizer", ["SGD", "fused"])
def test_a_step_that_was_compiled_before_is_seen_from_then_on(form, optimizer, tmp_path):
    def train_around(compiled):
        model = mlp(torch.float32)
        opt = OPTIMIZERS[optimizer](model.parameters())
        step = FORMS[form](model, opt, "eager") if compiled else whole_step(model, opt)
        data = list(batches(9, torch.float32))
        for x, y in data[:3]:
            step(x, y)
        with watch(model, opt, tmp_path, clip="ClipByGlobalNorm(0.1)") as handle:
            for x, y in data[3:6]:
                step(x, y)
        for x, y in data[6:]:
            step(x, y)
        return [*model.parameters()], open_history(handle.dir)

    weights, history = train_around(compiled=True)
    want_weights, want = train_around(compiled=False)
    np.testing.assert_allclose(history.layer("grad_norm"), want.layer("grad_norm"), rtol=1e-4)
    for a, b in zip(weights, want_weights, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_what_a_compiled_loop_logs_and_clips_is_seen(tmp_path):
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with watch(model, optimizer, tmp_path, clip="ClipByGlobalNorm(0.05)") as handle:

        @torch.compile(backend="eager")
        def step(x, y):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            handle.log(loss=loss)
            return loss

        for x, y in batches(4, torch.float32):
            losses.append(step(x, y).item())
    history = open_history(handle.dir)
    np.testing.assert_allclose(history.total("loss"), losses, rtol=1e-6)
    np.testing.assert_allclose(history.total("user_max_norm"), [0.1] * 4)
    np.testing.assert_allclose(history.total("clipped_norm"), [0.05] * 4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_clip_is_seen_while_it_is_watched(fullgraph, tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="eager", fullgraph=fullgraph)
    def clip():
        return nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    def step(model):
        norms.append(clip().item())

    norms = []
    train(model, optimizer, 2, before_step=step)
    for _ in range(2):
        norms = []
        with watch(model, optimizer, tmp_path) as handle:
            train(model, optimizer, 4, before_step=step)
        history = open_history(handle.dir)
        np.testing.assert_allclose(history.total("user_grad_norm"), norms, rtol=1e-6)
        assert history.total("user_max_norm").tolist() == [0.1] * 4
    train(model, optimizer, 2, before_step=step)


def test_a_compiled_step_with_a_closure(tmp_path):
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="eager")
    with watch(model, optimizer, tmp_path, clip="ClipByGlobalNorm(0.1)") as handle:
        for x, y in batches(4, torch.float32):

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                return loss

            step(closure)
    history = open_history(handle.dir)
    assert history.total("evaluations").tolist() == [1, 1, 1, 1]
    np.testing.assert_allclose(history.total("clipped_norm"), [0.1] * 4, rtol=1e-4)


@pytest.mark.slow
def test_a_compiled_loop_under_a_scaler(tmp_path):
    model = mlp(torch.float32)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=1024.0)
    with watch(model, optimizer, tmp_path) as handle:

        @torch.compile(backend="eager")
        def step(x, y, bad):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y) * bad
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        for i, (x, y) in enumerate(batches(4, torch.float32)):
            step(x, y, torch.tensor(float("inf") if i == 2 else 1.0))
    history = open_history(handle.dir)
    assert history.total("skipped").tolist() == [0, 0, 1, 0]
    assert history.total("loss_scale").tolist() == [1024, 1024, 1024, 512]
    assert history.total("grad_norm")[3] < 2


def test_a_compiled_model_keeps_its_names(tmp_path):
    model = torch.compile(mlp(), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with watch(model, optimizer, tmp_path) as handle:
        step = whole_step(model, optimizer)
        for x, y in batches(6):
            step(x, y)
    _, want = run("SGD", tmp_path)
    history = open_history(handle.dir)
    assert history.layers == want.layers == ("0.weight", "0.bias", "2.weight", "2.bias")
    np.testing.assert_allclose(history.layer("grad_norm"), want.layer("grad_norm"), rtol=1e-6)


# ------------------------------------------------------------------------------------------------------ CUDA graphs


def test_a_step_that_is_captured_is_refused(tmp_path, monkeypatch):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, clip="AutoClip(50)") as handle:
        train(model, optimizer, 2)
        with monkeypatch.context() as patch:
            patch.setattr(handle._stepper.layout, "device", torch.device("cuda"))
            patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
            state = handle.state_dict()
            weights = [p.clone() for p in model.parameters()]
            with pytest.raises(WatchError, match=r"captured in a CUDA graph.*step\(\) outside the graph"):
                optimizer.step()
            assert handle.state_dict()["policy_state"]["seen"] == state["policy_state"]["seen"]
        assert all(map(torch.equal, weights, model.parameters()))
        train(model, optimizer, 2)
    assert open_history(handle.dir).step.tolist() == [0, 1, 2, 3]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_forward_and_backward_in_a_cuda_graph_and_the_step_outside(tmp_path):
    model = mlp(torch.float32).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, capturable=True)
    x, y = torch.randn(16, 6, device="cuda"), torch.randint(3, (16,), device="cuda")

    def backward():
        optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(model(x), y).backward()

    with watch(model, optimizer, tmp_path, clip="ClipByGlobalNorm(0.1)") as handle:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                backward()
                optimizer.step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            backward()
        norms = []
        for _ in range(4):
            x.copy_(torch.randn(16, 6))
            graph.replay()
            norms.append([p.grad.norm().item() for p in model.parameters()])
            optimizer.step()
        with pytest.raises(WatchError, match="captured in a CUDA graph"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            optimizer.step()
    history = open_history(handle.dir)
    assert len(history) == 7
    np.testing.assert_allclose(history.layer("grad_norm")[3:], norms, rtol=1e-5)


def test_closing_a_watch_that_saw_no_step_says_so(tmp_path, capsys):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, verbose=True, clip="ClipByNorm(1.0)") as handle:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)  # not the one that is watched
    said = capsys.readouterr().err
    assert "no optimizer step was seen" in said
    assert "is empty and ClipByNorm(1.0) never acted" in said
    with watch(model, optimizer, tmp_path, verbose=True) as handle:
        train(model, optimizer, 2)
        state = handle.state_dict()
    assert "2 steps recorded" in capsys.readouterr().err
    with watch(model, optimizer, tmp_path, verbose=True) as handle:
        handle.load_state_dict(state)
    assert "no optimizer step was seen" in capsys.readouterr().err

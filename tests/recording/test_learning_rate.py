"""Learning rates that are scaled around a step: the weights are those of a loop that changed them by hand, and between
steps the loop's rates are its own.
"""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ChainedScheduler, ExponentialLR, LambdaLR
from training import batches, mlp, train, watch

from gradwatch import ClipByGlobalNorm, WatchError, open_history
from gradwatch.errors import GradwatchWarning
from gradwatch.recording import learning_rate

P = {
    "SGD": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "AdamW": lambda p, lr: torch.optim.AdamW(p, lr=lr, weight_decay=0.1),
    "fused": lambda p, lr: torch.optim.Adam(p, lr=lr, fused=True),
    "Adagrad": lambda p, lr: torch.optim.Adagrad(p, lr=lr, lr_decay=0.01),
    "LBFGS": lambda p, lr: torch.optim.LBFGS(p, lr=lr, max_iter=3),
}


def factor(t, scale=0.1, warmup=7):
    return scale * min(1.0, (t + 1) / warmup)


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


def loop(model, optimizer, before=lambda t: None, after=lambda t: None, steps=20, dtype=torch.float32):
    """A loop with a closure where the optimizer needs one."""
    for t, (x, y) in enumerate(batches(steps, dtype)):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        before(t)
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        after(t)
    return model


@pytest.mark.parametrize("name", P)
def test_the_weights_are_those_of_a_loop_whose_rates_were_changed_by_hand(name, tmp_path):
    theirs, ours = mlp(torch.float32), mlp(torch.float32)
    optimizer = P[name](theirs.parameters(), 0.05)

    def by_hand(t):
        optimizer.param_groups[0]["lr"] = 0.05 * factor(t)

    loop(theirs, optimizer, by_hand)
    optimizer = P[name](ours.parameters(), 0.05)
    seen = []
    with watch(ours, optimizer, tmp_path, lr_scale=0.1, warmup=7) as made:
        loop(ours, optimizer, after=lambda t: seen.append(optimizer.param_groups[0]["lr"]))
    assert same(theirs, ours)
    assert seen == [0.05] * 20
    history = open_history(made.dir)
    assert history.total("lr").tolist() == [0.05 * factor(t) for t in range(20)]
    assert (history.run.lr_scale, history.run.warmup) == (0.1, 7)


def logging(func):
    @functools.wraps(func)
    def wrapper(*args, **kwargs):
        return func(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize("name", ["SGD", "LBFGS"])
@pytest.mark.parametrize("wrapped", [torch.compiler.disable, logging])
def test_a_step_that_others_have_wrapped_is_scaled(wrapped, name, tmp_path, monkeypatch):
    """The first torch.compile of a process wraps the step of LBFGS outside of what calls the hooks."""
    theirs, ours = mlp(torch.float32), mlp(torch.float32)
    optimizer = P[name](ours.parameters(), 0.05)
    monkeypatch.setattr(type(optimizer), "step", wrapped(type(optimizer).step))
    with watch(ours, optimizer, tmp_path, lr_scale=0.1):
        loop(ours, optimizer)
    assert same(loop(theirs, P[name](theirs.parameters(), 0.05 * 0.1)), ours)


def test_a_step_without_torchs_hooks_is_refused(tmp_path, monkeypatch):
    optimizer = torch.optim.SGD(mlp().parameters(), lr=0.1)
    original = torch.optim.SGD.step

    def opaque(*args, **kwargs):
        return original(*args, **kwargs)

    opaque.hooked = True  # as torch marks a step whose hooks are called
    monkeypatch.setattr(torch.optim.SGD, "step", opaque)
    with pytest.raises(WatchError, match="something stands in its place"):
        watch(mlp(), optimizer, tmp_path, lr_scale=0.1)
    assert not list(tmp_path.iterdir())


def test_each_param_group_is_scaled_and_a_rate_may_be_a_tensor(tmp_path):
    def optimizer_of(model, scale):
        last = {"params": model[2].parameters(), "lr": 0.5 * scale}
        first = {"params": model[0].parameters(), "lr": torch.tensor(0.01) * scale}
        return torch.optim.Adam([first, last], foreach=False)

    theirs, ours = mlp(torch.float32), mlp(torch.float32)
    train(theirs, optimizer_of(theirs, 0.25), dtype=torch.float32)
    optimizer = optimizer_of(ours, 1.0)
    first = optimizer.param_groups[0]["lr"]
    with watch(ours, optimizer, tmp_path, lr_scale=0.25) as made:
        train(ours, optimizer, dtype=torch.float32)
    assert same(theirs, ours)
    assert optimizer.param_groups[0]["lr"] is first
    assert first.item() == torch.tensor(0.01).item()
    assert optimizer.param_groups[1]["lr"] == 0.5
    history = open_history(made.dir)
    assert history.total("lr").tolist() == [(torch.tensor(0.01) * 0.25).item()] * 30
    assert history.total("lr/1").tolist() == [0.125] * 30


def test_a_scheduler_goes_its_own_way(tmp_path):
    """Also one that makes each rate of the last: what is scaled would be scaled again and again."""

    def scheduled(model, scale):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2 * scale)
        decay = ExponentialLR(optimizer, 0.9)
        return optimizer, ChainedScheduler([LambdaLR(optimizer, lambda t: 1 / (1 + t)), decay]), decay

    theirs, ours = mlp(torch.float32), mlp(torch.float32)
    optimizer, scheduler, _ = scheduled(theirs, 0.5)
    train(theirs, optimizer, after_step=lambda *_: scheduler.step(), dtype=torch.float32)
    optimizer, scheduler, decay = scheduled(ours, 1.0)
    last = []
    with watch(ours, optimizer, tmp_path, lr_scale=0.5, clip=ClipByGlobalNorm(1e9)):
        train(ours, optimizer, after_step=lambda *_: (scheduler.step(), last.append(decay.get_last_lr())),
              dtype=torch.float32)  # fmt: skip
    alone, scheduler, decay = scheduled(mlp(), 1.0)
    wanted = []
    for _ in range(30):
        alone.step()
        scheduler.step()
        wanted.append(decay.get_last_lr())
    assert last == wanted
    assert same(theirs, ours)


@pytest.mark.parametrize("fused", [False, True])
def test_it_goes_with_a_clip(fused, tmp_path):
    def loop_clip(model):
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    theirs, ours = mlp(torch.float32), mlp(torch.float32)
    train(
        theirs, torch.optim.SGD(theirs.parameters(), lr=0.05, fused=fused), before_step=loop_clip, dtype=torch.float32
    )
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.5, fused=fused)
    with watch(ours, optimizer, tmp_path, clip=ClipByGlobalNorm(0.1), lr_scale=0.1):
        train(ours, optimizer, dtype=torch.float32)
    for a, b in zip(weights(theirs), weights(ours), strict=True):
        torch.testing.assert_close(a, b)


class Failing(torch.optim.SGD):
    """Raises in the middle of its step, where the rates are scaled."""

    fails = True

    def step(self, closure=None):
        out = super().step(closure)
        self.seen = [group["lr"] for group in self.param_groups]
        if self.fails:
            raise KeyboardInterrupt
        return out


def one_step(model, optimizer):
    x, y = next(batches(1, torch.float32))
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def test_the_rate_is_back_when_a_step_raises(tmp_path):
    model = mlp(torch.float32)
    optimizer = Failing(model.parameters(), lr=0.5)
    with watch(model, optimizer, tmp_path, lr_scale=0.1):
        with pytest.raises(KeyboardInterrupt):
            one_step(model, optimizer)
        assert optimizer.seen == [0.05]
        assert optimizer.state_dict()["param_groups"][0]["lr"] == 0.5
        optimizer.fails = False
        one_step(model, optimizer)
        assert optimizer.seen == [0.05]
        assert optimizer.param_groups[0]["lr"] == 0.5
    one_step(model, optimizer)
    assert optimizer.seen == [0.5]
    assert optimizer not in learning_rate._due
    assert optimizer not in learning_rate._replaced
    assert Failing not in learning_rate._guards


def test_a_step_that_a_hook_ends_before_it_begins_scales_no_later_one(tmp_path):
    model = mlp(torch.float32)
    optimizer = Failing(model.parameters(), lr=0.5)
    optimizer.fails = False
    made = watch(model, optimizer, tmp_path, lr_scale=0.1)
    other = mlp(torch.float32)
    beside = watch(other, Failing(other.parameters(), lr=0.5), tmp_path, lr_scale=0.1)  # the guard stays on its account

    def refuse(*_):
        raise RuntimeError

    handle = optimizer.register_step_pre_hook(refuse)  # after ours
    with pytest.raises(RuntimeError):
        one_step(model, optimizer)
    handle.remove()
    made.close()
    one_step(model, optimizer)
    assert optimizer.seen == [0.5]
    beside.close()


def test_a_closure_sees_the_loops_own_rate_and_may_set_it(tmp_path):
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    seen, before = [], weights(model)

    def closure():
        optimizer.zero_grad()
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.param_groups[0]["lr"] = 2.0
        loss = sum(p.sum() for p in model.parameters())
        loss.backward()
        return loss

    with watch(model, optimizer, tmp_path, lr_scale=0.5) as made:
        optimizer.step(closure)
    assert seen == [1.0]
    assert optimizer.param_groups[0]["lr"] == 2.0
    assert open_history(made.dir).total("lr").tolist() == [1.0]
    for old, new in zip(before, weights(model), strict=True):
        torch.testing.assert_close(old - 1.0, new)


def test_a_rate_that_the_step_sets_itself_stays_and_is_told_of_once(tmp_path):
    class Own(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            self.param_groups[0]["lr"] = 0.7

    model = mlp(torch.float32)
    optimizer = Own(model.parameters(), lr=0.5)
    with watch(model, optimizer, tmp_path, lr_scale=0.1):
        with pytest.warns(GradwatchWarning, match="Own sets a learning rate in its own step"):
            one_step(model, optimizer)
        one_step(model, optimizer)  # a second warning would be an error
    assert optimizer.param_groups[0]["lr"] == 0.7


def test_several_optimizers_are_in_one_step_of_the_warm_up(tmp_path):
    model = mlp(torch.float32)
    optimizers = [torch.optim.SGD(model[i].parameters(), lr=lr) for i, lr in ((0, 1.0), (2, 2.0))]
    with watch(model, optimizers, tmp_path, warmup=4) as made:
        for x, y in batches(6, torch.float32):
            nn.functional.cross_entropy(model(x), y).backward()
            for optimizer in optimizers:
                optimizer.step()
    history = open_history(made.dir)
    assert history.total("lr").tolist() == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert history.total("lr/1").tolist() == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_a_resumed_run_goes_on_with_its_warm_up_and_another_scale_is_refused(tmp_path):
    model = mlp(torch.float32)
    whole, begun = copy.deepcopy(model), copy.deepcopy(model)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    with watch(whole, optimizer, tmp_path, warmup=20):
        loop(whole, optimizer)
    data = list(batches(20, torch.float32))

    def some(optimizer, rows):
        for x, y in rows:
            optimizer.zero_grad()
            nn.functional.cross_entropy(begun(x), y).backward()
            optimizer.step()

    optimizer = torch.optim.SGD(begun.parameters(), lr=0.1)
    with watch(begun, optimizer, tmp_path, warmup=20) as made:
        some(optimizer, data[:8])
        state = made.state_dict()
    optimizer = torch.optim.SGD(begun.parameters(), lr=0.1)
    with watch(begun, optimizer, tmp_path, warmup=20) as again:
        again.load_state_dict(state)
        some(optimizer, data[8:])
    assert same(whole, begun)
    del state["rates"]  # of an earlier version, which scaled none
    with watch(begun, optimizer, tmp_path, run_name="old") as old:
        old.load_state_dict(state)


class Relative(torch.optim.SGD):
    """As transformers' Adafactor with relative_step=True."""

    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.param_groups[0]["lr"] = None


def test_an_optimizer_without_a_rate_is_refused_in_a_line(tmp_path):
    model = mlp(torch.float32)
    with pytest.raises(WatchError) as error:
        watch(model, Relative(model.parameters()), tmp_path, lr_scale=0.5)
    assert str(error.value) == (
        "lr_scale= and warmup= multiply learning rates, and param group 0 of this Relative has lr=None: give it a "
        "learning rate, or leave them out"
    )
    for wrong in ({"lr_scale": 0}, {"lr_scale": float("nan")}, {"lr_scale": True}, {"warmup": -1}, {"warmup": 1.5}):
        with pytest.raises(WatchError, match=next(iter(wrong))):
            watch(model, torch.optim.SGD(model.parameters(), lr=1.0), tmp_path, **wrong)


def test_a_compiled_step_is_scaled_too(tmp_path):
    torch._dynamo.reset()
    for lr in (0.1, torch.tensor(0.1)):
        theirs, ours = mlp(torch.float32), mlp(torch.float32)
        train(theirs, torch.optim.Adam(theirs.parameters(), lr=lr * 0.5, foreach=False), dtype=torch.float32)
        optimizer = torch.optim.Adam(ours.parameters(), lr=lr, foreach=False)
        made = watch(ours, optimizer, tmp_path, lr_scale=0.5)
        step = torch.compile(optimizer.step, backend="eager")
        for x, y in batches(30, torch.float32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(ours(x), y).backward()
            step()
        made.close()
        assert optimizer.param_groups[0]["lr"] is lr
        for a, b in zip(weights(theirs), weights(ours), strict=True):
            torch.testing.assert_close(a, b)
    torch._dynamo.reset()


def test_two_watches_of_one_class_share_the_guard_and_the_last_takes_it_off(tmp_path):
    step = torch.optim.SGD.step
    models = [mlp(torch.float32), mlp(torch.float32)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=1.0) for m in models]
    inside = torch.optim.SGD.step.__closure__[0].cell_contents
    first, second = (watch(m, o, tmp_path, lr_scale=0.5) for m, o in zip(models, optimizers, strict=True))
    assert torch.optim.SGD.step is step
    assert step.__closure__[0].cell_contents is not inside
    first.close()
    before = weights(models[1])
    sum(p.sum() for p in models[1].parameters()).backward()
    optimizers[1].step()
    for old, new in zip(before, weights(models[1]), strict=True):
        torch.testing.assert_close(old - 0.5, new)
    second.close()
    assert step.__closure__[0].cell_contents is inside

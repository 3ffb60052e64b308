"""An exception anywhere of ours in a step (Ctrl-C, no memory) costs at most the row of that step, no later one."""

import numpy as np
import pytest
import torch
from interrupts import Injected, Stop
from training import mlp, watch

import gradwatch
from gradwatch.measure import ring_buffer, weight_updates
from gradwatch.recording import clipper, hooks, recorder, stepper

FILES = {m.__file__ for m in (clipper, hooks, recorder, ring_buffer, stepper, weight_updates)}
CLEAN = 2  # steps after each one that is interrupted


class Loop:
    """A training whose every step has one gradient norm of its own, and logs it: what a row says can be checked."""

    def __init__(self, folder, log, **options):
        self.model, self.log = mlp(torch.float32), log
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self.watch = watch(self.model, self.optimizer, folder, every=3, **options)
        self.clean = []  # the numbers of the steps that were not interrupted

    def step(self, at=None):
        """Take one, interrupted at line `at` of the recorder's; returns the number of lines, and whether it was."""
        number = self.watch._stepper.steps
        for p in self.model.parameters():
            p.grad = torch.zeros_like(p)
        self.model[0].bias.grad[0] = number + 1.0
        try:
            with Injected(FILES, at, calls=True, fresh=True) as injected:
                self.log(self.watch, number, self.optimizer.step)
        except Stop:
            assert torch.is_grad_enabled(), injected.places[-1]
            return len(injected.places), True
        self.clean.append(number)
        return len(injected.places), False


def after(watched, number, step):
    """Log what is known when the step is over, some of it on the device."""
    step()
    watched.log(number=torch.tensor(float(number)), half=number / 2)


def ahead(watched, number, step):
    """Log what is known before the step."""
    watched._log_next(number=torch.tensor(float(number)), half=number / 2)
    step()


EACH_STEP = pytest.param(1e-9, id="drained on each step", marks=pytest.mark.slow)
AT_THE_END = pytest.param(60.0, id="drained at the end")


@pytest.mark.parametrize("flush_every", [EACH_STEP, AT_THE_END])
@pytest.mark.parametrize("log", [after, pytest.param(ahead, marks=pytest.mark.slow)])
def test_whatever_line_is_interrupted_later_steps_are_recorded(log, flush_every, tmp_path):
    loop = Loop(tmp_path, log, clip="SkipNonfinite()", flush_every=flush_every)
    for _ in range(4):
        loop.step()
    at, interrupted = 0, True
    while interrupted:
        _, interrupted = loop.step(at)
        if at % 2:  # also before a clean step has put things right
            loop.watch._drain()
        for _ in range(CLEAN):
            assert not loop.step()[1]
        at += 1
    assert at > 10, "the lines were not traced"
    loop.watch.close()
    history = gradwatch.open_history(loop.watch.dir)
    assert history.step.tolist() == list(range(len(history))), "a step that never was is missed"
    rows = np.searchsorted(history.step, loop.clean)
    assert history.step[rows].tolist() == loop.clean, "a step that was not interrupted is missing"
    np.testing.assert_array_equal(history.total("grad_norm"), history.step + 1.0)
    np.testing.assert_array_equal(history.total("number")[rows], loop.clean)
    np.testing.assert_array_equal(history.total("half")[rows], np.array(loop.clean) / 2)
    assert not history.total("skipped").any()


@pytest.mark.parametrize("flush_every", [EACH_STEP, AT_THE_END])
def test_close_after_an_interrupt_writes_what_is_there(flush_every, tmp_path):
    """At every twelfth line: each takes a Watch of its own."""
    lines = Loop(tmp_path, after, flush_every=flush_every)
    for _ in range(3):
        last = lines.step()[0]
    lines.watch.close()
    for at in range(0, last, 12):
        loop = Loop(tmp_path, after, flush_every=flush_every)
        for _ in range(3):
            loop.step()
        assert loop.step(at)[1]
        loop.watch.close()
        history = gradwatch.open_history(loop.watch.dir)
        assert history.step[:3].tolist() == [0, 1, 2]
        assert history.total("number")[:3].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "value",
    [
        torch.empty((), device="meta"),
        torch.quantize_per_tensor(torch.ones(1), 0.1, 0, torch.qint8),
        10**400,
        np.str_("a"),
    ],
    ids=["meta", "quantized", "too large", "text"],
)
def test_what_cannot_be_copied_is_told_where_it_is_logged(value, tmp_path):
    loop = Loop(tmp_path, after)
    loop.step()
    with pytest.warns(gradwatch.GradwatchWarning, match="poison cannot be recorded, training goes on"):
        loop.watch.log(good=1.0, poison=value)
    loop.step()
    loop.watch.close()
    history = gradwatch.open_history(loop.watch.dir)
    assert history.step.tolist() == [0, 1]
    assert history.total("number").tolist() == [0, 1]
    assert {"good", "poison"} & {*history.logged} == {"good"}


class Fragile(torch.optim.SGD):
    """Raises in its fourth step."""

    calls = 0

    def step(self, closure=None):
        self.calls += 1
        if self.calls == 4:
            raise Stop


@pytest.mark.parametrize("culprit", [0, 1])
def test_optimizers_that_step_together_do_so_after_one_raised(culprit, tmp_path):
    """A step that raised leaves nothing: its optimizers begin the next one together, and nobody is warned."""
    model = mlp(torch.float32)
    kinds = [Fragile if i == culprit else torch.optim.SGD for i in (0, 1)]
    optimizers = [kind(model[i].parameters(), lr=0.0) for kind, i in zip(kinds, (0, 2), strict=True)]
    watching = watch(model, optimizers, tmp_path)
    for number in range(6):
        for p in model.parameters():
            p.grad = torch.full_like(p, number + 1.0)
        try:
            for optimizer in optimizers:
                optimizer.step()
        except Stop:
            assert number == 3
    watching.close()
    history = gradwatch.open_history(watching.dir)
    assert history.step.tolist() == list(range(6))
    assert len(set(history.optimizer)) == 1
    size = sum(p.numel() for p in model.parameters()) ** 0.5
    np.testing.assert_allclose(history.total("grad_norm"), (history.step + 1) * size, rtol=1e-6)

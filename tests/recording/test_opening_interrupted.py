"""Ctrl-C or no memory inside watch(), wherever Python can raise it: what it had done so far is taken back."""

import gc
import logging
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
import torch
from interrupts import ExitFunctions, Injected, Stop
from torch.nn import utils
from training import mlp, train, watch

import gradwatch
from gradwatch.measure import patch
from gradwatch.recording import learning_rate, open_watches, signals, torch_patches

PACKAGE = Path(gradwatch.__file__).parent
FILES = {str(path) for folder in ("recording", "storage", "measure") for path in (PACKAGE / folder).glob("*.py")}
FILES -= {str(PACKAGE / "measure" / "autograd.py")}  # whose `finally` no exception precedes: test_interrupted.py
ALL = {"lr_scale": 0.5, "warmup": 2, "clip": "ClipByGlobalNorm(0.1)", "renorm": "MaxNorm(3.0)", "slots": True}
CLIPS = utils.clip_grads_with_norm_, utils.clip_grad_value_
STRIDE = int(os.environ.get("GRADWATCH_INTERRUPT_STRIDE", "37"))  # of the places; 1: each of them, in some minutes


def hook(*_):
    """Somebody else's."""


class Opening:
    """A training that is about to be watched; what `watch()` could leave behind, before and after."""

    def __init__(self, folder, functions, **settings):
        self.folder, self.functions, self.settings = folder, functions, settings
        self.model = mlp(torch.float32)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.optimizer.register_step_post_hook(hook)
        self.before = self.state()

    def open(self):
        return watch(self.model, self.optimizer, self.folder, **self.settings)

    def interrupted(self, at, error, calls):
        """The places that were reached, and the Watch, where `watch()` came to its end all the same."""
        made = None
        with Injected(FILES, at, calls=calls, fresh=True, error=error) as injected:
            try:
                made = self.open()
            except error:
                assert injected.raised
        return injected.places, made

    def state(self):
        logger = logging.getLogger("gradwatch")
        optimizer, model = self.optimizer, self.model
        return {
            "before steps": [*optimizer._optimizer_step_pre_hooks.values()],
            "after steps": [*optimizer._optimizer_step_post_hooks.values()],
            "hooks of the model": [h for m in model.modules() for h in (*m._forward_hooks, *m._backward_hooks)],
            "settings": [{**group, "params": None} for group in optimizer.param_groups],
            "attributes": set(vars(optimizer)),
            "step": learning_rate._between_hooks(type(optimizer)).cell_contents,
            "guards": dict(learning_rate._guards),
            "scaler": torch.amp.GradScaler.step,
            "clips": [torch_patches._inner(f).cell_contents for f in CLIPS],
            "listeners": torch_patches._seen.listeners,
            "threads": sorted(t.name for t in threading.enumerate() if t.name != "gradwatch-signals"),
            "watches": [*open_watches.watches],
            "at exit": [*self.functions],
            "signals": [signal.getsignal(number) for number in signals.SIGNALS],
            "wakeup": wakeup(),
            "autograd": torch.is_grad_enabled(),
            "locks": locks_that_are_held(),
            "logger": (logger.level, [*logger.handlers], logger.propagate),
            "runs": [*self.folder.rglob("run.json"), *self.folder.rglob("writer.lock")],
            "open files": [link for link in map(target, os.listdir("/proc/self/fd")) if str(self.folder) in link],
        }  # fmt: skip


def locks_that_are_held():
    """As another thread finds them: the one that holds a lock may take it again."""
    locks = {"patches": patch.LOCK}
    held = []

    def look():
        for name, lock in locks.items():
            if lock.acquire(blocking=False):
                lock.release()
            else:
                held.append(name)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return held


def wakeup():
    found = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(found)
    return found


def target(descriptor):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


@pytest.fixture
def functions(monkeypatch):
    """What is called at the interpreter's end; nothing starts a process meanwhile."""

    def refuse(*_, **__):
        raise AssertionError("a process was started")

    stand_in = ExitFunctions()
    monkeypatch.setattr(open_watches, "atexit", stand_in)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    return stand_in


@pytest.fixture(scope="module", autouse=True)
def listening(tmp_path_factory):
    """The thread that hears signals stays for the process."""
    model = mlp()
    watch(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path_factory.mktemp("first")).close()


@pytest.mark.filterwarnings("ignore:.* cannot be recorded, training goes on")  # what was looked at only
@pytest.mark.parametrize(("error", "calls"), [(Stop, True), (MemoryError, False)], ids=["interrupt", "no memory"])
@pytest.mark.parametrize(
    "settings",
    [pytest.param({}, id="plain", marks=pytest.mark.slow), pytest.param(ALL, id="all"),
     pytest.param({**ALL, "name": "D"}, id="named", marks=pytest.mark.slow)],
)  # fmt: skip
def test_watch_leaves_nothing_where_it_is_interrupted(settings, error, calls, tmp_path, functions):
    twin = mlp(torch.float32)
    train(twin, torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9), 2, dtype=torch.float32)
    last, made = Opening(tmp_path / "last", functions, **settings).interrupted(None, error, calls)
    made.close()
    assert len(last) > 100, "the places were not reached"
    for at in range(0, len(last), STRIDE):
        opening = Opening(tmp_path / str(at), functions, **settings)
        places, made = opening.interrupted(at, error, calls)
        if made is not None:  # what was looked at only
            made.close()
            continue
        found = opening.state()
        if found["open files"]:  # of an object that nobody holds, in a folder that is gone: no lock
            gc.collect()
            found = opening.state()
        assert {k: v for k, v in found.items() if v != opening.before[k]} == {}, places[-1]
        train(opening.model, opening.optimizer, 2, dtype=torch.float32)
        assert all(map(torch.equal, opening.model.parameters(), twin.parameters())), places[-1]

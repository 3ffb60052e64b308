"""SIGINT at random moments into trainings of about a millisecond a step: what they took, and what was recorded of it.

All trainings run in this process, on its main thread, where Python raises a KeyboardInterrupt; another process sends
the signals. By turns they come

- *caught*: into a loop that catches them and goes on, several in one training;
- *ending*: into a loop inside `with watch:`, which they end;
- *closing*: into `close()`, which is then called again;
- *opening*: into `watch()`, which is then called again.

A step is *taken* when the weights have moved: every step has a gradient of its own on one parameter, the marker, so
that a row says which step it is of, and whether the marker has moved is looked at after each. *Recorded*: what
`open_history` reads of them once the training is closed. *Cut short*: rows of steps that were interrupted before they
moved the weights. *Errors*: whatever was raised that is no KeyboardInterrupt. *Gradients off*: interrupts inside
gradwatch after which autograd was off; torch's own `no_grad` is prone to that, and what it did is counted apart. *Left
behind*: trainings after which hooks, threads or an open Watch are there, a step is there twice, or the run has problems
or another status than it ended with; and a `watch()` that left half of a Watch.

The command line is that of scripts/bench/chaos.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gradwatch
from gradwatch.recording import open_watches

PACKAGE = str(Path(gradwatch.__file__).parent)
SENDER = "import os, sys, time\nfor line in sys.stdin: time.sleep(float(line)); os.kill(os.getppid(), 2)"
PATIENCE = 2.0  # seconds after which an interrupt that nobody saw was swallowed
IN_A_LOOP, A_TRAINING = 0.03, 20  # within how many seconds one comes; how many come to one training that catches them
SETTINGS: tuple[dict[str, Any], ...] = (  # by turns
    {},
    {"clip": "ClipByGlobalNorm(1.0)", "flush_every": 0.05},
    {"clip": "SkipNonfinite()", "renorm": "MaxNorm(3.0)", "every": 3},
    {"clip": "AutoClip(10)", "flush_every": 0.05, "every": 1, "slots": True},
)


class Interrupts:
    """Sends them, and says where they came."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()
        self.errors: list[str] = []
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins without it
        self.sender = subprocess.Popen(
            [sys.executable, "-S", "-c", SENDER], stdin=subprocess.PIPE, text=True, bufsize=1, start_new_session=True
        )

    def into(self, doing: Callable[[], object], seconds: float) -> None:
        """Do it, with an interrupt after so many seconds; where it is over before, wait for the interrupt."""
        assert self.sender.stdin is not None
        try:
            self.sender.stdin.write(f"{seconds}\n")
            self.attempt(doing)
            time.sleep(PATIENCE)
        except KeyboardInterrupt as stop:
            place = traceback.format_exception(stop)
            ours = any(PACKAGE in line for line in place)
            self.found["inside"] += ours
            if not torch.is_grad_enabled():
                self.found["gradients_off" if ours else "gradients_off_by_torch"] += 1
                print(*place, file=sys.stderr)
                torch.set_grad_enabled(True)
        else:
            self.found["swallowed"] += 1
        self.found["interrupts"] += 1

    def attempt(self, doing: Callable[[], object]) -> None:
        """Do it, and note what it raises."""
        try:
            doing()
        except Exception:
            self.errors.append(traceback.format_exc())


class Net(nn.Module):
    """A small classifier, and the marker."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 10))
        self.marker = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        out: Tensor = self.layers(x)
        return out


def threads() -> int:
    """How many there are, beside the one that hears signals and stays for the process."""
    return sum(thread.name != "gradwatch-signals" for thread in threading.enumerate())


class Training:
    """One run: its steps, those of them that were taken, and what was recorded of them."""

    def __init__(self, number: int, folder: Path) -> None:
        torch.manual_seed(number)
        self.model, self.folder = Net(), folder
        kind, more = [(torch.optim.SGD, {"foreach": True}), (torch.optim.AdamW, {"fused": True})][number % 2]
        self.optimizer = kind(self.model.parameters(), lr=0.01, **more)
        self.settings = SETTINGS[number // 2 % len(SETTINGS)]
        self.step_number, self.moved_to = 0, 0.0
        self.taken: set[int] = set()
        self.watch: gradwatch.Watch | None = None
        self.threads = threads()

    def open(self) -> None:
        """Watch it."""
        self.watch = gradwatch.watch(
            self.model, self.optimizer, log=None, delivery="none", dir=self.folder, verbose=False, **self.settings
        )

    def step(self) -> None:
        """Take the next step."""
        self.settle()
        self.step_number += 1
        x = torch.randn(16, 32)
        loss = nn.functional.cross_entropy(self.model(x), x[:, :10].argmax(1))
        self.optimizer.zero_grad()
        (loss + self.step_number * self.model.marker.sum()).backward()
        self.optimizer.step()
        if self.watch is not None:
            self.watch.log(loss=loss)

    def settle(self) -> None:
        """Note whether the last step has moved the weights; twice is harmless."""
        marker = self.model.marker.item()
        if marker != self.moved_to:
            self.taken.add(self.step_number)
        self.moved_to = marker

    def steps(self, seconds: float) -> None:
        """Take steps for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.step()

    def within(self) -> None:
        """Take steps until interrupted, which ends the run."""
        assert self.watch is not None
        with self.watch:
            self.steps(PATIENCE)

    def close(self) -> None:
        """End the run."""
        assert self.watch is not None
        self.watch.close()

    def is_left_half_open(self) -> bool:
        """Whether an interrupted `watch()` has left more, or less, than a Watch that is open."""
        hooks = {**self.optimizer._optimizer_step_pre_hooks, **self.optimizer._optimizer_step_post_hooks}
        there = len(hooks), threads() - self.threads, len(open_watches.watches)
        return there not in ((0, 0, 0), (2, 1, 1))

    def result(self, status: str) -> Counter[str]:
        """What was taken, recorded and lost; `left` is 1 if something is left behind that should not be."""
        self.settle()
        assert self.watch is not None
        try:
            found = gradwatch.open_history(self.watch.dir)
        except gradwatch.RunError:
            if self.taken:
                raise
            return Counter(trainings=1)  # interrupted in its first step
        rows = Counter(found.per_layer["grad_norm"][:, found.layers.index("marker")].astype(int).tolist())
        hooks = {**self.optimizer._optimizer_step_pre_hooks, **self.optimizer._optimizer_step_post_hooks}
        clean = not (hooks or open_watches.watches or threads() > self.threads)
        true = found.problems == () and found.run.status == status and rows.total() == len(rows)
        recorded = self.taken & set(rows)
        return Counter(
            trainings=1,
            taken=len(self.taken),
            recorded=len(recorded),
            lost=len(self.taken) - len(recorded),
            cut_short=len(set(rows) - self.taken),
            left=int(not (clean and true)),
        )


def interrupts(count: int, seed: int, parent: Path) -> dict[str, Any]:
    """`count` interrupts; what was taken, recorded and lost in all. The seed settles their moments."""
    torch.set_num_threads(1)
    chance, sent, total = random.Random(seed), Interrupts(), Counter[str]()
    lasts = {"closing": 0.02, "opening": 0.02}  # seconds
    number = 0
    while sent.found["interrupts"] < count:
        training = Training(number, parent / f"run-{number}")
        way, status = ("caught", "ending", "closing", "ending", "closing", "opening")[number % 6], "FINISHED"
        left = min(A_TRAINING, count - sent.found["interrupts"])
        try:
            if way == "opening":
                lasts[way] = _interrupt(sent, training.open, chance, lasts[way])
                total["left"] += training.is_left_half_open()
            if training.watch is None:
                training.open()
            if way == "caught":
                for _ in range(left):
                    sent.into(lambda t=training: t.steps(PATIENCE), chance.uniform(0, IN_A_LOOP))
                sent.attempt(lambda t=training: t.steps(0.01))
            elif way == "ending":
                sent.into(training.within, chance.uniform(0, IN_A_LOOP))
                status = "KILLED"
            else:
                sent.attempt(lambda t=training: t.steps(chance.uniform(0, IN_A_LOOP)))
            if way == "closing":
                lasts[way] = _interrupt(sent, training.close, chance, lasts[way])
            sent.attempt(training.close)
            total += training.result(status)
        except Exception:
            sent.errors.append(traceback.format_exc())
        shutil.rmtree(training.folder, ignore_errors=True)
        number += 1
    sent.sender.kill()
    for error in sent.errors[:3]:
        print(error, file=sys.stderr)
    names = ("trainings", "taken", "recorded", "lost", "cut_short", "left")
    heard = {
        name: sent.found[name]
        for name in ("interrupts", "inside", "swallowed", "gradients_off", "gradients_off_by_torch")
    }
    return {
        **{name: sent.found[name] for name in heard},
        "seed": seed,
        **{name: total[name] for name in names},
        "errors": len(sent.errors),
    }


def _interrupt(sent: Interrupts, doing: Callable[[], object], chance: random.Random, lasts: float) -> float:
    """Interrupt what lasts about so many seconds, anywhere in it; how long it lasted, or `lasts` if it was cut."""
    took = lasts

    def timed() -> None:
        nonlocal took
        begun = time.monotonic()
        doing()
        took = time.monotonic() - begun

    sent.into(timed, chance.uniform(0, 1.1 * lasts))
    return took

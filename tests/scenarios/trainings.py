"""Real trainings for the rules: one loop under a Watch that hands back what was recorded."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from nets import SEED

import gradwatch
from gradwatch.recording import torch_patches

_POLICY = re.compile(r'(?:clip|renorm)="([^"]+)"')


@dataclass(frozen=True)
class Treatment:
    """What is done to a training beside what it does: arguments of `watch()`, a change before its first step.

    With `replace_clips` the loop's own clips are left out, as `gradwatch run --script-clip replace` does.
    """

    watch: Mapping[str, Any] = field(default_factory=dict)
    change: Callable[[torch.nn.Module, torch.optim.Optimizer], object] | None = None
    replace_clips: bool = False

    def begin(self, net, optimizer):
        """Change them, and hand back the arguments of `watch()`. Not a number of the data is drawn for it."""
        if self.change:
            with torch.random.fork_rng():
                self.change(net, optimizer)
        return self.watch


TREATMENT = [Treatment()]  # of all trainings: scripts/bench/cures.py follows the advice that findings give


@contextmanager
def treated(treatment: Treatment) -> Iterator[None]:
    """Trainings in here are treated so."""
    TREATMENT.append(treatment)
    try:
        with mock.patch.object(torch_patches._seen, "replaced", treatment.replace_clips):
            yield
    finally:
        TREATMENT.pop()


def fit(folder, model, optimizer, loss_of, steps, before_step=None, zero_grad=True, read=True, **options):
    """Train `steps` steps and return their History.

    `loss_of(step)` gives the loss, or that and a dict of what else is logged; `before_step(step)` stands between
    backward and the optimizer's step; `options` are those of `gradwatch.watch` (`every=1` here unless told).
    `optimizer` may be a list of them. With `read` False nothing is returned (ranks that record nothing).
    """
    options |= TREATMENT[-1].begin(model, optimizer)
    optimizers = optimizer if isinstance(optimizer, list) else [optimizer]
    watch = gradwatch.watch(model, optimizer, **{"log": None, "dir": folder, "verbose": False, "every": 1, **options})
    with watch:
        for step in range(steps):
            for one in optimizers if zero_grad else ():
                one.zero_grad()
            loss, logged = loss if isinstance(loss := loss_of(step), tuple) else (loss, {})
            loss.backward()
            if before_step:
                before_step(step)
            for one in optimizers:
                one.step()
            watch.log(loss=loss, **logged)
    return gradwatch.open_history(watch.dir) if read else None


def blobs(classes=4, size=16, batch=32, seed=0, spread=1.0):
    """`batch_of(step)` of a classification that can be learned: noisy points around one centre per class."""
    seed += SEED[0]
    centres = torch.randn(classes, size, generator=torch.Generator().manual_seed(seed)) * 2

    def batch_of(step):
        g = torch.Generator().manual_seed(1000 * (seed + 1) + step)
        y = torch.randint(classes, (batch,), generator=g)
        return centres[y] + spread * torch.randn(batch, size, generator=g), y

    return batch_of


def serious(findings):
    """The errors and warnings among findings, by rule."""
    return [finding.rule for finding in findings if finding.severity != "note"]


def one(findings, rule):
    """The finding of `rule`, wherever it stands: a root or a consequence."""
    flat = [f for root in findings for f in (root, *root.consequences)]
    (found,) = [f for f in flat if f.rule == rule]
    return found


def policies_in(finding):
    """The policies in a finding's cure, parsed: a text that does not parse raises."""
    return [gradwatch.parse(text) for text in _POLICY.findall(finding.cure)]

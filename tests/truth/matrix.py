"""The matrix: every loop with every optimizer, in every dtype, each combination held against the oracle.

A combination is trained bare; watched without a policy (everything identical to the bit); watched under a policy (what
is recorded and what the optimizer consumes are the oracle's numbers); and clipped by hand by the oracle (the weights
agree). What the bare training refuses is torch's own refusal.
"""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import checks
import odd_loops  # noqa: F401  # enters its loops
import oracle
import torch
from attach import POLICIES, attach, thresholds
from loops import FLOATS, LOOPS
from optimizers import SPECS
from trial import Trial

import gradwatch

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Combination:
    """One cell of the matrix."""

    loop: str
    spec: str
    dtype: torch.dtype
    policy: str
    device: torch.device = CPU

    def __str__(self):
        return f"{self.loop}, {self.spec}, {short(self.dtype)}, {self.policy}"

    def train(self, watch=None, by_hand=None):
        """Run the loop once; returns the Trial, which holds what is left of it."""
        torch.default_generator.manual_seed(0)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(0)
        trial = Trial(SPECS[self.spec], self.dtype, self.device, watch, by_hand)
        trial.left = LOOPS[self.loop].run(trial)
        for probe in trial.probes:
            if probe.handle is not None:
                probe.handle.close()
        return trial

    @property
    def repeats(self):
        """Whether torch itself, asked twice, gives the same weights."""
        # Its fused SGD for a CPU reads unwritten memory in half precision (pytorch#191763).
        return not (self.spec in BROKEN_FUSED and self.device.type == "cpu" and torch.finfo(self.dtype).bits == 16)

    @property
    def branches_on_rounding(self):
        """Whether the last digit of a norm decides which way the optimizer goes, so that weights cannot be compared.

        A strong Wolfe search compares losses: in single precision two clips that agree to rounding part for good, on
        some processors. The norms and what the optimizer consumed are compared all the same.
        """
        return self.spec == "LBFGS strong_wolfe" and torch.finfo(self.dtype).bits < 64


BROKEN_FUSED = ("SGD fused", "SGD fused maximize")


@dataclass
class Outcome:
    """What came of a combination: torch refused it, or these checks failed (none: it is true)."""

    combination: Combination
    refused: str | None = None
    failures: list[str] = field(default_factory=list)
    unrepeatable: bool = False  # torch alone gives other bits from time to time, so ours cannot be compared


def check(combination, attach=attach):
    """Hold one combination against the oracle."""
    outcome = Outcome(combination, unrepeatable=not combination.repeats)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", gradwatch.GradwatchWarning)
        warnings.filterwarnings("ignore", message="LBFGS.line_search_fn", category=gradwatch.GradwatchWarning)  # advice
        try:
            bare = combination.train()
        except Exception as error:
            outcome.refused = _refusal(error)
            return outcome
        for run in (without_a_policy, under_a_policy):
            try:
                run(outcome, bare, attach)
            except Exception as error:
                outcome.failures.append(f"{run.__name__}: {_describe(error)}")
    return outcome


def without_a_policy(outcome, bare, attach):
    """Training is what it was, to the bit, and the record is the oracle's."""

    def watch(model, optimizer):
        return attach(model, optimizer, None, slots=True)

    trial = outcome.combination.train(watch=watch)
    for probe in trial.probes:
        checks.record(probe, oracle.nothing, 0.0)
        checks.consumed(probe, oracle.nothing, 0.0)
    if outcome.unrepeatable:
        return
    want, got = bare.bits(), trial.bits()
    if outcome.combination.device.type == "cuda" and got != want:  # atomics of its kernels may go another way
        train = outcome.combination.train
        outcome.unrepeatable = any(train().bits() != want or train(watch=watch).bits() == want for _ in range(9))
    if not outcome.unrepeatable:
        checks.identical(got, want)


def under_a_policy(outcome, bare, attach):
    """The optimizer gets the gradients that the oracle clips, the record says so, and the weights show it."""
    combination = outcome.combination
    make, clip = POLICIES[combination.policy]
    threshold = thresholds(bare)[combination.policy]
    policies = []

    def watch(model, optimizer):
        policies.append(make(threshold))
        return attach(model, optimizer, policies[-1])

    trial = combination.train(watch=watch)
    for probe, policy in zip(trial.probes, policies, strict=True):
        checks.record(probe, clip, threshold)
        checks.consumed(probe, clip, threshold)
        checks.asked(probe, policy)
    by_hand = combination.train(by_hand=lambda grads: clip(grads, threshold)[0])
    if not (outcome.unrepeatable or combination.branches_on_rounding):
        checks.weights(trial.weights(), by_hand.weights())


def _refusal(error):
    """The message of torch's own error; that of a tool of these tests is raised."""
    last = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    if last.parent == Path(__file__).parent and last.name not in ("loops.py", "odd_loops.py"):
        raise error
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"


def _describe(error):
    frames = traceback.extract_tb(error.__traceback__)
    where = next(f for f in reversed(frames) if "gradwatch" in f.filename or "truth" in f.filename)
    return f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {' '.join(str(error).split())[:400]}"


def short(dtype):
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


# ------------------------------------------------------------------------------------------------------------ the cells


def combinations(device=CPU, loops=None, dtypes=FLOATS, full=False):
    """The cells, by loop and dtype.

    A loop that says `every_form` meets every form of every optimizer in every dtype. Any other meets every class, in
    float32 and in one more dtype, which changes from class to class, as its form does. The policies go round. `full`:
    every form, dtype and policy everywhere.
    """
    names = list(POLICIES)
    return [
        Combination(loop.name, spec, dtype, policy, device)
        for i, loop in enumerate(LOOPS.values())
        if loops is None or loop.name in loops
        for j, dtype in enumerate(loop.dtypes)
        if dtype in dtypes
        for turn, spec in enumerate(_specs(i, loop, dtype, full), start=i + j)
        for policy in (names if full else [names[turn % len(names)]])
    ]


def _specs(i, loop, dtype, full):
    if full or loop.every_form:
        return list(SPECS)
    classes = Counter(spec.name for spec in SPECS.values())
    others = [d for d in loop.dtypes if d != torch.float32]
    chosen = []
    for k, name in enumerate(classes):
        forms = [form for form, spec in SPECS.items() if spec.name == name and spec.form != "capturable"]
        if dtype == torch.float32 or others[(i + k) % len(others)] == dtype:
            chosen.append(forms[(i + k // 2) % len(forms)])
    return chosen

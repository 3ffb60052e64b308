"""A schedule that is over before the run is, and climbs back; a warm-up that takes most of the run."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from make_run import changed, make_history
from torch import nn, optim

from gradwatch.analysis.rules.schedule_length import schedule_too_short, warmup_too_long

STEPS = 240
AT = np.arange(STEPS)


def run(lr, status="FINISHED"):
    """A calm run with these learning rates."""
    history = make_history(len(lr), clip=None, logged=(), status=status)
    rest = {name: values for name, values in history.per_step.items() if not name.startswith("lr")}
    return changed(history, per_step={**rest, "lr": np.asarray(lr, float)})


def by(make, each=1):
    """The rates of a scheduler of torch that is stepped every `each` steps."""
    optimizer = optim.SGD(nn.Linear(1, 1).parameters(), 0.1, momentum=0.9)
    scheduler, found = make(optimizer), []
    optimizer.step()
    for step in range(STEPS):
        found.append(optimizer.param_groups[0]["lr"])
        if (step + 1) % each == 0:
            scheduler.step()
    return torch.tensor(found, dtype=torch.float64).numpy()


def warmed(lr, steps=20):
    return np.concatenate([np.linspace(0, lr[0], steps, endpoint=False), lr[: STEPS - steps]])


def cosine(length, low=0.0, each=1):
    return by(lambda o: optim.lr_scheduler.CosineAnnealingLR(o, length, low), each)


@pytest.mark.parametrize(
    ("lr", "severity", "lowest"),
    [
        (cosine(120), "warning", 120),
        (cosine(180), "warning", 180),
        (cosine(8, each=20), "warning", 160),  # once an epoch
        (cosine(120, low=0.02), "warning", 120),
        (cosine(15), "warning", 15),  # once a step, and counted in epochs
        (warmed(cosine(120)), "warning", 140),
        (cosine(80), "note", 80),  # down, up and down: it may be meant
    ],
)
def test_a_cosine_that_climbs_back_is_told(lr, severity, lowest):
    (found,) = schedule_too_short(run(lr))
    assert (found.severity, found.first_step) == (severity, lowest)
    assert f"T_max={STEPS}" in found.cure


@pytest.mark.parametrize(("passes", "told"), [(4, True), (3, False), (1, False)])
def test_a_scheduler_that_is_stepped_after_each_of_several_backward_passes(passes, told):
    history = run(cosine(STEPS // 4 - 1)[: STEPS // 2])
    looked = np.where(np.arange(len(history)) % 10 == 1, passes, np.nan)
    known = changed(history, per_step={**history.per_step, "in_loss/passes": looked})
    (found,) = schedule_too_short(replace(known, run=replace(known.run, status="RUNNING", total_steps=STEPS)))
    assert ("behind each of 4 backward passes" in found.cure) == told
    assert f"the run, of {STEPS} steps, was not" in found.cause
    (found,) = schedule_too_short(replace(known, run=replace(known.run, status="RUNNING")))
    assert f"the run, of {STEPS // 2} steps so far, was not" in found.cause


@pytest.mark.parametrize(
    "lr",
    [
        cosine(STEPS),
        cosine(220),
        cosine(120, low=0.099),
        np.where(AT < 120, cosine(120), 0),
        by(lambda o: optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 60)),
        by(lambda o: optim.lr_scheduler.CyclicLR(o, 0.001, 0.1, 40)),
        by(lambda o: optim.lr_scheduler.OneCycleLR(o, 0.1, STEPS)),
        by(lambda o: optim.lr_scheduler.LambdaLR(o, lambda s: abs(1 - s / 120))),  # a triangle that begins high
        by(lambda o: optim.lr_scheduler.ExponentialLR(o, 0.98)),
        by(lambda o: optim.lr_scheduler.LambdaLR(o, lambda s: 0.5 - 0.5 * np.cos(s / 20))),  # begins low
        by(lambda o: optim.lr_scheduler.StepLR(o, 60)),
        np.full(STEPS, 0.1),
        np.full(STEPS, np.nan),
    ],
)
def test_what_ends_with_the_run_jumps_or_swings_otherwise_is_not(lr):
    assert schedule_too_short(run(lr)) == []


WAVES = 0.5 - 0.5 * np.cos(AT * 2 * np.pi / 20)


@pytest.mark.parametrize(
    ("lr", "found"),
    [
        (WAVES, True),
        (np.minimum(1, AT / 40) * WAVES, True),  # each higher than the last, at first
        (0.2 + 0.8 * WAVES, False),  # as of CyclicLR
        (0.5 + 0.5 * np.cos((AT % 20) * np.pi / 20), False),  # restarts
        (0.5 - 0.5 * np.cos(AT * 2 * np.pi / 60), False),  # few
    ],
)
def test_a_rate_that_falls_to_nothing_again_and_again_is_of_a_schedule_that_is_too_short(lr, found):
    told = [f for f in schedule_too_short(run(lr)) if f.severity == "warning"]
    assert ["every 20 steps" in f.cause or "climbs back along" in f.cause for f in told] == [True] * found


@pytest.mark.parametrize(
    ("lr", "status", "told"),
    [
        ((AT + 1) / STEPS, "FINISHED", True),
        (np.minimum(1, (AT + 1) / 200), "FINISHED", True),
        ((AT // 24 + 1) / 10, "FINISHED", True),  # once an epoch
        ((AT + 1) / STEPS, "RUNNING", False),
        ((AT + 1) / STEPS, "KILLED", False),
        (0.5 + (AT + 1) / STEPS, "FINISHED", False),
        (np.minimum(1, (AT + 1) / 100), "FINISHED", False),
        (1e-6 * 1.06**AT, "FINISHED", False),  # a range test
        (np.where(AT < 200, 0.01, 1), "FINISHED", False),
        (np.ones(STEPS), "FINISHED", False),
    ],
)
def test_a_warm_up_for_most_of_a_run_is_told(lr, status, told):
    found = warmup_too_long(run(lr, status))
    assert [f.severity for f in found] == ["warning"] * told
    assert not warmup_too_long(run(lr[:45], status))


@pytest.mark.parametrize(
    ("lr", "found"),
    [
        ((AT % 24 + 1) / 100, True),
        ((AT % 60 + 1) / 100, False),  # few
        (1 - (AT % 24) / 24, False),  # it falls, and is restarted
        ((AT + 1) / 300, False),
    ],
)
def test_a_warm_up_that_begins_anew_again_and_again_is_told(lr, found):
    told = [f for f in warmup_too_long(run(lr)) if "begins_anew" in f.evidence]
    assert [f.severity for f in told] == ["warning"] * found


def test_a_long_warm_up_of_a_training_that_succeeded_is_a_note():
    warm = run((AT + 1) / STEPS)
    slow, learnt = (
        changed(warm, per_step={**warm.per_step, "loss": np.linspace(2.0, end, STEPS)}) for end in (1.9, 0.2)
    )
    assert [f.severity for history in (slow, learnt) for f in warmup_too_long(history)] == ["warning", "note"]

"""Healthy trainings raise no alarm; scripts/bench/false_alarms.py runs all of them, and counts."""

import pytest
from healthy import HEALTHY
from recordings import recorded
from trainings import serious

from gradwatch.analysis.rules import diagnose

SLOW = {h.name for h in HEALTHY if h.name.startswith("transformer")} | {"gru-adam-own-clip", "gan-slow", "plateau-sgd"}
FAST = [h for h in HEALTHY if h.name not in SLOW]
QUICK = [h for half in (0, 1) for h in [h for h in FAST if h.number % 4 == half][:10]] + [
    h for h in HEALTHY if h.name == "transformer-warm-up"
]


@pytest.mark.parametrize("training", QUICK, ids=lambda h: h.name)
def test_a_healthy_training_is_called_healthy(training, tmp_path):
    findings = diagnose(recorded(f"healthy-{training.name}", training.train, tmp_path))
    assert serious(findings) == [], [f.summary for f in findings]


def test_there_are_enough_of_them_in_both_halves():
    assert len(HEALTHY) >= 40
    assert len({h.name for h in HEALTHY}) == len(HEALTHY)
    assert sum(h.number % 2 for h in QUICK) >= 10
    assert sum(h.number % 2 == 0 for h in QUICK) >= 10

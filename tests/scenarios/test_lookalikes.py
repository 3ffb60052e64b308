"""Healthy trainings that look sick by their curves raise no alarm."""

import pytest
from lookalikes import LOOKALIKE_TRAININGS
from recordings import recorded
from trainings import serious

from gradwatch.analysis.rules import diagnose


@pytest.mark.parametrize("training", LOOKALIKE_TRAININGS, ids=lambda h: h.name)
def test_a_training_that_only_looks_sick_is_called_healthy(training, tmp_path):
    findings = diagnose(recorded(f"healthy-{training.name}", training.train, tmp_path))
    assert serious(findings) == [], [f.summary for f in findings]

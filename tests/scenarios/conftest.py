"""What all trainings of this folder have in common."""

import math

import pytest


@pytest.fixture(autouse=True)
def no_process(monkeypatch):
    """Their findings are looked for here: no process is started beside them to do it once more."""
    monkeypatch.setattr("gradwatch.recording.callbacks.PROCESS_SECONDS", math.inf)

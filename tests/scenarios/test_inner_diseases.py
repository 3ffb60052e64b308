"""Diseases that only activations show: real trainings and their healthy twins."""

import inner_diseases
import pytest
from recordings import Recorded
from trainings import serious

from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.rules.activations import dead_units, saturated

d = Recorded(inner_diseases)


@pytest.mark.parametrize("train", [d.dead_units, d.saturated], ids=lambda train: train.__name__)
def test_the_healthy_twin_has_no_error_and_no_warning(train, tmp_path):
    history = train(tmp_path, sick=False)
    assert len(history.activations) == 10
    assert serious(diagnose(history)) == []


def test_units_that_one_batch_killed_are_found(tmp_path):
    (finding,) = dead_units(d.dead_units(tmp_path))
    assert finding.layers == ("3",)
    assert finding.evidence["share"] > 0.5
    assert finding.first_step == 10


def test_a_tanh_at_its_ends_is_found(tmp_path):
    history = d.saturated(tmp_path)
    (finding,) = saturated(history)
    assert (finding.layers, finding.first_step) == (("3",), 0)
    assert finding.evidence["share"] > 0.5
    assert serious(diagnose(history)) == ["saturated"]
    assert dead_units(history) == []

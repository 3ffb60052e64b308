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
    assert len(history.activations) == 21
    assert serious(diagnose(history)) == []


def test_units_that_never_wake_are_found(tmp_path):
    (root,) = diagnose(d.dead_units(tmp_path))
    assert (root.rule, root.severity, root.layers, root.first_step) == ("dead-units", "warning", ("2", "4", "6"), 0)
    assert root.evidence["share"] > 0.8
    assert root.cure.startswith("Begin with biases at 0")


def test_units_that_one_batch_killed_are_a_note_where_the_others_learn(tmp_path):
    (finding,) = dead_units(d.units_that_one_batch_killed(tmp_path))
    assert (finding.severity, finding.layers, finding.first_step) == ("note", ("3",), 10)
    assert finding.evidence["share"] > 0.5
    assert finding.cure.startswith("Lower the learning rate")


def test_a_tanh_at_its_ends_is_found(tmp_path):
    history = d.saturated(tmp_path)
    (finding,) = saturated(history)
    assert (finding.severity, finding.first_step) == ("warning", 0)
    assert finding.evidence["share"] > 0.5
    assert serious(diagnose(history)) == ["saturated"]

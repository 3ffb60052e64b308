"""The unseen trainings are what they are said to be: by their scores alone, no rule is asked.

Every fourth here; all of them by `scripts/bench/judgement.py --check`.
"""

import re
from pathlib import Path

import pytest
import unseen_healthy  # noqa: F401
import unseen_healthy_models  # noqa: F401
import unseen_healthy_more  # noqa: F401
import unseen_healthy_tasks  # noqa: F401
import unseen_sick  # noqa: F401
import unseen_sick_models  # noqa: F401
import unseen_sick_more  # noqa: F401
import unseen_sick_tasks  # noqa: F401
from unseen import HEALTHY, HELD_OUT, SICK, fault, held_out, tuning

FOLDER = Path(__file__).parents[2] / "docs" / "findings"
PAGES = {page.stem for page in FOLDER.glob("*.md")} - {"index", "false_alarms", "judgement", "cures"}
WANTED = {  # what no finding is called yet, and an expert would say
    "below-epsilon",
    "clip-without-gradient",
    "dropout-too-strong",
    "generator-starves",
    "loss-not-averaged",
    "loss-terms-apart",
    "momentum-too-high",
    "no-progress",
    "norm-left-in-eval",
    "norm-over-too-few",
    "rates-apart",
    "router-collapsed",
    "saturated",
    "schedule-ran-out",
    "symmetric-units",
    "underflow",
    "warmup-too-long",
    "weight-decay-too-strong",
    "weights-put-back",
    "weights-shrink",
    "wrong-sign",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SICK)[::4])
def test_a_sick_training_is_clearly_worse_than_its_cured_twin(name, tmp_path):
    assert fault(SICK[name], tmp_path) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(HEALTHY)[::4])
def test_a_healthy_training_learns(name, tmp_path):
    assert fault(HEALTHY[name], tmp_path) is None


def test_the_halves_are_disjoint_whole_and_of_one_size():
    assert set(SICK) | set(HEALTHY) >= HELD_OUT, "a name in HELD_OUT that no training has"
    for of in (SICK, HEALTHY):
        both = {t.name for t in tuning(of)}, {t.name for t in held_out(of)}
        assert both[0] | both[1] == set(of)
        assert not both[0] & both[1]
        assert abs(len(both[0]) - len(both[1])) <= 2


def test_what_is_expected_is_a_finding_or_a_name_that_is_wanted():
    named = {name for s in SICK.values() for name in s.expected}
    assert named <= PAGES | WANTED
    assert all(re.fullmatch("[a-z-]+", name) for name in named)


def test_an_expert_said_where_and_what_to_do():
    assert [s.name for s in SICK.values() if not (s.expected and s.where and s.cure)] == []

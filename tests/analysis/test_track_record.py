"""What a rule has been right in, on trainings that it was not written for, says how sure its findings are."""

import json
from collections import Counter
from pathlib import Path

import pytest

from gradwatch.analysis.rules import Finding
from gradwatch.analysis.rules.track_record import TRACK_RECORD, expected_share, is_proven

FIRST = Path(__file__).parents[2] / "docs" / "measurements" / "first_readings.json"


def test_the_record_is_that_of_the_readings():
    said = [r for r in json.loads(FIRST.read_text(encoding="utf-8")) if r["rule"] and r["one_cause"]]
    of, right = (Counter(r["rule"] for r in rows) for rows in (said, [r for r in said if r["right"]]))
    assert {rule: (right[rule], of[rule]) for rule in of} == TRACK_RECORD


def test_what_is_proven_is_so_by_laplaces_rule():
    assert expected_share("never-seen") == 0.5
    assert expected_share("nonfinite") == (78 + 1) / (78 + 2)
    assert {rule for rule in TRACK_RECORD if is_proven(rule)} == {
        "accumulation-not-averaged", "activation-on-logits", "attention-collapsed", "axes-mixed",
        "bad-initialisation", "class-imbalance", "clip-before-unscale", "future-seen", "gradients-accumulate",
        "inputs-not-normalised", "left-in-eval", "mask-inverted", "negative-loss", "nonfinite", "norm-over-too-few",
        "norm-statistics", "not-in-optimizer", "optimizer-state-lost", "padding-in-loss", "policy-loss-trains-critic",
        "returns-not-normalised", "schedule-too-short", "shapes-broadcast", "softmax-twice", "targets-not-normalised",
        "targets-out-of-range", "update-too-small", "warmup-too-long", "weight-decay-too-strong", "weights-unchanged",
    }  # fmt: skip
    assert not is_proven("never-seen")


@pytest.mark.parametrize(
    ("rule", "alternatives", "confidence"),
    [("nonfinite", (), "likely"), ("nonfinite", ("a", "b"), "possible"), ("exploding", (), "possible")],
)
def test_a_finding_is_likely_where_one_cause_is_left_and_its_rule_is_proven(rule, alternatives, confidence):
    assert Finding(rule, "error", (), 0, 1, alternatives=alternatives).confidence == confidence

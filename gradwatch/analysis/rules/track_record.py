"""How often each rule was right where it came first and left one cause, on trainings that it was not written for."""

from __future__ import annotations

# Right, of. Printed by `scripts/bench/judgement.py --track-record` of docs/measurements/first_readings.json.
TRACK_RECORD: dict[str, tuple[int, int]] = {
    "nonfinite": (27, 27),
    "lr-too-high": (11, 23),
    "update-too-small": (16, 19),
    "exploding": (11, 15),
    "no-gradient": (11, 13),
    "spike": (6, 11),
    "inputs-not-normalised": (8, 9),
    "dead-layer": (3, 8),
    "weights-unchanged": (8, 8),
    "clip-is-your-learning-rate": (4, 7),
    "gradients-accumulate": (2, 4),
    "below-epsilon": (1, 4),
    "no-progress": (3, 3),
    "softmax-twice": (2, 3),
    "clip-before-unscale": (2, 2),
    "vanishing": (2, 2),
    "weights-shrink": (1, 2),
    "bad-initialisation": (1, 2),
    "data-not-shuffled": (0, 2),
    "negative-loss": (1, 1),
    "warmup-too-long": (1, 1),
    "class-imbalance": (0, 1),
    "shapes-broadcast": (1, 1),
    "targets-not-normalised": (1, 1),
    "imbalance": (0, 1),
    "schedule-too-short": (1, 1),
}


def expected_share(rule: str) -> float:
    """How often it will be right: (right + 1) / (of + 2). Source: Laplace's rule of succession."""
    right, of = TRACK_RECORD.get(rule, (0, 0))
    return (right + 1) / (of + 2)


def is_proven(rule: str, share: float = 0.8) -> bool:
    """Whether it will be right in this `share` of cases, or more."""
    return expected_share(rule) >= share

"""How often each rule was right where it came first and left one cause, on trainings that it was not written for."""

from __future__ import annotations

# Right, of. Printed by `scripts/bench/judgement.py --track-record` of docs/measurements/first_readings.json.
TRACK_RECORD: dict[str, tuple[int, int]] = {
    "nonfinite": (26, 26),
    "lr-too-high": (11, 21),
    "update-too-small": (13, 16),
    "exploding": (9, 13),
    "no-gradient": (9, 10),
    "dead-layer": (3, 8),
    "inputs-not-normalised": (7, 8),
    "spike": (4, 8),
    "weights-unchanged": (7, 7),
    "clip-is-your-learning-rate": (3, 5),
    "gradients-accumulate": (1, 3),
    "below-epsilon": (0, 3),
    "vanishing": (2, 2),
    "no-progress": (2, 2),
    "weights-shrink": (1, 2),
    "softmax-twice": (1, 2),
    "data-not-shuffled": (0, 2),
    "negative-loss": (1, 1),
    "clip-before-unscale": (1, 1),
    "bad-initialisation": (0, 1),
    "warmup-too-long": (1, 1),
    "class-imbalance": (0, 1),
    "shapes-broadcast": (1, 1),
}


def expected_share(rule: str) -> float:
    """How often it will be right: (right + 1) / (of + 2). Source: Laplace's rule of succession."""
    right, of = TRACK_RECORD.get(rule, (0, 0))
    return (right + 1) / (of + 2)


def is_proven(rule: str, share: float = 0.8) -> bool:
    """Whether it will be right in this `share` of cases, or more."""
    return expected_share(rule) >= share

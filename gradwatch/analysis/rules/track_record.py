"""How often each rule was right where it came first and left one cause, on trainings that it was not written for."""

from __future__ import annotations

# Right, of. Printed by `scripts/bench/judgement.py --track-record` of docs/measurements/first_readings.json.
TRACK_RECORD: dict[str, tuple[int, int]] = {
    "lr-too-high": (16, 28),
    "nonfinite": (27, 27),
    "update-too-small": (19, 22),
    "no-gradient": (13, 16),
    "exploding": (11, 16),
    "spike": (6, 12),
    "inputs-not-normalised": (8, 11),
    "dead-layer": (5, 10),
    "weights-unchanged": (10, 10),
    "clip-is-your-learning-rate": (5, 8),
    "gradients-accumulate": (3, 5),
    "below-epsilon": (2, 5),
    "softmax-twice": (3, 4),
    "no-progress": (3, 3),
    "bad-initialisation": (2, 3),
    "class-imbalance": (1, 3),
    "clip-before-unscale": (2, 2),
    "vanishing": (2, 2),
    "weights-shrink": (1, 2),
    "data-not-shuffled": (0, 2),
    "targets-not-normalised": (2, 2),
    "weight-decay-too-strong": (2, 2),
    "negative-loss": (1, 1),
    "warmup-too-long": (1, 1),
    "shapes-broadcast": (1, 1),
    "imbalance": (0, 1),
    "schedule-too-short": (1, 1),
    "generator-starves": (0, 1),
    "optimizer-state-lost": (1, 1),
}


def expected_share(rule: str) -> float:
    """How often it will be right: (right + 1) / (of + 2). Source: Laplace's rule of succession."""
    right, of = TRACK_RECORD.get(rule, (0, 0))
    return (right + 1) / (of + 2)


def is_proven(rule: str, share: float = 0.8) -> bool:
    """Whether it will be right in this `share` of cases, or more."""
    return expected_share(rule) >= share

"""How often each rule was right where it came first and left one cause, on trainings that it was not written for."""

from __future__ import annotations

# Right, of. Printed by `scripts/bench/judgement.py --track-record` of docs/measurements/first_readings.json.
TRACK_RECORD: dict[str, tuple[int, int]] = {
    "lr-too-high": (19, 34),
    "nonfinite": (28, 28),
    "update-too-small": (22, 25),
    "no-gradient": (16, 20),
    "exploding": (14, 19),
    "inputs-not-normalised": (11, 14),
    "spike": (6, 13),
    "weights-unchanged": (11, 11),
    "dead-layer": (5, 10),
    "clip-is-your-learning-rate": (6, 9),
    "gradients-accumulate": (5, 7),
    "below-epsilon": (2, 6),
    "bad-initialisation": (4, 5),
    "clip-before-unscale": (4, 4),
    "softmax-twice": (3, 4),
    "no-progress": (3, 3),
    "weights-shrink": (2, 3),
    "class-imbalance": (1, 3),
    "optimizer-state-lost": (3, 3),
    "vanishing": (2, 2),
    "data-not-shuffled": (0, 2),
    "shapes-broadcast": (2, 2),
    "targets-not-normalised": (2, 2),
    "weight-decay-too-strong": (2, 2),
    "generator-starves": (0, 2),
    "norm-over-too-few": (1, 2),
    "not-in-optimizer": (2, 2),
    "negative-loss": (1, 1),
    "warmup-too-long": (1, 1),
    "imbalance": (0, 1),
    "schedule-too-short": (1, 1),
    "double-clip": (1, 1),
    "targets-out-of-range": (1, 1),
    "attention-collapsed": (1, 1),
    "weight-growth": (0, 1),
}


def expected_share(rule: str) -> float:
    """How often it will be right: (right + 1) / (of + 2). Source: Laplace's rule of succession."""
    right, of = TRACK_RECORD.get(rule, (0, 0))
    return (right + 1) / (of + 2)


def is_proven(rule: str, share: float = 0.8) -> bool:
    """Whether it will be right in this `share` of cases, or more."""
    return expected_share(rule) >= share

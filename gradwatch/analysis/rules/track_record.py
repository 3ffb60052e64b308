"""How often each rule was right where it came first and left one cause, on trainings that it was not written for."""

from __future__ import annotations

# Right, of. Printed by `scripts/bench/judgement.py --track-record` of docs/measurements/first_readings.json.
TRACK_RECORD: dict[str, tuple[int, int]] = {
    "lr-too-high": (34, 51),
    "nonfinite": (48, 48),
    "no-gradient": (27, 35),
    "inputs-not-normalised": (28, 32),
    "update-too-small": (25, 31),
    "exploding": (17, 28),
    "dead-layer": (11, 19),
    "weights-unchanged": (16, 17),
    "gradients-accumulate": (14, 17),
    "softmax-twice": (16, 17),
    "not-in-optimizer": (13, 15),
    "spike": (6, 13),
    "clip-is-your-learning-rate": (8, 12),
    "shapes-broadcast": (12, 12),
    "targets-not-normalised": (11, 12),
    "clip-before-unscale": (11, 11),
    "bad-initialisation": (10, 11),
    "targets-out-of-range": (11, 11),
    "data-not-shuffled": (6, 9),
    "optimizer-state-lost": (8, 9),
    "schedule-too-short": (8, 8),
    "no-progress": (3, 7),
    "below-epsilon": (3, 7),
    "class-imbalance": (3, 6),
    "weight-decay-too-strong": (5, 6),
    "left-in-eval": (6, 6),
    "axes-mixed": (6, 6),
    "wrong-sign": (3, 5),
    "weights-shrink": (3, 4),
    "generator-starves": (1, 4),
    "norm-over-too-few": (3, 4),
    "negative-loss": (2, 3),
    "returns-not-normalised": (3, 3),
    "stale-second-moment": (1, 3),
    "future-seen": (3, 3),
    "norm-statistics": (3, 3),
    "vanishing": (2, 2),
    "warmup-too-long": (2, 2),
    "imbalance": (0, 2),
    "double-clip": (1, 2),
    "attention-collapsed": (2, 2),
    "no-activation": (1, 2),
    "padding-in-loss": (2, 2),
    "weight-growth": (0, 1),
    "saturated": (1, 1),
    "update-too-large": (0, 1),
    "clip-after-step": (1, 1),
    "noise-dominated": (0, 1),
    "policy-loss-trains-critic": (1, 1),
}


def expected_share(rule: str) -> float:
    """How often it will be right: (right + 1) / (of + 2). Source: Laplace's rule of succession."""
    right, of = TRACK_RECORD.get(rule, (0, 0))
    return (right + 1) / (of + 2)


def is_proven(rule: str, share: float = 0.8) -> bool:
    """Whether it will be right in this `share` of cases, or more."""
    return expected_share(rule) >= share

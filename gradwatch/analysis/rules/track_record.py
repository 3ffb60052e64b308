"""How often each rule was right where it came first and left one cause, on trainings that it was not written for."""

from __future__ import annotations

# Right, of. Printed by `scripts/bench/judgement.py --track-record` of docs/measurements/first_readings.json.
TRACK_RECORD: dict[str, tuple[int, int]] = {
    "lr-too-high": (22, 38),
    "nonfinite": (29, 29),
    "update-too-small": (23, 27),
    "no-gradient": (19, 23),
    "inputs-not-normalised": (18, 22),
    "exploding": (16, 21),
    "dead-layer": (8, 16),
    "weights-unchanged": (14, 14),
    "spike": (6, 13),
    "gradients-accumulate": (10, 12),
    "clip-is-your-learning-rate": (8, 12),
    "softmax-twice": (9, 10),
    "bad-initialisation": (8, 9),
    "below-epsilon": (3, 7),
    "shapes-broadcast": (7, 7),
    "targets-not-normalised": (7, 7),
    "clip-before-unscale": (6, 6),
    "data-not-shuffled": (3, 6),
    "schedule-too-short": (6, 6),
    "targets-out-of-range": (6, 6),
    "not-in-optimizer": (5, 6),
    "no-progress": (3, 5),
    "class-imbalance": (2, 5),
    "optimizer-state-lost": (5, 5),
    "weight-decay-too-strong": (4, 4),
    "generator-starves": (1, 4),
    "weights-shrink": (2, 3),
    "norm-over-too-few": (2, 3),
    "vanishing": (2, 2),
    "double-clip": (1, 2),
    "attention-collapsed": (2, 2),
    "left-in-eval": (2, 2),
    "future-seen": (2, 2),
    "negative-loss": (1, 1),
    "warmup-too-long": (1, 1),
    "imbalance": (0, 1),
    "weight-growth": (0, 1),
    "returns-not-normalised": (1, 1),
    "saturated": (1, 1),
    "update-too-large": (0, 1),
    "axes-mixed": (1, 1),
    "stale-second-moment": (1, 1),
    "clip-after-step": (1, 1),
    "wrong-sign": (0, 1),
    "noise-dominated": (0, 1),
    "no-activation": (0, 1),
}


def expected_share(rule: str) -> float:
    """How often it will be right: (right + 1) / (of + 2). Source: Laplace's rule of succession."""
    right, of = TRACK_RECORD.get(rule, (0, 0))
    return (right + 1) / (of + 2)


def is_proven(rule: str, share: float = 0.8) -> bool:
    """Whether it will be right in this `share` of cases, or more."""
    return expected_share(rule) >= share

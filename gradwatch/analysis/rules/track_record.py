"""How often each rule was right where it came first and left one cause, on trainings that it was not written for."""

from __future__ import annotations

# Right, of. Printed by `scripts/bench/judgement.py --track-record` of docs/measurements/first_readings.json.
TRACK_RECORD: dict[str, tuple[int, int]] = {
    "nonfinite": (78, 78),
    "lr-too-high": (51, 77),
    "no-gradient": (39, 49),
    "inputs-not-normalised": (43, 48),
    "update-too-small": (35, 44),
    "exploding": (22, 37),
    "not-in-optimizer": (32, 34),
    "softmax-twice": (28, 31),
    "gradients-accumulate": (25, 28),
    "bad-initialisation": (24, 25),
    "dead-layer": (13, 24),
    "targets-out-of-range": (22, 24),
    "weights-unchanged": (18, 19),
    "clip-is-your-learning-rate": (14, 19),
    "shapes-broadcast": (19, 19),
    "targets-not-normalised": (17, 18),
    "schedule-too-short": (18, 18),
    "data-not-shuffled": (12, 17),
    "clip-before-unscale": (16, 16),
    "optimizer-state-lost": (15, 16),
    "spike": (6, 15),
    "weight-decay-too-strong": (11, 12),
    "left-in-eval": (12, 12),
    "class-imbalance": (6, 9),
    "returns-not-normalised": (9, 9),
    "vanishing": (6, 8),
    "below-epsilon": (4, 8),
    "weights-shrink": (6, 8),
    "generator-starves": (5, 8),
    "future-seen": (8, 8),
    "no-progress": (3, 7),
    "warmup-too-long": (7, 7),
    "wrong-sign": (5, 7),
    "norm-over-too-few": (5, 6),
    "axes-mixed": (6, 6),
    "norm-statistics": (6, 6),
    "padding-in-loss": (6, 6),
    "negative-loss": (3, 4),
    "attention-collapsed": (4, 4),
    "stale-second-moment": (1, 4),
    "no-activation": (3, 4),
    "imbalance": (0, 2),
    "double-clip": (1, 2),
    "saturated": (2, 2),
    "update-too-large": (1, 2),
    "noise-dominated": (0, 2),
    "policy-loss-trains-critic": (2, 2),
    "weight-growth": (0, 1),
    "clip-after-step": (1, 1),
    "dead-units": (1, 1),
    "weights-reset": (1, 1),
    "activation-on-logits": (1, 1),
    "target-not-detached": (1, 1),
}


_READ_AS = {"activation-on-logits": "softmax-twice"}  # what was one rule when it was read


def expected_share(rule: str) -> float:
    """How often it will be right: (right + 1) / (of + 2). Source: Laplace's rule of succession."""
    right, of = TRACK_RECORD.get(_READ_AS.get(rule, rule), (0, 0))
    return (right + 1) / (of + 2)


def is_proven(rule: str, share: float = 0.8) -> bool:
    """Whether it will be right in this `share` of cases, or more."""
    return expected_share(rule) >= share

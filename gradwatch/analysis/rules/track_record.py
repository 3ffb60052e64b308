"""How often each rule was right where it came first and left one cause, on trainings that it was not written for."""

from __future__ import annotations

# Right, of. Printed by `scripts/bench/judgement.py --track-record` of docs/measurements/first_readings.json.
TRACK_RECORD: dict[str, tuple[int, int]] = {
    "lr-too-high": (67, 99),
    "nonfinite": (78, 78),
    "inputs-not-normalised": (54, 59),
    "not-in-optimizer": (52, 54),
    "no-gradient": (42, 52),
    "update-too-small": (41, 50),
    "softmax-twice": (42, 45),
    "bad-initialisation": (41, 42),
    "exploding": (22, 39),
    "gradients-accumulate": (31, 34),
    "targets-out-of-range": (31, 33),
    "schedule-too-short": (30, 30),
    "shapes-broadcast": (29, 29),
    "dead-layer": (13, 28),
    "left-in-eval": (28, 28),
    "targets-not-normalised": (24, 26),
    "clip-is-your-learning-rate": (20, 25),
    "data-not-shuffled": (19, 24),
    "weights-unchanged": (19, 20),
    "clip-before-unscale": (19, 19),
    "class-imbalance": (16, 19),
    "weight-decay-too-strong": (18, 19),
    "padding-in-loss": (18, 18),
    "generator-starves": (12, 17),
    "optimizer-state-lost": (16, 17),
    "future-seen": (16, 16),
    "spike": (6, 15),
    "returns-not-normalised": (14, 14),
    "norm-over-too-few": (10, 11),
    "axes-mixed": (11, 11),
    "vanishing": (7, 10),
    "weights-shrink": (7, 10),
    "negative-loss": (7, 8),
    "below-epsilon": (4, 8),
    "warmup-too-long": (8, 8),
    "no-progress": (3, 7),
    "wrong-sign": (5, 7),
    "norm-statistics": (6, 6),
    "activation-on-logits": (6, 6),
    "attention-collapsed": (5, 5),
    "no-activation": (4, 5),
    "accumulation-not-averaged": (5, 5),
    "stale-second-moment": (1, 4),
    "update-too-large": (2, 3),
    "policy-loss-trains-critic": (3, 3),
    "mask-inverted": (3, 3),
    "imbalance": (0, 2),
    "double-clip": (1, 2),
    "saturated": (2, 2),
    "noise-dominated": (0, 2),
    "target-not-detached": (2, 2),
    "representation-collapse": (2, 2),
    "weight-growth": (0, 1),
    "clip-after-step": (1, 1),
    "dead-units": (1, 1),
    "weights-reset": (1, 1),
    "padding-read-as-data": (1, 1),
    "overfitting": (1, 1),
}


_READ_AS = {"activation-on-logits": "softmax-twice"}  # what was one rule when it was read


def expected_share(rule: str) -> float:
    """How often it will be right: (right + 1) / (of + 2). Source: Laplace's rule of succession."""
    right, of = TRACK_RECORD.get(_READ_AS.get(rule, rule), (0, 0))
    return (right + 1) / (of + 2)


def is_proven(rule: str, share: float = 0.8) -> bool:
    """Whether it will be right in this `share` of cases, or more."""
    return expected_share(rule) >= share

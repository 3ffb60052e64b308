"""How often each rule was right where it came first and left one cause, on trainings that it was not written for."""

from __future__ import annotations

# Right, of. Printed by `scripts/bench/judgement.py --track-record` of docs/measurements/first_readings.json.
TRACK_RECORD: dict[str, tuple[int, int]] = {
    "lr-too-high": (52, 79),
    "nonfinite": (78, 78),
    "no-gradient": (40, 50),
    "inputs-not-normalised": (44, 49),
    "update-too-small": (37, 46),
    "exploding": (22, 37),
    "not-in-optimizer": (35, 37),
    "softmax-twice": (30, 33),
    "gradients-accumulate": (25, 28),
    "bad-initialisation": (26, 27),
    "dead-layer": (13, 24),
    "targets-out-of-range": (22, 24),
    "shapes-broadcast": (21, 21),
    "weights-unchanged": (19, 20),
    "schedule-too-short": (20, 20),
    "clip-is-your-learning-rate": (14, 19),
    "targets-not-normalised": (17, 18),
    "clip-before-unscale": (17, 17),
    "data-not-shuffled": (12, 17),
    "optimizer-state-lost": (15, 16),
    "spike": (6, 15),
    "left-in-eval": (14, 14),
    "weight-decay-too-strong": (11, 12),
    "vanishing": (7, 9),
    "class-imbalance": (6, 9),
    "generator-starves": (6, 9),
    "returns-not-normalised": (9, 9),
    "future-seen": (9, 9),
    "below-epsilon": (4, 8),
    "weights-shrink": (6, 8),
    "no-progress": (3, 7),
    "warmup-too-long": (7, 7),
    "axes-mixed": (7, 7),
    "wrong-sign": (5, 7),
    "padding-in-loss": (7, 7),
    "norm-over-too-few": (5, 6),
    "norm-statistics": (6, 6),
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
    "activation-on-logits": (2, 2),
    "weight-growth": (0, 1),
    "clip-after-step": (1, 1),
    "dead-units": (1, 1),
    "weights-reset": (1, 1),
    "target-not-detached": (1, 1),
    "accumulation-not-averaged": (1, 1),
}


_READ_AS = {"activation-on-logits": "softmax-twice"}  # what was one rule when it was read


def expected_share(rule: str) -> float:
    """How often it will be right: (right + 1) / (of + 2). Source: Laplace's rule of succession."""
    right, of = TRACK_RECORD.get(_READ_AS.get(rule, rule), (0, 0))
    return (right + 1) / (of + 2)


def is_proven(rule: str, share: float = 0.8) -> bool:
    """Whether it will be right in this `share` of cases, or more."""
    return expected_share(rule) >= share

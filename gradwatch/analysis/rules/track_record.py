"""How often each rule was right where it came first and left one cause, on trainings that it was not written for."""

from __future__ import annotations

# Right, of. Printed by `scripts/bench/judgement.py --track-record` of docs/measurements/first_readings.json.
TRACK_RECORD: dict[str, tuple[int, int]] = {
    "nonfinite": (76, 76),
    "lr-too-high": (43, 66),
    "no-gradient": (31, 41),
    "update-too-small": (29, 38),
    "inputs-not-normalised": (33, 37),
    "exploding": (21, 33),
    "dead-layer": (13, 23),
    "softmax-twice": (21, 22),
    "gradients-accumulate": (18, 21),
    "not-in-optimizer": (18, 20),
    "weights-unchanged": (18, 19),
    "targets-out-of-range": (16, 16),
    "spike": (6, 14),
    "data-not-shuffled": (9, 14),
    "schedule-too-short": (14, 14),
    "clip-is-your-learning-rate": (9, 13),
    "bad-initialisation": (12, 13),
    "shapes-broadcast": (13, 13),
    "clip-before-unscale": (12, 12),
    "targets-not-normalised": (11, 12),
    "optimizer-state-lost": (11, 12),
    "no-progress": (3, 7),
    "below-epsilon": (3, 7),
    "weight-decay-too-strong": (6, 7),
    "left-in-eval": (7, 7),
    "weights-shrink": (5, 6),
    "class-imbalance": (3, 6),
    "axes-mixed": (6, 6),
    "wrong-sign": (4, 6),
    "norm-statistics": (6, 6),
    "vanishing": (4, 5),
    "generator-starves": (2, 5),
    "future-seen": (5, 5),
    "negative-loss": (3, 4),
    "warmup-too-long": (4, 4),
    "norm-over-too-few": (3, 4),
    "returns-not-normalised": (3, 3),
    "stale-second-moment": (1, 3),
    "padding-in-loss": (3, 3),
    "imbalance": (0, 2),
    "double-clip": (1, 2),
    "attention-collapsed": (2, 2),
    "saturated": (2, 2),
    "update-too-large": (1, 2),
    "noise-dominated": (0, 2),
    "no-activation": (1, 2),
    "policy-loss-trains-critic": (2, 2),
    "weight-growth": (0, 1),
    "clip-after-step": (1, 1),
    "dead-units": (1, 1),
    "weights-reset": (1, 1),
}


_READ_AS = {"activation-on-logits": "softmax-twice"}  # what was one rule when it was read


def expected_share(rule: str) -> float:
    """How often it will be right: (right + 1) / (of + 2). Source: Laplace's rule of succession."""
    right, of = TRACK_RECORD.get(_READ_AS.get(rule, rule), (0, 0))
    return (right + 1) / (of + 2)


def is_proven(rule: str, share: float = 0.8) -> bool:
    """Whether it will be right in this `share` of cases, or more."""
    return expected_share(rule) >= share

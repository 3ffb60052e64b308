"""How often each rule was right where it came first and left one cause, on trainings that it was not written for."""

from __future__ import annotations

# Right, of. Printed by `scripts/bench/judgement.py --track-record` of docs/measurements/first_readings.json.
TRACK_RECORD: dict[str, tuple[int, int]] = {
    "lr-too-high": (59, 88),
    "nonfinite": (78, 78),
    "inputs-not-normalised": (49, 54),
    "no-gradient": (40, 50),
    "update-too-small": (38, 47),
    "not-in-optimizer": (45, 47),
    "exploding": (22, 38),
    "softmax-twice": (31, 34),
    "bad-initialisation": (30, 31),
    "gradients-accumulate": (27, 30),
    "targets-out-of-range": (27, 29),
    "schedule-too-short": (27, 27),
    "dead-layer": (13, 26),
    "shapes-broadcast": (24, 24),
    "clip-is-your-learning-rate": (17, 22),
    "data-not-shuffled": (16, 21),
    "targets-not-normalised": (19, 21),
    "weights-unchanged": (19, 20),
    "left-in-eval": (18, 18),
    "clip-before-unscale": (17, 17),
    "optimizer-state-lost": (15, 16),
    "spike": (6, 15),
    "weight-decay-too-strong": (14, 15),
    "padding-in-loss": (14, 14),
    "returns-not-normalised": (13, 13),
    "future-seen": (13, 13),
    "generator-starves": (8, 12),
    "class-imbalance": (8, 11),
    "axes-mixed": (10, 10),
    "vanishing": (7, 9),
    "weights-shrink": (7, 9),
    "below-epsilon": (4, 8),
    "warmup-too-long": (8, 8),
    "no-progress": (3, 7),
    "wrong-sign": (5, 7),
    "negative-loss": (5, 6),
    "norm-over-too-few": (5, 6),
    "norm-statistics": (6, 6),
    "no-activation": (4, 5),
    "attention-collapsed": (4, 4),
    "stale-second-moment": (1, 4),
    "policy-loss-trains-critic": (3, 3),
    "imbalance": (0, 2),
    "double-clip": (1, 2),
    "saturated": (2, 2),
    "update-too-large": (1, 2),
    "noise-dominated": (0, 2),
    "activation-on-logits": (2, 2),
    "target-not-detached": (2, 2),
    "accumulation-not-averaged": (2, 2),
    "weight-growth": (0, 1),
    "clip-after-step": (1, 1),
    "dead-units": (1, 1),
    "weights-reset": (1, 1),
    "mask-inverted": (1, 1),
}


_READ_AS = {"activation-on-logits": "softmax-twice"}  # what was one rule when it was read


def expected_share(rule: str) -> float:
    """How often it will be right: (right + 1) / (of + 2). Source: Laplace's rule of succession."""
    right, of = TRACK_RECORD.get(_READ_AS.get(rule, rule), (0, 0))
    return (right + 1) / (of + 2)


def is_proven(rule: str, share: float = 0.8) -> bool:
    """Whether it will be right in this `share` of cases, or more."""
    return expected_share(rule) >= share

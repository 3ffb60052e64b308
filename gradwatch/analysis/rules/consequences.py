"""Which findings may follow from which."""

from __future__ import annotations

_RUINED = {"nonfinite", "dead-layer", "spike", "imbalance", "vanishing", "weight-growth", "renorm-binds"} | {
    "update-too-large", "update-too-small", "weights-unchanged", "clip-is-your-learning-rate", "noise-dominated",
    "policy-never-acts", "dead-units", "saturated",
    "attention-logits-grow", "attention-collapsed", "activation-outlier", "expert-starved",
    "skips-often", "clip-over-muon", "stale-second-moment",
}  # fmt: skip
_CAME_APART = _RUINED | {"exploding", "lr-too-high"}
_MISMADE = _CAME_APART | {"softmax-twice", "activation-on-logits"}  # what is put together wrongly is there at once
_UNCLIPPED = _MISMADE | {"double-clip"}
_HARDLY_APART = {"update-too-small", "vanishing", "logits-bounded", "stale-second-moment"}  # what the loss is given
_NAMED: dict[str, set[str]] = {
    **dict.fromkeys(("shapes-broadcast", "softmax-over-the-batch", "norm-over-too-few", "axes-mixed"), _MISMADE),
    "over-smoothing": _MISMADE | {"weights-shrink", "bad-initialisation"},
    "mask-inverted": _MISMADE | {"positions-missing"},  # of words that it hides
    **dict.fromkeys(("padding-read-as-data", "positions-missing", "conditioning-missing"), _MISMADE),
    "dropout-too-strong": _MISMADE | {"bad-initialisation"},
    "accumulation-not-averaged": _CAME_APART,
    "accumulation-wiped": _MISMADE | {"data-not-shuffled"},  # what is left is the last of its micro-batches
    **dict.fromkeys(("labels-not-shifted", "targets-out-of-range", "padding-in-loss", "data-not-shuffled"), _MISMADE),
    "labels-ignored": _MISMADE | {"weight-decay-too-strong"},
    "views-identical": _MISMADE,
    "policy-loss-trains-critic": _RUINED | {"optimizer-holds-both-networks"},
    "optimizer-holds-both-networks": _MISMADE | {"generator-starves", "negative-loss"},
    "target-not-detached": _MISMADE | {"values-overestimated", "targets-not-normalised"},
    **dict.fromkeys(("clip-after-step", "clip-without-gradient"), _UNCLIPPED),
    **dict.fromkeys(("future-seen", "codebook-collapse"), _RUINED),
    "wrong-sign": _MISMADE,
    "entropy-too-strong": {"dead-units", "noise-dominated", "update-too-small"},
    "loss-terms-unbalanced": _MISMADE | {"targets-not-normalised", "double-clip"},
    "no-activation": _RUINED,
    "values-overestimated": _CAME_APART | {"targets-not-normalised"},
    "weights-reset": {"lr-too-high", "spike", "update-too-large", "noise-dominated", "optimizer-state-lost"},
    "returns-not-normalised": _MISMADE | {"targets-not-normalised"},
    "targets-not-normalised": _MISMADE
    | {"bad-initialisation", "scaled-gradients", "gradients-accumulate", "posterior-collapse"},
    "negative-loss": _CAME_APART | {"scaled-gradients", "gradients-accumulate"},
    "left-in-eval": _CAME_APART | {"overfitting"},
    "validation-in-train-mode": {"overfitting"},
    "optimizer-state-lost": _CAME_APART,
    "schedule-too-short": _CAME_APART,
    "warmup-too-long": {"update-too-small", "weights-unchanged"},
    **dict.fromkeys(("softmax-twice", "activation-on-logits"), _HARDLY_APART),
    "inputs-not-normalised": _CAME_APART | {"bad-initialisation", "scaled-gradients", "posterior-collapse"},
    "gradients-accumulate": _CAME_APART | {"scaled-gradients"},
    "scaled-gradients": _CAME_APART,
    "clip-before-unscale": {"clip-is-your-learning-rate", "double-clip", "update-too-small", "weights-unchanged"}
    | {"clip-over-muon"},
    "exploding": _RUINED | {"lr-too-high", "posterior-collapse"},
    "weight-decay-too-strong": {"weights-shrink", "below-epsilon", "vanishing", "dead-layer", "update-too-small"},
    "weights-shrink": {"below-epsilon", "imbalance", "vanishing", "dead-layer", "update-too-small",
        "update-too-large", "lr-too-high"},
    "generator-starves": {"below-epsilon", "update-too-small", "vanishing", "weights-unchanged"},
    "bad-initialisation": {"saturated", "dead-units", "dead-layer", "attention-collapsed", "update-too-small",
        "lr-too-high", "weight-growth", "update-too-large", "spike", "vanishing", "imbalance",
        "stale-second-moment"},
    "lr-too-high": _RUINED | {"exploding", "below-epsilon", "posterior-collapse"},
    "below-epsilon": {"update-too-small", "weights-unchanged"},
    "update-too-large": _CAME_APART,
    "activation-outlier": {"spike", "exploding", "nonfinite", "weight-growth", "dead-units", "dead-layer",
        "lr-too-high", "attention-logits-grow", "attention-collapsed", "saturated", "imbalance",
        "noise-dominated"},
    "attention-logits-grow": {"attention-collapsed", "spike", "nonfinite", "vanishing", "imbalance"}
    | {"update-too-small"},
    "spike": {"nonfinite", "exploding", "dead-layer", "lr-too-high", "update-too-large", "weight-growth"}
    | {"noise-dominated", "skips-often"},
    "nonfinite": _RUINED | {"exploding", "posterior-collapse"},
    "representation-collapse": {"vanishing", "dead-units", "update-too-small"},  # what is alike has no gradient left
    "posterior-collapse": {"dead-layer", "dead-units", "vanishing", "imbalance", "update-too-small"},
    "weight-growth": {"exploding", "nonfinite", "dead-layer", "vanishing", "update-too-small", "renorm-binds"},
    "expert-starved": {"dead-layer", "dead-units", "no-gradient", "vanishing", "imbalance", "update-too-small"}
    | {"weights-unchanged"},
    "saturated": {"dead-units", "vanishing", "imbalance", "update-too-small", "weights-unchanged", "dead-layer"},
    "attention-collapsed": {"attention-logits-grow", "vanishing", "imbalance", "update-too-small"},
    "dead-units": {"dead-layer", "vanishing", "imbalance", "update-too-small", "weights-unchanged"},
    "dead-layer": {"vanishing", "imbalance", "update-too-small", "weights-unchanged", "noise-dominated"},
    "vanishing": {"dead-units", "dead-layer", "imbalance", "update-too-small", "weights-unchanged"},
    "not-in-optimizer": {"weights-unchanged", "update-too-small", "policy-never-acts", "no-gradient"},
    "no-gradient": {"weights-unchanged", "update-too-small", "policy-never-acts"},
    "skips-often": {"weights-unchanged", "update-too-small"},
    "weights-unchanged": {"update-too-small", "policy-never-acts"},
    "imbalance": {"clip-is-your-learning-rate", "update-too-small"},
    "clip-is-your-learning-rate": {"update-too-small", "double-clip"},
    "stale-second-moment": {"update-too-small"},
    "update-too-small": set(),
    "renorm-binds": set(),
    "class-imbalance": set(),
    "labels-do-not-fit-inputs": {"overfitting"},
    "overfitting": set(),
    "logits-bounded": set(),
}  # fmt: skip
_OF_ALL = {"labels-do-not-fit-inputs", "no-progress", "class-imbalance", "representation-collapse"}
CONSEQUENCES = {rule: (effects | _OF_ALL) - {rule} for rule, effects in _NAMED.items()}
CONSEQUENCES["spike"] -= {"class-imbalance"}  # the rare ones are what stands out
CONSEQUENCES["overfitting"] = {"no-progress"}  # of what is measured on other data
"""What may follow from what: the rules in a set are consequences of the rule they stand under, if that began first.

Two rules may stand in each other's sets: then the one that began first is the root, and of those that began at the same
step the one that stands higher here. So a rule stands above all that follow from it, and from which it does not.
"""

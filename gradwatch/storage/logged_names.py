"""What a logged scalar is, as far as its name says it."""

from __future__ import annotations

import re
from functools import lru_cache

# A word begins so: no part of `threshold` or `retrieval`. The `value` of a critic is none, nor is a `deviation`.
HELD_OUT = re.compile(
    "(?<![a-zA-Z])(?i:val(?!ue)|test|eval|dev(?!i)|hold)|(?<=[a-z])(Val(?!ue)|Test|Eval|Dev(?!i)|Hold)"
)
CLOCK = ("_runtime", "_per_second")  # what a Trainer's names of its speed end in: no result of a training
_FACTOR = re.compile(
    r"loss[ _./-]?(scale|scaler|scaling|weights?|coeffs?|coefs?|coefficients?)($|[^a-z])", re.IGNORECASE
)


def is_factor(name: str) -> bool:
    """Whether it is what a loss is multiplied by: `amp/loss_scale`, `kl_loss_weight`."""
    return bool(_FACTOR.search(name))


@lru_cache(maxsize=4096)
def is_loss(name: str) -> bool:
    """Whether it is a loss, of whatever data."""
    return "loss" in name.lower() and not is_factor(name)


def is_reward(name: str) -> bool:
    """Whether it is what an agent gets, or a loss of it."""
    return "return" in name or "reward" in name


@lru_cache(maxsize=4096)
def is_training_loss(name: str) -> bool:
    """Whether it is a loss of the training data (a validation loss also rises by over-fitting)."""
    return is_loss(name) and not HELD_OUT.search(name)

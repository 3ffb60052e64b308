"""A decay that is a large part of what moves the weights, by what the optimizer says of itself and what it does."""

from dataclasses import replace

import numpy as np
import pytest
from make_run import changed, make_history

from gradwatch.analysis.rules.weight_decay import weight_decay_too_strong

NOISE = np.random.default_rng(0).standard_normal(200)
STEPS, WIDE = 200, ("0.weight", "2.weight", "4.weight")
TORCH = {"decoupled_weight_decay": True}


def decayed(kind, decay, *, rate=1e-3, left=1.0, gradient=1.0, **settings):
    """A run whose matrices come to the share `left` of their size, 4, under this optimizer."""
    settings = {"lr": rate, "weight_decay": decay, **({} if kind == "SGD" else {"betas": [0.9, 0.999]}), **settings}
    made = {"name": kind, "class": kind, "settings": settings, "groups": ({"layers": list(WIDE)},)}
    run = make_history(STEPS, every=1, layers=WIDE, optimizers=(made,), logged=("loss",))
    layers = tuple(replace(layer, shape=(16, 16)) for layer in run.run.layers)
    norm = np.repeat(4 * np.geomspace(1, left, STEPS)[:, None], 3, axis=1).astype(np.float32)
    flat = np.full_like(norm, gradient)
    per_layer = {**run.per_layer, "weight_norm": norm, "grad_norm": flat, "clipped_norm": flat}
    run = changed(run, per_layer=per_layer, per_step={**run.per_step, "lr": np.full(STEPS, rate)})
    return replace(run, run=replace(run.run, layers=layers))


RESTS = np.interp(np.arange(STEPS), [0, 60], [2.3, 0.9])


@pytest.mark.parametrize(
    ("loss", "decay", "gradient", "found"),
    [
        (RESTS, 0.1, 0.9, 1),
        (10 * RESTS, 0.1, 0.9, 0),  # what it costs is next to nothing
        (RESTS, 0.1, 3.0, 0),  # most of the gradient is not the decay's to take
        (RESTS, 1e-3, 0.009, 0),  # a usual one, at the end of a training that has all
        (RESTS / 3 + (2.3 - 2.3 / 3) * (np.arange(STEPS) < 1), 0.1, 0.9, 0),  # hardly any is left
        (np.linspace(2.3, 0.9, STEPS), 0.1, 0.9, 0),  # it still falls
        (np.full(STEPS, 2.3), 0.1, 0.9, 0),  # nothing was learnt: another finding's
    ],
)
def test_a_decay_that_holds_a_loss_up(loss, decay, gradient, found):
    history = decayed("SGD", decay, rate=0.05, gradient=gradient)
    told = weight_decay_too_strong(changed(history, per_step={**history.per_step, "loss": loss + 1e-3 * NOISE}))
    assert ["the decay takes back" in f.cause for f in told] == [True] * found
    other = {"val_loss": np.where(np.arange(STEPS) % 10, np.nan, loss)}
    known = changed(history, per_step={**history.per_step, "loss": loss + 1e-3 * NOISE, **other})
    assert weight_decay_too_strong(known) == []  # what it takes from the training data it gives to others


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (("Adam", 0.1), "adds the decay of 0.1"),
        (("AdamW", 0.1), ""),
        (("SGD", 0.3, {"rate": 0.1, "left": 0.3}), "had to be won against it"),
        (("SGD", 0.3, {"rate": 0.1, "left": 0.3, "gradient": 3.0}), ""),
        (("SGD", 0.3, {"rate": 0.1, "left": 1e-2}), ""),  # they fade away
        (("SGD", 0.2, {"rate": 0.1, "left": 0.8}), ""),  # they keep their size
        (("AdamW", 0.1, {"left": 1e-2}), "adds the decay of 0.1"),  # of somebody's own
        (("AdamW", 0.1, {"left": 1e-2, **TORCH}), ""),
        (("AdamW", 0.1, {"left": 1e-2, "gradient": 1e4}), ""),
        (("AdamW", 0.1, {"left": 0.5}), ""),  # in a quarter of the run next to nothing
    ],
)
def test_a_decay_that_is_too_strong(made, words):
    kind, decay, *rest = made
    history = decayed(kind, decay, **(rest[0] if rest else {}))
    stands, falls = 2.3 + 1e-3 * NOISE, np.linspace(2.3, 0.1, STEPS)
    told = weight_decay_too_strong(changed(history, per_step={**history.per_step, "loss": stands}))
    assert [words in f.cause for f in told] == [True] * bool(words)
    learnt = weight_decay_too_strong(changed(history, per_step={**history.per_step, "loss": falls}))
    assert len(learnt) == len(told) * ("won against it" not in words)  # what is learnt all the same was not held

"""Of which terms a loss is the sum is found from what is logged, and the one that outweighs the others is named."""

import numpy as np
import pytest
from make_run import changed, make_history

from gradwatch.analysis.rules.loss_terms import is_partly_learnt, outweighed, weights_of
from gradwatch.analysis.rules.no_progress import no_progress

STEPS = 200
RNG = np.random.default_rng(0)
NAMING = 2.3 + 0.1 * RNG.standard_normal(STEPS)
PAINTING = np.geomspace(0.05, 0.02, STEPS) * (1 + 0.1 * RNG.random(STEPS))


def run(loss, **logged):
    """A run whose loop logged its loss, two terms of it, and more."""
    columns = {"loss": loss, "naming": NAMING, "painting": PAINTING, **logged}
    history = make_history(STEPS, logged=tuple(columns), status="FINISHED")
    return changed(history, per_step={**history.per_step, **columns})


TERMS = ["naming", "painting"]


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [
        (1.5, 0.01, True),
        (1.5, 0.5, False),
        (0.01, 0.0001, False),  # it was next to nothing from the start
    ],
)
def test_a_term_that_is_learnt(first, last, said):
    term = np.geomspace(first, last, STEPS)
    assert is_partly_learnt(run(NAMING + term, naming=NAMING, painting=term), "loss") == said
    assert not is_partly_learnt(run(NAMING + term + RNG.random(STEPS), naming=NAMING, painting=term), "loss")


@pytest.mark.parametrize(
    ("loss", "weights"),
    [
        (NAMING + 500 * PAINTING, [1, 500]),
        (NAMING + PAINTING, [1, 1]),
        (NAMING - PAINTING, None),  # a difference
        (NAMING * PAINTING, None),
        (NAMING + 500 * PAINTING + RNG.random(STEPS), None),  # something is not logged
    ],
)
def test_the_weights_of_terms_that_add_up(loss, weights):
    found = weights_of(run(loss), "loss", TERMS)
    assert [weight for weight, _ in found.values()] == pytest.approx(weights or [], rel=1e-3)
    assert sum(share for _, share in found.values()) == pytest.approx(1.0 if weights else 0.0, rel=0.01)


def test_what_is_logged_besides_is_no_term_and_so_many_names_for_few_steps_say_nothing():
    history = run(NAMING + 500 * PAINTING, lr=np.full(STEPS, 1e-3), depth=RNG.random(STEPS))
    assert [*weights_of(history, "loss", [*TERMS, "depth"])] == TERMS
    assert weights_of(history.take(np.arange(STEPS) < 15), "loss", TERMS) == {}
    assert weights_of(history, "loss", ["naming"]) == {}


@pytest.mark.parametrize(("weight", "said"), [(500.0, True), (50.0, False)])
def test_the_term_that_outweighs_the_others_is_why_an_accuracy_does_not_rise(weight, said):
    loss = NAMING + weight * PAINTING
    why = outweighed(run(loss), "loss", TERMS)
    assert (why is not None) == said
    (found,) = no_progress(run(loss, accuracy=0.1 + 0.01 * RNG.random(STEPS)))
    assert ("loss is naming + 500 painting" in found.cause) == said

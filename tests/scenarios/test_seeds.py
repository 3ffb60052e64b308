"""One disease is called by one name, whatever the weights and the batches begin with."""

from functools import partial

import nets
import pytest
import torch
from recordings import recorded, recording_of
from trainings import serious
from twins import TWINS

from gradwatch.analysis.rules import diagnose


def seeded(train, seed, folder):
    """A training that begins with other weights, and draws other batches."""
    nets.SEED[0] = seed
    torch.manual_seed(seed)
    try:
        return train(folder)
    finally:
        nets.SEED[0] = 0


@pytest.mark.parametrize("rule", TWINS)
def test_three_seeds_of_one_disease_get_one_diagnosis(rule, tmp_path):
    """The first is recorded, or what the tests of the disease itself train, and call by this name."""
    (_, train), _ = TWINS[rule]
    histories = [recorded(f"seed{seed}-{rule}", partial(seeded, train, seed), tmp_path) for seed in (1, 2)]
    first = recording_of(train)
    said = [[rule] if first is None else serious(diagnose(first)), *(serious(diagnose(each)) for each in histories)]
    assert len({tuple(rules[:1]) for rules in said}) == 1, said  # none where all that is told is a note
    begun = [history.per_layer["grad_norm"][:3].tobytes() for history in (*histories, first) if history is not None]
    assert len({*begun}) == len(begun), "two of them are one training"

"""One disease is called by one name, whatever the weights and the batches begin with."""

import nets
import pytest
import torch
from trainings import serious
from twins import TWINS

from gradwatch.analysis.rules import diagnose


@pytest.mark.slow
@pytest.mark.parametrize("rule", TWINS)
def test_three_seeds_of_one_disease_get_one_diagnosis(rule, tmp_path):
    (_, train), _ = TWINS[rule]
    said = []
    try:
        for seed in range(3):
            nets.SEED[0] = seed
            torch.manual_seed(seed)
            said.append(serious(diagnose(train(tmp_path / str(seed)))))
    finally:
        nets.SEED[0] = 0
    assert len({tuple(rules[:1]) for rules in said}) == 1, said  # none where all that is told is a note

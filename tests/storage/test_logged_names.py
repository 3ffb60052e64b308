"""What a logged scalar is by its name."""

from __future__ import annotations

import pytest

from gradwatch.analysis.groups import higher_is_better
from gradwatch.storage.logged_names import is_loss, is_training_loss

UNLIKE = ["value_loss", "critic/ValueLoss", "retrieval_loss", "threshold_loss", "deviation_loss", "interval_loss"]


@pytest.mark.parametrize(
    "name", ["loss", "train/loss", "loss_scaled", "policy_loss", "loss/total", "losses/cls", *UNLIKE]
)
def test_a_loss_of_the_training_data(name):
    assert is_training_loss(name)
    assert higher_is_better(name) is False


@pytest.mark.parametrize(
    "name", ["val_loss", "loss/test", "eval_loss", "lossVal", "ValLoss", "valid/loss", "holdout_loss", "loss_dev"]
)
def test_a_loss_of_other_data(name):
    assert is_loss(name)
    assert not is_training_loss(name)


@pytest.mark.parametrize("name", ["amp/loss_scale", "loss_scale", "loss_weight", "kl_loss_coef", "Loss scale"])
def test_what_multiplies_a_loss_is_none(name):
    assert not is_loss(name)
    assert higher_is_better(name) is None

"""A loss that is known before its step begins, when the rows are drained in between."""

import numpy as np
import torch
from torch import nn
from training import watch

import gradwatch


def test_what_is_logged_ahead_survives_a_drain(tmp_path):
    """The loss of `backward()` comes before the step; the two-second drain falls between the two."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, tmp_path, flush_every=1e-9) as watched:
        for step in range(12):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            watched._log_next(loss=torch.tensor(float(step)))
            if step:
                watched.log(accuracy=torch.tensor(step - 1.0))  # of the step before
            optimizer.step()
    history = gradwatch.open_history(watched.dir)
    np.testing.assert_array_equal(history.total("loss"), np.arange(12.0))
    np.testing.assert_array_equal(history.total("accuracy"), [*range(11), np.nan])

"""The colours of a map: a few rows next to 0 do not take them from all others, and a wide spread keeps them all."""

import numpy as np

from gradwatch.report.downsample import Heatmap
from gradwatch.report.plotly_figures import color_range, off_scale

RANDOM = np.random.default_rng(0)


def test_a_few_rows_next_to_zero_leave_the_colours_to_all_others():
    usual = RANDOM.normal(-3, 0.5, (50, 100))
    low, high = color_range(np.concatenate([usual, RANDOM.normal(-10, 0.5, (5, 100))]).ravel())  # keys' biases of a ViT
    assert usual.min() <= low <= np.quantile(usual, 0.01)
    assert np.quantile(usual, 0.99) <= high <= usual.max()


def test_a_gradient_that_vanishes_evenly_keeps_its_colours():
    logs = np.linspace(-12, 0, 24)[:, None] + RANDOM.normal(0, 0.1, (24, 100))
    low, high = color_range(logs.ravel())
    assert low < -11.9
    assert high > -0.1


def test_values_that_are_nearly_all_the_same_are_all_that_the_colours_tell_apart():
    assert color_range(np.array([-4.0, *[0.0] * 18, 4.0])) == (0, 0)
    assert color_range(np.zeros(0)) == (0, 1)


def test_rows_beyond_the_colours_are_counted_and_one_spike_is_no_row():
    logs = np.concatenate([RANDOM.normal(-3, 0.5, (50, 100)), np.full((3, 100), -10.0), np.full((1, 100), 5.0)])
    assert off_scale(of(logs)) == " The colours' scale leaves out 3 rows below and 1 row above it."
    logs = RANDOM.normal(-3, 0.5, (50, 100))
    logs[4, 7] = 6
    assert off_scale(of(logs)) == off_scale(of(np.full((2, 2), -np.inf))) == ""


def of(logs):
    nowhere = np.zeros(logs.shape, bool)
    names = tuple(f"{i}" for i in range(len(logs)))
    return Heatmap(names, np.arange(logs.shape[1]), 10.0**logs, nowhere, nowhere, 1, 1)

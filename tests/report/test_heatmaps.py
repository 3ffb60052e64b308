"""The colours of a map: a few rows next to 0 do not take them from all others, and a wide spread keeps them all."""

import numpy as np

from gradwatch.report.plotly_figures import color_range

RANDOM = np.random.default_rng(0)


def test_a_few_rows_next_to_zero_leave_the_colours_to_all_others():
    usual = RANDOM.normal(-3, 0.5, (50, 100))
    low, high = color_range(np.concatenate([usual, RANDOM.normal(-10, 0.5, (5, 100))]).ravel())  # keys' biases of a ViT
    assert usual.min() - 2 < low <= np.quantile(usual, 0.01)
    assert np.quantile(usual, 0.99) <= high <= usual.max()


def test_a_gradient_that_vanishes_evenly_keeps_its_colours():
    logs = np.linspace(-12, 0, 24)[:, None] + RANDOM.normal(0, 0.1, (24, 100))
    low, high = color_range(logs.ravel())
    assert low < -11.9
    assert high > -0.1


def test_values_that_are_nearly_all_the_same_have_a_decade_on_both_sides():
    assert color_range(np.array([-4.0, *[0.0] * 18, 4.0])) == (-1, 1)
    assert color_range(np.zeros(0)) == (0, 1)

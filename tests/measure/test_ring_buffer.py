"""Rows that are written round and round come back in order, with what travels with them, in one copy."""

import numpy as np
import torch

from gradwatch.measure.ring_buffer import Ring


def test_rows_that_wrap_around_are_read_in_order():
    ring = Ring(["a", "b"], layers=3, rows=4, device=torch.device("cpu"))
    for row in range(7):
        ring.write(row, torch.tensor(float(row)), torch.arange(3.0) + row)
    more = [torch.tensor(7.0), torch.arange(3.0)]
    for first, count in ((3, 4), (4, 3), (5, 0), (6, 1)):
        fields, rest = ring.stage(first, count, more).read()
        want = np.arange(first, first + count)[:, None]
        np.testing.assert_array_equal(fields["a"], np.broadcast_to(want, (count, 3)))
        np.testing.assert_array_equal(fields["b"], want + np.arange(3.0))
        assert [array.tolist() for array in rest] == [7.0, [0.0, 1.0, 2.0]]


def test_a_copy_does_not_follow_its_tensor():
    ring = Ring(["a"], layers=1, rows=1, device=torch.device("cpu"))
    value = torch.ones((), requires_grad=True)
    copy = ring.copy(value)
    with torch.no_grad():
        value += 1
    assert copy.item() == 1
    assert not copy.requires_grad

"""How long the rows are by which the norm of a large tensor is taken on a CPU."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

WIDE = 2**15  # elements from which a second thread pays
SHORTEST_ROW, LONGEST_ROW = 64, 2**16
SUM_IN_ROWS = 2**17  # elements from which one thread takes rows too, for the digits: 4e-6 is what it forgoes below


def row_length(tensor: Tensor) -> int:
    """The length of the rows that the norm of the whole tensor is better taken by; 0 where it is not, and where its
    size, a prime mostly, has none.

    On a CPU torch's own takes one thread, and adds up in float32 from end to end: 1 % low at 16 million equal elements.
    Rows of any shape are as long as twice the root of the size, that neither they nor their norms are so many.
    """
    enough = tensor.numel() >= (WIDE if torch.get_num_threads() > 1 else SUM_IN_ROWS)
    return _longest_divisor(tensor.numel()) if enough and tensor.device.type == "cpu" else 0


@lru_cache(maxsize=4096)
def _longest_divisor(numel: int) -> int:
    lengths = range(min(2 * math.isqrt(numel), LONGEST_ROW), SHORTEST_ROW - 1, -1)
    return next((length for length in lengths if numel % length == 0), 0)

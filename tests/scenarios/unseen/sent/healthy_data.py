"""Real data for the sent healthy trainings, from packages that are installed: tables, a photo, a manual, a program."""

from __future__ import annotations

import functools
import inspect

import torch
from torch.nn import functional as F


@functools.cache
def table(name):
    """One of scikit-learn's: `[N, D]` of mean 0 and deviation 1, and `[N]` kinds."""
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    x = torch.tensor(x, dtype=torch.float32)
    return (x - x.mean(0)) / x.std(0), torch.tensor(y)


def rows_of(name, size=32):
    """`draw()`: some rows of a table."""
    x, y = table(name)

    def draw():
        at = torch.randint(len(x), (size,))
        return x[at], y[at]

    return draw


@functools.cache
def photo(height=48, width=64):
    """A temple under trees: `[3, height, width]` from 0 to 1."""
    from sklearn.datasets import load_sample_image

    image = torch.tensor(load_sample_image("china.jpg"), dtype=torch.float32).permute(2, 0, 1) / 255
    return F.interpolate(image[None], (height, width), mode="area")[0]


@functools.cache
def manual():
    """The English of Python's manual as codes below 128."""
    from pydoc_data.topics import topics

    return torch.tensor([min(ord(c), 127) for name in sorted(topics) for c in topics[name]])


@functools.cache
def program():
    """A program in Python as codes below 128."""
    import argparse

    return torch.tensor([min(ord(c), 127) for c in inspect.getsource(argparse)])


def cuts(codes, rows, length):
    """`[rows, length]` cut from anywhere."""
    return codes[torch.randint(len(codes) - length, (rows, 1)) + torch.arange(length)]

"""Real data for the heard healthy trainings, from packages that are installed: colours, countries, hills, graphs."""

from __future__ import annotations

import functools

import numpy as np
import torch


def spelled(words, length):
    """`[N, length]`: 1 to 26 for letters, 27 for all else, 0 behind the end."""
    rows = torch.zeros(len(words), length, dtype=torch.long)
    for row, word in zip(rows, words, strict=True):
        codes = [ord(c) - 96 if "a" <= c <= "z" else 27 for c in word.lower()[:length]]
        row[: len(codes)] = torch.tensor(codes)
    return rows


@functools.cache
def tints():
    """What people called 949 colours: `[949, 20]` letters, and `[949, 3]` red, green and blue from 0 to 1."""
    from matplotlib.colors import XKCD_COLORS, to_rgb

    names = sorted(XKCD_COLORS)
    letters = spelled([name.removeprefix("xkcd:") for name in names], 20)
    return letters, torch.tensor([to_rgb(XKCD_COLORS[name]) for name in names], dtype=torch.float32)


@functools.cache
def lives():
    """142 countries every five years: `[1704]` of which country, `[1704, 3]` year, people, product, `[1704]` age."""
    from plotly.data import gapminder

    frame = gapminder(return_type="pandas")
    country = torch.tensor(frame["country"].astype("category").cat.codes.to_numpy().copy()).long()
    columns = [frame["year"], np.log(frame["pop"]), np.log(frame["gdpPercap"]), frame["lifeExp"]]
    values = torch.tensor(np.stack([column.to_numpy(float) for column in columns], 1), dtype=torch.float32)
    values = (values - values.mean(0)) / values.std(0)
    return country, values[:, :3], values[:, 3]


@functools.cache
def waves_of_a_brain():
    """Four electrodes, 800 moments: `[4, 800]` of mean 0 and deviation 1."""
    from matplotlib.cbook import get_sample_data

    with get_sample_data("eeg.dat") as file:
        values = torch.tensor(np.frombuffer(file.read(), float).reshape(-1, 4).T.astype("float32"))
    return (values - values.mean(1, keepdim=True)) / values.std(1, keepdim=True)


@functools.cache
def atlas():
    """All joined graphs of six and seven nodes: `[N, 7, 7]` who is tied to whom, and `[N]` the mean way between two."""
    import networkx

    graphs = [g for g in networkx.graph_atlas_g() if len(g) > 5 and networkx.is_connected(g)]
    ties = torch.zeros(len(graphs), 7, 7)
    for i, g in enumerate(graphs):
        ties[i, : len(g), : len(g)] = torch.tensor(networkx.to_numpy_array(g), dtype=torch.float32)
    return ties, torch.tensor([networkx.average_shortest_path_length(g) for g in graphs])

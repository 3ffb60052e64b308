"""Real data for the daily healthy trainings, from packages that are installed: letters, hills, names, a lost game."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import torch

UPRIGHT = ("DejaVuSans", "DejaVuSansMono", "DejaVuSans-Bold", "DejaVuSansMono-Bold", "cmss10", "DejaVuSans-Oblique")
SERIFS = ("DejaVuSerif", "DejaVuSerif-Bold", "STIXGeneral", "STIXGeneralBol", "cmr10", "STIXGeneralItalic", "cmb10")
LETTERS = "ABCDEFGHJKLMNPRSTUVWXYZabdefghkmnqrt"


@functools.cache
def letters(fonts=UPRIGHT + SERIFS, size=16):
    """Each letter in each font, at four places: `[N, 1, size, size]` from 0 to 1, and `[N]` which of `LETTERS`."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    images, kinds = [], []
    for font in fonts:
        face = ImageFont.truetype(folder / f"{font}.ttf", size - 2)
        for kind, letter in enumerate(LETTERS):
            for across, down in ((0, 0), (1, 0), (0, 1), (1, 1)):
                image = Image.new("L", (size, size))
                place = (size // 2 - 0.5 + across, size // 2 - 0.5 + down)
                ImageDraw.Draw(image).text(place, letter, 255, face, anchor="mm")
                images.append(np.asarray(image, "float32") / 255)
                kinds.append(kind)
    return torch.tensor(np.stack(images))[:, None], torch.tensor(kinds)


@functools.cache
def hills():
    """Heights around a fault: `[344, 403]` of mean 0 and deviation 1."""
    from matplotlib.cbook import get_sample_data

    with get_sample_data("jacksboro_fault_dem.npz") as file:
        height = torch.tensor(file["elevation"].astype("float32"))
    return (height - height.mean()) / height.std()


def hills_cut(rows, size):
    """`[rows, 1, size, size]` cut from anywhere."""
    height, at = hills(), torch.arange(size)
    top = torch.randint(height.shape[0] - size, (rows, 1, 1))
    left = torch.randint(height.shape[1] - size, (rows, 1, 1))
    return height[top + at[:, None], left + at][:, None]


@functools.cache
def names():
    """What the Unicode characters below 0x3000 are called, and the first letter of the category of each."""
    import unicodedata

    there = [chr(code) for code in range(0x20, 0x3000) if unicodedata.name(chr(code), "")]
    return [unicodedata.name(c) for c in there], [unicodedata.category(c)[0] for c in there]

"""What the demo trains on: MNIST and tiny-shakespeare from files, or what is installed anyway. No torch in here.

Legend: N examples, D inputs of an example.
"""

from __future__ import annotations

import gzip
import importlib
import struct
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.errors import RunError

MNIST_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
MNIST_FOLDERS = (".", "mnist", "MNIST/raw")  # the last is torchvision's
TEXT_FILES = ("input.txt", "tinyshakespeare/input.txt")
IDX_BYTES = 0x08  # the type code of unsigned bytes
DIGITS_TEST = 360  # of 1,797


@dataclass(frozen=True)
class Images:
    """Pictures of digits: inputs float32 `[N, D]` from 0 to 1, labels int64 `[N]`."""

    name: str
    train: NDArray[np.float32]
    train_labels: NDArray[np.int64]
    test: NDArray[np.float32]
    test_labels: NDArray[np.int64]


@dataclass(frozen=True)
class Text:
    """Text as int64 numbers of its characters: the first nine tenths to train on, the rest to validate."""

    name: str
    alphabet: str
    train: NDArray[np.int64]
    validation: NDArray[np.int64]


def find_mnist(folder: Path) -> tuple[Path, ...] | None:
    """The four MNIST files at or below `folder`, packed or not; None when there are none at all.

    Raises:
        RunError: some of them are missing.
    """
    for place in (folder / name for name in MNIST_FOLDERS):
        found = [next((p for p in (place / f"{n}.gz", place / n) if p.is_file()), None) for n in MNIST_FILES]
        missing = [name for name, path in zip(MNIST_FILES, found, strict=True) if path is None]
        if not missing:
            return tuple(path for path in found if path is not None)
        if len(missing) < len(MNIST_FILES):
            raise RunError(f"{place} holds only a part of MNIST: {', '.join(missing)} (or .gz) missing")
    return None


def find_text(folder: Path) -> Path | None:
    """The text at or below `folder`; None when there is none."""
    return next((folder / name for name in TEXT_FILES if (folder / name).is_file()), None)


@cache
def load_images(folder: Path | None) -> Images:
    """MNIST from `folder`, or scikit-learn's 8×8 digits where there is no folder, or no MNIST in it.

    Raises:
        RunError: the files are no MNIST, or scikit-learn is not installed.
    """
    files = find_mnist(folder) if folder is not None else None
    if files is None:
        return _digits()
    train, train_labels, test, test_labels = (_read_idx(path) for path in files)
    for images, labels, path in ((train, train_labels, files[0]), (test, test_labels, files[2])):
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise RunError(
                f"{path}: wanted images [N, rows, columns] and N labels, found {images.shape}, {labels.shape}"
            )
    return Images("MNIST", _unit(train, 255), _numbers(train_labels), _unit(test, 255), _numbers(test_labels))


@cache
def load_text(folder: Path | None) -> Text:
    """tiny-shakespeare from `folder`, or the help texts that come with Python.

    Raises:
        RunError: the file is no text or too short, or this Python came without its help texts.
    """
    path = find_text(folder) if folder is not None else None
    try:
        text = path.read_text(encoding="utf-8") if path is not None else _python_help()
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path} cannot be read as text: {error}") from error
    if len(text) < 20_000:
        raise RunError(f"{path} holds {len(text):,} characters; wanted at least 20,000 to train on")
    alphabet = "".join(sorted(set(text)))
    numbers = np.searchsorted(list(alphabet), list(text)).astype(np.int64)
    cut = len(numbers) * 9 // 10
    return Text("Python's help texts" if path is None else path.parent.name, alphabet, numbers[:cut], numbers[cut:])


def _digits() -> Images:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise RunError(
            "scikit-learn is not installed: pip install 'gradwatch[demo]', or pass MNIST with --data"
        ) from None
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.data))
    images, labels = _unit(bunch.data[order], 16), _numbers(bunch.target[order])
    return Images("digits", images[DIGITS_TEST:], labels[DIGITS_TEST:], images[:DIGITS_TEST], labels[:DIGITS_TEST])


def _python_help() -> str:
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError:
        raise RunError("this Python came without pydoc_data: give a text with --data (FOLDER/input.txt)") from None
    # Plain ASCII keeps the alphabet below 100 characters.
    return "\n\n".join(topics[name] for name in sorted(topics)).encode("ascii", "ignore").decode()


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """One file of the IDX format: two zero bytes, type, number of dimensions, big-endian sizes, data."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        zeros, kind, dims = struct.unpack_from(">HBB", data)
        shape = struct.unpack_from(f">{dims}I", data, 4)
        if (zeros, kind) != (0, IDX_BYTES):
            raise ValueError(f"it begins with {data[:4]!r}")
        return np.frombuffer(data, np.uint8, offset=4 + 4 * dims).reshape(shape)
    except (OSError, EOFError, zlib.error, struct.error, ValueError) as error:
        raise RunError(f"{path} is not a file of MNIST: {error}") from error


def _unit(images: NDArray[Any], top: int) -> NDArray[np.float32]:
    return np.asarray(images.reshape(len(images), -1) / np.float32(top), np.float32)


def _numbers(labels: NDArray[Any]) -> NDArray[np.int64]:
    return labels.astype(np.int64)

"""The ways to record every layer's norms that `bench_peers.py` compares, each as its own documentation shows it.

A way is a context manager `(model, optimizer, folder) -> finish`; `finish(step)` is what a loop does after
`loss.backward()`: clip, record, step. What a way hangs into backward itself, it hangs there on entry.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench_common import MAX_NORM
from torch import nn
from torch.optim import Optimizer

import gradwatch
from gradwatch.storage.delivery_cursor import read_cursor

Finish = Callable[[int], None]
COURIER_SECONDS = 120.0  # the first delivery also makes the tables of the SQLite store


class Way(NamedTuple):
    """One way: how it is entered, what it records, the package it takes, whether it clips, whether in backward."""

    open: Callable[[nn.Module, Optimizer, Path], AbstractContextManager[Finish]]
    records: str
    needs: str | None = None
    clips: bool = True
    within: bool = False


@contextmanager
def bare(model: nn.Module, optimizer: Optimizer, folder: Path) -> Iterator[Finish]:
    yield lambda step: optimizer.step()


@contextmanager
def torch_clip(model: nn.Module, optimizer: Optimizer, folder: Path) -> Iterator[Finish]:
    params = list(model.parameters())

    def finish(step: int) -> None:
        nn.utils.clip_grad_norm_(params, MAX_NORM)
        optimizer.step()

    yield finish


@contextmanager
def item_loop(model: nn.Module, optimizer: Optimizer, folder: Path) -> Iterator[Finish]:
    params = dict(model.named_parameters())
    history = []

    def finish(step: int) -> None:
        row = {f"grad_norm/{name}": p.grad.norm().item() for name, p in params.items() if p.grad is not None}
        nn.utils.clip_grad_norm_(params.values(), MAX_NORM)
        optimizer.step()
        row.update({f"weight_norm/{name}": p.detach().norm().item() for name, p in params.items()})
        history.append(row)

    yield finish


@contextmanager
def wandb_watch(model: nn.Module, optimizer: Optimizer, folder: Path) -> Iterator[Finish]:
    import wandb

    with wandb.init(project="bench", mode="offline", dir=folder, settings=wandb.Settings(silent=True)) as run:
        run.watch(model, log="all", log_freq=1)
        params = list(model.parameters())

        def finish(step: int) -> None:
            nn.utils.clip_grad_norm_(params, MAX_NORM)
            optimizer.step()
            run.log({"step": step})  # the histograms go out with the next log() of the loop

        yield finish
        run.unwatch(model)


@contextmanager
def lightning_grad_norm(model: nn.Module, optimizer: Optimizer, folder: Path) -> Iterator[Finish]:
    from lightning.pytorch.loggers import CSVLogger
    from lightning.pytorch.utilities import grad_norm

    logger = CSVLogger(folder)
    params = list(model.parameters())

    def finish(step: int) -> None:
        logger.log_metrics(grad_norm(model, norm_type=2), step)
        nn.utils.clip_grad_norm_(params, MAX_NORM)
        optimizer.step()

    yield finish
    logger.save()


@contextmanager
def histograms(model: nn.Module, optimizer: Optimizer, folder: Path) -> Iterator[Finish]:
    from torch.utils.tensorboard import SummaryWriter

    params = dict(model.named_parameters())
    with SummaryWriter(str(folder)) as writer:

        def finish(step: int) -> None:
            for name, p in params.items():
                writer.add_histogram(f"gradients/{name}", p.grad, step)
            nn.utils.clip_grad_norm_(params.values(), MAX_NORM)
            optimizer.step()
            for name, p in params.items():
                writer.add_histogram(f"weights/{name}", p, step)

        yield finish


@contextmanager
def watched(
    model: nn.Module, optimizer: Optimizer, folder: Path, every: int = 1, clip: float | None = MAX_NORM
) -> Iterator[Finish]:
    policy = None if clip is None else gradwatch.ClipByGlobalNorm(clip)
    with gradwatch.watch(model, optimizer, clip=policy, every=every, log=None, dir=folder, verbose=False):
        yield lambda step: optimizer.step()


@contextmanager
def delivered(model: nn.Module, optimizer: Optimizer, folder: Path) -> Iterator[Finish]:
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    with (
        mlflow.start_run(),
        gradwatch.watch(model, optimizer, clip=gradwatch.ClipByGlobalNorm(MAX_NORM), every=1, dir=folder, verbose=False)
        as watch,
    ):  # fmt: skip

        def finish(step: int) -> None:
            optimizer.step()
            if step == 1:  # the first one started the courier, which must be up before time is taken
                _wait_for_courier(watch.dir)

        yield finish


def _wait_for_courier(folder: Path) -> None:
    deadline = time.monotonic() + COURIER_SECONDS
    while not read_cursor(folder).get("url"):
        if time.monotonic() > deadline:
            raise SystemExit(f"no courier after {COURIER_SECONDS:.0f} s: {(folder / 'courier.log').read_text()}")
        time.sleep(0.05)


BARE, CLIP, OURS = "uninstrumented", "torch clip_grad_norm_", "gradwatch, files"
WAYS = {
    BARE: Way(bare, "nothing", clips=False),
    CLIP: Way(torch_clip, "nothing"),
    ".item() loop": Way(item_loop, "gradient and weight norm of each layer, in a list"),
    "wandb.watch": Way(wandb_watch, "histogram of each layer's gradient and weights, offline", "wandb", within=True),
    "Lightning grad_norm": Way(
        lightning_grad_norm, "gradient norm of each layer, to a CSVLogger; no weights", "lightning"
    ),
    "TensorBoard add_histogram": Way(histograms, "histogram of each layer's gradient and weights", "tensorboard"),
    OURS: Way(watched, "gradient norm, coefficient, weight norm and update ratio of each layer (every=1)"),
    "gradwatch, files, every=10": Way(
        partial(watched, every=10), "the same; weight norm and update ratio every 10 steps, as by default"
    ),
    "gradwatch, files, no clip": Way(partial(watched, clip=None), "the same as every=1, without a policy", clips=False),
    "gradwatch, MLflow": Way(delivered, "as files, every=1; a courier delivers to MLflow on SQLite", "mlflow"),
}
ABSENT = {
    "Composer OptimizerMonitor": "mosaicml 0.32.1, its newest release, wants torch>=2.6,<2.7.1 and an older numpy, so "
    "that pip does not install it beside this torch",
}


def missing() -> dict[str, str]:
    """The ways that cannot be tried here, and why."""
    return ABSENT | {
        name: f"{way.needs} is not installed"
        for name, way in WAYS.items()
        if way.needs and importlib.util.find_spec(way.needs) is None
    }


def versions() -> dict[str, Any]:
    """The versions of the packages that are compared."""
    needs = sorted({way.needs for way in WAYS.values() if way.needs and importlib.util.find_spec(way.needs)})
    return {name: importlib.metadata.version(name) for name in needs}

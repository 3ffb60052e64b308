"""The demo's runs: which there are, two processes that train them, and one courier that delivers them all."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from gradwatch.errors import RunError
from gradwatch.launcher.demo.data import find_mnist, find_text, load_images, load_text
from gradwatch.storage.cursor import is_done, read_cursor
from gradwatch.storage.members import run_folders

WORKERS = 2
POLL_SECONDS = 0.5
DELIVERY_SECONDS = 300.0  # how long the courier may take for what is left after the last training
LOADERS = {"mlp": load_images, "rnn": load_text}
FINDERS = {"mlp": find_mnist, "rnn": find_text}

SEEDS = (0, 1, 2)
# ClipByValue and MaxNorm are set so that they hardly ever act, the others so that they do.
MLP_POLICIES: tuple[dict[str, str], ...] = (
    {},
    {"clip": "ClipByValue(1.0)"},
    {"clip": "ClipByNorm(0.5)"},
    {"clip": "ClipByAverageNorm(3e-05)"},
    {"clip": "ClipByGlobalNorm(1.0)"},
    {"clip": "ClipByHistory(1.2)"},
    {"clip": "AGC(0.01)"},
    {"renorm": "MaxNorm(3.0)"},
)
MLP_RATES = (0.1, 2.0)  # healthy; too high
MNIST_EPOCHS, DIGITS_EPOCHS = 2, 20
RNN_POLICIES: tuple[dict[str, str], ...] = ({}, {"clip": "ClipByGlobalNorm(1.0)"}, {"clip": "ClipByGlobalNorm(0.25)"})
RNN_RATE, RNN_STEPS = 5.0, 300


@dataclass(frozen=True)
class Job:
    """One training: the workload, where its data is (None for what is installed), the arguments of its `train`."""

    workload: str
    data: Path | None
    settings: dict[str, Any]


def demo_jobs(workloads: Sequence[str], data: Path | None, quick: bool = False) -> list[Job]:
    """The runs of the demo: every policy at each learning rate with each seed; `quick` leaves one seed and few steps.

    Raises:
        RunError: `data` holds the files of none of the workloads, or not all files of one.
    """
    found = {name: data for name in workloads if data is not None and FINDERS[name](data) is not None}
    if data is not None and not found:
        raise RunError(
            f"{data} holds no data of the demo: wanted MNIST's four idx files there or in {data / 'mnist'}, or a text "
            f"in {data / 'input.txt'} or {data / 'tinyshakespeare/input.txt'}; without --data the demo needs no files"
        )
    epochs = 1 if quick else MNIST_EPOCHS if "mlp" in found else DIGITS_EPOCHS
    grids: dict[str, list[dict[str, Any]]] = {
        "mlp": [{**policy, "lr": lr, "epochs": epochs} for lr in MLP_RATES for policy in MLP_POLICIES],
        "rnn": [{**policy, "lr": RNN_RATE, "steps": 30 if quick else RNN_STEPS} for policy in RNN_POLICIES],
    }
    seeds = SEEDS[:1] if quick else SEEDS
    return [
        Job(name, found.get(name), {**settings, "seed": seed})
        for name in workloads
        for seed in seeds
        for settings in grids[name]
    ]


def run_jobs(jobs: Sequence[Job], runs: Path, tracking_uri: str) -> Generator[tuple[int, int], None, None]:
    """Train every job, recording into `runs`, while a courier delivers to `tracking_uri`.

    Yields how many runs are trained and how many are delivered, about twice a second, until all are; or until the
    courier gave up (`gradwatch sync` then delivers the rest).

    Raises:
        RunError: data that cannot be read, or a process that died.
    """
    trained = 0
    with _courier(runs, tracking_uri) as (courier, over):
        for trained in _train(jobs, runs, tracking_uri):
            yield trained, delivered(runs)
        over.set()
        deadline = time.monotonic() + DELIVERY_SECONDS
        while courier.is_alive() and time.monotonic() < deadline:
            yield trained, delivered(runs)
            courier.join(POLL_SECONDS)
        yield trained, delivered(runs)


def delivered(runs: Path) -> int:
    """How many of the runs are in MLflow as a whole."""
    return sum(is_done(read_cursor(folder), folder) for folder in run_folders(runs))


def _train(jobs: Sequence[Job], runs: Path, tracking_uri: str) -> Iterator[int]:
    """Yields the number of finished jobs about twice a second."""
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(WORKERS, spawn, initializer=_prepare_worker, initargs=(tracking_uri,))
    try:
        with _deaf_to_ctrl_c():
            left = {pool.submit(_run_job, job, runs) for job in jobs}
        while left:
            done, left = wait(left, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
            yield len(jobs) - len(left)
    except BrokenProcessPool as error:
        raise RunError("a training process of the demo was killed: is there enough memory (about 1 GB)?") from error
    except BaseException:  # Ctrl-C among them: nobody waits for the trainings under way
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare_worker(tracking_uri: str) -> None:
    """In a training process: one thread, and where MLflow is, as a user would set it."""
    import torch

    torch.set_num_threads(1)
    os.environ["MLFLOW_TRACKING_URI"] = tracking_uri
    os.environ.pop("MLFLOW_EXPERIMENT_ID", None)


def _run_job(job: Job, runs: Path) -> None:
    os.environ["MLFLOW_EXPERIMENT_NAME"] = f"gradwatch-demo-{job.workload}"
    workload = importlib.import_module(f"gradwatch.launcher.demo.{job.workload}")
    workload.train(LOADERS[job.workload](job.data), dir=runs, **job.settings)


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes started in here do not hear Ctrl-C, from their first moment on; this one hears it afterwards."""
    missed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: missed.append(number))  # other threads may receive it
    blocked = {signal.SIGINT} if hasattr(signal, "pthread_sigmask") else set()
    if blocked:
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)  # what is started inherits this
    try:
        yield
    finally:
        if blocked:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        signal.signal(signal.SIGINT, before)
    if missed:
        raise KeyboardInterrupt


@contextmanager
def _courier(runs: Path, tracking_uri: str) -> Iterator[tuple[BaseProcess, Event]]:
    """One process that delivers all runs of a directory; it ends by itself once the event is set and all is there."""
    spawn = multiprocessing.get_context("spawn")
    over = spawn.Event()
    process = spawn.Process(target=_deliver, args=(runs, tracking_uri, over), name="courier", daemon=True)
    with _deaf_to_ctrl_c():
        process.start()
    try:
        yield process, over
    finally:
        process.terminate()  # harmless: what is not delivered yet, `gradwatch sync` delivers
        process.join()


def _deliver(runs: Path, tracking_uri: str, over: Event) -> None:
    os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR="false")
    with open(runs / "courier.log", "ab") as file:  # MLflow writes to stderr, where the progress bars are
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("gradwatch").setLevel(logging.INFO)
    from gradwatch.tracking.sync import follow

    follow(runs, tracking_uri, until=over.is_set)

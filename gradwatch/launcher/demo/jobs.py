"""The demo's trainings, as sweeps over its two scripts: which there are, and the one courier that delivers them all."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

from gradwatch.errors import RunError
from gradwatch.launcher.demo.data import find_mnist, find_text, load_images, load_text
from gradwatch.launcher.local_pool import run_here
from gradwatch.launcher.pool import Task
from gradwatch.launcher.sweep import OUTPUT, THREADS, Job, Record, Sweep, task
from gradwatch.policies.intervention import Intervention
from gradwatch.recording.courier_process import child_environment
from gradwatch.storage.delivery_cursor import is_done, read_cursor
from gradwatch.storage.shared_folder import run_folders

Policies: TypeAlias = tuple[tuple[str | None, str | None], ...]  # clip and renorm

WORKERS = 2
DELIVERY_SECONDS = 300.0  # how long the courier may take for what is left after the last training
FINDERS = {"mlp": find_mnist, "rnn": find_text}
SCRIPTS = {"mlp": "digits_mlp.py", "rnn": "char_rnn.py"}

SEEDS = (0, 1, 2)
# ClipByValue and MaxNorm are set so that they hardly ever act, the others so that they do.
MLP_POLICIES: Policies = (
    (None, None),
    ("ClipByValue(1.0)", None),
    ("ClipByNorm(0.5)", None),
    ("ClipByAverageNorm(3e-05)", None),
    ("ClipByGlobalNorm(1.0)", None),
    ("ClipByHistory(1.2)", None),
    ("AGC(0.01)", None),
    (None, "MaxNorm(3.0)"),
)
MLP_RATES = (0.1, 2.0)  # healthy; too high
MLP_BATCH, MNIST_EPOCHS, DIGITS_EPOCHS = 50, 2, 20
RNN_POLICIES: Policies = ((None, None), ("ClipByGlobalNorm(1.0)", None), ("ClipByGlobalNorm(0.25)", None))
RNN_RATE, RNN_STEPS = 5.0, 300


def demo_jobs(workloads: Sequence[str], data: Path | None, runs: Path, quick: bool) -> list[Job]:
    """The trainings of the demo: every policy at each learning rate with each seed; `quick`: one seed and few steps.

    Raises:
        RunError: `data` holds the files of none of the workloads, or not all files of one, or they cannot be read.
    """
    found = {name: data for name in workloads if data is not None and FINDERS[name](data) is not None}
    if data is not None and not found:
        raise RunError(
            f"{data} holds no data of the demo: wanted MNIST's four idx files there or in {data / 'mnist'}, or a text "
            f"in {data / 'input.txt'} or {data / 'tinyshakespeare/input.txt'}; without --data the demo needs no files"
        )
    sweeps: list[tuple[str, Policies, float, int, dict[str, object], tuple[str, ...]]] = []
    if "mlp" in workloads:
        epochs = 1 if quick else MNIST_EPOCHS if "mlp" in found else DIGITS_EPOCHS
        images = load_images(found.get("mlp"))
        steps = epochs * -(-len(images.train) // MLP_BATCH)
        facts = {"data": images.name, "batch_size": MLP_BATCH, "epochs": epochs}
        args = ("--epochs", str(epochs))
        sweeps += [("mlp", MLP_POLICIES, lr, steps, facts, args) for lr in MLP_RATES]
    if "rnn" in workloads:
        steps = 30 if quick else RNN_STEPS
        args = ("--steps", str(steps))
        sweeps.append(("rnn", RNN_POLICIES, RNN_RATE, steps, {"data": load_text(found.get("rnn")).name}, args))
    return [
        job
        for name, policies, lr, steps, facts, args in sweeps
        for job in Sweep(
            target=str(Path(__file__).with_name(SCRIPTS[name])),
            args=(
                *args,
                "--lr",
                f"{lr:g}",
                "--seed",
                "{seed}",
                *(("--data", str(found[name])) if name in found else ()),
            ),
            module=False,
            policies=tuple(Intervention(*texts) for texts in policies),
            seeds=SEEDS[:1] if quick else SEEDS,
            options=_options(name, {"workload": name, "lr": f"{lr:g}", **facts}, steps),
            folder=runs,
            title=f"lr{lr:g}-{name}",
        ).jobs()
    ]


def _options(name: str, params: dict[str, object], steps: int) -> tuple[str, ...]:
    """Those of `gradwatch run`. One courier delivers all; a file with the user's settings is not meant for the demo."""
    words = ["--experiment", f"gradwatch-demo-{name}", "--delivery", "none", "--total-steps", str(steps)]
    words += ["--every", "10", "--halt-on", "never"]
    return (*words, *(word for key, value in params.items() for word in ("--param", f"{key}={value}")))


def run_jobs(jobs: Sequence[Job], runs: Path, tracking_uri: str) -> Generator[tuple[int, int], None, None]:
    """Train every job, while a courier delivers to `tracking_uri`.

    Yields how many runs are trained and how many are delivered, about twice a second, until all are; or until the
    courier gave up (`gradwatch sync` then delivers the rest).

    Raises:
        RunError: a training failed.
    """
    command = [sys.executable, "-m", "gradwatch", "sync", "--follow", str(runs)]
    store = {"MLFLOW_TRACKING_URI": tracking_uri}  # no option: everybody may read a command's words
    courier = Task(command, {**child_environment(), **store}, runs / "courier.log")
    slot = {**dict.fromkeys(THREADS, "1"), **store}
    trained, there, deadline = 0, 0, float("inf")
    with closing(run_here([courier, *(task(job, None, warm=True) for job in jobs)], [slot] * (WORKERS + 1))) as going:
        for _, ended in going:
            for number in ended.keys() - {0}:
                _check(jobs[number - 1])
            trained += len(ended.keys() - {0})
            there = delivered(runs)
            yield trained, there
            if trained == len(jobs):
                deadline = min(deadline, time.monotonic() + DELIVERY_SECONDS)
            if there == len(jobs) or time.monotonic() > deadline:
                return  # which ends the courier: what is not delivered yet, `gradwatch sync` delivers


def delivered(runs: Path) -> int:
    """How many of the runs are in MLflow as a whole."""
    return sum(is_done(read_cursor(folder), folder) for folder in run_folders(runs))


def _check(job: Job) -> None:
    record = Record.read(job)
    if record is None or not record.over:
        said = "it left no record" if record is None else record.said or f"exit code {record.code}"
        raise RunError(f"the demo's training {job.label} failed: {said} (all it printed is in {job.folder / OUTPUT})")

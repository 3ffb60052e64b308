"""The trainings of a sweep, policies × seeds: each with a folder, a command, and a record of its end."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shlex
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gradwatch.errors import RunError
from gradwatch.launcher.pool import End, Task
from gradwatch.policies.intervention import NONE, Intervention, given, skipping
from gradwatch.recording.courier_process import wait_delivered
from gradwatch.storage.folder import read_manifest, write_json
from gradwatch.storage.many_runs import cpus
from gradwatch.storage.run_state import run_state
from gradwatch.storage.shared_folder import deliverable_parts, run_folders
from gradwatch.tracking.tags import Tag

RECORD, OUTPUT = "job.json", "output.log"
SEED = "{seed}"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
DEVICES = "CUDA_VISIBLE_DEVICES"
COURIER_SECONDS = 10.0  # how long the next training waits for the courier of the last one


@dataclass(frozen=True)
class Sweep:
    """What is asked for. Each of `policies` is trained with each seed; `options` go to each `gradwatch run`.

    `target` is the script, or with `module` the name of a module; in `args`, `{seed}` stands for the seed.
    """

    target: str
    args: tuple[str, ...]
    module: bool
    policies: tuple[Intervention, ...]
    seeds: tuple[int | None, ...]
    set_seed: bool = False
    options: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    folder: Path = Path("gradwatch-runs")
    title: str = ""  # in the place of the script's name
    place: Path | None = None  # where its trainings are started; here if not said

    @property
    def name(self) -> str:
        """`train-3f2a9c41`: the script, and a digest of it with its arguments; not of policies and seeds."""
        stem = self.title or self.stem
        return f"{stem}-{digest([self.target if self.module else str(self._script.resolve()), self.args])}"

    @property
    def stem(self) -> str:
        """`train`: the script without what it ends in, or the last of the module's names."""
        return self.target.rpartition(".")[2] if self.module else Path(self.target).stem

    @property
    def _script(self) -> Path:
        return (self.place or Path()) / self.target

    @property
    def source(self) -> str:
        """The script's text, in hexadecimal; empty for a module."""
        return "" if self.module or not self._script.is_file() else self._script.read_bytes().hex()

    @property
    def home(self) -> Path:
        """The folder that holds everything of this sweep."""
        return (self.folder / f"sweep-{self.name}").resolve()

    def jobs(self) -> list[Job]:
        """One job for each policy and seed, seeds outermost: an early stop leaves whole seeds."""
        return [self.job(policy, seed) for seed in self.seeds for policy in self.policies]

    def job(self, policy: Intervention, seed: int | None, options: tuple[str, ...] = ()) -> Job:
        """The training of one policy with one seed; `options` of its own do not decide how it goes."""
        key = digest([*_parts(policy), seed, self.set_seed, self.options, self.source])
        end = "" if seed is None else f"-seed{seed}"
        folder = self.home / f"{re.sub(r'[^A-Za-z0-9.]+', '-', policy.label).strip('-')[:60]}{end}-{key}"
        return Job(self, policy, seed, folder, options)


@dataclass(frozen=True)
class Job:
    """One training of a sweep. Its folder is named after all that decides its result, the script's text included."""

    sweep: Sweep
    policy: Intervention
    seed: int | None
    folder: Path
    options: tuple[str, ...] = ()  # of `gradwatch run`, beside those of the sweep

    @property
    def label(self) -> str:
        """`ClipByNorm(1.0), seed 2`."""
        return self.policy.label if self.seed is None else f"{self.policy.label}, seed {self.seed}"

    def command(self) -> list[str]:
        """The words that start it: the launcher, Python, `gradwatch run`, its options, the script and its arguments."""
        sweep, stem = self.sweep, self.sweep.name.rpartition("-")[0]
        policy = self.policy
        # what tells them apart first: tables and legends cut the end
        name = "-".join([policy.label, *([] if self.seed is None else [f"seed{self.seed}"]), stem])
        options = [
            *("--dir", str(self.folder), "--run-name", name, "--tag", f"{Tag.SWEEP}={sweep.name}"),
            *("--tag", f"{Tag.SWEEP_JOB}={self.folder.name}"),
            # each is named, so that a file with the user's settings has no say in it
            *("--lr-scale", str(policy.lr_scale), "--warmup", str(policy.warmup), "--no-skip"),
            *("--clip", policy.clip or NONE, "--renorm", policy.renorm or NONE),
        ]
        if self.seed is not None:
            options += ["--param", f"seed={self.seed}"]
            options += ["--set-seed", str(self.seed)] if sweep.set_seed else []
        seed = "" if self.seed is None else str(self.seed)
        script = [*(["-m"] if sweep.module else []), sweep.target, *(arg.replace(SEED, seed) for arg in sweep.args)]
        return [*_launched(sweep.prefix), *options, *sweep.options, *self.options, *script]

    def environment(self) -> dict[str, str]:
        """What is set for it beside this process' own environment."""
        return {} if self.seed is None else {"PYTHONHASHSEED": str(self.seed), "GRADWATCH_SEED": str(self.seed)}

    @property
    def is_over(self) -> bool:
        """Whether it need not run again."""
        record = Record.read(self)
        return record is not None and record.over

    def run(self) -> Path | None:
        """The newest run folder that it left; None when it left none here."""
        folders = run_folders(self.folder)
        return folders[-1] if folders else None


@dataclass(frozen=True)
class Record:
    """How a job ended: `finished`, `failed` (its exit code is not 0) or `timeout`; `said` is why, in its own words."""

    status: str
    code: int | None
    seconds: float
    said: str = ""

    @property
    def over(self) -> bool:
        """Whether the job need not run again."""
        return self.status == "finished"

    @classmethod
    def read(cls, job: Job) -> Record | None:
        """The record of a job that ended; None for one that never did."""
        try:
            return cls(**json.loads((job.folder / RECORD).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, job: Job) -> None:
        """Leave the record in the job's folder."""
        write_json(job.folder / RECORD, asdict(self))


def task(job: Job, timeout: float | None, warm: bool = False) -> Task:
    """What the pool runs for a job: a fresh record of its end is left in its folder, unless it was interrupted."""
    job.folder.mkdir(parents=True, exist_ok=True)
    (job.folder / RECORD).unlink(missing_ok=True)

    def at_end(end: End) -> None:
        if end.cut == "interrupted":
            return
        status = end.cut or ("finished" if end.code == 0 else "failed")
        words = "" if end.code in (0, None) else _last_words(job)
        Record(status, end.code, round(end.seconds, 1), ", ".join(filter(None, [end.problem, words]))).write(job)
        if not end.cut:
            let_deliver(job.folder)

    return Task(job.command(), job.environment(), job.folder / OUTPUT, timeout, at_end, warm, job.sweep.place)


def let_deliver(home: Path) -> None:
    """Give the couriers of a job some time, so that those of many short trainings are not all at work at once."""
    deadline = time.monotonic() + COURIER_SECONDS
    for part in [part for folder in run_folders(home)[-1:] for part in deliverable_parts(folder)]:
        if any((place / "courier.log").exists() for place in (part, part.parent)):
            wait_delivered(part, deadline - time.monotonic())


def require_ended(job: Job) -> None:
    """Refuse a job that a process on this machine still trains: one that an earlier sweep left behind, killed.

    Raises:
        RunError: so it is.
    """
    folder = job.run()
    try:
        run = read_manifest(folder) if folder is not None else None
    except RunError:
        return
    if run is not None and run.host == socket.gethostname() and not run_state(run).over:
        raise RunError(f"{job.label} is still being trained, by a sweep that was killed: end it, or wait for {folder}")


def _last_words(job: Job) -> str:
    """The last line that the script printed, after which gradwatch may have said where it recorded."""
    lines = [line.strip() for line in _tail(job.folder / OUTPUT).splitlines()]
    lines = [line for line in lines if line and not line.startswith("gradwatch: ")]
    return lines[-1][:200] if lines else ""


def _tail(path: Path, size: int = 20_000) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _launched(prefix: Sequence[str]) -> list[str]:
    """The launcher and `python -m gradwatch run`; a launcher that starts Python itself gets the module alone.

    `--` keeps such a launcher from taking our options for its own.
    """
    words = [Path(word).name for word in prefix]
    own = {"torchrun", "accelerate", "torch.distributed.run", "torch.distributed.launch"} & set(words)
    no_python = {"--no-python", "--no_python"} & set(words)
    if own and not no_python:
        return [*prefix, "-m", "--", "gradwatch", "run"]
    return [*prefix, sys.executable, "-m", "gradwatch", "run"]


def slots(jobs: int, devices: Sequence[str], environment: dict[str, str]) -> list[dict[str, str]]:
    """The environment of each of `jobs` processes at a time: its share of the CPU's threads, and of the GPUs.

    A thread count that the user set is kept where it is smaller. One GPU is everybody's; of several, each has its own.
    """
    threads = thread_counts(max(1, cpus() // jobs), environment)
    each = max(1, len(devices) // jobs)
    made = []
    for i in range(jobs):
        own = [devices[(i * each + k) % len(devices)] for k in range(each)] if len(devices) > 1 else []
        made.append({**(threads if jobs > 1 else {}), **({DEVICES: ",".join(own)} if own and jobs > 1 else {})})
    return made


def thread_counts(share: int, environment: dict[str, str]) -> dict[str, str]:
    """What gives a process `share` threads, or as many as `environment` says where that is less."""
    return {name: str(min(share, _count(environment.get(name), share))) for name in THREADS}


def visible_devices() -> list[str]:
    """The names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES takes them."""
    given = os.environ.get(DEVICES)
    if given is not None:
        return [name for name in given.split(",") if name.strip()]
    import torch

    return [str(i) for i in range(torch.cuda.device_count())]


def _count(text: str | None, otherwise: int) -> int:
    return int(text) if text and text.isdigit() and int(text) else otherwise


def policies(
    clips: Sequence[str],
    renorms: Sequence[str],
    lr_scales: Sequence[float] = (),
    warmups: Sequence[int] = (),
    skip: bool = False,
) -> Iterator[Intervention]:
    """Every clip with every renorm, scale and warm-up, policies as they print; `none` is no policy.

    With `skip` bad steps are left out before each clip.

    Raises:
        PolicyError: a text is no policy.
        RunError: one is given twice.
    """
    from gradwatch.policies import parse

    def read(texts: Sequence[str]) -> list[str | None]:
        return [None if given(text) is None else repr(parse(text)) for text in texts]

    clip_texts = [skipping(clip) if skip else clip for clip in read(clips) or [None]]
    every: list[list[Any]] = [clip_texts, read(renorms) or [None], [*lr_scales] or [1.0], [*warmups] or [0]]
    for values in every:
        twice = [NONE if value is None else str(value) for value in values if values.count(value) > 1]
        if twice:
            raise RunError(f"{twice[0]} is given twice: wanted each policy once")
    yield from itertools.starmap(Intervention, itertools.product(*every))


def _parts(policy: Intervention) -> list[Any]:
    """What tells a policy from others, for a digest: that of a clip and a renorm alone is older than the rest."""
    scaled = (policy.lr_scale, policy.warmup)
    return [policy.clip, policy.renorm, *(scaled if scaled != (1.0, 0) else ())]


def split(prefix: str | None) -> tuple[str, ...]:
    """The words of a launcher, as a shell would split them.

    Raises:
        RunError: a quote is not closed.
    """
    try:
        return tuple(shlex.split(prefix or ""))
    except ValueError as error:
        raise RunError(f"--prefix {prefix!r} cannot be split into words: {error}") from error


def digest(parts: Any) -> str:
    """Eight letters that tell these parts, what JSON can hold, from others."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]

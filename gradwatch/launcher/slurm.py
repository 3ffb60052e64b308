"""The trainings of a sweep as a SLURM job array: each task of the array is `gradwatch sweep --only K`."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

from gradwatch.errors import RunError
from gradwatch.launcher.pool import End, Moment, Resources
from gradwatch.launcher.sweep import THREADS, Job

QUEUE_SECONDS = 5.0  # between two looks at the queue: the controller serves everybody
MEBIBYTE = 2**20


def array_name(jobs: Sequence[Job]) -> str:
    """`gradwatch-train-3f2a9c41`: the same for the same trainings, so that they are found in the queue again."""
    digest = hashlib.sha256("\n".join(str(job.folder) for job in jobs).encode()).hexdigest()[:8]
    return f"gradwatch-{jobs[0].sweep.stem}-{digest}"


def batch_script(
    jobs: Sequence[Job], numbers: Sequence[int], words: Sequence[str], asked: Resources, at_a_time: int | None
) -> str:
    """What `sbatch` takes: the jobs with these numbers, from 1, of the sweep that `gradwatch sweep WORDS` is.

    Raises:
        RunError: a share of a GPU is asked for.
    """
    if asked.gpus is not None and asked.gpus % 1:
        raise RunError(f"--gpus {asked.gpus:g}: SLURM deals out whole GPUs; wanted 0, 1, 2 ...")
    home = str(jobs[0].sweep.home).replace("%", "%%")
    settings = {
        "job-name": array_name(jobs),
        "array": ",".join(map(str, numbers)) + (f"%{at_a_time}" if at_a_time else ""),
        "chdir": str(Path.cwd()),
        "output": f"{home}/slurm-%a.log",
        "open-mode": "append",
        "requeue": None,  # after a node failed, or when others come first: the task then begins anew
        "nodes": "1",
        "cpus-per-task": asked.cpus,
        "gres": f"gpu:{asked.gpus:g}" if asked.gpus else None,
        "mem": f"{-(-asked.memory // MEBIBYTE)}M" if asked.memory else None,
    }
    lines = ["#!/bin/bash", f"# {len(numbers)} trainings of a sweep, one for each task of the array:"]
    lines += [f"#   {number}: {' '.join(jobs[number - 1].label.split())}" for number in numbers]
    for name, value in settings.items():
        if name == "requeue":
            lines.append("#SBATCH --requeue")
        elif value is not None:
            lines.append(f"#SBATCH --{name}={shlex.quote(str(value))}")
    lines += [f"export {name}={asked.cpus}" for name in THREADS if asked.cpus]
    command = shlex.join([sys.executable, "-m", "gradwatch", "sweep"])
    return "\n".join([*lines, f'exec {command} --only "$SLURM_ARRAY_TASK_ID" {shlex.join(words)}', ""])


def submit(script: str) -> str:
    """Hand the script to `sbatch`; returns the number of the job.

    Raises:
        RunError: there is no sbatch, or it refuses.
    """
    return _asked(["sbatch", "--parsable"], script).strip().partition(";")[0]


def queued(name: str) -> Mapping[int, str]:
    """The tasks of our arrays of this name that SLURM still has, and their states: `{1: "RUNNING", 2: "PENDING"}`.

    Raises:
        RunError: the queue cannot be read.
    """
    said = _asked(["squeue", "--noheader", "--array", "--me", f"--name={name}", "--format=%K %T"])
    rows = [line.split() for line in said.splitlines()]
    return {int(row[0]): row[1] for row in rows if len(row) == 2 and row[0].isdigit()}


def follow(name: str, numbers: Sequence[int]) -> Generator[Moment, None, None]:
    """Yield as a pool does what becomes of these tasks, counted by their places in `numbers`, until none is left."""
    left = set(range(len(numbers)))
    while left:
        try:
            there = queued(name)
        except RunError:  # a controller that is busy or restarts: the trainings go on
            there = dict.fromkeys(numbers, "")
        ended = {place for place in left if numbers[place] not in there}
        left -= ended
        yield {place for place in left if there[numbers[place]] == "RUNNING"}, dict.fromkeys(ended, End(None, 0.0))
        if left:
            time.sleep(QUEUE_SECONDS)


def _asked(command: Sequence[str], given: str = "") -> str:
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RunError(
            f"there is no {command[0]} here: wanted a machine of a SLURM cluster; without --submit the script is "
            "printed, for one"
        ) from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise RunError(f"{command[0]} refuses: {said}")
    return done.stdout

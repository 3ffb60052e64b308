"""Where `gradwatch sweep` trains: --on, --only, and what each training gets of a machine or a cluster."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

import click

from gradwatch.cli.config import WORDS
from gradwatch.errors import RunError
from gradwatch.launcher.local_pool import run_here
from gradwatch.launcher.pool import Moment, Pool, Resources
from gradwatch.launcher.ray_pool import run_on_ray
from gradwatch.launcher.slurm import array_name, batch_script, follow, queued, submit
from gradwatch.launcher.sweep import Job, Sweep, slots, visible_devices
from gradwatch.storage.many_runs import cpus

RESOURCES = ("cpus", "gpus", "memory")


def check_places(options: dict[str, Any]) -> None:
    """Refuse what does not go together of --on, --only and what is asked of a cluster.

    Raises:
        RunError: it does not.
    """
    given = [name for name in RESOURCES if options[name] is not None]
    if given and options["where"] is None:
        raise RunError(f"--{given[0]} is for --on: on this machine, --jobs N divides what there is")
    if options["submit"] and options["where"] != "slurm":
        raise RunError("--submit is for --on slurm, which prints a job array without it")
    apart = "--only" if options["only"] else "--on slurm" if options["where"] == "slurm" else ""
    for name in ("cures", "search", "stop_losers"):
        if apart and options[name]:
            flag = "--" + name.replace("_", "-")
            raise RunError(f"{flag} and {apart} do not go together: wanted trainings that are known beforehand")


def as_array(options: dict[str, Any]) -> bool:
    """Whether the trainings are left to SLURM: a task of its array, which has --only, trains here."""
    return options["where"] == "slurm" and not options["only"]


def chosen(jobs: Sequence[Job], number: int) -> Job:
    """The job with this number, from 1.

    Raises:
        RunError: there is none.
    """
    if number > len(jobs):
        raise RunError(f"--only {number}: the sweep has {len(jobs)} trainings, from 1")
    return jobs[number - 1]


def pool(count: int, asked: Sweep, options: dict[str, Any]) -> Pool:
    """What runs the tasks: on a cluster as many at a time as --jobs says, or `count`."""
    if options["where"] is None or options["only"]:
        at_a_time = 1 if options["only"] else options["jobs"]
        return partial(run_here, slots=_slots(at_a_time, bool(asked.prefix)))
    at_a_time, say = options["jobs"] or count, partial(click.echo, err=True)
    return partial(run_on_ray, at_a_time=at_a_time, resources=_resources(options), say=say)


def _resources(options: dict[str, Any]) -> Resources:
    return Resources(*(options[name] for name in RESOURCES))


def _slots(jobs: int | None, launched: bool) -> list[dict[str, str]]:
    devices = visible_devices()
    count = jobs or (len(devices) if len(devices) > 1 else 1)
    if not launched and count > cpus():
        click.echo(f"Note: --jobs {count} is more than the {cpus()} CPUs; {cpus()} trainings at a time.", err=True)
        count = cpus()
    return slots(count, devices, dict(os.environ))


def on_slurm(
    ctx: click.Context, jobs: Sequence[Job], todo: Sequence[Job], options: dict[str, Any]
) -> Generator[Moment, None, None]:
    """Print the array of the jobs in `todo`, and end; with --submit submit it, and return what tells how it goes.

    Of trainings that SLURM still has, nothing is submitted: they are followed.

    Raises:
        RunError: there is no SLURM here, or it refuses.
    """
    numbers = [jobs.index(job) + 1 for job in todo]
    script = batch_script(jobs, numbers, ctx.meta[WORDS], _resources(options), options["jobs"])
    if not options["submit"]:
        click.echo(script, nl=False)
        ctx.exit(0)
    name = array_name(jobs)
    there = queued(name)
    if there:
        click.echo(f"SLURM still has {len(there)} of the trainings ({name}): they are followed.")
    else:
        click.echo(f"Submitted as SLURM job {submit(script)}, {name}.")
    return follow(name, numbers)

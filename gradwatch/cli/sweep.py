"""`gradwatch sweep`: one script under several policies and seeds, and which policy is best for it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gradwatch.cli.compare import compared_by
from gradwatch.cli.config import Configured
from gradwatch.cli.options import (
    INSIDE,
    Module,
    Number,
    Whole,
    intervening,
    looking_inside,
    pattern_texts,
    template_text,
    trackers_text,
)
from gradwatch.errors import RunError

if TYPE_CHECKING:
    from gradwatch.launcher.cures import Trial
    from gradwatch.launcher.race import Race
    from gradwatch.launcher.search import Search
    from gradwatch.launcher.sweep import Job, Sweep

SETTINGS = {"ignore_unknown_options": False, "allow_interspersed_args": False}
VARIED = ("clips", "renorms", "lr_scales", "warmups", "skip")
# options of `gradwatch run` that are handed on as they are
HANDED_ON = ("script_clip", "every", "flush_every", *INSIDE, "metric_regex", "log", "experiment")


def byte_size(ctx: click.Context, param: click.Parameter, value: Any) -> int | None:
    """The bytes of a size as SLURM and Kubernetes take it: `16G`, `512M`; 1K is 1,024."""
    found = re.fullmatch(r"([1-9]\d*)([KMGT]?)(i?B)?", str(value), re.IGNORECASE)
    if value is not None and found is None:
        raise click.BadParameter(f"{value!r}: wanted a size such as 16G or 512M")
    return None if found is None else int(found[1]) << 10 * " KMGT".index(found[2].upper() or " ")


@click.command(cls=Configured, context_settings=SETTINGS)
@click.argument("script", metavar="SCRIPT", required=False)
@click.argument("args", metavar="[ARGS...]", nargs=-1, type=click.UNPROCESSED)
@click.option("-m", "module", cls=Module, metavar="MODULE",
              help="Run a module, as python -m does; what follows is for it.")  # fmt: skip
@click.option("--clip", "clips", metavar="TEXT", multiple=True, callback=template_text,
              help="A gradient policy, or none; again for each.")  # fmt: skip
@click.option("--renorm", "renorms", metavar="TEXT", multiple=True, callback=template_text,
              help="A weight constraint, or none; with each clip.")  # fmt: skip
@intervening(many=True)
@click.option("--search", metavar="N", type=Whole(1), help="Have Optuna draw N trials, by --metric, from "
              "ranges in the options above, as 'ClipByGlobalNorm(0.1..10)' or --lr-scale 0.1..10.")  # fmt: skip
@click.option("--cures", metavar="RUN", help="Train RUN's own script again, unchanged and with each cure that its "
              "findings name, instead of policies; SCRIPT where RUN does not say how it was started.")  # fmt: skip
@click.option("--usual-cures", is_flag=True, help="With --cures: also what mends many trainings, whatever was found: "
              "other learning rates, a warm-up, a bound by each layer's own past.")  # fmt: skip
@click.option("--seed", "seeds", metavar="N", type=Whole(0, 2**32 - 1), multiple=True,
              help="A seed: {seed} in ARGS, and GRADWATCH_SEED; again for each.")  # fmt: skip
@click.option("--set-seed", "set_seeds", is_flag=True, help="Seed random, numpy and torch in the script.")
@click.option("--jobs", metavar="N", type=Whole(1),
              help="Trainings at a time, sharing the CPU's threads. [default: the number of GPUs, or 1]")  # fmt: skip
@click.option("--on", "where", type=click.Choice(("ray", "slurm")),
              help="Train on the Ray cluster at RAY_ADDRESS or of this machine; print a SLURM array.")  # fmt: skip
@click.option("--submit", is_flag=True, help="With --on slurm: submit the array, and wait for its trainings.")
@click.option("--only", metavar="K", type=Whole(1),
              help="Train the K-th alone, from 1, here: for the array of any scheduler.")  # fmt: skip
@click.option("--cpus", metavar="N", type=Whole(1), help="With --on: of each training.")
@click.option("--gpus", metavar="N", type=Number(0), help="With --on: of each training; 0.5 shares one.")
@click.option("--memory", metavar="SIZE", callback=byte_size, help="With --on: of each training, such as 16G.")
@click.option("--prefix", metavar="WORDS", help="A launcher in front of each training, such as 'srun -n1'.")
@click.option("--timeout", metavar="SECONDS", type=Number(0, min_open=True), help="End a training after it.")
@click.option("--stop-losers", is_flag=True, help="Give a policy no more seeds once the interval over its seeds "
              "lies wholly beyond that of the best.")  # fmt: skip
@click.option("--force", is_flag=True, help="Train again what is finished.")
@click.option("--script-clip", type=click.Choice(("keep", "replace")), help="As for run.  [default: keep]")
@click.option("--every", metavar="N", type=Whole(1), help="As for run.  [default: 10]")
@click.option("--flush-every", metavar="SECONDS", type=Number(0, 86_400, min_open=True),
              help="As for run.  [default: 5.0]")  # fmt: skip
@looking_inside(as_for_run=True)
@click.option("--metric-regex", metavar="NAME=PATTERN", multiple=True, callback=pattern_texts, help="As for run.")
@click.option("--log", metavar="mlflow|tensorboard|none", callback=trackers_text, help="As for run.  [default: mlflow]")
@click.option("--experiment", metavar="NAME", help="As for run.")
@click.option("--dir", "folder", metavar="DIR", default="gradwatch-runs", show_default=True,
              type=click.Path(path_type=Path), help="The folder that gets a folder for this sweep.")  # fmt: skip
@compared_by
@click.pass_context
def sweep(ctx: click.Context, /, script: str | None, args: tuple[str, ...], module: str | None, **options: Any) -> None:
    """Train a script under several policies and seeds, and compare them.

    Every policy with every seed is a process of its own, and a run of its own in MLflow. The same command again skips
    what is finished; with more policies or seeds it adds them.

    \b
    Example:
      gradwatch sweep --clip none --clip 'AGC(0.01)' --seed 0 --seed 1 --seed 2 --set-seed train.py --lr 0.1
      gradwatch sweep --clip none --clip 'ClipByGlobalNorm(1.0)' --seed 0 --seed 1 train.py --seed {seed}
      gradwatch sweep --cures latest --seed 0 --seed 1 --seed 2 --set-seed
    """  # noqa: D301  (click reads the backspace)
    from gradwatch.cli.sweep_output import show_settled, show_training
    from gradwatch.cli.sweep_places import as_array, check_places, chosen, on_slurm, pool
    from gradwatch.cli.sweep_search import begin_search
    from gradwatch.launcher.race import Race
    from gradwatch.launcher.sweep import task
    from gradwatch.report.terminal import make_console

    tried: Trial | Search | Race | None = None
    if options["usual_cures"] and not options["cures"]:
        raise RunError("--usual-cures are put to the run that --cures names: pass --cures RUN too")
    if options["cures"]:
        asked, tried = _cures(ctx, script, args, module, options)
    else:
        asked = _asked(script, args, module, options)
    check_places(options)
    jobs, console, search, race = asked.jobs(), make_console(), None, None
    if options["only"]:
        jobs = [chosen(jobs, options["only"])]
    home = jobs[0].folder if options["only"] else asked.home
    try:
        with _alone_in(home):
            if options["search"]:
                tried = search = begin_search(asked, options)
                going = pool(1, asked, options)(search.tasks(options["timeout"], options["force"]))
                show_training(search.total, search.done, search.todo, going, console)
                jobs = search.jobs
            elif options["stop_losers"]:
                tried = race = Race(jobs, options["metric"], options["rises"], options["baseline"])
                todo = _todo(jobs, options)
                going = pool(1, asked, options)(race.tasks(todo, options["timeout"]))
                show_training(len(jobs), len(jobs) - len(todo), race.todo, going, console)
                jobs = race.jobs
            elif (todo := _todo(jobs, options)) and as_array(options):
                going = on_slurm(ctx, jobs, todo, options)
                show_training(len(jobs), len(jobs) - len(todo), todo, going, console)
            elif todo:
                going = pool(len(todo), asked, options)(task(job, options["timeout"]) for job in todo)
                show_training(len(jobs), len(jobs) - len(todo), todo, going, console)
            if not options["only"]:
                show_settled(asked, jobs, options, console, tried)
    except KeyboardInterrupt:
        _say_stopped(search.begun if search else race.jobs if race else jobs, as_array(options))
        raise
    ctx.exit(int(search.has_failed if search else not all(job.is_over for job in jobs)))


@contextmanager
def _alone_in(home: Path) -> Iterator[None]:
    """Make the folder of a sweep, and keep other sweeps out of it.

    Raises:
        RunError: another one is at work there, or what is to be in it cannot be written.
    """
    from filelock import FileLock, Timeout

    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / ".lock", timeout=0):
            yield
    except Timeout:
        raise RunError(f"another sweep is at work in {home}: wait for it, or pass --dir another folder") from None
    except BrokenPipeError:  # standard output, as in `gradwatch sweep ... | head -1`: click ends quietly
        raise
    except OSError as error:
        raise RunError(f"cannot write to {home}: {error.strerror}; pass --dir a folder you can write to") from error


def _cures(
    ctx: click.Context, script: str | None, args: tuple[str, ...], module: str | None, options: dict[str, Any]
) -> tuple[Sweep, Trial]:
    """The sweep over the cures of a run, and what is tried; `options` get what the run says and the command line not.

    Raises:
        RunError: the run names no cure that can be tried, or how it was started is not known.
    """
    from gradwatch.launcher import cures

    ref = options["cures"]
    for name in (*VARIED, "search"):
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            flag = "--" + name.removesuffix("s").replace("_", "-")
            raise RunError(f"--cures and {flag}: the findings of {ref} say what is tried; leave one of them out")
    trial, run = cures.read_trial(ref, options["usual_cures"])
    if trial is None:
        click.echo(
            f"{run.name}: no finding that asks for a cure, so nothing is trained; --usual-cures tries what mends many."
        )
        ctx.exit(0)
    own = None
    if not (module or script):
        own = cures.recorded_command(ref, run, bool(options["prefix"]))
        own = own.seeded(run.params) if options["seeds"] else own
        script, module, args = (None, own.target, own.args) if own.module else (own.target, None, own.args)
        options["seeds"] = options["seeds"] or (() if own.seed is None else (own.seed,))
        options["set_seeds"] = options["set_seeds"] or own.seed is not None
        options["log"], options["experiment"] = options["log"] or own.log, options["experiment"] or own.experiment
    options["baseline"] = options["baseline"] or trial.unchanged.label
    asked = _asked(script, args, module, options, own.folder if own else None)
    click.echo(f"{run.name}: {trial.severe}. Its script, {shlex.join([asked.target, *asked.args])}, unchanged and with")
    for cure, rules in trial.cures.items():
        click.echo(f"  {cure}  ({', '.join(rules)})")
    for cure in trial.usual:
        click.echo(f"  {cure}")
    words = (*(own.options if own else ()), *asked.options)
    return replace(asked, policies=trial.policies, options=words, title=f"{asked.stem}-cures"), trial


def _asked(
    script: str | None, args: tuple[str, ...], module: str | None, options: dict[str, Any], place: Path | None = None
) -> Sweep:
    """The sweep that the command line asks for, of a script in `place`.

    Raises:
        RunError: there is no script, or options that do not go together.
    """
    from gradwatch.cli.sweep_search import space_of
    from gradwatch.launcher.sweep import SEED, Sweep, policies, split

    space_of(options)
    if options["stop_losers"] and (options["search"] or options["cures"]):
        raise RunError("--stop-losers is for policies that are given one by one: leave --search or --cures out")
    target = module or script
    if target is None:
        raise RunError("no script: wanted gradwatch sweep [OPTIONS] SCRIPT [ARGS...], or -m MODULE")
    if module and script is not None:
        args = (script, *args)
    prefix, seeds = split(options["prefix"]), options["seeds"]
    if not module and not prefix and not ((place or Path()) / target).exists():
        raise RunError(f"there is no script {target}: wanted a Python script, or -m MODULE")
    if not seeds and (options["set_seeds"] or any(SEED in arg for arg in args)):
        raise RunError(
            "--set-seed, or {seed} in the script's arguments, without a seed: pass --seed 0 --seed 1 --seed 2"
        )
    if len(set(seeds)) < len(seeds):
        raise RunError(f"--seed {' --seed '.join(map(str, seeds))}: a seed is given twice")
    if len(seeds) > 1 and not options["set_seeds"] and not any(SEED in arg for arg in args):
        click.echo("Note: the seeds reach the script only as GRADWATCH_SEED and PYTHONHASHSEED. If it reads neither, "
                   "put {seed} among its arguments, or pass --set-seed.", err=True)  # fmt: skip
    return Sweep(
        target,
        args,
        module is not None,
        () if options["search"] else tuple(policies(*(options[key] for key in VARIED))),
        seeds or (None,),
        options["set_seeds"],
        tuple(_handed_on(options)),
        prefix,
        options["folder"],
        place=place,
    )


def _handed_on(options: dict[str, Any]) -> list[str]:
    words: list[str] = []
    for name in HANDED_ON:
        flag, value = "--" + name.replace("_", "-"), options[name]
        if value is True:
            words.append(flag)
        elif value not in (None, False, ()):
            words += [word for one in (value if isinstance(value, tuple) else (value,)) for word in (flag, str(one))]
    return words


def _todo(jobs: Sequence[Job], options: dict[str, Any]) -> list[Job]:
    """The jobs that are not finished.

    Raises:
        RunError: one of them is still being trained, and not by a job array, which is followed.
    """
    from gradwatch.cli.sweep_places import as_array
    from gradwatch.launcher.sweep import require_ended

    array = as_array(options)
    todo = [job for job in jobs if options["force"] or not job.is_over]
    for job in todo:
        if not array:
            require_ended(job)
    if len(todo) < len(jobs):
        printed = array and not options["submit"]  # what is printed is a script
        click.echo(f"{len(jobs) - len(todo)} of {len(jobs)} runs are finished already.", err=printed)
    return todo


def _say_stopped(jobs: Sequence[Job], array: bool) -> None:
    from gradwatch.launcher.slurm import array_name

    done, goes_on = sum(job.is_over for job in jobs), "the same command goes on"
    if array:
        goes_on = f"SLURM trains on, and the same command follows it (scancel --name {array_name(jobs)} ends it)"
    click.echo(f"Stopped: {done} of {len(jobs)} runs are finished and kept; {goes_on}.", err=True)

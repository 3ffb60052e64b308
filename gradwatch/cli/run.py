"""`gradwatch run`: a training script as it is, watched."""

from __future__ import annotations

import functools
import itertools
import os
from pathlib import Path
from typing import Any

import click

from gradwatch.cli.config import Configured, show_config
from gradwatch.cli.options import (
    INSIDE,
    Module,
    Number,
    Whole,
    as_split,
    intervening,
    looking_inside,
    pair_texts,
    pairs,
    pattern_texts,
    policy_text,
    trackers_text,
)
from gradwatch.errors import RunError

# what a training is to be repeated with, beside what a sweep varies; what only delivers it is not
REPEATED = ("--script-clip", "--every", "--total-steps", "--metric-regex", "--higher-is-better", "--lower-is-better",
            "--param", "--activations-of", "--histogram-every", "--singular-values-of",
            "--split", "--rows")  # fmt: skip


@click.command(cls=Configured, context_settings={"allow_interspersed_args": False})
@click.argument("script", metavar="SCRIPT", required=False)
@click.argument("args", metavar="[ARGS...]", nargs=-1, type=click.UNPROCESSED)
@click.option("-m", "module", cls=Module, metavar="MODULE",
              help="Run a module, as python -m does; what follows is for it.")  # fmt: skip
@click.option("--clip", metavar="TEXT", callback=policy_text, help="What happens to gradients before a step, such as "
              "'ClipByGlobalNorm(1.0)'; none leaves them alone.")  # fmt: skip
@click.option("--renorm", metavar="TEXT", callback=policy_text,
              help="What happens to weights after a step, such as 'MaxNorm(3.0)'; or none.")  # fmt: skip
@intervening()
@click.option("--script-clip", type=click.Choice(("keep", "replace")), default="keep", show_default=True,
              help="Whether the script's own clip_grad_norm_ and clip_grad_value_ act, or do nothing.")  # fmt: skip
@click.option("--halt-on", type=click.Choice(("error", "never")), default="never", show_default=True,
              help="End the script, with exit code 1, when a finding of that severity shows.")  # fmt: skip
@click.option("--every", metavar="N", type=Whole(1), default=10, show_default=True,
              help="Steps between measurements of weight norms and update ratios.")  # fmt: skip
@click.option("--total-steps", metavar="N", type=Whole(1),
              help="The length of the run, if known: MLflow then gets about 300 points of each curve.")  # fmt: skip
@click.option("--flush-every", metavar="SECONDS", type=Number(0, 86_400, min_open=True), default=5.0,
              show_default=True, help="Seconds of steps that a killed process may lose at most.")  # fmt: skip
@looking_inside()
@click.option("--metric-regex", "metric_regex", metavar="NAME=PATTERN", multiple=True, callback=pattern_texts,
              help="Log the number that PATTERN finds in a line of the script's output; again for more.")  # fmt: skip
@click.option("--higher-is-better", metavar="NAME", multiple=True,
              help="A value that is logged, whose name does not say that it should rise; again for more.")  # fmt: skip
@click.option("--lower-is-better", metavar="NAME", multiple=True, help="The same of one that should fall.")
@click.option("--log", metavar="mlflow|tensorboard|none", callback=trackers_text, default="mlflow", show_default=True,
              help="Deliver to one of them, to both with a comma, or keep the run in its files.")  # fmt: skip
@click.option("--delivery", type=click.Choice(("courier", "none")), default="courier", show_default=True,
              help="Deliver while the script runs, or leave that to gradwatch sync.")  # fmt: skip
@click.option("--experiment", metavar="NAME", help="The MLflow experiment. [default: MLflow's own setting]")
@click.option("--run-name", metavar="NAME", help="The run's name. [default: the script's]")
@click.option("--dir", "dir", metavar="DIR", default="gradwatch-runs", show_default=True,
              help="The folder that holds the run folders.")  # fmt: skip
@click.option("--set-seed", metavar="N", type=Whole(0), help="Seed random, numpy and torch with N.")
@click.option("--tag", "tag", metavar="KEY=VALUE", multiple=True, callback=pair_texts,
              help="An MLflow tag of the run; again for more.")  # fmt: skip
@click.option("--param", "param", metavar="KEY=VALUE", multiple=True, callback=pair_texts,
              help="A setting worth comparing; again for more.")  # fmt: skip
@click.option("--show-config", is_flag=True, help="Print what is in force and where it comes from, and run nothing.")
@click.pass_context
def run(ctx: click.Context, /, script: str | None, args: tuple[str, ...], module: str | None, **options: Any) -> None:
    """Run a training script as it is, watched: every optimizer that steps is recorded, and --clip decides.

    Options for gradwatch come before SCRIPT; all that follows it is the script's own.

    \b
    Example:
      gradwatch run train.py --lr 0.1
      gradwatch run --clip 'ClipByGlobalNorm(1.0)' --log none train.py
      gradwatch run --metric-regex 'accuracy=acc ([0-9.]+)' -m project.train
    """  # noqa: D301  (click reads the backspace)
    from gradwatch.cli import Handover
    from gradwatch.launcher.run import Plan
    from gradwatch.launcher.run import run as launch
    from gradwatch.launcher.script import find_program
    from gradwatch.launcher.stdout import parse_pattern
    from gradwatch.policies.intervention import given, skipping

    directions = _directions(options["higher_is_better"], options["lower_is_better"])
    if options["show_config"]:
        show_config(ctx, (name for name in ctx.params if name not in ("show_config", "script", "args", "module")))
        return
    target = module or script
    if target is None:
        raise RunError("no script: wanted gradwatch run [OPTIONS] SCRIPT [ARGS...], or -m MODULE")
    if module and script is not None:
        args = (script, *args)
    name = target.rpartition(".")[2] if module else Path(target).resolve().stem
    watch = {
        "clip": skipping(given(options["clip"])) if options["skip"] else given(options["clip"]),
        "renorm": given(options["renorm"]),
        "lr_scale": options["lr_scale"],
        "warmup": options["warmup"],
        "every": options["every"],
        "total_steps": options["total_steps"],
        "flush_every": options["flush_every"],
        **{name: options.get(f"{name}_of") or options[name] for name in INSIDE if not name.endswith("_of")},
        "split": as_split(options["split"]),
        "log": None if options["log"] == "none" else options["log"].split(","),
        "delivery": options["delivery"],
        "dir": str(_folder(options["dir"])),
        "run_name": options["run_name"] or name,
        "tags": pairs("tag", options["tag"]),
        "params": pairs("param", options["param"]),
        "higher_is_better": directions,
        "halt_on": None if options["halt_on"] == "never" else options["halt_on"],
    }
    plan = Plan(
        watch,
        experiment=options["experiment"],
        replace_clips=options["script_clip"] == "replace",
        metrics=tuple(parse_pattern(text) for text in options["metric_regex"]),
        source=target,
        seed=options["set_seed"],
        command=_command(target, bool(module), options),
    )
    raise Handover(functools.partial(launch, find_program(target, bool(module)), args, plan))


def _command(target: str, module: bool, options: dict[str, Any]) -> dict[str, Any]:
    """What is to be recorded of how this was started, so that it can be done again."""
    given = {flag: options[flag.strip("-").replace("-", "_")] for flag in REPEATED}
    words = [[flag, str(one)] for flag, value in given.items() if value is not None
             for one in (value if isinstance(value, tuple) else (value,))]  # fmt: skip
    flags = [f"--{name.replace('_', '-')}" for name in INSIDE if options[name] is True]
    return {
        "target": target,
        "module": module,
        "folder": str(Path.cwd()),
        "options": [*flags, *itertools.chain(*words)],
        "seed": options["set_seed"],
        "ranks": int(os.environ.get("WORLD_SIZE") or 1),
        "log": options["log"],
        "experiment": options["experiment"],
    }


def _directions(higher: tuple[str, ...], lower: tuple[str, ...]) -> dict[str, bool]:
    both = set(higher) & set(lower)
    if both:
        raise RunError(f"--higher-is-better and --lower-is-better both name {min(both)}: wanted one of them")
    return {**dict.fromkeys(higher, True), **dict.fromkeys(lower, False)}


def _folder(text: str) -> Path:
    """Where the run folders go, from the root on: the script may change its directory.

    Raises:
        RunError: no folder can be made there.
    """
    if not text.strip():
        raise RunError("--dir is empty; wanted a folder for the run, which may be new")
    path = Path(text).resolve()
    place = next(p for p in (path, *path.parents) if p.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        why = "cannot be written to" if place.is_dir() else "is no folder"
        raise RunError(f"--dir {text}: {place} {why}; wanted a folder for the run, which may be new")
    return path

"""`gradwatch batches`: the batches that a run's trouble came with."""

from __future__ import annotations

import json

import click

from gradwatch.cli.options import Whole


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--format", "kind", type=click.Choice(("text", "json")), default="text", show_default=True,
              help="How to print them; json: the list of numbers that gradwatch.skip and Lightning read.")  # fmt: skip
@click.option("--before", metavar="N", type=Whole(0), default=0, show_default=True,
              help="So many batches before each of them, too.")  # fmt: skip
def batches(run: str, kind: str, before: int) -> None:
    """List the batches of one run with which something went wrong at once.

    What the loop logged as batch (a number, or a list) is their number; without it, that of the step.

    \b
    Example:
      gradwatch batches latest
      gradwatch batches gradwatch-runs/20260131-120000-mlp --format json > skip_batches.json
      gradwatch batches latest --format json --before 1
    """  # noqa: D301  (click reads the backspace)
    from gradwatch.analysis.rules import diagnose
    from gradwatch.analysis.suspects import suspects
    from gradwatch.open_run import open_one
    from gradwatch.report.terminal import print_text

    history = open_one(run, "batches")
    found = suspects(history, diagnose(history))
    if any(not one.batch for one in found):
        click.echo("without a logged batch, the number of the step stands for it", err=True)
    if kind == "json":
        numbers = {number - back for one in found for number in one.batches for back in range(before + 1)}
        click.echo(json.dumps(sorted(number for number in numbers if number >= 0), indent=4))
        return
    for one in found:
        data = ("batch", one.batches), ("sample", one.sample), ("shard", one.shard)
        said = "  ".join(f"{name} {', '.join(map(str, numbers))}" for name, numbers in data if numbers)
        print_text(f"step {one.step}  {said}  {one.why}\n")
    if not found:
        print_text("no step went wrong at once\n")

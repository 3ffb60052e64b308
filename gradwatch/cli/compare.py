"""`gradwatch compare`: the comparison table in the terminal."""

from __future__ import annotations

import click

from gradwatch.cli.options import Number, together

FORMATS = ("text", "csv", "md", "json")


compared_by = together(  # of every command that compares runs
    click.option("--metric", metavar="NAME", help="Compare by this logged value alone."),
    click.option("--baseline", metavar="POLICY", help="Compare with this policy. [default: none]"),
    click.option("--target", type=Number(), metavar="VALUE", help="Also the steps until the metric reached VALUE."),
    click.option("--higher-is-better/--lower-is-better", "rises", default=None,
                 help="Which way the metric is meant to go. [default: as its name says]"),
)  # fmt: skip


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@compared_by
@click.option("--format", "kind", type=click.Choice(FORMATS), default="text", show_default=True,
              help="How to print it.")  # fmt: skip
def compare(
    runs: tuple[str, ...], metric: str | None, baseline: str | None, target: float | None, rises: bool | None, kind: str
) -> None:
    """Compare runs: one row per policy, and which one is better.

    Runs that differ only in their seed share a row, with means, 95 % intervals over the seeds, and a verdict.

    \b
    Example:
      gradwatch compare experiment:mnist
      gradwatch compare gradwatch-runs/* --metric val_loss --target 1.8
      gradwatch compare gradwatch-runs/* --format json
    """  # noqa: D301  (click reads the backspace)
    from gradwatch.analysis.comparison import settle
    from gradwatch.open_run import open_steps
    from gradwatch.report.terminal import print_shown, show_comparison
    from gradwatch.report.text import comparison_text

    settled = settle(open_steps(runs), metric, baseline, target, rises)
    if kind == "text":
        print_shown(show_comparison(settled))
    else:
        click.echo(comparison_text(settled, kind), nl=False)

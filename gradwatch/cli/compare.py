"""`gradwatch compare`: the comparison table in the terminal."""

from __future__ import annotations

import click


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--metric", metavar="NAME", help="Compare by this logged value alone.")
def compare(runs: tuple[str, ...], metric: str | None) -> None:
    """Compare runs in the terminal: one row per policy.

    Runs that differ only in their seed share a row, with mean and standard deviation.

    \b
    Example:
      gradwatch compare experiment:mnist
      gradwatch compare gradwatch-runs/* --metric val_loss
    """  # noqa: D301  (click reads the backspace)
    from gradwatch.compare import compare as compare_runs
    from gradwatch.report.text import print_table, show_comparison
    from gradwatch.stores import open_histories

    print_table(show_comparison(compare_runs(open_histories(runs), metric)))

"""`gradwatch show`: one run in the terminal."""

from __future__ import annotations

import click


@click.command()
@click.argument("run", metavar="RUN")
def show(run: str) -> None:
    """Show one run: verdict, layers, norms, clip rates.

    \b
    Example:
      gradwatch show latest
      gradwatch show gradwatch-runs/20260131-120000-mlp
    """  # noqa: D301  (click reads the backspace)
    from gradwatch.errors import RunError
    from gradwatch.open_run import open_histories
    from gradwatch.report.model import build_report
    from gradwatch.report.terminal import print_shown, show_run

    histories = open_histories([run], empty=True)
    if len(histories) != 1:
        raise RunError(f"{run} is {len(histories)} runs, and show wants one: use gradwatch compare {run}")
    print_shown(show_run(build_report(histories).runs[0]))

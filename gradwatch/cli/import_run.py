"""`gradwatch import`: a run that gradwatch never saw, from what another tool logged of it."""

from __future__ import annotations

from pathlib import Path

import click

from gradwatch.cli.options import pairs

MOST_NAMES = 20  # of what was logged that are listed


@click.command("import")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--name", metavar="NAME", help="The run's name. [default: that of the file and its folder]")
@click.option("--dir", "directory", metavar="DIR", type=click.Path(path_type=Path), default="gradwatch-runs",
              show_default=True, help="The folder that gets the run folder.")  # fmt: skip
@click.option("--param", "params", metavar="KEY=VALUE", multiple=True,
              help="A setting of the run worth comparing, such as seed=1; again for more.")  # fmt: skip
def import_run(file: Path, name: str | None, directory: Path, params: tuple[str, ...]) -> None:
    """Make a run folder of a log: show, check, compare and report judge it by its totals, for it has no layers.

    FILE is Hugging Face's trainer_state.json, TensorBoard's event file or a CSV file such as Lightning's metrics.csv,
    or a folder that holds one.

    \b
    Example:
      gradwatch import checkpoint-500/trainer_state.json
      gradwatch import lightning_logs/version_0 --param seed=1
    """  # noqa: D301  (click reads the backspace)
    from gradwatch.formatting import listed
    from gradwatch.open_run import open_history
    from gradwatch.report.terminal import print_text
    from gradwatch.sanitize import terminal
    from gradwatch.tracking.imports.run_import import import_run

    folder, notes = import_run(file, directory, name, pairs("param", params))
    history = open_history(folder)
    found = listed([key for key in ("grad_norm", "lr", *history.logged) if key in history.per_step], MOST_NAMES)
    print_text(terminal(f"{folder}: {len(history):,} logged steps of {found}"))
    for note in notes:
        click.echo(terminal(f"note: {note}"), err=True)
    print_text(terminal(f"gradwatch show {folder}"))

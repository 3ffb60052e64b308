"""`gradwatch show`: one run in the terminal, as it is, or while it goes on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--follow", "following", is_flag=True,
              help="Stay and show the run in folder RUN as it goes on, until it ends or Ctrl-C.")  # fmt: skip
@click.option("--frames", is_flag=True,
              help="As --follow, for a notebook: each look is a line of JSON, a MIME bundle.")  # fmt: skip
@click.option("--all", "everything", is_flag=True,
              help="List every layer and threshold; of many, a terminal shows those that say most.")  # fmt: skip
def show(run: str, following: bool, frames: bool, everything: bool) -> None:
    """Show one run: verdict, layers, norms, clip rates.

    \b
    Example:
      gradwatch show latest
      gradwatch show gradwatch-runs/20260131-120000-mlp
      gradwatch show latest --follow
      gradwatch show latest --all
    """  # noqa: D301  (click reads the backspace)
    from gradwatch.open_run import folder_to_follow, open_one
    from gradwatch.report.build import build_report
    from gradwatch.report.terminal import PIPE, make_console, print_shown, show_run

    if following or frames:
        folder = folder_to_follow(run)
        (_frames if frames else _screen if make_console().is_terminal else _lines)(folder)
        return
    history = open_one(run, "show", f"use gradwatch compare {run}", empty=True)
    into_a_pipe = make_console().width == PIPE
    print_shown(show_run(build_report([history]).runs[0], run, everything or into_a_pipe))


def _screen(folder: Path) -> None:
    """One screen that is drawn anew; what it showed last stays in the terminal when it is left."""
    from rich.console import RenderableType
    from rich.live import Live
    from rich.text import Text

    from gradwatch.report.live_view import LiveView
    from gradwatch.report.terminal import make_console
    from gradwatch.tracking.live_findings import looks

    console = make_console()
    shown: RenderableType = Text(f"{folder}: no step is on disk yet; Ctrl-C ends this view, not the run.")
    try:
        with Live(shown, console=console, screen=True, refresh_per_second=2) as live:
            for look in looks(folder, writes=False):
                if look.history is not None and len(look.history):
                    shown = LiveView(look.history, look.findings or ())
                    live.update(shown)
    finally:
        console.print(shown)


def _frames(folder: Path) -> None:
    """What a notebook displays of each look that shows something new."""
    from rich.console import RenderableType
    from rich.text import Text

    from gradwatch.report.live_view import LiveView, mime_bundle
    from gradwatch.tracking.live_findings import looks

    shown: RenderableType = Text(f"{folder}: no step is on disk yet.")
    before = ""
    for look in looks(folder, writes=False):
        if look.history is not None and len(look.history):
            shown = LiveView(look.history, look.findings or ())
        line = json.dumps(mime_bundle(shown))
        if line != before:
            print(line, flush=True)
        before = line


def _lines(folder: Path) -> None:
    """A line for each look that has new steps, and each finding as it comes: for a log or a pipe."""
    from gradwatch.report.live_view import news, plain_line
    from gradwatch.report.terminal import print_shown, print_text
    from gradwatch.tracking.live_findings import looks

    line, known = "", set[tuple[str, ...]]()
    for look in looks(folder, writes=False):
        if look.history is None or not len(look.history):
            continue
        before, line = line, plain_line(look.history)
        if line != before:
            print_text(line)
        print_shown(news(look.findings or (), known))

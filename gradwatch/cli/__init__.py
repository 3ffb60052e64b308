"""The command line: one file per command, imported only when that command is used."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from gradwatch._version import __version__
from gradwatch.errors import GradwatchError, no_room_said
from gradwatch.sanitize import public_text, terminal
from gradwatch.tracking.settings import MLFLOW_SETTINGS

COMMANDS = {
    "run": "Run a training script as it is, watched: no edits.",
    "sweep": "Train a script under several policies and seeds, and compare them.",
    "demo": "Train two small networks under several policies and compare them.",
    "report": "Write a report of one run, or one that compares many.",
    "compare": "Compare runs: one row per policy, and which one is better.",
    "check": "Check one run for findings, as a gate for CI.",
    "show": "Show one run: verdict, layers, norms, clip rates.",
    "batches": "List the batches that a run's trouble came with.",
    "export": "Export one run to TensorBoard, CSV, Parquet, W&B or Trackio.",
    "import": "Make a run of what another tool logged, and judge it.",
    "sync": "Deliver recorded runs to MLflow.",
    "monitor": "Keep a tracking server's findings and reports up to date.",
    "ui": "Open the MLflow UI on the runs, with the right charts.",
}

FILES = {"import": "import_run"}  # a command that is a word of Python's own
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # what a disk says of a file that is written to
OF_SCRIPTS = ("run", "sweep")  # what these start is the user's own, and so are its settings of MLflow


class Failure(click.ClickException):
    """One line on stderr and exit code 2, no traceback."""

    exit_code = 2


def _in_one_line(error: click.UsageError) -> click.ClickException:
    """What click says in four lines; a command without arguments is its help, as ever."""
    help_asked_for = getattr(click.exceptions, "NoArgsIsHelpError", ())  # of click 8.2 and later
    if isinstance(error, help_asked_for) or error.ctx is None:
        return error
    usage = " ".join(error.ctx.get_usage().removeprefix("Usage: ").split())
    message = " ".join(error.format_message().split()).rstrip(".")
    return Failure(f"{message}; wanted {usage} ({error.ctx.command_path} --help says more)")


class Handover(BaseException):
    """Something to do when click is done, which would take a script's exceptions for its own."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then


class Commands(click.Group):
    """A group whose help needs none of its commands: torch, MLflow and pandas take seconds to import."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Click's own, with the command that may have been meant."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from gradwatch.policies.grammar import likely_name

            near = likely_name(args[0], COMMANDS)
            ctx.fail(f"there is no command {args[0]!r}{f', did you mean {near}?' if near else ''}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which a new user meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command `name`, from the file of that name."""
        if name not in COMMANDS:
            return None
        file = FILES.get(name, name)
        command: click.Command = getattr(importlib.import_module(f"gradwatch.cli.{file}"), file)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One line for each command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Click's own, with its errors in one line."""
        try:
            return super().make_context(*args, **extra)
        except click.UsageError as error:
            raise _in_one_line(error) from error

    def main(self, *args: Any, **extra: Any) -> Any:
        """Click's own; then whatever a command has left to do outside of click."""
        try:
            return super().main(*args, **extra)
        except Handover as handover:
            then = handover.then
        except OSError as error:
            if error.errno not in NO_ROOM or error.filename is not None:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left of it is written once more at exit
            Failure(f"cannot write to standard output: {error.strerror}").show()
            sys.exit(Failure.exit_code)
        return then()

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what click or gradwatch raises on purpose becomes one line."""
        try:
            with no_room_said():
                return super().invoke(ctx)
        except click.UsageError as error:
            raise _in_one_line(error) from error
        except GradwatchError as error:
            raise Failure(terminal(public_text(" ".join(str(error).split())))) from error
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise Failure(f"{terminal(str(error.filename))[:60]}...: {error.strerror}") from error
        except MemoryError as error:
            raise Failure(
                f"there is not enough memory for this: {terminal(str(error)) or 'nothing was read'}"
            ) from error
        except KeyboardInterrupt:
            ctx.exit(130)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gradwatch")
@click.pass_context
def main(ctx: click.Context) -> None:
    """gradwatch: see every layer's gradient, clip it, and prove in MLflow which policy works.

    RUN is a run folder, an MLflow run id, experiment:NAME, or latest.
    """
    if ctx.invoked_subcommand != "run":  # there it is the script's own
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
                stream.reconfigure(errors="replace")  # of a terminal that has not all of Unicode
    for name, value in () if ctx.invoked_subcommand in OF_SCRIPTS else MLFLOW_SETTINGS.items():
        os.environ.setdefault(name, value)

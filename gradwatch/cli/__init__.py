"""The command line: one file per command, imported only when that command is used."""

from __future__ import annotations

import importlib
import os
from typing import Any

import click

from gradwatch import __version__
from gradwatch.errors import GradwatchError

COMMANDS = {
    "demo": "Train two small networks under several policies and compare them.",
    "report": "Write a report of one run, or one that compares many.",
    "compare": "Compare runs: one row per policy, and which one is better.",
    "check": "Check one run for findings, as a gate for CI.",
    "show": "Show one run: verdict, layers, norms, clip rates.",
    "sync": "Deliver recorded runs to MLflow.",
    "ui": "Open the MLflow UI on the runs, with the right charts.",
}
# MLflow's own retries block a call for up to 20 minutes; the courier has its own, between passes.
MLFLOW_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


class Failure(click.ClickException):
    """One line on stderr and exit code 2, no traceback."""

    exit_code = 2


class Commands(click.Group):
    """A group whose help needs none of its commands: torch, MLflow and pandas take seconds to import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which a new user meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command `name`, from the file of that name."""
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"gradwatch.cli.{name}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One line for each command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what gradwatch raises on purpose becomes one line."""
        try:
            return super().invoke(ctx)
        except GradwatchError as error:
            raise Failure(" ".join(str(error).split())) from error
        except KeyboardInterrupt:
            ctx.exit(130)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gradwatch")
def main() -> None:
    """gradwatch: see every layer's gradient, clip it, and prove in MLflow which policy works.

    RUN is a run folder, an MLflow run id, experiment:NAME, or latest.
    """
    for name, value in MLFLOW_SETTINGS.items():
        os.environ.setdefault(name, value)

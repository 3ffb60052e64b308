"""Settings from `gradwatch.toml`, or `[tool.gradwatch]` in `pyproject.toml`; the command line wins over both."""

from __future__ import annotations

import contextlib
import importlib
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from gradwatch.errors import GradwatchError, RunError
from gradwatch.sanitize import MAX_SETTINGS_FILE, public_uri

WORDS = "gradwatch.words"  # in a context's meta: what stands behind the command, as it was given
ENVIRONMENT = ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", "MLFLOW_RUN_ID")
FILE, PROJECT = "gradwatch.toml", "pyproject.toml"
MAX_DOTS = 1_000  # in a line: tomllib takes a time that grows with the square of a key's


@dataclass(frozen=True)
class Config:
    """What one file says: the settings of `run`, and a table for each other command."""

    path: Path | None = None
    table: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, command: str, known: Iterable[str]) -> dict[str, Any]:
        """The settings of `command`, by the names of its options (`run_name`). Those of `run` stand at the top.

        Other commands take those of `run` that they know too, and their own table wins.

        Raises:
            RunError: a setting is not among `known`, or there twice.
        """
        known = sorted(known)
        top = {k: v for k, v in self.table.items() if k != "sweep"}
        own = {} if command == "run" else self.table.get(command, {})
        if not isinstance(own, Mapping):
            raise RunError(f"{self.path}: {command} = {own!r}: wanted a table, [{command}]")
        self._refuse(top if command == "run" else own, known, "" if command == "run" else f"{command}.")
        return {_name(k): v for k, v in {**top, **own}.items() if _name(k) in known}

    def _refuse(self, found: Iterable[str], known: list[str], prefix: str) -> None:
        unknown = [key for key in found if _name(key) not in known]
        if unknown:
            listed = ", ".join(known).replace("_", "-")
            raise RunError(f"{self.path}: there is no setting {prefix}{unknown[0]}; known: {listed}")
        names = [_name(key) for key in found]
        twice = next((key for key in found if names.count(_name(key)) > 1), None)
        if twice is not None:
            raise RunError(f"{self.path}: {prefix}{twice} is set twice, with - and with _; wanted one of them")


def find_config(start: Path | None = None) -> Config:
    """The nearest file, in the working directory or above it; an empty Config without one.

    Raises:
        RunError: it cannot be read, or is no TOML.
    """
    folder = (start or Path.cwd()).resolve()
    for parent in (folder, *folder.parents):
        if os.path.lexists(parent / FILE):
            return Config(parent / FILE, _load(parent / FILE))
        if os.path.lexists(parent / PROJECT):
            tools = _load(parent / PROJECT).get("tool")
            table = tools.get("gradwatch") if isinstance(tools, Mapping) else None
            if table is not None and not isinstance(table, Mapping):
                raise RunError(f"{parent / PROJECT}: tool.gradwatch = {table!r}: wanted a table, [tool.gradwatch]")
            if table is not None:
                return Config(parent / PROJECT, table)
    return Config()


def _name(key: str) -> str:
    return key.replace("-", "_")


def _load(path: Path) -> dict[str, Any]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        text = _read(path)
        if any(line.count(".") > MAX_DOTS for line in text.splitlines()):
            raise RecursionError
        table: dict[str, Any] = toml.loads(text)
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
    except RecursionError:
        raise RunError(f"{path} cannot be read: it is nested too deeply") from None
    return table


def _read(path: Path) -> str:
    """The text of a file that may be a link, but to no pipe, device or folder, and is not huge."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is no file; remove it, or put the settings in its place")
    if found.st_size > MAX_SETTINGS_FILE:
        raise ValueError(f"it has {found.st_size:,} bytes, and at most {MAX_SETTINGS_FILE:,} are read")
    return path.read_text(encoding="utf-8-sig")


# ---------------------------------------------------------------------------------------------------- commands


class Configured(click.Command):
    """A command whose options may also be set in `gradwatch.toml` or `pyproject.toml`."""

    config = Config()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the file's settings for what the command line leaves out. `--help` needs none, so it ends before."""
        problem = None
        ctx.meta[WORDS] = tuple(args)
        try:
            self.config = find_config()
            values = self.config.settings(str(self.name), self.settable())
            ctx.default_map = _as_typed(self, values, self.config)
        except RunError as error:
            problem = error
        try:
            left = super().parse_args(ctx, args)
        except click.BadParameter as error:
            name = error.param.name if error.param else None
            if name is None or ctx.get_parameter_source(name) is not ParameterSource.DEFAULT_MAP:
                raise
            raise RunError(f"{self.config.path}: {name} = {values[name]!r}: {error.message}") from None
        if problem is not None:
            raise problem
        return left

    def settable(self) -> list[str]:
        """The names of the options that a file may set."""
        skipped = {"show_config", "module", "help"}
        return [str(p.name) for p in self.params if isinstance(p, click.Option) and p.name not in skipped]


def _as_typed(command: click.Command, values: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """The settings of a file as the words that they are on a command line, so that the same is refused.

    Raises:
        RunError: one is a list that should be none, or the other way, or no text, number, true or false.
    """
    many = {p.name for p in command.params if getattr(p, "multiple", False)}
    out: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, list) != (name in many):
            one = isinstance(value, str | int | float)
            wanted = (f"a list, [{_shown(value)}]" if one else "a list of texts") if name in many else "one value"
            raise RunError(f"{config.path}: {name} = {_shown(value)}: wanted {wanted}")
        words = [_word(f"{config.path}: {name}", one) for one in (value if name in many else [value])]
        out[name] = words if name in many else words[0]
    return out


def _word(where: str, value: Any) -> str:
    small = not isinstance(value, int) or abs(value) < 2**63
    if not isinstance(value, str | int | float) or not small or "\0" in str(value):
        raise RunError(f"{where} = {_shown(value)}: wanted a text, a number, true or false")
    return str(value)


def _shown(value: Any) -> str:
    """What a file says, short: to write a huge number out raises."""
    if isinstance(value, int) and abs(value) >= 2**63:
        return "a huge number"
    shown = repr(value) if isinstance(value, str | int | float) else f"a {type(value).__name__}"
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


@contextlib.contextmanager
def of_the_file(ctx: click.Context, param: click.Parameter) -> Iterator[None]:
    """Have what is wrong with a setting of the file be said as that, and of the command line as it is."""
    try:
        yield
    except GradwatchError as error:
        if ctx.get_parameter_source(str(param.name)) is ParameterSource.DEFAULT_MAP:
            raise click.BadParameter(str(error), ctx, param) from None
        raise


def show_config(ctx: click.Context, names: Iterable[str]) -> None:
    """Print what is in force, a setting a line, and where each comes from."""
    command = ctx.command
    path = command.config.path if isinstance(command, Configured) else None
    for name in names:
        source = ctx.get_parameter_source(name)
        where = {ParameterSource.COMMANDLINE: "command line", ParameterSource.DEFAULT_MAP: str(path)}
        value = ctx.params[name]
        text = list(value) if isinstance(value, tuple) else value
        click.echo(f"{name} = {text!r}  # {where.get(source, 'default') if source else 'default'}")
    for name in ENVIRONMENT:
        if name in os.environ:
            click.echo(f"{name} = {public_uri(os.environ[name])!r}  # environment")

"""What several commands share: settings from a file beside those of the command line, and how a service logs."""

from __future__ import annotations

import importlib.util
import logging
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

from gradwatch.cli.config import of_the_file
from gradwatch.errors import RunError
from gradwatch.sanitize import MAX_STEP, public_text
from gradwatch.storage.places import TRACKERS

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Module(click.Option):
    """`-m MODULE`: as for Python itself, what follows the module's name is for the module."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Have the parser leave everything behind the value alone, as behind a `--`."""
        super().add_to_parser(parser, ctx)
        option = parser._short_opt["-m"]
        process = option.process

        def process_and_stop(value: Any, state: Any) -> None:
            process(value, state)
            state.rargs.insert(0, "--")

        option.process = process_and_stop


class Whole(click.IntRange):
    """A whole number, called so in errors."""

    name = "whole number"


class Number(click.FloatRange):
    """A number in a range, which NaN and infinity are not."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        out = float(super().convert(value, param, ctx))
        if not math.isfinite(out):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return out

    def _describe_range(self) -> str:
        """The range in --help; click writes `x<=None` where there is none."""
        return "" if self.min is None and self.max is None else super()._describe_range()


class NumberOrRange(click.ParamType):  # type: ignore[type-arg]  # has none in earlier releases of click
    """A number of the type `number`, or a range of such."""

    name = "number"

    def __init__(self, number: Number | click.IntRange, whole: bool = False) -> None:
        self.number, self.whole = number, whole

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, or the `Range`."""
        from gradwatch.launcher.search_space import Range

        found = Range.read(value, self.whole) if isinstance(value, str) else None
        if found is None:
            return self.number.convert(value, param, ctx)
        ends: Any = (found.low, found.high)
        for end in ends:
            self.number.convert(int(end) if self.whole else end, param, ctx)
        return found


def trackers_text(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """What a run is delivered to: `mlflow`, `tensorboard`, both with a comma between them, or `none`."""
    if value is None:
        return None
    words = [word.strip() for word in value.split(",")]
    if words != ["none"] and not {*words} <= {*TRACKERS}:
        raise click.BadParameter(f"{value!r}: wanted {', '.join(TRACKERS)}, both with a comma, or none")
    if "tensorboard" in words and importlib.util.find_spec("tensorboard") is None:
        raise click.BadParameter("tensorboard is not installed: pip install 'gradwatch[tensorboard]'")
    return ",".join(words)


def policy_text(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """The text of a policy, or several, as they are: nothing slow is imported before what makes no sense is refused.

    Raises:
        PolicyError: it is no policy, or one for the other role.
    """
    from gradwatch.policies.grammar import as_policy
    from gradwatch.policies.intervention import given

    role = str(param.name).removesuffix("s")  # `clip` of one script, `clips` of a sweep
    with of_the_file(ctx, param):
        for text in (value,) if isinstance(value, str) else value or ():
            as_policy(given(text), role)
    return value


def pair_texts(ctx: click.Context, param: click.Parameter, value: Sequence[str]) -> Sequence[str]:
    """Texts that `pairs` takes, as they are."""
    with of_the_file(ctx, param):
        pairs(str(param.name), value)
    return value


def pattern_texts(ctx: click.Context, param: click.Parameter, value: Sequence[str]) -> Sequence[str]:
    """Texts that `parse_pattern` takes, as they are."""
    from gradwatch.launcher.stdout import parse_pattern

    with of_the_file(ctx, param):
        for text in value:
            parse_pattern(text)
    return value


def template_text(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """The texts of policies, which may have ranges in the place of numbers, as they are.

    Raises:
        PolicyError: one is no policy, or one for the other role.
        RunError: the ends of a range are not in order.
    """
    from gradwatch.launcher.search_space import Template

    with of_the_file(ctx, param):
        for text in value:
            Template.read(text, str(param.name).removesuffix("s"))  # `clips`
    return value


def together(*options: Callable[[Any], Any]) -> Callable[[Decorated], Decorated]:
    """These options, in this order, as one decorator."""

    def decorate(command: Decorated) -> Decorated:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def intervening(many: bool = False) -> Callable[[Decorated], Decorated]:
    """The options that change a training, beside --clip and --renorm; `many`: once for each that is compared."""
    again, ends = ("; again for each", "s") if many else ("", "")
    factor, count = Number(0, min_open=True), Whole(0, MAX_STEP)
    scale: dict[str, Any] = {"type": factor, "show_default": True, "default": 1.0}
    steps: dict[str, Any] = {"type": count, "show_default": True, "default": 0}
    if many:
        scale = {"type": NumberOrRange(factor), "multiple": True}
        steps = {"type": NumberOrRange(count, whole=True), "multiple": True}
    return together(
        click.option("--lr-scale", "lr_scale" + ends, metavar="F",
                     help=f"Learning rates times F in each step, beside the script's own schedule{again}.", **scale),
        click.option("--warmup", "warmup" + ends, metavar="N",
                     help=f"Learning rates that rise linearly over the first N steps, beside that{again}.", **steps),
        click.option("--skip/--no-skip", help="Leave out steps that are non-finite or a spike: SkipNonfinite() and "
                     f"SkipSpike(), before {'each' if many else 'the'} --clip."),
    )  # fmt: skip


# What is recorded besides, by the names of the arguments of `watch`; that ending in _of is of the one before it
INSIDE = ("slots", "activations", "activations_of", "activations_every", "noise_scale", "histogram_every",
          "singular_values", "singular_values_of", "split", "rows")  # fmt: skip


def looking_inside(as_for_run: bool = False) -> Callable[[Decorated], Decorated]:
    """The options that record more of a training; `as_for_run`: of a command that sends its reader to `run`."""

    def option(*names: str, said: str, **settings: Any) -> Callable[[Decorated], Decorated]:
        default = settings.pop("default", None)
        shown = f"As for run.{f'  [default: {default}]' if default else ''}" if as_for_run else said
        settings |= {} if as_for_run or default is None else {"default": default, "show_default": True}
        return click.option(*names, help=shown, **settings)

    return together(
        option("--slots", is_flag=True, said="Record the optimizer's own tensors, and the size of every update."),
        option("--activations", is_flag=True, said="Record what the model's blocks and non-linearities give out."),
        option("--activations-of", metavar="PATTERN", multiple=True,
               said="The same of the modules with such names, as '*.attn'; again for more."),
        option("--activations-every", metavar="N", type=Whole(1), default=50,
               said="Steps between two in which activations are measured."),
        option("--singular-values", is_flag=True,
               said="Record the largest singular value and the stable rank of all weight matrices."),
        option("--singular-values-of", metavar="PATTERN", multiple=True,
               said="The same of the weights with such names, as '*.attn.*'; again for more."),
        option("--histogram-every", metavar="N", type=Whole(1),
               said="Record a histogram of each layer's gradient every N steps."),
        option("--noise-scale", is_flag=True,
               said="Record the norm of each step's first micro-batch, for the gradient noise scale."),
        option("--split", metavar="PATTERN=DIM[/PIECES]", multiple=True, callback=split_texts,
               said="Take the slices of such tensors for layers, as '*.experts.*=0'; again for more."),
        option("--rows", metavar="PATTERN", multiple=True,
               said="Record the largest row of the gradients of such layers, as '*embed*'; again for more."),
    )  # fmt: skip


def split_texts(ctx: click.Context, param: click.Parameter, value: Sequence[str]) -> Sequence[str]:
    """Texts that `as_split` takes, as they are."""
    try:
        as_split(value)
    except RunError as error:
        raise click.BadParameter(str(error)) from None
    return value


def as_split(texts: Iterable[str]) -> dict[str, int | tuple[int, int]]:
    """What was given of --split, as watch() takes it: `*.experts.*=0`, `*.q_proj.weight=0/12`.

    Raises:
        RunError: a text is no such.
    """
    found: dict[str, int | tuple[int, int]] = {}
    for text in texts:
        known = re.fullmatch(r"(.+)=(-?\d{1,4})(?:/(\d{1,9}))?", text)
        if known is None:
            raise RunError(f"{text!r}: wanted PATTERN=DIM, such as '*.experts.*=0', or PATTERN=DIM/PIECES")
        pattern, dim, pieces = known.groups()
        found[pattern] = int(dim) if pieces is None else (int(dim), int(pieces))
    return found


def pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """What was given of an option as KEY=VALUE.

    Raises:
        RunError: a text is no such.
    """
    found = {text: text.partition("=") for text in texts}
    for text, (key, equals, _) in found.items():
        if not (key and equals):
            raise RunError(f"--{option} {text!r}: wanted KEY=VALUE")
    return {key: value for key, _, value in found.values()}


class PublicFormatter(logging.Formatter):
    """Lines without the passwords of the addresses in them, whoever logs: a library's words, a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, or lines."""
        return public_text(super().format(record))


def log_to_stdout() -> None:
    """Have a command that runs for long log to standard output."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(PublicFormatter("%(asctime)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("gradwatch").setLevel(logging.INFO)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # a server that is away is one line a pass, not three

"""Runs and comparisons in the terminal, at its width."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group

from gradwatch.analysis.comparison import Comparison
from gradwatch.analysis.rules import TOO_SHORT, has_no_findings
from gradwatch.analysis.verdict import Winner
from gradwatch.analysis.whatif import Outcome
from gradwatch.report.activations import HEADERS, RANKS, module_cells, outlying
from gradwatch.report.comparison_table import Column, columns, conclusion, reasons
from gradwatch.report.fitted_table import Facts, FittedTable, Lines
from gradwatch.report.model import LayerSummary, RunSummary
from gradwatch.report.text import LAYER_HEADERS, layer_cells
from gradwatch.report.wording import (
    WHAT_IF_HEADERS,
    caveat,
    facts,
    finding_lines,
    layer_note,
    suggestion_lines,
    verdict_text,
    what_if_cells,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

PIPE = 10_000  # columns: into a pipe or a file nothing is wrapped or left out
MAX_LAYER_ROWS = 1_000
FEW_LAYERS = 20  # that many a terminal shows
LAYER_RANKS = (0, 0, 2, 1, 3, 5, 4)  # of LAYER_HEADERS
MEASURES = ("median_grad_norm", "max_grad_norm", "update_ratio")  # of a layer, that tell whether it stands out
WHAT_IF_RANKS = (0, 2, 0, 1)
MILD = 0.01  # of the steps: what a threshold changes that leaves healthy ones alone
IN_CSV = "gradwatch report --format csv has them."


def make_console(stderr: bool = False) -> Console:
    """A console as wide as the terminal, or as COLUMNS says; for a pipe or a file so wide that nothing is wrapped."""
    console = Console(highlight=False, soft_wrap=False, stderr=stderr)
    if console.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return console
    return Console(highlight=False, stderr=stderr, width=PIPE)


def print_shown(shown: RenderableType) -> None:
    """Print to standard output; a word that is wider than the terminal is left whole."""
    make_console().print(shown, crop=False)


def print_text(text: str) -> None:
    """Print lines of text, wrapped between words; what follows a wrapped line is indented as it is."""
    print_shown(Lines(text.splitlines()))


def show_run(run: RunSummary, ref: str = "RUN", everything: bool = True) -> RenderableType:
    """One run: findings first, the suggestion, head, problems, layers, what-if.

    Without `everything`, of many layers those that stand out, and of what-if a line for each kind of policy; what
    scrolled away stands at the end again.
    `ref` is what the user calls the run.
    """
    style = "" if has_no_findings(run.verdict) else "yellow" if run.verdict == TOO_SHORT else "bold red"
    verdict = ("verdict", verdict_text(run), style)
    head = Facts([verdict, *((word, value, "") for word, value in facts(run))])
    findings = [line for finding in run.findings for line in ("", *finding_lines(finding))]
    advice = [line for suggestion in run.suggestions for line in ("", *suggestion_lines(suggestion))]
    problems = Lines([f"incomplete: {problem}" for problem in run.problems], "yellow")
    again: list[RenderableType] = []
    if len(run.layers) > FEW_LAYERS:
        again = [
            Lines(["", f"verdict: {verdict_text(run)}"], style),
            Lines([f"charts: gradwatch report {shlex.quote(ref)}"]),
        ]
    return Group(
        Lines([run.name], "bold"), head, Lines([*findings, *advice]), problems, *_notes(run.reduced), Lines([""]),
        *_layers(run, ref, everything), *_modules(run), *_what_if(run, ref, everything), *again,
    )  # fmt: skip


def _layers(run: RunSummary, ref: str, every: bool) -> Iterable[RenderableType]:
    few = not every and len(run.layers) > FEW_LAYERS
    shown = standing_out(run) if few else run.layers[:MAX_LAYER_ROWS]
    left = len(run.layers) - len(shown)
    if few:
        yield Lines([f"The {len(shown)} layers that stand out most, in model order"], "bold")
    if shown:
        yield FittedTable(LAYER_HEADERS, layer_cells(shown), LAYER_RANKS, elsewhere=IN_CSV)
    yield from _notes(layer_note(run))
    if few:
        yield from _notes(f"{left:,} more layers: gradwatch show --all {shlex.quote(ref)}")
    elif left:
        yield from _notes(f"{left:,} more layers are left out here; gradwatch report --format csv lists all.")


def standing_out(run: RunSummary, most: int = FEW_LAYERS) -> tuple[LayerSummary, ...]:
    """The layers, in model order, with inf or NaN, of a finding, or farthest in decades from the other layers."""
    found = {name for finding in run.findings for name in finding.layers}
    usual = {column: _median(getattr(layer, column) for layer in run.layers) for column in MEASURES}

    def badness(layer: LayerSummary) -> tuple[bool, bool, float]:
        apart = sum(_decades(getattr(layer, column), usual[column]) for column in MEASURES)
        return layer.nonfinite > 0, layer.name in found, apart

    worst = {layer.name for layer in sorted(run.layers, key=badness, reverse=True)[:most]}
    return tuple(layer for layer in run.layers if layer.name in worst)


def _median(values: Iterable[float]) -> float:
    known = sorted(value for value in values if 0 < value < math.inf)
    return known[len(known) // 2] if known else math.nan


def _decades(value: float, usual: float) -> float:
    """How many powers of ten lie between them; 10 for an exact zero, 0 where one is not known."""
    if value == 0:
        return 10.0
    return abs(math.log10(value / usual)) if 0 < value < math.inf and usual > 0 else 0.0


def _modules(run: RunSummary) -> Iterable[RenderableType]:
    if run.modules:
        shown = outlying(run.modules)
        yield Lines(["", "Activations of the modules that stand out most, in the last tenth of the run"], "bold")
        yield FittedTable(HEADERS, module_cells(shown), RANKS)
        if len(run.modules) > len(shown):
            yield from _notes(f"{len(shown)} of {len(run.modules)} modules; gradwatch report --format json has all.")


def _what_if(run: RunSummary, ref: str, everything: bool) -> Iterable[RenderableType]:
    if not run.what_if:
        return
    shown = run.what_if if everything else mildest(run.what_if)
    yield Lines(["", "What another threshold would have done"], "bold")
    yield FittedTable(WHAT_IF_HEADERS, what_if_cells(shown), WHAT_IF_RANKS, left=2)
    left = len(run.what_if) - len(shown)
    yield from _notes(caveat(run), f"{left} more thresholds: gradwatch show --all {shlex.quote(ref)}" if left else "")


def mildest(outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Of each kind of policy, and of each optimizer, the one that changes the share of steps nearest to `MILD`."""
    nearest: dict[tuple[str, str], Outcome] = {}
    for one in sorted(outcomes, key=lambda one: abs(one.clip_rate - MILD)):
        nearest.setdefault((one.optimizer, one.kind), one)
    return tuple(one for one in outcomes if one in nearest.values())


def _notes(*notes: str) -> Iterable[RenderableType]:
    yield Lines([note for note in notes if note], "dim")


def show_comparison(settled: Comparison) -> RenderableType:
    """The comparison: the table, the notes, the winners."""
    table = comparison_table(columns(settled.table))
    return Group(table, Lines([""]), *_notes(*settled.notes), Lines(winners_text(settled.winners)))


def winners_text(winners: Iterable[Winner]) -> list[str]:
    """What follows from a comparison: the reasons for each setting, and at the end a line for each winner."""
    winners = list(winners)
    said = [line for one in winners for line in ("", *reasons(one))]
    return [*said, "", *map(conclusion, winners)] if winners else []


def comparison_table(shown: Sequence[Column]) -> FittedTable:
    """The columns of a comparison; those before the number of runs are text."""
    headers = [column.header for column in shown]
    left = headers.index("runs") if "runs" in headers else 1
    rows = list(zip(*(column.cells for column in shown), strict=True))
    ranks = [column.rank for column in shown]
    return FittedTable(headers, rows, ranks, left, "gradwatch compare RUN... --format csv has them.")

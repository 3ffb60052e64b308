"""The report as text: tables for the terminal, Markdown, CSV and JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gradwatch.report.build import LayerSummary, Report, RunSummary, norms_text, percent, quantity_text, steps_text
from gradwatch.report.findings import (
    WHAT_IF_HEADERS,
    evidence_text,
    finding_lines,
    suggestion_lines,
    what_if_cells,
    where_text,
)
from gradwatch.rules import Finding
from gradwatch.whatif import CAVEAT

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

LAYER_HEADERS = ("layer", "median grad norm", "max grad norm", "clip rate", "non-finite", "weight norm", "update ratio")
Rows = list[list[str]]


def layer_cells(layers: tuple[LayerSummary, ...]) -> Rows:
    """One row of text per layer, under `LAYER_HEADERS`."""
    return [
        [layer.name, quantity_text(layer.median_grad_norm), quantity_text(layer.max_grad_norm),
         percent(layer.clip_rate), f"{layer.nonfinite:,}", quantity_text(layer.weight_norm),
         quantity_text(layer.update_ratio)]
        for layer in layers
    ]  # fmt: skip


def comparison_cells(frame: pd.DataFrame) -> tuple[list[str], Rows]:
    """The comparison as headers and rows of text: `0.953 ± 0.004` where there are several runs."""
    columns = list(frame.columns)
    metrics = [name.removesuffix("_std") for name in columns if name.endswith("_std")]
    given = columns[: columns.index("runs") + 1]
    headers = [*given, *metrics, "clip rate", "median norm", "p99 norm", "non-finite", "diverged"]
    rows = []
    for record in frame.to_dict("records"):
        rows.append(
            [
                *(str(record[name]) for name in given),
                *(plus_minus(record[name], record[f"{name}_std"]) for name in metrics),
                percent(record["clip_rate"]),
                quantity_text(record["median_grad_norm"]),
                quantity_text(record["p99_grad_norm"]),
                f"{record['nonfinite_steps']:,}",
                f"{record['diverged']} of {record['runs']}" if record["diverged"] else "0",
            ]
        )
    return headers, rows


def plus_minus(mean: float, spread: float) -> str:
    """`mean ± spread` with as many decimals as the spread deserves; no ± where there is none."""
    if math.isnan(spread):
        return quantity_text(mean)
    if not 1e-4 <= abs(mean) < 1e5 or spread > 1e5:
        return f"{mean:.2e} ± {spread:.1e}"
    decimals = min(4, max(0, 1 - math.floor(math.log10(spread)))) if spread > 0 else 4
    decimals = max(decimals, 2 - math.floor(math.log10(abs(mean))) if abs(mean) < 10 else 1)
    return f"{mean:.{min(decimals, 5)}f} ± {spread:.{min(decimals, 5)}f}"


def head_lines(run: RunSummary) -> list[tuple[str, str]]:
    """The head of a run as pairs of word and value."""
    return [
        ("verdict", run.verdict),
        ("policy", run.policy),
        *((("the loop itself clips", run.loop_clips),) if run.loop_clips else ()),
        ("optimizer", run.optimizer),
        ("steps", steps_text(run)),
        ("layers", f"{len(run.layers):,} ({run.parameters:,} parameters)"),
        ("clip rate", percent(run.clip_rate)),
        *norms_text(run),
        ("non-finite", f"{run.nonfinite_steps:,} step{'' if run.nonfinite_steps == 1 else 's'}"),
        *((f"final {name}", quantity_text(value)) for name, value in run.final.items()),
    ]


# ---------------------------------------------------------------------------------------------------- the terminal


def show_run(run: RunSummary) -> RenderableType:
    """One run for the terminal: findings first, the suggestion, head, problems, what-if, layers."""
    from rich.console import Group
    from rich.table import Table

    head = Table.grid(padding=(0, 2))
    for word, value in head_lines(run):
        bad = word == "verdict" and value != "healthy"
        head.add_row(_text(word, "dim"), _text(value, "bold red" if bad else ""))
    findings = [_text(line) for finding in run.findings for line in ("", *finding_lines(finding))]
    advice = [_text(line) for suggestion in run.suggestions for line in ("", *suggestion_lines(suggestion))]
    problems = [_text(f"incomplete: {problem}", "yellow") for problem in run.problems]
    problems += [_text(run.reduced, "dim")] if run.reduced else []
    layers = _table(list(LAYER_HEADERS), layer_cells(run.layers), left=1)
    whatif = [_text(""), _text("What another threshold would have done", "bold"),
              _table(list(WHAT_IF_HEADERS), what_if_cells(run.what_if), left=2), _text(CAVEAT, "dim")]  # fmt: skip
    return Group(_text(run.name, "bold"), head, *findings, *advice, *problems, layers, *(whatif if run.what_if else ()))


def show_comparison(frame: pd.DataFrame) -> RenderableType:
    """The comparison for the terminal."""
    headers, rows = comparison_cells(frame)
    return _table(headers, rows, left=headers.index("runs"))


def print_table(shown: RenderableType) -> None:
    """Print to the terminal at its width; into a pipe or a file at full width, so that no column is folded."""
    from rich.console import Console

    console = Console(highlight=False)
    Console(highlight=False, width=None if console.is_terminal else 200).print(shown)


def _table(headers: list[str], rows: Rows, left: int) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for i, header in enumerate(headers):
        table.add_column(_text(header), justify="left" if i < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(_text(cell) for cell in row))
    return table


def _text(text: str, style: str = "") -> Text:
    """Text without markup and without control characters."""
    from rich.text import Text

    return Text(printable(text), style=style)


def printable(text: str) -> str:
    """Text without control characters: a layer's name must not steer the terminal."""
    return "".join(sign if sign.isprintable() else "�" for sign in text)


# ---------------------------------------------------------------------------------------------------- files


def render_markdown(report: Report) -> str:
    """The report as Markdown: the comparison, or one run's head and layers."""
    lines = [f"# {_md(report.title)}", ""]
    if report.comparison is not None:
        headers, rows = comparison_cells(report.comparison)
        lines += [*_md_table(headers, rows), "", "## Runs", ""]
        lines += _md_table(["run", "policy", "verdict"], [[run.name, run.policy, run.verdict] for run in report.runs])
        return "\n".join(lines) + "\n"
    (run,) = report.runs
    for finding in run.findings:
        lines += [*_md_finding(finding), ""]
    for suggestion in run.suggestions:
        head, *reasons = suggestion_lines(suggestion)
        lines += [f"**{_md(head)}**", "", *(f"- {_md(reason)}" for reason in reasons), ""]
    lines += [*_md_table(["", ""], [[word, value] for word, value in head_lines(run)]), ""]
    lines += [f"- incomplete: {_md(problem)}" for problem in run.problems]
    lines += [f"- {_md(run.reduced)}"] if run.reduced else []
    lines += ["", *_md_table(list(LAYER_HEADERS), layer_cells(run.layers))]
    if run.what_if:
        lines += ["", "## What another threshold would have done", ""]
        lines += [*_md_table(list(WHAT_IF_HEADERS), what_if_cells(run.what_if)), "", _md(CAVEAT)]
    return "\n".join(lines) + "\n"


def render_csv(report: Report) -> str:
    """The comparison as CSV, or one run's layers."""
    import pandas as pd

    if report.comparison is not None:
        return report.comparison.to_csv(index=False)
    (run,) = report.runs
    return pd.DataFrame([asdict(layer) for layer in run.layers]).drop(columns="shape").to_csv(index=False)


def render_json(report: Report) -> str:
    """Everything the report knows but the curves, as JSON; a number that is not finite is null."""
    comparison = None if report.comparison is None else report.comparison.to_dict("records")
    runs = [{**asdict(run), "findings": [finding.to_json() for finding in run.findings]} for run in report.runs]
    return json.dumps(plain({"title": report.title, "comparison": comparison, "runs": runs}), indent=2) + "\n"


def plain(value: Any) -> Any:
    """What JSON can hold: tuples as lists, keys as text, numbers that are not finite as None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _md_finding(finding: Finding, indent: str = "") -> list[str]:
    """A finding as a list item, what follows from it as items below."""
    said = [where_text(finding), evidence_text(finding), finding.cause, finding.cure]
    lines = [f"{indent}- **{finding.severity}: {_md(finding.summary)}**"]
    lines += [f"{indent}  - {_md(line)}" for line in said if line]
    return lines + [line for other in finding.consequences for line in _md_finding(other, indent + "  ")]


def _md(text: str) -> str:
    """Text that Markdown shows as it is."""
    for sign in "\\`*_[]<>|#":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())


def _md_table(headers: list[str], rows: Rows) -> list[str]:
    lines = [headers, ["---"] * len(headers), *rows]
    return ["| " + " | ".join(cell if cell == "---" else _md(cell) for cell in line) + " |" for line in lines]

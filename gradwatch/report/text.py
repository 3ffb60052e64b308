"""The report as text: Markdown, CSV and JSON; and what `gradwatch check` prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from gradwatch.analysis.comparison import Comparison
from gradwatch.analysis.groups import policies
from gradwatch.analysis.rules import NO_FINDINGS, TOO_SHORT, Finding, has_no_findings, headline
from gradwatch.analysis.rules.facts import LEAST_STEPS
from gradwatch.analysis.verdict import Winner
from gradwatch.formatting import percent, quantity_text
from gradwatch.report.build import Report
from gradwatch.report.comparison_table import comparison_cells, winner_lines
from gradwatch.report.model import LayerSummary
from gradwatch.report.wording import (
    WHAT_IF_HEADERS,
    caveat,
    counts_text,
    evidence_text,
    facts,
    finding_lines,
    layer_note,
    said_of,
    started,
    suggestion_lines,
    verdict_text,
    what_if_cells,
)
from gradwatch.sanitize import formula_free, markdown, plain, printable, terminal

if TYPE_CHECKING:
    import pandas as pd

WANTED = f"{LEAST_STEPS} steps are wanted"
_GITHUB = {"error": "error", "warning": "warning", "note": "notice"}
LAYER_HEADERS = ("layer", "median grad norm", "max grad norm", "clip rate", "non-finite", "weight norm", "update ratio")
Rows = list[list[str]]


def render_check_text(run: str, findings: Sequence[Finding], said: str | None = None) -> str:
    """The verdict in one line, then each finding with its numbers, cause and cure.

    `said` is the verdict, here and below; None: the findings are all that is known.
    """
    counts = counts_text(findings) or "no findings"
    lines = [f"{run}: {counts}" + "".join(f", {note}" for note in _reserve(said))]
    for finding in findings:
        lines += ["", *finding_lines(finding)]
    return "\n".join(map(terminal, lines)) + "\n"


def render_check_json(
    run: str, findings: Sequence[Finding], said: str | None = None, unsound: Sequence[str] = ()
) -> str:
    """`{"run": ..., "verdict": ..., "findings": [...], "unsound": [...]}`; a number that is not finite is null.

    `unsound` are the reasons why the run is no whole one: that it failed, what of its record is missing.
    """
    said = headline(findings) if said is None else said
    found = [finding.to_json() for finding in findings]
    return json.dumps(plain({"run": run, "verdict": said, "findings": found, "unsound": [*unsound]}), indent=2) + "\n"


def render_github(run: str, findings: Sequence[Finding], said: str | None = None) -> str:
    """One workflow command per finding, its consequences in the message: `::error title=...::message`.

    A notice where the run is too short to judge, or has no layers to judge by.
    Source: GitHub's workflow commands; escapes as in actions/toolkit `command.ts`.
    """
    parts = (note.partition(": ") for note in _reserve(said))
    notices = [f"::notice title={_property(f'{run}: {head}')}::{_data(rest)}\n" for head, _, rest in parts]
    return "".join(notices) + "".join(
        f"::{_GITHUB[finding.severity]} title={_property(f'{run}: {finding.summary}')}::{_data(_message(finding))}\n"
        for finding in findings
    )


def _reserve(said: str | None) -> list[str]:
    """What a verdict without findings does not cover, as `what: why`; none where it covers all."""
    if said is None or said == NO_FINDINGS:
        return []
    if said == TOO_SHORT:
        return [f"{TOO_SHORT}: {WANTED}"]
    return [said.partition(", ")[2]] if has_no_findings(said) else []


def _message(finding: Finding) -> str:
    follows = ", ".join(consequence.summary for consequence in finding.consequences)
    lines = [finding.cause, finding.cure, evidence_text(finding), follows and f"What follows from it: {follows}"]
    return "\n".join(filter(None, lines))


def _data(text: str) -> str:
    return printable(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def layer_cells(layers: tuple[LayerSummary, ...]) -> Rows:
    """One row of text per layer, under `LAYER_HEADERS`."""
    return [
        [layer.name, quantity_text(layer.median_grad_norm), quantity_text(layer.max_grad_norm),
         percent(layer.clip_rate), f"{layer.nonfinite:,}", quantity_text(layer.weight_norm),
         quantity_text(layer.update_ratio)]
        for layer in layers
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------------------- files


def render_markdown(report: Report) -> str:
    """The report as Markdown: the comparison, or one run's head and layers."""
    lines = [f"# {markdown(report.title)}", ""]
    if report.comparison is not None:
        lines += [*markdown_comparison(report.comparison, report.winners, report.notes), "", "## Runs", ""]
        rows = [
            [run.name, started(run), policy, run.verdict]
            for run, policy in zip(report.runs, policies(report.histories), strict=True)
        ]
        lines += _md_table(["run", "started (UTC)", "policy", "verdict"], rows)
        return "\n".join(lines) + "\n"
    (run,) = report.runs
    for finding in run.findings:
        lines += [*_md_finding(finding), ""]
    for suggestion in run.suggestions:
        head, *reasons = suggestion_lines(suggestion)
        lines += [f"**{markdown(head)}**", "", *(f"- {markdown(reason)}" for reason in reasons), ""]
    lines += [*_md_table(["", ""], [["verdict", verdict_text(run)], *map(list, facts(run))]), ""]
    lines += [f"- incomplete: {markdown(problem)}" for problem in run.problems]
    lines += [f"- {markdown(run.reduced)}"] if run.reduced else []
    lines += ["", *_md_table(list(LAYER_HEADERS), layer_cells(run.layers))]
    lines += ["", markdown(layer_note(run))] if layer_note(run) else []
    if run.what_if:
        lines += ["", "## What another threshold would have done", ""]
        lines += [*_md_table(list(WHAT_IF_HEADERS), what_if_cells(run.what_if)), "", markdown(caveat(run))]
    return "\n".join(lines) + "\n"


def render_csv(report: Report) -> str:
    """The comparison as CSV, or one run's layers."""
    import pandas as pd

    if report.comparison is not None:
        return _csv(report.comparison)
    (run,) = report.runs
    columns = [field.name for field in fields(LayerSummary) if field.name != "shape"]
    return _csv(pd.DataFrame([asdict(layer) for layer in run.layers], columns=columns))


def _csv(frame: pd.DataFrame) -> str:
    """CSV whose text is text in a spreadsheet too: what it would take for a formula begins with a quote instead."""
    named = frame.rename(columns=formula_free)
    return str(named.apply(lambda column: column.map(formula_free)).to_csv(index=False))


def render_json(report: Report) -> str:
    """Everything the report knows but the curves, as JSON; a number that is not finite is null."""
    runs = [{**asdict(run), "findings": [finding.to_json() for finding in run.findings]} for run in report.runs]
    compared = (
        {"comparison": None}
        if report.comparison is None
        else _plain_comparison(report.comparison, report.winners, report.notes)
    )
    return json.dumps(plain({"title": report.title, **compared, "runs": runs}), indent=2) + "\n"


def markdown_comparison(frame: pd.DataFrame, winners: Sequence[Winner], notes: Sequence[str]) -> list[str]:
    """The winners, the table and the notes as lines of Markdown."""
    said = [[markdown(line) for line in winner_lines(one)] for one in winners]
    return [
        *(line for lines in said for line in (" ".join(lines), "")),
        *_md_table(*comparison_cells(frame)),
        "",
        *(f"- {markdown(note)}" for note in notes),
    ]


def comparison_text(settled: Comparison, kind: str) -> str:
    """The comparison for a machine: `csv`, the table with all its columns; `md`; `json`, winners and notes as well."""
    if kind == "csv":
        return _csv(settled.table)
    if kind == "md":
        return "\n".join(markdown_comparison(settled.table, settled.winners, settled.notes)) + "\n"
    found = {"metrics": settled.metrics, **_plain_comparison(settled.table, settled.winners, settled.notes)}
    return json.dumps(plain(found), indent=2) + "\n"


def _plain_comparison(frame: pd.DataFrame, winners: Sequence[Winner], notes: Sequence[str]) -> dict[str, Any]:
    return {"comparison": frame.to_dict("records"), "winners": [asdict(one) for one in winners], "notes": notes}


def _md_finding(finding: Finding) -> list[str]:
    """A finding as a list item, what follows from it as items below."""
    lines = [f"- **{finding.severity}: {markdown(finding.summary)}**"]
    lines += [f"  - {markdown(line)}" for line in said_of(finding) if line]
    for other in finding.consequences:
        numbers = f" ({markdown(evidence_text(other))})" if other.evidence else ""
        lines.append(f"  - {other.severity}: {markdown(other.summary)}{numbers}")
    return lines


def _md_table(headers: list[str], rows: Rows) -> list[str]:
    lines = [headers, ["---"] * len(headers), *rows]
    return ["| " + " | ".join(cell if cell == "---" else markdown(cell) for cell in line) + " |" for line in lines]

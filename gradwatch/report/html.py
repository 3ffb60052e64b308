"""The report as one self-contained HTML page: no other file, no network, also inside a sandboxed frame."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from gradwatch._version import __version__
from gradwatch.analysis.final_values import seeds
from gradwatch.analysis.groups import policies, settings
from gradwatch.analysis.rules import TOO_SHORT, Finding, has_no_findings
from gradwatch.history import History
from gradwatch.report.activations import activation_charts
from gradwatch.report.build import Report
from gradwatch.report.comparison_charts import Section, colors, sections
from gradwatch.report.comparison_table import LAST, Column, columns, conclusion, paste, reasons
from gradwatch.report.finding_charts import finding_chart
from gradwatch.report.gradient_histograms import histogram_charts
from gradwatch.report.heatmaps import heatmap_charts
from gradwatch.report.model import RunSummary
from gradwatch.report.pages import page_html
from gradwatch.report.plotly_figures import Chart, Figure
from gradwatch.report.run_charts import (
    clip_charts,
    depth_charts,
    logged_charts,
    noise_charts,
    norm_chart,
    update_charts,
)
from gradwatch.report.text import LAYER_HEADERS, layer_cells
from gradwatch.report.wording import (
    WHAT_IF_HEADERS,
    arguments,
    caveat,
    clip_argument,
    code_spans,
    counts_text,
    evidence_cells,
    facts,
    layer_note,
    started,
    suggestion_head,
    verdict_text,
    what_if_cells,
    where_text,
)
from gradwatch.sanitize import printable

MAX_LAYER_ROWS = 5_000
_TICKED = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Page:
    """Charts in the order in which the page shows them; the template refers to them by number."""

    figures: list[Figure]

    def add(self, charts: list[Chart] | tuple[Chart, ...]) -> list[dict[str, Any]]:
        """What the template needs of each chart; the figure itself goes into the page's data."""
        placed = []
        for chart in charts:
            placed.append({"number": len(self.figures), "title": chart.title, "height": chart.height,
                           "note": chart.note, "tab": chart.tab, "wide": chart.wide})  # fmt: skip
            self.figures.append(chart.figure)
        return placed


def render_html(report: Report) -> str:
    """The page. Every name in it is escaped: run, layer and metric names are the user's own text."""
    page = Page([])
    body = _many(report, page) if report.comparison is not None else _one(report, page)
    return render_page(report.title, "many.html.j2" if report.comparison is not None else "one.html.j2", page, **body)


def render_page(title: str, template: str, page: Page, **body: Any) -> str:
    """A page of the report's looks with the charts of `page`; `template`, filled with `body`, is what it says."""
    plotly, digest = _plotly()
    script = _environment().loader.get_source(_environment(), "page.js")[0]
    # What runs is this script and plotly.js, by their hashes; nothing is loaded. Plotly sets styles as it draws, and
    # shows heatmaps as data: images.
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}' '{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return str(
        _environment()
        .get_template("report.html.j2")
        .render(
            title=title, template=template, version=__version__, policy=Markup(policy), script=Markup(script),
            plotly=plotly, figures=_json(page.figures), **body,
        )
    )  # fmt: skip


def _mood(run: RunSummary) -> str:
    """The colour of a verdict."""
    return "good" if has_no_findings(run.verdict) else "bad" if "error" in counts_text(run.findings) else "warn"


def _one(report: Report, page: Page) -> dict[str, Any]:
    (run,), (history,) = report.runs, report.histories
    findings = [_finding(finding, history, page) for finding in run.findings]
    heatmaps, missing = heatmap_charts(history, run)
    clip, unclipped = clip_charts(history)
    logged, unlogged = logged_charts(history, report.metrics)
    return {
        "run": run,
        "findings": findings,
        "badge": verdict_text(run) if _mood(run) == "good" or run.verdict == TOO_SHORT else counts_text(run.findings),
        "mood": _mood(run),
        "suggestions": [
            {"head": suggestion_head(s), "code": clip_argument(s.policy) if s.policy else "", "reasons": s.reasons}
            for s in run.suggestions
        ],
        "what_if": _what_if(run),
        "caveat": caveat(run),
        "facts": facts(run),
        "heatmaps": page.add(heatmaps),
        "histograms": page.add(histogram_charts(history)),
        "activations": page.add(activation_charts(history)),
        "norm": page.add([norm_chart(history), *update_charts(history), *noise_charts(history)]),
        "clip": page.add(clip),
        "logged": page.add(logged),
        "depth": page.add(depth_charts(history)),
        "missing": [*missing, *unclipped, *unlogged],
        "layer_headers": LAYER_HEADERS,
        "layer_note": layer_note(run),
        "layers": layer_cells(run.layers[:MAX_LAYER_ROWS]),
        "layers_left": max(0, len(run.layers) - MAX_LAYER_ROWS),
    }


def _spans(text: str) -> list[tuple[str, bool]]:
    """As `code_spans`, and what stands in backticks, as the names of modules do, is code too."""
    found: list[tuple[str, bool]] = []
    for piece, is_code in code_spans(text):
        parts = [piece] if is_code else _TICKED.split(piece)
        found += [(part, is_code or i % 2 == 1) for i, part in enumerate(parts) if part]
    return found


def _finding(finding: Finding, history: History, page: Page, follows: bool = False) -> dict[str, Any]:
    """What the template needs of a finding: its words, its chart, and what `follows` from it, which has no cure."""
    chart = finding_chart(history, finding)
    return {
        "severity": finding.severity,
        "summary": finding.summary,
        "where": where_text(finding, follows),
        "cause": [] if follows else _spans(finding.cause),
        "cure": [] if follows else _spans(finding.cure),
        "code": [] if follows else arguments(finding.cure),
        "evidence": evidence_cells(finding),
        "rule": finding.rule,
        "page": page_html(finding.rule),
        "chart": page.add([chart]) if chart else [],
        "consequences": [_finding(other, history, page, follows=True) for other in finding.consequences],
    }


def _what_if(run: RunSummary) -> list[dict[str, Any]]:
    """A table for each kind of policy and each optimizer (or part) that steps on its own."""
    tables: dict[str, list[list[str]]] = {}
    for outcome, cells in zip(run.what_if, what_if_cells(run.what_if), strict=True):
        title = f"{outcome.optimizer}: {outcome.kind}" if outcome.optimizer else outcome.kind
        tables.setdefault(title, []).append([outcome.policy, *cells[1:]])
    return [{"title": title, "headers": WHAT_IF_HEADERS, "rows": rows} for title, rows in tables.items()]


def _many(report: Report, page: Page) -> dict[str, Any]:
    assert report.comparison is not None
    shown = columns(report.comparison)
    headers = [column.header for column in shown]
    shades = colors(report.histories, report.comparison)
    parts = sections(report.histories, report.metrics, report.heatmaps, report.comparison)
    labels = policies(report.histories)
    return {
        "headers": headers,
        "words": headers.index("runs"),
        "texts": {i for i, column in enumerate(shown) if column.keys is None},
        "rows": [list(row) for row in zip(*map(_sortable, shown), strict=True)],
        "winners": [
            {"lines": [*reasons(one), conclusion(one, pasted=False)], "code": paste(one)} for one in report.winners
        ],
        "notes": report.notes,
        "shades": shades,
        "diverged": [bool(count) for count in report.comparison["diverged"]],
        "subtitle": _subtitle(len(report.runs), len(set(labels)), len(parts)),
        "sections": [_section(part, page, shades) for part in parts],
        "runs": [
            {
                "summary": run,
                "mood": _mood(run),
                "policy": policy,
                "color": shades[policy],
                "setting": " · ".join(f"{k} {v}" for k, v in setting.items()),
                "started": started(run),
            }
            for run, policy, setting in zip(report.runs, labels, _settings(report), strict=True)
        ],
        "metrics": report.metrics,
    }


def _sortable(column: Column) -> list[dict[str, Any]]:
    """The cells of a column with what to sort them by: a number, or nothing for one that is unknown."""
    keys: Sequence[float | str] = column.keys or [""] * len(column.cells)
    return [{"text": cell, "key": "" if key == LAST else key} for cell, key in zip(column.cells, keys, strict=True)]


def _settings(report: Report) -> list[dict[str, str]]:
    return [
        {**setting, **seeds(run.params)} for setting, run in zip(settings(report.histories), report.runs, strict=True)
    ]


def _subtitle(runs: int, policies: int, settings: int) -> str:
    words = [(runs, "run"), (policies, "policy"), (settings, "setting")]
    plural = {"policy": "policies"}
    return " · ".join(f"{n} {word if n == 1 else plural.get(word, word + 's')}" for n, word in words)


def _section(part: Section, page: Page, shades: dict[str, str]) -> dict[str, Any]:
    legend = [{"policy": policy, "color": shades[policy], "runs": len(runs)} for policy, runs in part.members.items()]
    return {"title": part.title, "legend": legend, "note": part.note, "charts": page.add(part.charts)}


def _json(data: Any) -> Markup:
    """JSON that is safe inside a <script> element, whatever the names in it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


@cache
def _plotly() -> tuple[Markup, str]:
    """plotly.js, compressed as base64, and its hash: a third of its size; the page unpacks it with the browser's own
    gzip.

    It is plotly.js' own bundle of cartesian charts, as npm has it (`npm pack plotly.js-cartesian-dist-min`): a third of
    the one that comes with Plotly for Python, and so much sooner run.
    """
    code = (files("gradwatch.report") / "plotly_js" / "plotly-cartesian.min.js").read_text(encoding="utf-8")
    return Markup(base64.b64encode(gzip.compress(code.encode(), mtime=0)).decode()), _hash(code)


def _hash(script: str) -> str:
    """What a Content-Security-Policy calls this script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _shown(value: Any) -> Any:
    """What a placeholder becomes, before it is escaped: text whose marks cannot turn the text around it."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("gradwatch.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=_shown,
    )  # fmt: skip


def _in_a_notebook(report: Report) -> str:
    """The page, in a frame of its own: its styles and scripts stay out of the notebook."""
    return f'<iframe srcdoc="{escape(render_html(report))}" style="width: 100%; height: 800px; border: 0"></iframe>'


Report._repr_html_ = _in_a_notebook  # type: ignore[attr-defined]  # here, as the model knows no renderer

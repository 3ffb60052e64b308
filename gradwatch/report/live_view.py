"""A run that goes on, on one screen of the terminal: its curves, the layers that stand out, what was found.

Legend: T recorded steps, R rows of the layers, L layers.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from gradwatch.analysis.clips import as_one, clips_itself
from gradwatch.analysis.final_values import lost_since, policy_text, seconds_per_step
from gradwatch.analysis.groups import metric_names
from gradwatch.analysis.rules import NO_FINDINGS, TOO_SHORT, Finding, has_no_findings, verdict
from gradwatch.analysis.rules.facts import limits_of
from gradwatch.formatting import percent, quantity_text
from gradwatch.history import Floats, History
from gradwatch.report.fitted_table import GAP, Lines, wrapped
from gradwatch.report.model import state
from gradwatch.report.wording import finding_lines, where_text
from gradwatch.sanitize import terminal
from gradwatch.table import nanmean

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

BARS = "▁▂▃▄▅▆▇█"
LOST = "×"  # in a curve: steps that held nothing finite
RECENT = 50  # rows: what a layer does now, beside what it did before
APART = 3.0  # times its usual norm, or as many times less: then a layer stands out
MOST_CURVES = 4  # of what was logged
MOST_WORDS = 24  # columns for the name of a curve
LEAST_CURVE, MOST_CURVE = 8, 60  # and for the curve
COLORS = {"error": "bold red", "warning": "yellow", "note": ""}
NOTEBOOK_COLUMNS, NOTEBOOK_LINES = 90, 45  # what JupyterLab shows beside its sidebar on a small screen
NOTEBOOK_PAGE = '<pre style="line-height: 1.3; white-space: pre; overflow-x: auto">{code}</pre>'
PLAIN, RED, AMBER = (127, 127, 127), (214, 34, 70), (180, 120, 0)  # on a light page and on a dark one
NOTEBOOK_COLORS = TerminalTheme((255, 255, 255), (0, 0, 0), [PLAIN, RED, PLAIN, AMBER, *[PLAIN] * 4])


@dataclass(frozen=True)
class Curve:
    """A scalar over the steps, `[T]`, with the word before it and what is said behind it; on a log scale or not."""

    name: str
    values: Floats
    said: str
    log: bool = False


@dataclass(frozen=True)
class LiveView:
    """One look at a run. It takes the width and the height that it is given: what matters least is cut off below."""

    history: History
    findings: Sequence[Finding]

    @cached_property
    def curves(self) -> list[Curve]:
        """Made once: the terminal is drawn more often than the run is looked at."""
        return curves(self.history)

    @cached_property
    def layers(self) -> list[Layer]:
        """Those that stand out."""
        return standing_out(self.history)

    @cached_property
    def verdict(self) -> str:
        """What is said where nothing was found."""
        return verdict(self.history, self.findings)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """The lines, at most as many as the screen has."""
        width, height = options.max_width, options.height or 10_000
        head = [*self._head(width), *_curve_lines(self.curves, width)]
        found = [*_found(self.findings, self.verdict, width)]
        layers = [*_layer_lines(self.layers, width)]
        room = height - len(head) - 2
        kept = max(min(len(found), room - min(len(layers), 4)), min(room, 1), 0)
        yield from [*head, Text(""), *found[:kept], Text(""), *layers][:height]

    def _head(self, width: int) -> Iterator[Text]:
        run = self.history.run
        yield _cut(f"{run.name}  {policy_text(run)}", width, "bold")
        yield _cut(pace(self.history), width, "dim")
        yield Text("")


def pace(history: History) -> str:
    """How far it is, how fast, and whether it goes on: `step 1,234 of 5,000 · 45 steps/s · running`."""
    run, last = history.run, int(history.step.max()) + 1
    step = f"step {last:,}" + (f" of {run.total_steps:,}" if run.total_steps else "")
    seconds = seconds_per_step(history)
    speed = f"{quantity_text(1 / seconds)} steps/s" if seconds > 0 else ""
    return " · ".join(filter(None, [step, speed, state(history)]))


def curves(history: History) -> list[Curve]:
    """What was logged, then the total norm with its threshold and the clip rate, of each lane that steps on its own."""
    lanes = history.lanes()
    names = [*dict.fromkeys([*metric_names([history]), *history.logged])]
    losses = sorted(names, key=lambda name: "loss" not in name.lower())  # what a training is watched by
    found = [_logged(history, name) for name in losses[:MOST_CURVES]]
    for name, lane in lanes.items():
        found += _norms(lane, f" {name}" if name else "")
    return found


def _logged(history: History, name: str) -> Curve:
    values = history.total(name)
    seen = values[~np.isnan(values)]
    known = seen[np.isfinite(seen)]
    last = quantity_text(float(seen[-1])) if len(seen) else "–"
    said = f"{last}, from {quantity_text(float(known[0]))}" if len(known) else last
    lost = lost_since(history)
    if lost is not None and not np.isfinite(values[history.step >= lost]).any():
        said = f"inf or NaN (gradients since step {lost:,})" + (f"; {last} before" if len(known) else "")
    return Curve(name, values, said)


def _norms(lane: History, of: str) -> Iterator[Curve]:
    limits, both = limits_of(lane), as_one(lane)
    norm, rate = both.total("grad_norm"), both.total("clip_rate")
    known = norm[np.isfinite(norm)]
    median = f", median {quantity_text(float(np.median(known)))}" if len(known) else ""
    threshold = f", threshold {limits[-1]:g}" if limits is not None else ""
    now = quantity_text(float(norm[-1])) if np.isfinite(norm[-1:]).all() and len(norm) else "inf or NaN"
    yield Curve(f"total norm{of}", norm, f"{now}{threshold}{median}", log=True)
    if lane.run.clip or clips_itself(lane):
        recent = f", {percent(float(nanmean(rate[-RECENT:])))} of the last {min(RECENT, len(rate))}"
        yield Curve(f"clip rate{of}", rate, f"{percent(float(nanmean(rate)))} of all steps{recent}")
    bad = int((lane.total("nonfinite") > 0).sum())
    if bad:
        yield Curve(f"non-finite{of}", lane.total("nonfinite"), f"{bad:,} steps")


def sparkline(values: Floats, size: int, log: bool = False) -> str:
    """The curve in at most `size` signs, of each stretch the mean (of a log scale the highest); `×` where none is
    finite, and nothing for steps that recorded nothing.
    """
    seen = values[~np.isnan(values)] if not log else values
    if not len(seen):
        return ""
    parts = [part[np.isfinite(part)] for part in np.array_split(seen, min(size, len(seen)))]
    heights = np.array([(part.max() if log else part.mean()) if len(part) else np.nan for part in parts])
    with np.errstate(divide="ignore"):
        heights = np.where(heights > 0, np.log10(heights), np.nan) if log else heights
    known = heights[np.isfinite(heights)]
    if not len(known):
        return LOST * len(heights)
    low, span = known.min(), max(float(np.ptp(known)), 1e-12 * max(abs(float(known.max())), 1e-300))
    places = [len(BARS) * (h - low) / span if np.isfinite(h) else -1 for h in heights]
    return "".join(BARS[min(int(place), len(BARS) - 1)] if place >= 0 else LOST for place in places)


def _curve_lines(shown: Sequence[Curve], width: int) -> Iterator[Text]:
    """Name, curve, words: the curve gets what the words leave."""
    wide = min(MOST_WORDS, width // 3, max((cell_len(terminal(curve.name)) for curve in shown), default=0))
    room = width - wide - 2 * len(GAP) - max((cell_len(curve.said) for curve in shown), default=0)
    room = min(max(room, LEAST_CURVE), MOST_CURVE)
    for curve in shown:
        name = terminal(curve.name)
        name = name if cell_len(name) <= wide else f"{name[: wide - 1]}…"
        drawn = sparkline(curve.values, room, curve.log)
        yield _cut(f"{name:<{wide}}{GAP}{drawn:<{room}}{GAP}{curve.said}", width)


class Layer(NamedTuple):
    """A layer that stands out: its median norm of the last rows and before, and its steps that were non-finite."""

    name: str
    now: float
    usual: float
    nonfinite: int


def standing_out(history: History, apart: float = APART) -> list[Layer]:
    """Layers whose recent gradients are not as usual.

    Those with non-finite gradients first, then by how far they are off, up or down.
    """
    norm, bad = history.layer("grad_norm"), history.nonfinite
    norm = np.where(np.isfinite(norm), norm, np.nan)
    found = []
    for i, name in enumerate(history.layers):
        column = norm[~np.isnan(norm[:, i]), i]
        recent, before = column[-RECENT:], column[:-RECENT]
        now, usual = (float(np.median(part)) if len(part) else np.nan for part in (recent, before))
        far = abs(np.log(now / usual)) if now > 0 and usual > 0 else np.inf if now == 0 and (column > 0).any() else 0.0
        if bad[i] or far > np.log(apart):
            found.append((bool(bad[i]), far, Layer(name, now, usual, int(bad[i]))))
    return [row for _, _, row in sorted(found, key=lambda one: (-one[0], -one[1]))]


def _layer_lines(found: Sequence[Layer], width: int) -> Iterator[Text]:
    if not found:
        yield _cut(f"Layers: none is {APART:g} times above or below its usual gradient norm.", width, "dim")
        return
    yield _cut(f"Layers that stand out: the median norm of the last {RECENT} rows, and before", width, "bold")
    for name, now, usual, bad in found:
        lost = f", non-finite in {bad:,} steps" if bad else ""
        yield _cut(f"  {quantity_text(now):>8}  {quantity_text(usual):>8}  {name}{lost}", width)


def _found(findings: Sequence[Finding], said: str, width: int) -> Iterator[Text]:
    if not findings:
        if said == TOO_SHORT:
            said = f"Findings: none so far ({said})"
        elif has_no_findings(said):
            said = f"Findings: none so far{said.removeprefix(NO_FINDINGS)}"
        yield _cut(said, width, "dim")
        return
    for finding in findings:
        yield _cut(f"{finding.severity}: {finding.summary}", width, COLORS[finding.severity])
        yield _cut(f"  {where_text(finding)}", width, "dim")
        for line in (finding.cause, finding.cure):
            yield from (Text(part, no_wrap=True) for part in wrapped(f"  {terminal(line)}", width) if line)


def _cut(line: str, width: int, style: str = "") -> Text:
    """One line of the screen: what is too wide goes, at its end."""
    text = Text(terminal(line), style=style, no_wrap=True, overflow="ellipsis")
    text.truncate(width, overflow="ellipsis")
    return text


def mime_bundle(shown: RenderableType) -> dict[str, str]:
    """What a notebook displays of one look: the screen as HTML, and as text where that is not drawn."""
    from rich.console import Console

    console = Console(record=True, file=io.StringIO(), width=NOTEBOOK_COLUMNS, height=NOTEBOOK_LINES, highlight=False)
    console.print(shown, height=NOTEBOOK_LINES)
    text = console.export_text(clear=False).rstrip()
    styled = console.export_html(code_format=NOTEBOOK_PAGE, inline_styles=True, theme=NOTEBOOK_COLORS)
    return {"text/html": styled, "text/plain": text}


# --------------------------------------------------------------------------------------------------------- plain lines


def plain_line(history: History) -> str:
    """One look in one line, for a log: `step 1,234 of 5,000 · 45 steps/s · running · loss 0.5, from 2.3 · …`."""
    return " · ".join([pace(history), *(f"{curve.name} {curve.said}" for curve in curves(history))])


def news(findings: Sequence[Finding], known: set[tuple[str, ...]]) -> Lines:
    """Those findings that `known` does not hold yet, as lines; it holds them then. One of more layers is the same."""
    fresh = []
    for finding in findings:
        key = (finding.severity, finding.rule, finding.optimizer, *finding.layers[:1])
        if key not in known:
            known.add(key)
            fresh.append(finding)
    return Lines([line for finding in fresh for line in finding_lines(finding)])

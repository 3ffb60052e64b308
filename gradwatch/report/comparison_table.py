"""The comparison in words, for every format: the table's columns as text and as sort keys, the winner's sentences."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gradwatch.analysis.groups import telling
from gradwatch.analysis.intervals import Estimate
from gradwatch.analysis.verdict import Winner, signed
from gradwatch.formatting import percent, plus_minus, quantity_text
from gradwatch.policies.grammar import is_call
from gradwatch.policies.intervention import Intervention

if TYPE_CHECKING:
    import pandas as pd

Record = dict[Any, Any]
LAST = 1e308  # the sort key of what is unknown


@dataclass(frozen=True)
class Column:
    """A column of the shown table: its cells as text, and the numbers to sort by (None: by the text).

    `rank`: how important it is where there is no room for all; 0 is never left out, higher goes first.
    """

    header: str
    cells: tuple[str, ...]
    keys: tuple[float, ...] | None = None
    rank: int = 0


def columns(frame: pd.DataFrame) -> list[Column]:
    """The columns of the comparison, those that settle it first."""
    records: list[Record] = frame.to_dict("records")
    names = list(frame.columns)
    metrics = [name.removesuffix("_std") for name in names if name.endswith("_std")]
    runs = names.index("runs")
    told = {names[0], *telling([{name: str(record[name]) for name in names[1:runs]} for record in records])}
    made = [Column(name, tuple(str(r[name]) for r in records), rank=0 if name in told else 8) for name in names[:runs]]

    def add(header: str, text: Callable[[Record], str], key: str, rank: int) -> None:
        keys = tuple(_number(record, key) for record in records)
        made.append(Column(header, tuple(map(text, records)), keys, rank))

    add("runs", lambda r: f"{r['runs']} alike" if r["alike"] else str(r["runs"]), "runs", 4)
    for name in metrics:
        add(name, partial(_mean, metric=name), name, 0 if name == metrics[0] else 6)
        if name == metrics[0]:
            add("difference", partial(_difference, metric=name), f"{name}_diff", 1)
            made.append(Column("verdict", tuple(r[f"{name}_verdict"] or "–" for r in records)))
    if "steps_to_target" in names:
        add("steps to target", _steps_to_target, "steps_to_target", 3)
    add("diverged", lambda r: f"{r['diverged']} of {r['runs']}" if r["diverged"] else "0", "diverged", 1)
    add("clip rate", lambda r: percent(r["clip_rate"]), "clip_rate", 5)
    if frame["loop_clip_rate"].notna().any():
        add("by the loop", lambda r: percent(r["loop_clip_rate"]), "loop_clip_rate", 7)
    add("non-finite", lambda r: f"{r['nonfinite_steps']:,}", "nonfinite_steps", 8)
    add("ms/step", lambda r: quantity_text(1e3 * r["seconds_per_step"]), "seconds_per_step", 11)
    add("median norm", lambda r: quantity_text(r["median_grad_norm"]), "median_grad_norm", 10)
    add("p99 norm", lambda r: quantity_text(r["p99_grad_norm"]), "p99_grad_norm", 9)
    return made


def comparison_cells(frame: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """The comparison as headers and rows of text: `0.953 ± 0.004` where there are several seeds."""
    made = columns(frame)
    return [column.header for column in made], [list(row) for row in zip(*(c.cells for c in made), strict=True)]


def winner_lines(winner: Winner) -> list[str]:
    """What follows from the comparison of one setting; last the winner in one line."""
    return [*reasons(winner), conclusion(winner)]


def reasons(winner: Winner) -> list[str]:
    """What was compared, in sentences, behind the setting that they are about."""
    head = f"{winner.setting}: " if winner.setting else ""
    return [head + winner.sentences[0], *winner.sentences[1:]]


def conclusion(winner: Winner, pasted: bool = True) -> str:
    """The winner of a setting in one line, `pasted` with its policy as text to paste; or what to do without one."""
    at = f" at {winner.setting}" if winner.setting else ""
    code = paste(winner) if pasted else None
    text = f" To paste: {code[0]}, or {code[1]}" if code else ""
    if winner.advice:
        return f"No winner{at}: {winner.advice}." + (f" The best so far: {winner.policy}.{text}" if code else "")
    return f"Winner{at}: {winner.policy}.{text}"


def paste(winner: Winner) -> tuple[str, str] | None:
    """The winner's policy as arguments of `watch()` and of the command line; None where there is none to paste."""
    made = Intervention.of(winner)
    given = made.arguments
    if not given or not all(is_call(text) for text in given.values() if isinstance(text, str)):
        return None  # what differs by part has no text of its own
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given.items()), str(made)


def _mean(record: Record, metric: str) -> str:
    counted = plus_minus(record[metric], (record[f"{metric}_high"] - record[f"{metric}_low"]) / 2)
    ended = record[f"{metric}_ended"]
    if math.isnan(record[metric]) or math.isclose(ended, record[metric], rel_tol=1e-9):
        return counted
    return f"{'inf or NaN' if math.isnan(ended) else quantity_text(ended)}, counts as {counted}"


def _difference(record: Record, metric: str) -> str:
    """The difference to the baseline and its interval; a dash where there is none."""
    value, low, high = (record[f"{metric}_{word}"] for word in ("diff", "diff_low", "diff_high"))
    return "–" if math.isnan(value) else signed(Estimate(value, low, high, method=record[f"{metric}_method"]))


def _steps_to_target(record: Record) -> str:
    median, reached, runs = record["steps_to_target"], record["reached_target"], record["runs"]
    text = "–" if math.isnan(median) else f"{median:,.0f}"
    return text if reached == runs else f"{text} ({reached} of {runs})"


def _number(record: Record, key: str) -> float:
    value = float(record[key])
    return LAST if math.isnan(value) else value

"""What modules gave out: maps of modules x steps and heads x steps, and a table of those that stand out.

Legend: T sampled steps, M modules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from gradwatch.analysis.rules.activation_facts import in_forward_order
from gradwatch.analysis.rules.facts import column_medians
from gradwatch.formatting import percent, quantity_text
from gradwatch.history import History
from gradwatch.report.downsample import heatmap
from gradwatch.report.plotly_figures import Chart, cells_text, heatmap_figure, off_scale
from gradwatch.table import Table

MAPS = {"rms": "RMS", "max": "largest |a|", "saturated": "saturated share", "dead": "dead units"}
HEAD_MAPS = {"logit_max": "attention logits", "entropy": "attention entropy"}
EXPERT_MAPS = {"tokens": "tokens of experts"}
QK_MAPS = {"qk_clips": "steps in which QKClip scaled a head", "logit_max": "largest logits, which QKClip bounds"}
SHARES = ("saturated", "dead", "entropy", "tokens")
LOWEST = ("entropy", "tokens")  # of which a low value is the one to be seen
COUNTS = ("qk_clips",)  # since the sampled step before: the run has their sum
HEADERS = ("module", "rms", "times as at first", "largest |a|", "zeros", "saturated", "dead units", "non-finite")
RANKS = (0, 1, 4, 2, 6, 5, 3, 2)
WHAT = (  # maps, of what, and the table that it is in
    (MAPS, "module", "activations"), (HEAD_MAPS, "head", "activations"), (EXPERT_MAPS, "expert", "activations"),
    (QK_MAPS, "head", "heads"),
)  # fmt: skip
MOST = 12  # modules in the table of a terminal
Rows = list[list[str]]


@dataclass(frozen=True)
class ModuleSummary:
    """One module in the last tenth of the sampled steps, by the median; NaN where it has no such quantity.

    `nonfinite` is the number of sampled steps in which anything was inf or NaN; `growth` by how much the RMS has
    changed since the first tenth.
    """

    name: str
    rms: float
    max: float
    zeros: float
    saturated: float
    dead: float
    nonfinite: int
    growth: float


def module_summaries(history: History) -> tuple[ModuleSummary, ...]:
    """Every module whose activations were recorded, in the order of the forward pass."""
    table = in_forward_order(history.activations.with_values("rms"))
    if not len(table.layers):
        return ()
    late = slice(-max(1, len(table) // 10), None)
    early = slice(0, max(1, len(table) // 10))
    found = {name: column_medians(values[late]) for name, values in table.values.items()}
    begun = column_medians(table.values["rms"][early])
    bad = (table.values["nonfinite"] > 0).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        growth = found["rms"] / begun
    shown = {name: found[name] for name in ("rms", "max", "zeros", "saturated", "dead")} | {"growth": growth}
    return tuple(
        ModuleSummary(name=name, nonfinite=int(bad[i]), **{key: float(column[i]) for key, column in shown.items()})
        for i, name in enumerate(table.layers)
    )


def outlying(modules: tuple[ModuleSummary, ...], most: int = MOST) -> list[ModuleSummary]:
    """The modules that stand out, the worst first: what is not finite, dead or saturated units, lone large values."""

    def badness(module: ModuleSummary) -> float:
        dead, saturated = (0.0 if math.isnan(share) else share for share in (module.dead, module.saturated))
        peak = math.log10(module.max / module.rms) if 0 < module.rms < module.max < math.inf else 0.0
        moved = abs(math.log10(module.growth)) if 0 < module.growth < math.inf else 0.0
        return 1e6 * (module.nonfinite > 0) + 2 * dead + saturated + peak / 3 + moved

    known = [m for m in modules if m.nonfinite or not math.isnan(m.rms)]  # not what was recorded earlier alone
    return sorted(known, key=badness, reverse=True)[:most]


def module_cells(modules: list[ModuleSummary]) -> Rows:
    """One row of text per module, under `HEADERS`."""
    return [
        [m.name, quantity_text(m.rms), quantity_text(m.growth), quantity_text(m.max),
         *("" if math.isnan(share) else percent(share) for share in (m.zeros, m.saturated, m.dead)), f"{m.nonfinite:,}"]
        for m in modules
    ]  # fmt: skip


def as_layers(history: History, quantity: str, sampled: str = "activations") -> History:
    """The run with its modules in the layers' place, or what else of a table of sampled steps `quantity` is of."""
    table: Table = in_forward_order(getattr(history, sampled).with_values(quantity))
    shown = {name: values for name, values in table.values.items() if name != "order"}
    return replace(history, by_layer=Table(table.step, table.attempt, table.optimizer, shown, table.layers))


def activation_charts(history: History) -> list[Chart]:
    """Modules and heads x steps of what was recorded; shares only where there are any."""
    drawn = ((*pair, what, table) for maps, what, table in WHAT for pair in maps.items())
    return [chart for words in drawn if (chart := _map(history, *words))]


def _map(history: History, quantity: str, title: str, what: str, table: str) -> Chart | None:
    shown = as_layers(history, quantity, table)
    data = heatmap(shown, quantity, lowest=quantity in LOWEST)
    if data is None or (quantity in SHARES and not (data.value > 0).any()):
        return None
    drawn, height = heatmap_figure(data, title, history.step, quantity in SHARES, quantity in COUNTS)
    kept = "lowest" if quantity in LOWEST else "highest"
    note = f"{what.capitalize()}s in the order in which their outputs come; {len(shown.by_layer)} sampled steps."
    note = " ".join([note, *cells_text(data, kept, "of them", f"{what}s")])
    note += "" if quantity in (*SHARES, *COUNTS) else off_scale(data)
    return Chart(_title(shown.by_layer, quantity, title, what), drawn, height, note, title)


def _title(table: Table, quantity: str, title: str, what: str) -> str:
    values = table.values[quantity]
    of_run = np.nansum(values, axis=0) if quantity in COUNTS else column_medians(values)
    known = [(float(value), name) for value, name in zip(of_run, table.layers, strict=True) if np.isfinite(value)]
    if len(known) < 2:
        return f"Activations: {title}"
    (low, smallest), (high, largest) = min(known), max(known)
    show = percent if quantity in SHARES else quantity_text
    if high == low:
        return f"Activations: {title}, {show(high)} in every {what}"
    return f"Activations: {title}, most in {largest} ({show(high)}), least in {smallest} ({show(low)})"

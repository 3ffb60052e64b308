"""What a notebook shows of a Finding, and `history.plot()`: the report's charts as Plotly figures.

Both are given to their classes here, as neither knows a renderer; whoever opens a run has them.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from gradwatch.analysis.groups import metric_names
from gradwatch.analysis.rules import Finding
from gradwatch.history import History
from gradwatch.report.heatmaps import heatmap_charts
from gradwatch.report.model import summarize
from gradwatch.report.plotly_figures import Chart, unpacked
from gradwatch.report.plotly_figures import text as plain_text
from gradwatch.report.run_charts import (
    clip_charts,
    depth_charts,
    logged_charts,
    noise_charts,
    norm_chart,
    update_charts,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class Plots(tuple["Figure", ...]):
    """Plotly figures that a notebook shows below each other; each can be changed and saved as any other."""

    def _repr_html_(self) -> str:
        """A frame of its own, which holds plotly.js and loads nothing."""
        drawn = "".join(figure.to_html(full_html=False, include_plotlyjs=i == 0) for i, figure in enumerate(self))
        height = sum(int(figure.layout.height or 300) for figure in self) + 40
        return (
            f'<iframe srcdoc="{escape(drawn)}" style="width: 100%; height: {min(height, 1200)}px; border: 0"></iframe>'
        )


def plot(history: History, *words: str) -> Plots:
    """The charts of the run's report as Plotly figures: what was logged, norms, clips, depth profiles, heat maps.

    Args:
        history: the run.
        words: only charts whose title holds one of these, such as `"norm"`; the case does not matter.

    Raises:
        ValueError: no chart's title holds one of the words; it names the titles.
    """
    charts = _charts(history)
    wanted = [chart for chart in charts if not words or any(w.lower() in chart.title.lower() for w in words)]
    if words and not wanted:
        titles = "; ".join(chart.title for chart in charts)
        raise ValueError(f"no chart has {' or '.join(words)} in its title; there are: {titles}")
    return Plots(_figure(chart) for chart in wanted)


def _charts(history: History) -> list[Chart]:
    if not len(history):
        return []
    metrics = metric_names([history])
    heatmaps, _ = heatmap_charts(history, summarize(history, metrics))
    logged, clips = logged_charts(history, metrics)[0], clip_charts(history)[0]
    norms = [norm_chart(history), *update_charts(history), *noise_charts(history)]
    return [*logged, *norms, *clips, *depth_charts(history), *heatmaps]


def _figure(chart: Chart) -> Figure:
    from plotly.graph_objects import Figure

    title = {"text": plain_text(chart.title), "font": {"size": 15}}
    return Figure(unpacked(chart.figure)).update_layout(title=title, height=chart.height, margin={"t": 60})


def finding_html(finding: Finding) -> str:
    """What, why and what to do; then what follows from it."""
    said = "".join(f"<br>{escape(text)}" for text in (finding.cause, finding.cure) if text)
    below = "".join(f"<li>{escape(f'{other.severity}: {other.summary}')}</li>" for other in finding.consequences)
    head = f"<b>{escape(f'{finding.severity}: {finding.summary}')}</b>"
    return f"<div>{head}{said}{below and f'<ul>{below}</ul>'}</div>"


History.plot = plot  # type: ignore[method-assign, assignment]
Finding._repr_html_ = finding_html  # type: ignore[attr-defined]

"""Hears of the first losses that a backward is called on, and keeps what their graphs show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gradwatch.measure.layout import Layout
from gradwatch.measure.looking import Looking
from gradwatch.measure.loss_graph import MOST_ROWS, LossGraph
from gradwatch.recording import backward_calls
from gradwatch.recording.hooks import untraced

MOST_LOSSES = 16  # that are walked at all: of sharded parameters none is found in a graph


class LossGraphs:
    """Hears of backward until each layer was reached from a loss, or of `MOST_LOSSES`."""

    def __init__(self, looking: Looking | None = None) -> None:
        self.found: tuple[dict[str, Any], ...] = ()
        self._looking, self._heard = looking or Looking(), 0
        self._layers: dict[int, str] = {}
        self._missing: set[int] = set()  # layers that none of the losses came to yet

    def begin(self, layout: Layout) -> None:
        """Hear of what comes, unless enough was heard; harmless where it does so already."""
        if not self._heard:
            self._layers = {id(p): name for p, name in zip(layout.params, layout.names, strict=True)}
            self._missing = {*self._layers}
        if self._missing and self._heard < MOST_LOSSES and self not in backward_calls.heard.listeners:
            backward_calls.heard.listen(self)

    def stop(self) -> None:
        """Hear of no more."""
        backward_calls.heard.leave(self)

    @untraced
    def before(self, losses: Any) -> None:
        """Somebody is about to call backward on these."""
        with self._looking.at("how the loss is made"):
            for loss in losses if isinstance(losses, Sequence) else (losses,):
                self._heard += 1
                graph = LossGraph(loss, self._layers) if isinstance(loss, Tensor) else None
                if graph is None or not graph.reached:
                    continue
                self._missing -= graph.reached
                told = [*self.found, *graph.described()]
                self.found = tuple(row for i, row in enumerate(told) if row not in told[:i])[:MOST_ROWS]
        if not self._missing or self._heard >= MOST_LOSSES:
            self.stop()

    def after(self, before: Any) -> None:
        """The gradients are there: nothing is asked of them."""

"""Hears of a loss now and then, as backward is called, and keeps what it was asked for until its step is there."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from gradwatch.measure.layout import Layout
from gradwatch.measure.looking import Looking
from gradwatch.measure.loss_graph import LossGraph
from gradwatch.recording import backward_calls
from gradwatch.recording.hooks import untraced
from gradwatch.table import IN_LOSS

MOST_LOSSES = 8  # of a step that are walked: the others' may come first
MOST_MISSES = 4  # steps without a loss that torch knows, after which no other is asked


class LossTargets:
    """Of the steps that it may `begin` with it hears the first, then one `every` so many, later ever fewer.

    In each it listens to backward until a loss is of these layers; of sharded ones, which no graph shows, to the first.
    """

    def __init__(self, every: int = 1, looking: Looking | None = None) -> None:
        self._every, self._looking = every, looking or Looking()
        self.values: dict[str, Tensor | float] = {}  # of the last loss, until they are taken
        self._layout: Layout | None = None
        self._strangers: list[weakref.ref[nn.Parameter]] = []  # in the last graph, and none of the layers
        self._due = self._misses = self._heard = 0  # the next step; steps and, of this one, losses without success

    def begin(self, step: int, layout: Layout) -> None:
        """This step is about to begin."""
        self._layout = layout
        if step >= self._due and self._misses < MOST_MISSES and self not in backward_calls.heard.listeners:
            self._due, self._heard = max(step + self._every, int(1.1 * step)), 0
            self._misses += 1
            backward_calls.heard.listen(self)

    def stop(self) -> None:
        """Hear of no more."""
        backward_calls.heard.leave(self)

    def take(self) -> dict[str, Tensor | float]:
        """What the last loss was asked for, 0-d tensors, once."""
        values, self.values = self.values, {}
        return values

    @untraced
    def before(self, losses: Any) -> None:
        """Somebody is about to call backward on these."""
        with self._looking.at("what the loss is asked for"):
            for loss in losses if isinstance(losses, Sequence) else (losses,):
                self._heard += 1
                if self._layout is None or not isinstance(loss, Tensor):
                    continue
                names = {id(p): name for p, name in zip(self._layout.params, self._layout.names, strict=True)}
                graph = LossGraph(loss, names)
                if graph.reached or self._layout.sharding is not None:
                    self._heard = MOST_LOSSES
                    self.values = graph.targets()
                    self._misses = 0 if self.values else self._misses
                    gone = sum(stranger() is None for stranger in self._strangers)
                    self.values |= {f"{IN_LOSS}parameters_gone": float(gone)} if gone else {}
                    self._strangers = [weakref.ref(parameter) for parameter in graph.strangers]
                    break
        if self._heard >= MOST_LOSSES:
            self.stop()

    def after(self, before: Any) -> None:
        """The gradients are there: nothing is asked of them."""

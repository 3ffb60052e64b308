"""Hears of a loss now and then, as backward is called, and keeps what it was asked for until its step is there."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from gradwatch.measure.graph_nodes import beginning
from gradwatch.measure.layout import Layout
from gradwatch.measure.looking import Looking
from gradwatch.measure.loss_graph import LossGraph
from gradwatch.measure.writes import Mark, mark_of, weakly, writes
from gradwatch.recording import backward_calls
from gradwatch.recording.hooks import is_captured, untraced
from gradwatch.recording.target_networks import TargetNetworks
from gradwatch.recording.unheld import Unheld
from gradwatch.table import IN_LOSS

Versions = list[tuple[weakref.ref[nn.Parameter], int]]  # how often each had been written to
Pass = tuple[str, int]  # the operations that its loss begins with, and how often the weights had been written to
MOST_LOSSES = 8  # of a step that are walked: the others' may come first
MOST_TURNS = 8  # steps on end that are heard of, for each of several optimizers, until each has had its own
MOST_MISSES = 4  # steps without a loss that torch knows, after which no other is asked


@dataclass
class _Heard:
    """Of one step."""

    kept: dict[int, Mark] = field(default_factory=dict)  # of gradients that nobody but backward wrote to since the last
    is_kept: Tensor | None = None  # whether one of them was not 0 as the first backward was called
    values: dict[str, Tensor | float] = field(default_factory=dict)
    to_look_at: int = MOST_LOSSES
    passes: list[Pass] = field(default_factory=list)  # those whose gradients were there when the last one was over
    gone: list[Pass] = field(default_factory=list)  # those whose gradients were gone when the next one began
    through: list[Versions] = field(default_factory=list)  # of each pass, the other parameters its loss came through
    of_data: bool = False  # whether a loss asks for the gradient of an input
    factor: Tensor | None = None  # by which the loss is multiplied as a whole
    there: list[Mark] = field(default_factory=list)  # the marks of the gradients as the step begins


class LossTargets:
    """Of the steps that it may `begin` with it hears the first, then one `every` so many, later ever fewer; of several
    optimizers that step in turn one of each. A step without a backward that it could hear is none: a Watch that begins
    with the first step of a script has missed that, and looks as soon as it may again.

    In each it looks at the losses until one is of these layers; of sharded ones, which no graph shows, at the first.
    Of the backward passes before the step it counts those whose gradients are gone when backward is called again, and
    that are as the last one, on a loss of the same kind and for the same weights: micro-batches that are thrown away.
    And the layers whose gradients nobody wrote to from the step before on, but backward: they were never cleared. And
    the passes of another model's loss, whose optimizer has stepped since, that are in the gradients of this one still.
    And whether the `copies` of trained parts are what they were at first, and gradients come to what is `unheld`.
    """

    def __init__(
        self,
        every: int = 1,
        looking: Looking | None = None,
        copies: TargetNetworks | None = None,
        unheld: Unheld | None = None,
    ) -> None:
        self._every, self._looking, self._copies, self._unheld = every, looking or Looking(), copies, unheld
        self.is_open = False  # whether it hears of the step that is to come
        self._heard = _Heard(to_look_at=0)
        self._layout: Layout | None = None
        self._strangers: list[weakref.ref[nn.Parameter]] = []  # in the last graph, and none of the layers
        self._due = self._misses = 0  # the next step; those without success
        self._lanes: set[str] = set()  # whose steps are to be heard of; with none, whoever's comes next
        self._until = 0  # the step up to which they are waited for
        self._now: Pass = ("", 0)  # the one that is being made
        self._comes_through: Versions = []  # by its loss
        self._marks: list[Mark] = []  # of the gradients, before it and after

    def begin(self, step: int, layout: Layout, lanes: Sequence[str] = ()) -> None:
        """This step is about to begin, of one of these `lanes`, where there are several."""
        self._layout = layout
        is_due = step >= self._due
        if is_due and not self.is_open:
            self._due = max(step + self._every * max(len(lanes), 1), int(1.1 * step))
            self._lanes, self._until = {*lanes}, step + MOST_TURNS * len(lanes) if lanes else 0
        if (is_due or (self._lanes and step < self._until)) and self._misses < MOST_MISSES and not self.is_open:
            self._heard = _Heard({i: mark_of(p.grad) for i, p in enumerate(layout.params) if p.grad is not None})
            self._misses += 1
            self.is_open = True
            backward_calls.heard.listen(self)

    def stop(self) -> None:
        """Hear of no more."""
        backward_calls.heard.leave(self)
        self.is_open = False

    def stepping(self) -> None:
        """The gradients are there that a step is taken with, and nothing of ours has changed them yet."""
        self._heard.there = _marks(self._gradients())

    def take(
        self, lane: str, held: Sequence[bool] | None = None, rescaled: bool = False, clips: int = 0
    ) -> dict[str, Tensor | float]:
        """The step of a lane, of the layers that are `held` or of all, is there: what its loss was asked for,
        how many backward passes were for nothing (`dropped`), of which share of these layers gradients were
        `never_cleared`, what `factor` of the loss is in them still, but for `clips` that the loop made of them
        all, of how many `passes` they are, and how many were `summed` whose losses have no factor; how many of
        these are of a loss of another model's (`of_another`); whether a copy has ever moved (`copy_moved`); and to
        which share of what no optimizer holds a gradient ever came (`unheld_reached`).

        No pass was for nothing where others are stepped by than backward left: gradients that were put together by
        hand, unless all that wrote to them is known to have `rescaled` them, a clip or a loss scaler. Nothing of a lane
        that was heard of in this turn.
        """
        heard = self._heard
        self.stop()
        if heard.to_look_at == MOST_LOSSES and not self._until:
            self._due = 0
        if self._until and lane not in self._lanes:
            self._misses -= 1
            return {}
        self._lanes.discard(lane)
        left, there = ([mark[0] for mark in marks] for marks in (self._marks, _marks(self._gradients())))
        is_left = heard.there == self._marks or (rescaled and left == there)
        lost = heard.gone.count(self._now) if is_left and not heard.of_data else 0
        found = heard.values | ({f"{IN_LOSS}dropped": float(lost)} if lost else {})
        clipped = [(grad, number + clips) for grad, number in self._marks]
        if heard.factor is not None and heard.there == clipped:  # nobody took it out of the gradients again
            found[f"{IN_LOSS}factor"] = heard.factor
        with self._looking.at("what copies are"):
            moved = None if self._copies is None else self._copies.moved()
            found |= {} if moved is None else {f"{IN_LOSS}copy_moved": moved}
            reached = None if self._unheld is None else self._unheld.reached()
            found |= {} if reached is None else {f"{IN_LOSS}unheld_reached": reached}
        if heard.passes:
            found[f"{IN_LOSS}passes"] = float(len(heard.passes))
        is_sum = heard.factor is None and heard.there == self._marks  # and nobody divides it, or clips it
        if is_sum and 1 < len(heard.passes) == heard.passes.count(self._now):
            found[f"{IN_LOSS}summed"] = float(len(heard.passes))
        if of_others := self._of_others():
            found[f"{IN_LOSS}of_another"] = float(of_others)
        if heard.is_kept is not None and self._layout is not None and heard.passes:  # else by autograd.grad()
            own = [i for i, p in enumerate(self._layout.params) if p.grad is not None and (held is None or held[i])]
            kept = sum(i in heard.kept for i in own) / max(len(own), 1)
            found |= {f"{IN_LOSS}never_cleared": heard.is_kept * kept} if kept else {}
        return found

    @untraced
    def before(self, losses: Any) -> None:
        """Somebody is about to call backward on these."""
        with self._looking.at("what the loss is asked for"):
            heard = self._heard
            marks = _marks(self._gradients())
            heard.through = heard.through if marks == self._marks else []  # cleared, or another's
            self._marks = marks
            self._keep()
            first = losses[0] if isinstance(losses, Sequence) and losses else losses
            self._now = (beginning(first), sum(writes(p) for p in self._layout.params) if self._layout else 0)
            if not self._marks:
                heard.gone, heard.passes = [*heard.gone, *heard.passes], []
            self._comes_through, graph = [], None
            for loss in losses if isinstance(losses, Sequence) else (losses,):
                if heard.to_look_at:
                    heard.to_look_at -= 1
                    graph = self._look_at(loss) or graph
            if self._strangers and isinstance(first, Tensor) and len(heard.through) < MOST_LOSSES:
                through = (graph if graph is not None else LossGraph(first, self._ids())).strangers
                self._comes_through = [(found, writes(p)) for p in through if (found := weakly(p))]

    def _look_at(self, loss: Any) -> LossGraph | None:
        """The graph of a loss of these layers, whose numbers are kept."""
        if self._layout is None or not isinstance(loss, Tensor) or is_captured(loss.device):
            return None
        graph = LossGraph(loss, self._ids())
        if not graph.reached and self._layout.sharding is None:
            return None
        heard = self._heard
        heard.to_look_at, heard.of_data = 0, graph.asks_of_data
        heard.factor = graph.factor()
        heard.values |= (asked := graph.targets())
        self._misses = 0 if asked else self._misses
        with self._looking.at("the model inside"):
            heard.values |= (inside := graph.values(self._layout.names))
            self._misses = 0 if inside else self._misses
        gone = sum(stranger() is None for stranger in self._strangers)
        heard.values |= {f"{IN_LOSS}parameters_gone": float(gone)} if gone else {}
        self._strangers = [found for parameter in graph.strangers if (found := weakly(parameter))]
        return graph

    @untraced
    def after(self, before: Any) -> None:
        """The gradients are there."""
        heard = self._heard
        grads = self._gradients()
        if (marks := _marks(grads)) != self._marks:  # else it was of another model
            heard.passes.append(self._now)
            heard.through.append(self._comes_through)
        self._marks = marks
        if self._layout is not None and heard.kept:
            there = ((i, self._layout.params[i].grad) for i in heard.kept)
            heard.kept = {i: mark_of(grad) for i, grad in there if grad is not None}
        with self._looking.at("what backward left"):
            left = _is_left(grads[-1]) if grads else None
            heard.values |= {} if left is None else {f"{IN_LOSS}gradient_left": left}

    def _of_others(self) -> int:
        """How many passes are of a loss that came through another model which has stepped since, and are not as the
        last one: that came through none, or its loss is of another kind.
        """
        heard = self._heard
        if not heard.passes or not heard.through:
            return 0
        passes = zip(reversed(heard.passes), reversed(heard.through), strict=False)
        (last, _), own = heard.passes[-1], not heard.through[-1]
        return sum(_moved(through) and (own or kind != last) for (kind, _), through in passes)

    def _keep(self) -> None:
        """Backward is about to write to the gradients: those that somebody else wrote to, or cleared, are not kept."""
        heard = self._heard
        if self._layout is None or not heard.kept:
            return
        grads = {i: self._layout.params[i].grad for i in heard.kept}
        heard.kept = {i: mark for i, mark in heard.kept.items() if grads[i] is not None and mark_of(grads[i]) == mark}
        if heard.is_kept is None and heard.kept:
            heard.is_kept = _is_left(grads[max(heard.kept)])

    def _ids(self) -> dict[int, str]:
        """The names of the layers by the ids of their parameters, of slices that of the first."""
        layout = self._layout
        return dict(zip(map(id, reversed(layout.params)), reversed(layout.names), strict=True)) if layout else {}

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self._layout.params if p.grad is not None] if self._layout else []


def _is_left(grad: Tensor | None) -> Tensor | None:
    """Whether any of a gradient is not 0, 0-d; None of one that is sparse, or on a device that is captured."""
    if type(grad) is not Tensor or grad.is_sparse or is_captured(grad.device):
        return None
    return (grad != 0).any().float()


def _marks(grads: list[Tensor]) -> list[Mark]:
    return [mark_of(grad) for grad in grads]


def _moved(parameters: Versions) -> bool:
    """Whether somebody wrote to one of them since."""
    return any((there := at()) is not None and writes(there) != version for at, version in parameters)

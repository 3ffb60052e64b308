"""The weights after a step, for constraints to act on: what `Batch` has, and what is known of weights alone."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from gradwatch.errors import PolicyError
from gradwatch.measure.distributed import add_up
from gradwatch.measure.foreach import MaybeTensors
from gradwatch.measure.gradients import Batch, Subset
from gradwatch.measure.largest_logits import LargestLogits
from gradwatch.measure.layout import Layout
from gradwatch.measure.singular_values import AGAIN, FIRST, PowerIteration, is_matrix
from gradwatch.policies.base import State

Iterations = dict[tuple[int, ...], PowerIteration]  # by the places of the layers that a constraint sees


class WeightBatch(Batch):
    """The weights of one step; `heads` knows the logits of the attention that they are of.

    `iterations` are kept from step to step: how the matrices of a layout lie over ranks does not change.
    """

    heads: LargestLogits | None = None

    def __init__(
        self,
        layout: Layout,
        tensors: MaybeTensors,
        heads: LargestLogits | None = None,
        iterations: Iterations | None = None,
    ) -> None:
        super().__init__(layout, tensors)
        self.heads, self.iterations = heads, {} if iterations is None else iterations

    def only(self, pattern: str) -> WeightBatch:
        """The layers whose name fits `pattern`, as a batch that acts on this one.

        Raises:
            PolicyError: no layer fits.
        """
        part = cast("Subset", super().only(pattern))
        return WeightSubset(self, part.path, part.index)

    def largest_logits(self) -> tuple[MaybeTensors, MaybeTensors]:
        """As `LargestLogits.of_rows`, of these layers.

        Raises:
            PolicyError: nobody listens to the attention of a model.
        """
        if self.heads is None:
            raise PolicyError("QKClip goes by the attention of a model that is watched: give it to watch(renorm=)")
        logits, powers = self.heads.of_rows(self.layout)
        return [logits[i] for i in self.places], [powers[i] for i in self.places]

    def note_scaled_heads(self, tau: float) -> None:
        """The heads with logits above `tau` were scaled, of these layers as far as they are held."""
        held = {id(self.layout.params[i]) for i, w in zip(self.places, self.tensors, strict=True) if w is not None}
        if self.heads is not None:
            self.heads.note_scaled(held, tau)

    def first_singular_vectors(self) -> State:
        """Of each matrix the first right singular vector, by its layer's name."""
        iteration = self._iteration()
        vectors, _ = self._advanced(iteration, [iteration.start(i) for i in iteration.places], FIRST)
        return self._by_name(iteration, vectors)

    def largest_singular_values(self, vectors: State) -> tuple[MaybeTensors, State]:
        """Of each matrix the largest singular value, 0-d, and its vector after some more iterations."""
        iteration = self._iteration()
        moved, values = self._advanced(iteration, [vectors[self.layout.names[i]] for i in iteration.places], AGAIN)
        found = dict(zip(iteration.places, values, strict=True))
        return [found.get(i) for i in self.places], self._by_name(iteration, moved)

    def _iteration(self) -> PowerIteration:
        """That of the matrices among these layers."""
        key = tuple(self.places)
        if key not in self.iterations:
            matrices = [i for i in self.places if is_matrix(self.layout, i)]
            self.iterations[key] = PowerIteration(self.layout, matrices)
        return self.iterations[key]

    def _advanced(
        self, iteration: PowerIteration, vectors: list[Tensor], times: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        return add_up(iteration.advance(vectors, times), self.layout.sharding)

    def _by_name(self, iteration: PowerIteration, vectors: list[Tensor]) -> State:
        return {self.layout.names[i]: v for i, v in zip(iteration.places, vectors, strict=True)}


class WeightSubset(Subset, WeightBatch):
    """Some layers of a batch of weights; what is done to it is done to its parent."""

    def __init__(self, parent: WeightBatch, path: tuple[str, ...], index: tuple[int, ...]) -> None:
        super().__init__(parent, path, index)
        self.heads, self.iterations = parent.heads, parent.iterations

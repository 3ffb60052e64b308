"""The weights after a step, for constraints to act on: what `Batch` has, and what is known of weights alone."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from gradwatch.errors import PolicyError
from gradwatch.measure.foreach import MaybeTensors
from gradwatch.measure.gradients import Batch, Subset
from gradwatch.measure.largest_logits import LargestLogits
from gradwatch.measure.layout import Layout
from gradwatch.measure.singular_values import AGAIN, FIRST, PowerIteration, is_matrix
from gradwatch.policies.base import State


class WeightBatch(Batch):
    """The weights of one step; `heads` knows the logits of the attention that they are of."""

    heads: LargestLogits | None = None

    def __init__(self, layout: Layout, tensors: MaybeTensors, heads: LargestLogits | None = None) -> None:
        super().__init__(layout, tensors)
        self.heads = heads

    def only(self, pattern: str) -> WeightBatch:
        """The layers whose name fits `pattern`, as a batch that acts on this one.

        Raises:
            PolicyError: no layer fits.
        """
        return WeightSubset(self, cast("Subset", super().only(pattern)).index)

    def largest_logits(self) -> tuple[MaybeTensors, MaybeTensors]:
        """As `LargestLogits.of_rows`, of these layers.

        Raises:
            PolicyError: nobody listens to the attention of a model.
        """
        if self.heads is None:
            raise PolicyError("QKClip goes by the attention of a model that is watched: give it to watch(renorm=)")
        logits, powers = self.heads.of_rows(self.layout)
        return [logits[i] for i in self.places], [powers[i] for i in self.places]

    def first_singular_vectors(self) -> State:
        """Of each matrix the first right singular vector, by its layer's name."""
        iteration = PowerIteration(self.layout, self._matrices())
        vectors, _ = iteration.advance([iteration.start(i) for i in iteration.places], FIRST)
        return self._by_name(vectors)

    def largest_singular_values(self, vectors: State) -> tuple[MaybeTensors, State]:
        """Of each matrix the largest singular value, 0-d, and its vector after some more iterations."""
        iteration = PowerIteration(self.layout, self._matrices())
        moved, values = iteration.advance([vectors[self.layout.names[i]] for i in iteration.places], AGAIN)
        found = dict(zip(iteration.places, values, strict=True))
        return [found.get(i) for i in self.places], self._by_name(moved)

    def _matrices(self) -> list[int]:
        return [i for i in self.places if is_matrix(self.layout, i)]

    def _by_name(self, vectors: list[Tensor]) -> State:
        return {self.layout.names[i]: v for i, v in zip(self._matrices(), vectors, strict=True)}


class WeightSubset(Subset, WeightBatch):
    """Some layers of a batch of weights; what is done to it is done to its parent."""

    def __init__(self, parent: WeightBatch, index: tuple[int, ...]) -> None:
        super().__init__(parent, index)
        self.heads = parent.heads

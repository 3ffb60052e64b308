"""Numbers of the weights and of the optimizer's own tensors, measured every few steps: norms, update ratios, and how
far the weights got between two measurements.

Legend: L layers, in the order of the Layout; R rows of samples.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import threshold
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.collectives import Sums, together
from gradwatch.measure.distributed import local
from gradwatch.measure.foreach import MaybeTensors, grouped, measure, which_are_there
from gradwatch.measure.largest_logits import LargestLogits
from gradwatch.measure.layout import Layout, real
from gradwatch.measure.looking import Looking
from gradwatch.measure.samples import Samples
from gradwatch.measure.second_moment import adam_rms
from gradwatch.measure.singular_values import SingularValues
from gradwatch.measure.weight_batch import Iterations, WeightBatch

if TYPE_CHECKING:
    from gradwatch.policies import Policy
    from gradwatch.policies.base import State

_REQUIRES_GRAD = operator.attrgetter("requires_grad")


class Weights:
    """The weights around a step: what a constraint does to them, and every few steps their norms and update ratios.

    The constraint acts, and its errors are the user's; all else is `looking`.
    """

    def __init__(
        self,
        layout: Layout,
        renorm: Policy | None,
        every: int,
        slots: bool,
        looking: Looking | None = None,
        singular_values: Sequence[str] = (),
        heads: LargestLogits | None = None,
    ) -> None:
        self.layout, self.renorm, self.every, self.slots = layout, renorm, every, slots
        self.looking, self.heads = looking or Looking(), heads
        self._iterations: Iterations = {}
        self._turns: defaultdict[Optimizer, Iterator[int]] = defaultdict(count)  # of each that steps alone
        self._update_ratio = UpdateRatio(layout)
        self._of_moments = Samples(layout, 2) if slots else None
        self._singular_values = SingularValues(layout, singular_values) if singular_values else None
        self._patterns = singular_values
        self._looked = False  # whether it has seen the weights before the step
        # a pattern that fits no layer is named before training starts
        self.state = {} if renorm is None else renorm.init(self._batch([None] * len(layout.params)))

    @property
    def matrices(self) -> int:
        """Of how many weights the largest singular value is measured."""
        return 0 if self._singular_values is None else len(self._singular_values.places)

    def on(self, layout: Layout) -> Weights:
        """The same of other layers, with the constraint's state of those that stay."""
        new = Weights(layout, self.renorm, self.every, self.slots, self.looking, self._patterns, self.heads)
        new.load_state({key: value for key, value in self.state.items() if key in new.state})
        return new

    def load_state(self, state: State) -> None:
        """Go on with a constraint's state that was saved."""
        copied = {key: value.to(self.layout.device, copy=True) for key, value in state.items()}
        self.state = self.state | copied

    def before_step(self, number: int, alone: Optimizer | None = None) -> bool:
        """Whether the weights are measured in this step. If so they are looked at, and with `slots` in any step.

        Those of an optimizer that steps `alone` also in one `every` so many of its own: of several that step in turn
        one might have none of the steps whose numbers `every` divides.
        """
        turn = number if alone is None else next(self._turns[alone])
        is_measured = 0 in (number % self.every, turn % self.every)
        if is_measured or self.slots:
            self._looked = False
            with self.looking.at("update_ratio"):
                self._update_ratio.before(number % self.every == 0)
                self._looked = True
        return is_measured

    @without_autograd
    def constrain(self, held: Sequence[bool]) -> Tensor | None:
        """Apply the constraint to the layers that are `held`, `[L]`; returns the share of units scaled back, `[L]`.

        What is frozen (`requires_grad=False`) stays as it is, also where an optimizer holds it.
        """
        if self.renorm is None:
            return None
        trained = map(operator.and_, held, map(_REQUIRES_GRAD, self.layout.params))
        weights = [w if own else None for w, own in zip(self.layout.weights(), trained, strict=True)]
        batch = self._batch(weights)
        self.state = self.renorm.apply(batch, self.state)
        return None if batch.fraction is None else torch.where(batch.present(), batch.fraction, torch.nan)

    def _batch(self, weights: MaybeTensors) -> WeightBatch:
        return WeightBatch(self.layout, weights, self.heads, self._iterations)

    def after_step(
        self, optimizers: Sequence[Optimizer], renorm_rate: Tensor | None, is_measured: bool
    ) -> Sums[dict[str, Tensor]]:
        """What is measured after a step, `[L]` each: all where `before_step` said so, otherwise what `slots` asks for.

        The stable rank is |W|_F^2 / sigma^2 (Rudelson & Vershynin 2007, arXiv:math/0503442).
        """
        asked: dict[str, Sums[Any]] = {}
        if is_measured:
            asked["weight_norm"] = weight_norms(self.layout)
            if self._singular_values is not None:
                asked["sigma_max"] = self._singular_values.measure()
            if self.slots:
                asked["slot_norm"] = slot_norms(self.layout, optimizers, self.looking)
        if self.slots:
            asked["adam_rms"] = adam_rms(self.layout, optimizers, self._of_moments)
        if self._looked:
            asked["update_ratio"] = self._update_ratio.after(self.slots, is_measured)
        found = yield from together(asked, self.looking)
        values = {} if renorm_rate is None or not is_measured else {"renorm_rate": renorm_rate}
        for name, value in found.items():
            values.update({} if value is None else value if isinstance(value, dict) else {name: value})
        if "sigma_max" in found and "weight_norm" in found:
            values["stable_rank"] = (found["weight_norm"] / found["sigma_max"]).square()
        return values


class UpdateRatio:
    """How far a step moved each layer, from at most 4,096 of its elements: `before()` the step, `after()` it; and how
    far all that happened since the measurement before did.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._begin()

    def _begin(self) -> None:
        self._samples, self._lie = Samples(self.layout, 3), _lie(self.layout.weights())
        self._looks = 0  # how often it looked before a measured step: in one of two rows, in turn
        self._before = 0  # the row of the last look before a step

    def before(self, is_measured: bool = True) -> None:
        """Look at the weights before the step: where it `is_measured`, the next one that is will know it, too.

        Where they lie otherwise since (`.to(memory_format=...)`), or grew in place, samples are of other elements:
        it begins anew.
        """
        if is_measured and _lie(self.layout.weights()) != self._lie:
            self._begin()
        self._before = (self._looks + 1) % 2
        self._samples.look(self._before, self.layout.weights())
        self._looks += is_measured

    def after(self, with_norm: bool = False, with_ratio: bool = True) -> Sums[dict[str, Tensor]]:
        """Of each layer, `[L]`, after a step, as shares of ‖w before the step‖: `with_ratio`, how far the step moved it
        (`update_ratio`), and from the second measurement on that `before` was told of, how far it is from where it was
        before the last of these (`displacement`). `with_norm` how far the step moved it (`update_norm`).

        The ratios are NaN where the weights were all zero.
        """
        self._samples.look(2, self.layout.weights())
        samples, now = self._samples.rows(), self._looks % 2
        if self._before != now:
            samples[2].sub_(samples[self._before])
            both = samples[slice(self._before, 3, 2 - self._before) if with_ratio else slice(2, 3)]
            *before, moved = yield from self._over_ranks(self._samples.norms(both), with_norm)
            found = {"update_ratio": moved / threshold(before[0], 0.0, torch.nan)} if with_ratio else {}
            return {**found, "update_norm": moved} if with_norm else found
        earlier = slice(2, 3) if self._looks == 1 else slice(1, 3) if now == 0 else slice(0, 3, 2)
        samples[earlier].sub_(samples[now])  # the look before the last, and the one after the step
        norms = yield from self._over_ranks(self._samples.norms(samples), with_norm)
        ratios = norms[earlier] / threshold(norms[now], 0.0, torch.nan)
        found = dict(zip(("update_ratio", "displacement"), reversed(ratios.unbind()), strict=False))
        return {**found, "update_norm": norms[2]} if with_norm else found

    def _over_ranks(self, norms: Tensor, of_all: bool) -> Sums[Tensor]:
        """The norms of samples, `[R, L]`, over all ranks; estimates `of_all` elements where that is asked for."""
        if self.layout.sharding is None:
            roots = self.layout.constant(
                "roots", lambda: self.layout.numbers([*map(math.sqrt, self._samples.steps)], norms.dtype)
            )
            return norms * roots if of_all else norms
        # an element of a sample stands for as many as the sample's step
        steps = self.layout.constant("steps", lambda: self.layout.numbers(self._samples.steps, torch.float64))
        sums = yield from self.layout.sharding.add(norms.to(torch.float64) ** 2 * steps)
        return sums.sqrt().to(norms.dtype)


def _lie(weights: Sequence[Tensor]) -> list[object]:
    """The shapes of weights, and how they lie in memory: those that are strided."""
    return [(w.shape, w.stride() if w.layout is torch.strided else w.layout) for w in weights]


def weight_norms(layout: Layout) -> Sums[Tensor]:
    """The L2 norm of each layer's weights, `[L]`; NaN of those that have none: codes, masks, sparse ones."""
    weights = layout.weights()
    have = [*map(_has_norm, weights)]
    norms, present = yield from _norms(layout, [w if own else None for w, own in zip(weights, have, strict=True)])
    return norms if all(have) else torch.where(present, norms, torch.nan)


def _has_norm(w: Tensor) -> bool:
    return w.layout is torch.strided and (w.is_complex() or (w.is_floating_point() and w.itemsize > 1))


def slot_norms(layout: Layout, optimizers: Sequence[Optimizer], looking: Looking) -> Sums[dict[str, Tensor]]:
    """The L2 norm of each tensor the optimizers keep per parameter, `[L]` by name; NaN where there is none.

    Of one that is kept quantised (bitsandbytes' 8-bit codes, torchao's tensors) there is none: its elements are codes.
    """
    whole = layout.whole.values()
    states: list[Mapping[str, object]] = [next((o.state[p] for o in optimizers if p in o.state), {}) for p in whole]
    found: dict[str, list[Tensor | None]] = {}
    for i, (p, state) in enumerate(zip(whole, states, strict=True)):
        for name, value in state.items():
            if not isinstance(value, Tensor) or value.shape != p.shape or name == "step":
                continue
            plain = local(value)
            packed = is_traceable_wrapper_subclass(plain)
            if packed or not (plain.is_floating_point() or plain.is_complex()):
                kept = type(plain).__name__ if packed else plain.dtype
                looking.miss(f"slot_norm/{name}", f"{kept} holds codes; layers that keep plain numbers are recorded")
                continue
            found.setdefault(name, [None] * len(states))[i] = real(
                plain.coalesce()._values() if plain.is_sparse else plain
            )
    asked = {f"slot_norm/{name}": _norms(layout, layout.slices(tensors)) for name, tensors in found.items()}
    norms = yield from together(asked, looking)
    return {name: torch.where(present, each, torch.nan) for name, (each, present) in norms.items()}


def _norms(layout: Layout, tensors: MaybeTensors) -> Sums[tuple[Tensor, Tensor]]:
    """The L2 norm of each layer's tensor, `[L]`, and which layers any rank has one of, `[L]` bool."""
    here = which_are_there(tensors)
    norms, present = measure(layout, grouped(layout, tensors, here)), layout.which(here)
    if layout.sharding is not None:
        parts = norms.to(torch.float64)  # the square of a float32 norm may be out of float32's range
        both = yield from layout.sharding.add(torch.stack([parts.square(), present.to(torch.float64)]))
        norms, present = both[0].sqrt().to(norms.dtype), both[1] > 0
    return norms, present

"""The tensors of a step, for policies and constraints to act on: they say how much, `foreach` reads and scales.

Legend: L layers, in the order of the Layout. Everything here is device arithmetic: nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwatch.formulas import clip_coef
from gradwatch.measure.distributed import local
from gradwatch.measure.foreach import (
    Group,
    MaybeTensors,
    grads_of,
    grouped,
    has_sparse,
    measure,
    scale_,
    scale_units_,
    unit_norms,
    which_are_there,
)
from gradwatch.measure.layout import Layout, Norms, at, real, share
from gradwatch.measure.rows import LargestRows
from gradwatch.measure.scopes import scope


class Batch:
    """The tensors of one step that a policy acts on: gradients before the step, or weights after it.

    `tensors[i]` is None where layer i has no gradient in this step, and this rank's part where it is a DTensor.
    Coefficients gather in `pending` and are applied once, by `apply_pending`; the first element-wise change does so.

    `unscale` is what takes a loss scale out of the tensors: norms count it in, and it is applied with the coefficients.
    """

    # Until something is known or asked: most steps set few of these
    pending: Tensor | None = None
    limit: tuple[float, float] | None = None  # see scale_to
    measured: Tensor | None = None  # the L2 norms of the tensors as they are, `[L]`, where they are known
    fills_memory = False  # whether it is known already that the tensors do (`multi_tensor.fill_memory`)
    skipped: Tensor | None = None
    fraction: Tensor | None = None  # [L] share of elements that an element-wise change touched
    path: tuple[str, ...] = ()  # the patterns of the `only` that it is in
    largest_rows: Sequence[Tensor] = ()  # the fields of `LargestRows`, where rows are looked at: of the first norms
    _norms: Norms | None = None
    _present: Tensor | None = None

    def __init__(
        self,
        layout: Layout,
        tensors: MaybeTensors,
        optimizers: Sequence[Optimizer] = (),
        norm_types: tuple[float, ...] = (),
        unscale: Tensor | None = None,
        here: tuple[bool, ...] | None = None,
    ) -> None:
        self.layout, self.tensors, self.optimizers, self.norm_types = layout, tensors, optimizers, norm_types
        self.names, self.params, self.places = layout.names, layout.params, layout.every
        self.here, self.unscale = here or which_are_there(tensors), unscale
        self._ahead = [] if unscale is None else [unscale]  # what the norms do not count in yet

    @cached_property
    def groups(self) -> list[Group]:
        """The tensors by device and dtype."""
        return grouped(self.layout, self.tensors, self.here)

    # ------------------------------------------------------------------------------------------- what policies use

    def norms(self) -> Norms:
        """The norms as they are now, with pending coefficients counted in; measured when first asked for."""
        if self.limit is not None:
            self.settle()
        if self._norms is None:
            l2 = self.measure() if self.measured is None else self.measured
            others = {p: self.measure(p) for p in self.norm_types if p != 2.0} if self.norm_types else {}
            known: dict[float, Tensor] | None = None if self.layout.stages is None else {}
            here = self.here if self._present is None else self._present
            self._norms = Norms(l2, self.names, others, self.layout, here, None, known)
        while self._ahead:
            self._norms = self._norms.scaled(self._ahead.pop(0))
        return self._norms

    def scale(self, coef: Tensor) -> None:
        """Multiply the gradients by `coef`, `[]` or `[L]`."""
        self.settle()
        coef = at(self.layout.device, coef)  # a policy of somebody's own may answer with a number of the CPU's
        self.pending = coef if self.pending is None else self.pending * coef
        self._ahead.append(coef)

    def scale_to(self, limit: float, p: float = 2.0) -> None:
        """Scale all gradients to a joint p-norm of `limit` at most, as torch's clip does, by product or division."""
        self.settle()
        self.limit = limit, p
        if self.pending is not None:
            self.settle()

    def settle(self) -> None:
        """Where it is open whether to multiply or to divide, multiply."""
        if self.limit is not None:
            (limit, p), self.limit = self.limit, None
            self.scale(clip_coef(self.norms().total(p), limit))

    def skip(self, flag: Tensor) -> None:
        """Say that this step must not happen where `flag` (0-d bool) is true: of a pipeline, on any of its ranks."""
        flag = flag if self.layout.stages is None else self.layout.stages.any(flag)
        self.skipped = flag if self.skipped is None else self.skipped | flag

    def only(self, pattern: str) -> Batch:
        """The layers that `pattern` means, as a batch that acts on this one; of a pipeline there may be none here.

        Raises:
            PolicyError: no layer fits, of a pipeline on any stage.
        """
        path = (*self.path, pattern)
        return Subset(self, path, scope(path, self.names, self.params, self.optimizers, self.layout.fits_elsewhere))

    def slot(self, name: str) -> MaybeTensors:
        """The optimizer's state tensor `name` of each layer, None where there is none."""
        found: list[Tensor | None] = []
        for p in self.layout.whole.values():
            value = next((o.state[p].get(name) for o in self.optimizers if p in o.state), None)
            found.append(local(value) if isinstance(value, Tensor) and value.shape == p.shape else None)
        return self.layout.slices(found)

    @property
    def weights(self) -> list[Tensor]:
        """Each layer's weights as a real tensor; of a DTensor this rank's part."""
        weights = self.layout.weights()
        return [weights[i] for i in self.places]

    def unit_norms(
        self, dims: Callable[[Tensor], tuple[int, ...] | None], p: float = 2.0, *, weights: bool = False
    ) -> list[Tensor | None]:
        """The p-norm of each unit of each tensor, or of each layer's `weights`.

        A unit is what `dims(tensor)` norms over: those dimensions stay, with length 1; no dims give the norm of the
        whole tensor, None leaves the layer out. Of units that are split over ranks, the norm of the whole unit.
        """
        self.layout.check_units()
        self.apply_pending()
        shapes = self.weights
        own: MaybeTensors = [w if g is not None else None for w, g in zip(shapes, self.tensors, strict=True)]
        tensors = own if weights else self.tensors  # weights that no gradient comes to may be of any kind
        over = {i: dims(s if t is None else t) for i, s, t in zip(self.places, shapes, tensors, strict=True)}
        asked = {i: d for i, d in over.items() if d is not None}
        norms = {
            i: unit_norms(t, asked[i], p)
            for i, t in zip(self.places, tensors, strict=True)
            if i in asked and t is not None
        }
        if self.layout.sharding is not None:
            norms = self.layout.sharding.join_units(norms, asked, p)
        return [norms.get(i) for i in self.places]

    def change(self, fn: Callable[[int, Tensor], Tensor]) -> None:
        """Let `fn(layer, tensor)` change each tensor in place; it returns which elements it changed, or their share.

        Of a DTensor it gets this rank's part: what it needs of the whole it takes from `norms` or `unit_norms`.
        """
        self.apply_pending()
        zero = self._share(0.0)
        self._changed([zero if t is None else share(fn(i, t), zero.device) for i, t in enumerate(self.tensors)])

    def scale_units(
        self, coef: Callable[..., Tensor], norms: Sequence[MaybeTensors], alone: Sequence[float] | None = None
    ) -> None:
        """Multiply each unit by its coefficient, `coef(*norms)`, asked once for the units of all layers in a row.

        `norms` are lists as `unit_norms` gives them. A layer that one of them has no norms of is left alone: the share
        of its elements that are said to have changed is that of `alone`, or 0.
        """
        self.apply_pending()
        shares = [self._share(0.0)] * len(self.tensors)  # also of a part that is empty on this rank
        groups: dict[object, list[int]] = {}
        for i, (t, *own) in enumerate(zip(self.tensors, *norms, strict=True)):
            if t is not None and any(n is None for n in own):
                shares[i] = self._share(alone[i] if alone else 0.0)
            elif t is not None and t.numel():
                groups.setdefault((t.device, t.dtype), []).append(i)
        for layers in groups.values():
            tensors, *own = ([cast("Tensor", each[i]) for i in layers] for each in (self.tensors, *norms))
            for i, changed in zip(layers, scale_units_(tensors, own, coef), strict=True):
                shares[i] = share(changed, self.layout.device)
        self._changed(shares)

    def _share(self, value: float) -> Tensor:
        return self.layout.constant(("share", str(value)), lambda: self.layout.full((), value).float())

    def _changed(self, shares: Sequence[Tensor]) -> None:
        """The tensors are other ones, in these shares of their elements, 0-d each."""
        self._norms, self.measured, self._ahead = None, None, []
        found = torch.stack(list(shares))
        if self.layout.sharding is not None:
            found = self.layout.sharding.mean(found)
        self.fraction = found if self.fraction is None else torch.maximum(self.fraction, found)

    # --------------------------------------------------------------------------------------------- what the Watch uses

    def measure(self, p: float = 2.0, into: Tensor | None = None, rows: LargestRows | None = None) -> Tensor:
        """The p-norms of the tensors as they are, `[L]`; under sharding of the whole layers, by one all-reduce."""
        fits = into is not None and into.dtype is self.layout.dtype and self.layout.sharding is None
        norms = measure(self.layout, self.groups, p, into if fits else None, None if rows is None else rows.norms)
        pairs = {} if rows is None else rows.pairs()
        if self.layout.sharding is not None:
            norms, self._present, pairs = self.layout.sharding.join(norms, self.layout.which(self.here), p, pairs)
        if rows is not None:
            self.largest_rows = rows.fields(norms, pairs)
        return norms

    def present(self) -> Tensor:
        """Which layers have a gradient on any rank, `[L]` bool."""
        if self.layout.sharding is None:
            return self.layout.which(self.here)
        if self._present is None:
            self.measure()
        assert self._present is not None
        return self._present

    def apply_pending(self) -> None:
        """Multiply the tensors by the pending coefficients, and take the loss scale out."""
        self.settle()
        if self._norms is None and self.measured is None:
            self._ahead.clear()  # they are going to be measured with it
        for factor in (self.unscale, self.pending):
            if factor is not None:
                scale_(self.layout, self.groups, factor)
        self.unscale = self.pending = None


class Subset(Batch):
    """Some layers of a batch; what is done to it is done to its parent."""

    def __init__(self, parent: Batch, path: tuple[str, ...], index: tuple[int, ...]) -> None:
        self.parent, self.path, self.index = parent, path, index
        self.layout, self.optimizers, self.norm_types = parent.layout, parent.optimizers, parent.norm_types
        self.names = tuple(parent.names[i] for i in index)
        self.params = tuple(parent.params[i] for i in index)
        self.places = tuple(parent.places[i] for i in index)
        self.tensors = [parent.tensors[i] for i in index]

    def _index(self) -> Tensor:
        return self.layout.constant(self.index, lambda: self.layout.numbers(self.index, torch.int64))

    def norms(self) -> Norms:
        """The parent's norms of these layers."""
        return self.parent.norms().take(self._index(), self.names)

    def scale(self, coef: Tensor) -> None:
        """Scale these layers of the parent; the others by 1."""
        ones = self.layout.ones(len(self.parent.names))
        self.parent.scale(ones.index_copy(0, self._index(), coef.to(ones.dtype).expand(len(self.index))))

    def scale_to(self, limit: float, p: float = 2.0) -> None:
        """Scale these layers of the parent."""
        self.scale(clip_coef(self.norms().total(p), limit))

    def skip(self, flag: Tensor) -> None:
        """Skip the parent's whole step."""
        self.parent.skip(flag)

    def slot(self, name: str) -> MaybeTensors:
        """The optimizer's state tensor `name` of these layers."""
        slots = self.parent.slot(name)
        return [slots[i] for i in self.index]

    def apply_pending(self) -> None:
        """Apply what is pending on the parent."""
        self.parent.apply_pending()

    def scale_units(
        self, coef: Callable[..., Tensor], norms: Sequence[MaybeTensors], alone: Sequence[float] | None = None
    ) -> None:
        """Scale the units of these tensors of the parent."""
        spread = [dict(zip(self.index, each, strict=True)) for each in norms]
        every = range(len(self.parent.tensors))
        left = dict(zip(self.index, alone or (), strict=False))
        self.parent.scale_units(
            coef, [[own.get(i) for i in every] for own in spread], [left.get(i, 0.0) for i in every]
        )

    def change(self, fn: Callable[[int, Tensor], Tensor]) -> None:
        """Change these tensors of the parent."""
        place = {parent: own for own, parent in enumerate(self.index)}
        untouched = self._share(0.0)
        self.parent.change(lambda i, t: fn(place[i], t) if i in place else untouched)


# ------------------------------------------------------------------------------------------------------- gradients


def gradients(layout: Layout, held: Sequence[bool] | None = None, will_change: bool = True) -> list[Tensor | None]:
    """The gradient of each layer as a dense real tensor that shares its memory; None where there is none.

    Of a sparse gradient it is the coalesced values (coalesced in place if it `will_change`), of a complex one its view
    as real, of a DTensor this rank's part. `held[i]` False leaves layer i out. `will_change` False says that the
    gradients are only looked at.
    """
    params = layout.whole.values()
    grads = grads_of(params)
    if held is not None:
        grads = [g if h else None for g, h in zip(grads, layout.of_whole(held), strict=True)]
    spread = layout.sharding
    if spread is not None:
        grads = [None if g is None else spread.gradient(p, g, will_change) for p, g in zip(params, grads, strict=True)]
    if layout.has_complex or has_sparse(grads):
        grads = [None if g is None else _dense(p, g, will_change) for p, g in zip(params, grads, strict=True)]
    return layout.slices(grads)


def _dense(param: Tensor, grad: Tensor, will_change: bool) -> Tensor:
    if grad.is_sparse:
        whole = grad.coalesce()
        if will_change:
            param.grad = whole  # otherwise left as it is: adding up its entries in another order rounds otherwise
        grad = whole._values()
    return real(grad)

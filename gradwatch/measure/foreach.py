"""Lists of tensors in one call per device and dtype: their norms, and a multiplication in place.

Legend: L layers, in the order of the Layout. Everything here is device arithmetic: nothing waits for the device.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import accumulate, repeat
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

from gradwatch.measure.layout import Layout, at
from gradwatch.measure.multi_tensor import MultiTensor, Pointers

MaybeTensors = Sequence[Tensor | None]
Group = tuple[list[Tensor], tuple[int, ...]]  # tensors of one device and dtype, and the layers they belong to
HALVES = (torch.float16, torch.bfloat16)
_DTYPE, _GRAD, _IS_SPARSE = map(operator.attrgetter, ("dtype", "grad", "is_sparse"))


def grads_of(params: Iterable[Tensor]) -> list[Tensor | None]:
    """Their gradients. This and what follows is asked on every step: no Python instruction per tensor."""
    return list(map(_GRAD, params))


def has_sparse(tensors: MaybeTensors) -> bool:
    """Whether one of them is sparse."""
    return True in map(_IS_SPARSE, there(tensors))


def which_are_there(tensors: MaybeTensors) -> tuple[bool, ...]:
    """Whether each is a tensor and not None."""
    return tuple(map(operator.is_not, tensors, repeat(None)))


def there(tensors: MaybeTensors) -> Sequence[Tensor]:
    """Those that are tensors."""
    everything = all(map(operator.is_not, tensors, repeat(None)))
    return cast("Sequence[Tensor]", tensors) if everything else [t for t in tensors if t is not None]


def grouped(layout: Layout, tensors: MaybeTensors, here: Sequence[bool]) -> list[Group]:
    """The tensors that are there, as `here` says of each, by device and dtype."""
    everything = False not in here and len(here) == len(layout.every)
    if layout.has_empty:  # nothing to measure or scale, and some norms of nothing are errors
        tensors, everything = [t if t is not None and t.numel() else None for t in tensors], False
    present = [*tensors] if everything else [*there(tensors)]
    if not present:
        return []
    if everything and layout.one_device and not layout.strided and len(set(map(_DTYPE, present))) == 1:
        return [(cast("list[Tensor]", present), layout.every)]  # the usual case, at a tenth of the price
    index = layout.every if everything else [i for i, t in enumerate(tensors) if t is not None]
    groups: dict[Any, tuple[Any, list[int]]] = _group_tensors_by_device_and_dtype([[*present]], with_indices=True)
    found = [(lists[0], tuple(index[i] for i in places)) for lists, places in groups.values()]
    return _apart(found, layout.strided) if layout.strided else found


def _apart(groups: Sequence[Group], strided: Collection[int]) -> list[Group]:
    """The same with the strided layers of each group in one of their own: the others are taken together."""
    out = []
    for tensors, index in groups:
        for which in (False, True):
            own = [(t, i) for t, i in zip(tensors, index, strict=True) if (i in strided) is which]
            if own:
                out.append(([t for t, _ in own], tuple(i for _, i in own)))
    return out


def measure(
    layout: Layout,
    groups: Sequence[Group],
    p: float = 2.0,
    into: Tensor | None = None,
    rows: dict[int, Tensor] | None = None,
) -> Tensor:
    """The p-norm of each layer's part on this rank, `[L]`, accumulated in at least float32; 0 for one in no group.

    They are put `into` a tensor that is like them, which is returned. `rows` is given the norms of the rows of those
    layers whose rows are looked at.
    """
    for n, group in enumerate(groups if layout.at_once and p == 2.0 else ()):
        at_once = _norms_at_once(layout, group, into)
        if at_once is not None:  # 0 of the layers of the others
            if rows is not None:
                _norms_of_rows(layout, group, rows)
            rest = [*groups[:n], *groups[n + 1 :]]
            return torch.add(at_once, measure(layout, rest, rows=rows), out=into) if rest else at_once
    if len(groups) == 1 and len(groups[0][1]) == len(layout.names):
        norms = _norms(layout, groups[0], p, rows=rows)
        if norms[0].dtype is layout.dtype:
            return torch.stack(list(norms), out=into)
        return torch.stack(list(norms)).to(layout.dtype)
    placed = [layout.constant("nothing", lambda: layout.full((), 0.0))] * len(layout.names)
    for group in groups:
        for i, norm in zip(group[1], _like(layout, _norms(layout, group, p, rows=rows)), strict=True):
            placed[i] = norm
    return torch.stack(placed, out=into) if placed else layout.full((0,), 0.0)


def measure_plain(layout: Layout, tensors: MaybeTensors, into: Tensor | None) -> tuple[Tensor, bool] | None:
    """The 2-norms of the gradients of a layout that `is_plain`, `[L]`, as `measure`, and whether it is known by then
    that they `fill_memory`; None where one of them is special.

    torch takes no list in which a gradient is missing, sparse or of a wider dtype, and what it takes is added up in
    the layout's dtype: so nobody need look at each of them on every step.
    """
    try:
        many = layout.all_in_one
        where = None if many is None else many.pointers(cast("list[Tensor]", tensors), layout.every)
        if many is not None and where is not None and (norms := many.norms(where, into)) is not None:
            return norms, True
        if layout.by_rows:
            norms_of_each = _norms(layout, (cast("list[Tensor]", tensors), layout.every), 2.0, layout.dtype)
            return torch.stack(list(norms_of_each), out=into), False
        each = torch._foreach_norm(cast("list[Tensor]", tensors), 2.0, dtype=layout.dtype)
        return torch.stack(each, out=into), False
    except (AttributeError, TypeError, RuntimeError):  # of a None, and of what an operation is not there for
        return None


def _norms_at_once(layout: Layout, group: Group, into: Tensor | None) -> Tensor | None:
    """The 2-norms of the layers of a group, and 0 of all others, `[L]`; None where torch's calls are to be taken."""
    found = _at_once(layout, group) if group[0][0].device == layout.device else None
    return None if found is None else found[0].norms(found[1], into)


def _at_once(layout: Layout, group: Group) -> tuple[MultiTensor, Pointers] | None:
    """What goes over a group in one kernel, and where its tensors are."""
    tensors, index = group
    many = layout.multi_tensor(tensors[0].device, tensors[0].dtype)
    where = None if many is None else many.pointers(tensors, index)
    return None if many is None or where is None else (many, where)


def are_plain(layout: Layout, tensors: MaybeTensors) -> bool:
    """Whether `measure_plain` is going to measure gradients like these, as far as that can be seen."""
    grads = grads_of(layout.params)
    whole = len(tensors) == len(grads) and all(map(operator.is_not, tensors, repeat(None)))
    return whole and all(map(operator.is_, tensors, grads)) and set(map(_DTYPE, grads)) == layout.dtypes


def _like(layout: Layout, norms: Sequence[Tensor]) -> Sequence[Tensor]:
    """The norms of one group as the layout keeps norms."""
    if norms[0].dtype is layout.dtype and norms[0].device == layout.device:
        return norms
    return at(layout.device, torch.stack(list(norms)).to(layout.dtype)).unbind()


def _norms(
    layout: Layout,
    group: Group,
    p: float,
    dtype: torch.dtype | None = None,
    rows: dict[int, Tensor] | None = None,
) -> Sequence[Tensor]:
    """The p-norm of each tensor of a group, 0-d; of wide ones by rows: the p-norm of the rows' p-norms."""
    tensors, index = group
    dtype = dtype or _accumulate(tensors[0].dtype)
    wide = _by_rows(layout, group) if layout.by_rows else None
    if not wide:
        return torch._foreach_norm(tensors, p, dtype=dtype)
    rest = [t for k, t in enumerate(tensors) if k not in wide]
    norms = iter(torch._foreach_norm(rest, p, dtype=dtype) if rest else ())
    each = {k: _row_norms(table, p, dtype) for k, table in wide.items()}
    if rows is not None:
        rows.update({index[k]: norm for k, norm in each.items() if index[k] in layout.first_rows})
    return [torch.linalg.vector_norm(each[k], p) if k in wide else next(norms) for k in range(len(tensors))]


def _by_rows(layout: Layout, group: Group) -> dict[int, Tensor]:
    """Which tensors of a group are measured row by row, each as a table: of its own rows where these are looked at,
    else of those of its `row_length`.
    """
    found = {}
    for k, (tensor, i) in enumerate(zip(*group, strict=True)):
        if i in layout.first_rows and tensor.dim() > 1:
            found[k] = tensor.flatten(1)
        elif i in layout.wide and tensor.is_contiguous():
            found[k] = tensor.view(-1, layout.wide[i])
    return found


def _row_norms(table: Tensor, p: float, dtype: torch.dtype | None) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(table, p, dim=1, dtype=dtype)
    return found


def _norms_of_rows(layout: Layout, group: Group, rows: dict[int, Tensor]) -> None:
    """Of the layers of a group whose rows are looked at."""
    for tensor, i in zip(*group, strict=True):
        if i in layout.first_rows and tensor.dim() > 1:
            rows[i] = _row_norms(tensor.flatten(1), 2.0, _accumulate(tensor.dtype))


def _accumulate(dtype: torch.dtype) -> torch.dtype | None:
    return torch.float32 if dtype in HALVES else None


def scale_(layout: Layout, groups: Sequence[Group], coef: Tensor) -> None:
    """Multiply the tensors by `coef`, one number or one per layer, in place, each product rounded once.

    What a coefficient that is on the CPU, where it is read for nothing, would multiply by 1 is not touched.
    """
    for tensors, index in groups:
        here = at(tensors[0].device, coef)
        if layout.at_once and _scaled_at_once(layout, (tensors, index), here):
            continue
        if here.dim():
            _scale_each(layout, tensors, index, here, is_read=can_be_read(coef))
        elif is_seen_to_be_one(coef):
            continue
        elif tensors[0].dtype in HALVES:
            _scale_halves(layout, tensors, here.float())
        else:
            torch._foreach_mul_(tensors, here)


def _scaled_at_once(layout: Layout, group: Group, coef: Tensor) -> bool:
    """Whether one kernel has multiplied a group by `coef`, `[]` or `[L]`."""
    found = _at_once(layout, group) if coef.dtype is torch.float32 else None
    return found is not None and found[0].multiply_(found[1], group[0], coef)


def _scale_halves(layout: Layout, tensors: list[Tensor], coef: Tensor) -> None:
    """Multiply them by a 0-d float32, which CUDA's `mul` would round to their dtype before it multiplies.

    What takes a whole list and does not round it are kernels for something else. GradScaler's tells of inf and NaN
    besides; it knows no bfloat16 on CUDA. There SGD's divides gradients by a scale in place, and a step at a rate of 0
    is none: it writes the gradients as the weights first, then as the gradients (FusedSgdKernel.cu).
    """
    if coef.device.type != "cuda" or tensors[0].dtype is not torch.bfloat16:
        found = layout.constant(("inf", coef.device), lambda: torch.zeros(1, dtype=torch.float32, device=coef.device))
        torch._amp_foreach_non_finite_check_and_unscale_(tensors, found, coef)
        return
    dense = [t for t in tensors if t.is_contiguous()]
    if dense:
        torch._fused_sgd_(
            dense, dense, [], weight_decay=0.0, momentum=0.0, lr=0.0, dampening=0.0, nesterov=False, maximize=False,
            is_first_step=False, grad_scale=coef.reciprocal(),
        )  # fmt: skip
    for t in tensors if len(dense) < len(tensors) else ():
        if not t.is_contiguous():
            t.mul_(coef.view(1))  # which is not rounded either


def _scale_each(layout: Layout, tensors: Sequence[Tensor], index: Sequence[int], coef: Tensor, is_read: bool) -> None:
    """Multiply each tensor by the coefficient of its layer, `[L]`."""
    left = dict(zip(index, tensors, strict=True))
    dtype = tensors[0].dtype
    if is_read:
        values = coef.tolist()
        left = {i: t for i, t in left.items() if values[i] != 1.0}
    elif coef.dtype is (_accumulate(dtype) or dtype):
        for small in layout.small_tensors(tensors[0].device, dtype):
            for i in small.scale_(left, coef):
                del left[i]
    each = coef.unbind()
    pairs = [(t, each[i]) for i, t in left.items()]
    if dtype in HALVES:  # see `scale_`; a factor of shape [1] is not rounded either
        pairs = [(t if t.dim() else t.view(1), factor.view(1)) for t, factor in pairs]
    if pairs:
        torch._foreach_mul_(*map(list, zip(*pairs, strict=True)))


def is_seen_to_be_one(coef: Tensor) -> bool:
    """Whether `coef`, of one element, is 1 and can be read for nothing: a multiplication by it changes nothing."""
    return can_be_read(coef) and coef.item() == 1


def can_be_read(tensor: Tensor) -> bool:
    """Whether its values can be read for nothing: on a CPU. Everywhere else that waits for the device."""
    return tensor.device.type == "cpu"


def scale_units_(
    tensors: Sequence[Tensor], norms: Sequence[Sequence[Tensor]], coef: Callable[..., Tensor]
) -> Sequence[Tensor]:
    """Multiply the units of each tensor by `coef(*norms)` in place; returns the share of units changed, 0-d each.

    `norms` are lists of the units' norms, as `unit_norms` gives them, and `coef` is asked once, for the units of all
    tensors in a row.
    """
    shapes = [n.shape for n in norms[0]]
    sizes = [shape.numel() for shape in shapes]
    coefs = coef(*(torch.cat([n.flatten() for n in each]) for each in norms))
    # CUDA rounds a factor without dimensions to a half-precision tensor's dtype before it multiplies
    wanted = [shape if shape or not t.dim() else (1,) for t, shape in zip(tensors, shapes, strict=True)]
    factors = [part.view(shape) for part, shape in zip(torch.split(coefs, sizes), wanted, strict=True)]
    changed = (coefs != 1).cumsum(0, dtype=torch.int32)  # whole numbers: their differences are exact
    upto = torch.stack([changed.new_zeros(()), *(changed[end - 1] for end in accumulate(sizes))])
    counts, pairs = upto.diff(), [*zip(tensors, factors, strict=True)]
    if can_be_read(counts):  # as in `scale_`
        pairs = [pair for pair, count in zip(pairs, counts.tolist(), strict=True) if count]
    if pairs:
        torch._foreach_mul_(*map(list, zip(*pairs, strict=True)))
    return torch._foreach_div(counts.to(torch.float32).unbind(), [float(size) for size in sizes])


def unit_norms(tensor: Tensor, dims: tuple[int, ...], p: float = 2.0) -> Tensor:
    """The p-norm over `dims`, those kept with length 1; half precision is accumulated in float32.

    No dims: the norm of the whole tensor.
    """
    if not tensor.numel():
        over = {d % tensor.dim() for d in dims}
        return tensor.new_zeros([1 if d in over else n for d, n in enumerate(tensor.shape)] if dims else [])
    dtype = _accumulate(tensor.dtype)
    norm: Tensor = torch.linalg.vector_norm(tensor, p, dims or None, keepdim=bool(dims), dtype=dtype)
    return norm

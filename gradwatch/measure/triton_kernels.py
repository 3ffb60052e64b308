"""What MultiTensor launches. Only it imports this: Triton comes with torch's builds for CUDA, not with all others.

A kernel is given the addresses of the tensors, 0 for one that is absent, and the number of elements of each, `[L]`. A
program of it goes over a chunk, of which `owner` says the layer, `[C]`; `first` is that of each layer, `[L + 1]`. Of
small layers a program goes over one.
"""

from __future__ import annotations

from functools import partial

import triton
import triton.language as tl

# mypy: disable-error-code="no-untyped-def, untyped-decorator, type-arg"

# MultiTensor hands on what was compiled for other arguments, so nothing may be made of what 16 happens to divide. There
# is nothing to be made of it: of these a program reads or writes one number, or some from anywhere.
POINTERS = (
    "pointers", "owner", "first", "numel", "sums", "norms", "layers", "starts", "steps", "sizes", "factors", "out",
)  # fmt: skip
jit = partial(triton.jit, do_not_specialize=POINTERS)


@jit
def sums_of_squares(
    pointers,
    owner,
    first,
    numel,
    out,
    per_chunk: tl.constexpr,
    per_turn: tl.constexpr,
    dtype: tl.constexpr,
    align: tl.constexpr,
):
    """Of each chunk, added up in float32, `[C]`."""
    chunk = tl.program_id(0)
    layer = tl.load(owner + chunk)
    size = tl.load(numel + layer)
    address = tl.load(pointers + layer)
    start = (chunk - tl.load(first + layer)).to(tl.int64) * per_chunk
    size = tl.where(address == 0, 0, size)
    tensor = tl.multiple_of(address.to(tl.pointer_type(dtype)), align)
    total = tl.zeros([per_turn], tl.float32)
    for i in range(0, per_chunk, per_turn):
        at = start + i + tl.arange(0, per_turn)
        x = tl.load(tensor + at, mask=at < size, other=0).to(tl.float32)
        total += x * x
    tl.store(out + chunk, tl.sum(total))


@jit
def roots(sums, first, out, most: tl.constexpr, per_turn: tl.constexpr):
    """The root of the sum over the chunks of each layer, which are `most` at most, `[L]`."""
    layer = tl.program_id(0)
    begin, end = tl.load(first + layer), tl.load(first + layer + 1)
    total = tl.zeros([per_turn], tl.float32)
    for i in range(0, most, per_turn):
        at = begin + i + tl.arange(0, per_turn)
        total += tl.load(sums + at, mask=at < end, other=0)
    tl.store(out + layer, tl.sqrt(tl.sum(total)))


@jit
def norms_of_small(
    pointers, numel, out, most: tl.constexpr, per_turn: tl.constexpr, dtype: tl.constexpr, align: tl.constexpr
):
    """Of each layer, of `most` elements at most, added up in float32, `[L]`."""
    layer = tl.program_id(0)
    size = tl.load(numel + layer)
    address = tl.load(pointers + layer)
    size = tl.where(address == 0, 0, size)
    tensor = tl.multiple_of(address.to(tl.pointer_type(dtype)), align)
    total = tl.zeros([per_turn], tl.float32)
    for i in range(0, most, per_turn):
        at = i + tl.arange(0, per_turn)
        x = tl.load(tensor + at, mask=at < size, other=0).to(tl.float32)
        total += x * x
    tl.store(out + layer, tl.sqrt(tl.sum(total)))


@jit
def excess(norms, layers, start, slope, out, most: tl.constexpr, per_turn: tl.constexpr):
    """How many times its limit the root of the sum of the squares of all norms is, at least 1: NaN of a NaN."""
    total = tl.zeros([per_turn], tl.float32)
    for i in range(0, most, per_turn):
        at = i + tl.arange(0, per_turn)
        norm = tl.load(norms + at, mask=at < layers, other=0)
        total += norm * norm
    times = start + tl.sqrt(tl.sum(total)) * slope
    tl.store(out, tl.where(times <= 1, 1.0, times))


@jit
def multiply(
    pointers, owner, first, numel, factors, step: tl.constexpr, per_chunk: tl.constexpr, per_turn: tl.constexpr,
    dtype: tl.constexpr, align: tl.constexpr,
):  # fmt: skip
    """In place, by the float32 factor of each layer (`step` 1) or by one for all (0): each product is rounded once."""
    chunk = tl.program_id(0)
    layer = tl.load(owner + chunk)
    size = tl.load(numel + layer)
    address = tl.load(pointers + layer)
    start = (chunk - tl.load(first + layer)).to(tl.int64) * per_chunk
    size = tl.where(address == 0, 0, size)
    tensor = tl.multiple_of(address.to(tl.pointer_type(dtype)), align)
    factor = tl.load(factors + layer * step)
    for i in range(0, per_chunk, per_turn):
        at = start + i + tl.arange(0, per_turn)
        x = tl.load(tensor + at, mask=at < size, other=0).to(tl.float32)
        tl.store(tensor + at, (x * factor).to(dtype), mask=at < size)


@jit
def sample(pointers, starts, steps, sizes, out, per_turn: tl.constexpr, dtype: tl.constexpr):
    """Of each layer so many elements, each a step from the last: into `out`, from where the layer's start."""
    layer = tl.program_id(0)
    at = tl.program_id(1) * per_turn + tl.arange(0, per_turn)
    inside = at < tl.load(sizes + layer)
    tensor = tl.load(pointers + layer).to(tl.pointer_type(dtype))
    x = tl.load(tensor + at * tl.load(steps + layer), mask=inside)
    tl.store(out + tl.load(starts + layer) + at, x, mask=inside)

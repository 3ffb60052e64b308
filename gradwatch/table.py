"""A table of steps: rows that have each a step, and named columns. What a run recorded is a few of these (`history`).

Legend: T rows, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]
LISTED = ("batch", "sample", "shard")  # what data a step saw, a number or a list
ITEMS = tuple(f"{name}[" for name in LISTED)  # how the columns of a list begin: `sample[3]`
REWINDS = ("rewound_to", "rewound_for", "left_out")  # of the step after which a training was taken back
KEY_COLUMNS = ("attempt", "optimizer", "step")
SETTING = "setting/"  # before the column of an optimizer's setting that changes during the run
WAS_NAN = "was_nan/"  # before the name of a logged scalar: 1 in the steps in which it was NaN, not left out
IN_LOSS = "in_loss/"  # before the numbers of what a loss was asked for, and the model said
LAYER_IN_LOSS = f"{IN_LOSS}layer_of/"  # before the number of a layer of the manifest, of which one of them is
# How columns begin that gradwatch records itself.
RECORDED = ("lr/", "rank_grad_norm/", SETTING, WAS_NAN, IN_LOSS, *ITEMS)
STEP_COLUMNS = (
    *KEY_COLUMNS, "time", "grad_norm", "clipped_norm", "clip_coef", "clip_rate", "skipped", "nonfinite", "lr",
    "loss_scale", "evaluations", "user_max_norm", "user_grad_norm", "user_clip_value",
    "user_clip_coef", "user_clip_share", "user_early_coef", "user_step_coef", *REWINDS, "micro_grad_norm",
    "micro_batches", "eval_mode", "norm_mean", "constant_weights", "frozen_elements", "frozen_as_drawn", "frozen_head",
    "grad_writes", "weight_writes", "empty_state",
)  # fmt: skip
MAIN = ("grad_norm", "clip_coef", "clipped_norm", "clip_rate", "nonfinite", "weight_norm", "update_ratio")
CELLS = 1 << 18  # of a table that are float64 at once
# What is a norm times a factor in rows that did not record it; it is NaN where they are inf and 0.
PRODUCTS = {
    "clipped_norm": ("grad_norm", "clip_coef"),
    "update_norm": ("weight_norm", "update_ratio"),
    "row_norm": ("grad_norm", "row_share"),
}


@dataclass(frozen=True, repr=False)
class Table:
    """T rows, each of one step of one optimizer (or part): `values[name]` is `[T]`, or `[T, L]` of these `layers`.

    `step` and `attempt` are int64 `[T]`, `step` ascending. Of several layers a value is NaN where there is none.
    """

    step: NDArray[np.int64]
    attempt: NDArray[np.int64]
    optimizer: NDArray[np.object_]
    values: dict[str, Floats]
    layers: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.step)

    def take(self, rows: Bools | NDArray[np.int64]) -> Table:
        """The rows picked by a mask or by row numbers."""
        values = {name: v[rows] for name, v in self.values.items()}
        return Table(self.step[rows], self.attempt[rows], self.optimizer[rows], values, self.layers)

    def of_layers(self, columns: Iterable[int]) -> Table:
        """The layers of these numbers, in this order."""
        at = list(columns)
        values = {name: v[:, at] for name, v in self.values.items()}
        return replace(self, values=values, layers=tuple(self.layers[i] for i in at))

    def quantity(self, name: str) -> Floats:
        """`name` of each layer, `[T, L]`, float32: recorded, or the product that it is; all NaN where it is neither."""
        recorded, (norm, factor) = self.values.get(name), PRODUCTS.get(name, ("", ""))
        if recorded is None and norm not in self.values:
            return np.full((len(self), len(self.layers)), np.nan, np.float32)
        missing = np.isnan(recorded).all(axis=1, keepdims=True) if recorded is not None else np.ones((1, 1), bool)
        if recorded is not None and (norm not in self.values or not missing.any()):
            return recorded
        with np.errstate(invalid="ignore", over="ignore"):
            product = (self.values[norm] * self.quantity(factor)).astype(np.float32, copy=False)
        return product if recorded is None else np.where(missing, product, recorded).astype(np.float32, copy=False)

    def with_values(self, quantity: str) -> Table:
        """The layers of which anything of `quantity` was recorded, inf included; none where it was not recorded."""
        values = self.values.get(quantity, np.full((len(self), len(self.layers)), np.nan))
        return self.of_layers(np.flatnonzero(~np.isnan(values).all(axis=0)))

    def lane_rows(self) -> dict[str, NDArray[np.intp]]:
        """The row numbers of each optimizer (or part)."""
        return {name: np.flatnonzero(self.optimizer == name) for name in dict.fromkeys(self.optimizer)}

    def find(self, other: Table) -> NDArray[np.intp]:
        """For each row of `other`, the row here that is of the same step and optimizer; -1 where there is none."""
        if np.array_equal(self.step, other.step) and np.array_equal(self.optimizer, other.optimizer):
            return np.arange(len(self))
        out, rows = np.full(len(other), -1), self.lane_rows()
        for name, at in other.lane_rows().items():
            if name in rows:
                steps = self.step[rows[name]]
                place = np.minimum(np.searchsorted(steps, other.step[at]), len(steps) - 1)
                out[at] = np.where(steps[place] == other.step[at], rows[name][place], -1)
        return out

    def to_frame(self, of: str) -> pd.DataFrame:
        """Tidy pandas frame of a table of layers: one row per step and layer, whose name is the column `of`."""
        import pandas as pd

        t, n = len(self), len(self.layers)
        columns: dict[str, Any] = {
            "optimizer": np.repeat(self.optimizer, n),
            "step": np.repeat(self.step, n),
            of: pd.Categorical.from_codes(np.tile(np.arange(n), t), pd.Index(self.layers), ordered=True),
        }
        return pd.DataFrame({**columns, **{name: values.ravel() for name, values in self.values.items()}})


EMPTY = Table(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, object), {})
SAMPLED = {
    "activations": "module",
    "histograms": "layer",
    "heads": "head",
}  # tables of sampled steps, and what their columns are
NOT_SAMPLED: dict[str, Any] = dict.fromkeys(SAMPLED, EMPTY)


def is_logged(name: str) -> bool:
    """Whether a scalar of this name is one that the loop logged, and none that gradwatch records itself."""
    return name not in STEP_COLUMNS and not name.startswith(RECORDED)


def concat_tables(parts: Sequence[Table]) -> Table:
    """The rows of several tables, by step; from its first step on a later attempt replaces all that an earlier one has,
    also where it ended sooner.

    Of a row that was handed over again the last counts. Optimizers that record the same step each keep their row.
    """
    joined = stack(parts)
    kept = np.ones(len(joined), bool)
    for attempt in np.unique(joined.attempt)[1:]:
        begins = joined.step[joined.attempt == attempt].min()
        kept &= (joined.attempt >= attempt) | (joined.step < begins)
    rows = np.flatnonzero(kept)
    order = rows[np.argsort(joined.step[rows], kind="stable")]
    if (np.diff(joined.step[order]) == 0).any():
        keys = zip(joined.step[order], joined.optimizer[order], strict=True)
        order = np.array([*dict(zip(keys, order, strict=True)).values()], np.int64)
    return joined if np.array_equal(order, np.arange(len(joined))) else joined.take(order)


def stack(parts: Sequence[Table]) -> Table:
    """All rows of several tables, one after the other.

    Layers and values are the union, in the order of first appearance; NaN stands for what a part does not have.
    """
    if not parts:
        return EMPTY
    layers = tuple(dict.fromkeys(name for part in parts for name in part.layers))
    values: dict[str, Floats] = {}
    rows = sum(map(len, parts))
    for name in dict.fromkeys(name for part in parts for name in part.values):
        wide = next(part.values[name] for part in parts if name in part.values).ndim > 1
        shape, dtype = ((rows, len(layers)), np.float32) if wide else ((rows,), np.float64)
        values[name] = _fill(np.full(shape, np.nan, dtype), parts, name, layers)
    step, attempt = (np.concatenate([getattr(part, key) for part in parts]) for key in ("step", "attempt"))
    return Table(step, attempt, np.concatenate([part.optimizer for part in parts]), values, layers)


def _fill(out: Floats, parts: Sequence[Table], name: str, layers: tuple[str, ...]) -> Floats:
    row, place = 0, {layer: i for i, layer in enumerate(layers)}
    for part in parts:
        if name in part.values:
            columns = slice(None) if part.layers == layers else [place[layer] for layer in part.layers]
            out[row : row + len(part)][..., columns] = part.values[name]
        row += len(part)
    return out


def nanmean(values: Floats, weights: Floats | None = None) -> Floats:
    """Mean over axis 0 without NaN entries; NaN (and no warning) where there is nothing to average."""
    seen = ~np.isnan(values)
    weight = seen if weights is None else np.where(seen, np.nan_to_num(weights, nan=1), 0)
    count = weight.sum(axis=0, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        total = (np.where(weight > 0, values, 0) * weight).sum(axis=0, dtype=np.float64)
        return np.asarray(total / np.where(count, count, np.nan))


def joint_norm(norms: Floats) -> Floats:
    """`[R, L]` norms of the layers -> `[R]` norm of all together, over the finite ones; NaN where there is none."""
    known = np.isfinite(norms).any(axis=1)
    return np.asarray(np.where(known, np.sqrt(squares(norms)), np.nan))


def squares(norms: Floats) -> Floats:
    """`[R, L]` norms of the layers -> `[R]` the sum of the squares of the finite ones, a few rows at a time: the whole
    table as float64 would be three times as large again.
    """
    parts = np.array_split(norms, max(1, norms.size // CELLS))
    return np.concatenate([(np.where(np.isfinite(p), p, 0).astype(np.float64) ** 2).sum(axis=1) for p in parts])


def lr_columns(optimizers: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Of each optimizer of a manifest the columns of its param groups' learning rates: `lr`, `lr/1`, ..."""
    columns, after = [], 0
    for one in optimizers:
        first = one.get("first_group", after)
        after = first + len(one.get("groups") or [{}])
        columns.append(tuple(f"lr/{i}" if i else "lr" for i in range(first, after)))
    return columns


def trust_ratio(table: Table, optimizers: Sequence[Mapping[str, Any]], rate: Callable[[str], Floats]) -> Floats:
    """The norm of each layer's weights over that of its update before the learning rate, `[R, L]`, float32: ‖w‖ / ‖u‖.

    Where it was measured: the learning rate of the layer's param group, over `update_ratio`. `optimizers` are those of
    a manifest, and `rate` gives the column of a group's rates, `[R]`. A layer that is in none of several has NaN.

    Source: LARS, You et al. 2017, arXiv:1708.03888, equation 6 (without its coefficient eta; for ‖u‖ it has the sum of
    the norms of gradient and decay); LAMB, You et al. 2019, arXiv:1904.00962, algorithm 2 (u that of Adam). Under these
    two themselves it is about 1.
    """
    own = np.full((len(table), len(table.layers)), np.nan, np.float32)
    groups = [group.get("layers", ()) for one in optimizers for group in one.get("groups") or [{}]]
    for lr, names in zip(chain.from_iterable(lr_columns(optimizers)), groups, strict=True):
        held = {*names} if names or len(groups) > 1 else {*table.layers}  # manifests of earlier versions name none
        columns = [at for at, layer in enumerate(table.layers) if layer in held]
        own[:, columns] = rate(lr)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(own / table.quantity("update_ratio"), np.float32)


def spread(values: Floats, rows: NDArray[np.intp], length: int) -> Floats:
    """`values` at those `rows` of `length`, NaN at the others."""
    out = np.full(length, np.nan)
    out[rows] = values
    return out

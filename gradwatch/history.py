"""The waist: what one run recorded, as plain arrays. Everything before it writes a History, everything after reads one.

Legend: T recorded steps, L layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]

FORMAT = 1
KEY_COLUMNS = ("attempt", "optimizer", "step")
SEEN = "steps"  # in a reduced History: how many steps a row stands for, [T, L]


@dataclass(frozen=True)
class Layer:
    """One watched parameter tensor: its name in the model, its shape and dtype; `frozen`: it asked for no gradient."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    frozen: bool = False

    @property
    def numel(self) -> int:
        """The number of elements (1 for a 0-d tensor)."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Run:
    """What a run says of itself: the manifest `run.json`, and the head of every report.

    `window` is the number of steps that become one MLflow point. `mlflow` names where the run is delivered:
    `tracking_uri`, `experiment_id`, `run_id` (each None until known) and `joined` (the run was the user's own).
    It is None for a run that stays in its files. `part` names this Watch among those that share the run. As watch()
    found it, `unheld` are the parameters of the model that ask for a gradient and are in no optimizer. `pid`, `host`
    and `pid_started` are the process that records it; `crashed`: somebody has seen that it ended without close.
    """

    name: str
    created: str
    part: str | None = None
    layers: tuple[Layer, ...] = ()
    optimizers: tuple[dict[str, Any], ...] = ()
    clip: str | None = None
    renorm: str | None = None
    every: int = 10
    total_steps: int | None = None
    window: int = 50
    mlflow_layers: int = 16
    status: str = "RUNNING"
    ended: str | None = None
    attempt: int = 0
    pid: int | None = None
    host: str | None = None
    pid_started: str | None = None
    crashed: bool = False
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    mlflow: dict[str, Any] | None = None
    unheld: tuple[str, ...] = ()
    format: int = FORMAT

    def to_json(self) -> dict[str, Any]:
        """A dict that json can write."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Run:
        """The inverse of `to_json`; keys of a newer format are ignored."""
        known = {key: value for key, value in data.items() if key in cls.__dataclass_fields__}
        fields = Layer.__dataclass_fields__
        given = ({key: value for key, value in d.items() if key in fields} for d in known.pop("layers", ()))
        layers = tuple(Layer(**{**d, "shape": tuple(d["shape"])}) for d in given)
        tuples = {key: tuple(known.get(key, ())) for key in ("optimizers", "unheld")}
        return cls(**{**known, "layers": layers, **tuples})


@dataclass(frozen=True)
class History:
    """T recorded steps of L layers.

    `per_layer[quantity]` is float32 `[T, L]`, NaN where nothing was recorded (the gradient was None, or the quantity
    is measured only every few steps). `per_step[name]` is float64 `[T]`. `step` is int64 `[T]`, ascending. Where
    several parts share the run, or optimizers step apart, `optimizer` tells whose step it is; `lanes` takes them apart.

    Per layer: `grad_norm`, `clip_coef`, `clip_rate` (1 where the policy changed the gradient in this step, else 0),
    `nonfinite` (1 where the norm was inf or NaN), and every few steps `weight_norm`, `update_ratio` and what else
    applies. Per step: `time` (unix seconds), `grad_norm`, `clipped_norm`, `clip_coef`, `clip_rate` (1 where any layer
    was changed), `skipped`, `nonfinite` (number of layers), `lr`, and whatever was logged.

    A run too large for memory is opened **reduced**: `whole` has every step's totals and no layers, and up to `stride`
    steps in a row share three rows. There a layer has its first value, its lowest and its highest, so a spike of one
    step is kept; `nonfinite` counts, `clip_rate` is the mean, and the quantity `steps` is how many a row stands for.
    `step` and the totals are those of three of the steps. Both ends and the first 256 non-finite steps are kept whole.
    """

    run: Run
    layers: tuple[str, ...]
    step: NDArray[np.int64]
    attempt: NDArray[np.int64]
    optimizer: tuple[str, ...] | NDArray[np.object_]
    per_layer: dict[str, Floats]
    per_step: dict[str, Floats]
    problems: tuple[str, ...] = ()
    whole: History | None = None
    stride: int = 1

    def __len__(self) -> int:
        return len(self.step)

    def layer(self, quantity: str) -> Floats:
        """`quantity` as `[T, L]`; all NaN when this run did not record it.

        `clipped_norm` is `grad_norm * clip_coef` unless it was measured (element-wise policies).
        """
        if quantity in self.per_layer:
            return self.per_layer[quantity]
        if quantity == "clipped_norm" and "grad_norm" in self.per_layer:
            coef = self.layer("clip_coef")
            with np.errstate(invalid="ignore"):  # inf * 0: the norm after the clip is unknown, NaN says so
                return np.where(
                    coef == 0, np.where(np.isfinite(self.layer("grad_norm")), 0, np.nan), self.layer("grad_norm") * coef
                ).astype(np.float32)
        return np.full((len(self.step), len(self.layers)), np.nan, np.float32)

    def total(self, name: str) -> Floats:
        """The per-step scalar `name` as `[T]`; all NaN when this run did not record it."""
        return self.per_step.get(name, np.full(len(self.step), np.nan))

    @property
    def clip_rate(self) -> Floats:
        """Share of steps in which the policy changed the layer's gradient, `[L]`; NaN for a layer never seen."""
        return nanmean(self.layer("clip_rate"), self.per_layer.get(SEEN))

    @property
    def every_step(self) -> History:
        """Every step's totals; without layers where this is reduced."""
        return self if self.whole is None else self.whole

    @property
    def nonfinite(self) -> NDArray[np.int64]:
        """Number of steps whose norm was inf or NaN, `[L]`."""
        return np.asarray(np.nansum(self.layer("nonfinite"), axis=0), np.int64)

    @property
    def logged(self) -> tuple[str, ...]:
        """Names of the scalars the user logged (loss, accuracies, ...), in the order of first use."""
        return tuple(n for n in self.per_step if n not in STEP_COLUMNS and not n.startswith(("lr/", "rank_grad_norm/")))

    def slice(self, start: int, stop: int) -> History:
        """The recorded steps `start <= step < stop` (step numbers, not row numbers)."""
        rows = self.take((self.step >= start) & (self.step < stop))
        return replace(rows, whole=self.whole and self.whole.slice(start, stop))

    def take(self, rows: Bools | NDArray[np.int64]) -> History:
        """The rows picked by a mask or by row numbers; without `whole`."""
        return replace(
            self,
            whole=None,
            step=self.step[rows],
            attempt=self.attempt[rows],
            optimizer=np.asarray(self.optimizer, dtype=object)[rows],
            per_layer={k: v[rows] for k, v in self.per_layer.items()},
            per_step={k: v[rows] for k, v in self.per_step.items()},
        )

    def lane_rows(self) -> dict[str, NDArray[np.intp]]:
        """The row numbers of each optimizer (or part) that steps on its own; one entry for most runs."""
        names = np.asarray(self.optimizer, dtype=object)
        return {name: np.flatnonzero(names == name) for name in dict.fromkeys(names)}

    def lanes(self) -> dict[str, History]:
        """Each optimizer (or part) that steps on its own, with the layers it trained; all in one if none does."""
        rows = self.lane_rows()
        if len(rows) < 2:
            return {"": self}
        trained = ~np.isnan(self.layer("nonfinite"))
        idle = ~trained.any(axis=0)  # layers that nobody gave a gradient stay where something else is known of them
        out = {}
        for name, at in rows.items():
            lane = self.take(at)
            known = np.any([~np.isnan(values).all(axis=0) for q, values in lane.per_layer.items() if q != SEEN], axis=0)
            here = np.flatnonzero(trained[at].any(axis=0) | (idle & known))
            kept = {q: v[:, here] for q, v in lane.per_layer.items()}
            whole = self.whole and self.whole.take(np.asarray(self.whole.optimizer, dtype=object) == name)
            out[name] = replace(lane, layers=tuple(self.layers[i] for i in here), per_layer=kept, whole=whole)
        return out

    def to_frame(self) -> pd.DataFrame:
        """Tidy pandas frame: one row per step and layer, by step, then model order."""
        import pandas as pd

        t, n = len(self.step), len(self.layers)
        columns: dict[str, Any] = {
            "optimizer": np.repeat(np.asarray(self.optimizer, dtype=object), n),
            "step": np.repeat(self.step, n),
            "layer": pd.Categorical.from_codes(
                np.tile(np.arange(n), t), categories=pd.Index(self.layers), ordered=True
            ),
        }
        quantities = list(dict.fromkeys([*MAIN_QUANTITIES, *self.per_layer]))
        columns.update({q: self.layer(q).ravel() for q in quantities})
        return pd.DataFrame(columns)

    def steps_frame(self) -> pd.DataFrame:
        """One row per step: totals, coefficient, learning rates, loss and whatever was logged."""
        import pandas as pd

        return pd.DataFrame({"optimizer": np.asarray(self.optimizer, dtype=object), "step": self.step, **self.per_step})

    def _repr_html_(self) -> str:
        return f"<b>{len(self)} steps × {len(self.layers)} layers</b>" + str(self.steps_frame().tail(5).to_html())


MAIN_QUANTITIES = ("grad_norm", "clip_coef", "clipped_norm", "clip_rate", "nonfinite", "weight_norm", "update_ratio")
STEP_COLUMNS = (
    *KEY_COLUMNS, "time", "grad_norm", "clipped_norm", "clip_coef", "clip_rate", "skipped", "nonfinite", "lr",
    "loss_scale", "evaluations", "user_max_norm", "user_grad_norm", "user_clip_value",
)  # fmt: skip


_CLIPS = {"user_max_norm": "clip_grad_norm_(max_norm={})", "user_clip_value": "clip_grad_value_(clip_value={})"}


def loop_clips(per_step: Mapping[str, Any]) -> str:
    """The loop's own clips in `per_step`, as code: `clip_grad_norm_(max_norm=1.0)`; empty where there is none."""
    calls = []
    for column, call in _CLIPS.items():
        values = np.asarray(per_step.get(column, ()), np.float64).ravel()
        values = values[np.isfinite(values)]  # a max_norm of inf only measures
        if len(values):
            low, high = float(values.min()), float(values.max())
            calls.append(call.format(low if low == high else f"{low} to {high}"))
    return ", ".join(calls)


def nanmean(values: Floats, weights: Floats | None = None) -> Floats:
    """Mean over axis 0 without NaN entries; NaN (and no warning) where there is nothing to average."""
    weight = np.where(np.isnan(values), 0, 1 if weights is None else weights)
    count = weight.sum(axis=0, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        total = (np.where(weight > 0, values, 0) * weight).sum(axis=0, dtype=np.float64)
        return np.asarray(total / np.where(count, count, np.nan))


def concat(parts: Iterable[History]) -> History:
    """One History out of several of one Watch, by step; a step taken again in a later attempt replaces the earlier one.

    Layers and quantities are the union, in the order of first appearance. Optimizers that record the same step each
    keep their row.

    Raises:
        ValueError: there are no parts.
    """
    joined = stack(parts)
    order = np.lexsort((joined.attempt, joined.step))
    step, attempt = joined.step[order], joined.attempt[order]
    starts = np.flatnonzero(np.diff(step, prepend=-1))
    if len(starts) < len(order):
        latest = np.repeat(attempt[np.append(starts[1:], len(order)) - 1], np.diff(starts, append=len(order)))
        rows = order[attempt == latest]
        names = np.asarray(joined.optimizer, dtype=object)[rows]
        order = np.array([*dict(zip(zip(joined.step[rows], names, strict=True), rows, strict=True)).values()], np.int64)
    return joined if np.array_equal(order, np.arange(len(joined))) else joined.take(order)


def stack(parts: Iterable[History]) -> History:
    """All rows of several Histories, one after the other; layers and quantities are the union. At least one part."""
    parts = list(parts)
    if not parts:
        raise ValueError("there is no History to join: at least one is needed")
    layers = tuple(dict.fromkeys(name for p in parts for name in p.layers))
    total = sum(len(p) for p in parts)
    per_layer = {
        q: _fill(
            [(p.per_layer.get(q), _columns(p.layers, layers)) for p in parts],
            [len(p) for p in parts],
            np.full((total, len(layers)), np.nan, np.float32),
        )
        for q in dict.fromkeys(k for p in parts for k in p.per_layer)
    }
    per_step = {
        name: np.concatenate([p.total(name) for p in parts])
        for name in dict.fromkeys(k for p in parts for k in p.per_step)
    }
    step, attempt = (np.concatenate([getattr(p, name) for p in parts]) for name in ("step", "attempt"))
    optimizer = np.concatenate([np.asarray(p.optimizer, dtype=object) for p in parts])
    problems = tuple(dict.fromkeys(text for p in parts for text in p.problems))
    whole = [replace(p.every_step, layers=(), per_layer={}) for p in parts if any(p.whole is not None for p in parts)]
    both = (stack(whole) if whole else None, max(p.stride for p in parts))
    return History(parts[-1].run, layers, step, attempt, optimizer, per_layer, per_step, problems, *both)


def empty(run: Run, problems: Sequence[str] = ()) -> History:
    """A History of no steps."""
    none = np.zeros(0, np.int64)
    return History(run, tuple(layer.name for layer in run.layers), none, none, (), {}, {}, tuple(problems))


def _columns(names: Sequence[str], layers: Sequence[str]) -> slice | list[int]:
    if tuple(names) == tuple(layers):
        return slice(None)
    place = {name: i for i, name in enumerate(layers)}
    return [place[name] for name in names]


def _fill(parts: list[tuple[Floats | None, slice | list[int]]], lengths: list[int], out: Floats) -> Floats:
    row = 0
    for (values, columns), length in zip(parts, lengths, strict=True):
        if values is not None:
            out[row : row + length, columns] = values
        row += length
    return out

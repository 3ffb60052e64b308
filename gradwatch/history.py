"""The waist: what one run recorded, as plain arrays. Everything before it writes a History, everything after reads one.

Legend: T recorded steps, L layers, R rows of the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradwatch import table
from gradwatch.table import EMPTY, SAMPLED, Table, is_logged, nanmean

if TYPE_CHECKING:
    import pandas as pd

Floats = table.Floats
Bools = table.Bools

FORMAT = 1
SEEN = "steps"  # in a reduced History: how many steps a row stands for, [R, L]


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

    `lr_scale` and `warmup` are those of watch(). `window` is the number of steps that become one MLflow point. `mlflow`
    names where the run is delivered: `tracking_uri`, `experiment_id`, `run_id` (None until known) and `joined` (it was
    the user's own); None for a run that stays in its files. `part` names this Watch among those that share the run. As
    watch() found it, `unheld` are the model's parameters that ask for a gradient and are in no optimizer, `modules` the
    classes of the modules without children by name, in order, `batch_norms` the momentum of those with statistics, and
    `dropouts` the p of others; `loss_graph` is what its first losses showed. `pid`, `host`, `pid_started` record it;
    `crashed`: it ended without close. Its steps begin with `first_step` and end before `end_step`, once closed; those
    before are in the folder `goes_on_from`, of a run that was resumed with other settings.
    `activations_every` is their pace; `command` how `gradwatch run` was started, `source` what was imported.
    """

    name: str
    created: str
    part: str | None = None
    layers: tuple[Layer, ...] = ()
    optimizers: tuple[dict[str, Any], ...] = ()
    clip: str | None = None
    renorm: str | None = None
    lr_scale: float = 1.0
    warmup: int = 0
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
    modules: dict[str, str] = field(default_factory=dict)
    batch_norms: dict[str, float] = field(default_factory=dict)
    dropouts: dict[str, float] = field(default_factory=dict)
    loss_graph: tuple[dict[str, Any], ...] = ()
    first_step: int | None = None
    end_step: int | None = None
    goes_on_from: str | None = None
    higher_is_better: dict[str, bool] = field(default_factory=dict)  # of logged scalars, where the user has said it
    command: dict[str, Any] | None = None
    activations_every: int | None = None
    source: str | None = None
    format: int = FORMAT

    def to_json(self) -> dict[str, Any]:
        """A dict that json can write."""
        return asdict(self)

    def of_lane(self, name: str) -> Run:
        """The same as a lane of this name is concerned: where parts share the run, with its own part's policies."""
        own = [o for o in self.optimizers if "clip" in o and o.get("name") in name.split("+")]
        return replace(self, clip=own[0]["clip"], renorm=own[0]["renorm"]) if own else self

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Run:
        """The inverse of `to_json`; keys of a newer format are ignored."""
        known = {key: data[key] for key in data if key in cls.__dataclass_fields__}
        fields, tuples = Layer.__dataclass_fields__, ("optimizers", "unheld", "loss_graph")
        given = ({key: value for key, value in d.items() if key in fields} for d in known.pop("layers", ()))
        layers = tuple(Layer(**{**d, "shape": tuple(d["shape"])}) for d in given)
        return cls(**{**known, "layers": layers, **{key: tuple(known.get(key, ())) for key in tuples}})


@dataclass(frozen=True, repr=False)
class History:
    """What was recorded of L layers over T steps: a table of what each step has once, and one of what each layer has.

    Each table has its own steps. `by_step` has all T of them; its values are float64 `[T]`. `by_layer` has R rows, each
    of one of those steps; its values are float32 `[R, L]`, NaN where nothing was recorded (the gradient was None, or
    the quantity is measured only every few steps). As a rule R is T; rows of one are found from the other by
    `layer_rows`. Where several parts share the run, or optimizers step apart, `optimizer` tells whose step a row is;
    `lanes` takes them apart.

    Per layer: `grad_norm`, `clip_coef`, `clip_rate` (1 where the policy changed the gradient in this step, else 0),
    `nonfinite` (1 where the norm was inf or NaN), and every few steps `weight_norm`, `update_ratio` and what else
    applies. Per step: `time` (unix seconds), `grad_norm`, `clipped_norm`, `clip_coef`, `clip_rate` (1 where any layer
    was changed), `skipped`, `nonfinite` (number of layers), `lr`, and whatever was logged.

    A run too large for memory is opened **reduced**: its layers have three rows for many steps, with the first value,
    the lowest and the highest, so a spike of one step is kept; `nonfinite` counts, `clip_rate` is the mean, and `steps`
    is how many a row stands for. Both ends and the first 256 non-finite steps have a row each.

    More tables are of sampled steps, empty where none were: `activations`, whose columns are modules as the model has
    them (`order`: of their outputs), `histograms`, of each layer's gradient, and `heads`, of what `QKClip` did to each.
    """

    run: Run
    by_layer: Table
    by_step: Table
    problems: tuple[str, ...] = ()
    activations: Table = EMPTY
    histograms: Table = EMPTY
    heads: Table = EMPTY

    @classmethod
    def of(
        cls, run: Run, layers: Sequence[str], step: NDArray[np.int64], attempt: NDArray[np.int64],
        optimizer: Sequence[str] | NDArray[np.object_], per_layer: dict[str, Floats], per_step: dict[str, Floats],
    ) -> History:  # fmt: skip
        """A History of which both tables have the same steps."""
        keys = step, attempt, np.asarray(optimizer, dtype=object)
        return cls(run, Table(*keys, per_layer, tuple(layers)), Table(*keys, per_step))

    def __len__(self) -> int:
        return len(self.by_step)

    def __repr__(self) -> str:
        size = f"{len(self):,} steps x {len(self.layers):,} layers"
        return f"History({self.run.name!r}, {size}, {self.run.status.lower()})"

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers, in model order."""
        return self.by_layer.layers

    @property
    def per_layer(self) -> dict[str, Floats]:
        """What was recorded of each layer, `[R, L]` by quantity."""
        return self.by_layer.values

    @property
    def per_step(self) -> dict[str, Floats]:
        """What was recorded of each step, `[T]` by name."""
        return self.by_step.values

    @property
    def step(self) -> NDArray[np.int64]:
        """The numbers of the recorded steps, `[T]`."""
        return self.by_step.step

    @property
    def attempt(self) -> NDArray[np.int64]:
        """Which start of the run each step is of, `[T]`."""
        return self.by_step.attempt

    @property
    def optimizer(self) -> NDArray[np.object_]:
        """Whose steps they are, `[T]`."""
        return self.by_step.optimizer

    @property
    def layer_step(self) -> NDArray[np.int64]:
        """The step of each row of `layer(...)`, `[R]`."""
        return self.by_layer.step

    @cached_property
    def layer_rows(self) -> NDArray[np.intp]:
        """The place of each row of `layer(...)` among the steps, `[R]`: `total(...)[layer_rows]` stands beside it."""
        return self.by_step.find(self.by_layer)

    @property
    def is_reduced(self) -> bool:
        """Whether rows of the layers stand for several steps."""
        return bool((self.stands_for > 1).any())

    @cached_property
    def stands_for(self) -> Floats:
        """How many steps each row of `layer(...)` stands for, `[R]`: 1, but where the layers are reduced."""
        seen = self.per_layer.get(SEEN, np.full((len(self.by_layer), 1), np.nan))
        return np.where(np.isnan(seen).all(axis=1), 1, np.fmax.reduce(seen, axis=1, initial=0))

    def layer(self, quantity: str) -> Floats:
        """`quantity` as `[R, L]`; all NaN when this run did not record it.

        `clipped_norm` is `grad_norm * clip_coef` unless it was measured (element-wise policies); `update_norm`, how far
        the step moved the layer, is `update_ratio * weight_norm`; `trust_ratio`, that of LARS and LAMB, as in `table`.
        """
        if quantity == "trust_ratio":
            return table.trust_ratio(self.by_layer, self.run.optimizers, lambda lr: self.total(lr)[self.layer_rows])
        return self.by_layer.quantity(quantity)

    def total(self, name: str) -> Floats:
        """The per-step scalar `name` as `[T]`; all NaN when this run did not record it.

        `update_norm` is the root of the sum of squares of the layers' own, over the finite ones.
        """
        if name == "update_norm" and name not in self.per_step:
            return table.spread(table.joint_norm(self.layer(name)), self.layer_rows, len(self))
        return self.per_step.get(name, np.full(len(self), np.nan))

    @property
    def clip_rate(self) -> Floats:
        """Share of steps in which the policy changed the layer's gradient, `[L]`; NaN for a layer never seen."""
        return nanmean(self.layer("clip_rate"), self.per_layer.get(SEEN))

    @property
    def nonfinite(self) -> NDArray[np.int64]:
        """Number of steps whose norm was inf or NaN, `[L]`."""
        return np.asarray(np.nansum(self.layer("nonfinite"), axis=0), np.int64)

    @property
    def logged(self) -> tuple[str, ...]:
        """Names of the scalars the user logged (loss, accuracies, ...), in the order of first use."""
        return tuple(n for n in self.per_step if is_logged(n))

    def slice(self, start: int, stop: int) -> History:
        """The recorded steps `start <= step < stop` (step numbers, not row numbers)."""
        return self.take((self.step >= start) & (self.step < stop))

    def take(self, rows: Bools | NDArray[np.int64]) -> History:
        """The steps picked by a mask or by row numbers, with the rows that the layers and modules have of them."""
        picked = np.zeros(len(self), bool)
        picked[rows] = True
        inside = self._sampled(lambda table: table.take(picked[self.by_step.find(table)]))
        even = len(self.by_layer) == len(self) and (self.layer_rows == np.arange(len(self))).all()
        layers = self.by_layer.take(rows if even else picked[self.layer_rows])
        return replace(self, by_layer=layers, by_step=self.by_step.take(rows), **inside)

    def lane_rows(self) -> dict[str, NDArray[np.intp]]:
        """The steps of each optimizer (or part) that steps on its own, as places in `[T]`; one entry for most runs."""
        return self.by_step.lane_rows()

    def lanes(self) -> dict[str, History]:
        """Each optimizer (or part) that steps on its own, with the layers it trained; all in one if none does."""
        rows, layer_rows = self.by_step.lane_rows(), self.by_layer.lane_rows()
        if len(rows) < 2:
            return {"": self}
        idle = np.isnan(self.layer("nonfinite")).all(axis=0)
        out = {}
        for name, at in rows.items():
            lane = self.by_layer.take(layer_rows.get(name, np.zeros(0, np.intp)))
            # layers that nobody gave a gradient stay where something else is known of them
            known = np.any([~np.isnan(values).all(axis=0) for q, values in lane.values.items() if q != SEEN], axis=0)
            trained = lane.values.get("nonfinite", np.zeros((0, len(self.layers))))
            here = np.flatnonzero(~np.isnan(trained).all(axis=0) | (idle & known))
            inside = self._sampled(lambda table: table.take(table.optimizer == name))  # noqa: B023
            run, by_step = self.run.of_lane(name), self.by_step.take(at)
            out[name] = replace(self, run=run, by_layer=lane.of_layers(here), by_step=by_step, **inside)
        return out

    @property
    def sampled(self) -> tuple[str, ...]:
        """The tables of sampled steps that are there."""
        return tuple(name for name in SAMPLED if len(getattr(self, name)))

    def _sampled(self, change: Callable[[Table], Table]) -> dict[str, Any]:
        """The tables of sampled steps, each `change`d."""
        return {name: change(getattr(self, name)) for name in self.sampled}

    def to_frame(self) -> pd.DataFrame:
        """Tidy pandas frame: one row per step and layer, by step, then model order."""
        quantities = dict.fromkeys([*table.MAIN, *self.per_layer])
        return replace(self.by_layer, values={q: self.layer(q) for q in quantities}).to_frame("layer")

    def steps_frame(self) -> pd.DataFrame:
        """One row per step: totals, coefficient, learning rates, loss and whatever was logged."""
        import pandas as pd

        return pd.DataFrame({"optimizer": self.optimizer, "step": self.step, **self.per_step})

    def _repr_html_(self) -> str:
        return f"<b>{escape(repr(self))}</b>" + str(self.steps_frame().tail(5).to_html())

    if TYPE_CHECKING:  # report.notebook gives it to whoever opens a run

        def plot(self, *words: str) -> Any:
            """The charts of the run's report as Plotly figures."""

"""The arguments of `watch` that are checked by themselves, before anything is made of them."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from gradwatch.errors import WatchError, warn
from gradwatch.measure.slices import Split
from gradwatch.policies import Policy
from gradwatch.recording.hooks import fires_hooks
from gradwatch.recording.learning_rate import RateScale
from gradwatch.recording.zero import ZeroOptimizer, is_zero, refuse_acting
from gradwatch.sanitize import MAX_COUNT, MAX_STEP
from gradwatch.storage.manifest import text_of
from gradwatch.storage.places import TRACKERS

DAY = 86_400.0
FLAT_ENGINES = ("deepspeed.runtime.", "megatron.core.optimizer.")  # modules of wrappers that step flat copies


@dataclass(frozen=True)
class Settings:
    """The arguments of `watch` that are checked by themselves, and what follows from them."""

    every: int
    total_steps: int | None
    log: str | Sequence[str] | None
    delivery: str
    mlflow_layers: int
    halt_on: Literal["error", "warning"] | None
    flush_every: float
    higher_is_better: Mapping[str, bool]
    lr_scale: float = 1.0
    warmup: int = 0
    activations: bool | Sequence[str] = False
    activations_every: int = 50
    slots: bool = False
    ranks: bool = False
    noise_scale: bool = False
    histogram_every: int | None = None
    singular_values: bool | Sequence[str] = False
    split: Split = field(default_factory=dict)
    rows: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("every", "total_steps", "mlflow_layers", "activations_every", "histogram_every"):
            value = getattr(self, name)
            most = MAX_STEP if name == "total_steps" else MAX_COUNT
            is_left_out = value is None and name in ("total_steps", "histogram_every")
            if not is_left_out and not (type(value) is int and 1 <= value <= most):
                raise WatchError(f"{name}={value!r:.80}: wanted a whole number from 1 to {most:,}")
        seconds = self.flush_every
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= DAY:
            raise WatchError(f"flush_every={seconds!r}: wanted a number of seconds, more than 0 and at most a day")
        if type(self.warmup) is not int or not 0 <= self.warmup <= MAX_STEP:
            raise WatchError(f"warmup={self.warmup!r:.80}: wanted a whole number of steps from 0 to {MAX_STEP:,}")
        scale = self.lr_scale
        if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < math.inf:
            raise WatchError(f"lr_scale={scale!r:.80}: wanted a number, more than 0 and finite")
        self._check_log()
        for name, allowed in (
            ("delivery", ("courier", "none")),
            ("halt_on", ("error", "warning", None)),
        ):
            value = getattr(self, name)
            if not isinstance(value, str | None) or value not in allowed:
                raise WatchError(f"{name}={value!r:.80}: wanted {' or '.join(map(repr, allowed))}")

        for name, such in (("activations", ["*.attn", "*.mlp"]), ("singular_values", ["*.weight"])):
            asked = getattr(self, name)
            if not isinstance(asked, bool) and not _are_patterns(asked):
                raise WatchError(f"{name}={text_of(asked):.80}: wanted True, or a list of patterns, such as {such}")
        if not _are_patterns(self.rows):
            raise WatchError(f"rows={text_of(self.rows):.80}: wanted a list of patterns, such as ['*embed*']")
        self._check_split()
        told = self.higher_is_better
        if not isinstance(told, Mapping) or not all(
            isinstance(k, str) and isinstance(v, bool) for k, v in told.items()
        ):
            raise WatchError(
                f"higher_is_better={text_of(told):.80}: wanted names with True or False, such as {{'elo': True}}"
            )

    def _check_split(self) -> None:
        if not isinstance(self.split, Mapping) or not all(
            isinstance(pattern, str)
            and (type(how) is int or (isinstance(how, tuple) and [*map(type, how)] == [int, int]))
            for pattern, how in self.split.items()
        ):
            raise WatchError(
                f"split={text_of(self.split):.80}: wanted patterns of layers with a dimension, or a dimension and a "
                "number of pieces, such as {'*.experts.*': 0, '*.q_proj.weight': (0, 12)}"
            )

    def _check_log(self) -> None:
        given = self.log
        known = isinstance(given, Sequence) and all(isinstance(t, str) and t in TRACKERS for t in self.trackers)
        if given is not None and not known:
            wanted = ", ".join(map(repr, TRACKERS))
            raise WatchError(f"log={given!r:.80}: wanted None, one of {wanted}, or several of them in a tuple")
        if "tensorboard" in self.trackers and importlib.util.find_spec("tensorboard") is None:
            raise WatchError(
                "tensorboard is not installed: pip install 'gradwatch[tensorboard]', or leave it out of log="
            )

    @property
    def matrices(self) -> tuple[str, ...]:
        """The patterns of the weights whose singular values are recorded."""
        asked = self.singular_values
        return (("*",) if asked else ()) if isinstance(asked, bool) else tuple(asked)

    @property
    def trackers(self) -> tuple[str, ...]:
        """What the run is delivered to."""
        return (self.log,) if isinstance(self.log, str) else tuple(self.log or ())

    def couriers(self, writes: bool) -> tuple[bool, bool]:
        """Whether processes are started that deliver to MLflow, and to TensorBoard; none where nothing is written."""
        wanted = writes and self.delivery == "courier"
        return wanted and "mlflow" in self.trackers, wanted and "tensorboard" in self.trackers

    def recorded(self) -> dict[str, Any]:
        """What the manifest says of them. A window of steps is a point in MLflow: about 300, if the length is known."""
        window = max(1, -(-self.total_steps // 300)) if self.total_steps else 50
        return {
            "every": self.every,
            "total_steps": self.total_steps,
            "window": window,
            "mlflow_layers": self.mlflow_layers,
            "higher_is_better": dict(self.higher_is_better),
            "lr_scale": float(self.lr_scale),
            "warmup": self.warmup,
            "activations_every": None if self.activations is False else self.activations_every,
        }

    @property
    def is_only_diagnosed(self) -> bool:
        """Whether the process that is started beside the training delivers nothing to MLflow: it only diagnoses."""
        return self.delivery != "none" and "mlflow" not in self.trackers


def _are_patterns(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(each, str) for each in value)


def check_kinds(
    run_name: object, dir: object, run_id: object, tracking_uri: object, tags: object, params: object,
    layers: object, ignore: object,
) -> None:  # fmt: skip
    """Refuse arguments of another kind than they are declared to be, before anything is made of them."""
    for name, value, kinds, wanted in (
        ("run_name", run_name, str | None, "text"),
        ("dir", dir, str | Path, "a path"),
        ("run_id", run_id, str | None, "text"),
        ("tracking_uri", tracking_uri, str | None, "text"),
        ("tags", tags, Mapping | None, "a mapping of names to texts"),
        ("params", params, Mapping | None, "a mapping of names to values"),
    ):
        if not isinstance(value, kinds):
            raise WatchError(f"{name}={text_of(value):.80}: wanted {wanted}")
    if "\0" in str(dir):
        raise WatchError(f"dir={str(dir)!r:.200}: no folder's name holds a NUL")
    for name, value in (("layers", layers), ("ignore", ignore)):
        if not isinstance(value, Iterable) or not all(isinstance(pattern, str) for pattern in value):
            raise WatchError(f"{name}={text_of(value):.80}: wanted a list of patterns, such as ['encoder.*']")


def _unwrapped(optimizer: Any) -> Any:
    """The optimizer whose steps fire hooks: a wrapper (Accelerate's) hands each real step on to its `.optimizer`.
    DeepSpeed's ZeRO is shown as one.

    Raises:
        WatchError: a wrapper's optimizer inside steps copies of the parameters.
    """
    while not fires_hooks(optimizer) and hasattr(optimizer, "optimizer"):
        if is_zero(optimizer):
            return ZeroOptimizer.of(optimizer)
        if type(optimizer).__module__.startswith(FLAT_ENGINES):
            raise WatchError(
                f"{type(optimizer).__name__} steps copies of the parameters, flat or in another dtype, of which a rank "
                "may have a share: the layers' own gradients reach no optimizer. Use that library's own clipping "
                "(Megatron's clip_grad), or DDP, fully_shard (FSDP2) or DeepSpeed's ZeRO"
            )
        optimizer = optimizer.optimizer
    return optimizer


def plain_optimizers(given: Optimizer | Iterable[Optimizer]) -> list[Optimizer]:
    """The optimizers, without wrappers.

    Raises:
        WatchError: one of them is no optimizer, or fires no hooks.
    """
    optimizers = [_unwrapped(o) for o in (given if isinstance(given, Iterable) else [given])]
    if not optimizers or not all(isinstance(o, Optimizer) for o in optimizers):
        found = ", ".join(type(o).__name__ for o in optimizers)[:200]
        raise WatchError(f"optimizer=[{found}]: wanted a torch.optim.Optimizer, or a list of them")
    for o in optimizers:
        if not fires_hooks(o):
            raise WatchError(
                f"{type(o).__name__} never called Optimizer.__init__, so that its steps fire no hooks: pass the "
                "optimizer that it wraps"
            )
    return optimizers


def _refuse_unmade(optimizers: Sequence[Optimizer]) -> None:
    params = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    for found, how in (
        (any(is_lazy(p) for p in params), "have no shape before a first forward (lazy modules): run one batch through"),
        (any(p.is_meta for p in params), "are on the meta device, which holds no numbers: give them memory"),
        (torch.is_inference_mode_enabled(), "are looked at under torch.inference_mode(): leave it"),
    ):
        if found:
            raise WatchError(f"some of the parameters {how} before watch()")


def checked_optimizers(
    given: Optimizer | Iterable[Optimizer],
    policies: tuple[Policy | None, Policy | None],
    rates: RateScale,
    slots: bool,
) -> list[Optimizer]:
    """The optimizers, without wrappers; warns of a clip that a line search is misled by.

    Raises:
        WatchError: as `plain_optimizers`, or as `RateScale.check`; something is asked for that one is not fit for, or
            parameters are not made yet.
    """
    optimizers, (clip, renorm) = plain_optimizers(given), policies
    acting = {"clip=": clip is not None, "renorm=": renorm is not None, "lr_scale= or warmup=": rates.acts}
    refuse_acting(optimizers, {**acting, "slots=": slots})
    rates.check(optimizers)
    _refuse_unmade(optimizers)
    for o in optimizers:
        search = next((g["line_search_fn"] for g in o.param_groups if g.get("line_search_fn")), None)
        if clip is not None and search is not None:
            warn(
                f"{type(o).__name__}(line_search_fn={search!r}) with clip={clip!r}: the search trusts the gradient to "
                "be the slope of the loss, which a clipped gradient is not, so it may take steps of the wrong length "
                "or stop early; leave out clip=, or set line_search_fn=None"
            )
    return optimizers

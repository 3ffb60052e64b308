"""The clips of the loop's own: which gradients each of them changed, by how much, and the columns that come of it.

Legend: T steps of one block, L layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from gradwatch.measure.writes import writes

MOST = 64  # clips of the same gradients before one step; of more the last count
COEF = "user_clip/"  # and a number: a clip's coefficient on its way from the device


class Witness(NamedTuple):
    """One of the gradients that a clip changes, and how often it had been written to before and after the clip."""

    param: Tensor
    grad: Tensor
    before: int
    after: int

    @classmethod
    def of(cls, params: Sequence[Tensor]) -> Witness | None:
        """The first of the gradients, before the clip; None where there is none, or where the clip is compiled."""
        if torch.compiler.is_compiling():
            return None
        param = next((p for p in params if p.grad is not None), None)
        if param is None or param.grad is None:
            return None
        return cls(param, param.grad, writes(param.grad), writes(param.grad))

    def later(self) -> Witness:
        """The same after the clip."""
        return self._replace(after=writes(self.grad))


class Clip(NamedTuple):
    """One call that clipped the gradients of `params`.

    `values` are its settings, as they are recorded; `coef` is what it left of their joint norm, 0-d on the device, and
    None where that cannot be told.
    """

    params: Sequence[Tensor]
    values: Mapping[str, Any]
    coef: Tensor | None = None
    witness: Witness | None = None


@dataclass
class _Taken:
    """A clip that waits for its step."""

    clip: Clip
    ids: set[int]  # of its parameters
    version: int  # what the witness is at, if nothing but clips has written to it since
    is_early: bool = False  # whether something has: the clip was one of a part of the gradients' sum


class Applied(NamedTuple):
    """A clip as its step's row knows it, beside its coefficient, which is on the device."""

    layers: tuple[bool, ...]  # which it clipped, [L]
    is_early: bool = False
    is_late: bool = False  # whether it came inside the optimizer's own step, when the gradients were measured


@dataclass(frozen=True)
class StepClips:
    """The clips of one step, and what to record of them."""

    applied: tuple[Applied, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    def also(self, clip: Clip, params: Sequence[Tensor], is_early: bool = False, is_late: bool = False) -> StepClips:
        """With one more; `params` are those of the layers, in their order."""
        ids = {id(p) for p in clip.params}
        applied = Applied(tuple(id(p) in ids for p in params), is_early, is_late)
        coef = float("nan") if clip.coef is None else clip.coef
        values = {**self.values, **clip.values, f"{COEF}{len(self.applied)}": coef}
        return StepClips((*self.applied, applied), values)


NO_CLIPS = StepClips()


class LoopClips:
    """The clips of the optimizers' gradients since each optimizer's last step."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._since: dict[Optimizer, list[_Taken]] = {o: [] for o in optimizers}
        self.last: dict[str, Any] = {}  # the settings of the last ones
        self._owners: dict[int, list[Optimizer]] = {}  # of each parameter, by its id, as first asked in a step

    def add(self, clip: Clip) -> None:
        """The loop has clipped. Clips of gradients that have been thrown away since are forgotten."""
        ids = {id(p) for p in clip.params}
        if not self._owners:
            for optimizer in self._since:
                for p in (p for group in optimizer.param_groups for p in group["params"]):
                    self._owners.setdefault(id(p), []).append(optimizer)
        for optimizer in dict.fromkeys(owner for i in ids for owner in self._owners.get(i, ())):
            since = self._since[optimizer]
            if not (since and _is_told(since[-1].clip, clip)):
                since[:] = [*_still(since, clip, ids)[1 - MOST :], _Taken(clip, ids, _after(clip))]
                self.last.update(clip.values)

    def late(self, clips: StepClips, clip: Clip, params: Sequence[Tensor]) -> StepClips:
        """The clips of a step with one inside it, if that is of these layers."""
        also = clips.also(clip, params, is_late=True)
        if not any(also.applied[-1].layers):
            return clips
        self.last.update(clip.values)
        return also

    def take(self, optimizers: Sequence[Optimizer], params: Sequence[Tensor], under_scaler: bool) -> StepClips:
        """The clips that belong to a step of `optimizers`, in their order; they are forgotten. A loss scaler writes to
        the gradients when it comes to their optimizer.
        """
        found: dict[int, tuple[Clip, bool]] = {}
        for optimizer in optimizers:
            for taken in self._since[optimizer]:
                early = taken.is_early or (not under_scaler and _written_to(taken))
                found.setdefault(id(taken.clip), (taken.clip, early))
            self._since[optimizer].clear()
        self._owners.clear()
        out = NO_CLIPS
        for clip, early in found.values():
            out = out.also(clip, params, early)
        return out


def _still(since: list[_Taken], clip: Clip, ids: set[int]) -> list[_Taken]:
    """Of the clips before this one those that still count; the early ones become one, with the least coefficient."""
    early: list[_Taken] = []
    others: list[_Taken] = []
    for taken in since:
        seen = taken.clip.witness
        if seen is None or clip.witness is None or seen.param.grad is not seen.grad:
            continue  # thrown away, or (a compiled clip) nobody knows: then the last alone counts
        _move_on(taken, seen, clip.witness, ids)
        (early if taken.is_early else others).append(taken)
    if len(early) > 1:
        first, second = (taken.clip.coef for taken in early)
        least = first if second is None else second if first is None else torch.minimum(first, second)
        values = {**early[0].clip.values, **early[1].clip.values}
        merged = early[1].clip._replace(values=values, coef=least)
        early = [replace(early[1], clip=merged, ids=early[0].ids | early[1].ids)]
    return [*early, *others]


def _is_told(last: Clip, clip: Clip) -> bool:
    """Whether they are one call, told by two wrappers: by that of a Watch closed since, kept in somebody else's."""
    seen, new = last.witness, clip.witness
    return seen is not None and new is not None and seen.grad is new.grad and new.before < seen.after


def _move_on(taken: _Taken, seen: Witness, new: Witness, ids: set[int]) -> None:
    """Another clip has written to the gradients of `ids`, and shows by `new` how often; was it the only one?"""
    if seen.grad is new.grad:
        taken.is_early |= taken.version != new.before
        taken.version = new.after
    else:
        taken.version += (new.after - new.before) if id(seen.param) in ids else 0
        taken.is_early |= _written_to(taken)


def _after(clip: Clip) -> int:
    return 0 if clip.witness is None else clip.witness.after


def _written_to(taken: _Taken) -> bool:
    seen = taken.clip.witness
    return seen is not None and writes(seen.grad) != taken.version


# --------------------------------------------------------------------------------------------------------- columns


def clip_columns(
    rows: Sequence[Sequence[Applied]], coefs: Mapping[str, NDArray[np.float64]], layers: Mapping[str, Any]
) -> dict[str, NDArray[np.float64]]:
    """What the loop's clips amount to in each row, `[T]` by column; empty where there were none.

    `coefs` are the coefficients of a row's clips, `[T]` by `COEF` and their number, NaN where one is not known;
    `layers` is what was recorded of each layer.

    A coefficient is the total norm after the clips / before them: `user_clip_coef` of those before the step,
    `user_step_coef` of those inside it, and `user_early_coef` the least coefficient of those that clipped a part of the
    gradients' sum. `user_clip_share`: the share of the layers with a gradient that all of them clipped.
    """
    out: dict[str, NDArray[np.float64]] = {}
    unknown = np.full(len(rows), np.nan)
    for t, clips in enumerate(rows):
        here = ~np.isnan(layers["nonfinite"][t])
        norms = layers["grad_norm"][t].astype(np.float64)
        parts = (("user_clip_coef", False, norms), ("user_step_coef", True, _after_policy(layers, t)))
        known = [(clip, coefs.get(f"{COEF}{i}", unknown)[t]) for i, clip in enumerate(clips)]
        found: dict[str, float] = {}
        for column, late, measured in parts:
            mine = [(clip.layers, coef) for clip, coef in known if clip.is_late == late and not clip.is_early]
            if mine:
                found[column] = _joint(mine, here, measured, divide=not late)
        early = [coef for clip, coef in known if clip.is_early]
        if early:
            found["user_early_coef"] = min(early)
        if known:
            shares = [np.asarray(clip.layers)[here].mean() if here.any() else np.nan for clip, _ in known]
            found["user_clip_share"] = float(min(shares))
        for column, value in found.items():
            out.setdefault(column, np.full(len(rows), np.nan))[t] = value
    return out


def _after_policy(layers: Mapping[str, Any], t: int) -> NDArray[np.float64]:
    after = layers.get("clipped_norm")
    with np.errstate(invalid="ignore"):
        values = layers["grad_norm"][t] * layers["clip_coef"][t] if after is None else after[t]
    return np.asarray(values, np.float64)


def _joint(
    clips: Sequence[tuple[tuple[bool, ...], float]], here: Any, norms: NDArray[np.float64], divide: bool
) -> float:
    """The joint norm after these clips / before them; `norms` `[L]` are those after them (`divide`) or before them."""
    factor = np.ones(len(here))
    for layers, coef in clips:
        factor[np.asarray(layers)] *= coef
    factor, norms = factor[here], norms[here]
    if not len(factor):
        return float("nan")
    if (factor == factor[0]).all():  # one coefficient for all: no norm need be known
        return float(factor[0])
    with np.errstate(all="ignore"):
        other = norms / factor if divide else norms * factor
        after, before = (norms, other) if divide else (other, norms)
        return float(np.sqrt((after**2).sum() / (before**2).sum()))

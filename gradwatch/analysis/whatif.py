"""What-if: what other thresholds would have done to the norms that a run recorded. Nothing is trained again.

Legend: T recorded steps, L layers, P percentiles, Z thresholds of ZClip.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradwatch import formulas
from gradwatch.analysis.clips import clips_itself, incoming, of_all_layers
from gradwatch.analysis.final_values import finite_norms
from gradwatch.formatting import rounded, setting_text
from gradwatch.history import Floats, History

QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
Z_SCORES = (2.0, 2.5, 3.0, 4.0, 6.0)
SIMULATED = 20_000  # steps for the policies with a memory: they must be followed one by one
CELLS = 2_000_000  # norms of single layers; of a longer run evenly spaced steps stand for all
CAVEAT = (
    "Counted on the norms that this run recorded. Under another threshold the run would have gone another way: the "
    "first step that is clipped changes the weights, and so every later norm. What policies would do that look at "
    "single elements or units (ClipByValue, AGC) cannot be told from norms."
)


IN_ITS_PLACE = "The norms are those before the loop's own clip: each row is what a policy in its place would have done."
NO_LAYERS = "ClipByNorm is left out: what the loop's own clip changed in each layer is not known."


@dataclass(frozen=True)
class Outcome:
    """What one policy would have done: the share of steps it changes, and the mean over all steps of what it leaves.

    `mean_coef` is the mean of clipped norm / norm. `at` says where the threshold comes from: `p99` of the run's own
    norms. `optimizer` is the one (or the part) whose norms are meant, where several step on their own.
    """

    policy: str
    at: str
    clip_rate: float
    mean_coef: float
    optimizer: str = ""

    @property
    def kind(self) -> str:
        """The name of the policy, without its settings."""
        return self.policy.partition("(")[0]


def what_if(history: History) -> tuple[Outcome, ...]:
    """Each policy kind at thresholds from the median to the 99.9th percentile of the run's own norms.

    Norms that are not finite are left out, as the policies themselves keep them out of their memory. The policies with
    a memory (AutoClip, ZClip) are followed over the first `SIMULATED` steps. Thresholds are rounded to three digits,
    and the numbers are those of the rounded ones.
    """
    return tuple(
        Outcome(policy, at, float((coef < 1).mean()), float(coef.mean()), name)
        for name, lane in history.lanes().items()
        for policy, at, coef in (*_whole(lane), *_layers(lane))
    )


def caveat(history: History) -> str:
    """What a reader of the outcomes must know."""
    if not clips_itself(history):
        return CAVEAT
    known = of_all_layers(history).all()
    return " ".join([IN_ITS_PLACE, CAVEAT, *([] if known else [NO_LAYERS])])


Row = tuple[str, str, Floats]  # policy, where the threshold comes from, coefficients [T]


def _whole(history: History) -> list[Row]:
    """The policies that look at the total norm alone."""
    norms = finite_norms(history)
    if not len(norms):
        return []
    early = norms[:SIMULATED]
    percentiles = [100 * q for q in QUANTILES]
    rows = [
        (f"ClipByGlobalNorm({setting_text(limit)})", at, formulas.clip_coef(norms, limit))
        for limit, at in _thresholds(norms).items()
    ]
    rows += [
        (f"AutoClip({p:g})", f"p{p:g} so far", coef)
        for p, coef in zip(percentiles, autoclip(early, percentiles), strict=True)
    ]
    rows += [
        (f"ZClip({z})", f"{z:g} σ above the mean", coef)
        for z, coef in zip(Z_SCORES, zclip(early, Z_SCORES), strict=True)
    ]
    return rows


def _layers(history: History) -> list[Row]:
    """ClipByNorm: every layer on its own, one threshold for all. Nothing of a reduced run: it lacks most norms.

    Where the loop's own clip comes first, a layer's norm is divided by its coefficient; nothing where it had several.
    """
    if history.is_reduced or not of_all_layers(history).all():
        return []
    every = max(-(-len(history.by_layer) * len(history.layers) // CELLS), 1)
    norms = history.layer("grad_norm")[::every].astype(np.float64)
    if clips_itself(history):
        with np.errstate(invalid="ignore", divide="ignore"):
            scale = incoming(history) / history.total("grad_norm")
        norms = norms * np.where(np.isnan(scale), 1, scale)[history.layer_rows[::every], None]
    norms = np.nan_to_num(norms[~np.isinf(norms).any(axis=1) & ~np.isnan(norms).all(axis=1)], nan=0.0)
    if not norms.size:
        return []
    total = np.sqrt((norms**2).sum(axis=1))
    rows = []
    for limit, at in _thresholds(norms[norms > 0]).items():
        after = np.sqrt(((norms * formulas.clip_coef_exact(norms, limit)) ** 2).sum(axis=1))
        coef = np.where((norms > limit).any(axis=1), after / np.where(total, total, 1), 1.0)
        rows.append((f"ClipByNorm({setting_text(limit)})", f"{at} of all layers", coef))
    return rows


def _thresholds(norms: Floats) -> dict[float, str]:
    if not len(norms):
        return {}
    limits = ((rounded(float(np.quantile(norms, q))), f"p{100 * q:g}") for q in QUANTILES)
    found: dict[float, str] = {}
    for limit, at in limits:
        if limit > 0:
            found.setdefault(limit, at)
    return found


def autoclip(norms: Floats, percentiles: Sequence[float], window: int = 10_000) -> Floats:
    """The coefficients `[P, T]` of AutoClip, each norm being part of its own percentile. Source: as the policy."""
    held: list[float] = []
    limits = np.empty((len(percentiles), len(norms)))
    places = np.asarray(percentiles) / 100
    for i, norm in enumerate(norms.tolist()):
        insort(held, norm)
        if len(held) > window:
            del held[bisect_left(held, float(norms[i - window]))]
        for j, place in enumerate(places * (len(held) - 1)):
            low = int(place)
            above = held[min(low + 1, len(held) - 1)]
            limits[j, i] = held[low] + (above - held[low]) * (place - low)
    coef: Floats = formulas.clip_coef(norms, limits)
    return coef


def zclip(
    norms: Floats, scores: Sequence[float], alpha: float = 0.97, warmup: int = 25, option: str = "adaptive_scaling"
) -> Floats:
    """The coefficients `[Z, T]` of ZClip without a `max_norm`. Source: as the policy."""
    z, hold = np.asarray(scores, np.float64), np.zeros(len(scores), bool)
    mean, var, limits = np.zeros(len(z)), np.zeros(len(z)), np.empty((len(z), len(norms)))
    for i, norm in enumerate(norms):
        seen = np.float64(i)
        with np.errstate(divide="ignore", invalid="ignore"):  # the target of a norm that is no spike
            limit, _ = formulas.zclip_limit(np.full(len(z), norm), seen, mean, var, z, warmup, option)
        mean, var = formulas.zclip_moments(limit, hold, seen, mean, var, alpha, warmup)
        limits[:, i] = limit
    return np.where(norms > limits, formulas.clip_coef(norms, limits), 1.0)

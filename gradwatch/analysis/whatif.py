"""What-if: what other thresholds would have done to the norms that a run recorded. Nothing is trained again.

Legend: T recorded steps, L layers, P percentiles, Z thresholds of ZClip.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gradwatch import formulas
from gradwatch.analysis.clips import clips_itself, incoming, of_all_layers
from gradwatch.analysis.final_values import finite_norms
from gradwatch.analysis.rules.finding import Finding
from gradwatch.analysis.rules.guard import (
    ENOUGH,
    USUAL,
    healthy,
    healthy_norms,
    limit_of,
    too_few,
    under_own,
    wrong_norms,
)
from gradwatch.formatting import setting_text
from gradwatch.history import Bools, Floats, History

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

    `mean_coef` is the mean of clipped norm / norm. `at` says where the threshold comes from: `p99` of the norms of the
    run's healthy steps. `optimizer` is the one (or the part) whose norms are meant, where several step on their own.
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


def what_if(history: History, findings: Iterable[Finding]) -> tuple[Outcome, ...]:
    """Each policy kind at thresholds from the median to the 99.9th percentile of the norms of the run's healthy steps.

    Which steps are healthy follows from the run's `findings`, as for what these and the suggestion advise; where they
    are too few, the one threshold is the usual first value, and where the norms are not the gradients' own there is
    nothing. What a threshold would have done is counted on all norms that are finite, as the policies themselves keep
    the others out of their memory. The policies with a memory (AutoClip, ZClip) are followed over the first
    `SIMULATED` steps. Thresholds are rounded to two digits, and the numbers are those of the rounded ones.
    """
    return tuple(
        Outcome(policy, at, float((coef < 1).mean()), float(coef.mean()), name)
        for name, lane, found in _lanes(history, findings)
        if wrong_norms(found) is None
        for policy, at, coef in (*_whole(lane, found), *_layers(lane, healthy(lane, found)))
    )


def caveat(history: History, findings: Iterable[Finding]) -> str:
    """What a reader of the outcomes must know."""
    lanes = [(name, lane, found) for name, lane, found in _lanes(history, findings) if wrong_norms(found) is None]
    said = [_source(lane, found, name) for name, lane, found in lanes]
    if clips_itself(history):
        said = [IN_ITS_PLACE, *said]
    known = not clips_itself(history) or of_all_layers(history).all()
    return " ".join([*said, CAVEAT, *([] if known else [NO_LAYERS])])


def _lanes(history: History, findings: Iterable[Finding]) -> Iterator[tuple[str, History, list[Finding]]]:
    """Each optimizer (or part) that steps on its own: its name, its history, and what was found in it."""
    findings = list(findings)
    for name, lane in history.lanes().items():
        yield name, lane, [finding for finding in findings if finding.optimizer == name]


def _source(history: History, findings: Sequence[Finding], name: str) -> str:
    """Which steps the thresholds come from, as a sentence."""
    norms, of = healthy_norms(history, findings), f"{name}: " if name else ""
    if limit_of(norms) is None:
        return f"{of}{too_few(norms)}"
    said = f"{of}thresholds" if name else "Thresholds"
    return f"{said} come from the norms of {len(norms):,} healthy steps of {len(history):,}."


Row = tuple[str, str, Floats]  # policy, where the threshold comes from, coefficients [T]


def _whole(history: History, findings: Sequence[Finding]) -> list[Row]:
    """The policies that look at the total norm alone."""
    norms = finite_norms(history)
    if not len(norms):
        return []
    early, usual = norms[:SIMULATED], healthy_norms(history, findings)
    lower = under_own(history, findings, limit_of(usual))
    thresholds = _thresholds(usual) | ({lower: "below the loop's own"} if lower else {})
    percentiles = [100 * q for q in QUANTILES]
    rows = [
        (f"ClipByGlobalNorm({setting_text(limit)})", at, formulas.clip_coef(norms, limit))
        for limit, at in (thresholds or {USUAL: "usual first value"}).items()
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


def _layers(history: History, usual: Bools) -> list[Row]:
    """ClipByNorm: every layer on its own, one threshold for all, from the steps in the mask `usual`, `[T]`.

    Nothing of a reduced run: it lacks most norms. Where the loop's own clip comes first, a layer's norm is divided by
    its coefficient; nothing where it had several.
    """
    if history.is_reduced or not of_all_layers(history).all() or usual.sum() < ENOUGH:
        return []
    every = max(-(-len(history.by_layer) * len(history.layers) // CELLS), 1)
    norms, at = history.layer("grad_norm")[::every].astype(np.float64), history.layer_rows[::every]
    if clips_itself(history):
        with np.errstate(invalid="ignore", divide="ignore"):
            scale = incoming(history) / history.total("grad_norm")
        norms = norms * np.where(np.isnan(scale), 1, scale)[at, None]
    finite = ~np.isinf(norms).any(axis=1) & ~np.isnan(norms).all(axis=1)
    norms, at = np.nan_to_num(norms[finite], nan=0.0), at[finite]
    from_these = norms[usual[at]]
    total = np.sqrt((norms**2).sum(axis=1))
    rows = []
    for limit, quantile in _thresholds(from_these[from_these > 0]).items():
        after = np.sqrt(((norms * formulas.clip_coef_exact(norms, limit)) ** 2).sum(axis=1))
        coef = np.where((norms > limit).any(axis=1), after / np.where(total, total, 1), 1.0)
        rows.append((f"ClipByNorm({setting_text(limit)})", f"{quantile} of all layers", coef))
    return rows


def _thresholds(norms: Floats) -> dict[float, str]:
    """The quantiles of healthy norms that differ when rounded; none where the norms are too few."""
    found: dict[float, str] = {}
    for q in QUANTILES:
        limit = limit_of(norms, q)
        if limit is not None:
            found.setdefault(limit, f"p{100 * q:g}")
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

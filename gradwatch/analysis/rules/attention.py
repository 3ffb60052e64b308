"""What heads of attention show that no gradient does: logits that grow without end, heads that look at one key only.

Legend: T sampled steps, H heads.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.rules.activation_facts import medians, still_grows
from gradwatch.analysis.rules.finding import Evidence, Finding, Severity, Why
from gradwatch.analysis.rules.progress import came_down, succeeds
from gradwatch.analysis.rules.sampled_losses import inside
from gradwatch.analysis.rules.series import holds_from
from gradwatch.formatting import percent
from gradwatch.history import Bools, History
from gradwatch.table import Table


def attention_logits_grow(
    history: History, limit: float = 100.0, growth: float = 3.0, min_rows: int = 6
) -> list[Finding]:
    """Heads whose logits have grown beyond `limit`, to more than `growth` times what they were, and still grow.

    By the largest |logit| of the sampled rows (`still_grows`).
    Source: Dehghani et al. 2023, "Scaling Vision Transformers to 22 Billion Parameters" (logits that grow end in a
    divergence; normalised queries and keys prevent it); the limit is that of QK-Clip, Kimi K2, arXiv:2507.20534.
    """
    heads = history.activations.with_values("logit_max")
    if len(heads) < min_rows or not heads.layers:
        return []
    values = heads.values["logit_max"]
    hit, first, last = still_grows(values, limit, growth)
    if not len(hit):
        return []
    above = np.any(values[:, hit] > limit, axis=1)
    worst = hit[np.argmax(last[hit])]
    evidence: Evidence = {
        "largest_logit": float(last[worst]), "at_first": float(first[worst]), "head": heads.layers[worst],
        "heads": len(hit), "of": len(heads.layers),
    }  # fmt: skip
    cause = (
        f"The attention logits of {_heads(len(hit))} have grown beyond {limit:g} and still grow: in "
        f"`{heads.layers[worst]}` from {first[worst]:.3g} to {last[worst]:.3g}. A softmax of such logits looks at one "
        "key only, and hardly any gradient comes back through it."
    )
    cure = (
        "Normalise queries and keys, each head by itself before the product: q = F.rms_norm(q, q.shape[-1:]), and k "
        "too. Or lower the learning rate tenfold, or warm it up, or give these projections a weight decay of 0.1."
    )
    return [_finding(history, "attention-logits-grow", heads, hit, _since(heads, above), evidence, cause, cure)]


def attention_collapsed(history: History, below: float = 0.05, share: float = 0.5, min_rows: int = 3) -> list[Finding]:
    """Modules most of whose heads look at one key only, whatever goes in: the entropy of their softmax is next to none.

    `entropy` of a head, as a share of what it could be, is less than `below` by the median of the last third of the
    sampled steps, in more than `share` of the module's heads.
    Source: Zhai et al. 2023, "Stabilizing Transformer Training by Preventing Attention Entropy Collapse",
    arXiv:2303.06296.
    """
    heads = history.activations.with_values("entropy")
    if len(heads) < min_rows or not heads.layers:
        return _certain(history)
    values = heads.values["entropy"]
    last = medians(values[-max(min_rows, len(heads) // 3) :])
    with np.errstate(invalid="ignore"):
        low = last < below
    modules = np.array([name.rpartition("[")[0] for name in heads.layers])
    held = [name for name in dict.fromkeys(modules) if low[modules == name].mean() > share]
    hit = np.flatnonzero(low & np.isin(modules, held))
    if not len(hit):
        return []
    with np.errstate(invalid="ignore"):
        collapsed = (values[:, hit] < 2 * below).mean(axis=1) > share
    worst = hit[np.argmin(last[hit])]
    evidence: Evidence = {
        "entropy": float(last[worst]), "head": heads.layers[worst], "heads": len(hit), "of": len(heads.layers),
        "modules": len(held),
    }  # fmt: skip
    logits = heads.values.get("logit_max", np.full_like(values, np.nan))
    largest = float(np.nanmax(np.where(np.isfinite(logits[-1, hit]), logits[-1, hit], -np.inf)))
    if np.isfinite(largest):
        evidence["largest_logit"] = largest
    cause = (
        f"{_heads(len(hit)).capitalize()} in {'one module' if len(held) == 1 else f'{len(held)} modules'} look at one "
        f"key only: the entropy of their attention is below {percent(below)} of what it could be. Hardly any gradient "
        "reaches the queries and keys, so they stay so."
    )
    since = _since(heads, collapsed)
    cure = _UNDIVIDED if since == heads.step[0] else _LONG
    return [_finding(history, "attention-collapsed", heads, hit, since, evidence, cause, cure)]


_UNDIVIDED = (
    "Begin with smaller weights for queries and keys (Xavier's initialisation), and check that the logits are divided "
    "by the root of the head's size; a normalisation of queries and keys bounds them."
)
_LONG = "Lower the learning rate or warm it up; normalise queries and keys, which bounds the logits."


def _certain(history: History, at_first: float = 0.1, held: float = 0.3, left: float = 0.1) -> list[Finding]:
    """Where no head was looked at: a softmax inside the model of whose rows the share `held` gives all to one key in
    the end (`inside`), and `at_first` of them did before the first step. A note where a loss came down to `left`. In
    the healthy trainings of the tests .05 did at first, at most.
    """
    seen = inside(history, "certain")
    if history.activations.layers or seen is None or seen.first < at_first or seen.last < held:
        return []
    cause = (
        f"In a softmax inside the model, at `{seen.layer}`, {percent(seen.first)} of the rows gave all to one of their "
        f"keys before the first step, and {percent(seen.last)} do in the end. Hardly any gradient reaches what its "
        "logits are made of, so they stay so."
    )
    evidence: Evidence = {"certain": seen.last, "certain_at_first": seen.first}
    steps = seen.first_step, int(history.step[-1])
    severity: Severity = "note" if came_down(history, left) else "warning"
    return [Finding("attention-collapsed", severity, (seen.layer,), *steps, evidence, cause, _UNDIVIDED)]


def grown_logits(history: History, step: int, limit: float = 100.0, growth: float = 3.0) -> Why | None:
    """That logits had grown beyond `limit` by a step, to more than `growth` times what they were; None where not.

    Of the head whose |logit| was largest in the steps sampled until then.
    """
    heads = history.activations.with_values("logit_max")
    if not heads.layers or not (heads.step <= step).any():
        return None
    values = heads.values["logit_max"][heads.step <= step]
    highest = np.fmax.reduce(np.where(np.isfinite(values), values, np.nan), axis=0)
    grown = (highest > limit) & (highest > growth * values[0])
    if not grown.any():
        return None
    worst = int(np.nanargmax(np.where(grown, highest, np.nan)))
    since = int(heads.step[np.argmax(values[:, worst] > limit)])
    return Why(
        f" Attention logits grew with it: of `{heads.layers[worst]}` from {values[0, worst]:.3g} to "
        f"{highest[worst]:.3g}, beyond {limit:g} at step {since}.",
        "",
        {"largest_logit": float(highest[worst]), "head": heads.layers[worst], "logits_since": since},
    )


_TOGETHER = re.compile(r"(attn|attention)\.\w+\.|in_proj_weight|(^|[._])(qkv|c_attn|to_qkv)(_proj)?\.weight", re.I)
_APART = [re.compile(rf"(^|[._])({names})(_proj)?\.weight", re.I) for names in ("q|wq|query|to_q", "k|wk|key|to_k")]


def has_attention(history: History) -> bool:
    """Whether the model has heads of attention, as were looked at, or as the names say of the layers of queries and
    keys.
    """
    heads = history.activations.with_values("logit_max")
    apart = all(any(map(names.search, history.layers)) for names in _APART)
    return bool(heads.layers) or apart or any(map(_TOGETHER.search, history.layers))


def _finding(
    history: History, rule: str, heads: Table, hit: NDArray[np.intp], since: int,
    evidence: Evidence, cause: str, cure: str,
) -> Finding:  # fmt: skip
    severity: Severity = "note" if succeeds(history) else "warning"
    names = tuple(heads.layers[i] for i in hit)
    return Finding(rule, severity, names, since, int(history.step[-1]), evidence, cause, cure)


def _since(heads: Table, holds: Bools) -> int:
    """The first sampled step from which on it held to the end, or the last."""
    return int(heads.step[min(holds_from(holds), len(heads) - 1)])


def _heads(count: int) -> str:
    return "one head" if count == 1 else f"{count} heads"

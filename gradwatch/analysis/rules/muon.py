"""A clip by the norm over matrices that Muon steps: it makes no step of theirs shorter.

Legend: L layers.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.clips import clips_itself, loop_changed, loop_rate, of_all_layers
from gradwatch.analysis.rules.facts import clips, is_adaptive, middle
from gradwatch.analysis.rules.finding import Evidence, Finding, Severity
from gradwatch.analysis.rules.guard import USUAL, limit_of
from gradwatch.analysis.rules.layer_facts import pick, present
from gradwatch.analysis.rules.owners import of_muon, owners
from gradwatch.analysis.rules.progress import succeeds
from gradwatch.formatting import loop_clips, percent
from gradwatch.history import Bools, Floats, History
from gradwatch.policies import AdaGC, AutoClip, ClipByAverageNorm, ClipByGlobalNorm, ClipByNorm, ZClip, only
from gradwatch.policies.grammar import members

_JOINT = (ClipByGlobalNorm, ClipByAverageNorm, AutoClip, ZClip)
_ONE_FACTOR = (*_JOINT, ClipByNorm, AdaGC)  # for a whole matrix


def clip_over_muon(history: History, often: float = 0.5, min_steps: int = 100) -> list[Finding]:
    """A clip by the norm that changes more than the share `often` of the gradients of matrices that Muon steps.

    Muon orthogonalises its momentum, which is that of the gradients as they come: one factor on all of them changes
    nothing, and one that varies only how much each weighs in the momentum. A clip that fires now and then bounds what
    one odd gradient weighs there, and is not meant. A warning where it stands over such matrices alone and the training
    does not succeed (who set it counts on a brake that is none), else a note.
    Source: Jordan 2024, https://kellerjordan.github.io/posts/muon; `torch.optim.Muon`. The thresholds are ours.
    """
    trained = present(history).any(axis=0)
    muon = of_muon(history) & trained
    if len(history) < min_steps or not muon.any():
        return []
    rate, text = _clipped(history)
    hit = muon & (rate > often)
    if not hit.any():
        return []
    others = trained & ~muon
    share = float(np.median(rate[hit]))
    evidence: Evidence = {"clip": text, "clip_rate": share, "layers": int(hit.sum())}
    cause = (
        f"{text} changed {percent(share)} of the gradients of matrices that Muon steps, and made no step of theirs "
        "shorter: Muon orthogonalises its momentum, and a momentum a tenth as large gives the same step. The clip only "
        "says how much each gradient weighs in it."
    )
    cure = (
        "How long Muon's steps are is set by its own lr. What grows is held by weight_decay, attention logits by "
        'renorm="QKClip()"; an odd step is left out by clip="SkipSpike()".'
    )
    if others.any() and _is_joint(history):
        more, cause_more, cure_more = _beside(history, muon, others)
        evidence, cause, cure = evidence | more, f"{cause} {cause_more}", f"{cure} {cure_more}".rstrip()
    harmless = (others & (rate > 0)).any() or succeeds(history)
    fired = history.step[(history.total("clip_rate") > 0) | (loop_changed(history) > 0)]
    first, last = (fired if len(fired) else history.step)[[0, -1]]
    where = () if hit[trained].all() else pick(history, hit)
    severity: Severity = "note" if harmless else "warning"
    return [Finding("clip-over-muon", severity, where, int(first), int(last), evidence, cause, cure)]


def _clipped(history: History) -> tuple[Floats, str]:
    """In what share of the steps a clip by one factor changed each layer's gradient, `[L]`, at least, and its code.

    NaN or 0 where there is none. Of the loop's own clips those of all layers count: where others act is not recorded.
    """
    rate, text = np.full(len(history.layers), np.nan), []
    policies = clips(history)
    if policies and all(isinstance(p, _ONE_FACTOR) and getattr(p, "axes", None) is None for p in policies):
        rate = history.clip_rate
        text.append(str(history.run.clip))
    if clips_itself(history) and of_all_layers(history).all():
        rate = np.fmax(rate, loop_rate(history))
        text.append(f"the loop's own {loop_clips(history.per_step)}")
    named = " and ".join(text)
    return rate, named[:1].upper() + named[1:]


def _is_joint(history: History) -> bool:
    """Whether a threshold is compared with a norm of all layers."""
    every = members(history.run.clip, of_all_layers=True)
    return any(isinstance(p, _JOINT) for p in every) or clips_itself(history)


def _beside(history: History, muon: Bools, others: Bools) -> tuple[Evidence, str, str]:
    """Evidence, cause and cure of the layers that are clipped with Muon's, by a norm which theirs is a part of."""
    norms = history.layer("grad_norm")
    ours, theirs = (np.sqrt((norms[:, which].astype(np.float64) ** 2).sum(axis=1)) for which in (muon, others))
    part = middle(ours**2 / (ours**2 + theirs**2))
    kinds = dict.fromkeys(kind for (kind, _), other in zip(owners(history), others, strict=True) if other)
    measured = {"muon_norm": middle(ours), "others_norm": middle(theirs), "muon_share": part}
    evidence: Evidence = {name: value for name, value in measured.items() if np.isfinite(value)}
    cause = f"Of the square of the joint norm that the threshold is compared with {percent(part)} is that of Muon's "
    cause += f"matrices; the other layers are scaled with them, and stepped by {' and '.join(kinds)}"
    cause += ", which takes the scale out of the gradients as well." if is_adaptive(history) else "."
    if len(kinds) > 1 or any("Muon" in kind for kind in kinds):
        return evidence, cause, ""
    known = succeeds(history) and not clips_itself(history)
    limit = limit_of(theirs[np.isfinite(theirs) & (theirs > 0)]) if known else None
    number, whence = (
        (USUAL, "the usual first value") if limit is None else (limit, "the 99th percentile of their norms")
    )
    policy = only(f"optimizer:{next(iter(kinds))}", ClipByGlobalNorm(number))
    return evidence, cause, f'The other layers alone are clipped by clip="{policy}": {number:g} is {whence}.'

"""What a page advises is one thing: a threshold, from its run's healthy steps and said to be, and a learning rate.

Legend: T recorded steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from gradwatch.analysis.clips import incoming, loop_limit
from gradwatch.analysis.rules.facts import GUARD, smooth, trailing
from gradwatch.analysis.rules.finding import Finding
from gradwatch.analysis.rules.losses import scaled_losses
from gradwatch.analysis.rules.series import quietest
from gradwatch.formatting import rounded, setting_text
from gradwatch.history import Bools, Floats, History

PAST = 128  # steps that a norm is compared with
ENOUGH = 50  # healthy steps that a threshold can be taken from
USUAL = 1.0  # of nanoGPT, of the Hugging Face Trainer, and of the exploding RNN that no threshold of its own can teach
TOO_LARGE_STEPS = {"exploding", "lr-too-high", "update-too-large"}
WRONG_NORMS = {"scaled-gradients", "gradients-accumulate", "clip-before-unscale"}


def healthy(history: History, findings: Iterable[Finding]) -> Bools:
    """Which steps, `[T]`, had a positive norm before any clip, and came before the run went wrong for good.

    Without outliers: in the log more than 6 robust σ above the steps before them, as `SkipSpike` has it (above those
    after them, where they are the first). Norms fall while a network learns: those of its beginning are no outliers.
    A note of what passed makes no step unhealthy. Of steps that were too large, those in which a loss was on its way up
    already are left out too. What follows from a finding counts as well, but for what follows from such steps.
    """
    last = int(history.step[-1])
    all_ends = ([root] if root.rule in TOO_LARGE_STEPS else _all([root]) for root in findings)
    ends = [f for each in all_ends for f in each if f.severity != "note"]
    bad = [_rise_before(history, f.first_step) for f in ends if f.rule in TOO_LARGE_STEPS]
    bad += [f.first_step for f in ends if _for_good(f, last)]
    norms = incoming(history)
    kept: Bools = np.isfinite(norms) & (norms > 0) & (history.step < min(bad, default=last + 1))
    if kept.any():
        logs = np.log(norms[kept])
        centre, spread = trailing(np.pad(logs, (PAST, 0), mode="symmetric"), PAST)
        kept[kept] = logs <= (centre + np.maximum(6 * spread, 1e-6))[PAST:]
    return kept


def _rise_before(history: History, step: int, share: float = 0.1) -> int:
    """The step from which on no training loss came near its lowest again, before a step or that step itself.

    Of its running median; near is within `share` of what it had won, or twice its noise (in its quietest quarter). Of
    so few steps that this tells nothing, near is below twice its first value.
    """
    begins = [step]
    for values in scaled_losses(history).values():
        rows = np.flatnonzero(np.isfinite(values) & (history.step < step))
        if not len(rows):
            continue
        if len(rows) < ENOUGH:
            near = values[rows] <= values[rows[0]] + abs(values[rows[0]])
        else:
            level = smooth(values[rows])
            noise = quietest(values[rows] - level)
            near = level <= level.min() + max(share * (level[0] - level.min()), 2 * noise)
        begins.append(int(history.step[rows[np.flatnonzero(near)[-1]]]) + 1)
    return min(begins)


def _for_good(finding: Finding, last: int) -> bool:
    """Whether nothing was healthy after it: numbers that stayed non-finite, a spike or dead layers that ruined it."""
    if finding.rule == "nonfinite":
        return finding.last_step >= last
    return finding.rule in ("spike", "dead-layer") and finding.severity == "error"


def healthy_norms(history: History, findings: Iterable[Finding]) -> Floats:
    """The norms before any clip of the `healthy` steps."""
    return incoming(history)[healthy(history, findings)]


def limit_of(norms: Floats, quantile: float = 0.99) -> float | None:
    """The 99th percentile (or another) of healthy norms, to two digits; None where they are too few to say."""
    return rounded(float(np.quantile(norms, quantile)), 2) if len(norms) >= ENOUGH else None


UNDER_OWN = "The loop's own clip lets steps through that are too large, and one that is no lower does nothing."


def under_own(history: History, roots: Iterable[Finding], limit: float | None, share: float = 0.2) -> float | None:
    """A threshold of a `share` of the loop's own, and 1 at most, where steps are too large under that: no `limit` of
    healthy norms then, as these stand before a clip that is lower. None where there is no such clip.
    """
    own = loop_limit(history)
    if own is None or limit is None or limit < own or not any(f.rule in TOO_LARGE_STEPS for f in _all(roots)):
        return None
    return min(USUAL, rounded(share * own, 2))


def _all(roots: Iterable[Finding]) -> list[Finding]:
    return [finding for root in roots for finding in (root, *root.consequences)]


def wrong_norms(roots: Iterable[Finding]) -> Finding | None:
    """The finding (a note too) by which the recorded norms are not those of the gradients: they hold no threshold."""
    return next((root for root in roots if root.rule in WRONG_NORMS), None)


def too_few(norms: Floats) -> str:
    """Why the usual value stands where a threshold of the run's own is wanted."""
    some = f"only {len(norms)} step{'s were' if len(norms) > 1 else ' was'} healthy, too few to take one from"
    return f"{USUAL} is the usual first value: {some if len(norms) else 'no step was healthy'}."


def with_guard(history: History, roots: Sequence[Finding]) -> list[Finding]:
    """These findings and what follows from them, with `GUARD` in their cures filled in: the same for all of them."""
    norms, wrong = healthy_norms(history, roots), wrong_norms(roots)
    limit = None if wrong else limit_of(norms)
    lower = under_own(history, roots, limit)
    limit = lower or limit
    text = f"ClipByGlobalNorm({setting_text(USUAL if limit is None else limit)})"

    def filled(finding: Finding) -> Finding:
        if lower and finding.rule == "clip-is-your-learning-rate":
            first = next(root.rule for root in _all(roots) if root.rule in TOO_LARGE_STEPS)
            return replace(finding, cure=f"Cure {first} first: under a higher threshold the steps are longer still.")
        finding = replace(finding, tries=tuple(each.replace(GUARD, text) for each in finding.tries))
        if GUARD not in finding.cure:
            return finding
        if wrong is not None:
            whence = f"{USUAL} is the usual first value: by {wrong.rule} the recorded norms are not the gradients' own."
        elif limit is None:
            whence = too_few(norms)
        elif lower:
            whence = UNDER_OWN
        else:
            whence = f"The threshold is the 99th percentile of the norms of {len(norms):,} healthy steps."
        return replace(finding, cure=f"{finding.cure.replace(GUARD, text)} {whence}")

    return [
        with_one_advice(replace(filled(root), consequences=tuple(map(filled, root.consequences)))) for root in roots
    ]


RAISED, LOWERED = re.compile(r"\b[Rr]aise the learning rate"), re.compile(r"\b[Ll]ower (the )?learning rate")
RATE = re.compile(r"(?:lr=|learning rate to about )([\d.e+-]*\d)")
_LIMIT = re.compile(r"(?<!', )ClipByGlobalNorm\(([\d.e+-]+)")  # not one of some layers only


def with_one_advice(root: Finding) -> Finding:
    """The finding, below which no cure asks for another learning rate than one before it, whose `tries` stay; nor for
    another threshold than the finding itself.
    """
    said, below = [root], []
    own = {limit for text in (root.cure, *root.tries) for limit in _LIMIT.findall(text)}
    for finding in root.consequences:
        other = next((one for one in said if other_rate(one.cure, finding.cure)), None)
        if own and not own.issuperset(_LIMIT.findall(finding.cure)):
            cure = f"Cure {root.rule} first: its clip bounds these steps, too."
            tries = tuple(each for each in finding.tries if own.issuperset(_LIMIT.findall(each)))
            below.append(replace(finding, cure=cure, tries=tries))
        elif other is None:
            said.append(finding)
            below.append(finding)
        else:
            below.append(replace(finding, cure=f"Cure {other.rule} first: this is about the same learning rate."))
    return replace(root, consequences=tuple(below))


def other_rate(cure: str, below: str) -> bool:
    """Whether two cures turn the learning rate in two directions, or name two of them."""
    one, two = (set(RATE.findall(text)) for text in (cure, below))
    return _turned(cure) * _turned(below) < 0 or bool(one and two and one != two)


def _turned(cure: str) -> int:
    """1 where a cure raises the learning rate, -1 where it lowers it, 0 where it does neither or leaves it open."""
    return bool(RAISED.search(cure)) - bool(LOWERED.search(cure))

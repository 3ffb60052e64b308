"""The policy text for the next run, from this run's own norms, with the reasons; or why clipping is not the cure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradwatch import formulas
from gradwatch.analysis.clips import clips_itself, incoming
from gradwatch.analysis.final_values import finite_norms, nonfinite_rows
from gradwatch.analysis.rules import Finding
from gradwatch.analysis.rules.facts import is_adaptive, optimizer_kind
from gradwatch.analysis.rules.guard import (
    ENOUGH,
    TOO_LARGE_STEPS,
    UNDER_OWN,
    USUAL,
    WRONG_NORMS,
    healthy_norms,
    limit_of,
    under_own,
    wrong_norms,
)
from gradwatch.analysis.rules.spike_words import ACTS_FROM
from gradwatch.analysis.whatif import SIMULATED, Z_SCORES, zclip
from gradwatch.formatting import loop_clips, percent, setting_text
from gradwatch.history import History

RARE = 0.03  # share of steps that a guard against spikes may change
# Diseases that a clip cures or eases. Everything else needs its own cure, and a clip would hide it.
CLIPPING_HELPS = {"exploding", "nonfinite", "spike", "lr-too-high", "update-too-large", "clip-inert",
                  "clip-is-your-learning-rate"}  # fmt: skip


@dataclass(frozen=True)
class Suggestion:
    """A policy text to paste, or an empty one where clipping is no cure; `reasons` are sentences.

    `optimizer` is the one (or the part) that is meant, where several step on their own.
    """

    policy: str
    reasons: tuple[str, ...]
    optimizer: str = ""


def suggest(history: History, findings: Sequence[Finding]) -> tuple[Suggestion, ...]:
    """One suggestion for each optimizer (or part) that steps on its own; none of an imported run, whose optimizer and
    clip are not known.
    """
    if history.run.source:
        return ()
    made = []
    for name, lane in history.lanes().items():
        roots = [f for f in findings if f.optimizer == name and _counts(f)]
        policy, reasons = _suggest(lane, roots)
        rated = next((f.rule for f in roots if any("--lr-scale" in each for each in f.tries[:1])), "")
        if policy and rated:
            reasons = (f"Beside the learning rate that {rated} asks for: a clip alone leaves that as it is.", *reasons)
        made.append(Suggestion(policy, reasons, name))
    return tuple(made)


def _counts(finding: Finding) -> bool:
    """A note counts only where it speaks of the threshold, or of the norms that one would be taken from."""
    return (
        finding.severity != "note"
        or finding.rule
        in {"clip-inert", "clip-is-your-learning-rate", "clip-over-muon", "clip-after-step", "clip-without-gradient"}
        or finding.rule in WRONG_NORMS
    )


def _suggest(history: History, roots: list[Finding]) -> tuple[str, tuple[str, ...]]:
    rules = {finding.rule for finding in roots}
    seen = {f.rule for root in roots for f in (root, *root.consequences)}
    wrong = wrong_norms(roots)
    if wrong is not None:
        return "", (f"{wrong.rule}: the recorded norms are not those of the gradients alone, and a threshold taken "
                    f"from them would be wrong. First: {wrong.cure}",)  # fmt: skip
    if rules and not rules & CLIPPING_HELPS:
        return "", tuple(f"A clip of the total norm does not cure {root.rule}. Instead: {root.cure}" for root in roots)
    if seen & TOO_LARGE_STEPS and "spike" not in rules and is_adaptive(history):
        why = f"{optimizer_kind(history)} divides by the gradient's own scale: a clip does not make its steps smaller."
        return "", (why, "Instead: lower the learning rate, or warm it up over the first few hundred steps.")
    if not rules and (history.run.clip or loop_clips(history.per_step)):
        kept = history.run.clip or loop_clips(history.per_step, last=True)  # a run may be resumed with another bound
        return "", (f"Keep {kept}: no error and no warning asks for another.",)
    if rules == {"nonfinite"} and not len(healthy_norms(history, roots)):
        return "", (f"No step was finite: whatever is clipped or skipped, nothing is trained. First: {roots[0].cure}",)
    if rules == {"nonfinite"} and not seen & TOO_LARGE_STEPS and not _grew(history):
        return "SkipNonfinite()", (
            "The gradients were not finite all at once, without growing first: a threshold cannot prevent that.",
            "SkipNonfinite keeps the weights whole while you look for the cause; it is not the cure.",
        )
    policy, reasons = _guard(history, roots)
    if "nonfinite" in seen and not policy:
        return "SkipNonfinite()", ("A step whose gradients are not finite must not reach the weights.", *reasons)
    if "nonfinite" in seen:
        why = "SkipNonfinite comes first: a step whose gradients are not finite must not reach the weights."
        return f"chain(SkipNonfinite(), {policy})", (why, *reasons)
    return policy, reasons


def _too_few(healthy: int, steps: int) -> str:
    said = f"Only {healthy} of {steps:,} steps were healthy" if healthy else f"None of {steps:,} steps was healthy"
    if healthy == steps:
        said = f"All {steps:,} steps were healthy" if steps > 1 else "One step was taken"
    return f"{said}, and {ENOUGH} are wanted to take a threshold from"


def _guard(history: History, roots: list[Finding]) -> tuple[str, tuple[str, ...]]:
    """A clip by the global norm (ZClip where there are spikes), and why."""
    norms, steps = healthy_norms(history, roots), len(history)
    rules = {finding.rule for finding in roots}
    limit = limit_of(norms)
    if limit is None and not rules & TOO_LARGE_STEPS:
        few = f"{_too_few(len(norms), steps)}."
        if "spike" not in rules:
            return "", (few,)
        if all(root.first_step < ACTS_FROM for root in roots if root.rule == "spike"):
            return "", (f"{few} SkipSpike needs none, but acts from step {ACTS_FROM} on.",)
        return "SkipSpike()", (few, "SkipSpike needs none: it leaves out a step far above those before it.")
    if limit is None:
        first = finite_norms(history)[:1]
        was = f" Its first norm was {first[0]:.3g}." if len(first) else ""
        return f"ClipByGlobalNorm({USUAL})", (
            f"{_too_few(len(norms), steps)}; {USUAL} is the usual first value.{was}",
            "Look at the clip rate of the next run: a threshold that fires on most steps is a second learning rate.",
        )
    lower = under_own(history, roots, limit)
    if lower:
        return f"ClipByGlobalNorm({setting_text(lower)})", (UNDER_OWN,)
    if "spike" in rules:
        rates = (zclip(finite_norms(history)[:SIMULATED], Z_SCORES) < 1).mean(axis=1)
        if not (rates <= RARE).any():
            return "AdaGC()", (
                f"There are so many spikes that ZClip would change {percent(float(rates[-1]))} of the steps even at "
                f"{Z_SCORES[-1]:g} σ; AdaGC bounds each layer by its own past.",
            )
        place = int(np.argmax(rates <= RARE))
        return f"ZClip(z={Z_SCORES[place]})", (
            "The spikes stand out from calm norms. ZClip follows their mean and cuts what is "
            f"{Z_SCORES[place]:g} σ above it.",
            _would_have_changed(history, float(rates[place])),
        )
    rate = float((formulas.clip_coef(finite_norms(history), limit) < 1).mean())
    which = f"the {len(norms):,} steps before it went wrong" if rules & TOO_LARGE_STEPS else "its healthy steps"
    reasons = [f"{limit:g} is the 99th percentile of the norms of {which}: it leaves 99 of 100 of these alone."]
    reasons.append(_would_have_changed(history, rate))
    if "clip-is-your-learning-rate" in rules:
        reasons.append("The clip in force was part of the learning rate: set the one that the finding names with it.")
    if clips_itself(history):
        reasons.append(
            f"The norms are those before the loop's own {loop_clips(history.per_step)}: put it in its place."
        )
    if not rules:
        reasons.insert(0, "Nothing needs a cure; a guard against one bad batch costs next to nothing.")
    return f"ClipByGlobalNorm({setting_text(limit)})", tuple(reasons)


def _would_have_changed(history: History, share: float) -> str:
    finite = len(finite_norms(history))
    of = "all steps" if finite == len(history) else f"the {finite:,} steps whose norm was finite"
    return f"On this run's norms it would have changed {percent(share)} of {of}."


def _grew(history: History, factor: float = 10.0, steps: int = 5, ratio: float = 0.1) -> bool:
    """Whether the steps were too large before the first norm that was not finite.

    They were if the last few norms were `factor` times the median, or moved a layer by more than `ratio` of its norm.
    """
    bad = np.flatnonzero(nonfinite_rows(history))
    end = int(bad[0]) if len(bad) else len(history)
    norms, moved = incoming(history)[:end], history.layer("update_ratio")[history.layer_rows < end][-steps:]
    norms = norms[norms > 0]
    grown = len(norms) > steps and norms[-steps:].max() > factor * np.median(norms)
    return bool(grown or (moved > ratio).any())

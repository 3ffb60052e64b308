"""What no gradient tells of batch norms and dropout: the mode that the model trains in, and the norms' momentum.

Legend: T recorded steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from gradwatch.analysis.rules.facts import LEAST_STEPS
from gradwatch.analysis.rules.finding import Evidence, Finding, Severity, either, whole_run
from gradwatch.analysis.rules.sampled_losses import inside, sampled
from gradwatch.analysis.rules.series import holds_from
from gradwatch.formatting import setting_text
from gradwatch.history import History
from gradwatch.storage.logged_names import HELD_OUT

_FRESH = "those of no data, 0 and 1"
_OF_NORMS = "its batch norms divide by their running statistics, not by those of the batch"


def left_in_eval(history: History, min_steps: int = 20) -> list[Finding]:
    """The model was in eval mode in the steps themselves: its dropout is off, its batch norms take running statistics.

    A warning where it came to be so in the run, and stayed so for `min_steps` steps up to the end; or all along, with
    running means that were 0 at first: no data had been seen, and in eval mode none is. All along with others it is a
    note: a pretrained model may be tuned so.
    Source: torch's documentation of `Module.eval`, and of `BatchNorm2d` ("running estimates ... for evaluation").
    """
    evaluating = history.total("eval_mode") == 1
    since = holds_from(evaluating)
    if len(history) - since < min_steps:
        return []
    norms, fresh = _norms(history), _began_fresh(history)
    severity: Severity = "warning" if since or (norms and fresh) else "note"
    step = int(history.step[since])
    what = " and ".join([*(["its dropout is off"] if _drops(history) else []), *([_OF_NORMS] if norms else [])])
    when = f"From step {step} on" if since else "In all steps"
    causes = _SWITCHED_OFF if since and not norms else ()
    forgotten = "Most likely model.eval() was called for an evaluation, and model.train() not after it."
    why = f" {either(causes) if causes else forgotten}" if since else ""
    says = f" These are {_FRESH}, and no batch changes them." if norms and fresh and not since else ""
    return [
        Finding(
            "left-in-eval",
            severity,
            _gains(history, norms),
            step,
            int(history.step[-1]),
            {"steps_in_eval_mode": len(history) - since, "of": len(history), "batch_norms": len(norms)},
            f"{when} the model was in eval mode as it was trained: {what}.{why}{says}",
            "Call model.train() at the head of the loop that trains, and again after each evaluation.",
            alternatives=causes,
        )
    ]


_SWITCHED_OFF = (
    "model.eval() was called for an evaluation, and model.train() not after it",
    "the dropout is switched off for the rest on purpose",
)


def validation_in_train_mode(history: History, least: int = 4, looks: int = 8, each: float = 0.8) -> list[Finding]:
    """Batch norms were given more batches in training mode than the steps account for, where other data were measured
    and nowhere else. A note: other batches may have been meant for them there.

    Alarm: between most looks, `looks` of them or more, in which nothing was logged of other data, the first batch norm
    was given the same whole number of batches for each step; and between the others more, together `each` of the
    measurements of other data or more, which are `least`. Source: torch's documentation of `Module.eval`; what a batch
    norm is given in training mode goes into its running statistics, and it divides by the batch's own.
    """
    at, batches = sampled(history, "norm_batches")
    measured = np.any([np.isfinite(history.total(name)) for name in history.logged if HELD_OUT.search(name)], axis=0)
    if len(at) < looks or np.ndim(measured) == 0 or not _norms(history):
        return []
    steps = np.diff(at)
    rows = np.searchsorted(history.step, at)
    # What is logged with a step may have been measured before its look or after it.
    with_others = np.array([measured[first : last + 1].any() for first, last in pairwise(rows)])
    quiet = ~with_others
    if quiet.sum() < 3 or not with_others.any():
        return []
    of_each = np.diff(batches)[quiet] / steps[quiet]
    times = round(float(np.median(of_each)))
    if times < 1 or (of_each == times).mean() < 0.9:
        return []
    more = batches[-1] - batches[0] - times * (at[-1] - at[0])
    number = int(measured[rows[0] : rows[-1] + 1].sum())
    if number < least or more < each * number:
        return []
    evidence: Evidence = {"measurements": number, "batches": float(more), "of_each_step": times}
    return [
        whole_run(
            history,
            "validation-in-train-mode",
            _gains(history, _norms(history)),
            evidence,
            f"About where other data were measured, {number} times, the batch norms were given {more:.0f} batches "
            f"besides those of the steps, in training mode. {either(_BESIDES)}",
            "Call model.eval() before other data are measured, and model.train() after it; torch.no_grad() does "
            "neither. What was measured until now is not what the model gives in use then.",
            _BESIDES,
            severity="note",
        )
    ]


_BESIDES = (
    "the other data were measured in training mode: normalised by their own numbers, which went into the running ones, "
    "with any dropout on",
    "training data were, or the norms' statistics were set anew",
)


def dropout_too_strong(history: History, most: float = 0.75) -> list[Finding]:
    """A dropout that leaves less than a quarter of what it is given: p is above `most`. A warning.

    In torch p is the share that is dropped; in Srivastava et al., and as `keep_prob` in TensorFlow 1, the one that is
    kept. By the model's modules, or by the factors that the graph of a loss shows. Not of a model that was in eval mode
    in every step, where nothing is dropped.
    Source: Srivastava et al. (2014), JMLR 15: between 0.5 and 0.8 of the units of hidden layers are kept.
    """
    strong = {name: p for name, p in history.run.dropouts.items() if p > most}
    seen = inside(history, "dropped_out")
    if seen is not None and seen.least > most:
        strong = strong or {seen.layer: round(seen.last, 2)}
    if not strong or (history.total("eval_mode") == 1).all():
        return []
    name, p = max(strong.items(), key=lambda each: each[1])
    causes = (
        "the share that is to be kept was given, and torch wants the one that is dropped",
        "it is meant so strong",
    )
    return [
        whole_run(
            history,
            "dropout-too-strong",
            (),
            {"module": name, "p": p, "modules": len(strong)},
            f"`{name}` drops {p:g} of what it is given in each step, and multiplies what is left by {1 / (1 - p):.3g}."
            f" {either(causes)}"
            if p < 1
            else f"`{name}` drops all that it is given. {either(causes)}",
            f"Take p={1 - p:.2g}, if that was to be kept; between 0.1 and 0.5 is usual. Where the loss of the training "
            "data is what does not fall, take it out first.",
            causes,
        )
    ]


def norm_statistics(history: History, few: float = 2.0, unmoved: float = 0.05) -> list[Finding]:
    """Batch norms whose running statistics, which an evaluation goes by, are those of the last batch or of no data.

    By their momentum, which in torch is the weight of the new batch: they are an average of about 1 / momentum batches.
    Alarm where that is up to `few`; or where momentum times steps is below `unmoved` and the running means were 0 at
    first. Not of a model that was in eval mode, where they rest.
    Source: torch's documentation of `BatchNorm2d`; TensorFlow's momentum is 1 less torch's.
    """
    if len(history) < LEAST_STEPS or (history.total("eval_mode") == 1).any():
        return []
    momenta = {name: history.run.batch_norms[name] for name in _norms(history)}
    noisy = {name: m for name, m in momenta.items() if m * few >= 1}
    stale = {name: m for name, m in momenta.items() if m * len(history) < unmoved} if _began_fresh(history) else {}
    found = noisy or stale
    if not found:
        return []
    momentum = next(iter(found.values()))
    of = "those of the last batch or two" if noisy else _FRESH
    return [
        whole_run(
            history,
            "norm-statistics",
            _gains(history, found),
            {"momentum": momentum, "batches_averaged": 1 / momentum if momentum else 0.0, "batch_norms": len(found)},
            f"In {len(found)} of {len(momenta)} batch norms the momentum is {setting_text(momentum)}, in torch the "
            f"weight of the new batch: the running statistics are {of}. In eval mode the model divides by these.",
            "Take torch's momentum=0.1, which TensorFlow and Keras call 0.9; momentum=None averages over all batches.",
        )
    ]


def _norms(history: History) -> list[str]:
    """The batch norms of these steps: those whose gains are their layers, and those without any."""
    others = {layer.name for layer in history.run.layers} - {*history.layers}
    return [name for name in history.run.batch_norms if f"{name}.weight" not in others]


def _gains(history: History, norms: Iterable[str]) -> tuple[str, ...]:
    owners = {*norms}
    return tuple(layer for layer in history.layers if layer.rpartition(".")[0] in owners)


def _began_fresh(history: History) -> bool:
    """Whether the running means were 0 before the first step."""
    known = history.total("norm_mean")
    known = known[np.isfinite(known)]
    return bool(len(known)) and float(known[0]) == 0


def _drops(history: History) -> bool:
    return any("Dropout" in kind for kind in history.run.modules.values())

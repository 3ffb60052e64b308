"""What the activations show that no gradient does: units that give nothing back, values that outgrow the others.

Legend: T sampled steps, M modules.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gradwatch.analysis.rules.activation_facts import is_meant
from gradwatch.analysis.rules.dead_layers import dead_layer
from gradwatch.analysis.rules.finding import Evidence, Finding, Severity, whole_run
from gradwatch.analysis.rules.loss_graph import neighbours, paths
from gradwatch.analysis.rules.losses import has_rivals, learnt
from gradwatch.analysis.rules.progress import succeeds
from gradwatch.analysis.rules.sampled_losses import inside, sampled
from gradwatch.analysis.rules.series import holds_from
from gradwatch.formatting import percent
from gradwatch.history import History


def dead_units(history: History, share: float = 0.5, min_rows: int = 3) -> list[Finding]:
    """Non-linearities most of whose units give nothing back, whatever goes in: their slope is flat for every element.

    `dead` of a module, by the median of the last third of the sampled steps, is more than `share`. It is recorded where
    each unit had at least 32 elements in a step. From the first sampled step after which half of that was never
    undercut. Or, where no layer is dead, a ReLU stands between the last layer and a softmax or a sigmoid of the loss
    (`_cut_logits`). Or, where no module was looked at either, from the start (`_from_the_start`), or since then,
    where nothing got better (`_on_the_way`).
    Source: SageMaker Debugger's DeadRelu (a unit is dead that hardly ever fires; alarm for more than half of a layer).
    """
    found = _held(history, "dead", share, min_rows, "dead-units", _dead_words)
    if found or dead_layer(history):
        return found
    if cut := _cut_logits(history):
        return [cut]
    found = _from_the_start(history, ("dead",), "dead-units", _dead_words, 0.8)
    return found or ([] if succeeds(history) else _on_the_way(history, "dead", "dead-units", _dead_words))


def _cut_logits(history: History) -> Finding | None:
    """A ReLU cuts off at 0 what a loss applies its softmax or sigmoid to, as its graph shows."""
    applied = ("LogSoftmax", "BinaryCrossEntropyWithLogits")
    ways = ((pair, layer) for path, layer in paths(history) for pair in neighbours(path))
    layer = next((layer for (above, below), layer in ways if above in applied and below == "Relu"), None)
    if layer is None:
        return None
    cause = f"A ReLU stands between `{layer}` and the loss, which applies its softmax or sigmoid itself: a score below "
    cause += "0 is 0, gives nothing back, and no class can be said to be less likely than that."
    cure = "Take the ReLU out from behind the last layer, and let the loss have its outputs as they are."
    return whole_run(history, "dead-units", (layer,), {"behind": layer}, cause, cure)


def saturated(history: History, share: float = 0.5, min_rows: int = 3) -> list[Finding]:
    """A tanh or a sigmoid that sits at its ends: for more than `share` of the elements its slope is below 1 %.

    By the median of the last third of the sampled steps, from the first after which half of that was never undercut.
    Not of the last module of the forward pass: an output is meant to be sure of itself. Or, where no module was looked
    at, from the start (`_from_the_start`), also of an output: at first it has no reason to be. But for the answers of a
    rival, which may be sure at once: of those `generator_starves` tells. Or of an output that came there and is left
    without any gradient, while the loss is not at 0 (`_on_the_way`).
    Source: Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward neural networks".
    """
    kinds = ("saturated",) if has_rivals(history) else ("saturated", "end_saturated")
    found = _held(history, "saturated", share, min_rows, "saturated", _saturated_words) or _from_the_start(
        history, kinds, "saturated", _saturated_words
    )
    if found or has_rivals(history) or not _gets_no_gradient(history):
        return found
    return _on_the_way(history, "end_saturated", "saturated", _saturated_words)


# Of the worst share, how many modules, since which step (None: the first that was looked at).
Words = Callable[[float, int, int | None], tuple[str, str]]


def _held(history: History, quantity: str, share: float, min_rows: int, rule: str, words: Words) -> list[Finding]:
    """The finding of modules of which more than `share` is held in the end; a note where the training succeeds."""
    table = history.activations.with_values(quantity)
    if not table.layers:
        return []
    known = np.isfinite(table.values[quantity])
    late = np.arange(len(table)) >= len(table) - max(min_rows, len(table) // 3)
    at = [
        i for i, name in enumerate(table.layers) if is_meant(history, name, rule) and known[late, i].sum() >= min_rows
    ]
    typical = {i: float(np.nanmedian(table.values[quantity][late, i])) for i in at}
    hit = [i for i in at if typical[i] > share]
    if not hit:
        return []
    began = holds_from((table.values[quantity][:, hit] > share / 2).all(axis=1))
    first = int(table.step[min(began, len(table) - 1)])
    worst = max(typical[i] for i in hit)
    cause, cure = words(worst, len(hit), first if began else None)
    evidence: Evidence = {"share": worst, "modules": len(hit), "of": len(at)}
    names = tuple(table.layers[i] for i in hit)
    severity: Severity = "note" if succeeds(history) else "warning"
    return [Finding(rule, severity, names, first, int(history.step[-1]), evidence, cause, cure)]


def _from_the_start(
    history: History, kinds: tuple[str, ...], rule: str, words: Words, share: float = 0.6
) -> list[Finding]:
    """The same of the non-linearities of the losses that were looked at: flat in the first one, and ever since.

    Of the worst of each of the `kinds` (`inside`), where modules were not looked at: the `share` in the first sample
    and in the end, nearly so in all. What became flat later may be what was learnt; of that `lr_too_high` says what the
    first steps did. In the healthy trainings of the tests .22 of a sigmoid or tanh is flat at first, at most, .02 of
    one at the end, and .68 of a ReLU.
    """
    if history.activations.layers:
        return []
    seen = (inside(history, kind) for kind in kinds)
    held = [one for one in seen if one is not None and min(one.first, one.last) > share and one.least > share - 0.1]
    if not held:
        return []
    cause, cure = words(held[0].last, 1, None)
    severity: Severity = "note" if succeeds(history) else "warning"
    evidence: Evidence = {"share": held[0].last, "modules": 1}
    steps = held[0].first_step, int(history.step[-1])
    return [Finding(rule, severity, (held[0].layer,), *steps, evidence, cause, cure)]


def _gets_no_gradient(history: History, share: float = 0.9, done: float = 1e-3) -> bool:
    """Whether the gradient was exactly 0 in the `share` of the second half, with more than `done` of a loss left."""
    late = np.arange(len(history)) >= len(history) // 2
    zero = (history.total("grad_norm") == 0) & ~learnt(history, done)
    return bool(len(history)) and bool(zero[late].mean() > share)


def _on_the_way(
    history: History, kind: str, rule: str, words: Words, first: float = 0.6, share: float = 0.9
) -> list[Finding]:
    """The same of a kind of which less than `first` was flat in the first sample, and the `share` in the end.

    From the first sample after which four fifths of the `share` were never undercut. Where modules were not looked at.
    Of the 32 trainings of the tests that end so, or nearly so, every one is sick.
    """
    seen = None if history.activations.layers else inside(history, kind)
    if seen is None or not seen.first < first <= share < seen.last:
        return []
    at, values = sampled(history, kind)
    since = int(at[min(holds_from(values >= 0.8 * share), len(at) - 1)])
    cause, cure = words(seen.last, 1, since)
    evidence: Evidence = {"share": seen.last, "at_first": float(seen.first), "modules": 1}
    return [Finding(rule, "warning", (seen.layer,), since, int(history.step[-1]), evidence, cause, cure)]


def _dead_words(worst: float, count: int, since: int | None) -> tuple[str, str]:
    at_first = since is None
    begun = (
        "from the first sampled step on: the weights or biases began so" if at_first else f"the first by step {since}"
    )
    begin, lower = "Begin with biases at 0 and He's initialisation", "Lower the learning rate or warm it up"
    return (
        f"Up to {percent(worst)} of the units of {_modules(count)} are flat for every example, {begun}. Nothing comes "
        "through them, and with a ReLU nothing goes out.",
        f"{begin if at_first else lower}: {'a unit' if at_first else 'one step that is too long can push a unit'} "
        f"beyond all its inputs{' learns nothing' if at_first else ''}. {lower if at_first else begin}; a LeakyReLU, "
        "GELU or SiLU, or a normalisation before it, lets units come back.",
    )


def _saturated_words(worst: float, count: int, since: int | None) -> tuple[str, str]:
    begun = "from the first sampled step on" if since is None else f"the first by step {since}"
    return (
        f"In {_modules(count)} up to {percent(worst)} of the elements lie where the slope is below 1 % of its largest, "
        f"{begun}: what comes in is too large, or the biases are, and hardly any gradient passes.",
        "Scale the inputs to unit size, begin with smaller weights (Xavier's initialisation) and biases at 0, lower "
        "the learning rate, or put a normalisation before the non-linearity.",
    )


def _modules(count: int) -> str:
    return "one module" if count == 1 else f"{count} modules"

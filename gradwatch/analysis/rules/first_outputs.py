"""Initial weights that are far off, by the first outputs and losses that they make.

Legend: S sampled steps.
"""

from __future__ import annotations

import math

import numpy as np

from gradwatch.analysis.rules.finding import Evidence, Finding, either, whole_run
from gradwatch.analysis.rules.inputs import FAR, first_odds
from gradwatch.analysis.rules.layer_facts import (
    bias_columns,
    chance_loss,
    embeddings,
    initial_gains,
    last_matrix,
    matrices,
    measured,
    pick,
    root_mean_square,
    shapes_of,
)
from gradwatch.analysis.rules.long_steps import lr_too_high
from gradwatch.analysis.rules.loss_graph import is_mean_cross_entropy, number_of_classes, paths
from gradwatch.analysis.rules.losses import first_values
from gradwatch.analysis.rules.progress import came_down, loss_progress, succeeds
from gradwatch.analysis.rules.sampled_losses import in_the_beginning, sampled
from gradwatch.analysis.rules.step_length import first_ratio
from gradwatch.formatting import percent
from gradwatch.history import History


def tied_table(history: History, unit: float = 0.9, well: float = 0.9, long: float = 0.5) -> list[Finding]:
    """An embedding began at unit size, nothing else gives out its rows, and the loss began far above their logarithm.

    So it is the last layer too, whose outputs are as large as the root of its width. Nothing else: the last module
    with weights is no Linear of its own, and no other matrix has as many rows. Not said where the loss fell by the
    share `well` and was above that of equal odds for less than the share `long` of the run, unless the graph shows
    it right below a first cross-entropy that was `FAR` above equal odds; nor of a model of nothing but tables
    (`_of_tables`).
    Source: Press & Wolf, arXiv:1608.05859 (tied tables); GPT-2's begins at a standard deviation of 0.02.
    """
    shapes, kinds = shapes_of(history), history.run.modules
    owners = {name.rpartition(".")[0] for name in history.layers}
    last = next((name for name in reversed(kinds) if name in owners or kinds[name] == "Linear"), "")
    _, norm = measured(history, "weight_norm")
    if not len(norm) or (last in owners and kinds.get(last) == "Linear") or first_ratio(history) > 1 / 3:
        return []
    ends = {layer for _, layer in paths(history)} if first_odds(history) > FAR else set()
    fine = succeeds(history, well) and worse_than_their_mean(history) < long
    if _of_tables(history) or (fine and not ends):
        return []
    rms = root_mean_square(history, norm[0].astype(np.float64))
    tables = [i for i in np.flatnonzero(embeddings(history) & (rms > unit)) if history.layers[i] in shapes]
    for i in tables:
        name = history.layers[i]
        rows = shapes[name][0]
        others = any(shape[:1] == (rows,) for other, shape in shapes.items() if other != name and len(shape) > 1)
        if rows > 2 and not others and far_off(history, math.log(rows)) and (not fine or name in ends):
            cause = f"{name} began at unit size, and the loss far above the {math.log(rows):.3g} that equal "
            cause += f"probabilities for its {rows} rows give. {either(_TIED)}"
            cure = f"Begin a table that is the last layer too at a standard deviation of 0.02: nn.init.normal_({name}, "
            cure += "std=0.02). If it is not, look at the size of the first outputs."
            return [initial_finding(history, (name,), {"root_mean_square": float(rms[i])}, cause, cure, _TIED)]
    return []


_TIED = (
    "it is the last layer too, and its rows make the outputs as large as the root of their length",
    "the outputs begin too large for another reason, or the loss is no cross-entropy over its rows",
)


def far_outputs(
    history: History, large: float, wide: float = 2.0, spread: float = 100.0, very_far: float = 20.0
) -> list[Finding]:
    """The first cross-entropy was `FAR` times that of equal odds, and some matrices began above `large`; or the first
    numbers spread `spread` times as much as what is asked for, and some began above `wide`. Whatever came of it. Where
    no matrix did, and a first cross-entropy was `very_far` above equal odds, sums may be why (`_sums`).

    In healthy trainings of the tests numbers spread 9 times as much, at most.
    """
    gain, odds, times = initial_gains(history), first_odds(history), _first_spread(history)
    if odds > FAR and (gain > large).any():
        which, numbers = gain > large, {"times_equal_odds": odds}
        shown = f"The first cross-entropy is {odds:.3g} times that of equal odds: the logits are far apart"
    elif times > spread and (gain > wide).any():
        which, numbers = gain > wide, {"times_the_targets": times}
        shown = f"What the model says at first spreads {times:.2g} times as much as what it is asked for"
    elif odds > FAR and (found := _sure_of_one(history, odds)):
        return found
    else:
        return _sums(history, odds) if odds > very_far else []
    typical = float(np.median(gain[which]))
    return [
        initial_finding(
            history,
            pick(history, which),
            {"gain": typical, "usual": "0.5 to 1.5", **numbers},
            f"{shown} before anything is learnt. These weights began with a gain of about {typical:.2g}, where 0.5 to "
            "1.5 is usual.",
            "Begin with torch's own initialisation, or the last layer with weights of a deviation of 0.02 or less. The "
            "first steps go into making the outputs small else.",
        )
    ]


def _sure_of_one(history: History, odds: float, alike: float = 0.99, right: float = 0.1) -> list[Finding]:
    """All that the model said at first was of one class, and hardly any of it right: a bias, and no weights, does that.

    Source: Lin et al., arXiv:1708.02002, section 3.3 (a bias of -log((1 - p) / p) for a rare class of the share p).
    """
    said, hits = in_the_beginning(history, "predicted_top_share", "predicted_right")
    biases = bias_columns(history).values()
    if not (biases and said >= alike and hits <= right):
        return []
    return [
        initial_finding(
            history,
            (history.layers[max(biases)],),
            {"times_equal_odds": odds, "right": hits},
            f"The first cross-entropy is {odds:.3g} times that of equal odds: the model begins by saying one class for "
            f"everything, and {percent(hits)} of that is right. No weights began large. {either(_OF_ONE_CLASS)}",
            "Begin the last bias at 0, or at the logarithm of the odds: log(p / (1 - p)) of a class that has the share "
            "p of the targets, which is below 0 for a rare one. After a training of other classes take a new head.",
            _OF_ONE_CLASS,
        )
    ]


_OF_ONE_CLASS = "the last bias began far from 0", "the model was trained to say that class before"


def _sums(history: History, odds: float) -> list[Finding]:
    cause = f"The first cross-entropy is {odds:.3g} times that of equal odds: the logits are far apart before anything "
    cause += f"is learnt, and no weights began large. {either(_SUMS)}"
    cure = "Print the size of what comes out of each layer in the first step: where it leaps, take a mean in the place "
    cure += "of the sum (divide by the number of neighbours, or by the root of their degrees), or a norm behind it."
    return [initial_finding(history, (), {"times_equal_odds": odds}, cause, cure, _SUMS)]


_SUMS = (
    "neighbours, tokens or branches are added up, layer after layer, with nothing that normalises the sum",
    "what comes in is far above 1 in size",
)


def long_way_back(history: History, spread: float = 4.0, long: float = 0.5, unit: float = 0.9) -> list[Finding]:
    """The first numbers spread `spread` times as much as what is asked for, and for the share `long` of the run no
    sample was nearer to its targets than their mean is.

    In healthy trainings of the tests that begin so the targets' mean is passed within a quarter of the run. The tables
    that began at unit size are named, as their products spread like the root of their width.
    """
    times, until = _first_spread(history), worse_than_their_mean(history)
    if not (times > spread and until > long):
        return []
    step = history.step[0] + until * (history.step[-1] - history.step[0])
    _, norm = measured(history, "weight_norm")
    rms = root_mean_square(history, norm[0].astype(np.float64)) if len(norm) else np.zeros(len(history.layers))
    tables = pick(history, embeddings(history) & (rms > unit))
    cause = f"What the model says at first spreads {times:.2g} times as much as what it is asked for, and up to step "
    cause += f"{round(step)} the mean of the targets alone would have been nearer to them. "
    if tables:
        cause += "The tables of vectors began at unit size: their products are as large as the root of their width."
        cure = "Begin tables whose products are summed at a deviation of 0.1: nn.init.normal_(table.weight, std=0.1)."
        return [initial_finding(history, tables, {"times_the_targets": times}, cause, cure)]
    cause += either(_FAR_BEGINNING)
    cure = "Print the spread of the outputs and of the targets before the first step. Begin the last layer, or what "
    cure += "sets the size of noise that is drawn inside (a log of a variance: at -5), so small that they agree."
    return [initial_finding(history, (), {"times_the_targets": times}, cause, cure, _FAR_BEGINNING)]


_FAR_BEGINNING = (
    "weights, or the noise that is drawn inside, began too large",
    "what the outputs are multiplied or summed by makes them large",
)


def worse_than_their_mean(history: History) -> float:
    """Up to which share of the run no sample was as near to its targets as their mean is, though they came nearer."""
    at, explained = sampled(history, "explained")
    if not len(at) or not explained[0] < explained[-1]:
        return 0.0
    better = at[explained > 0]
    until = float(better[0]) if len(better) else float(history.step[-1])
    return (until - float(history.step[0])) / max(1.0, float(history.step[-1] - history.step[0]))


def _first_spread(history: History) -> float:
    """How many times as much the first numbers that the model said spread as what it was asked for; else NaN."""
    said, asked = in_the_beginning(history, "predicted_std", "target_std")
    return said / asked if asked > 0 else math.nan


def sure_of_what_is_wrong(history: History, began: float = 3.0, ended: float = 2.0) -> list[Finding]:
    """A cross-entropy began above `began` times what equal probabilities give, and ended above them.

    So it does where the graph of the loss shows its classes: a model that ends there knows less than one that says
    nothing. Of tokens it has to end above `ended` times, in a training that does not succeed: where the last matrix
    has as many rows as a table has, the loss is known for a cross-entropy over them, but in a model of nothing but
    tables (`_of_tables`).
    Source: Karpathy 2019, A Recipe for Training Neural Networks ("verify loss @ init").
    """
    shapes, last = shapes_of(history), last_matrix(history)
    tables = {shapes[name][0] for name in pick(history, embeddings(history)) if shapes.get(name)}
    chance, losses = chance_loss(history), loss_progress(history)
    if last is None or not losses:
        return []
    known = is_mean_cross_entropy(history) and (number_of_classes(history) or 1) > 2
    tokens = last.shape[0] in tables and not succeeds(history) and not _of_tables(history)
    if not (known or tokens):
        return []
    high = all(p.first > began * chance and p.ended > (ended if tokens else 1.0) * chance for p in losses)
    high &= tokens or came_down(history, 0.9)  # else its steps are why it stays there
    if not high or lr_too_high(history):
        return []
    shown = losses[0]
    cause = f"{shown.metric} began at {shown.first:.3g}, where equal probabilities give {chance:.3g}, and still is "
    cause += f"{shown.ended:.3g}: the logits are far apart, and sure of what is wrong. "
    cure = (
        "Print the logits of the first step. If some stand out, begin their rows and biases of the last layer at the "
        "mean of the others; if all are large, normalise what comes into the last layer or divide it by the root of "
        "its width, and let cosines be divided by 0.05 or more."
    )
    nearest = next((layer for _, layer in paths(history)), last.name) if known else last.name
    return [initial_finding(history, (nearest,), {"equal_odds": chance}, cause + either(_SURE), cure, _SURE)]


_SURE = (
    "rows or biases of the last layer began unlike the others",
    "what comes into the last layer, or what its outputs are multiplied by, is far too large",
)


def _of_tables(history: History) -> bool:
    """Whether all matrices are tables: the factors of ratings, whose squared error begins far above any log C."""
    return not (matrices(history) & ~embeddings(history)).any()


def initial_finding(
    history: History,
    layers: tuple[str, ...],
    evidence: Evidence,
    cause: str,
    cure: str,
    alternatives: tuple[str, ...] = (),
) -> Finding:
    """The finding, with what each loss was at first as evidence."""
    evidence |= {f"first_{name}": value for name, value in first_values(history).items()}
    return whole_run(history, "bad-initialisation", layers, evidence, cause, cure, alternatives)


def far_off(history: History, chance: float, times: float = 2.0) -> bool:
    """Whether a training loss began at `times` what equal probabilities give, or above."""
    return any(value > times * chance for value in first_values(history).values())

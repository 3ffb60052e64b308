"""Predictions set against targets of another shape, as the autograd graph of the first losses shows it.

Legend: N rows of a batch.
"""

from __future__ import annotations

import math
from itertools import pairwise

from gradwatch.analysis.rules.finding import Finding, whole_run
from gradwatch.analysis.rules.loss_graph import NUMBERS, Operation, paths
from gradwatch.history import History

_TO_ONE = {"Mean", "Sum", "Neg", "Div", "Mul", "Add", "Minimum", "Maximum", "Clamp"}  # all that is left is a mean
_OF_DIFFERENCES = NUMBERS | {"L1Loss", "Pow", "Abs"}
_REDUCED = NUMBERS | {"NllLoss", "L1Loss", "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits"}
_SPREADS = ("Sub", "Rsub", "Mul", "Expand")


def shapes_broadcast(history: History) -> list[Finding]:
    """N predictions, a column, set against N targets, a row: a loss of all N x N pairs; or N numbers by which a mean is
    multiplied where each example is meant (`_mean_times_each`). A warning.

    Torch's broadcasting makes `[N, 1] - [N]` a table `[N, N]`, and so does a product of a column of log-probabilities
    with a row of advantages. Alarm: on the way from a loss to the weights a column (or row) of N numbers became such a
    table by a difference, a product or an expansion whose other operand asks for no gradient, and what is left above
    is their mean. Or images of one channel, as weights give them, `[N, 1, ...]`, became `[N, N, ...]` so. A table of
    differences between scores (a ranking) has gradients on both sides.
    Source: torch's documentation of broadcasting semantics; its own warning in `mse_loss`.
    """
    for path, layer in paths(history):
        for i, (table, before) in enumerate(pairwise(path)):
            if table.operands != 1 or table.name not in _SPREADS:
                continue
            n, rest = table.shape[0] if len(table.shape) > 1 else 0, table.shape[2:]
            if n < 2 or table.shape[:2] != (n, n):
                continue
            if rest and before.shape == (n, 1, *rest) and all(each.shape == before.shape for each in path[i + 1 :]):
                shapes = f"the ones are {[n, 1, *rest]}, the others {[n, *rest]}"
                return [_found(history, layer, table, shapes, "predictions.squeeze(1), or targets.unsqueeze(1)")]
            one = sum(math.prod(each.shape) == 1 for each in path[:i])  # what is done to the mean itself tells nothing
            above = {each.kind for each in path[max(0, one - 1) : i]}
            wanted = _TO_ONE if table.name == "Mul" else _TO_ONE | _OF_DIFFERENCES
            if not rest and before.shape in ((n, 1), (n,)) and above <= wanted:
                column, row = ("predictions", "targets") if len(before.shape) > 1 else ("targets", "predictions")
                shapes = f"the {column} are a column [{n}, 1], the {row} a row [{n}]"
                return [_found(history, layer, table, shapes, f"{column}.squeeze(-1), or {row}.unsqueeze(-1)")]
        if weighed := _mean_times_each(history, path, layer):
            return weighed
    return []


def _mean_times_each(history: History, path: list[Operation], layer: str) -> list[Finding]:
    """A mean over N examples that is multiplied by N numbers that ask for no gradient, and these products added up: the
    mean of the numbers is all that counts.

    Source: torch's documentation of broadcasting semantics; of its losses, whose `reduction` is "mean" unless told.
    """
    for i, (product, mean) in enumerate(pairwise(path[:-1])):
        n = product.shape[0] if len(product.shape) == 1 else 0
        added_up = {each.name for each in path[:i]} <= _TO_ONE and all(math.prod(each.shape) == 1 for each in path[:i])
        reduced = mean.name in ("Mean", "Sum") or mean.kind in _REDUCED
        if n < 2 or product.name != "Mul" or product.operands != 1 or not (added_up and reduced):
            continue
        if math.prod(mean.shape) == 1 and path[i + 2].shape[:1] == (n,):
            return [
                whole_run(
                    history,
                    "shapes-broadcast",
                    layer,
                    {"rows": n, "operation": product.name},
                    f"A mean over {n} examples is multiplied by {n} numbers, where each of them would have its own: "
                    "only the mean of these numbers counts, whichever example they are of.",
                    'Multiply before the mean is taken: reduction="none" of the loss, (loss * weight).mean(), or '
                    "(log_prob * advantage).mean(), with one number for each example in both.",
                )
            ]
    return []


def _found(history: History, layer: str, table: Operation, shapes: str, cure: str) -> Finding:
    n = table.shape[0]
    return whole_run(
        history,
        "shapes-broadcast",
        layer,
        {"rows": n, "operation": table.name},
        f"The loss is taken over all {n} x {n} pairs of {n} predictions and {n} targets: {shapes}, and "
        "broadcasting sets each against all. Each prediction is drawn to the mean of all targets.",
        f"Give both one shape: {cure}. Then assert predictions.shape == targets.shape before the loss.",
    )

"""What is put together wrongly between the weights and the loss, as the autograd graph of the first losses shows it.

No number of a training is needed: what is found here is wrong, or meant, from the first step on. What the graph does
not show (a part that was compiled, a loss that was not heard of) is not judged.

Legend: N rows of a batch, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any

from gradwatch.analysis.rules.finding import Finding, either, whole_run
from gradwatch.history import History

_SAME_NUMBERS = {
    *("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "T", "Transpose", "Permute", "ToCopy", "Clone"),
    *("Select", "Slice", "Index", "Gather", "MaskedSelect"),
}
_SQUASH = {"Softmax": "softmax", "SafeSoftmax": "softmax", "Sigmoid": "sigmoid", "Tanh": "tanh"}
_RANGES = {
    **{operation: (name, -1.0 if name == "tanh" else 0.0, 1.0) for operation, name in _SQUASH.items()},
    "Relu": ("ReLU", 0.0, math.inf),
}
NUMBERS = {"MseLoss", "SmoothL1Loss", "HuberLoss"}
_NORMS = {"NativeLayerNorm": "layer norm", "NativeBatchNorm": "batch norm", "CudnnBatchNorm": "batch norm"}
_TO_A_SUM = {"Mean", "Sum", "Add", "Diagonal", "DiagonalBackward0_copy"}
_OF_CHOICES = {
    *_SQUASH, "LogSoftmax", "LogSigmoid", "Logsumexp", "Softplus", "Exp", "NllLoss", "NllLoss2D", "CtcLoss", "KlDiv",
    "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits",
}  # fmt: skip


@dataclass(frozen=True)
class Operation:
    """One on the way from a loss to weights: what it is, the `shape` of what it gives out, and of how many operands
    the gradient is asked for.
    """

    name: str
    shape: tuple[int, ...]
    operands: int

    @property
    def kind(self) -> str:
        """Its name without its reduction: `MseLoss` of `MseLoss/sum`."""
        return self.name.partition("/")[0]


def paths(history: History) -> Iterator[tuple[list[Operation], str]]:
    """The ways from the first losses down to weights, and the layer that each ends in."""
    for row in graph_rows(history, "path"):
        names, shapes, operands = (str(row[key]).split() for key in ("operations", "shapes", "operands"))
        yield [Operation(n, shape_in(s), int(o)) for n, s, o in zip(names, shapes, operands, strict=True)], row["layer"]


def squashed(history: History) -> tuple[str, str, str] | None:
    """The loss that applies a softmax or a sigmoid itself, what stands before it and does so too, and the layer below.

    None where no path shows that.
    """
    for path, layer in paths(history):
        for above, below in neighbours(path):
            loss = {"LogSoftmax": "cross_entropy", "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits"}
            if above in loss and below in _SQUASH:
                return loss[above], _SQUASH[below], layer
    return None


def without_logarithm(history: History) -> tuple[str, str] | None:
    """What nll_loss is given in the place of logarithms of probabilities, and the layer below.

    None where no path shows that. Of kl_div torch keeps no operation of its own.
    """
    for path, layer in paths(history):
        for above, below in neighbours(path):
            given = "probabilities" if _SQUASH.get(below) in ("softmax", "sigmoid") else ""
            if above in ("NllLoss", "NllLoss2D") and (given or below in ("Addmm", "Mm", "Convolution")):
                return given or "what a layer gives out", layer
    return None


def has_probabilities_for_logarithms(history: History) -> bool:
    """Whether a path shows what kl_div does with its first argument, and a softmax right below: a sum or a mean of what
    is constant less another constant times a probability.
    """
    return any(
        (sub.name, mul.name, below.name) in (("Sub", "Mul", "Softmax"), ("Sub", "Mul", "SafeSoftmax"))
        and sub.operands == mul.operands == 1
        for path, _ in paths(history)
        for sub, mul, below in zip(path, path[1:], path[2:], strict=False)
    )


def takes_logits(history: History) -> bool:
    """Whether the graph shows a loss that applies its own softmax or sigmoid, on what weights gave out, as it is or
    scaled (a temperature, cosines).
    """
    unscaled = [[op for op in path if op.operands > 1 or op.name not in ("Mul", "Div")] for path, _ in paths(history)]
    pairs = [pair for path in unscaled for pair in neighbours(path)]
    into = [below for above, below in pairs if above in ("LogSoftmax", "BinaryCrossEntropyWithLogits")]
    return bool(into) and all(below in ("Addmm", "Mm", "Convolution", "Bmm", "Add") for below in into)


def wants_its_sigmoid(history: History) -> bool:
    """Whether the graph shows binary_cross_entropy of what a sigmoid gives out: there it belongs."""
    return any(("BinaryCrossEntropy", "Sigmoid") in neighbours(path) for path, _ in paths(history))


def reached_range(history: History) -> tuple[str, str, float, float] | None:
    """The function right below a loss of differences that bounds what the model gives out, the layer below it, and the
    bounds. None where no path shows one.
    """
    for path, layer in paths(history):
        for above, below in neighbours(path):
            if above in NUMBERS and below in _RANGES:
                name, least, most = _RANGES[below]
                return name, layer, least, most
    return None


def is_of_log_probabilities(history: History) -> bool:
    """Whether the graph shows that the first losses are sums or means of what a log-softmax gives, times a number, and
    nothing else: such a loss is below 0 only if it is a likelihood, which wants to be as high as possible.
    """
    found = [path for path, _ in paths(history)]
    above = [[*takewhile(lambda each: each.name != "LogSoftmax", path)] for path in found]
    if not found or any(len(part) == len(path) for part, path in zip(above, found, strict=True)):
        return False
    unscaled = (each for part in above for each in part if each.name not in ("Mul", "Div") or math.prod(each.shape) > 1)
    return {each.kind for each in unscaled} <= _SAME_NUMBERS | _TO_A_SUM


def is_entropy_of_two(history: History) -> bool:
    """Whether the graph shows a binary cross-entropy that was written by hand: the mean of two sums of constants times
    logarithms of what a sigmoid gives out. It is below 0 only where one of these constants is.
    """
    for path, _ in paths(history):
        each = [*takewhile(lambda op: op.name in {"Neg", "Mean", "Sum", "Div"}, path)]
        names = [(op.name, op.operands) for op in path[len(each) : len(each) + 3]]
        below = {op.name for op in path[len(each) + 3 : len(each) + 7]}
        if names == [("Add", 2), ("Mul", 1), ("Log", 1)] and "Sigmoid" in below:
            return True
    return False


def number_of_classes(history: History) -> int | None:
    """Among how many classes the first losses choose: the size of their softmax, 2 for a binary cross-entropy, 1 where
    they are all of differences. None where the graph does not show it, or there are several.
    """
    softmaxes = [row for row in graph_rows(history, "softmax") if row["operation"] == "LogSoftmax"]
    sizes = {shape_in(row["shape"])[row["dim"]] for row in softmaxes} - {1}
    if softmaxes:
        return sizes.pop() if len(sizes) == 1 else None
    losses = [{each.kind for each in path} for path, _ in paths(history)]
    if losses and all(names & {"BinaryCrossEntropy", "BinaryCrossEntropyWithLogits"} for names in losses):
        return 2
    return 1 if losses and all(names & (NUMBERS | {"L1Loss"}) for names in losses) else None


def is_of_no_choice(history: History) -> bool:
    """Whether the graph shows losses, and none of classes: no softmax, no sigmoid and no exp is on the way to them, nor
    a function of the user's own.
    """
    names = {each.kind for path, _ in paths(history) for each in path}
    return bool(names) and not names & _OF_CHOICES and not any(name.endswith("Function") for name in names)


def may_choose(history: History) -> bool:
    """Whether a loss may be one of classes, as far as the graph tells, or a softmax stands anywhere before it."""
    return not is_of_no_choice(history) or any(True for _ in graph_rows(history, "softmax"))


def is_mean_cross_entropy(history: History) -> bool:
    """Whether the graph shows that the first losses are cross_entropy's means themselves, and nothing added to them."""
    heads = [path[0].name for path, _ in paths(history) if path]
    return bool(heads) and all(name in ("NllLoss", "NllLoss2D") for name in heads)


def is_one_loss(history: History) -> bool:
    """Whether the graph shows that the first losses are one of torch's own each, times a number, and nothing else."""
    heads = [next((each.name for each in path if each.name not in ("Mul", "Div")), "") for path, _ in paths(history)]
    known = NUMBERS | {"NllLoss", "NllLoss2D", "BinaryCrossEntropyWithLogits"}
    return bool(heads) and all(head.partition("/")[0] in known for head in heads)


def softmax_over_the_batch(history: History) -> list[Finding]:
    """A softmax whose numbers add up to 1 over the rows of the batch, not over the classes of each row. A warning.

    Alarm: a softmax over dim 0 of [N, ...], C numbers a row, C from 2 on and not N, where N is the number of rows of
    the first table on the way from a loss to weights.
    Source: the definition of the softmax; torch warns where `dim` is left out, for this reason.
    """
    rows = {next((each.shape[0] for each in path if math.prod(each.shape) > 1), 1) for path, _ in paths(history)}
    for row in graph_rows(history, "softmax"):
        shape = shape_in(row["shape"])
        if row["dim"] != 0 or len(shape) < 2 or shape[0] not in rows - {1}:
            continue
        if shape[1] == shape[0] or math.prod(shape[1:]) == 1:
            continue
        causes = ("dim=0 is meant to be dim=1", "the rows are one set, whose members are weighed against each other")
        return [
            whole_run(
                history,
                "softmax-over-the-batch",
                row["layer"],
                {"rows": shape[0], "columns": math.prod(shape[1:]), "operation": row["operation"]},
                f"A softmax over dim 0 of [{', '.join(map(str, shape))}]: its numbers add up to 1 over the {shape[0]} "
                f"rows of the batch, so that what a row is given depends on the others. {either(causes)}",
                "Where each row is an example of its own, take the softmax over what a row chooses from: dim=-1 of a "
                "table of scores, dim=1 of [batch, time, ...]. To see it: "
                "the outputs of a row must not change when the other rows do.",
                causes,
            )
        ]
    return []


def norm_over_too_few(history: History, most: int = 2, places: int = 64, outputs: int = 8) -> list[Finding]:
    """A batch norm in training whose batch has `most` rows or fewer, which leave it fewer than `places` numbers of a
    channel; a group norm of `most` numbers; or a norm of the few `outputs` that a loss of differences is taken of. A
    warning.

    Its mean and variance are those of two examples: of two numbers a and b it gives out their order, 1 and -1. And of
    outputs that are normed their sum and their length are the same for every example.
    Source: Ioffe & Szegedy, arXiv:1502.03167, section 3; Wu & He, arXiv:1803.08494, figure 1 (the error by batch size);
    Ba et al., arXiv:1607.06450, table 1 (what a layer norm does not see).
    """
    for path, layer in paths(history):
        for above, below in pairwise(_changing(path)):
            kind = _NORMS.get(below.name) if above.kind in NUMBERS else None
            if kind and below.shape[-1] <= outputs:
                return [_outputs_normed(history, layer, below.shape[-1], kind)]
    for row in graph_rows(history, "group_norm"):
        if 0 < (numbers := int(row["numbers"])) <= most:
            return [_groups_of_few(history, row["layer"], numbers)]
    shapes = {row["layer"]: shape_in(row["shape"]) for row in graph_rows(history, "batch_norm")}
    few = [name for name, shape in shapes.items() if shape[0] <= most and math.prod(shape[:1] + shape[2:]) < places]
    if not few:
        return []
    n = shapes[few[0]][0]
    return [
        whole_run(
            history,
            "norm-over-too-few",
            few[0],
            {"rows": n, "norms": len(few)},
            f"Batch norm was trained on batches of {n}: each channel is measured by {n} examples, and what an example "
            "gives depends on which other one it meets. In eval mode the model is another one.",
            "Take larger batches, or norm each example by itself: GroupNorm for images, LayerNorm elsewhere. Of a "
            "trained model hold the batch norms in eval mode. Accumulating gradients makes no larger batch here; over "
            "several processes SyncBatchNorm does.",
        )
    ]


def _groups_of_few(history: History, layer: str, numbers: int) -> Finding:
    left = "nothing but 0" if numbers == 1 else "which of the two is larger, 1 and -1"
    return whole_run(
        history,
        "norm-over-too-few",
        layer,
        {"numbers": numbers},
        f"A group norm takes mean and variance of {numbers} {'number' if numbers == 1 else 'numbers'}: what is left of "
        f"them is {left}, and no gradient comes through.",
        "Take groups of more channels (num_groups of 1 to 8), or a LayerNorm, or norm before the places are pooled or "
        "strided away.",
    )


def _outputs_normed(history: History, layer: str, n: int, kind: str) -> Finding:
    words = {
        "layer norm": f"norms the {n} outputs of the model together: their mean and their spread are the same for "
        "every example, whatever its targets are.",
        "batch norm": "norms what the model gives out: its mean and its spread are the same in every batch, whatever "
        "the targets of that batch are, and what an example gives depends on the others.",
    }
    return whole_run(
        history,
        "norm-over-too-few",
        layer,
        {"outputs": n, "norm": kind},
        f"A {kind} behind the last layer {words[kind]}",
        "Leave that norm out: what a loss of differences is taken of is what a linear layer gives.",
    )


def given_data(history: History) -> set[str]:
    """The layers that are given a batch of data, as the graphs of its losses show; empty where these are not known."""
    return {str(row.get("layer", "")) for row in graph_rows(history, "input")}


def graph_rows(history: History, what: str) -> Iterator[dict[str, Any]]:
    """Those of the graph that are of layers of this lane, or of none."""
    for row in history.run.loss_graph:
        if row.get("what") == what and (row.get("layer", "") in history.layers or not row.get("layer")):
            yield row


def neighbours(path: list[Operation]) -> Iterator[tuple[str, str]]:
    """Each operation and the next below it, but for those that leave the numbers as they are."""
    yield from pairwise(each.kind for each in _changing(path))


def _changing(path: list[Operation]) -> list[Operation]:
    """The operations of a path, but for those that leave the numbers as they are."""
    return [each for each in path if each.name not in _SAME_NUMBERS]


def shape_in(text: str) -> tuple[int, ...]:
    """The shape that a row of the graph holds as text."""
    return tuple(map(int, text.split("x")))

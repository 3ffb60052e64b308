"""What a loss is asked for and what the model said instead: its targets and predictions, by a few numbers of each.

They are those that torch's own losses keep for backward. Nothing is computed again to see them: what is kept in another
way (a checkpoint, a copy on the host) is left alone.

Legend: N predictions, C classes, R rows of T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.graph_nodes import Node, is_plain, is_written_in_python, name_of, shape_of, signed, walk
from gradwatch.table import IN_LOSS

MOST = 1 << 16  # targets that are looked at
MOST_SCORES = 1 << 18  # of the scores of all classes, or those of 64 predictions
MOST_TABLES = 4  # embeddings whose tokens are compared with the targets, and tables of data whose columns are
MOST_ROWS, MOST_COLUMNS = 256, 1 << 12  # of a table of data
LEAST_ROWS = 8  # with which a column is compared with the targets
NEAR_ROWS, NEAR_SLICE = 5, 7  # nodes next to a loss, among which its scores are rows, and a part of them is taken

_CHOICES, _YES_OR_NO = ("NllLoss", "NllLoss2D"), ("BinaryCrossEntropy", "BinaryCrossEntropyWithLogits")
NUMBERS = ("MseLoss", "SmoothL1Loss", "HuberLoss")
_PLACES = ("target_is_input", "target_is_next", "target_is_after_next")
LOSSES = (*_CHOICES, *_YES_OR_NO, *NUMBERS)


@without_autograd
def seen(
    loss: str, node: Node, data: Sequence[Tensor] = (), mask: Tensor | None = None, is_averaged: bool = False
) -> dict[str, Tensor | float]:
    """0-d tensors on the loss's device, by name; `loss` is the operation that the `node` is of, of `LOSSES`. Classes
    that are multiplied by a `mask` of 0 are ignored. `is_averaged`: a mean is taken of what it gives for each target.

    Of all: `target_mean` and `target_std`, where a class counts by its number, of so many `targets`. Of classes, of
    which a softmax has so many `choices`, also of two: `target_top`, the most frequent one, `target_top_share` and
    `predicted_top_share`, the share of
    targets that were `predicted_right` and of those that are `ignored`; where classes have weights, and no label
    one of its own, `target_top_weight`, that of the most frequent one beside the mean of those above 0; of
    probabilities, `target_soft`, how far they are from 0 and 1 on average, and `target_outside`, the share that
    lies outside of these; of logits the `cross_entropy`, in nats, and how far those of one choice are apart, by the
    median (`logit_range`) and at most (`logit_range_most`), of two classes how far the one is from 0. Of numbers:
    `target_low` and `target_high`, between which nine tenths lie, `target_spread`, the median distance from the
    median, `target_farthest`, the largest, `predicted_mean` and `predicted_std`, of several columns how many times
    the deviation of one is that of another, at most (`target_columns_apart`), and the share of the targets'
    variance that is `explained`; so is a share of the entropy of logits' targets, where they weigh alike. Of
    targets that come in rows, as tokens do by one of the embeddings that the loss is made of: `target_top_at_ends`,
    how much more often the most frequent one is the last of a row than the first (or less), and of tables that have
    about a row for each class `target_is_input`, the share of targets that are the token at their own place,
    `target_is_next`, at the next one, and of tokens `target_is_after_next`; so of series of numbers. Of tables of
    `data` with a row for each target `target_in_data`, the largest share of targets that stand in one of a table's
    columns.
    """
    if not _lies_there(node):
        return {}
    target, scores = node._saved_target, node._saved_self
    if type(target) is not Tensor or type(scores) not in (Tensor, torch.nn.Parameter) or not target.numel():
        return {}
    few, is_reduced = _evenly(target.shape, MOST), node._saved_reduction != 0 or is_averaged
    if loss in NUMBERS:
        found = _of_numbers(target[few].flatten().float(), scores[few].flatten().float())
        if target.dim() == 2 and target.shape[1] > 1 and target.numel() <= MOST:
            found["target_columns_apart"] = _columns_apart(target.float())
    elif loss in _YES_OR_NO:
        is_logits = loss.endswith("Logits")
        found = _of_two(target[few], scores[few] > (0.0 if is_logits else 0.5))
        if mask is not None:  # or weights: how much each class counts is not known
            del found["target_top_share"], found["predicted_top_share"]
        if is_logits:
            found |= _of_logits(scores[few].abs().flatten(), softplus(scores[few]) - target[few] * scores[few])
            of_all, of_ones = target[few].float().mean(), node._saved_pos_weight
            if type(of_ones) is Tensor and of_ones.numel() == 1:  # of several labels each has its own
                weights = torch.stack(
                    [torch.ones((), dtype=torch.float32, device=target.device), of_ones.float().mean()]
                )
                found["target_top_weight"] = weights[found["target_top"]] / weights.mean()
            elif type(of_ones) is not Tensor and type(node._saved_weight) is not Tensor and is_reduced:
                share = 1 - found["cross_entropy"] / _entropy(torch.stack([of_all, 1 - of_all]))
                found["explained"] = torch.where(found["target_outside"] > 0, torch.nan, share)
    elif scores.dim() < 2:  # of a single prediction
        return {}
    else:
        ignored = signed(node._saved_ignore_index)
        if mask is not None and mask.numel() == target.numel():
            target = torch.where(mask.reshape(target.shape) != 0, target, ignored)
        tables, length = _plain_tables(node), _length_of_rows(node, target)
        found = _of_choices(target, scores, ignored, tables, length, _left_out_ahead(node))
        if type(weight := node._saved_weight) is Tensor:
            found["target_top_weight"] = weight[found["target_top"]] * (weight > 0).sum() / weight.sum()
        if type(weight) is Tensor or not is_reduced:
            del found["explained"]
        if not is_reduced and mask is None:  # what becomes of each is not known
            found.pop("target_top_at_ends", None)
    found |= _in_data(target.reshape(-1), data) | (_of_series(target, data) if loss in NUMBERS else {})
    sizes = {"targets": float(target.numel()), **({"choices": float(scores.shape[1])} if loss in _CHOICES else {})}
    return {f"{IN_LOSS}{name}": value for name, value in (sizes | found).items()}


@without_autograd
def largest(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of several losses of numbers what was `seen` of that whose targets deviate most; nothing of none."""
    best: dict[str, Any] = {}
    for each in found:
        if not best:
            best = each
            continue
        more = each[_SPREAD] > best[_SPREAD]
        best = {name: torch.where(more, value, best.get(name, math.nan)) for name, value in each.items()}
    return best


_SPREAD = f"{IN_LOSS}target_std"


def _in_data(target: Tensor, tables: Iterable[Tensor]) -> dict[str, Tensor]:
    """Of targets `[N]`, one for each row of a table of data `[N, M]`, the share that stands in one of its columns, of
    the column where it is largest; 0 where they are all alike.
    """
    found = []
    for table in tables:
        fits = len(table) == len(target) >= LEAST_ROWS and 1 < table.shape[1] <= MOST_COLUMNS
        if fits and table.device == target.device:
            few = slice(None, None, -(-len(table) // MOST_ROWS))
            asked = target[few].to(table.dtype)
            found.append((table[few] == asked[:, None]).float().mean(0).amax() * (asked != asked[0]).any())
    return {"target_in_data": torch.stack(found).amax()} if found else {}


def _of_series(target: Tensor, tables: Iterable[Tensor]) -> dict[str, Tensor]:
    """Of targets `[R, T, M]`, the rows of T places of a series, the share that is the data `[R * T, M]` at the same
    place, and at the next one.
    """
    for table in tables:
        is_alike = target.dim() == 3 and table.dim() == 2 and table.shape[1] == target.shape[2]
        if is_alike and table.numel() == target.numel() and table.device == target.device and target.shape[1] > 1:
            few = target[:: -(-len(target) // MOST_ROWS)].to(table.dtype)
            read = table.view(target.shape)[:: -(-len(target) // MOST_ROWS)]
            same, following = (few == read).all(2), (few[:, :-1] == read[:, 1:]).all(2)
            return {"target_is_input": same.float().mean(), "target_is_next": following.float().mean()}
    return {}


def _columns_apart(target: Tensor) -> Tensor:
    """How many times the deviation of a column `[N, M]` is that of another, of those that vary."""
    spread = target.std(0, correction=0)
    return spread.amax() / spread.masked_fill(spread == 0, math.inf).amin()


def _of_numbers(target: Tensor, predicted: Tensor) -> dict[str, Tensor]:
    """Of numbers `[N]` each."""
    ordered, twentieth = target.sort().values, len(target) // 20
    away = (target - ordered[len(target) // 2]).abs()
    return {
        "target_mean": target.mean(),
        "target_std": target.std(correction=0),
        "target_low": ordered[twentieth],
        "target_high": ordered[-1 - twentieth],
        "target_spread": away.median(),
        "target_farthest": away.amax(),
        "predicted_mean": predicted.mean(),
        "predicted_std": predicted.std(correction=0),
        "explained": 1 - (target - predicted).square().mean() / target.var(correction=0),
    }


def _of_two(target: Tensor, said: Tensor) -> dict[str, Tensor]:
    """Of probabilities between 0 and 1, and which of the two classes has the higher score."""
    asked = target > 0.5
    found = _of_classes(_counts(asked.flatten().long(), 2), _counts(said.flatten().long(), 2))
    found["target_soft"] = (target - asked.to(target.dtype)).abs().float().mean()
    found["target_outside"] = ((target < 0) | (target > 1)).float().mean()
    found["predicted_right"] = (asked == said).float().mean()
    return found


def _length_of_rows(loss: Node, target: Tensor) -> int | None:
    """T of targets `[R * T]` whose scores were `[R, T, C]` before they were flattened, as the graph shows it."""
    for node in islice(walk(loss), 1, NEAR_ROWS) if target.dim() == 1 else ():
        shape = shape_of(node)
        if len(shape) == 3 and shape[0] * shape[1] == len(target):
            return shape[1]
    return None


def _left_out_ahead(loss: Node) -> int:
    """How many scores were left out at the beginning of each row `[R, T, C]`, as the graph shows it."""
    slices = (n for n in islice(walk(loss), 1, NEAR_SLICE) if name_of(n) == "Slice" and len(shape_of(n)) == 3)
    return next((int(n._saved_start or 0) for n in slices if signed(int(n._saved_dim)) in (1, -2)), 0)


def _of_choices(
    target: Tensor,
    scores: Tensor,
    ignored: int,
    tables: Sequence[Node],
    length: int | None = None,
    left_out: int = 0,
) -> dict[str, Tensor]:
    """Of targets `[N, ...]`, classes by their numbers, and scores `[N, C, ...]`; N in rows of a `length`, if known, at
    the beginning of which some were `left_out`.
    """
    classes, asked = scores.shape[1], target[_evenly(target.shape, MOST)].flatten()
    counts = _counts(torch.where(asked == ignored, classes, asked), classes + 1)
    few = _evenly(target.shape, max(MOST_SCORES // classes, 64))
    some, wanted = scores[(few[0], slice(None), *few[1:])], target[few]
    said, counted = some.argmax(1), wanted != ignored
    found = _of_classes(counts[:classes], _counts(said.flatten(), classes))
    found["ignored"] = counts[classes] / counts.sum()
    found["predicted_right"] = (said == wanted).sum().float() / counted.sum()
    of_wanted = some.gather(1, torch.where(counted, wanted, 0)[:, None])[:, 0]
    found |= _of_logits((some.amax(1) - some.amin(1)).flatten(), torch.where(counted, -of_wanted, torch.nan))
    found["explained"] = 1 - found["cross_entropy"] / _entropy(counts[:classes] / counts[:classes].sum())
    lookups = [node for node in tables if node._saved_indices.device == target.device]
    read = [(node, *rows) for node in lookups if (rows := _rows(target, node._saved_indices, left_out))]
    alike = (rows for node, *rows in read if _is_of(classes, getattr(node, "_saved_weight_sym_argsize_0", classes)))
    same = [torch.stack([*_hits(asked, tokens, ignored)]) for asked, tokens in alike]
    if same:
        found |= zip(_PLACES, torch.stack(same).amax(0), strict=True)
    length = target.shape[-1] if target.dim() > 1 else length
    in_rows = read[0][1] if read else target.reshape(-1, length) if length else None
    if in_rows is not None and in_rows.shape[1] > 1:
        is_top = (in_rows == found["target_top"]).float()
        found["target_top_at_ends"] = (is_top[:, -1] - is_top[:, 0]).mean()
    if 0 <= ignored < classes and not read:
        apart = target.reshape(-1, length or 1) == ignored
        found["class_left_out"] = torch.full_like(found["ignored"], ignored)
        found["ignored_at_ends"] = (apart[:, -1].float() - apart[:, 0].float()).mean()
    return found


def _of_classes(target: Tensor, predicted: Tensor) -> dict[str, Tensor]:
    """Of how often each class was asked for, and said, `[C]` each."""
    number, share = torch.arange(len(target), device=target.device), target / target.sum()
    mean = (share * number).sum()
    return {
        "target_mean": mean,
        "target_std": (share * (number - mean).square()).sum().sqrt(),
        "target_top": target.argmax(),
        "target_top_share": share.amax(),
        "predicted_top_share": predicted.amax() / predicted.sum(),
    }


def _of_logits(ranges: Tensor, losses: Tensor) -> dict[str, Tensor]:
    """Of how far the logits of each choice are apart, and of what the loss is of each, NaN where it is left out."""
    ranges, losses = ranges.float(), losses.float()
    return {"logit_range": ranges.median(), "logit_range_most": ranges.amax(), "cross_entropy": losses.nanmean()}


def _entropy(shares: Tensor) -> Tensor:
    """Of how often each class was asked for, in nats."""
    return -torch.xlogy(shares, shares).sum()


def _rows(target: Tensor, indices: Tensor, left_out: int = 0) -> tuple[Tensor, Tensor] | None:
    """Targets and tokens `[R, T]` each, where there is one for each token, or for all but one of each row: its last, or
    its first if one was `left_out` there.
    """
    rows = indices.reshape(-1, indices.shape[-1]) if indices.dim() > 1 else indices[None]
    if target.numel() == rows.numel() - len(rows):
        rows = rows[:, 1:] if left_out == 1 else rows[:, :-1]
    return (target.reshape(rows.shape), rows) if target.numel() == rows.numel() and rows.shape[1] > 1 else None


def _hits(asked: Tensor, tokens: Tensor, ignored: int) -> Iterator[Tensor]:
    """The share of targets `[R, T]` that are the token at their own place, at the next one, and at that after it."""
    for ahead in range(len(_PLACES)):
        wanted = asked[:, : asked.shape[1] - ahead]
        counts = wanted != ignored
        yield ((wanted == tokens[:, ahead:]) & counts).sum().float() / counts.sum()


def _is_of(classes: int, rows: int) -> bool:
    """Whether a table of so many rows is of the tokens that are asked for: a head may have some more, or less."""
    return abs(rows - classes) <= max(2, classes // 10)


def _counts(classes: Tensor, of: int) -> Tensor:
    """How often each of the numbers below `of` is there, `[of]`; without a look at any of them."""
    ones = torch.ones_like(classes, dtype=torch.float32)
    return ones.new_zeros(of).index_add_(0, classes, ones)


def _evenly(shape: Sequence[int], most: int) -> tuple[slice, ...]:
    """A step along each axis, the longest first, that leaves about `most` elements and meets all places of a period."""
    steps, left = [1] * len(shape), list(shape)
    while math.prod(left) > most and max(left) > 1:
        axis = left.index(max(left))
        step = steps[axis] * min(-(-math.prod(left) // most), left[axis])
        steps[axis] = next(s for s in count(step) if math.gcd(s, shape[axis]) == 1)
        left[axis] = -(-shape[axis] // steps[axis])
    return tuple(slice(None, None, step) for step in steps)


def _lies_there(node: Node) -> bool:
    """Whether what an operation on targets or tokens keeps is plain, so that a look at it does nothing else.

    Where torch does not tell, hooks are tried: a tensor under hooks refuses others; one that has none takes these,
    which hand it through. Of a choice of classes they stand on a number of torch's own, so that all else is checked as
    ever.
    """
    at = next(name for name in ("total_weight", "target", "indices") if hasattr(node, f"_raw_saved_{name}"))
    kept = getattr(node, f"_raw_saved_{at}")
    if (plain := is_plain(kept)) is not None:
        return plain
    try:
        kept.register_hooks(_as_it_is, _as_it_is)
    except RuntimeError:
        return False
    return True


def _plain_tables(loss: Node) -> list[Node]:
    """The first embeddings that a loss is made of, but for those whose tokens were kept in another way."""
    found = (node for node in walk(loss) if name_of(node) == "Embedding" and not is_written_in_python(node))
    return [node for node in islice(found, MOST_TABLES) if _lies_there(node)]


def _as_it_is(value: Tensor) -> Tensor:
    return value

"""Whether a loss asks for the noise that was added to what the model is given, and the model is given nothing else.

Legend: N examples, D numbers of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.graph_nodes import Node, is_written_in_python, kept, name_of
from gradwatch.measure.graph_values import GIVEN, LOOKUPS
from gradwatch.table import IN_LOSS

LEAST = 64  # numbers
MOST = 1 << 14
_WITH_ANOTHER = ("Add", "Sub", "Mul", "Div")  # which may be given what no gradient comes to
SIGMAS = 5.0  # of a mean, a deviation and a kurtosis, so many standard errors


def seen(
    loss: Node, nodes: Iterable[Node], own: Callable[[Node], str], is_given_data: Callable[[Node], bool]
) -> dict[str, Tensor]:
    """`noise_in_data`, 0-d: how what a loss of differences asks for `[N, D]` goes together with the one batch `[N, D]`
    that the weights below it are given (their correlation), where it is drawn from a standard normal; else NaN.

    Nothing where the model is given anything else besides: another batch, rows of a table, numbers that are multiplied
    by weights of their own, or that are added to or multiplied with what is made; nor where a function written in
    Python hides what it is given. `own` names the layer of an operation with weights.
    """
    target = kept(loss, "target")
    if target is None or target.numel() < LEAST:
        return {}
    data = _only_batch(nodes, own, is_given_data)
    if data is None or data.numel() != target.numel() or data.device != target.device:
        return {}
    return {f"{IN_LOSS}noise_in_data": noise_in(data, target)}


@without_autograd
def noise_in(data: Tensor, target: Tensor) -> Tensor:
    """The correlation of both, as many numbers each; NaN where the targets are not standard normal ones by their mean,
    deviation and kurtosis.
    """
    few = slice(None, None, -(-target.numel() // MOST))
    x, noise = data.reshape(-1)[few].float(), target.reshape(-1)[few].float()
    mean, spread = noise.mean(), noise.std(correction=0)
    kurtosis = ((noise - mean) / spread).pow(4).mean()
    errors = torch.stack([mean, (spread - 1) * math.sqrt(2), (kurtosis - 3) / math.sqrt(24)]) * math.sqrt(len(noise))
    together = ((x - x.mean()) * (noise - mean)).mean() / (x.std(correction=0) * spread)
    return torch.where((errors.abs() < SIGMAS).all(), together, math.nan)


def _only_batch(
    nodes: Iterable[Node], own: Callable[[Node], str], is_given_data: Callable[[Node], bool]
) -> Tensor | None:
    found: Tensor | None = None
    for node in nodes:
        name = name_of(node)
        is_told = name in _WITH_ANOTHER and any(below is None for below, _ in node.next_functions)
        if is_told or (name in LOOKUPS and own(node)) or is_written_in_python(node):
            return None
        if not is_given_data(node):
            continue
        given = kept(node, GIVEN[name].kept)
        if given is None or (found is not None and (found.data_ptr(), found.shape) != (given.data_ptr(), given.shape)):
            return None
        found = given
    return found

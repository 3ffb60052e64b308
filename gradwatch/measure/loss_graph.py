"""How a loss is made, as its autograd graph shows it: what stands between it and the last weights, every softmax, every
batch norm, and each view that puts axes into another order.

Of its nodes the names, shapes and plain settings are read. What they keep for backward is left alone, but for what a
loss was given (`loss_targets`) and what shows the model inside (`graph_values`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

from torch import Tensor, nn

from gradwatch.measure import (
    graph_signs,
    graph_values,
    loss_targets,
    noise_targets,
    padding,
    pairs,
    policy_entropy,
    posterior,
)
from gradwatch.measure.aggregations import aggregations
from gradwatch.measure.graph_nodes import (
    MOST_NODES,
    RECURRENT,
    SAME_INPUT,
    SAME_NUMBERS,
    SAME_WEIGHTS,
    Node,
    children,
    is_normed,
    is_product,
    is_written_in_python,
    kept,
    name_of,
    shape_of,
    signed,
    text_of,
    through,
    walk,
    with_reduction,
)
from gradwatch.measure.linear_chain import linear_chain, linear_pairs
from gradwatch.measure.places import without_places
from gradwatch.measure.self_attention import is_of_itself
from gradwatch.measure.sequence_axes import wrong_axes
from gradwatch.measure.views import reordered_from, reorders
from gradwatch.table import IN_LOSS

MOST_ABOVE = 500  # of those above the first weights
MOST_LOSSES = 4  # terms of a loss that are looked at
MOST_PATHS, LONGEST_PATH, MOST_ROWS = 8, 24, 64
# Nodes that are looked at: of the whole graph for a mask, and next to an operation for what stands below it.
NEAR_MASK, NEAR_WEIGHTS, NEAR_LAYER = 40, 30, 60

_BATCH_NORMS = ("NativeBatchNorm", "CudnnBatchNorm", "MiopenBatchNorm", "BatchNormWithUpdate")  # of these rows alone
_WITH_WEIGHTS = ("Addmm", "Convolution", *RECURRENT)
_ARRANGE = ("Transpose", "Permute", "T")
_OF_EACH = ("input", "aggregation")  # of which each layer has a row of its own


class LossGraph:
    """The graph of `loss`; `layers` are the names of parameters by their ids."""

    def __init__(self, loss: Tensor, layers: Mapping[int, str]) -> None:
        self._root, self._layers = loss.grad_fn, layers
        self._nodes = [] if loss.grad_fn is None else [*walk(loss.grad_fn)]
        leaves = (getattr(node, "variable", None) for node in self._nodes)
        self._leaves: list[Tensor] = [leaf for leaf in leaves if leaf is not None]
        self._owned: dict[Node, str] = {}  # what `_own` said, which is asked of most nodes several times

    @property
    def reached(self) -> set[int]:
        """The ids of the layers that the gradient of the loss comes to, as far as the graph is walked."""
        return {*map(id, self._leaves)} & self._layers.keys()

    @property
    def strangers(self) -> list[nn.Parameter]:
        """The parameters in the graph that are none of the layers: of another model, or made on the way."""
        return [leaf for leaf in self._leaves if isinstance(leaf, nn.Parameter) and id(leaf) not in self._layers]

    @property
    def asks_of_data(self) -> bool:
        """Whether the gradient of the loss comes to a tensor that is no parameter: to an input, as for an attack."""
        return any(not isinstance(leaf, nn.Parameter) and id(leaf) not in self._layers for leaf in self._leaves)

    def factor(self) -> Tensor | None:
        """The constant, 0-d, that the whole of the loss is multiplied by (`graph_values.factor_of_all`)."""
        return graph_values.factor_of_all(self._root) if self._nodes else None

    def targets(self) -> dict[str, Tensor | float]:
        """What the loss is asked for, and the model said: 0-d tensors (`loss_targets.seen`), of the nearest of torch's
        losses; of several of numbers, of that whose targets are the largest.
        """
        named = ((name_of(node), node) for node in self._nodes if not is_written_in_python(node))
        losses = [*islice((found for found in named if found[0] in loss_targets.LOSSES), MOST_LOSSES)]
        if not losses:
            return {}
        name, node = losses[0]
        if name not in loss_targets.NUMBERS:
            is_averaged = through(self._root, ("Mean", "Sum", "View", "Squeeze", "Unsqueeze")) is node
            return loss_targets.seen(name, node, self._data(node), self._mask_of(node), is_averaged)
        of_numbers = (each for each in losses if each[0] in loss_targets.NUMBERS)
        found = (loss_targets.seen(name, node, self._data(node)) for name, node in of_numbers)
        largest = loss_targets.largest([each for each in found if each])
        return largest | noise_targets.seen(node, self._nodes, self._own, self._is_given_data)

    def _data(self, loss: Node) -> list[Tensor]:
        """The first tables `[N, M]` of data that weights are given on the way to a loss: its targets may be in them."""
        given = (node for node in walk(loss) if name_of(node) in ("Addmm", "Mm") and self._is_given_data(node))
        tables = (kept(node, graph_values.GIVEN[name_of(node)].kept) for node in given)
        return [*islice((table for table in tables if table is not None), loss_targets.MOST_TABLES)]

    def _mask_of(self, loss: Node) -> Tensor | None:
        """What a loss of each target by itself is multiplied by; None of one that is reduced, or where nothing is."""
        for node in self._nodes[:NEAR_MASK] if getattr(loss, "_saved_reduction", 1) == 0 else ():
            below = node
            while name_of(below) in ("Mul", *SAME_NUMBERS) and len(children(below)) == 1 and below is not loss:
                below = children(below)[0]
            if name_of(node) == "Mul" and below is loss:
                return graph_values.factor(node)
        return None

    def values(self, names: Sequence[str]) -> dict[str, Tensor | float]:
        """What it shows of the model inside: 0-d tensors (`graph_values.seen`); a layer by its place among `names`.

        And of a table whose rows the loss is taken of, as of a book of codes, which share of them is used
        (`codes_used`); of choices that are weighed, as by a return, its mean and deviation (`advantage_...`); of
        embeddings that are compared, and of scores that are added up, what `pairs` and `graph_signs` see; of a code
        that is drawn, the share of its units that tell something; of rows with padding, what is made of it (`padding`).
        """
        places = {name: place for place, name in enumerate(names)}
        found = graph_values.seen(self._parts(places)) | self._above(places) | pairs.seen(self._ends)
        code = posterior.seen(self._nodes, self._outer)
        of_code = [] if code is None else [(code[0], {f"code_{name}": n for name, n in code[1]._asdict().items()})]
        for node, numbers in (*of_code, *padding.seen(self._nodes)):
            if layer := self._below(node):
                for kind, value in numbers.items():
                    found |= graph_values.of_layer(kind, value, places[layer])
        return found | graph_signs.seen(self._root, self._own, places) | graph_signs.of_itself(self._nodes)

    @cached_property
    def _outer(self) -> dict[Node, None]:
        """The nodes from the loss to the first weights, in their order."""
        return dict.fromkeys(islice(self._down(), MOST_ABOVE))

    @cached_property
    def _ends(self) -> dict[Node, None]:
        """The same, through products too: those above the last weights."""
        return dict.fromkeys(islice(self._down(through_products=True), MOST_ABOVE))

    def _above(self, places: Mapping[str, int]) -> dict[str, Tensor | float]:
        """What stands between the loss and the first weights: a lookup of rows, a product with log-probabilities."""
        found: dict[str, Tensor | float] = {}
        weighs = False
        for node in self._outer:
            name = name_of(node)
            if name in graph_values.LOOKUPS and (layer := self._own(node)):
                used = graph_values.codes_used(node)
                if used is not None and f"{IN_LOSS}codes_used" not in found:
                    found |= graph_values.of_layer("codes_used", used, places[layer])
            elif name == "Mul" and policy_entropy.weighs_choices(node):
                found = {**graph_values.weights_of_choices(node), **found}
                weighs = True
        return {**found, **policy_entropy.seen(self._root)} if weighs else found

    def _parts(self, places: Mapping[str, int]) -> Iterator[graph_values.Part]:
        """So many of each operation that tells something, those next to the loss first; of what is given data, too."""
        left = dict.fromkeys((*graph_values.OPERATIONS, "inputs"), graph_values.MOST_PARTS)
        for node in self._nodes:
            if (name := name_of(node)) not in left or is_written_in_python(node):
                continue
            has_weights = name in graph_values.GIVEN
            given = left["inputs"] > 0 and has_weights and self._is_given_data(node)
            counted, ends = "inputs" if given else name, node in (self._ends if has_weights else self._outer)
            if not left[counted] or (has_weights and not ((given or ends) and self._own(node))):
                continue
            left[counted] -= 1
            if layer := self._below(node):
                of_itself = name in graph_values.ATTENTIONS and is_of_itself(node, self._own)
                yield graph_values.Part(name, node, places[layer], ends, given, self._has_channels(node), of_itself)

    def _down(self, through_products: bool = False) -> Iterator[Node]:
        """The nodes from the loss to the first operations with weights, or to a product of two that are made.

        No further than what hides weights of its own: a frozen layer, a checkpoint, what was compiled.
        """
        waiting, seen = [self._root] if self._nodes else [], set()
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            yield node
            hides = name_of(node) in _WITH_WEIGHTS or is_written_in_python(node) or is_normed(node)
            if not (hides or self._own(node)) and (through_products or not is_product(node)):
                waiting += children(node)

    def _is_given_data(self, node: Node) -> bool:
        """Whether weights stand here beside a batch that asks for no gradient."""
        at = graph_values.GIVEN.get(name_of(node))
        if (
            at is None
            or is_written_in_python(node)
            or node.next_functions[at.place][0] is not None
            or not self._own(node)
        ):
            return False
        return name_of(node) != "Mm" or name_of(node.next_functions[1][0]) == "T"  # else it may be of a second backward

    def _has_channels(self, node: Node) -> bool | None:
        """Whether the units of an operation are those of a convolution; None where an axis moved on the way here."""
        for below in islice(walk(node), 1, NEAR_WEIGHTS):
            if name_of(below) in ("Transpose", "Permute"):
                return None
            if self._own(below) and not name_of(below).endswith("Norm"):
                return name_of(below) == "Convolution"
        return None

    def described(self) -> list[dict[str, Any]]:
        """What it shows, a table each, told apart by `what`.

        Of each `path` from the loss to weights: the `operations` on it, the `shapes` of what they give out, how many
        operands of each ask for a gradient (`operands`), and the `layer` it ends in. Of each `softmax`: its
        `operation`, `dim` and `shape`. Of each `batch_norm` in training, its `shape`; of each `group_norm`, how many
        `numbers` it takes together. Of each `view` that puts axes into another order, also those of a batch, the shape
        it is `of` and its own. Of each `input`, an operation with weights that is given a batch, its `operation`; not
        of weights that others give something, too, as a recurrence's. Of each `aggregation` of rows its `operation`. Of
        layers with nothing that bends between them, all of a model or two in a row, their names (`linear`).
        """
        found = [*self._paths(), *(row for node in self._nodes for row in self._of_node(node))]
        with_weights = (node for node in self._nodes if name_of(node) in graph_values.GIVEN)
        inner = {self._own(node) for node in with_weights if not self._is_given_data(node)}
        found = [row for row in found if row["what"] != "input" or row["layer"] not in inner]
        axes = [("sequence", *each) for each in wrong_axes(self._nodes, {*islice(self._down(), MOST_NODES)})]
        rows = [("aggregation", *each) for each in aggregations(self._nodes)]
        for what, met, made in (*axes, *(("unplaced", *each) for each in without_places(self._nodes)), *rows):
            seen = {"what": what, "operation": name_of(met), "shape": text_of(shape_of(made))}
            found.append(seen | {"layer": self._below(made)})
        chain = linear_chain(self._nodes, self._own, self._is_given_data)
        pairs = [chain] if chain else linear_pairs(self._nodes, self._own)
        found += [{"what": "linear", "layers": " ".join(each), "layer": each[0]} for each in pairs]
        kinds = {
            tuple(row[key] for key in row if key != "layer" or row["what"] in _OF_EACH): row for row in reversed(found)
        }
        return [*reversed(kinds.values())][:MOST_ROWS]

    def _of_node(self, node: Node) -> Iterator[dict[str, Any]]:
        name, shape = name_of(node), shape_of(node)
        seen: dict[str, Any] = {}
        if name in ("Softmax", "SafeSoftmax", "LogSoftmax") and shape and not is_written_in_python(node):
            dim = signed(int(node._saved_dim))
            seen = {"what": "softmax", "operation": name, "dim": dim % len(shape)}
        elif self._is_given_data(node):
            seen = {"what": "input", "operation": name}
            data = kept(node, graph_values.GIVEN[name].kept)
            if data is not None and (before := reordered_from(data)):
                view = {"what": "view", "of": text_of(before), "shape": text_of(tuple(data.shape))}
                yield {**view, "layer": self._below(node)}
        elif name in _BATCH_NORMS and shape and getattr(node, "_saved_training", True):
            of_each = shape[0] == 1 and name_of(next(iter(children(node)), node)) in SAME_INPUT
            seen = {} if of_each else {"what": "batch_norm"}  # an instance norm is one of a single, long row
        elif name == "NativeGroupNorm" and shape:
            seen = {"what": "group_norm", "numbers": int(node._saved_C * node._saved_HxW // node._saved_group)}
        elif name in ("View", "UnsafeView", "ReshapeAlias"):
            before, below = next(map(shape_of, children(node)), ()), map(name_of, islice(walk(node), 1, 4))
            arranged = next((name for name in below if name != "Clone"), "") in _ARRANGE
            seen = {"what": "view", "of": text_of(before)} if reorders(before, shape, arranged) else {}
        if seen:
            yield {**seen, "shape": text_of(shape), "layer": self._below(node)}

    def _paths(self) -> Iterator[dict[str, Any]]:
        """The ways from the loss down to the first operations with weights; each node is on one of them."""
        seen, found = set(), 0
        waiting: list[tuple[Node, list[Node]]] = [(self._root, [])] if self._nodes else []
        while waiting and found < MOST_PATHS:
            node, above = waiting.pop()
            if node in seen or len(above) == LONGEST_PATH:
                continue
            seen.add(node)
            path, own = [*above, node], self._own(node)
            if not own:
                waiting += [(child, path) for child in reversed(children(node))]
                continue
            found += 1
            yield {
                "what": "path",
                "operations": " ".join(map(with_reduction, path)),
                "shapes": " ".join(text_of(shape_of(each)) for each in path),
                "operands": " ".join(str(len(children(each))) for each in path),
                "layer": own,
            }

    def _own(self, node: Node) -> str:
        """The layer that is an operand of this operation, as it is or transposed; a weight rather than its bias."""
        if node not in self._owned:
            self._owned[node] = self._find_own(node)
        return self._owned[node]

    def _find_own(self, node: Node) -> str:
        own = []
        for child in children(node):
            leaf = getattr(through(child, SAME_WEIGHTS), "variable", None)
            own.append(self._layers.get(id(leaf), ""))
        named = [name for name in own if name]
        weights = (name for name in named if "bias" not in name.rpartition(".")[2])  # bias, in_proj_bias, bias_hh_l0
        return next(weights, named[0] if named else "")

    def _below(self, node: Node) -> str:
        """The layer of this operation, or nearest below: then the weight, not a bias that is added to its product."""
        if own := self._own(node):
            return own
        found = next(filter(None, map(self._own, islice(walk(node), NEAR_LAYER))), "")
        head, dot, last = found.rpartition(".")
        weight = f"{head}{dot}{last.replace('bias', 'weight')}"
        return weight if weight in self._layers.values() else found

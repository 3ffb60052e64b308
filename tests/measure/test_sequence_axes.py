"""A recurrence or an attention that runs over the batch is seen by what stands above and below it, and no other."""

import numpy as np
import pytest
import torch
from make_run import changed, make_history
from torch import nn

from gradwatch.analysis.rules.axes_mixed import axes_mixed
from gradwatch.measure.loss_graph import LossGraph
from gradwatch.table import IN_LOSS

ROWS, PLACES, WIDTH = 6, 7, 8
AXES = [str(ROWS), str(PLACES)]
KINDS = ("LSTM", "GRU", "RNN", "both ways", "attention")


def layer_of(kind, **layout):
    if kind == "attention":
        one = nn.TransformerEncoderLayer(WIDTH, 2, 16, **layout)
        return nn.TransformerEncoder(one, 2, enable_nested_tensor=False)
    if kind == "both ways":
        return nn.LSTM(WIDTH, WIDTH // 2, 2, bidirectional=True, **layout)
    return getattr(nn, kind)(WIDTH, WIDTH, 2, **layout)


def graph_of(kind, use, given="numbers", time_first=False, **layout):
    """The graph of a loss of what a layer gives out, by rows, unless the data itself is `time_first`."""
    parts = nn.ModuleDict({
        "read": layer_of(kind, **layout), "head": nn.Linear(WIDTH, 3),
        "tokens": nn.Embedding(10, WIDTH), "look": nn.Conv1d(WIDTH, WIDTH, 3, padding=1),
    })  # fmt: skip
    x = torch.randn(ROWS, PLACES, WIDTH)
    if given == "tokens":
        x = parts["tokens"](torch.randint(10, (ROWS, PLACES)))
    elif given == "signal":
        x = parts["look"](x.transpose(1, 2)).relu().transpose(1, 2)
    out = parts["read"](x.transpose(0, 1) if time_first else x)
    out = use(out[0] if isinstance(out, tuple) else out, parts["head"])
    return LossGraph(out.sum(), {id(p): name for name, p in parts.named_parameters()}).described()


def met(rows):
    """What is met, and the axes of what meets it."""
    return [(row["operation"], row["shape"].split("x")[:2]) for row in rows if row["what"] == "sequence"]


def each(out, head):
    return head(out)


BY_ROWS = {
    "Select": lambda out, head: head(out[:, -1]),
    "Mean": lambda out, head: head(out.mean(1)),
    "Amax": lambda out, head: head(out.amax(1)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operation", BY_ROWS)
def test_what_is_picked_of_the_second_axis_was_made_along_the_first(kind, operation):
    assert met(graph_of(kind, BY_ROWS[operation])) == [(operation, AXES)]
    assert met(graph_of(kind, BY_ROWS[operation], batch_first=True)) == []
    assert met(graph_of(kind, lambda out, head: head(out[-1]), time_first=True)) == []
    assert met(graph_of(kind, lambda out, head: head(out.mean(0)), time_first=True)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_prediction_of_each_place_is_picked_of_too(kind):
    assert met(graph_of(kind, lambda out, head: head(out)[:, -1])) == [("Select", AXES)]
    assert met(graph_of(kind, lambda out, head: head(out)[:, -1], batch_first=True)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_texts_by_rows_are_read_along_the_first_axis(kind):
    assert met(graph_of(kind, each, "tokens")) == [("Embedding", AXES)]
    assert met(graph_of(kind, each, "tokens", batch_first=True)) == []
    assert met(graph_of(kind, each, "tokens", time_first=True)) == []


def test_a_table_of_places_whose_width_is_that_of_the_batch_holds_no_texts():
    places, layer = nn.Embedding(PLACES, WIDTH), layer_of("attention", batch_first=True)
    x = torch.randn(WIDTH, PLACES, WIDTH) + places(torch.arange(PLACES))  # as many rows as a place has numbers
    names = {id(p): name for name, p in nn.ModuleDict({"places": places, "read": layer}).named_parameters()}
    assert met(LossGraph(layer(x).sum(), names).described()) == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "attention"])
def test_what_a_convolution_looked_along_is_read_along_the_other_axis(kind):
    assert met(graph_of(kind, each, "signal")) == [("Convolution", AXES)]
    assert met(graph_of(kind, each, "signal", batch_first=True)) == []
    assert met(graph_of(kind, each, "signal", time_first=True)) == []


def test_pictures_of_one_film_are_read_in_their_order():
    look, read, head = nn.Conv2d(1, 2, 3), nn.LSTM(2 * 9, WIDTH), nn.Linear(WIDTH, 3)
    out = head(read(look(torch.randn(PLACES, 1, 5, 5)).view(PLACES, 1, -1))[0])
    names = {id(p): f"{m}.{n}" for m, part in enumerate((look, read, head)) for n, p in part.named_parameters()}
    assert met(LossGraph(out.sum(), names).described()) == []


class Select(torch.autograd.Function):
    """Called as an operation of torch is, and keeps nothing that it keeps."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad


@pytest.mark.parametrize("kind", KINDS)
def test_what_pools_all_or_several_axes_or_is_written_in_python_picks_none(kind):
    for use in (
        lambda out: out.mean().expand(WIDTH), lambda out: out.mean((0, 1)), lambda out: out.amax((0, 1)), Select.apply,
    ):  # fmt: skip
        assert met(graph_of(kind, lambda out, head, use=use: head(use(out)))) == []


def test_what_others_of_a_batch_are_asked_besides_is_meant():
    over_rows, over_places = (layer_of("attention", batch_first=first) for first in (False, True))
    head, x = nn.Linear(WIDTH, 3), torch.randn(ROWS, PLACES, WIDTH)
    names = {id(p): f"{m}.{n}" for m, part in enumerate((over_rows, head)) for n, p in part.named_parameters()}
    assert met(LossGraph(head(over_rows(x).mean(1)).sum(), names).described())
    assert met(LossGraph(head(over_rows(over_places(x)).mean(1)).sum(), names).described()) == []


@pytest.mark.parametrize(("following", "said"), [(1.0, True), (0.1, False), (None, False)])
def test_texts_are_by_rows_if_the_next_token_is_asked_for(following, said):
    history = make_history(4, layers=("read.weight_hh_l0",), loss_graph=tuple(graph_of("RNN", each, "tokens")))
    if following is not None:
        sampled = {f"{IN_LOSS}target_is_next": np.full(len(history), following)}
        history = changed(history, per_step={**history.per_step, **sampled})
    assert [f.evidence["met"] for f in axes_mixed(history)] == ["Embedding"] * said

"""What the graph of a loss shows: the way to the weights, each softmax, batch norms, views that mix axes."""

import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gradwatch.measure.graph_nodes import MOST_NODES, name_of
from gradwatch.measure.loss_graph import MOST_ROWS, LossGraph
from gradwatch.measure.views import reorders

X = torch.randn(16, 6)


def graph(loss, model):
    return LossGraph(loss, {id(p): name for name, p in model.named_parameters()})


def of(what, loss, model):
    return [row for row in graph(loss, model).described() if row["what"] == what]


def test_a_path_leads_from_the_loss_to_the_weights():
    model = nn.Linear(6, 10)
    (path,) = of("path", F.cross_entropy(model(X).softmax(1), torch.arange(16) % 10), model)
    assert path == {
        "what": "path",
        "operations": "NllLoss LogSoftmax Softmax Addmm",
        "shapes": "1 16x10 16x10 16x10",
        "operands": "1 1 1 2",
        "layer": "weight",
    }


def test_a_loss_of_several_terms_has_a_path_to_each():
    model = nn.ModuleDict({"a": nn.Linear(6, 1), "b": nn.Linear(6, 1, bias=False)})
    loss = F.mse_loss(model["a"](X), X[:, :1], reduction="sum") + model["b"](X).abs().mean()
    first, second = of("path", loss, model)
    assert (first["operations"], first["layer"]) == ("Add MseLoss/sum Addmm", "a.weight")
    assert (second["operations"], second["layer"]) == ("Add Mean Abs Mm", "b.weight")


def test_under_a_loss_scale_and_autocast_it_is_the_same_way():
    model = nn.Linear(6, 10)
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(X), torch.arange(16) % 10)
    (path,) = of("path", loss * 65536.0 / 4, model)
    assert path["operations"] == "Div Mul NllLoss LogSoftmax ToCopy Addmm"
    assert path["layer"] == "weight"


@pytest.mark.parametrize(("dim", "said"), [(0, 0), (1, 1), (-1, 1), (-2, 0)])
def test_a_dimension_is_counted_from_the_front(dim, said):
    model = nn.Linear(6, 4)
    (row,) = of("softmax", (model(X).softmax(dim) * X[:, :4]).sum(), model)
    assert (row["dim"], row["shape"], row["layer"]) == (said, "16x4", "weight")


def test_a_batch_norm_is_told_in_training_only():
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3))
    (row,) = of("batch_norm", model(torch.randn(2, 1, 8, 8)).sum(), model)
    assert (row["shape"], row["layer"]) == ("2x3x6x6", "1.weight")
    assert of("batch_norm", model.eval()(torch.randn(2, 1, 8, 8)).sum(), model) == []


def test_no_saved_tensor_is_asked_for():
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Softmax(1))

    def refused(_):
        raise AssertionError("a saved tensor was unpacked")

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, refused):
        loss = checkpoint(model, X, use_reentrant=False).square().mean()
    assert graph(loss, model).described()


def test_a_graph_is_walked_so_far_and_no_farther():
    model = nn.Linear(6, 6)
    h = X
    for _ in range(MOST_NODES):
        h = model(h)
    loss = sum((model(X).softmax(0)[:n] ** 2).sum() for n in range(1, 17)) + h.sum()
    told = graph(loss, model)
    assert len(told._nodes) == MOST_NODES
    assert 0 < len(told.described()) <= MOST_ROWS
    assert told.reached == {id(model.weight), id(model.bias)}
    assert LossGraph(X.sum(), {}).described() == []


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def test_a_function_written_in_python_is_an_operation_as_others():
    model = nn.Linear(6, 1)
    (path,) = of("path", Twice.apply(model(X)).sum(), model)
    assert path["operations"] == "Sum Twice Addmm"


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_has_no_shape_and_the_rest_is_told(layout):
    model = nn.Linear(6, 4)
    out = model(torch.nested.nested_tensor([X[:3], X[3:8]], layout=layout))
    (path,) = of("path", torch.stack([part.sum() for part in out.unbind()]).mean(), model)
    assert path["operations"].startswith("Mean Stack")
    assert len(path["shapes"].split()) == len(path["operations"].split())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("AddmmBackward0", "Addmm"),
        ("NllLoss2DBackward0", "NllLoss2D"),
        ("torch::autograd::AccumulateGrad", "AccumulateGrad"),
        ("CppNode<a tree of one>", "CppNode<a_tree_of_one>"),  # what a manifest keeps is told apart by spaces
        ("Backward", "unnamed"),
        (1000 * "x", 100 * "x"),
    ],
)
def test_an_operations_name_is_one_word(name, said):
    node = type("Node", (), {"name": lambda self: name})()
    assert name_of(node) == said


def test_heads_by_a_view_alone_are_told_and_those_of_torchs_attention_are_not():
    model = nn.Linear(6, 8)
    h = model(X[:10].view(2, 5, 6))
    (row,) = of("view", h.view(2, 4, 5, 2).sum(), model)
    assert (row["of"], row["shape"], row["layer"]) == ("2x5x8", "2x4x5x2", "weight")
    heads = h.view(2, 5, 4, 2).transpose(1, 2)
    assert of("view", heads.sum(), model) == []
    assert of("view", heads.transpose(1, 2).reshape(2, 5, 8).sum(), model) == []
    assert len(of("view", heads.contiguous().exp().view(2, 5, 8).sum(), model)) == 1  # joined without turning back
    for batch, length, heads in [(16, 7, 4), (8, 8, 8), (4, 8, 8), (2, 4, 4)]:
        attention = nn.MultiheadAttention(8 * heads, heads)
        x = torch.randn(length, batch, 8 * heads)
        assert of("view", attention(x, x, x)[0].sum(), attention) == []


@pytest.mark.parametrize(
    ("before", "after", "mixes"),
    [
        ((24, 16), (16, 24), True),  # time before batch, by a view
        ((5, 28, 28, 3), (5, 3, 28, 28), True),  # channels last
        ((4, 9, 32), (4, 8, 9, 4), True),  # heads
        ((2, 64, 24), (64, 48), True),  # both directions of a recurrence
        ((100, 50), (50, 100), False),  # frames, two by two
        ((16, 64), (64, 16), False),  # heads of a batch as large as a head
        ((8, 3, 6, 6), (8, 108), False),
        ((96, 5), (8, 12, 5), False),
        ((16, 1, 32), (16, 32), False),
        ((), (1, 1), False),
        ((0, 4), (4, 0), False),
    ],
)
def test_axes_that_change_places_are_told_from_those_that_split_and_join(before, after, mixes):
    assert reorders(before, after) == mixes


@pytest.mark.parametrize(
    ("seen", "mixes"),
    [
        (lambda x: x.view(64, 6, 40), True),
        (lambda x: x[8:40].reshape(32, 6, 40), True),  # a batch that is cut out of more
        (lambda x: x.transpose(1, 2), False),
        (lambda x: x.transpose(1, 2).contiguous(), False),
        (lambda x: x.flatten().view(64, 40, 6).transpose(1, 2), False),
    ],
)
def test_a_batch_that_was_viewed_in_another_order_before_any_weights(seen, mixes):
    model = nn.Conv1d(6, 4, 5)
    batch = torch.randn(64, 40, 6)
    found = of("view", model(seen(batch)).sum(), model)
    assert [(row["of"].split("x", 1)[1], row["layer"]) for row in found] == [("40x6", "weight")] * mixes


def test_windows_that_are_cut_from_a_batch_are_rows_of_rows():
    model = nn.Linear(32 * 8, 1)
    assert of("view", model(torch.randn(32, 64, 8).view(-1, 32 * 8)).sum(), model) == []


def test_no_splitting_and_joining_is_taken_for_a_mixture():
    draw = random.Random(0)
    for _ in range(3_000):
        parts = [draw.choice([1, 2, 3, 4, 5, 7, 8, 16]) for _ in range(draw.randint(1, 6))]
        assert not reorders(joined(parts, draw), joined(parts, draw), arranged=True), parts


def joined(parts, draw):
    """Neighbours multiplied here and there."""
    out = [parts[0]]
    for n in parts[1:]:
        if draw.random() < 0.5:
            out[-1] *= n
        else:
            out.append(n)
    return tuple(out)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU])
def test_of_the_operands_of_a_recurrence_the_weight_is_named_and_not_its_bias(kind):
    net = kind(3, 4, batch_first=True)
    names = {id(p): name for name, p in net.named_parameters()}
    loss = net(torch.randn(2, 5, 3))[0].square().mean()
    described = LossGraph(loss, names).described()
    ends = {row["layer"] for row in described if row.get("operations", "").endswith("Addmm")}
    assert (ends, {row["layer"] for row in described if row["what"] == "input"}) == ({"weight_hh_l0"}, {"weight_ih_l0"})


def test_an_instance_norm_is_no_batch_norm_of_one_row():
    def norms(norm):
        net = nn.Sequential(nn.Conv2d(1, 4, 1), norm)
        names = {id(p): name for name, p in net.named_parameters()}
        rows = LossGraph(net(torch.randn(6, 1, 5, 5)).square().mean(), names).described()
        return [row["shape"] for row in rows if row["what"] == "batch_norm"]

    assert norms(nn.InstanceNorm2d(4, affine=True)) == []
    assert norms(nn.BatchNorm2d(4)) == ["6x4x5x5"]


def test_below_an_attention_stands_the_weight_of_its_projection_and_not_the_bias():
    """For batches of rows, torch adds the bias behind the product."""
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(3, 5, 8)
    rows = of("softmax", model(x.transpose(0, 1).contiguous().transpose(0, 1), x, x, need_weights=True)[0].sum(), model)
    assert [row["layer"] for row in rows] == ["in_proj_weight"]

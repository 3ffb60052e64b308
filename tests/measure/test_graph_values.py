"""What a loss's graph shows of the model inside, by numbers that are taken from the outputs themselves."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gradwatch.measure.graph_nodes import is_plain
from gradwatch.measure.graph_values import MOST_EXAMPLES
from gradwatch.measure.loss_graph import LossGraph

pytestmark = pytest.mark.skipif(
    is_plain(torch.ones(1, requires_grad=True).exp().grad_fn._raw_saved_result) is None,
    reason="this torch does not tell whether what it keeps for backward is under hooks",
)
B, T, D = 64, 10, 16


def seen(loss, model):
    names = {id(p): name for name, p in model.named_parameters()}
    found = LossGraph(loss, names).values([*names.values()])
    assert all(value.dim() == 0 and not value.requires_grad for value in found.values())
    return {name.removeprefix("in_loss/"): float(value) for name, value in found.items()}


def batch(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """A tanh, a ReLU and a sigmoid at the end, whose outputs it keeps."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(6, 10), nn.Linear(10, 5), nn.Linear(5, 1)
        with torch.no_grad():
            self.first.weight.mul_(20)
            self.second.bias[:2] = -100
            self.last.bias.fill_(9)

    def forward(self, x):
        self.tanh = self.first(x).tanh()
        self.relu = self.second(self.tanh).relu()
        self.sigmoid = self.last(self.relu).sigmoid()
        return self.sigmoid


def test_where_the_non_linearities_are_flat():
    net = Net()
    found = seen(F.mse_loss(net(batch(B, 6)), torch.zeros(B, 1)), net)
    slope = net.sigmoid.detach() * (1 - net.sigmoid.detach())
    mean_square = net.relu.detach().square().mean()
    assert found == pytest.approx(
        {
            "saturated": float((1 - net.tanh.detach().square() < 0.01).float().mean()), "layer_of/saturated": 0,
            "dead": 0.4, "layer_of/dead": 2,
            "end_saturated": float((slope < 0.0025).float().mean()), "layer_of/end_saturated": 4,
            "input_rms": float(batch(B, 6).square().mean().sqrt()), "layer_of/input_rms": 0,
            "end_alike": float(net.relu.detach().mean(0).square().mean() / mean_square), "layer_of/end_alike": 4,
        },
        abs=1e-6,
    )  # fmt: skip
    assert 0.5 < found["saturated"] < 1
    assert found["end_saturated"] > 0.9


class Attention(nn.Module):
    def __init__(self, scale, how):
        super().__init__()
        torch.manual_seed(0)
        self.scale, self.how = scale, how
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, 4)

    def forward(self, x):
        q, k, v = (t.view(B, T, 2, 8).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        later = torch.ones(T, T).triu(1).bool()
        logits = (q @ k.transpose(-1, -2)) * self.scale
        logits = logits if "open" in self.how else logits.masked_fill(later, -1e9)
        self.p = logits.softmax(-1)
        masks = {"causal": {"is_causal": True}, "mask": {"attn_mask": ~later}, "open": {}}
        y = self.p @ v
        if not self.how.startswith("written out"):
            y = F.scaled_dot_product_attention(q, k, v, scale=self.scale, **masks[self.how])
        return self.out(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("how", ["written out", "causal", "mask"])
@pytest.mark.parametrize("scale", [8**-0.5, 20.0])
def test_how_certain_an_attention_is(how, scale):
    net = Attention(scale, how)
    found = seen(net(batch(B, T, D)).square().mean(), net)
    few = net.p if how == "written out" else net.p[:: B // MOST_EXAMPLES]
    several = few[..., 1:, :]  # the first query has one key
    assert found["certain"] == pytest.approx(float((several.amax(-1) > 0.9975).float().mean()), abs=0.08)
    assert (found["certain"] > 0.5) == (scale == 20.0)
    assert found["layer_of/certain"] == 0


@pytest.mark.parametrize("how", ["written out", "causal", "mask", "written out, open", "open"])
def test_whether_an_attention_looks_ahead(how):
    net = Attention(1.0, how)
    found = seen(net(batch(B, T, D).requires_grad_()).square().mean(), net)
    back = net.p.detach().tril().sum() / net.p.detach().sum() if "open" in how else 1
    assert found["causal"] == pytest.approx(float(back), abs=0.05)
    assert (found["causal"] < 0.8) == ("open" in how)
    both = nn.ModuleList([Attention(1.0, "open"), Attention(1.0, "mask")])  # of an encoder, and of a decoder
    assert seen(sum(net(batch(B, T, D).requires_grad_()) for net in both).square().mean(), both)[
        "causal"
    ] == pytest.approx(1)


def test_of_an_attention_over_something_else_it_is_not_asked():
    net, other = Attention(1.0, "written out, open"), nn.Linear(D, D)
    x = batch(B, T, D).requires_grad_()
    q, k = net.qkv(x).chunk(3, -1)[0], net.qkv(other(x)).chunk(3, -1)[1]
    assert "causal" not in seen(((q @ k.mT).softmax(-1) @ net.out(x)).square().mean(), net)


def of_a_book(way, n=96):
    torch.manual_seed(0)
    net = nn.ModuleDict({"enc": nn.Linear(6, 4), "dec": nn.Linear(4, 6), "book": nn.Embedding(64, 4)})
    x, book = batch(n, 6), net["book"]
    z = net["enc"](x)
    chosen = torch.cdist(z, book.weight).argmin(1)
    ways = {
        "embedding": lambda: book(chosen),
        "index": lambda: book.weight[chosen],
        "index_select": lambda: book.weight.index_select(0, chosen),
    }
    codes = ways[way]()
    loss = F.mse_loss(net["dec"](z + (codes - z).detach()), x)
    return net, loss, (codes - z.detach()).square().mean(), len(chosen.unique()) / 64


@pytest.mark.parametrize("way", ["embedding", "index", "index_select"])
def test_which_share_of_a_book_of_codes_is_used(way):
    net, loss, of_codes, share = of_a_book(way)
    found = seen(loss + of_codes, net)
    assert (found["codes_used"], found["layer_of/codes_used"]) == (share, 4)
    assert "codes_used" not in seen(loss, net), "the loss is not taken of the codes"
    net, loss, of_codes, _ = of_a_book(way, n=63)  # fewer than there are codes
    assert "codes_used" not in seen(loss + of_codes, net)


def test_rows_that_go_through_weights_are_no_codes():
    net = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 1))
    assert "codes_used" not in seen(net(torch.arange(B) % 5).square().mean(), net)


@pytest.mark.parametrize("way", ["gather", "index", "nll", "distribution", "stacked", "ratio", "clipped ratio"])
def test_what_choices_are_weighed_by(way):
    net, x, chosen = nn.Linear(6, 4), batch(20, 6), torch.arange(20) % 4
    weight, old = 100 + batch(20), -1.4 * torch.ones(20)
    log_p = net(x).log_softmax(1)

    def ratio():
        return torch.exp(torch.distributions.Categorical(logits=net(x)).log_prob(chosen) - old)

    ways = {
        "gather": lambda: weight * -log_p.gather(1, chosen[:, None]).squeeze(1),
        "index": lambda: -log_p[torch.arange(20), chosen] * weight,
        "nll": lambda: F.cross_entropy(net(x), chosen, reduction="none") * weight,
        "distribution": lambda: -torch.distributions.Categorical(logits=net(x)).log_prob(chosen) * weight,
        "ratio": lambda: (log_p.gather(1, chosen[:, None])[:, 0] - old).exp() * weight,
        "clipped ratio": lambda: torch.min(ratio() * weight, ratio().clamp(0.8, 1.2) * weight),
        "stacked": lambda: (
            torch.stack([-log_p[i : i + 1].gather(1, chosen[i : i + 1, None])[0, 0] for i in range(20)]) * weight
        ),
    }
    found = seen(ways[way]().mean(), net)
    of_all = float(weight.mean()), float(weight.std(correction=0))
    assert (found["advantage_mean"], found["advantage_std"]) == pytest.approx(of_all, rel=1e-4)
    assert "advantage_mean" not in seen(3 * F.cross_entropy(net(x), chosen), net)
    assert "advantage_mean" not in seen((weight[:, None] * net(x)).mean(), net)  # no choices
    assert "advantage_mean" not in seen((weight * (net(x)[:, 0] - old).exp()).mean(), net)


@pytest.mark.parametrize("drop", [F.dropout, lambda x, p: torch.native_dropout(x, p, True)[0]])  # as CUDA's kernel does
def test_what_a_dropout_drops(drop):
    net, x = nn.Sequential(nn.Linear(6, 64), nn.Linear(64, 1)), batch(B, 6)
    for p in (0.1, 0.9):
        torch.manual_seed(0)
        found = seen(net[1](drop(net[0](x), p)).square().mean(), net)
        assert (found["dropped_out"], found["layer_of/dropped_out"]) == (pytest.approx(p, abs=0.02), 0)
    masked = seen(net[1](net[0](x) * (x[:, :1] > 0).float()).square().mean(), net)  # a mask is no dropout
    assert torch.tensor(masked["dropped_out"]).isnan()


def test_of_what_is_the_same_for_every_example():
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 1))
    with torch.no_grad():
        net[0].weight.mul_(1e-4)
    assert seen(net(batch(B, 6)).square().mean(), net)["end_alike"] > 0.999
    assert "end_alike" not in seen(net(batch(8, 6)).square().mean(), net)  # of too few examples nothing is said


def test_units_of_a_convolution_are_its_channels():
    net = nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Conv1d(4, 1, 3))
    with torch.no_grad():
        net[0].bias[0] = -100
    assert seen(net(batch(B, 3, 12)).square().mean(), net)["dead"] == 0.25


def test_what_is_kept_in_another_way_is_not_fetched():
    net, fetched, calls = Net(), [], []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: (fetched.append(1), t)[1]):
        loss = net(batch(B, 6)).square().mean()
    assert (seen(loss, net), fetched) == ({}, [])
    called = checkpoint(lambda x: (calls.append(1), net(x))[1], batch(B, 6).requires_grad_(), use_reentrant=False)
    assert (seen(called.square().mean(), net), len(calls)) == ({}, 1)
    reader = Attention(1.0, "causal")
    called = checkpoint(lambda x: (calls.append(1), reader(x))[1], batch(B, T, D).requires_grad_(), use_reentrant=False)
    assert (seen(called.square().mean(), reader), len(calls)) == ({}, 2)


def test_a_look_changes_nothing():
    grads = []
    for look in (True, False):
        net = Net()
        loss = F.mse_loss(net(batch(B, 6)), torch.ones(B, 1))
        if look:
            assert seen(loss, net)
        loss.backward()
        grads.append([p.grad for p in net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_what_was_written_to_is_still_refused_by_torch():
    net = Net()
    loss = net(batch(B, 6)).square().mean()
    net.tanh.detach().mul_(2)
    assert "saturated" not in seen(loss, net)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_size_of_what_weights_are_given():
    net = Net()
    assert seen(net(7 * batch(B, 6)).mean(), net)["input_rms"] == pytest.approx(7 * batch(B, 6).square().mean().sqrt())
    text = nn.Sequential(nn.Embedding(5, 6), nn.Linear(6, 2))
    assert "input_rms" not in seen(text(torch.arange(5).repeat(8)).mean(), text), "a table gives it, no batch"


def test_of_products_at_the_end_the_softmax_is_inside():
    """An attention whose values are no weights: what its softmax says is read, and not the answer itself."""
    asks = nn.Linear(6, 6)
    keys, values = batch(9, 6), batch(9, 3)
    read = (100 * asks(batch(B, 6)) @ keys.T).softmax(-1)
    assert seen((read @ values).square().mean(), asks)["certain"] > 0.9
    assert seen((read[..., None] * asks(values.repeat(1, 2))).sum(1).square().mean(), asks)["certain"] > 0.9
    assert "certain" not in seen(read.square().mean(), asks)


# ------------------------------------------------------- what somebody broke: samples in step with the data, odd graphs


def test_rows_of_an_attention_are_not_sampled_in_step_with_its_queries():
    asks = nn.Linear(8, 8)
    x = asks(batch(8, 8, 256, 8))
    logits = (x @ x.transpose(-1, -2)).masked_fill(torch.ones(256, 256).triu(1).bool(), -torch.inf)
    assert seen(((0.1 * logits).softmax(-1) @ x).square().mean(), asks)["certain"] == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("fused", [True, False])
def test_queries_that_have_one_key_are_not_certain(fused):
    asks = nn.Linear(8, 8)
    x = asks(batch(4, 1, T, 8))
    alone = torch.full((T,), torch.finfo(torch.float32).min).index_fill(0, torch.tensor([0]), 0.0)
    if fused:
        y = F.scaled_dot_product_attention(x, x, x, attn_mask=alone.expand(4, 1, T, T))
    else:
        y = (x @ x.transpose(-1, -2) + alone).softmax(-1) @ x
    assert seen(asks(y).square().mean(), asks)["certain"] != seen(asks(y).square().mean(), asks)["certain"]  # NaN


def test_examples_are_not_sampled_in_step_with_the_tokens_of_a_row():
    table, head = nn.Embedding(50, 512), nn.Linear(512, 4)
    tokens = torch.randint(1, 50, (128, 64), generator=torch.Generator().manual_seed(2))
    tokens[:, 0] = 0  # the same at the start of each
    net = nn.ModuleList([table, head])
    x = table(tokens)
    exact = x.detach().flatten(0, 1)
    exact = float(exact.mean(0).square().mean() / exact.square().mean())
    assert seen(head(x).square().mean(), net)["end_alike"] == pytest.approx(exact, abs=0.05)


def test_pixels_are_not_sampled_in_step_with_the_rows_of_an_image():
    net = nn.Sequential(nn.Conv2d(1, 64, 3, padding=1, bias=False), nn.ReLU(), nn.Conv2d(64, 1, 1))
    x = batch(64, 1, 64, 64)
    x[..., :8] = x[..., -8:] = 0
    x[..., :8, :] = x[..., -8:, :] = 0
    assert seen(net(x).square().mean(), net)["dead"] < 0.05
    line = nn.Linear(64 * 64 * 3, 1)
    x = batch(64, 64, 64, 3) * torch.tensor([1.0, 1.0, 100.0])
    want = float(x.square().mean().sqrt())
    assert seen(line(x.flatten(1)).square().mean(), line)["input_rms"] == pytest.approx(want, rel=0.1)


def test_units_behind_a_sum_of_convolutions_are_channels_and_of_moved_axes_nothing_is_said():
    net = nn.Sequential(nn.Conv1d(6, 6, 1), nn.Linear(6, 1))
    with torch.no_grad():
        net[0].weight[3:] = 0
        net[0].bias[3:] = -100
    x = batch(B, 6, 20)
    added = (net[0](x) + net[0](x).tanh()).relu()
    assert seen(net[1](added.mean(2)).square().mean(), net)["dead"] == 0.5
    turned = net[0](x).transpose(1, 2).relu()
    assert "dead" not in seen(net[1](turned).square().mean(), net)


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_a_sparse_operand_is_left_alone(layout):
    net = nn.Linear(6, 4)
    graph = getattr((batch(B, B) > 1).float(), layout)()
    found = seen(F.cross_entropy(graph @ net(batch(B, 6)), torch.zeros(B, dtype=torch.long)), net)
    assert found["input_rms"] == pytest.approx(1, abs=0.2)


def test_what_a_second_backward_is_given_is_no_data():
    net = Net()
    x = batch(B, 6).requires_grad_()
    (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    assert "input_rms" not in seen(slope.square().mean(), net)


def test_weights_that_are_hidden_end_the_way_from_the_loss():
    net, head = nn.Sequential(nn.Linear(6, 5), nn.Sigmoid()), nn.Linear(5, 1).requires_grad_(False)
    with torch.no_grad():
        net[0].bias.fill_(50.0)
    found = seen(head(net(batch(B, 6))).square().mean(), net)
    assert found["saturated"] == 1
    assert not {"end_saturated", "end_alike"} & {*found}


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Addmm(Softmax):
    """It has one operand, where torch's own has three."""


def test_odd_graphs_are_looked_at_as_far_as_they_go():
    net = nn.Linear(6, 5)
    names = {id(p): name for name, p in net.named_parameters()}
    loss = Addmm.apply(net.weight.exp()).sum()
    assert seen(loss, net) == {}
    assert LossGraph(loss, names).described()
    loss = Softmax.apply(net(batch(B, 6))).square().mean()
    assert not [row for row in LossGraph(loss, names).described() if row["what"] == "softmax"]
    assert seen(loss, net)["input_rms"] > 0
    trunk = net(batch(B, 6)).tanh()
    torch.autograd.grad(trunk.sum(), net.weight)
    assert "saturated" not in seen(trunk.clone().square().mean(), net), "it is freed"
    complex_net = nn.Linear(6, 5, dtype=torch.complex64)
    assert seen(complex_net(batch(B, 6).to(torch.complex64)).abs().mean(), complex_net) == {}
    first_nan = seen((net(batch(B, 6) * torch.nan).sigmoid() + net(batch(B, 6)).sigmoid()).mean(), net)
    assert first_nan["end_saturated"] == 0

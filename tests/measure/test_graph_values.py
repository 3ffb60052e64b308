"""What a loss's graph shows of the model inside, by numbers that are taken from the outputs themselves."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gradwatch.measure.graph_values import MOST_EXAMPLES
from gradwatch.measure.loss_graph import LossGraph
from gradwatch.measure.loss_targets import is_plain

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
        self.p = logits.masked_fill(later, -1e9).softmax(-1)
        masks = {"causal": {"is_causal": True}, "mask": {"attn_mask": ~later}}
        y = self.p @ v
        if self.how != "written out":
            y = F.scaled_dot_product_attention(q, k, v, scale=self.scale, **masks[self.how])
        return self.out(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("how", ["written out", "causal", "mask"])
@pytest.mark.parametrize("scale", [8**-0.5, 20.0])
def test_how_certain_an_attention_is(how, scale):
    net = Attention(scale, how)
    found = seen(net(batch(B, T, D)).square().mean(), net)
    few = net.p if how == "written out" else net.p[:: B // MOST_EXAMPLES]
    several = few[..., 1:, :]  # the first query has one key
    assert found["certain"] == pytest.approx(float((several.amax(-1) > 0.9975).float().mean()), abs=0.01)
    assert (found["certain"] > 0.5) == (scale == 20.0)
    assert found["layer_of/certain"] == 0


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
    for look in (lambda: seen(loss, net), loss.backward):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            look()


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

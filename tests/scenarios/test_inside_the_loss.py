"""What the losses that are looked at show of the model inside, without any switch; beside each its healthy twin."""

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F
from trainings import blobs, fit

from gradwatch.analysis.rules import diagnose
from gradwatch.measure.loss_targets import is_plain

pytestmark = pytest.mark.skipif(
    is_plain(torch.ones(1, requires_grad=True).exp().grad_fn._raw_saved_result) is None,
    reason="this torch does not tell whether what it keeps for backward is under hooks",
)
WIDTH, LENGTH, TOKENS = 32, 12, 16


class Reader(nn.Module):
    """Says the token some places behind the one that it is asked for; `scale` multiplies the attention's logits."""

    def __init__(self, scale):
        super().__init__()
        torch.manual_seed(0)
        self.scale = scale
        self.table, self.place = nn.Embedding(TOKENS, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens):
        x = self.table(tokens) + self.place
        q, k, v = self.qkv(x).chunk(3, -1)
        y = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], scale=self.scale)[:, 0]
        return self.out(x + y)


def reader(folder, scale=WIDTH**-0.5, rate=3e-3, steps=120, noise=0.0, behind=1):
    """`noise` is the share of the answers that are drawn by lot, the others are the tokens so many places `behind`."""
    model = Reader(scale)
    generator = torch.Generator().manual_seed(1)

    def loss_of(step):
        tokens, lots = torch.randint(TOKENS, (2, 32, LENGTH), generator=generator)
        by_lot = torch.rand(32, LENGTH, generator=generator) < noise
        answers = torch.where(by_lot, lots, tokens.roll(-behind, 1))
        return F.cross_entropy(model(tokens).flatten(0, 1), answers.flatten())

    return fit(folder, model, optim.Adam(model.parameters(), rate), loss_of, steps)


def roots(history):
    return {finding.rule: finding for finding in diagnose(history) if finding.severity != "note"}


def test_an_attention_whose_logits_are_not_scaled_down(tmp_path):
    found = roots(reader(tmp_path / "ill", scale=30.0, behind=2))  # of the next one it would be `future-seen`
    assert [*found] == ["attention-collapsed"]
    assert (found["attention-collapsed"].layers, found["attention-collapsed"].first_step) == (("qkv.weight",), 0)
    assert roots(reader(tmp_path / "well", behind=2)) == {}


def test_an_attention_that_the_first_steps_shut(tmp_path):
    """A reader of noise, which its attention does not help: the twin of one that is right to be sure."""
    found = roots(reader(tmp_path / "ill", rate=0.1, noise=0.5))
    assert [*found] == ["lr-too-high"]
    assert found["lr-too-high"].evidence["certain_at_first"] < 0.1
    assert "give all to one at `qkv.weight`" in found["lr-too-high"].cause
    assert roots(reader(tmp_path / "well", rate=0.05, noise=0.5)) == {}


@pytest.mark.parametrize(("bias", "rules"), [(-12.0, ["saturated"]), (0.0, [])])
def test_an_output_that_begins_where_its_sigmoid_is_flat(bias, rules, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    with torch.no_grad():
        model[2].bias.fill_(bias)
    batch_of = blobs(batch=32)

    def loss_of(step):
        x, y = batch_of(step)
        return F.mse_loss(model(x).sigmoid(), F.one_hot(y, 4).float())

    found = roots(fit(tmp_path, model, optim.SGD(model.parameters(), 0.5, momentum=0.9), loss_of, 150))
    assert [*found] == rules
    if rules:
        assert found["saturated"].layers == ("2.weight",)


@pytest.mark.parametrize("mixed", [True, False])
def test_a_last_layer_that_is_given_the_same_for_every_example(mixed, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    batch_of = blobs(batch=64)

    def loss_of(step):
        x, y = batch_of(step)
        hidden = model[:2](x)
        hidden = hidden.mean(0, keepdim=True).expand_as(hidden) if mixed else hidden
        return F.cross_entropy(model[2](hidden), y)

    found = roots(fit(tmp_path, model, optim.Adam(model.parameters(), 3e-3), loss_of, 200))
    assert [*found] == (["no-progress"] if mixed else [])
    if mixed:
        assert "`2.weight` is given is the same for every example" in found["no-progress"].cause


@pytest.mark.parametrize(("scale", "gain", "rules"), [(100.0, 1.0, ["inputs-not-normalised"]), (1.0, 60.0, [])])
def test_large_inputs_are_told_from_what_else_makes_gradients_large(scale, gain, rules, tmp_path):
    """The first is given numbers in the hundreds, the second weights that begin far too large."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    with torch.no_grad():
        for layer in model[::2]:
            layer.weight.mul_(gain)
    batch_of = blobs(batch=32)

    def loss_of(step):
        x, y = batch_of(step)
        return F.cross_entropy(model(scale * x), y)

    found = roots(fit(tmp_path, model, optim.Adam(model.parameters(), 1e-3), loss_of, 120))
    assert ("inputs-not-normalised" in found) == bool(rules)
    assert found, "the other one has a name, too"


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("between", [True, False])
def test_gradients_that_are_wiped_between_backward_and_step(between, to_none, tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(16, 4)
    batch_of = blobs(batch=32)

    def loss_of(step):
        model.zero_grad()
        return F.cross_entropy(model(batch_of(step)[0]), batch_of(step)[1])

    def wipe(step):
        if between:
            model.zero_grad(set_to_none=to_none)

    found = roots(fit(tmp_path, model, optim.Adam(model.parameters(), 1e-2), loss_of, 60, wipe))
    assert [*found] == (["no-gradient"] if between else [])
    if between:
        assert found["no-gradient"].alternatives == ()
        assert "zero_grad() stands between backward() and step()" in found["no-gradient"].cause


@pytest.mark.parametrize("padded", [True, False])
def test_a_state_that_is_read_behind_the_padding(padded, tmp_path):
    torch.manual_seed(0)
    model = nn.ModuleDict({"rnn": nn.RNN(4, 16, batch_first=True), "head": nn.Linear(16, 2)})
    generator = torch.Generator().manual_seed(1)

    def loss_of(step):
        x = torch.randn(32, 6, 4, generator=generator)
        y = (x[:, :, 0].sum(1) > 0).long()
        x = torch.cat([x, torch.zeros(32, 60 if padded else 0, 4)], dim=1)
        return F.cross_entropy(model["head"](model["rnn"](x)[0][:, -1]), y)

    found = roots(fit(tmp_path, model, optim.Adam(model.parameters(), 3e-3), loss_of, 150))
    assert [*found] == (["padding-read-as-data"] if padded else [])
    if padded:
        faded = found["padding-read-as-data"].consequences[0]
        assert (faded.rule, faded.layers) == ("vanishing", ("rnn.weight_ih_l0",))

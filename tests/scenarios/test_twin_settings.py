"""One setting apart: a mistake that a record shows, and the same training without it, of which nothing is said."""

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F
from trainings import blobs, fit

from gradwatch.analysis.rules import diagnose


def roots(history):
    return [finding for finding in diagnose(history) if finding.severity != "note"]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def entropy(model, size=32):
    batch_of = blobs(batch=size)

    def loss_of(step):
        x, y = batch_of(step)
        return F.cross_entropy(model(x), y)

    return loss_of


@pytest.mark.parametrize("each", [True, False])
def test_a_clip_for_each_micro_batch(each, tmp_path):
    model = net()
    loss_of = entropy(model)

    def clip(bound=0.01):
        nn.utils.clip_grad_norm_(model.parameters(), bound)

    def last_part(step):
        for part in range(3):
            (loss_of(1000 + 3 * step + part) / 4).backward()
            if each:
                clip()
        return loss_of(step) / 4

    history = fit(tmp_path, model, optim.SGD(model.parameters(), 0.5), last_part, 120, lambda step: clip())
    found = {finding.rule: finding for finding in diagnose(history)}
    assert ("double-clip" in found) == each
    if each:
        assert found["double-clip"].severity == "warning"
        assert "before the gradients of all micro-batches are there" in found["double-clip"].cause
        assert "clip-is-your-learning-rate" not in found, "the coefficient of the last clip is not that of the step"


@pytest.mark.parametrize("temperature", [0.001, 0.1])
def test_cosines_over_a_temperature(temperature, tmp_path):
    torch.manual_seed(0)
    body, kinds = nn.Linear(16, 32), nn.Parameter(torch.randn(8, 32))
    model = nn.ParameterDict({"weight": body.weight, "bias": body.bias, "kinds": kinds})
    x, y = torch.randn(64, 16), torch.randint(8, (64,))

    def loss_of(step):
        cosines = F.normalize(body(x), dim=1) @ F.normalize(kinds, dim=1).T
        return F.cross_entropy(cosines / temperature, y)

    history = fit(tmp_path, model, optim.Adam(model.parameters(), 1e-3), loss_of, 120)
    assert [(finding.rule, finding.severity) for finding in roots(history)] == (
        [("bad-initialisation", "warning")] if temperature < 0.01 else []
    )


@pytest.mark.parametrize("decay", [20.0, 0.01])
def test_a_decay_of_the_gains_and_the_table_alone(decay, tmp_path):
    torch.manual_seed(0)
    table, norm, last = nn.Embedding(20, 16), nn.LayerNorm(16), nn.Linear(16, 20)
    model = nn.ModuleDict({"table": table, "norm": norm, "last": last})
    small, large = [*table.parameters(), *norm.parameters()], [*last.parameters()]
    groups = [{"params": small, "weight_decay": decay}, {"params": large, "weight_decay": 0.01}]
    tokens = torch.randint(20, (64,))

    def loss_of(step):
        return F.cross_entropy(last(norm(table(tokens))), (tokens * 7 + 3) % 20)

    found = roots(fit(tmp_path, model, optim.AdamW(groups, 4e-3), loss_of, 200))
    assert [finding.rule for finding in found] == (["weights-shrink"] if decay > 1 else [])
    for finding in found:
        assert set(finding.layers) == {"table.weight", "norm.weight"}
        assert finding.evidence["weight_decay"] == decay


@pytest.mark.parametrize("gamma", [100.0, 0.1])
def test_a_schedule_that_raises_the_rate_where_it_was_to_lower_it(gamma, tmp_path):
    model = net()
    optimizer = optim.Adam(model.parameters(), 0.01)
    plan = optim.lr_scheduler.MultiStepLR(optimizer, [150], gamma)
    loss_of = entropy(model)

    def planned(step):
        if step:
            plan.step()
        return loss_of(step)

    found = roots(fit(tmp_path, model, optimizer, planned, 300))
    assert [finding.rule for finding in found] == (["lr-too-high"] if gamma > 1 else [])
    for finding in found:
        assert finding.first_step == 150, "it begins with the step of the schedule, and a spike stands under it"
        assert "the schedule raised the learning rate from 0.01 to 1" in finding.cause


class Signs(nn.Linear):
    """Uses the signs of its weights, whose gradient is 0, or is passed `straight` through."""

    straight = False

    def forward(self, x):
        signs = self.weight.sign()
        return F.linear(x, self.weight + (signs - self.weight).detach() if self.straight else signs, self.bias)


@pytest.mark.parametrize("straight", [False, True])
def test_weights_of_which_the_signs_alone_are_used(straight, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(Signs(16, 32), nn.ReLU(), nn.Linear(32, 4))
    model[0].straight = straight
    history = fit(tmp_path, model, optim.Adam(model.parameters(), 0.01), entropy(model), steps=80)
    found = [finding for finding in roots(history) if finding.rule == "dead-layer"]
    assert [each.layers for each in found] == ([] if straight else [("0.weight",)])
    assert all("has no slope" in each.cause for each in found)


@pytest.mark.parametrize("detached", [False, True])
def test_a_ratio_to_old_log_probabilities_that_kept_their_graph(detached, tmp_path):
    model = net()
    draw = torch.Generator().manual_seed(0)

    def loss_of(step):
        x = torch.randn(64, 16, generator=draw)
        said = model(x).log_softmax(1)
        chosen = torch.multinomial(said.exp(), 1, generator=draw)
        logp = said.gather(1, chosen)[:, 0]
        won = (chosen[:, 0] == x[:, 0].gt(0)).float() - 0.5
        ratio = (logp - (logp.detach() if detached else logp)).exp()
        return -(ratio * won).mean() + 0.01 * (said.exp() * said).sum(1).mean()

    history = fit(tmp_path, model, optim.Adam(model.parameters(), 3e-3), loss_of, steps=120)
    found = [finding for finding in roots(history) if finding.rule == "no-gradient"]
    assert ["taken off itself" in str(each.evidence["missing"]) for each in found] == ([] if detached else [True])

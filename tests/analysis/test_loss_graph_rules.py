"""What the graph of a loss is judged to be: each mistake beside losses that look like it and are meant."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from make_run import changed, make_history
from torch import nn
from torch.nn import functional as F

from gradwatch.analysis.rules.advantages import policy_loss_trains_critic, target_not_detached
from gradwatch.analysis.rules.axes_mixed import axes_mixed
from gradwatch.analysis.rules.broadcast import shapes_broadcast
from gradwatch.analysis.rules.far_beginning import of_a_sum
from gradwatch.analysis.rules.layer_facts import ends_in
from gradwatch.analysis.rules.loss_graph import (
    is_of_log_probabilities,
    is_of_no_choice,
    norm_over_too_few,
    number_of_classes,
    softmax_over_the_batch,
    squashed,
    takes_logits,
    without_logarithm,
)
from gradwatch.analysis.rules.negative_loss import negative_loss
from gradwatch.analysis.rules.no_activation import no_activation
from gradwatch.analysis.rules.plateaus import rests
from gradwatch.analysis.rules.progress import progress, succeeds
from gradwatch.analysis.rules.standstill import at_chance, equal_odds
from gradwatch.measure.loss_graph import LossGraph

N, C = 16, 4
LAST = 4  # the rows of the last matrix of `make_history`
X, Y, REAL = torch.randn(N, 6), torch.arange(N) % C, torch.randn(N)
ONE, MANY = nn.Linear(6, 1), nn.Linear(6, C)
FIRST, SECOND = nn.Linear(6, 8), nn.Linear(6, 8)
SERIES, SEEN = nn.Linear(3, 1), torch.randn(N, 5, 3)  # of which each moment is weighed
PARTS = (ONE, MANY, FIRST, SECOND, SERIES)
LAYERS = {id(p): f"{i}.{name}" for i, m in enumerate(PARTS) for name, p in m.named_parameters()}


def run_of(*losses, **run):
    rows = tuple(row for loss in losses for row in LossGraph(loss, LAYERS).described())
    return make_history(3, layers=tuple(LAYERS.values()), loss_graph=rows, **run)


def column():
    return ONE(X)


def logits():
    return MANY(X)


@pytest.mark.parametrize(
    "loss",
    [
        lambda: (column() - REAL).square().mean(),
        lambda: ((REAL - column()) ** 2).sum() / N,
        lambda: (column() - REAL).abs().mean(),
        lambda: F.mse_loss(column(), REAL),
        lambda: F.smooth_l1_loss(column(), REAL),
        lambda: F.huber_loss(column(), REAL) * 65536.0,
        lambda: -(column().sigmoid().log() * REAL).mean(),  # log-probabilities against advantages
        lambda: F.mse_loss(logits().gather(1, Y[:, None]), REAL) + 0.1 * logits().square().mean(),
        lambda: torch.max((d := REAL - column()).square(), d.abs()).mean() - 0.1 * logits().square().mean(),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_column_against_a_row_is_told(loss):
    (found,) = shapes_broadcast(run_of(loss()))
    assert (found.severity, found.evidence["rows"]) == ("warning", N)


@pytest.mark.parametrize(("predictions", "said"), [(column, "predictions"), (lambda: column()[:, 0], "targets")])
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_the_cure_turns_that_of_both_which_is_the_column(predictions, said):
    targets = REAL if said == "predictions" else REAL[:, None]
    (found,) = shapes_broadcast(run_of(F.mse_loss(predictions(), targets)))
    assert f"Give both one shape: {said}.squeeze(-1), or " in found.cure


WEIGHTS = torch.rand(N)


@pytest.mark.parametrize(
    ("loss", "rows"),
    [
        (lambda: F.cross_entropy(logits(), Y, reduction="sum"), N),
        (lambda: F.cross_entropy(logits(), Y, reduction="none").sum(), N),
        (lambda: F.cross_entropy(logits(), Y, reduction="none").sum() / N, 0),
        (lambda: F.cross_entropy(logits(), Y, reduction="none").sum() * (1 / N), 0),
        (lambda: torch.dot(F.cross_entropy(logits(), Y, reduction="none"), WEIGHTS), 0),
        (lambda: torch.stack([F.cross_entropy(logits(), Y), F.cross_entropy(logits(), Y % 2)]).sum(), 0),
        (lambda: F.cross_entropy(logits(), Y), 0),
    ],
)
def test_a_sum_over_the_rows_is_why_steps_are_too_long(loss, rows):
    def far(optimizer):
        made = {"name": optimizer, "class": optimizer, "settings": {"lr": 0.1}}
        history = run_of(loss())
        return of_a_sum(replace(history, run=replace(history.run, optimizers=(made,))), "It is.", "Lower it.")

    assert far("Adam") is None  # its steps are as long whatever the loss is multiplied by
    said = far("SGD")
    assert (said is not None and f"a sum over {rows} predictions" in said[0]) == bool(rows)


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (lambda: torch.mean(F.cross_entropy(logits(), Y) * WEIGHTS), True),
        (lambda: (WEIGHTS * F.mse_loss(column()[:, 0], REAL)).sum() / N, True),
        (lambda: -(logits().log_softmax(1).gather(1, Y[:, None]).mean() * WEIGHTS).mean(), True),
        (lambda: torch.mean(F.cross_entropy(logits(), Y, reduction="none") * WEIGHTS), False),
        (lambda: torch.sum(F.cross_entropy(logits(), Y) * WEIGHTS[:3]), False),  # not one for each example
        (lambda: F.cross_entropy(logits(), Y) * WEIGHTS.mean(), False),
        (lambda: (column().exp().mean() * WEIGHTS).square().mean(), False),  # more than a sum of the products
        (lambda: torch.mean(torch.stack([column().mean()] * N) * WEIGHTS), False),
    ],
)
def test_a_mean_that_is_multiplied_by_a_number_of_each_example(loss, told):
    words = [f.cause for f in shapes_broadcast(run_of(loss()))]
    assert [f"A mean over {N} examples is multiplied by {N} numbers" in cause for cause in words] == [True] * told


IMAGES, MASKS = torch.randn(N, 2, 6, 6), (torch.rand(N, 6, 6) > 0.5).float()
CONV = nn.Conv2d(2, 1, 3, padding=1)


def of_net(net, loss):
    """A run of a model whose first loss this is."""
    params = dict(net.named_parameters())
    graph = LossGraph(loss, {id(p): name for name, p in params.items()})
    history = make_history(20, layers=tuple(params), loss_graph=tuple(graph.described()))
    layers = tuple(replace(layer, shape=tuple(params[layer.name].shape)) for layer in history.run.layers)
    return replace(history, run=replace(history.run, layers=layers))


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (lambda p: -(p * MASKS + (1 - p) * (1 - MASKS)).log().mean(), True),
        (lambda p: F.mse_loss(p, MASKS), True),
        (lambda p: (p - MASKS).abs().mean(), True),
        (lambda p: F.mse_loss(p, MASKS[:, None]), False),
        (lambda p: (p.squeeze(1) - MASKS).abs().mean(), False),
        (lambda p: (p.flatten(1)[:, None] - MASKS.flatten(1)).square().sum(2).amin(1).mean(), False),  # the nearest
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_images_of_one_channel_against_masks_without_one_are_told(loss, told):
    found = shapes_broadcast(of_net(CONV, loss(CONV(IMAGES).sigmoid())))
    assert [f.evidence["rows"] for f in found] == [N] * told
    assert not told or "[16, 1, 6, 6], the others [16, 6, 6]" in found[0].cause


def stack(*widths, between=None):
    """Layers of these widths, with something between them."""
    layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
    return nn.Sequential(*(each for layer in layers for each in (layer, between) if each is not None))


@pytest.mark.parametrize(
    ("net", "told"),
    [
        (stack(2, 8, 8, 3), 3),
        (stack(2, 8, 3), 2),
        (stack(2, 8, 8, between=nn.BatchNorm1d(8)), 2),
        (stack(2, 8, 3, between=nn.Dropout(0.5)), 2),
        (stack(2, 3), 0),
        (stack(2, 8, 3, between=nn.ReLU()), 0),
        (stack(2, 8, 8, between=nn.LayerNorm(8)), 0),
        (stack(8, 2, 8), 0),  # a linear autoencoder
    ],
)  # fmt: skip
def test_layers_with_nothing_between_them_are_told(net, told):
    out = net(torch.randn(N, net[0].in_features))
    found = no_activation(of_net(net, F.mse_loss(out, torch.zeros_like(out))))
    assert [f.evidence["layers"] for f in found] == [told] * bool(told)


class Residual(nn.Module):
    """A layer beside itself."""

    def __init__(self):
        super().__init__()
        self.own = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.own(x)


class LowRank(nn.Module):
    """A product of two factors, each `[in, out]`."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(8, 2)), nn.Parameter(torch.randn(2, 3))

    def forward(self, x):
        return x @ self.a @ self.b


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ((nn.ReLU(), LowRank()), ()),
        ((nn.ReLU(), nn.Linear(8, 24), nn.Linear(24, 3)), ("2.weight", "3.weight")),
        ((nn.ReLU(), nn.Unflatten(1, (2, 4)), nn.Linear(4, 24), nn.Linear(24, 3)), ("3.weight", "4.weight")),
        ((nn.ReLU(), nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 3)), ()),
        ((nn.ReLU(), nn.Linear(8, 4), nn.Linear(4, 3)), ()),  # a factor
        ((nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3)), ()),  # a head behind a trunk
        ((nn.ReLU(), nn.Linear(8, 8), Residual()), ()),  # which others are given too
        ((nn.ReLU(), nn.Linear(8, 24), nn.LayerNorm(24), nn.Linear(24, 3)), ()),
    ],
)
def test_two_layers_with_nothing_between_them_inside_a_model_are_told(parts, told):
    net = nn.Sequential(nn.Linear(2, 8), *parts)
    found = no_activation(of_net(net, net(torch.randn(N, 2)).square().mean()))
    assert [all(f"`{name}`" in f.cause for name in told) for f in found] == [True] * bool(told)


def test_of_a_training_that_came_apart_nothing_is_said_of_what_a_line_learns():
    net = stack(2, 8, 3)
    history = of_net(net, net(torch.randn(N, 2)).square().mean())
    assert no_activation(history)
    last = np.arange(len(history)) >= len(history) - 3
    assert no_activation(changed(history, per_step={**history.per_step, "nonfinite": last * 1.0})) == []


@pytest.mark.parametrize(
    "loss",
    [
        lambda: (column().squeeze(1) - REAL).square().mean(),
        lambda: F.mse_loss(column(), REAL[:, None]),
        lambda: F.softplus(column() - column().T).mean(),  # a ranking of all pairs
        lambda: torch.cdist(logits(), logits()).mean(),
        lambda: (FIRST(X) @ SECOND(X).T).logsumexp(1).mean(),
        lambda: -(column() - (column().exp() * (REAL[:, None] <= REAL)).sum(1, keepdim=True).log()).mean(),  # Cox
        lambda: torch.maximum(0.1 * (d := REAL - logits()[..., None]), -d).mean(),  # quantiles
        lambda: ((column() - torch.linspace(-1, 1, N)) ** 2).neg().exp().sum(1).log().mean(),  # a density by kernels
        lambda: (ONE(X[:1]) - REAL[:1]).square().mean(),  # of one row
    ],
)
def test_what_sets_all_against_all_on_purpose_is_not(loss):
    assert shapes_broadcast(run_of(loss())) == []


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (lambda: F.nll_loss(logits().log_softmax(0), Y), True),
        (lambda: ((logits().softmax(0)) * FIRST(X)[:, :C]).sum(1).square().mean(), True),  # gates
        (lambda: (SERIES(SEEN).softmax(0) * SEEN).sum((1, 2)).square().mean() + column()[:, 0].sum(), True),
        (lambda: F.cross_entropy(logits(), Y), False),
        (lambda: (SERIES(SEEN).softmax(1) * SEEN).sum((1, 2)).square().mean() + column()[:, 0].sum(), False),
        (lambda: (column().softmax(0) * FIRST(X)).sum(0).square().mean(), False),  # the instances of one bag
        (lambda: (logits().softmax(0).T @ FIRST(X)).square().mean(), False),  # several looks at one set
        (lambda: F.cross_entropy(s := FIRST(X) @ SECOND(X).T, (at := torch.arange(N))) + F.cross_entropy(s.T, at),
         False),  # both ways
        (lambda: (FIRST(X) @ SECOND(X).T).log_softmax(0).diagonal().mean(), False),
    ],
)  # fmt: skip
def test_a_softmax_over_the_rows_is_told_where_the_loss_is_of_these_rows(loss, told):
    found = softmax_over_the_batch(run_of(loss()))
    assert [len(each.alternatives) for each in found] == [2] * told


@pytest.mark.parametrize(
    ("loss", "shown"),
    [
        (lambda: F.cross_entropy(logits().softmax(1), Y), ("cross_entropy", "softmax")),
        (lambda: F.cross_entropy(logits().softmax(1).view(N, C), Y), ("cross_entropy", "softmax")),
        (lambda: F.cross_entropy(logits().tanh(), Y), ("cross_entropy", "tanh")),
        (lambda: F.nll_loss(logits().sigmoid().log_softmax(1), Y), ("cross_entropy", "sigmoid")),
        (
            lambda: F.binary_cross_entropy_with_logits(column().sigmoid(), REAL[:, None]),
            ("binary_cross_entropy_with_logits", "sigmoid"),
        ),
        (lambda: F.cross_entropy(30 * (logits() / 30).tanh(), Y), None),  # soft-capped
        (lambda: F.cross_entropy(logits().log_softmax(1), Y), None),  # twice is once
        (lambda: F.binary_cross_entropy(column().sigmoid(), Y[:, None] / C), None),
        (lambda: F.nll_loss(logits().softmax(1).log(), Y), None),
    ],
)
def test_what_is_squashed_twice_is_told_by_its_loss(loss, shown):
    found = squashed(run_of(loss()))
    assert (found and found[:2]) == shown


@pytest.mark.parametrize(
    ("loss", "shown"),
    [
        (lambda: (column()[:, 0] - REAL).abs().mean() + F.mse_loss(column()[:, 0], REAL), True),
        (lambda: F.mse_loss(column()[:, 0], REAL) + F.cross_entropy(logits(), Y), False),
        (lambda: F.mse_loss(logits().softmax(1)[:, 0], REAL), False),
    ],
)
def test_losses_of_differences_alone_are_of_no_choice(loss, shown):
    assert is_of_no_choice(run_of(loss())) == shown
    assert not is_of_no_choice(make_history(3))  # the graph is not known


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (lambda p, t: -(t * p.log() + (1 - t) * (1 - p).log()).mean(), True),
        (lambda p, t: -((t * p.log() + (1 - t) * (1 - p).log()) * REAL).mean(), False),  # weighed, as a policy's
        (lambda p, t: -(p * p.log() + (1 - p) * (1 - p).log()).mean(), False),  # an entropy
    ],
)
def test_a_cross_entropy_written_by_hand_falls_below_0_by_its_targets_alone(loss, told):
    rows = tuple(LossGraph(loss(column()[:, 0].sigmoid(), REAL * 255), LAYERS).described())
    history = make_history(60, layers=tuple(LAYERS.values()), loss_graph=rows)
    falls = changed(history, per_step={**history.per_step, "loss": np.linspace(22.0, -400.0, len(history))})
    said = [f.cause for f in negative_loss(falls)]
    assert [c for c in said if "only where a target is not between 0 and 1" in c] == said * told
    assert bool(said) >= told


def test_logits_that_go_in_as_they_are_rule_it_out():
    assert takes_logits(run_of(F.cross_entropy(logits(), Y)))
    assert takes_logits(run_of(F.cross_entropy(logits() / 0.07, Y)))
    assert takes_logits(run_of(F.cross_entropy(20 * logits(), Y)))
    assert not takes_logits(run_of(F.cross_entropy(logits().softmax(1) / 0.07, Y)))
    assert not takes_logits(run_of(F.cross_entropy(logits().tanh(), Y)))
    assert not takes_logits(run_of(column().square().mean()))
    assert not takes_logits(make_history(3))


@pytest.mark.parametrize(
    ("loss", "given"),
    [
        (lambda: F.nll_loss(logits(), Y), "what a layer gives out"),
        (lambda: F.nll_loss(logits().softmax(1), Y), "probabilities"),
        (lambda: F.nll_loss(logits()[:, :, None].softmax(1), Y[:, None]), "probabilities"),
        (lambda: F.nll_loss(logits().log_softmax(1), Y), None),
        (lambda: F.nll_loss(logits() - logits().logsumexp(1, keepdim=True), Y), None),
        (lambda: F.nll_loss((logits().softmax(1) + 1e-9).log(), Y), None),
        (lambda: F.kl_div(logits().log_softmax(1), logits().softmax(1), reduction="batchmean"), None),
        (lambda: F.kl_div(logits().log_softmax(1), torch.full((N, C), 1 / C), reduction="batchmean"), None),
    ],
)
def test_what_is_no_logarithm_is_told(loss, given):
    found = without_logarithm(run_of(loss()))
    assert (found and found[0]) == given


@pytest.mark.parametrize(
    ("rows", "size", "told"), [(2, 1, True), (2, 5, True), (2, 6, False), (3, 1, False), (1, 7, True)]
)
def test_a_batch_norm_of_two_rows_is_told_unless_their_images_are_large(rows, size, told):
    net = nn.Sequential(nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3))
    names = {id(p): name for name, p in zip(LAYERS.values(), net.parameters(), strict=False)}
    loss = net(torch.randn(rows, 1, size, size)).square().mean()
    history = make_history(3, layers=tuple(names.values()), loss_graph=tuple(LossGraph(loss, names).described()))
    assert len(norm_over_too_few(history)) == told


@pytest.mark.parametrize(("outputs", "told"), [(3, True), (8, True), (9, False)])
def test_a_layer_norm_over_the_few_outputs_of_a_loss_of_differences_is_told(outputs, told):
    net = nn.Sequential(nn.Linear(6, outputs), nn.LayerNorm(outputs))
    names = {id(p): name for name, p in net.named_parameters()}

    def found(out):
        loss = F.mse_loss(out, torch.zeros_like(out))
        rows = tuple(LossGraph(loss, names).described())
        return norm_over_too_few(make_history(3, layers=tuple(names.values()), loss_graph=rows))

    assert [f.evidence for f in found(net(X))] == [{"outputs": outputs, "norm": "layer norm"}] * told
    assert found(net(X) @ torch.ones(outputs, 2)) == []  # the norm is not the last


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda: 0.5 * (FIRST(X) @ SECOND(X).T).log_softmax(1).diagonal().mean(), True),  # the minus is not there
        (lambda: logits().log_softmax(1).gather(1, Y[:, None]).mean() + logits().log_softmax(1)[:, 0].mean(), True),
        (lambda: -(FIRST(X) @ SECOND(X).T).log_softmax(1).diagonal().mean(), False),
        (lambda: torch.mean(REAL * logits().log_softmax(1)[:, 0]), False),  # weighed by what came of it: a policy's
        (lambda: logits().log_softmax(1)[:, 0].mean() + 0.1 * logits().square().mean(), False),
    ],
)
def test_a_loss_below_0_that_is_a_mean_of_log_probabilities_has_the_wrong_sign(loss, said):
    rows = tuple(LossGraph(loss(), LAYERS).described())
    history = make_history(60, layers=tuple(LAYERS.values()), loss_graph=rows)
    assert is_of_log_probabilities(history) == said
    falls = changed(history, per_step={**history.per_step, "loss": np.linspace(-6.0, -9.0, len(history))})
    assert [f.cause.count("wrong sign") for f in negative_loss(falls)] == [1] * said
    upwards = replace(falls.run, optimizers=({"name": "SGD", "class": "SGD", "settings": {"maximize": True}},))
    assert negative_loss(replace(falls, run=upwards)) == []


SHARES = torch.full((N, C), 1 / C)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda: F.kl_div(logits().softmax(1), SHARES, reduction="batchmean"), True),
        (lambda: 4.0 * F.kl_div((logits() / 2).softmax(1), SHARES), True),
        (lambda: F.kl_div(logits().log_softmax(1), SHARES, reduction="batchmean"), False),
        (lambda: (SHARES * (SHARES.log() - logits().softmax(1).log())).sum(1).mean(), False),
        (lambda: (logits().softmax(1) * SHARES).sum(1).mean(), False),  # what is to be paid for, on average
    ],
)
@pytest.mark.parametrize("ends", [-0.4, 0.4])
def test_a_divergence_below_0_was_given_probabilities(loss, said, ends):
    rows = tuple(LossGraph(loss(), LAYERS).described())
    history = make_history(60, layers=tuple(LAYERS.values()), loss_graph=rows)
    falls = changed(history, per_step={**history.per_step, "loss": np.linspace(-0.1, ends, len(history))})
    found = [f for f in negative_loss(falls) if "kl_div is given probabilities" in f.cause]
    assert len(found) == (said and ends < 0)


@pytest.mark.parametrize(("groups", "size", "numbers"), [(16, 1, 2), (32, 1, 1), (16, 2, 0), (8, 1, 0)])
def test_a_group_norm_of_two_numbers_is_told(groups, size, numbers):
    net = nn.Sequential(nn.Conv1d(3, 32, 1), nn.GroupNorm(groups, 32))
    names = {id(p): name for name, p in net.named_parameters()}
    rows = tuple(LossGraph(net(torch.randn(N, 3, size)).square().mean(), names).described())
    found = norm_over_too_few(make_history(3, layers=tuple(names.values()), loss_graph=rows))
    assert [f.evidence for f in found] == [{"numbers": numbers}] * bool(numbers)


def test_a_view_that_mixes_axes_is_told_with_its_shapes():
    (found,) = axes_mixed(run_of(FIRST(X[:15]).view(3, 5, 8).view(3, 2, 5, 4).square().mean()))
    assert found.evidence == {"before": "[3, 5, 8]", "after": "[3, 2, 5, 4]"}
    assert axes_mixed(run_of(FIRST(X[:15]).view(3, 5, 2, 4).transpose(1, 2).square().mean())) == []


def test_what_the_graph_does_not_show_is_not_judged():
    for rule in (shapes_broadcast, softmax_over_the_batch, norm_over_too_few, axes_mixed):
        assert rule(make_history(3)) == []
    assert squashed(make_history(3)) is None


@pytest.mark.parametrize(
    ("loss", "classes", "odds"),
    [
        (lambda: F.cross_entropy(logits(), Y), C, math.log(C)),
        (lambda: F.cross_entropy(FIRST(X) @ SECOND(X).T, torch.arange(N)), N, math.log(N)),  # each pair of a batch
        (lambda: F.cross_entropy(logits()[:, :2], Y % 2), 2, math.log(2)),
        (lambda: F.cross_entropy(logits(), Y) + 0.1 * F.cross_entropy(FIRST(X), Y), None, math.log(LAST)),  # two heads
        (lambda: F.binary_cross_entropy_with_logits(FIRST(X), REAL.sigmoid()[:, None].expand(N, 8)), 2, math.log(2)),
        (lambda: F.binary_cross_entropy(column().sigmoid()[:, 0], REAL.sigmoid()), 2, math.log(2)),
        (lambda: F.mse_loss(FIRST(X), X[:, :1].expand(N, 8)), 1, math.nan),
        (lambda: F.mse_loss(FIRST(X), X[:, :1].expand(N, 8)) + logits().square().mean(), None, math.nan),
    ],
)
def test_equal_odds_are_those_of_the_loss_and_not_of_the_last_matrix(loss, classes, odds):
    history = run_of(loss())
    assert number_of_classes(history) == classes
    assert equal_odds(history) == pytest.approx(odds, nan_ok=True)


def test_a_loss_of_pairs_that_passes_the_odds_of_its_embedding_goes_on():
    """Of 16 pairs told apart by embeddings of 4 numbers; log 4 is nothing to stop at."""
    rows = tuple(LossGraph(F.cross_entropy(FIRST(X) @ SECOND(X).T, torch.arange(N)), LAYERS).described())
    noise = 0.02 * np.sin(np.arange(600) * 1.7)
    loss = math.log(LAST) + 0.6 * np.exp(-np.arange(600) / 60) + noise
    seen, blind = (
        with_loss(make_history(600, layers=tuple(LAYERS.values()), clip=None, loss_graph=graph), loss)
        for graph in (rows, ())
    )
    assert [at_chance(history, progress(history)[0]) for history in (seen, blind)] == [False, True]


@pytest.mark.parametrize(("of", "severity"), [(F.binary_cross_entropy, "note"), (F.mse_loss, "warning")])
def test_the_sigmoid_that_a_binary_cross_entropy_wants_takes_nothing_away(of, severity):
    """Of soft targets it rests at their own entropy."""
    rows = tuple(LossGraph(of(column().sigmoid()[:, 0], REAL.sigmoid()), LAYERS).described())
    kinds = {"": "Sequential", "0": "Linear", "1": "Sigmoid"}
    made = make_history(600, layers=tuple(LAYERS.values()), clip=None, logged=("loss",), loss_graph=rows, modules=kinds)
    falls = 0.27 + 0.43 * np.exp(-np.arange(600) / 20) + 0.002 * np.sin(np.arange(600) * 1.7)
    assert [found.severity for found in rests(with_loss(made, falls), 100, 500)] == [severity]


@pytest.mark.parametrize(("explained", "severity"), [(0.26, "note"), (0.05, "warning")])
def test_a_loss_that_rests_is_a_note_where_its_outputs_tell_something_of_what_is_asked_for(explained, severity):
    rows = tuple(LossGraph(F.mse_loss(column()[:, 0], REAL), LAYERS).described())
    made = make_history(600, layers=tuple(LAYERS.values()), clip=None, logged=("loss",), loss_graph=rows)
    falls = with_loss(made, 1.45 + 0.35 * np.exp(-np.arange(600) / 20) + 0.002 * np.sin(np.arange(600) * 1.7))
    looks = {"explained": explained, "targets": 64.0, "target_farthest": 3.0, "target_mean": 0.0}
    columns = {f"in_loss/{name}": np.where(np.arange(600) % 25, np.nan, value) for name, value in looks.items()}
    assert [f.severity for f in rests(changed(falls, per_step={**falls.per_step, **columns}), 100, 500)] == [severity]


def test_a_loss_that_came_down_to_equal_odds_is_no_success():
    graph = tuple(LossGraph(F.cross_entropy(logits(), Y), LAYERS).described())
    history = make_history(200, layers=tuple(LAYERS.values()), loss_graph=graph, logged=("loss",))
    for ended, succeeded in ((math.log(C), False), (0.8 * math.log(C), True)):
        entropy = np.where(np.arange(200) % 10, np.nan, ended)
        seen = changed(history, per_step={**history.per_step, "in_loss/cross_entropy": entropy})
        for rows in (1, 64):  # a sum over them
            assert succeeds(with_loss(seen, rows * (ended + 20 * 0.9 ** np.arange(200)))) == succeeded


def with_loss(history, loss):
    return changed(history, per_step={**history.per_step, "loss": loss})


# ------------------------------------------------------------------------------------------------- a policy, its critic


def of_choices(advantage):
    return -(logits().log_softmax(1).gather(1, Y[:, None])[:, 0] * advantage).mean()


def of_numbers(advantage):
    return -(torch.distributions.Normal(logits()[:, 0], 1.0).log_prob(REAL) * advantage).mean()


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda: of_choices(REAL - column()[:, 0]), 1),
        (lambda: of_choices((REAL - column()[:, 0]) / 3), 1),
        (lambda: of_numbers(REAL - column()[:, 0]), 1),
        (lambda: of_choices(REAL - column()[:, 0]) + F.mse_loss(column()[:, 0], REAL), 1),
        (lambda: of_choices(REAL - column()[:, 0].detach()) + F.mse_loss(column()[:, 0], REAL), 0),
        (lambda: of_numbers(REAL - column()[:, 0].detach()) + F.mse_loss(column()[:, 0], REAL), 0),
        (lambda: of_choices((-column()[:, 0]).exp()) + column().mean(), 0),  # weighed by how sure it is
        (lambda: of_choices(1 - column()[:, 0].sigmoid()), 0),  # by a gate
        (lambda: of_choices(REAL) * (1 - column().mean()), 0),  # a multiplier of all
    ],
)
def test_a_policy_that_pulls_at_its_critic(loss, said):
    assert len(policy_loss_trains_critic(run_of(loss()))) == said


def next_value():
    return ONE(X.flip(0))[:, 0]


def td_of_a_sequence(gamma=0.9):
    value = ONE(SEEN.new_ones(6, N, 6)).view(6, N)
    return (torch.stack([REAL + gamma * value[i + 1] - value[i] for i in range(5)]) ** 2).mean()


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda: F.mse_loss(column()[:, 0], REAL + 0.9 * next_value()), 1),
        (lambda: F.smooth_l1_loss(column()[:, 0], REAL + 0.9 * next_value()), 1),
        (lambda: (REAL + 0.9 * next_value() - column()[:, 0]).square().mean(), 1),
        (td_of_a_sequence, 1),
        (lambda: F.mse_loss(column()[:, 0], REAL + 0.9 * next_value().detach()), 0),
        (lambda: F.mse_loss(column()[:, 0], next_value()), 0),  # two views
        (lambda: F.mse_loss(column()[:, 0], REAL + 0.9 * logits()[:, 0]), 0),  # of other weights
        (lambda: torch.mean(1 + logits() - logits() ** 2 - logits().exp()), 0),  # a divergence
    ],
)
def test_a_value_whose_target_keeps_its_graph(loss, said):
    assert [f.rule for f in target_not_detached(run_of(loss()))] == ["target-not-detached"] * said


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda: -column().sigmoid().mean(), True),
        (lambda: -logits().softmax(1).gather(1, Y[:, None]).mean(), True),
        (lambda: -column().sigmoid().log().mean(), False),
        (lambda: -(column().sigmoid()[:, 0] * REAL).mean(), False),  # what is chosen is paid
    ],
)
def test_minus_a_mean_of_probabilities_lacks_its_logarithm(loss, said):
    history = make_history(60, layers=tuple(LAYERS.values()), loss_graph=tuple(LossGraph(loss(), LAYERS).described()))
    below = with_loss(history, np.linspace(-0.5, -0.9, 60))
    told = negative_loss(below)
    assert ["without their logarithm" in f.cause for f in told] == [True] * said


@pytest.mark.parametrize(
    ("loss", "severity"),
    [
        (lambda: -(column()[:, 0] - column()[:, 0].logcumsumexp(0)).sum() / N, "note"),  # a partial likelihood
        (lambda: F.poisson_nll_loss(column()[:, 0], REAL.abs()), "note"),  # of counts
        (lambda: -logits().log_softmax(1)[:, 0].mean(), "warning"),
        (lambda: (column()[:, 0] - REAL).square().mean(), "warning"),
    ],
)
def test_the_floor_of_a_likelihood_of_somebodys_own_is_not_known(loss, severity):
    rows = tuple(LossGraph(loss(), LAYERS).described())
    history = make_history(600, layers=tuple(LAYERS.values()), clip=None, logged=("loss",), loss_graph=rows)
    loss = 3.4 + 0.6 * np.exp(-np.arange(600) / 20) + 0.02 * np.sin(1.7 * np.arange(600))
    assert [found.severity for found in rests(with_loss(history, loss), 100, 500)] == [severity]


def test_a_loss_below_0_of_a_policy_is_none_and_of_weighed_classes_is_one():
    graph = tuple(LossGraph(-F.cross_entropy(logits(), Y), LAYERS).described())
    history = make_history(60, layers=tuple(LAYERS.values()), loss_graph=graph)
    falls = with_loss(history, -math.log(C) - np.linspace(0, 1, 60))
    weighed = {f"in_loss/{name}": np.ones(60) for name in ("advantage_mean", "advantage_std")}
    by_classes = changed(falls, per_step={**falls.per_step, **weighed})
    assert len(negative_loss(falls)) == len(negative_loss(by_classes)) == 1
    for more in ("in_loss/entropy_rewarded", "return"):
        assert negative_loss(changed(by_classes, per_step={**by_classes.per_step, more: np.ones(60)})) == []


@pytest.mark.parametrize(("optimizers", "said"), [(("Adam",), 1), (("actor", "critic"), 0)])
def test_a_policy_that_climbs_a_critic_of_the_same_optimizer(optimizers, said):
    made = tuple({"name": name, "class": "Adam"} for name in optimizers)
    fits, climbs = F.mse_loss(column(), REAL[:, None]), -column().mean()
    assert len(policy_loss_trains_critic(run_of(fits, climbs, optimizers=made))) == said
    assert policy_loss_trains_critic(run_of(fits, optimizers=made)) == []
    assert policy_loss_trains_critic(run_of(climbs, optimizers=made)) == []


@pytest.mark.parametrize(
    ("kind", "function"), [("Dropout", F.dropout), ("ReLU", F.relu), ("Sigmoid", F.sigmoid), ("Tanh", F.tanh)]
)
def test_what_was_made_last_is_the_last_module_unless_the_graph_shows_it_before_the_last_weights(kind, function):
    modules = {"fc": "Linear", "last": kind}
    behind, before = F.cross_entropy(function(logits()), Y), F.cross_entropy(MANY(function(X)), Y, label_smoothing=0.3)
    assert ends_in(run_of(behind, modules=modules), kind)
    assert not ends_in(run_of(before, modules=modules), kind)
    assert ends_in(run_of(modules=modules), kind)  # nothing is known of it

"""What a loss is asked for, and what the model said, by numbers that numpy finds too."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gradwatch.measure import loss_targets
from gradwatch.measure.loss_graph import LossGraph
from gradwatch.measure.loss_targets import MOST

N, C = 60, 5
X = torch.randn(N, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randint(C, (N,), generator=torch.Generator().manual_seed(2))
REAL = 3 + 2 * torch.randn(N, 1, generator=torch.Generator().manual_seed(3))
torch.manual_seed(4)
ONE, MANY = nn.Linear(6, 1), nn.Linear(6, C)


def seen(loss, but="in_loss/target_in_data"):
    layers = {id(p): f"{i}.{name}" for i, m in enumerate((ONE, MANY)) for name, p in m.named_parameters()}
    found = LossGraph(loss, layers).targets()
    found.pop(but, None)
    tensors = [value for value in found.values() if not isinstance(value, float)]
    assert all(value.dim() == 0 and not value.requires_grad for value in tensors)
    return {name.removeprefix("in_loss/"): float(value) for name, value in found.items()}


def of_classes(asked, said, ignored=0.0):
    """The same by numpy, of classes by their numbers."""
    asked, said = np.asarray(asked).ravel(), np.asarray(said).ravel()
    counts = np.bincount(asked)
    return {
        "targets": N,
        "target_mean": asked.mean(),
        "target_std": asked.std(),
        "target_top": counts.argmax(),
        "target_top_share": counts.max() / counts.sum(),
        "predicted_top_share": np.bincount(said).max() / said.size,
        "ignored": ignored,
        **({"predicted_right": (asked == said).mean()} if len(asked) == len(said) else {}),
    }


def of_logits(ranges, losses, shares):
    ordered = np.sort(np.asarray(ranges), axis=None)
    return {
        "logit_range": ordered[(len(ordered) - 1) // 2],  # torch's median is the lower one
        "logit_range_most": ordered[-1],
        "cross_entropy": np.mean(losses),
        "explained": 1 + np.mean(losses) / np.sum(shares * np.log(shares)),
    }


def of_choices(scores, y):
    """Of logits [N, C] and classes that are all asked for."""
    scores, y = scores.detach().double().numpy(), y.numpy()
    losses = np.log(np.exp(scores).sum(1)) - scores[np.arange(len(scores)), y]
    return {"choices": scores.shape[1], **of_logits(np.ptp(scores, axis=1), losses, np.bincount(y) / len(y))}


def test_of_classes():
    expected = {**of_classes(Y, MANY(X).argmax(1)), **of_choices(MANY(X), Y)}
    assert seen(F.cross_entropy(MANY(X), Y)) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    weight = torch.rand(C)
    expected["target_top_weight"] = float(weight[int(expected["target_top"])] / weight.mean())
    del expected["explained"]
    assert seen(3 * F.nll_loss(MANY(X).log_softmax(1), Y, weight=weight)) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_what_is_ignored_is_no_target():
    y = Y.clone()
    y[::4] = -100
    kept = y != -100
    expected = of_classes(y[kept], MANY(X).argmax(1), ignored=0.25)
    expected["predicted_right"] = float((y == MANY(X).argmax(1))[kept].float().mean())
    of_kept = of_choices(MANY(X)[kept], y[kept])
    expected |= of_choices(MANY(X), Y) | {name: of_kept[name] for name in ("cross_entropy", "explained")}
    assert seen(F.cross_entropy(MANY(X), y)) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    nothing = seen(F.cross_entropy(MANY(X), torch.full((N,), -100)))
    assert (nothing["ignored"], np.isnan(nothing["target_top_share"])) == (1, True)


def test_of_pixels():
    scores, y = MANY(X).T.reshape(1, C, 6, 10), Y.reshape(1, 6, 10)
    tops = Y.reshape(6, 10) == of_classes(Y, Y)["target_top"]
    ends = {"target_top_at_ends": float((tops[:, -1].float() - tops[:, 0].float()).mean())}
    expected = {**of_classes(y, scores.argmax(1)), **of_choices(MANY(X), Y), **ends}
    assert seen(F.cross_entropy(scores, y)) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("logits", [True, False])
def test_of_two_classes(logits):
    y, said = (REAL > 3).float(), ONE(X)
    loss = F.binary_cross_entropy_with_logits(said, y) if logits else F.binary_cross_entropy(said.sigmoid(), y)
    expected = of_classes(y.long(), (said > 0).long())
    del expected["ignored"]
    expected |= {"target_soft": 0, "target_outside": 0}
    if logits:
        said, y = (each.detach().double().numpy() for each in (said, y))
        shares = np.array([y.mean(), 1 - y.mean()])
        expected |= of_logits(np.abs(said), np.log1p(np.exp(said)) - y * said, shares)
    assert seen(loss) == pytest.approx(expected, rel=1e-5, abs=1e-6)  # next to nothing may be explained


def test_probabilities_are_told_from_classes():
    soft = torch.rand(N, 1)
    found = seen(F.binary_cross_entropy_with_logits(ONE(X), soft))
    assert found["target_soft"] == pytest.approx(float(torch.minimum(soft, 1 - soft).mean()))


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss])
def test_of_numbers(loss):
    said, asked = ONE(X).detach().numpy(), REAL.numpy()
    away, ordered = np.abs(asked - np.sort(asked, axis=None)[N // 2]), np.sort(asked, axis=None)
    expected = {
        "targets": N,
        "target_mean": asked.mean(),
        "target_std": asked.std(),
        "target_low": ordered[N // 20],
        "target_high": ordered[-1 - N // 20],
        "target_spread": np.sort(away, axis=None)[(N - 1) // 2],  # torch's median is the lower one
        "target_farthest": away.max(),
        "predicted_mean": said.mean(),
        "predicted_std": said.std(),
        "explained": 1 - np.square(said - asked).mean() / asked.var(),
    }
    assert seen(loss(ONE(X), REAL)) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("asked", "share"),
    [
        (X[:, 2:3], 1.0),
        (torch.cat([X[: N // 2, 2:3], torch.zeros(N // 2, 1)]), 0.5),
        (X[:, 2:3].roll(1, 0), 0.0),
        (torch.zeros(N, 1), 0.0),  # what is always the same is the same as anything
    ],
)
def test_targets_that_stand_in_a_column_of_the_data(asked, share):
    assert seen(F.mse_loss(ONE(X), asked), but=None)["target_in_data"] == share
    data = torch.cat([X[:, :5], (asked > 0).float()], 1)
    told = seen(F.binary_cross_entropy_with_logits(ONE(data), (asked > 0).float()), but=None)["target_in_data"]
    assert told == (asked > 0).any()
    flat = ONE(X.reshape(6, 10, 6)).squeeze(2)
    assert seen(F.mse_loss(flat, asked.reshape(6, 10)), but=None)["target_in_data"] == share
    assert "target_in_data" not in seen(F.mse_loss(ONE(X.exp() * ONE.weight), asked), but=None)  # that is no data


def test_columns_of_targets_that_are_of_several_sizes():
    asked = torch.randn(N, C) * torch.tensor([1.0, 20.0, 0.5, 0.0, 3.0])
    spread = asked.std(0, correction=0)
    found = seen(F.mse_loss(MANY(X), asked))
    assert found["target_columns_apart"] == pytest.approx(float(spread.max() / spread[spread > 0].min()))
    assert "target_columns_apart" not in seen(F.mse_loss(ONE(X), REAL))


def texts(padding=0):
    """Rows of tokens, the last ones of each padding."""
    tokens = torch.randint(1, 9, (4, 10), generator=torch.Generator().manual_seed(4))
    tokens[:, 6:] = padding
    return tokens, nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 9))


def language(net, tokens, shifted, inside=False):
    """The loss of a language model, whose targets are the next tokens where they are `shifted`: `inside`, of all but
    the last of each row, as Transformers shift them.
    """
    read, asked = (tokens, tokens) if inside or not shifted else (tokens[:, :-1], tokens[:, 1:])
    scores = net(read)
    if inside:
        scores, asked = scores[:, :-1], tokens[:, 1:] if shifted else tokens[:, :-1]
    return F.cross_entropy(scores.flatten(0, 1), asked.flatten())


@pytest.mark.parametrize("inside", [True, False])
def test_targets_that_are_the_tokens_themselves_are_told_from_the_next_ones(inside):
    tokens, net = texts()
    tokens = torch.arange(40).reshape(4, 10) % 9  # no token is followed by itself
    assert seen(language(net, tokens, shifted=True, inside=inside))["target_is_input"] == 0
    assert seen(language(net, tokens, shifted=False, inside=inside))["target_is_input"] == 1


def test_what_is_read_after_a_target_is_not_compared_with_it():
    """A loop over time with a loss for each step: the target of one is what the next one reads."""
    clicks, table, head = torch.randint(9, (4, 6)), nn.Embedding(9, 6), nn.Linear(6, 9)
    losses = [F.cross_entropy(head(table(now)), following) for now, following in pairwise(clicks)]
    assert seen(torch.stack(losses).mean())["target_is_input"] < 0.7
    series, read = torch.randn(4, 20, 3), nn.Linear(3, 1)
    losses = [F.mse_loss(read(now), following[:, :1]) for now, following in pairwise(series)]
    layers = {id(read.weight): "read.weight", id(read.bias): "read.bias"}
    assert LossGraph(torch.stack(losses).mean(), layers).targets()["in_loss/target_in_data"] == 0


def test_a_table_of_other_things_than_what_is_asked_for_is_not_compared():
    tokens, kinds = torch.arange(40).reshape(4, 10) % 9, torch.zeros(4, 10, dtype=torch.long)
    words, of_kinds, head = nn.Embedding(9, 6), nn.Embedding(2, 6), nn.Linear(6, 9)
    scores = head(words(tokens) + of_kinds(kinds)).flatten(0, 1)
    assert seen(F.cross_entropy(scores, kinds.flatten()))["target_is_input"] < 0.2  # a tag for each word, mostly 0
    assert "target_is_input" not in seen(F.cross_entropy(head(of_kinds(kinds)).flatten(0, 1), kinds.flatten()))


def test_padding_stands_at_the_ends_of_the_rows():
    tokens, net = texts()
    assert seen(language(net, tokens, shifted=True)) | {"target_top": 0, "target_top_at_ends": 1} == seen(
        language(net, tokens, shifted=True)
    )
    assert seen(language(net, tokens.flip(1), shifted=True))["target_top_at_ends"] == -1
    assert "target_top_at_ends" not in seen(F.cross_entropy(MANY(X), Y))  # nothing was read by an embedding


def test_padding_of_other_classes_than_the_tokens_stands_at_the_ends_too():
    tokens, _ = texts()
    words, head = nn.Embedding(90, 6), nn.Linear(6, 9)  # a tag for each word
    assert seen(F.cross_entropy(head(words(tokens)).flatten(0, 1), tokens.flatten()))["target_top_at_ends"] == 1
    assert seen(F.cross_entropy(head(torch.randn(4, 10, 6)).mT, tokens))["target_top_at_ends"] == 1


def test_padding_stands_at_the_ends_of_rows_that_no_embedding_reads():
    tokens, head = texts()[0], nn.Linear(6, 9)
    scores = head(torch.randn(4, 10, 6))
    assert seen(F.cross_entropy(scores.flatten(0, 1), tokens.flatten()))["target_top_at_ends"] == 1
    assert seen(F.cross_entropy(scores.view(40, 9), tokens.flip(1).flatten()))["target_top_at_ends"] == -1
    assert "target_top_at_ends" not in seen(F.cross_entropy(head(torch.randn(40, 6)), tokens.flatten()))  # no rows


def test_a_class_that_is_left_out_by_its_number():
    y = Y.clone()
    y[:12] = 2
    found = seen(F.cross_entropy(MANY(X), y, ignore_index=2))
    assert (found["class_left_out"], found["ignored_at_ends"]) == (2, 0)
    assert found["ignored"] == pytest.approx(float((y == 2).float().mean()))
    assert "class_left_out" not in seen(F.cross_entropy(MANY(X), y))
    assert "class_left_out" not in seen(F.cross_entropy(MANY(X), y, ignore_index=C))  # no class
    tokens, net = texts()
    text = F.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0)
    assert "class_left_out" not in seen(text)  # of what an embedding reads it is padding
    in_rows = F.cross_entropy(nn.Linear(6, 9)(torch.randn(4, 10, 6)).flatten(0, 1), tokens.flatten(), ignore_index=0)
    assert seen(in_rows)["ignored_at_ends"] == 1


def test_what_is_multiplied_by_nothing_is_ignored():
    tokens, net = texts()
    read, asked = tokens[:, :-1], tokens[:, 1:]
    each = F.cross_entropy(net(read).flatten(0, 1), asked.flatten(), reduction="none").view(asked.shape)
    found = seen((each * (asked > 0)).sum() / (asked > 0).sum())
    assert found["ignored"] == pytest.approx(float((asked == 0).float().mean()))
    assert found["target_top"] > 0
    turned = seen((each * (asked == 0)).sum())
    assert (turned["target_top"], turned["target_top_share"]) == (0, 1)
    assert not {"target_top_at_ends", "explained"} & seen(each.sum(1).square().sum()).keys()  # by what is not known
    whole = F.cross_entropy(net(read).flatten(0, 1), asked.flatten())
    assert seen(each.mean()) == pytest.approx(seen(whole))  # the mean of each is that of all


def test_how_much_the_positives_weigh_and_which_targets_are_no_probabilities():
    y = (torch.arange(N) < 6).float()[:, None]
    found = seen(F.binary_cross_entropy_with_logits(ONE(X), y, pos_weight=torch.tensor(0.1)))
    assert (found["target_top"], found["target_top_weight"]) == (0, pytest.approx(1 / 0.55))
    assert "explained" not in found
    signs = seen(F.binary_cross_entropy_with_logits(ONE(X), 2 * y - 1))
    assert signs["target_outside"] == pytest.approx(0.9)
    assert np.isnan(signs["explained"])


def test_of_two_classes_that_are_masked_by_hand_no_shares_are_told():
    y, there = (REAL > 3).float(), (torch.arange(N) % 3 > 0).float()[:, None]
    each = F.binary_cross_entropy_with_logits(ONE(X), y, reduction="none")
    shares = {"target_top_share", "predicted_top_share"}
    assert not shares & seen((each * there).sum() / there.sum()).keys()
    assert shares <= seen(each.mean()).keys()


@pytest.mark.parametrize("loss", [lambda: (ONE(X) - REAL).abs().mean(), lambda: F.cross_entropy(MANY(X)[0], Y[0])])
def test_of_another_loss_and_of_a_single_prediction_nothing_is_told(loss):
    assert seen(loss()) == {}


def test_of_large_ones_a_part_is_looked_at_that_is_spread_evenly():
    halves = torch.zeros(4, 8 * MOST, dtype=torch.long)
    halves[:, 2 * MOST :] = 1  # three quarters of each row
    scores = torch.zeros(4, 2, 8 * MOST, requires_grad=True)
    found = seen(F.cross_entropy(scores, halves))
    assert (found["target_top"], found["target_top_share"]) == (1, pytest.approx(0.75, abs=0.01))


def test_the_predictions_of_a_large_vocabulary_that_are_looked_at_stand_at_all_places_of_the_rows():
    """An even step over rows of 64 tokens would meet the first of each alone."""
    rows, tokens, classes = 64, 64, 8192
    target = torch.zeros(rows, tokens, dtype=torch.long)
    scores = torch.zeros(rows, tokens, classes)
    scores[..., 0] = 9.0
    scores[:, 0] = scores[:, 0].flip(-1)  # wrong at the first place alone
    found = seen(F.cross_entropy(scores.view(-1, classes).requires_grad_(), target.view(-1)))
    assert found["predicted_right"] == pytest.approx(1 - 1 / tokens, abs=0.02)


def test_targets_that_come_in_turn_are_each_met():
    turns = torch.arange(2 * MOST) % 2
    found = seen(F.cross_entropy(torch.zeros(2 * MOST, 2, requires_grad=True), turns))
    assert found["target_top_share"] == pytest.approx(0.5, abs=0.001)


def test_what_was_checkpointed_is_not_computed_again():
    calls = []

    def loss_of(x):
        calls.append(1)
        return F.cross_entropy(MANY(x), Y)

    loss = checkpoint(loss_of, X.clone().requires_grad_(), use_reentrant=False)
    assert (seen(loss), len(calls)) == ({}, 1)
    loss.backward()
    assert len(calls) == 2


def test_what_is_kept_elsewhere_is_not_fetched():
    fetched = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: (fetched.append(1), t)[1]):
        losses = F.cross_entropy(MANY(X), Y), F.mse_loss(ONE(X), REAL)
    assert ([seen(loss) for loss in losses], fetched) == ([{}, {}], [])


@pytest.mark.parametrize("loss", [lambda: F.cross_entropy(MANY(X), Y), lambda: F.mse_loss(ONE(X), REAL)])
def test_a_look_changes_no_gradient(loss):
    found = []
    for look in (True, False):
        for net in (ONE, MANY):
            net.zero_grad()
        made = loss()
        if look:
            assert seen(made)
        made.backward()
        found.append([p.grad for net in (ONE, MANY) for p in net.parameters() if p.grad is not None])
    assert found[0]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_target_that_was_written_to_is_still_refused_by_torch():
    y = Y.clone()
    loss = F.cross_entropy(MANY(X), y)
    y[0] = (y[0] + 1) % C
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        seen(loss)  # which a Watch leaves out of the record
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_of_several_losses_of_numbers_that_with_the_widest_targets_is_told():
    near, far = REAL, 1000 * REAL
    for first, second in ((near, far), (far, near)):
        found = seen(F.mse_loss(ONE(X), first) + F.smooth_l1_loss(ONE(X), second))
        assert found == pytest.approx(seen(F.mse_loss(ONE(X), far)), rel=1e-5, abs=1e-6)
    assert seen(F.cross_entropy(MANY(X), Y) + F.mse_loss(ONE(X), far))["target_top_share"] < 1


@pytest.mark.parametrize(("shift", "same", "following"), [(0, 1.0, 0.0), (1, 0.0, 1.0), (2, 0.0, 0.0)])
def test_tokens_that_are_asked_for_are_beside_those_that_are_read(shift, same, following):
    tokens, table, head = torch.randint(3, 50, (8, 9)), nn.Embedding(50, 6), nn.Linear(6, 50)
    loss = F.cross_entropy(head(table(tokens[:, :6])).flatten(0, 1), tokens[:, shift : shift + 6].flatten())
    told = LossGraph(loss, {id(p): f"{i}" for i, p in enumerate((table.weight, head.weight))}).targets()
    found = [float(told[f"in_loss/target_is_{name}"]) for name in ("input", "next", "after_next")]
    wanted = [same, following, float(shift == 2)]
    assert [share > 0.5 for share in found] == [bool(share) for share in wanted]
    assert max(found) == 1.0


@pytest.mark.parametrize(("cut", "following", "second"), [(slice(1, None), 1.0, 0.0), (slice(0, -1), 0.0, 1.0)])
@pytest.mark.parametrize("flat", [True, False])
def test_scores_may_be_cut_off_at_either_end_of_each_row(cut, following, second, flat):
    """With one cut off at its end each token is asked for the one after the next; with the first one it is the next."""
    tokens, table, head = torch.randint(3, 50, (8, 9)), nn.Embedding(50, 6), nn.Linear(6, 50)
    scores = head(table(tokens[:, :-1]))[:, cut]
    said = (scores.flatten(0, 1), tokens[:, 2:].flatten()) if flat else (scores.transpose(1, 2), tokens[:, 2:])
    told = LossGraph(F.cross_entropy(*said), {id(p): "p" for p in (table.weight, head.weight)}).targets()
    found = [float(told[f"in_loss/target_is_{name}"]) for name in ("next", "after_next")]
    assert [share > 0.5 for share in found] == [following > 0.5, second > 0.5]


@pytest.mark.parametrize(("shift", "same", "following"), [(0, 1.0, 0.0), (1, 0.0, 1.0), (2, 0.0, 0.0)])
def test_a_series_that_is_asked_for_is_beside_the_one_that_is_read(shift, same, following):
    long, read = torch.randn(8, 7, 6), nn.Linear(6, 6)
    loss = F.mse_loss(read(long[:, :5]), long[:, shift : shift + 5])
    told = LossGraph(loss, {id(read.weight): "0.weight", id(read.bias): "0.bias"}).targets()
    assert [float(told[f"in_loss/target_is_{name}"]) for name in ("input", "next")] == [same, following]
    assert "target_is_next" not in seen(F.mse_loss(ONE(X), REAL))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_lies_on_another_device_than_the_targets_is_not_compared_with_them(device):
    """As in a model of several devices, which is given its data on the first and its loss on the last."""
    table, target = torch.arange(40.0).view(20, 2), torch.arange(20.0)
    assert ("target_in_data" in loss_targets._in_data(target, [table.to(device)])) is (device == "cpu")
    tokens, asked = torch.arange(60).view(12, 5) % 7, torch.arange(60) % 7
    read = nn.Embedding(7, 3, device=device)(tokens.to(device)).grad_fn
    found = loss_targets._of_choices(asked, torch.randn(60, 7), -100, [read])
    assert ("target_is_input" in found) is (device == "cpu")

"""Two optimizers that share parameters: each one's norms and clips are those of plain torch, whoever watches them."""

import numpy as np
import pytest
import torch
from torch import nn
from training import batches, watch

from gradwatch import open_history
from gradwatch.analysis.rules import diagnose
from gradwatch.storage.folder import read_manifest

LIMIT = 0.05
OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "fused Adam": lambda params: torch.optim.Adam(params, lr=0.01, fused=True),
}


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def train(model, optimizers, before_step=lambda optimizer: None, steps=8):
    """The first optimizer steps on each batch; the second on gradients of its own, or every third time on the same."""
    for i, (x, y) in enumerate(batches(steps, torch.float32)):
        for which, optimizer in enumerate(optimizers):
            if not which or i % 3:
                model.zero_grad()
                nn.functional.cross_entropy(model(x + which), y).backward()
            before_step(optimizer)
            optimizer.step()


def build(make):
    model = net()
    return model, [make(model.parameters()), make(model[2].parameters())]


def by_hand(make, limits):
    """The weights that torch's own clips give, and `[T, L]` norms of each optimizer before its clip."""
    model, optimizers = build(make)
    norms = {o: [] for o in optimizers}

    def clip(optimizer):
        params = optimizer.param_groups[0]["params"]
        norms[optimizer].append([p.grad.double().norm().item() for p in params])
        limit = limits[optimizers.index(optimizer)]
        if limit:
            nn.utils.clip_grad_norm_(params, limit)

    train(model, optimizers, clip)
    return model, [np.array(norms[o]) for o in optimizers]


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("limits", [(None, None), (LIMIT, None), (None, LIMIT), (LIMIT, LIMIT)])
def test_a_watch_for_each_sees_and_clips_what_reaches_its_own_step(make, limits, tmp_path):
    model, optimizers = build(make)
    texts = [f"ClipByGlobalNorm({limit})" if limit else None for limit in limits]
    critic = watch(model, optimizers[0], tmp_path, name="critic", clip=texts[0], every=2)
    actor = watch(model, optimizers[1], tmp_path, name="actor", clip=texts[1], every=2, run=critic)
    with critic, actor:
        train(model, optimizers)
    plain, true = by_hand(make, limits)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(
            a, b, rtol=0 if limits == (None, None) else 1e-4, atol=0 if not any(limits) else 1e-6
        )
    lanes = open_history(critic.dir.parent).lanes()
    for name, norms in zip(("critic", "actor"), true, strict=True):
        np.testing.assert_allclose(lanes[name].layer("grad_norm"), norms, rtol=2e-4 if any(limits) else 2e-6)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_one_watch_for_both_takes_their_steps_apart(make, tmp_path):
    model, optimizers = build(make)
    both = watch(model, optimizers, tmp_path)
    with both:
        with pytest.warns(match="do not step together"):
            train(model, optimizers, steps=3)
        for i, (x, y) in enumerate(batches(6, torch.float32)):  # and now each on gradients of its own
            optimizer = optimizers[i % 2]
            model.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    history = open_history(both.dir)
    assert len(history) == 12 - 1, "the first batch was one step of both"
    apart = history.take(np.arange(len(history)) > 4)
    head = ["2.weight" in name or "2.bias" in name for name in history.layers]
    for row, name in zip(apart.layer("grad_norm"), apart.optimizer, strict=True):
        held = ~np.isnan(row)
        assert held.all() if str(name).endswith(".0") else held.tolist() == head


def test_what_another_watch_trains_is_not_without_an_optimizer(tmp_path):
    model = net()
    head = torch.optim.SGD(model[2].parameters(), lr=0.1)
    first = watch(model, head, tmp_path, name="head")
    assert first._writer.run.unheld == ("head.0.weight", "head.0.bias")
    body = torch.optim.SGD([model[0].weight], lr=0.1)
    second = watch(model, body, tmp_path, name="body", run=first)
    assert first._writer.run.unheld == ("head.0.bias",)
    assert second._writer.run.unheld == ("body.0.bias",)
    first.close()
    second.close()
    assert read_manifest(first.dir).unheld == ("head.0.bias",)


class Wrapper:
    """What calls a layer, and is no module."""

    def __init__(self, inner):
        self.inner = inner


class Hiding(nn.Module):
    """A layer that the module knows, and one in a plain list, dict or object, which it does not."""

    def __init__(self, kind):
        super().__init__()
        last = nn.Linear(8, 3)
        self.first, self._last = nn.Linear(6, 8), [last]
        self.parts = {"list": [last], "dict": {"a": last}, "object": Wrapper(last)}[kind]

    def forward(self, x):
        return self._last[0](self.first(x).tanh())


@pytest.mark.parametrize(("kind", "name"), [("list", "0"), ("dict", "a"), ("object", "inner")])
@pytest.mark.parametrize("trained", [False, True])
def test_layers_that_the_model_does_not_know_are_named_where_nobody_trains_them(trained, kind, name, tmp_path):
    model = Hiding(kind)
    other = torch.optim.SGD(model._last[0].parameters(), lr=0.1)
    with watch(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path) as made:
        for x, y in batches(12, torch.float32):
            nn.functional.cross_entropy(model(x), y).backward()
            made._source.optimizers[0].step()
            if trained:
                other.step()
    assert made._writer.run.unheld == (() if trained else (f"parts.{name}.weight", f"parts.{name}.bias"))
    rules = [finding.rule for finding in diagnose(open_history(made.dir))]
    assert ("not-in-optimizer" in rules) != trained


def test_what_is_frozen_and_has_a_gradient_of_its_training_before_is_meant_to_rest(tmp_path):
    model = net()
    x, y = next(iter(batches(1, torch.float32)))
    nn.functional.cross_entropy(model(x), y).backward()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as made:
        for x, y in batches(3, torch.float32):
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert made._writer.run.unheld == ()


@pytest.mark.parametrize("given", [False, True])
def test_a_part_that_is_thawed_and_given_to_no_optimizer_is_named(given, tmp_path):
    model = net()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as made:
        for i, (x, y) in enumerate(batches(12, torch.float32)):
            if i == 6:
                model[0].requires_grad_(True)
                if given:
                    optimizer.add_param_group({"params": list(model[0].parameters())})
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert made._writer.run.unheld == (() if given else ("0.weight", "0.bias"))


class Late(nn.Module):
    """Whose last layer is made by the first call of `forward`, or by each, as a careless one does."""

    def __init__(self, anew):
        super().__init__()
        self.first, self.last, self.anew = nn.Linear(6, 8), None, anew

    def forward(self, x):
        if self.anew or self.last is None:
            self.last = nn.Linear(8, 3)
        return self.last(self.first(x).tanh())


@pytest.mark.parametrize(
    ("anew", "given", "other"),
    [(False, False, False), (True, False, False), (False, True, False), (False, False, True)],
)
def test_a_layer_that_forward_makes_and_nobody_trains_is_named(anew, given, other, tmp_path):
    model = Late(anew)
    optimizer, unwatched = torch.optim.SGD(model.parameters(), lr=0.1), None
    with watch(model, optimizer, tmp_path) as made:
        for i, (x, y) in enumerate(batches(12, torch.float32)):
            nn.functional.cross_entropy(model(x), y).backward()
            if given and i == 0:
                optimizer.add_param_group({"params": list(model.last.parameters())})
            optimizer.step()
            if other:
                unwatched = unwatched or torch.optim.SGD(model.last.parameters(), lr=0.1)
                unwatched.step()
    assert made._writer.run.unheld == (() if given or other else ("last.weight", "last.bias"))
    rules = [finding.rule for finding in diagnose(open_history(made.dir))]
    assert ("not-in-optimizer" in rules) != (given or other)

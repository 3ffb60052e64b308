"""`rows=`: of an embedding the row with the largest gradient, its norm and its share, as float64 finds them."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from training import watch

from gradwatch import ClipByGlobalNorm, ClipByNorm, WatchError, chain, only, open_history
from gradwatch.analysis.rules.nonfinite import nonfinite
from gradwatch.measure.layout import Layout
from gradwatch.measure.rows import first_rows

WORDS = 40


class Tagger(nn.Module):
    def __init__(self, sparse=False, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, 6, sparse=sparse, dtype=dtype)
        self.out = nn.Linear(6, 3, dtype=dtype)

    def forward(self, words):
        return self.out(self.embed(words).mean(dim=1)).float()


def dense(grad):
    return grad.double().to_dense() if grad.is_sparse else grad.double()


def train(folder, model=None, steps=6, make=lambda p: torch.optim.SGD(p, lr=0.1), scaler=None, **options):
    """The history, the embedding's gradient of each step in float64, and the weights."""
    model = model or Tagger()
    optimizer = make(model.parameters())
    generator, grads = torch.Generator().manual_seed(1), []
    with watch(model, optimizer, folder, **{"rows": ("*embed*",), **options}) as handle:
        for _ in range(steps):
            optimizer.zero_grad()
            for _ in range(2):  # it accumulates
                words = torch.randint(WORDS, (8, 4), generator=generator)
                loss = nn.functional.cross_entropy(model(words), words[:, 0] % 3)
                (loss if scaler is None else scaler.scale(loss)).backward()
            grads.append(dense(model.embed.weight.grad) / (1.0 if scaler is None else scaler.get_scale()))
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
    return open_history(handle.dir), torch.stack(grads), [p.detach().clone() for p in model.parameters()]


def assert_oracle(history, grads, rtol=1e-6):
    norms = grads.norm(dim=2).numpy()
    np.testing.assert_array_equal(history.layer("row_index")[:, 0], norms.argmax(axis=1))
    np.testing.assert_allclose(history.layer("row_norm")[:, 0], norms.max(axis=1), rtol=rtol)
    np.testing.assert_allclose(
        history.layer("row_share")[:, 0], norms.max(axis=1) / np.linalg.norm(norms, axis=1), rtol
    )
    np.testing.assert_allclose(history.layer("grad_norm")[:, 0], np.linalg.norm(norms, axis=1), rtol=rtol)
    assert len({*norms.argmax(axis=1)}) > 1
    for name in ("row_index", "row_share"):
        assert np.isnan(history.layer(name)[:, 1:]).all()


POLICIES = [
    None,
    ClipByGlobalNorm(0.1),
    ClipByNorm(0.02, axes=(1,)),
    chain(only("embed.weight", ClipByNorm(0.01, axes=(1,))), ClipByGlobalNorm(0.1)),
]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_every_number_is_the_oracles(policy, sparse, tmp_path):
    history, grads, _ = train(tmp_path, Tagger(sparse), clip=policy)
    assert_oracle(history, grads)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-6), (torch.bfloat16, 1e-5)])
def test_in_other_formats(dtype, rtol, tmp_path):
    history, grads, _ = train(tmp_path, Tagger(dtype=dtype))
    assert_oracle(history, grads, rtol)


@pytest.mark.parametrize("fused", [False, True])
def test_under_a_loss_scale(fused, tmp_path):
    def make(params):
        return torch.optim.AdamW(params, lr=0.01, fused=fused)

    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    history, grads, _ = train(tmp_path, make=make, scaler=scaler, clip=ClipByGlobalNorm(0.1))
    assert_oracle(history, grads, 1e-5)


def test_training_is_bit_identical_and_without_it_nothing_is_recorded(tmp_path):
    for sparse in (False, True):
        (with_, _, weights), (without, _, others) = (
            train(tmp_path / f"{sparse}{rows}", Tagger(sparse), rows=rows) for rows in (["embed*"], [])
        )
        assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))
        assert {"row_share", "row_index"} == set(with_.per_layer) - set(without.per_layer)


def test_optimizers_that_step_inside_backward(tmp_path):
    model = Tagger()
    optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}
    grads = []

    def step(p):
        if p is model.embed.weight:
            grads.append(p.grad.double())
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in optimizers:
        p.register_post_accumulate_grad_hook(step)
    with watch(model, optimizers.values(), tmp_path, clip=ClipByNorm(0.1), rows=["embed.*"]) as handle:
        for seed in range(4):
            torch.manual_seed(seed)
            words = torch.randint(WORDS, (8, 4))
            nn.functional.cross_entropy(model(words), words[:, 0] % 3).backward()
    assert_oracle(open_history(handle.dir), torch.stack(grads))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_that_is_not_finite_is_named(value, tmp_path):
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, tmp_path, rows=["embed*"]) as handle:
        model(torch.arange(WORDS).view(10, 4)).square().mean().backward()
        model.embed.weight.grad[17, 3] = value
        optimizer.step()
    history = open_history(handle.dir)
    assert history.layer("row_index")[0, 0] == 17
    (finding,) = nonfinite(history)
    assert finding.evidence["row"] == 17
    assert "Row 17 of embed.weight is not finite." in finding.cause


def test_rows_that_are_finite_are_not_named_where_their_norm_is_not(tmp_path):
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, tmp_path, rows=["embed*"]) as handle:
        model(torch.arange(WORDS).view(10, 4)).square().mean().backward()
        model.embed.weight.grad.zero_()[:, 0] = 1e19  # of all rows together its square is beyond float32
        optimizer.step()
    (finding,) = nonfinite(open_history(handle.dir))
    assert "row" not in finding.evidence


def test_a_gradient_that_is_sparse_in_more_than_its_rows_has_no_row(tmp_path):
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, rows=["embed*"], clip=ClipByGlobalNorm(0.1)) as handle:
        for dims in (1, 2):
            optimizer.zero_grad()
            model(torch.arange(WORDS).view(10, 4)).square().mean().backward()
            whole = model.embed.weight.grad
            model.embed.weight.grad = whole.to_sparse(dims)
            optimizer.step()
    history = open_history(handle.dir)
    np.testing.assert_array_equal(np.isnan(history.layer("row_index")[:, 0]), [False, True])
    np.testing.assert_array_equal(np.isnan(history.layer("row_share")[:, 0]), [False, True])
    assert np.isfinite(history.layer("grad_norm")).all()


def test_rows_of_slices_and_no_gradient(tmp_path):
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(3, 5, 4))
            self.idle = nn.Parameter(torch.randn(5, 4))

    model = Experts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, tmp_path, split={"w": 0}, rows=["*"]) as handle:
        (model.w**3).sum().backward()
        optimizer.step()
    history = open_history(handle.dir)
    norms = (3 * model.w.detach().double() ** 2).norm(dim=2)
    np.testing.assert_array_equal(history.layer("row_index")[0, :3], norms.argmax(dim=1))
    np.testing.assert_allclose(history.layer("row_norm")[0, :3], norms.amax(dim=1), rtol=1e-6)
    assert np.isnan(history.layer("row_index")[0, 3])


def test_what_makes_no_sense_is_refused(tmp_path):
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows, said in (
        (["out.bias"], "fits no layer of two or more dimensions"),
        ("embed*", "wanted a list of patterns"),
    ):
        with pytest.raises(WatchError, match=said):
            watch(model, optimizer, tmp_path, rows=rows)
    with pytest.raises(WatchError, match="can be told apart"):
        first_rows(Layout({"emb": torch.empty(2**24 + 1, 1, device="meta")}), ["*"])

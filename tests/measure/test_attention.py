"""Attention by head: every number is that of a float64 oracle, whoever calls it; and nothing is left behind."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from training import watch

from gradwatch import open_history
from gradwatch.measure import attention
from gradwatch.measure.attention_calls import by_head, mask_by_head

B, T, HEADS, WIDTH = 3, 7, 4, 8


class SelfAttention(nn.Module):
    """Attention as people write it; what goes into each call is kept for the oracle."""

    def __init__(self, how="sdpa", kv_heads=HEADS):
        super().__init__()
        self.how, self.kv_heads, self.seen = how, kv_heads, []
        self.q = nn.Linear(WIDTH, WIDTH)
        self.k = nn.Linear(WIDTH, WIDTH * kv_heads // HEADS)
        self.v = nn.Linear(WIDTH, WIDTH * kv_heads // HEADS)

    def split(self, x, heads):
        return x.view(*x.shape[:2], heads, -1).transpose(1, 2)

    def forward(self, x, mask=None, causal=True):
        q, k, v = (
            self.split(self.q(x), HEADS),
            self.split(self.k(x), self.kv_heads),
            self.split(self.v(x), self.kv_heads),
        )
        self.seen.append((q.detach(), k.detach(), mask, causal))
        if self.how == "sdpa":
            out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=self.kv_heads < HEADS)
        else:
            logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            allowed = torch.ones(x.shape[1], x.shape[1]).tril().bool() if causal else None
            logits = logits if allowed is None else logits.masked_fill(~allowed, torch.finfo(logits.dtype).min)
            ways = {"functional": lambda a: F.softmax(a, dim=-1), "method": lambda a: a.softmax(-1),
                    "torch": lambda a: torch.softmax(input=a, dim=-1)}  # fmt: skip
            out = ways[self.how](logits) @ v
        return out.transpose(1, 2).flatten(2)


class Block(nn.Module):
    def __init__(self, **kind):
        super().__init__()
        self.attn, self.mlp = SelfAttention(**kind), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())

    def forward(self, x, *how):
        return x + self.mlp(x + self.attn(x, *how))


class Net(nn.Module):
    def __init__(self, again=None, **kind):
        super().__init__()
        torch.manual_seed(0)
        self.again, self.embed, self.blocks = (
            again,
            nn.Linear(WIDTH, WIDTH),
            nn.ModuleList(Block(**kind) for _ in range(2)),
        )
        with torch.no_grad():
            self.blocks[1].attn.q.weight.mul_(40)

    def forward(self, x, *how):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x, *how) if self.again is None else checkpoint(block, x, *how, use_reentrant=self.again)
        return x


def oracle(calls):
    """`[3, H]`: the bound, the largest |logit| and the mean entropy, written out head by head in float64."""
    bound, largest, entropies = np.zeros(HEADS), np.zeros(HEADS), [[] for _ in range(HEADS)]
    for q, k, mask, causal in calls:
        for b in range(len(q)):
            for h in range(HEADS):
                queries, keys = q[b, h].double().numpy(), k[b, h * k.shape[1] // HEADS].double().numpy()
                scale = 1 / math.sqrt(queries.shape[1])
                lengths = np.linalg.norm(queries, axis=1), np.linalg.norm(keys, axis=1)
                bound[h] = max(bound[h], lengths[0].max() * lengths[1].max() * scale)
                for t, query in enumerate(queries):
                    row = keys[: t + 1 if causal else None] @ query * scale
                    if mask is not None and mask.dtype == torch.bool:
                        row = row[mask[t].numpy()]
                    elif mask is not None:
                        row = row + mask[t].double().numpy()
                        row = row[row > -1e4]
                    if len(row):
                        largest[h] = max(largest[h], np.abs(row).max())
                    if len(row) > 1:
                        p = np.exp(row - row.max())
                        p = p[p > 0] / p.sum()
                        entropies[h].append(-(p * np.log(p)).sum() / math.log(len(row)))
    return np.array([bound, largest, [np.mean(e) for e in entropies]])


def train(model, folder, loop="plain", steps=2, asked=True, how=()):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    handle = watch(model, optimizer, folder, activations=asked, activations_every=50)
    torch.manual_seed(1)
    run, kept = torch.compile(model, backend="eager") if loop == "compile" else model, {}
    for step in range(steps):
        for block in model.blocks:
            block.attn.seen.clear()
        for part in range(3 if loop == "accumulation" else 1):
            with torch.autocast("cpu", torch.bfloat16, enabled=loop == "autocast"):
                loss = run(torch.randn(B + part, T, WIDTH), *how).float().square().mean()
            kept[step] = [[*block.attn.seen] for block in model.blocks]  # not those of a checkpointed part in backward
            loss.backward()
            if loop == "accumulation":
                for block, calls in zip(model.blocks, kept[step], strict=True):
                    block.attn.seen[:] = calls
        if loop == "evaluation":
            with torch.no_grad():
                model(100 * torch.randn(B, T, WIDTH), *how)
        optimizer.step()
        optimizer.zero_grad()
    handle.close()
    return open_history(handle.dir).activations, kept


def heads_of(table, module, row=1):
    at = [table.layers.index(f"{module}[{i}]") for i in range(HEADS)]
    return np.array([table.values[q][row, at] for q in attention.QUANTITIES])


MASK = torch.rand(T, T, generator=torch.Generator().manual_seed(3)) < 0.5
MASK[2] = False  # a query that may see nothing
BIAS = torch.where(MASK, torch.linspace(-3, 3, T * T).view(T, T), -math.inf)
BIAS[2] = torch.finfo(torch.float32).min


@pytest.mark.parametrize(
    ("kind", "loop", "again", "how"),
    [({}, "plain", None, ()), ({}, "accumulation", None, ()), ({}, "evaluation", None, ()), ({}, "plain", True, ()),
     ({}, "accumulation", False, ()), ({}, "autocast", None, ()), ({"kv_heads": 2}, "plain", None, ()),
     ({}, "compile", None, ()),
     ({}, "plain", None, (None, False)), ({}, "plain", None, (MASK, False)), ({}, "plain", None, (BIAS, False))],
)  # fmt: skip
def test_every_number_is_the_oracles(kind, loop, again, how, tmp_path):
    model = Net(again, **kind)
    table, calls = train(model, tmp_path, loop, how=how)
    for i, seen in enumerate(calls[1]):
        found = heads_of(table, f"blocks.{i}.attn")
        np.testing.assert_allclose(found, oracle(seen), rtol=2e-5, atol=1e-6)
        assert (found[1] <= found[0] * 1.0001).all() or how == (BIAS, False)
    assert not any(name.startswith(("blocks.0[", "blocks.0.mlp[")) for name in table.layers)


@pytest.mark.parametrize("way", ["functional", "method", "torch"])
def test_an_attention_that_is_written_out_is_heard_at_its_softmax(way, tmp_path):
    table, calls = train(Net(how=way), tmp_path)
    wanted = oracle(calls[1][1])
    found = heads_of(table, "blocks.1.attn")
    np.testing.assert_allclose(found[1:], wanted[1:], rtol=2e-5, atol=1e-6)
    assert (found[0] >= found[1]).all()


class Torchs(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.mha, self.weights = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), weights

    def forward(self, x):
        return self.mha(x, x, x, need_weights=self.weights)[0]


def test_torchs_own_attention_has_its_heads_with_and_without_weights(tmp_path):
    found = []
    for weights in (False, True):
        torch.manual_seed(0)
        model = nn.ModuleList([Torchs(weights), Torchs(weights)])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        handle = watch(model, optimizer, tmp_path, activations=True)
        model[0](torch.randn(B, T, WIDTH, generator=torch.Generator().manual_seed(2))).sum().backward()
        optimizer.step()
        handle.close()
        found.append(heads_of(open_history(handle.dir).activations, "0.mha", row=0))
    np.testing.assert_allclose(found[0][1:], found[1][1:], rtol=1e-5)


def test_of_many_examples_and_queries_a_sample_is_taken_that_holds_the_last(monkeypatch):
    monkeypatch.setattr(attention, "ROWS", 3)
    monkeypatch.setattr(attention, "LOGITS", 2 * HEADS * 3 * T)
    examples, rows = attention.sampled(5, HEADS, T, T)
    assert [*range(5)][examples] == [0, 3]
    assert [*range(T)][rows] == [0, 3, 6]
    q, k = torch.randn(2, 5, HEADS, T, 6, generator=torch.Generator().manual_seed(0))
    seen = attention.of_scores(q, k, None, True, None)
    logits = torch.einsum("bhtd,bhsd->bhts", q, k).double() / math.sqrt(6)
    logits = logits.masked_fill(~torch.ones(T, T).tril().bool(), -math.inf)
    few = logits[::3, :, ::3]
    assert seen.largest.double().allclose(few.masked_fill(few == -math.inf, 0).abs().amax(dim=(0, 2, 3)), rtol=1e-5)
    assert seen.rows.tolist() == [2 * 2] * HEADS  # the first query sees one key: of that there is no entropy


@pytest.mark.parametrize("how", ["scores", "softmax"])
def test_what_a_finite_mask_takes_away_is_no_large_logit(how):
    q, k = torch.randn(2, 1, HEADS, 5, WIDTH).mul(1.5)
    mask = torch.where(torch.ones(5, 5).tril().bool(), 0.0, -100.0)  # Swin's, and far keys of ALiBi are as low
    logits = q @ k.transpose(-2, -1) / math.sqrt(WIDTH)
    scored, softened = attention.of_scores(q, k, mask, False, None), attention.of_softmax(logits + mask)
    seen = scored if how == "scores" else softened
    wanted = logits.masked_fill(mask < 0, 0).abs().amax(dim=(0, 2, 3))
    torch.testing.assert_close(seen.largest, wanted)
    assert (wanted < 60).all()


def test_logits_that_are_not_finite_are_infinite_and_their_rows_have_no_entropy():
    q = torch.ones(1, 2, 3, 4)
    q[0, 1, 1, 0] = math.nan
    seen = attention.of_scores(q, torch.ones(1, 2, 3, 4), None, False, None)
    assert seen.largest.tolist() == [2, math.inf]
    assert seen.bound.tolist() == [2, math.inf]
    assert seen.rows.tolist() == [3, 2]


def test_the_functions_are_torchs_own_but_in_sampled_steps(tmp_path):
    def now():
        return F.scaled_dot_product_attention, torch.softmax, "softmax" in vars(torch.Tensor)

    own, seen = now(), []
    handles = []
    for asked in (True, True, False):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        handles.append((model, optimizer, watch(model, optimizer, tmp_path, activations=asked, activations_every=4)))
    for step in range(6):
        for model, optimizer, _ in handles:
            seen.append((step, now() == own))
            model(torch.randn(B, T, WIDTH)).sum().backward()
            optimizer.step()
    for _, _, handle in handles:
        handle.close()
    assert {step for step, same in seen if not same} == {0, 1, 3, 4}  # 3: the first of them had begun step 4
    assert now() == own


@pytest.mark.parametrize("again", [None, True, False])
def test_training_is_bit_identical(again, tmp_path):
    def weights(asked):
        model = Net(again)
        train(model, tmp_path, "accumulation", steps=4, asked=asked)
        return [*model.parameters(), torch.rand(3)]

    assert all(torch.equal(a, b) for a, b in zip(weights(True), weights(False), strict=True))


def test_nothing_is_read_from_the_device():
    from test_gradients import NoCopies

    from gradwatch.measure.activations import Activations
    from gradwatch.measure.distributed import add_up
    from gradwatch.recording.modules import chosen

    for kind in ({}, {"how": "method"}):
        model = Net(**kind)
        inside = Activations(chosen(model, True))
        inside.begin(0)
        with NoCopies():
            model(torch.randn(B, T, WIDTH)).sum().backward()
            sample = add_up(inside.end(torch.device("cpu")), None)
        assert len(sample.names) == len(inside.names) + 2 * HEADS


def test_what_cannot_be_looked_at_ends_no_training(tmp_path):
    """Heads that change from call to call."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    handle = watch(model, optimizer, tmp_path, activations=True)
    attn = model.blocks[0].attn
    model(torch.randn(B, T, WIDTH)).sum().backward()
    attn.split = lambda x, _: x.view(*x.shape[:2], 2, -1).transpose(1, 2)
    with pytest.warns(match="attention cannot be recorded"):
        model(torch.randn(B, T, WIDTH)).sum().backward()
    optimizer.step()
    handle.close()
    table = open_history(handle.dir).activations
    assert np.isfinite(heads_of(table, "blocks.1.attn", row=0)).all()


def test_a_step_that_raised_and_a_close_leave_nothing_behind(tmp_path):
    model = Net()
    own = F.scaled_dot_product_attention

    class Fails(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("out of memory")

    optimizer = Fails(model.parameters(), lr=1e-3)
    with watch(model, optimizer, tmp_path, activations=True, activations_every=1):
        model(torch.randn(B, T, WIDTH)).sum().backward()
        with pytest.raises(RuntimeError, match="out of memory"):
            optimizer.step()
        assert F.scaled_dot_product_attention is not own
    assert F.scaled_dot_product_attention is own


@pytest.mark.parametrize("shape", [(2, 4, 7, 7), (4, 7, 7), (2, 1, 7, 7), (7, 7), (1, 1, 7)])
@pytest.mark.parametrize("heads", [(2, 4), (4,), (3, 2, 4)])
def test_a_mask_is_read_against_the_shape_of_its_queries(shape, heads):
    """Of four heads [H, T, S] is a bias of each head, as ALiBi's; torch reads it from its end."""
    q, k = torch.randn(*heads, 7, 8), torch.randn(*heads, 7, 8)
    mask = torch.randn(shape)
    try:
        whole = mask.expand(*heads, 7, 7)
    except RuntimeError:
        pytest.skip("torch takes no such mask")
    wanted = (q @ k.transpose(-2, -1) / 8**0.5 + whole).reshape(-1, *((1,) if len(heads) == 1 else (4,)), 7, 7)
    found = attention.sampled_logits(by_head(q), by_head(k), mask_by_head(mask, q, k), False, None)
    torch.testing.assert_close(found, wanted.reshape(found.shape))

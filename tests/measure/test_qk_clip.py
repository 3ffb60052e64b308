"""`QKClip`: after a step no head's logits of that batch are above tau, in every attention whose rows are known."""

import contextlib
import math

import numpy as np
import pytest
import torch
from test_gradients import NoCopies
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from training import watch

from gradwatch import WatchError, open_history
from gradwatch.measure import largest_logits
from gradwatch.measure.attention_calls import AttentionCalls, by_head
from gradwatch.measure.largest_logits import LargestLogits, largest_of
from gradwatch.measure.layout import Layout

B, T, HEADS, WIDTH = 3, 7, 4, 16


class SelfAttention(nn.Module):
    """Attention as people write it, with names that many use."""

    def __init__(self, how="sdpa", keys=HEADS, norm=False):
        super().__init__()
        self.how, self.num_heads, self.keys = how, HEADS, keys
        self.q_proj = nn.Linear(WIDTH, WIDTH)
        self.k_proj = nn.Linear(WIDTH, WIDTH * keys // HEADS)
        self.v_proj = nn.Linear(WIDTH, WIDTH * keys // HEADS)
        self.q_norm = nn.LayerNorm(WIDTH // HEADS) if norm else nn.Identity()

    def forward(self, x):
        q, k, v = (
            f(x).view(*x.shape[:2], n, -1).transpose(1, 2)
            for f, n in ((self.q_proj, HEADS), (self.k_proj, self.keys), (self.v_proj, self.keys))
        )
        if self.how == "sdpa":
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.keys < HEADS)
        elif self.how == "softmax":
            logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            hidden = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
            out = logits.masked_fill(hidden, -math.inf).softmax(-1) @ v
        else:
            out = v + q.mean() + k.mean()  # nothing that is heard
        return out.transpose(1, 2).flatten(2)


class Torchs(nn.Module):
    """torch's own attention."""

    def __init__(self, weights, **kind):
        super().__init__()
        self.weights, self.inner = weights, nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **kind)

    def forward(self, x):
        keys, values = x[..., : self.inner.kdim], x[..., : self.inner.vdim]
        return self.inner(x, keys, values, need_weights=self.weights)[0]


def transformers_model(name, **words):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(**words, attn_implementation="sdpa")
    model = getattr(transformers, f"{name}Model")(config)
    model.eval()  # without dropout
    return model


TINY = {"vocab_size": 11, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS,
        "intermediate_size": 24, "max_position_embeddings": 16}  # fmt: skip
MLA = {"q_lora_rank": None, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 3,
       "first_k_dense_replace": 2, "num_key_value_heads": HEADS}  # fmt: skip
MODELS = {
    "sdpa": SelfAttention,
    "softmax": lambda: SelfAttention("softmax"),
    "shared keys": lambda: SelfAttention(keys=2),
    "torch": lambda: Torchs(False),
    "torch, weights asked for": lambda: Torchs(True),
    "torch, without bias": lambda: Torchs(False, bias=False),
    "torch, other keys": lambda: Torchs(False, kdim=8, vdim=8),
    "GPT2": lambda: transformers_model("GPT2", vocab_size=11, n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=16),
    "Llama": lambda: transformers_model("Llama", **TINY, num_key_value_heads=2),
    "Bert": lambda: transformers_model("Bert", **TINY),
    "GPTNeoX": lambda: transformers_model("GPTNeoX", **TINY),
    "Phi3": lambda: transformers_model("Phi3", **TINY, num_key_value_heads=2, pad_token_id=0),
    "DeepseekV3": lambda: transformers_model("DeepseekV3", **TINY, **MLA),
    "DeepseekV3, low-rank queries": lambda: transformers_model("DeepseekV3", **TINY, **{**MLA, "q_lora_rank": 8}),
}
SHARED = {"shared keys": 2, "Llama": 2, "Phi3": 2}  # heads of keys


class Oracle(AttentionCalls):
    """Every attention's largest logit by head, written out."""

    def __init__(self, model):
        super().__init__({id(model)})
        self.found = []

    def scores(self, q, k, mask, causal, scale):
        q, k = by_head(q.detach().double()), by_head(k.detach().double())
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        logits = torch.einsum("bhtd,bhsd->bhts", q, k) * (scale or 1 / math.sqrt(q.shape[-1]))
        seen = torch.ones(logits.shape[-2:], dtype=torch.bool).tril() if causal else torch.ones(1, dtype=torch.bool)
        if mask is not None:
            seen = seen & (mask if mask.dtype == torch.bool else mask > -1e4)
        self.found.append(logits.masked_fill(~seen, -math.inf).amax((0, 2, 3)))

    def softmax(self, x, dim):
        if x.ndim >= 3:
            self.found.append(by_head(x.detach().double(), HEADS if x.ndim == 3 else None).amax((0, 2, 3)))

    @classmethod
    def of(cls, model, given):
        """`[attentions, H]` of this call of the model."""
        oracle = cls(model)
        oracle.begin()
        try:
            model(given)
        finally:
            oracle.stop()
        return torch.stack(oracle.found)


def data(model):
    torch.manual_seed(2)
    return torch.randn(B, T, WIDTH) if isinstance(model, (SelfAttention, Torchs)) else torch.randint(11, (B, T))


def loss_of(out):
    return (out if isinstance(out, torch.Tensor) else out[0]).float().square().mean()


def large(make, times=30.0):
    """A model whose queries and keys give logits of very different sizes from head to head."""
    torch.manual_seed(0)
    model = make()
    names = (
        "q_proj",
        "k_proj",
        "q_b_proj",
        "kv_b_proj",
        "query.",
        "key.",
        "query_key_value",
        "c_attn",
        "qkv_proj",
        "in_proj",
    )
    with torch.no_grad():
        for name, p in model.named_parameters():
            if any(n in name for n in names):
                p.mul_(times * torch.rand(p.shape[0], 1) + 1) if p.dim() > 1 else p.normal_()
    return model


@pytest.mark.parametrize("name", MODELS)
def test_every_head_is_brought_to_tau_and_nothing_else_is_changed(name, tmp_path):
    model = large(MODELS[name])
    given = data(model)
    before, weights = Oracle.of(model, given), {n: p.detach().clone() for n, p in model.named_parameters()}
    tau = float(before.median())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, tmp_path, renorm=f"QKClip({tau!r})", every=1) as handle:
        loss_of(model(given)).backward()
        optimizer.step()
    keys = SHARED.get(name, HEADS)
    largest = before.view(len(before), keys, -1).amax(2).repeat_interleave(HEADS // keys, 1)
    assert (largest > tau).any()
    first = (before * (tau / largest).clamp(max=1))[0]  # what the other layers are given has changed with the first
    torch.testing.assert_close(Oracle.of(model, given)[0], first, rtol=2e-4, atol=1e-4)
    changed = {n for n, p in model.named_parameters() if not torch.equal(p, weights[n])}
    known = ("q_proj", "k_proj", "q_b_proj", "kv_b_proj", "query", "key", "c_attn", "qkv_proj", "in_proj")
    assert changed
    assert all(any(part in n for part in known) for n in changed)
    history = open_history(handle.dir)
    assert {
        layer for layer, rate in zip(history.layers, history.layer("renorm_rate")[0], strict=True) if rate > 0
    } == changed


def test_the_rows_of_a_head_are_those_of_the_paper(tmp_path):
    """Section 2.2 by hand: gamma = min(1, tau / S) of each head, and its rows of W_q and W_k times the root of it."""
    model, x = (
        large(lambda: SelfAttention("softmax"), times=13.0).double(),
        torch.randn(B, T, WIDTH, dtype=torch.float64),
    )
    before = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    want = {name: values.copy() for name, values in before.items()}
    d, gammas = WIDTH // HEADS, []
    for head in range(HEADS):
        rows = slice(head * d, (head + 1) * d)
        queries, keys = (
            x.numpy() @ before[f"{n}.weight"][rows].T + before[f"{n}.bias"][rows] for n in ("q_proj", "k_proj")
        )
        logits = [queries[b, t] @ keys[b, s] / math.sqrt(d) for b in range(B) for t in range(T) for s in range(t + 1)]
        gammas.append(min(1.0, 100.0 / max(logits)))
        for name in ("q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias"):
            want[name][rows] *= math.sqrt(gammas[-1])
    assert 1.0 in gammas
    assert min(gammas) < 0.9
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, tmp_path, renorm="QKClip()"):
        loss_of(model(x)).backward()
        optimizer.step()
    for name, weight in want.items():
        np.testing.assert_allclose(model.get_parameter(name).detach().numpy(), weight, rtol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [None, "bool", "added"])
@pytest.mark.parametrize("piece", [1 << 24, 300, 20])
def test_the_largest_logit_is_that_of_all_products_however_they_are_cut(piece, masked, causal, monkeypatch):
    monkeypatch.setattr(largest_logits, "PIECE", piece)
    torch.manual_seed(3)
    q, k = torch.randn(B, HEADS, T, 8).double(), torch.randn(B, 2, T + 2, 8).double()
    seen = torch.rand(T, T + 2) > 0.4
    mask = {None: None, "bool": seen, "added": torch.zeros(T, T + 2).double().masked_fill(~seen, -1e9)}[masked]
    logits = torch.einsum("bhtd,bhsd->bhts", q, k.repeat_interleave(2, 1)) / math.sqrt(8)
    hidden = torch.zeros(T, T + 2, dtype=torch.bool)
    hidden |= torch.ones(T, T + 2).triu(1).bool() if causal else hidden
    hidden |= ~seen if masked else hidden
    want = logits.masked_fill(hidden, -math.inf).amax((0, 2, 3))
    torch.testing.assert_close(largest_of(q, k, mask, causal, None), want.float())


@pytest.mark.parametrize("name", ["sdpa", "shared keys", "softmax"])
def test_how_often_each_head_was_scaled_is_counted(name, tmp_path):
    """Of batches that grow to and fro, beside what is written out; rows are of steps 0, 4 and 8."""
    model, keys, steps = large(MODELS[name]), SHARED.get(name, HEADS), 10
    batches = [data(model) * size for size in torch.linspace(0.5, 1.5, steps).sin().square() + 0.2]
    tau, scaled, largest = float(Oracle.of(model, data(model)).median()) / 2, [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, tmp_path, renorm=f"QKClip({tau!r})", every=4, name="A") as handle:
        for x in batches:
            of_keys = Oracle.of(model, x)[0].view(keys, -1).amax(1).repeat_interleave(HEADS // keys)
            scaled.append(of_keys > tau)
            largest.append(of_keys)
            loss_of(model(x)).backward()
            optimizer.step()
    heads = open_history(handle.dir).heads
    assert heads.layers == tuple(f"A.[{i}]" for i in range(HEADS))
    assert heads.step.tolist() == [0, 4, 8]
    spans = [slice(0, 1), slice(1, 5), slice(5, 9)]
    counts = np.array([torch.stack(scaled[at]).sum(0).numpy() for at in spans])
    assert 0 < counts.min(axis=1).sum() + counts.max() < counts.size * 4
    np.testing.assert_array_equal(heads.values["qk_clips"], counts)
    wanted = [torch.stack(largest[at]).amax(0).numpy() for at in spans]
    np.testing.assert_allclose(heads.values["logit_max"], wanted, rtol=1e-4)


def run(model, folder, step, steps=2, tau=0.01):
    """Train for some steps of no rate; hands back the history."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, folder, renorm=f"QKClip({tau})", every=1) as handle:
        for i in range(steps):
            step(i)
            optimizer.step()
    return open_history(handle.dir)


def test_micro_batches_count_together_and_an_evaluation_does_not(tmp_path):
    model, small = large(SelfAttention), torch.randn(B, T, WIDTH)
    with torch.no_grad():
        tau = float(Oracle.of(model, small).max()) * 1.001

    def step(i):
        if i == 0:
            with torch.no_grad():
                model(10 * small)
            loss_of(model(small)).backward()
        else:
            for times in (1.0, 10.0, 1.0):
                loss_of(model(times * small)).backward()

    rates = run(model, tmp_path, step, tau=tau).layer("renorm_rate")
    assert np.nanmax(rates[0]) == 0
    assert np.nanmax(rates[1]) == 1


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_part_counts(reentrant, tmp_path):
    model = large(SelfAttention)
    x = torch.randn(B, T, WIDTH, requires_grad=True)
    run(model, tmp_path, lambda i: loss_of(checkpoint(model, x, use_reentrant=reentrant)).backward(), steps=1, tau=0.5)
    assert float(Oracle.of(model, x).max()) == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_change_nothing(value, tmp_path):
    model = large(SelfAttention)
    x = torch.randn(B, T, WIDTH)
    x[0, 0, 0] = value
    before = [p.detach().clone() for p in model.parameters()]

    def step(i):
        loss_of(model(x)).backward()
        for p in model.parameters():
            p.grad = torch.zeros_like(p)

    run(model, tmp_path, step, steps=1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_what_cannot_be_clipped_is_refused(tmp_path):
    for make, why in (
        (lambda: nn.Linear(4, 4), "has no attention whose rows of queries and keys are known"),
        (lambda: nn.Sequential(SelfAttention(norm=True)), "0 normalises its queries and keys .q_norm."),
        (lambda: torch.compile(nn.Sequential(SelfAttention())), "is compiled"),
        (lambda: Torchs(False, add_bias_kv=True), "add_bias_kv"),
    ):
        model = make()
        with pytest.raises(WatchError, match=why):
            watch(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path, renorm="QKClip()")
    assert list(tmp_path.iterdir()) == []


def test_attention_that_is_not_heard_ends_the_second_step_and_not_the_first(tmp_path):
    model = nn.Sequential(SelfAttention("other"))
    with pytest.raises(WatchError, match="none of the attention was heard in 2 steps"):
        run(model, tmp_path, lambda i: loss_of(model(torch.randn(B, T, WIDTH))).backward())


def test_queries_that_nobody_trains_are_refused_at_the_first_step(tmp_path):
    model = nn.Sequential(SelfAttention())
    model[0].q_proj.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
    with watch(model, optimizer, tmp_path, renorm="QKClip()"):
        loss_of(model(torch.randn(B, T, WIDTH))).backward()
        with pytest.raises(WatchError, match="scaled together"):
            optimizer.step()


def test_nothing_is_left_behind_and_only_may_choose(tmp_path):
    model = nn.Sequential(large(SelfAttention), large(SelfAttention))
    before, x = F.scaled_dot_product_attention, torch.randn(B, T, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, tmp_path, renorm="only('1.*', QKClip(0.01))", every=1) as handle:
        assert F.scaled_dot_product_attention is not before
        loss_of(model(x)).backward()
        optimizer.step()
    assert F.scaled_dot_product_attention is before
    history = open_history(handle.dir)
    rates = dict(zip(history.layers, history.layer("renorm_rate")[0], strict=True))
    assert [name for name, rate in rates.items() if rate > 0] == [
        f"1.{n}_proj.{w}" for n in "qk" for w in ("weight", "bias")
    ]
    clips = dict(zip(history.heads.layers, history.heads.values["qk_clips"][0], strict=True))
    assert clips == {f"{i}[{head}]": float(i) for i in range(2) for head in range(HEADS)}


def test_nothing_is_read_from_the_device():
    """Neither while it listens nor for the rows' factors; constants are made in the first step."""
    model = nn.Sequential(SelfAttention(), SelfAttention("softmax"))
    heads, layout, x = LargestLogits(model), Layout(dict(model.named_parameters())), torch.randn(B, T, WIDTH)
    heads.begin()
    try:
        for mode in (contextlib.nullcontext(), NoCopies()):
            own = x.clone()
            with mode:
                model(own)
                logits, powers = heads.of_rows(layout)
                heads.end(sampled=True)
        assert [each is None for each in logits] == [each is None for each in powers] == [*[False] * 4, *[True] * 2] * 2
    finally:
        heads.stop()


def test_frozen_queries_and_keys_stay_as_they_are(tmp_path):
    model = large(next(iter(MODELS.values())))
    tau = float(Oracle.of(model, data(model)).median())
    for name, p in model.named_parameters():
        p.requires_grad_("v_proj" in name or "out" in name or "o_proj" in name)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, tmp_path, renorm=f"QKClip({tau!r})") as handle:
        loss_of(model(data(model))).backward()
        optimizer.step()
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert not open_history(handle.dir).heads.values["qk_clips"].any()

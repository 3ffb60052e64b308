"""Whether an attention is told where its tokens stand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradwatch.measure.graph_nodes import walk
from gradwatch.measure.places import _has_order, without_places

B, T, H = 8, 6, 4
TOKENS = torch.randint(1, 9, (B, T))
CAUSAL = nn.Transformer.generate_square_subsequent_mask(T)


def body(dropout=0.0, norm_first=True):
    layer = nn.TransformerEncoderLayer(H, 2, 8, dropout, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def unplaced(out):
    return bool([*without_places([*walk(out.sum().grad_fn)])])


def embedded():
    return nn.Embedding(9, H)(TOKENS)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x,
        lambda x: x * H**0.5,
        lambda x: F.dropout(x, 0.1),
        lambda x: nn.Linear(H, H)(nn.LayerNorm(H)(x)),
        lambda x: torch.cat([nn.Parameter(torch.randn(1, 1, H)).expand(B, -1, -1), x], 1),
    ],
    ids=["alone", "scaled", "dropped", "mapped", "one-in-front"],
)
def test_tokens_without_places(change, dropout, norm_first):
    assert unplaced(body(dropout, norm_first)(change(embedded())))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x + nn.Parameter(torch.randn(1, T, H)),
        lambda x: x + torch.randn(T, H),
        lambda x: torch.randn(1, T, H) + x,
        lambda x: x + nn.Embedding(T, H).weight,
        lambda x: x + nn.Embedding(T, H)(torch.arange(T)),
        lambda x: x * torch.randn(1, T, H),
        lambda x: torch.cat([x[..., :2], torch.randn(B, T, 2)], 2),
        lambda x: nn.Conv1d(H, H, 3, padding=1)(x.transpose(1, 2)).transpose(1, 2),
        lambda x: nn.GRU(H, H, batch_first=True)(x)[0],
    ],
    ids=["weights", "sines", "in-front", "table", "looked-up", "turned", "beside", "convolution", "recurrence"],
)
def test_tokens_with_places(change, dropout):
    assert not unplaced(body(dropout)(change(embedded())))


def test_a_mask_that_hides_what_comes_later_tells_places():
    assert not unplaced(body()(embedded(), mask=CAUSAL))
    assert not unplaced(body()(embedded(), mask=CAUSAL, is_causal=True))
    x = embedded()[:, None]
    assert not unplaced(F.scaled_dot_product_attention(x, x, x, is_causal=True))
    scores = (x @ x.transpose(-2, -1)).masked_fill(CAUSAL < 0, -torch.inf)
    assert not unplaced(scores.softmax(-1) @ x)


def test_a_mask_of_padding_tells_none():
    assert unplaced(body()(embedded(), src_key_padding_mask=TOKENS > 7))


def test_what_has_no_tokens_or_no_attention_is_left_alone():
    assert not unplaced(body()(torch.randn(B, T, H)))
    assert not unplaced(nn.Linear(H, 2)(embedded()))


@pytest.mark.parametrize(
    ("kept", "is_told"),
    [
        ({"attn_mask": torch.zeros(B, 1, 1, T)}, False),
        ({"attn_mask": CAUSAL}, True),
        ({"attn_bias": CAUSAL.expand(B, 2, T, T)}, True),  # as a CUDA kernel has it
        ({}, False),
    ],
)
def test_masks_of_fused_kernels(kept, is_told):
    class Fused:
        _saved_is_causal = False

        def name(self):
            return "ScaledDotProductEfficientAttentionBackward0"

    node = Fused()
    for name, mask in kept.items():
        setattr(node, f"_saved_{name}", mask)
        setattr(node, f"_raw_saved_{name}", type("Raw", (), {"unpack_hook": None}))
    assert _has_order(node) == is_told

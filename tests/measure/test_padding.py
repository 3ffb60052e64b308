"""What a model makes of the padding of its rows, beside what is known of them."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from gradwatch.measure import padding
from gradwatch.measure.graph_nodes import walk

B, T = 16, 12


def rows(padded_in_front=False):
    """Tokens `[B, T]` from 1 on, filled up with 0, and the lengths `[B]`; one row has none."""
    torch.manual_seed(0)
    length = torch.randint(2, 7, (B,))
    length[0] = T
    there = torch.arange(T) < length[:, None]
    tokens = torch.randint(1, 9, (B, T)) * there
    return tokens.flip(1) if padded_in_front else tokens, length


def seen(out):
    return {
        name: float(value) for _, found in padding.seen([*walk(out.sum().grad_fn)]) for name, value in found.items()
    }


def given(tokens, numbers, batch_first):
    """What a recurrence is given: embeddings, or data in which padding is 0."""
    table = nn.Embedding(9, 3, padding_idx=0)
    x = torch.randn(9, 3)[tokens] * (tokens != 0)[..., None] if numbers else table(tokens)
    return x if batch_first else x.transpose(0, 1)


@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_a_state_that_is_read_behind_padding(kind, layers, batch_first, numbers):
    tokens, length = rows()
    behind = {"padding_behind": pytest.approx(float(1 - length.float().mean() / T))}
    rnn = kind(3, 6, layers, batch_first=batch_first)
    out, state = rnn(given(tokens, numbers, batch_first))
    state = state[0] if kind is nn.LSTM else state
    assert seen(out[:, -1] if batch_first else out[-1]) == behind
    assert seen(state[-1]) == behind
    assert seen(out.mean(1 if batch_first else 0)) == {}
    assert seen(out[:, 2] if batch_first else out[2]) == {}
    if batch_first:
        assert seen(out[torch.arange(B), length - 1]) == {}


def test_of_packed_rows_and_of_padding_in_front_there_is_none_behind():
    tokens, length = rows()
    rnn = nn.GRU(3, 6, batch_first=True)
    packed = pack_padded_sequence(given(tokens, False, True), length, True, enforce_sorted=False)
    out, state = rnn(packed)
    assert seen(state[-1]) == {}
    assert seen(pad_packed_sequence(out, True)[0][:, -1]) == {}
    tokens, _ = rows(padded_in_front=True)
    assert seen(rnn(given(tokens, False, True))[1][-1]) == {"padding_behind": 0.0}


@pytest.mark.parametrize("dropout", [0.0, 0.1])  # fused, and written out
@pytest.mark.parametrize(
    ("ignores", "real", "filled"), [("padding", 0.0, 1.0), ("words", 1.0, 0.0), ("none", 0.0, 0.0)]
)
def test_a_mask_of_a_transformer(dropout, ignores, real, filled):
    tokens, _ = rows()
    tokens[0, -3:] = 0  # where nothing is left to look at, the result is not a number
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout, batch_first=True)
    body, table = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Embedding(9, 4, padding_idx=0)
    mask = {"padding": tokens == 0, "words": tokens != 0, "none": None}[ignores]
    wanted = {"real_masked": real, "padding_masked": filled} if mask is not None or dropout else {}
    assert seen(body(table(tokens), src_key_padding_mask=mask)) == wanted


@pytest.mark.parametrize("in_front", [0, 1])
def test_an_attention_that_is_written_out_or_has_a_token_in_front(in_front):
    tokens, _ = rows()
    tokens[0, -3:] = 0
    table, first = nn.Embedding(9, 4, padding_idx=0), nn.Parameter(torch.randn(1, in_front, 4))
    x = torch.cat([first.expand(B, -1, -1), table(tokens)], 1)
    ignored = torch.cat([torch.zeros(B, in_front, dtype=torch.bool), tokens != 0], 1)
    scores = (x @ x.transpose(1, 2)).masked_fill(ignored[:, None], -torch.inf)
    assert seen(scores.softmax(-1) @ x) == {"real_masked": 1.0, "padding_masked": 0.0}


def test_what_has_other_places_than_its_tokens_is_left_alone():
    tokens, _ = rows()
    table = nn.Embedding(9, 4, padding_idx=0)
    x = table(tokens)
    scores = x @ x[:, ::2].transpose(1, 2)
    assert seen(scores.softmax(-1)) == {}
    assert seen(nn.Linear(4, 3)(x).softmax(-1)) == {}


def test_tokens_that_were_written_to_since_tell_nothing():
    tokens, _ = rows()
    out = nn.GRU(3, 6, batch_first=True)(given(tokens, False, True))[0][:, -1]
    tokens.zero_()
    assert seen(out) == {}

"""What is said of rows of unlike lengths, or of no order: padding that is read as data, masks, places.

Legend: B rows of a batch, T places.
"""

from __future__ import annotations

from dataclasses import replace

from gradwatch.analysis.rules.facts import middle
from gradwatch.analysis.rules.finding import Finding, whole_run
from gradwatch.analysis.rules.loss_graph import graph_rows, shape_in
from gradwatch.analysis.rules.progress import can_be_judged, succeeds
from gradwatch.analysis.rules.sampled_losses import in_most_looks, layer_at, sampled
from gradwatch.formatting import percent
from gradwatch.history import History


def padding_read_as_data(history: History, share: float = 0.3, well: float = 0.5) -> list[Finding]:
    """A recurrence whose state is read at the last place of its rows, behind padding. A warning; a note where the
    training succeeds by the share `well` all the same.

    Alarm: over the share `share` of the places, by the median of the samples, are padding that the state went through
    just before it was read (`in_loss/padding_behind`).
    Source: torch's documentation of `pack_padded_sequence`, whose last state is that of each row's own last place.
    """
    behind = middle(in_most_looks(history, "padding_behind"))
    if not behind >= share:  # NaN is not
        return []
    layer = layer_at(history, sampled(history, "layer_of/padding_behind")[1][-1])
    found = whole_run(
        history,
        "padding-read-as-data",
        layer,
        {"padding_behind": behind},
        f"The state of a recurrence is read at the last place of its rows, and by then it has gone through padding: "
        f"{percent(behind)} of all places, of the average row. What it knew of the row is fading or "
        "gone, and so is the gradient on the way back.",
        "Read each row's state at its own last place: out[torch.arange(len(out)), lengths - 1], or give the recurrence "
        "pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False) and read h_n.",
    )
    return [replace(found, severity="note") if succeeds(history, well) else found]


def mask_inverted(history: History, most: float = 0.8, least: float = 0.2, near: float = 0.01) -> list[Finding]:
    """An attention that leaves out the real tokens and looks at the padding, or leaves out what comes before a token
    and looks at what follows it. A warning.

    Alarm: its mask takes the share `most` of the real tokens away or more, and `least` of the padding or less, by the
    medians of the samples (`in_loss/real_masked`, `padding_masked`). Or in each sample no attention that is written out
    of T tokens gives more than 1/T of its weights to what is not later, within `near` of that (`in_loss/causal`): each
    looks at what follows it alone, and the last one, whose mask leaves it nothing, at all alike.
    Source: torch's documentation of `MultiheadAttention`, whose `key_padding_mask` is True for what is to be ignored,
    and of `scaled_dot_product_attention`, whose `attn_mask` is True for what takes part; Vaswani et al.,
    arXiv:1706.03762, section 3.2.3: a place may look at those up to itself.
    """
    masked, of_padding = (middle(in_most_looks(history, name)) for name in ("real_masked", "padding_masked"))
    if not (masked >= most and of_padding <= least):
        return _looks_ahead(history, near)
    return [
        whole_run(
            history,
            "mask-inverted",
            layer_at(history, sampled(history, "layer_of/real_masked")[1][-1]),
            {"real_masked": masked, "padding_masked": of_padding},
            f"The mask of an attention takes away {percent(masked)} of the real tokens and {percent(of_padding)} of "
            "the padding: it is the wrong way round, and what is attended to is padding.",
            "Turn it round. key_padding_mask and src_key_padding_mask are True where a token is to be ignored "
            "(tokens == pad); attn_mask of scaled_dot_product_attention is True where one takes part (tokens != pad).",
        )
    ]


def _looks_ahead(history: History, near: float, samples: int = 3) -> list[Finding]:
    _, causal, places = sampled(history, "causal", "layer_of/causal")
    shapes = [shape_in(row["shape"]) for row in graph_rows(history, "softmax")]
    lengths = {shape[-1] for shape in shapes if len(shape) > 2 and shape[-1] == shape[-2] > 3}
    if len(causal) < samples or not any((abs(causal * length - 1) < near).all() for length in lengths):
        return []
    return [
        whole_run(
            history,
            "mask-inverted",
            layer_at(history, places[-1]),
            {"weight_ahead": 1 - middle(causal)},
            f"An attention gives {percent(1 - middle(causal))} of its weights to later tokens: "
            "its mask takes away what comes before each, and leaves what follows.",
            "Turn it round: scores.masked_fill(mask == 0, -inf) with mask = torch.tril(torch.ones(T, T)), or "
            "is_causal=True of scaled_dot_product_attention; attn_mask of MultiheadAttention is True where a token is "
            "not looked at: torch.triu(torch.ones(T, T), 1).bool(). If rows are read from their end, nothing is wrong.",
        )
    ]


def positions_missing(history: History, min_steps: int = 100, running: int = 500) -> list[Finding]:
    """An attention over tokens that is told nothing of where each stands, where the training does not succeed. A
    warning.

    Alarm: between the table of the tokens and the attention nothing differs from place to place, nor does a mask
    (`measure.places.without_places`). Of sets no more is wanted: a training that `succeeds` is left alone.
    Source: Vaswani et al., arXiv:1706.03762, section 3.5.
    """
    for row in graph_rows(history, "unplaced"):
        if succeeds(history) or not can_be_judged(history, min_steps, running):
            continue
        shape = list(shape_in(row["shape"]))
        return [
            whole_run(
                history,
                "positions-missing",
                row["layer"],
                {"shape": str(shape)},
                f"The tokens {shape} come to the attention as the table has them: nothing tells it where each of them "
                "stands, and no mask what comes before what. A row and the same row in any other order are one to it.",
                "Add a position to each token before the first layer (a table of positions, or sines and cosines), or "
                "turn queries and keys by it. If the rows are sets, whose order means nothing, it is something else.",
            )
        ]
    return []

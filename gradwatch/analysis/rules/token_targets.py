"""What is wrong with the tokens that a loss asks for, in steps that were sampled."""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.rules.finding import Finding, either, whole_run
from gradwatch.analysis.rules.sampled_losses import layer_at, sampled
from gradwatch.formatting import percent
from gradwatch.history import Floats, History


def padding_in_loss(history: History, share: float = 0.5, at_ends: float = 0.5) -> list[Finding]:
    """Padding is asked for as if it were text. A warning.

    Alarm: of targets that belong to rows of tokens one and the same token is the most frequent one in all samples, has
    `share` of them by the median, none is ignored, and it stands at one end of the rows in `at_ends` more of them than
    at the other; of what is no text, at the last one.
    Source: torch's documentation of CrossEntropyLoss, `ignore_index`.
    """
    _, top, asked, ends, ignored = sampled(history, "target_top", "target_top_share", "target_top_at_ends", "ignored")
    if len(top) < 3 or len({*top}) > 1:
        return []
    if ignored.any():
        return _nothing_else(history, top[0], asked, ignored)
    usual, end = float(np.median(asked)), float(np.median(ends))
    is_text = len(sampled(history, "target_is_input")[0]) > 0
    more = abs(end) if is_text else end  # only texts are filled up in front
    if usual < share or more < at_ends:
        return []
    token, causes = f"{top[0]:.0f}", () if is_text else _PADDING_OR_STATE
    said = either(causes) if causes else "It is padding."
    return [
        whole_run(
            history,
            "padding-in-loss",
            "",
            {"token": float(top[0]), "share_of_targets": usual, "more_at_one_end": more},
            f"{percent(usual)} of the tokens that the loss asks for are the token {token}, which stands at one end of "
            f"the rows. {said} It is easy to say, so the loss falls, and all else has a small part of the mean.",
            f"cross_entropy(..., ignore_index={token}), if {token} is nothing but padding; where it also ends a text, "
            "put -100 into the targets behind the first one.",
            causes,
        )
    ]


_PADDING_OR_STATE = ("it is padding", "it is a state that lasts to the end of its row, and is rightly asked for")


def _nothing_else(
    history: History, token: float, asked: Floats, ignored: Floats, all_of: float = 0.99
) -> list[Finding]:
    """Of the tokens that are asked for all are one and the same, and others are left out."""
    if np.median(asked) < all_of or len(sampled(history, "target_is_input")[0]) < 3:
        return []
    return [
        whole_run(
            history,
            "padding-in-loss",
            "",
            {"token": float(token), "share_of_targets": float(np.median(asked)), "ignored": float(np.median(ignored))},
            f"Of the tokens {percent(float(np.median(ignored)))} are left out of the loss, and of the others "
            f"{percent(float(np.median(asked)))} are the token {token:.0f}: the padding is asked for, not the text.",
            "Turn the mask round: a loss is multiplied by 1 where there is text, and by 0 where there is padding (a "
            "key_padding_mask of torch is True where there is padding).",
        )
    ]


def labels_not_shifted(history: History, share: float = 0.98, varied: float = 0.9) -> list[Finding]:
    """The model is asked for the token that it is given at the same place. A warning.

    Alarm: of targets that belong to rows of tokens `share` are the token itself, in the median of the samples, and no
    token is more than the share `varied` of them: what is always the same is the same as anything; nor where another
    part of the model reads the tokens before it, as the decoder of an autoencoder does. Or `share` are the
    token after the next one, and less than half the next: they were shifted twice (`_shifted_twice`). Or most are the
    token itself, and attention reads all others: those that were not masked are asked for, too (`_unmasked`).
    Source: Radford et al. (2018), the loss of a language model: the next token, given those before it.
    """
    _, same, top = sampled(history, "target_is_input", "target_top_share")
    _, copied, following = sampled(history, "target_is_input", "target_is_next")
    if len(copied) and min(np.median(copied), np.median(following)) > share:
        return []
    if len(same) < 3 or np.median(same) < share or np.median(top) > varied:
        return _shifted_twice(history, share, varied) or _unmasked(history, share)
    causes = ("the next token was meant, and the targets were not shifted", "the model is to give back what it reads")
    return [
        whole_run(
            history,
            "labels-not-shifted",
            "",
            {"share_that_is_the_input": float(np.median(same))},
            f"{percent(float(np.median(same)))} of the targets are the token that the model is given at the same "
            f"place: it has only to copy. {either(causes)}",
            "Ask for the next token: cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()). A model of "
            "Transformers shifts labels itself; then do not shift them, nor compute the loss a second time.",
            causes,
        )
    ]


def _unmasked(history: History, share: float, most: float = 0.6) -> list[Finding]:
    """Targets of which most, and not all, are the token that is read there, where attention reads what follows, too.

    Source: Devlin et al., arXiv:1810.04805, section 3.1: only the masked tokens are predicted.
    """
    _, same, ignored = sampled(history, "target_is_input", "ignored")
    usual = float(np.median(same)) if len(same) >= 3 else 0.0
    if not most < usual < share or ignored.any() or not _reads_ahead(history):
        return []
    return [
        whole_run(
            history,
            "labels-not-shifted",
            "",
            {"share_that_is_the_input": usual},
            f"{percent(usual)} of the targets are the token that the model is given at the same place: it has only to "
            f"copy them, and they are most of the loss. Those that were masked or changed are the rest. {either(_ALL)}",
            "Of masked tokens ask for these alone: labels[~masked] = -100, which cross_entropy leaves out. Of texts "
            "that are to be corrected ask for all, or nothing tells the model what is right already.",
            _ALL,
        )
    ]


_ALL = ("only the masked tokens were meant", "the model is to correct a text, and to leave the rest of it as it is")


def _reads_ahead(history: History) -> bool:
    """Whether an attention is seen to read tokens that follow."""
    causal = sampled(history, "causal")[1]
    return len(causal) > 0 and bool(np.median(causal) < 1)


def _shifted_twice(history: History, share: float, varied: float) -> list[Finding]:
    """Targets that are the token after the next one, as where a model shifts those that were shifted before."""
    _, second, following, top = sampled(history, "target_is_after_next", "target_is_next", "target_top_share")
    if len(second) < 3 or np.median(second) < share or np.median(following) > 0.5 or np.median(top) > varied:
        return []
    if _reads_ahead(history):
        return []  # its attention reads the token that is asked for: to find it is the task
    usual = float(np.median(second))
    return [
        whole_run(
            history,
            "labels-not-shifted",
            "",
            {"share_that_is_after_the_next": usual},
            f"{percent(usual)} of the targets are not the next token but the one after it: they were shifted twice, "
            "and the next one is never learnt.",
            "Shift once: a model of Transformers shifts labels itself, and a decoder whose inputs begin with a token "
            "of their own is given targets as they are.",
        )
    ]


def future_seen(
    history: History, following: float = 0.98, back: float = 0.995, varied: float = 0.9, least: int = 3
) -> list[Finding]:
    """What a model is asked for it is given: a column of its inputs, or the token that its attention reads. A warning.

    Alarm: one column of a table that weights are given holds the targets of its rows, `following` of them; or as many
    targets are the token at the next place of what is read, and each attention of tokens over the same ones that is
    seen gives less than `back` of its weight to a token itself and to earlier ones. In the median of the samples, less
    than `varied` of the targets one and the same.
    Source: Kaufman et al. (2012), Leakage in Data Mining; Vaswani et al., arXiv:1706.03762, section 3.2.3 (the mask of
    the decoder).
    """
    given = _in_data(history, following, varied, least)
    if given:
        return given
    _, following_share, same = sampled(history, "target_is_next", "target_is_input")
    _, top = sampled(history, "target_top_share")  # of tokens
    _, causal, places = sampled(history, "causal", "layer_of/causal")
    if len(following_share) < least or len(causal) < least or np.median(following_share) < following:
        return []
    if np.median(same) > 0.5 or (len(top) and np.median(top) > varied) or np.median(causal) > back:
        return []
    ahead = percent(1 - float(np.median(causal)))
    weak = "" if np.median(causal) < 0.7 else " A mask that adds a finite number (-10, -1e3) is outgrown by the logits."
    return [
        whole_run(
            history,
            "future-seen",
            layer_at(history, places[-1]),
            {"share_that_is_next": float(np.median(following_share)), "weight_ahead": 1 - float(np.median(causal))},
            f"The model is asked for the next token, and its attention gives {ahead} of its weight to later tokens: it "
            "reads what it is to foretell. The loss falls below what can be foretold, and nothing of it is left where "
            "tokens are made one by one.",
            "Mask what comes later: is_causal=True in scaled_dot_product_attention, or a mask that is -inf above the "
            f"diagonal (torch.nn.Transformer.generate_square_subsequent_mask).{weak} To see it: the outputs at a place "
            "must not change when later tokens do.",
        )
    ]


def _in_data(history: History, share: float, varied: float, least: int) -> list[Finding]:
    found, top = sampled(history, "target_in_data")[1], sampled(history, "target_top_share")[1]
    if len(found) < least or np.median(found) < share or (len(top) and np.median(top) > varied):
        return []
    causes = ("the targets were to be those of a later row or time, and were not shifted", "the column is the target")
    return [
        whole_run(
            history,
            "future-seen",
            "",
            {"share_in_data": float(np.median(found))},
            f"{percent(float(np.median(found)))} of the targets stand in one column of what the model is given, in "
            f"their own row: it has only to copy that. {either(causes)}",
            "Shift the targets against the inputs, or take the column out: what is not known yet when the model is "
            "asked must not be given to it. To find it: (inputs == targets[:, None]).float().mean(0).",
            causes,
        )
    ]

"""Daily healthy trainings, third part: words, letters, and what is bought next. An expert is content with each.

They only count (the group `daily`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import functools
import io
import keyword
import math
import tokenize

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import fit, healthy, score_of, seeded
from unseen.daily.healthy_data import names
from unseen.sent.healthy_data import manual


@functools.cache
def tagged():
    """A program's letters, `[N]` below 128, and of what each is a part, `[N]`: 0 other, 1 name, 2 keyword to 5 text."""
    import argparse
    import inspect

    source = inspect.getsource(argparse)
    lines = source.splitlines(keepends=True)
    starts = [0, *torch.tensor([len(line) for line in lines]).cumsum(0).tolist()]
    kinds = torch.zeros(len(source), dtype=torch.long)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = {tokenize.NAME: 1, tokenize.NUMBER: 3, tokenize.COMMENT: 4, tokenize.STRING: 5}.get(token.type, 0)
        kind = 2 if keyword.iskeyword(token.string) else kind
        kinds[starts[token.start[0] - 1] + token.start[1] : starts[token.end[0] - 1] + token.end[1]] = kind
    return torch.tensor([min(ord(c), 127) for c in source]), kinds


@healthy(0.3)
def letters_of_a_program_tagged(folder):
    """A small BERT that tags each letter: AdamW, a tenth of warm-up, a line down to zero, a clip at 1."""
    from transformers import BertConfig, BertForTokenClassification, get_linear_schedule_with_warmup

    seeded(1213)
    codes, kinds = tagged()
    size = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    net = BertForTokenClassification(BertConfig(vocab_size=128, max_position_embeddings=64, num_labels=6, **size))
    make = optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    plan = get_linear_schedule_with_warmup(make, 15, 150)

    def loss_of(step):
        at = torch.randint(len(codes) - 48, (16, 1)) + torch.arange(48)
        return net(input_ids=codes[at], labels=kinds[at]).loss

    return fit(folder, net, make, loss_of, 150, schedule=plan, clip="ClipByGlobalNorm(1.0)")


@healthy(0.2)
def names_of_all_characters(folder):
    """A small GPT-2 learns what Unicode calls its characters: bfloat16, four parts a step, warm-up and cosine."""
    from transformers import GPT2Config, GPT2LMHeadModel

    seeded(1214)
    codes = torch.tensor([min(ord(c), 127) for c in "\n".join(names()[0])])
    size = {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 40}
    net = GPT2LMHeadModel(GPT2Config(vocab_size=128, bos_token_id=0, eos_token_id=0, **size))
    make = optim.AdamW(net.parameters(), 4e-3, betas=(0.9, 0.95), weight_decay=0.1)
    rise = optim.lr_scheduler.LinearLR(make, 0.05, total_iters=8)
    plan = optim.lr_scheduler.SequentialLR(make, [rise, optim.lr_scheduler.CosineAnnealingLR(make, 62, 4e-4)], [8])

    def loss_of(step):
        at = torch.randint(len(codes) - 40, (8, 1)) + torch.arange(40)
        with torch.autocast("cpu", torch.bfloat16):
            return net(input_ids=codes[at], labels=codes[at]).loss / 4

    options = {"schedule": plan, "accumulate": 4, "clip": "ClipByGlobalNorm(1.0)"}
    return fit(folder, net, make, loss_of, 70, score=score_of(loss_of), **options)


@healthy(0.15)
def text_read_on_with_its_state_kept(folder):
    """The classic of word_language_model: an LSTM, plain SGD at 20, a clip at a quarter, the rate a fourth at times."""
    seeded(1215)
    net = nn.ModuleDict({"read": nn.Embedding(128, 48), "rnn": nn.LSTM(48, 96), "say": nn.Linear(96, 128)})
    for name in ("read", "say"):
        nn.init.uniform_(net[name].weight, -0.1, 0.1)
    nn.init.zeros_(net["say"].bias)
    rows, length = 16, 24
    text = manual()[: rows * 9700].view(rows, -1).T
    kept = {"state": None}

    def loss_of(step):
        piece = text[step * length : (step + 1) * length + 1]
        said, state = net["rnn"](net["read"](piece[:-1]), kept["state"])
        kept["state"] = tuple(part.detach() for part in state)
        return F.cross_entropy(net["say"](said).flatten(0, 1), piece[1:].flatten())

    make = optim.SGD(net.parameters(), 20.0)
    plan = optim.lr_scheduler.MultiStepLR(make, [300, 360], 0.25)
    return fit(folder, net, make, loss_of, 400, schedule=plan, clip="ClipByGlobalNorm(0.25)")


@functools.cache
def bags():
    """Each character's name as words, `[N, 8]`, 0 where there is none, and its category `[N]`."""
    said, category = names()
    kinds, known = sorted(set(category)), {}
    rows = torch.zeros(len(said), 8, dtype=torch.long)
    for row, name in zip(rows, said, strict=True):
        words = name.replace("-", " ").split()[:8]
        row[: len(words)] = torch.tensor([known.setdefault(word, len(known) + 1) for word in words])
    return rows, torch.tensor([kinds.index(one) for one in category]), len(known) + 1, len(kinds)


@healthy(0.3)
def kinds_by_bags_of_words(folder):
    """The classic of text classification: a mean of words, plain SGD at 5, a clip at a tenth, a tenth of the rate."""
    seeded(1216)
    rows, kinds, words, many = bags()
    net = nn.Sequential(nn.EmbeddingBag(words, 32, padding_idx=0), nn.Linear(32, many))
    for p in net.parameters():
        nn.init.uniform_(p, -0.5, 0.5)
    make = optim.SGD(net.parameters(), 5.0)

    def loss_of(step):
        at = torch.randint(len(rows), (64,))
        said = net(rows[at])
        return F.cross_entropy(said, kinds[at]), {"accuracy": (said.argmax(1) == kinds[at]).float().mean()}

    plan = optim.lr_scheduler.StepLR(make, 400, 0.1)
    return fit(folder, net, make, loss_of, 700, schedule=plan, clip="ClipByGlobalNorm(0.1)")


@healthy(0.3)
def turned_words_as_in_the_annotated_transformer(folder):
    """Norms behind the sums, embeddings times the root of their width, Adam's rate by the root of the step."""
    seeded(1217)
    wide, letters = 48, 16
    net = nn.ModuleDict(
        {
            "embed": nn.Embedding(letters, wide),
            "body": nn.Transformer(wide, 4, 1, 1, 96, dropout=0.1, batch_first=True),
            "say": nn.Linear(wide, letters),
        }
    )
    for p in net.parameters():
        if p.ndim > 1:
            nn.init.xavier_uniform_(p)
    turn = torch.arange(16)[:, None] / 10_000 ** (torch.arange(0, wide, 2) / wide)
    place = torch.stack([turn.sin(), turn.cos()], -1).flatten(1)
    make = optim.Adam(net.parameters(), wide**-0.5, betas=(0.9, 0.98), eps=1e-9)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: min((step + 1) ** -0.5, (step + 1) * 80**-1.5))
    hidden = nn.Transformer.generate_square_subsequent_mask(7)

    def loss_of(step):
        words = torch.randint(3, letters, (32, 6))
        answer = torch.cat([torch.ones(32, 1).long(), words.flip(1), torch.full((32, 1), 2)], 1)
        put = lambda codes: net["embed"](codes) * math.sqrt(wide) + place[: codes.shape[1]]  # noqa: E731
        said = net["say"](net["body"](put(words), put(answer[:, :-1]), tgt_mask=hidden, tgt_is_causal=True))
        return F.cross_entropy(said.flatten(0, 1), answer[:, 1:].flatten(), label_smoothing=0.1)

    return fit(folder, net, make, loss_of, 400, schedule=plan)


class Bought(nn.Module):
    """Attention over what was bought before (SASRec, Kang and McAuley 2018); 0 is nothing."""

    def __init__(self, things=61, wide=32):
        super().__init__()
        self.thing, self.place = nn.Embedding(things, wide, padding_idx=0), nn.Embedding(16, wide)
        self.body = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(wide, 2, wide, 0.1, batch_first=True, norm_first=True), 2, nn.LayerNorm(wide)
        )

    def forward(self, before):
        hidden = nn.Transformer.generate_square_subsequent_mask(before.shape[1])
        x = self.thing(before) * math.sqrt(32) + self.place.weight[: before.shape[1]]
        return self.body(x, mask=hidden, is_causal=True)


@healthy(0.3)
def next_thing_after_those_before(folder):
    """What was bought against one thing that was not, in lists of all lengths; Adam as its authors have it."""
    seeded(1218)
    net, after = Bought(), 1 + torch.stack([torch.randperm(60)[:3] for _ in range(61)])
    nn.init.normal_(net.thing.weight, std=0.02)

    def lists():
        seen = [torch.randint(1, 61, (48,))]
        for _ in range(12):
            seen.append(after[seen[-1], torch.randint(3, (48,))])
        seen = torch.stack(seen, 1)
        return seen * (torch.arange(13) < torch.randint(4, 14, (48, 1)))

    def loss_of(step):
        seen = lists()
        state, there = net(seen[:, :-1]), (seen[:, 1:] > 0).float()
        other = torch.randint(1, 61, there.shape)
        taken = (state * net.thing(seen[:, 1:])).sum(2)
        left = (state * net.thing(other)).sum(2)
        return -((F.logsigmoid(taken) + F.logsigmoid(-left)) * there).sum() / there.sum()

    make = optim.Adam(net.parameters(), 1e-3, betas=(0.9, 0.98))
    return fit(folder, net, make, loss_of, 300)


@healthy(0.1)
def walks_among_the_miserables(folder):
    """Who stands near whom on walks through a novel (DeepWalk): sparse tables, SGD whose rate falls in a line."""
    import networkx

    seeded(1219)
    graph = networkx.convert_node_labels_to_integers(networkx.les_miserables_graph())
    ties = torch.tensor(networkx.to_numpy_array(graph), dtype=torch.float32)
    n = len(ties)
    net = nn.ModuleDict({"who": nn.Embedding(n, 16, sparse=True), "near": nn.Embedding(n, 16, sparse=True)})
    nn.init.uniform_(net["who"].weight, -0.5 / 16, 0.5 / 16)
    nn.init.zeros_(net["near"].weight)
    often = ties.sum(1) ** 0.75

    def walks():
        at = [torch.randint(n, (32,))]
        for _ in range(6):
            at.append(ties[at[-1]].multinomial(1)[:, 0])
        at = torch.stack(at, 1)
        return torch.cat([torch.stack([at[:, i], at[:, i + far]], 1) for far in (1, 2) for i in range(7 - far)])

    def loss_of(step):
        who, near = walks().T
        other = often.multinomial(5 * len(who), replacement=True).view(-1, 5)
        state = net["who"](who)
        said = F.logsigmoid((state * net["near"](near)).sum(1))
        unsaid = F.logsigmoid(-(state[:, None] * net["near"](other)).sum(2)).sum(1)
        return -(said + unsaid).sum()

    make = optim.SGD(net.parameters(), 0.025)
    plan = optim.lr_scheduler.LinearLR(make, 1.0, 0.01, 500)
    return fit(folder, net, make, loss_of, 500, schedule=plan)

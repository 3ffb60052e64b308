"""Typical healthy trainings, second part: words, speech, what is made up (the group "typical").

They only count: whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy

import torch
from nets import ALPHABET, digits, pieces
from torch import nn, optim
from torch.nn import functional as F
from unseen import Outcome, dense, fit, healthy, score_of, seeded
from unseen.typical.healthy_data import decayed_apart, images, pretrain, rise_and_cosine, some, watched

import gradwatch


class Gpt(nn.Module):
    """As in nanoGPT: normal weights of 0.02, the last of each branch less by the depth, tied ends."""

    def __init__(self, kinds, wide=48, deep=2, long=24):
        super().__init__()
        self.embed, self.place = nn.Embedding(kinds, wide), nn.Embedding(long, wide)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(wide, 4, 4 * wide, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(deep)
        )
        self.norm, self.head = nn.LayerNorm(wide), nn.Linear(wide, kinds, bias=False)
        for name, p in self.named_parameters():
            if p.ndim > 1:
                last = name.endswith(("out_proj.weight", "linear2.weight"))
                nn.init.normal_(p, std=0.02 / (2 * deep) ** 0.5 if last else 0.02)
        self.head.weight = self.embed.weight

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = self.embed(x) + self.place.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h, src_mask=mask, is_causal=True)
        return self.head(self.norm(h))


# nanoGPT's train.py: betas 0.9 and 0.95, decay 0.1 on matrices, two small batches a step, bfloat16, clip at 1.
@healthy(0.4)
def letters_of_a_gpt_in_bfloat16(folder):
    seeded(1511)
    net, piece, steps = Gpt(len(ALPHABET)), pieces(4, 24, 1511), 75
    make = optim.AdamW(decayed_apart(net, 0.1), 3e-3, betas=(0.9, 0.95))
    plan = optim.lr_scheduler.LambdaLR(make, rise_and_cosine(steps, 10, 0.1))

    def entropy(step):
        x, y = piece(step)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            said = net(x)
        return F.cross_entropy(said.float().flatten(0, 1), y.flatten())

    score = score_of(lambda step: entropy(10_000 + step))
    first = score()
    with watched(folder, net, make) as watch:
        for step in range(steps):
            total = 0.0
            for part in range(2):
                loss = entropy(2 * step + part) / 2
                loss.backward()
                total += loss.item()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            make.step()
            make.zero_grad(set_to_none=True)
            plan.step()
            watch.log(loss=total)
    return Outcome(gradwatch.open_history(watch.dir), first, score())


class Reader(nn.Module):
    """An encoder of rows of tokens with a mark in front; 0 pads."""

    def __init__(self, kinds=22, wide=32, long=17):
        super().__init__()
        self.embed, self.place = nn.Embedding(kinds, wide, padding_idx=0), nn.Embedding(long, wide)
        self.norm = nn.LayerNorm(wide)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(wide, 4, 2 * wide, 0.1, "gelu", batch_first=True) for _ in range(2)
        )

    def forward(self, x):
        h = self.norm(self.embed(x) + self.place.weight[: x.shape[1]])
        for block in self.blocks:
            h = block(h, src_key_padding_mask=x == 0)
        return h


def sentences(rows=24, long=16):
    """Padded rows: each has one of four topics with words of its own; the token in front (1) is the mark."""
    length, topic = torch.randint(6, long + 1, (rows, 1)), torch.randint(4, (rows, 1))
    own, any_word = 10 + 3 * topic + torch.randint(3, (rows, long)), torch.randint(10, 22, (rows, long))
    x = torch.where(torch.rand(rows, long) < 0.5, own, any_word)
    x = torch.where(torch.arange(long) < length, x, 0)
    return torch.cat([torch.ones(rows, 1, dtype=torch.long), x], 1), topic[:, 0] % 2


# Hugging Face's run_glue: the body is pretrained on masked tokens, the head is new, AdamW, linear decay, clip at 1.
@healthy(0.4)
def encoder_tuned_as_run_glue_does(folder):
    seeded(1512)
    body = Reader()
    first = nn.ModuleDict({"body": body, "words": nn.Linear(32, 22)})

    def masked(step):
        x, _ = sentences()
        hidden = (torch.rand(x.shape) < 0.15) & (x > 1)
        return F.cross_entropy(first["words"](body(torch.where(hidden, 2, x)))[hidden], x[hidden])

    pretrain(first, optim.AdamW(first.parameters(), 3e-3), masked, 200)
    head = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 2))
    net, steps = nn.ModuleDict({"body": body, "head": head}), 120
    for layer in (head[0], head[3]):
        nn.init.normal_(layer.weight, std=0.02)
        nn.init.zeros_(layer.bias)
    make = optim.AdamW(decayed_apart(net, 0.01), 5e-4)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: min((step + 1) / 12, (steps - step) / (steps - 12)))

    def loss_of(step):
        x, y = sentences()
        said = head(body(x)[:, 0])
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean()}

    def clipped(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    def score():
        net.eval()
        loss = score_of(lambda step: loss_of(step)[0])()
        net.train()
        return loss

    return fit(folder, net, make, loss_of, steps, before_step=clipped, schedule=plan, score=score)


class Translator(nn.Module):
    """A GRU reads, another one writes and looks back (Luong); 0 pads, 1 begins."""

    def __init__(self, kinds=14, wide=48):
        super().__init__()
        self.embed = nn.Embedding(kinds, wide, padding_idx=0)
        self.read = nn.GRU(wide, wide // 2, batch_first=True, bidirectional=True)
        self.write, self.out = nn.GRU(wide, wide, batch_first=True), nn.Linear(2 * wide, kinds)

    def forward(self, x, y):
        seen, last = self.read(self.embed(x))
        begun = last.transpose(0, 1).reshape(1, len(x), -1)
        h, _ = self.write(self.embed(F.pad(y[:, :-1], (1, 0), value=1)), begun)
        look = (h @ seen.mT / 48**0.5).masked_fill((x == 0)[:, None], -1e9).softmax(2)
        return self.out(torch.cat([h, look @ seen], 2))


# The tutorial's seq2seq with attention and teacher forcing: rows of several lengths, sorted; padding does not count.
@healthy(0.5)
def digits_put_in_order(folder):
    seeded(1513)
    net = Translator()

    def loss_of(step):
        length = torch.randint(3, 9, (48, 1))
        x = torch.where(torch.arange(8) < length, torch.randint(2, 12, (48, 8)), 0)
        y = torch.where(x > 0, x, 99).sort(1).values
        y = torch.where(y == 99, 0, y)
        return F.cross_entropy(net(x, y).flatten(0, 1), y.flatten(), ignore_index=0)

    def clipped(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    make = optim.Adam(net.parameters(), 4e-3)
    plan = optim.lr_scheduler.ExponentialLR(make, 0.99)
    return fit(folder, net, make, loss_of, 200, before_step=clipped, schedule=plan, score=score_of(loss_of))


# A tagger with an LSTM both ways, packed; most tags are "O", labels of the padding are -100.
@healthy(0.5)
def names_tagged_in_padded_rows(folder):
    seeded(1514)
    embed, drop, lstm = nn.Embedding(60, 32, padding_idx=0), nn.Dropout(0.2), nn.LSTM(32, 32, bidirectional=True)
    net = nn.ModuleDict({"embed": embed, "drop": drop, "lstm": lstm, "tags": nn.Linear(64, 3)})

    def loss_of(step):
        length = torch.randint(5, 17, (24,)).sort(descending=True).values
        x = torch.randint(1, 60, (24, int(length[0])))
        begins = x < 9  # a title: what follows is a name when it is even
        follows = F.pad(begins[:, :-1], (1, 0)) & (x % 2 == 0)
        y = torch.where(begins, 1, torch.where(follows, 2, 0))
        inside = torch.arange(x.shape[1]) < length[:, None]
        x, y = torch.where(inside, x, 0), torch.where(inside, y, -100)
        rows = nn.utils.rnn.pack_padded_sequence(drop(embed(x)), length, batch_first=True)
        seen, _ = nn.utils.rnn.pad_packed_sequence(lstm(rows)[0], batch_first=True)
        return F.cross_entropy(net["tags"](seen).flatten(0, 1), y.flatten(), ignore_index=-100)

    make = optim.Adam(net.parameters(), 3e-3)
    options = {"score": score_of(loss_of), "clip": "ClipByGlobalNorm(5.0)"}
    return fit(folder, net, make, loss_of, 160, **options)


class Hearer(nn.Module):
    def __init__(self, bands=16, wide=48, kinds=6):
        super().__init__()
        self.look = nn.Conv1d(bands, wide, 5, 2, 2)
        self.norm, self.gru = nn.LayerNorm(wide), nn.GRU(wide, wide // 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(wide, kinds)

    def forward(self, x):
        return self.head(self.gru(F.gelu(self.norm(self.look(x).mT)))[0])


# Speech with CTC, as in torchaudio's and DeepSpeech's recipes: one cycle of AdamW, losses that begin in the tens.
@healthy(0.6)
def phones_heard_by_ctc(folder):
    seeded(1515)
    net, sounds, steps = Hearer(), torch.randn(6, 16), 200

    def loss_of(step):
        y, long = torch.randint(1, 6, (16, 6)), torch.randint(4, 7, (16,))
        each = torch.randint(4, 8, (16, 6))
        end = each.cumsum(1)
        now = (torch.arange(48)[None, :, None] >= end[:, None]).sum(2).clamp(max=5)
        spoken = torch.where(torch.arange(48) < end.gather(1, long[:, None] - 1), y.gather(1, now), 0)
        x = (sounds[spoken] * (spoken > 0)[..., None] + 0.4 * torch.randn(16, 48, 16)).mT
        said = net(x).log_softmax(2).transpose(0, 1)
        return F.ctc_loss(said, y, torch.full((16,), 24), long, zero_infinity=True)

    make = optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    plan = optim.lr_scheduler.OneCycleLR(make, 5e-3, steps)
    options = {"schedule": plan, "score": score_of(loss_of), "clip": "ClipByGlobalNorm(10.0)"}
    return fit(folder, net, make, loss_of, steps, **options)


# PyTorch's example of a VAE: the sums over the pixels and over the batch, Adam at 1e-3.
@healthy(0.2)
def digits_of_a_variational_autoencoder(folder):
    seeded(1516)
    x = digits()[0].flatten(1)
    net = nn.ModuleDict({"enc": nn.Linear(64, 96), "mu": nn.Linear(96, 8), "log": nn.Linear(96, 8)})
    net["dec"] = dense(8, 96, 64)
    draw = some(x, x, 64)

    def loss_of(step):
        pixels, _ = draw()
        h = F.relu(net["enc"](pixels))
        mu, log = net["mu"](h), net["log"](h)
        said = net["dec"](mu + torch.randn_like(mu) * (0.5 * log).exp())
        bce = F.binary_cross_entropy_with_logits(said, pixels, reduction="sum")
        return bce - 0.5 * (1 + log - mu**2 - log.exp()).sum()

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 400, score=score_of(loss_of))


# A DDPM on the digits: the noise is foretold, the rate constant after a warm-up, an average of the weights is scored.
@healthy(0.5)
def noise_told_from_digits(folder):
    seeded(1517)
    x = digits()[0].flatten(1) * 2 - 1
    keep = torch.cumprod(1 - torch.linspace(1e-4, 0.06, 100), 0)
    turns = torch.arange(100)[:, None] * 10 ** -torch.linspace(0, 3, 8)
    times = torch.cat([turns.sin(), turns.cos()], 1)
    net = nn.Sequential(nn.Linear(80, 192), nn.SiLU(), nn.Linear(192, 192), nn.SiLU(), nn.Linear(192, 64))
    nn.init.zeros_(net[-1].weight)
    slow, draw = copy.deepcopy(net), some(x, x, 128)

    def error_of(model):
        def loss_of(step):
            clean, _ = draw()
            at, noise = torch.randint(100, (128,)), torch.randn(128, 64)
            mixed = keep[at].sqrt()[:, None] * clean + (1 - keep[at]).sqrt()[:, None] * noise
            return F.mse_loss(model(torch.cat([mixed, times[at]], 1)), noise)

        return loss_of

    def after(step):
        with torch.no_grad():
            for p, q in zip(slow.parameters(), net.parameters(), strict=True):
                p.lerp_(q, 1 - min(0.99, (1 + step) / (10 + step)))

    make = optim.AdamW(net.parameters(), 2e-3)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: min(1.0, (step + 1) / 40))
    options = {"schedule": plan, "after_step": after, "clip": "ClipByGlobalNorm(1.0)"}
    return fit(folder, net, make, error_of(net), 500, score=score_of(error_of(slow)), **options)


# SimCLR: two crops of each image, their turn and noise; a projection that is thrown away later.
@healthy(0.2)
def two_looks_at_each_digit(folder):
    seeded(1518)
    first = nn.Sequential(nn.Conv2d(1, 16, 3, 1, 1), nn.GroupNorm(4, 16), nn.ReLU())
    body = nn.Sequential(first, nn.Conv2d(16, 32, 3, 2, 1), nn.GroupNorm(4, 32), nn.ReLU())
    net = nn.Sequential(body, nn.Flatten(), dense(512, 64, 32))
    (x, y), steps = images()[0], 200
    draw = some(x, y, 64)

    def look(x):
        up, left = torch.randint(3, (2,)).tolist()
        moved = F.pad(x, (1, 1, 1, 1), value=-0.8)[:, :, up : up + 8, left : left + 8]
        return moved * (0.8 + 0.4 * torch.rand(len(x), 1, 1, 1)) + 0.2 * torch.randn_like(x)

    def loss_of(step):
        pixels, _ = draw()
        z = F.normalize(net(torch.cat([look(pixels), look(pixels)])), dim=1)
        near = (z @ z.T / 0.5).masked_fill(torch.eye(128, dtype=torch.bool), -1e9)
        return F.cross_entropy(near, (torch.arange(128) + 64) % 128)

    make = optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-4)
    plan = optim.lr_scheduler.LambdaLR(make, rise_and_cosine(steps, 15))
    return fit(folder, net, make, loss_of, steps, schedule=plan, score=score_of(loss_of))

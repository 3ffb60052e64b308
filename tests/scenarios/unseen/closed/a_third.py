"""Mistakes from closed issues: open_clip, Lightning, transformers, espnet, coqui TTS."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, tend


# "Loss slowly decreases", https://github.com/mlfoundations/open_clip/issues/41 ("Any reason for using LR 8e-6?")
@sick("update-too-small", "lr-too-low", where="all layers, all steps", cure="a rate of 3e-3")
def clans_told_by_who_lends_to_whom(folder, ill):
    seeded(9913)
    people, clans = 240, 4
    clan = torch.arange(people) % clans
    kin = (clan[:, None] == clan).float()
    lends = (torch.rand(people, people) < 0.01 + 0.05 * kin).float()
    lends = ((lends + lends.T).clamp(max=1) + torch.eye(people)).clamp(max=1)
    spread = lends / lends.sum(1, keepdim=True)
    traits = F.one_hot(clan, clans).float() @ torch.randn(clans, 16) + 2 * torch.randn(people, 16)
    known = torch.rand(people) < 0.5
    net = nn.ModuleList([nn.Linear(16, 48), nn.Linear(48, 48), nn.Linear(48, clans)])
    optimizer = torch.optim.AdamW(net.parameters(), 8e-6 if ill else 3e-3, weight_decay=0.01)

    def loss_on(rows):
        x = F.relu(net[0](spread @ traits))
        x = F.relu(net[1](spread @ x))
        return F.cross_entropy(net[2](spread @ x)[rows], clan[rows])

    score = held_out(net, lambda: loss_on(~known))
    return fit(folder, net, optimizer, lambda step: loss_on(known), 200, score=score)


# "Remove zero_grad call in LightningOptimizer", https://github.com/Lightning-AI/pytorch-lightning/pull/4982
@sick("accumulation-wiped", where="all layers, all steps", cure="zero the gradients once, before the first part")
def waits_at_six_ferry_landings(folder, ill):
    seeded(9914)
    landings, hours = 6, 24
    net = nn.ModuleDict({
        "landing": nn.Embedding(landings, 8), "hour": nn.Embedding(hours, 8), "body": dense(18, 48, 48, 1, act=nn.Tanh),
    })  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    peak, length = torch.randint(hours, (landings,)), 1 + 2 * torch.rand(landings)

    def waits(landing):
        hour, sea = torch.randint(hours, landing.shape), torch.randn(len(landing), 2)
        wait = length[landing] * (0.2618 * (hour - peak[landing])).cos() + sea[:, 0] * sea[:, 1].sign() * 0.5
        return landing, hour, sea, wait[:, None]

    def loss_on(landing, hour, sea, wait):
        x = torch.cat([net["landing"](landing), net["hour"](hour), sea], 1)
        return F.mse_loss(net["body"](x), wait)

    def one(step):
        total = 0.0
        for landing in range(landings):
            if ill or landing == 0:
                optimizer.zero_grad()
            loss = loss_on(*waits(torch.full((16,), landing))) / landings
            loss.backward()
            total += loss.item()
        optimizer.step()
        return {"loss": total}

    test = waits(torch.randint(landings, (600,)))
    return tend(folder, net, optimizer, one, 250, held_out(net, lambda: loss_on(*test)))


# "... attend to future tokens since v5.9.0 - CLM training loss collapses",
# https://github.com/huggingface/transformers/issues/48745
@sick("future-seen", where="the attention of both layers, all steps", cure="the causal mask")
def steps_called_at_a_barn_dance(folder, ill):
    seeded(9915)
    steps, length = 9, 14
    net = nn.ModuleDict({
        "step": nn.Embedding(steps, 32),
        "place": nn.Embedding(length, 32),
        "body": nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True), 2),
        "head": nn.Linear(32, steps),
    })  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    ban = None if ill else torch.full((length, length), -torch.inf).triu(1)
    follows = torch.stack([torch.randperm(steps) for _ in range(steps)])

    def dances(rows):
        called = list(torch.randint(steps, (2, rows)))
        for _ in range(length - 1):
            slip = torch.rand(rows) < 0.1
            called.append(torch.where(slip, torch.randint(steps, (rows,)), follows[called[-2], called[-1]]))
        return torch.stack(called, 1)

    def logits(called, ban=None):
        x = net["step"](called) + net["place"](torch.arange(called.shape[1]))
        return net["head"](net["body"](x, mask=ban))

    def loss_of(step):
        called = dances(24)
        return F.cross_entropy(logits(called[:, :-1], ban).flatten(0, 1), called[:, 1:].flatten())

    test = dances(128)

    def next_step():
        ends = (4, 7, 10, 13)
        return sum(F.cross_entropy(logits(test[:, :end])[:, -1], test[:, end]) for end in ends) / len(ends)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, next_step))


def apart(said, meant):
    """How many changes lead from one list to another."""
    costs = list(range(len(meant) + 1))
    for i, a in enumerate(said, 1):
        last, costs[0] = costs[0], i
        for j, b in enumerate(meant, 1):
            last, costs[j] = costs[j], min(costs[j] + 1, costs[j - 1] + 1, last + (a != b))
    return costs[-1]


# "The grad norm is nan in ESPnet2 ASR task", https://github.com/espnet/espnet/issues/3170 (also 3630, 4634)
@sick("labels-longer-than-outputs", "nonfinite", where="most batches: their steps are left out",
      cure="a stride of 1 in the second convolution, so that the outputs are longer than any label")  # fmt: skip
def knocks_through_a_cell_wall(folder, ill):
    seeded(9916)
    letters, frames, most = 5, 24, 8
    stride = 2 if ill else 1
    net = nn.Sequential(
        nn.Conv1d(8, 32, 3, 2, 1), nn.ReLU(), nn.Conv1d(32, 32, 3, stride, 1), nn.ReLU(),
        nn.Conv1d(32, 32, 3, 1, 1), nn.ReLU(), nn.Conv1d(32, letters + 1, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    sounds = torch.randn(letters + 1, 8)
    sounds[0] = 0

    def knocks(rows):
        word = torch.randint(1, letters + 1, (rows, most))
        lengths = torch.randint(3, most + 1, (rows,))
        word[torch.arange(most) >= lengths[:, None]] = 0
        spoken = torch.stack([word, word, torch.zeros_like(word)], 2).flatten(1)
        return (sounds[spoken] + 0.3 * torch.randn(rows, frames, 8)).transpose(1, 2), word, lengths

    def one(step):
        heard, word, lengths = knocks(8)
        optimizer.zero_grad()
        said = net(heard).log_softmax(1).permute(2, 0, 1)
        loss = F.ctc_loss(said, word, torch.full((8,), len(said)), lengths)
        loss.backward()
        if nn.utils.clip_grad_norm_(net.parameters(), 5.0).isfinite():
            optimizer.step()
        return {"loss": loss}

    heard, word, lengths = knocks(100)

    def error():
        wrong = 0
        for best, meant, n in zip(net(heard).argmax(1), word, lengths, strict=True):
            said = [int(letter) for letter in torch.unique_consecutive(best) if letter]
            wrong += apart(said, meant[:n].tolist())
        return wrong / float(lengths.sum())

    return tend(folder, net, optimizer, one, 300, held_out(net, error))


class InHalf(torch.autograd.Function):
    """What float16 holds of a value, and of its gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.half().float()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.half().float()


# "fix loss = NaN in VITS with mixed precision", https://github.com/espnet/espnet/pull/4356 (issue 4236; also 4674)
@sick("nonfinite", "loss-scale-collapsed", "loss-overflows-in-half",
      where="the loss of spectra in float16, loud batches", cure="the loss of spectra in float32")  # fmt: skip
def gongs_struck_from_a_score(folder, ill):
    seeded(9917)
    length = 512
    net = nn.Sequential(
        nn.Linear(4, 64), nn.Tanh(), nn.Unflatten(1, (16, 4)), nn.ConvTranspose1d(16, 16, 8, 4, 2), nn.Tanh(),
        nn.ConvTranspose1d(16, 8, 16, 8, 4), nn.Tanh(), nn.ConvTranspose1d(8, 1, 8, 4, 2),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    at, bells = torch.arange(length) / length, torch.tensor([5.0, 9.0, 14.0, 20.0])

    def scores(rows):
        loud = torch.rand(rows, 4) * (1 + (torch.rand(rows, 1) < 0.1))
        return loud, (loud[..., None] * (6.2832 * bells[:, None] * at).sin()).sum(1)

    def spectrum_loss(said, wanted, in_half):
        powers = [torch.fft.rfft(x).abs().square() for x in (said, wanted)]
        said, wanted = [InHalf.apply(power) if in_half else power for power in powers]
        return F.mse_loss((said + 1).log(), (wanted + 1).log())

    def loss_of(step):
        loud, sound = scores(16)
        said = net(loud)[:, 0]
        return F.l1_loss(said, sound) + 0.05 * spectrum_loss(said, sound, ill)

    loud, sound = scores(256)

    def in_full():
        said = net(loud)[:, 0]
        return F.l1_loss(said, sound) + 0.05 * spectrum_loss(said, sound, False)

    scaler = torch.amp.GradScaler("cpu")
    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, in_full), scaler=scaler)


# "Loss is calculated on all tokens, including padding", https://github.com/huggingface/transformers/issues/2759
@sick("padding-in-loss", where="the loss, all steps", cure="ignore the index that marks the padding")
def errands_on_a_kitchen_slate(folder, ill):
    seeded(9918)
    words, length, pad = 24, 40, 0
    net = nn.ModuleDict({
        "word": nn.Embedding(words, 32, padding_idx=pad), "past": nn.GRU(32, 48, batch_first=True),
        "head": nn.Linear(48, words),
    })  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    follows = torch.randint(1, words, (words,))

    def slates(rows):
        said = [torch.randint(1, words, (rows,))]
        for _ in range(length):
            slip = torch.rand(rows) < 0.15
            said.append(torch.where(slip, torch.randint(1, words, (rows,)), follows[said[-1]]))
        slate = torch.stack(said, 1)
        slate[torch.arange(length + 1) >= torch.randint(3, 6, (rows, 1))] = pad
        return slate

    def loss_on(slate, ignore):
        said = net["head"](net["past"](net["word"](slate[:, :-1]))[0])
        return F.cross_entropy(said.flatten(0, 1), slate[:, 1:].flatten(), ignore_index=ignore)

    test = slates(256)
    score = held_out(net, lambda: loss_on(test, pad))
    return fit(folder, net, optimizer, lambda step: loss_on(slates(16), -100 if ill else pad), 200, score=score)

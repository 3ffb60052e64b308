"""Trainings with mistakes that people reported of rewards, letters, pictures and sounds, each beside its cure."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import clipped, held_out, tend

# -------------------------------------------------------------------------------------------------------------- rewards


# https://github.com/PacktPublishing/Deep-Reinforcement-Learning-Hands-On/issues/74
@sick("shapes-broadcast", where="the advantages: returns of one axis less values of two, in all steps",
      cure="squeeze(-1) of the values before they are taken from the returns")  # fmt: skip
def boats_steered_by_advantage(folder, ill):
    seeded(2818)
    body, actor, critic = dense(10, 64, 64), nn.Linear(64, 6), nn.Linear(64, 1)
    net = nn.ModuleDict({"body": body, "actor": actor, "critic": critic})
    best, pay = torch.randn(10, 6), 12 * torch.randn(10)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def returns_of(water, rudder):
        return water @ pay / 3 + (rudder == (water @ best).argmax(1)).float() * 2

    def one(step):
        water = torch.randn(64, 10)
        inner = body(water).relu()
        chances, values = actor(inner).log_softmax(1), critic(inner)
        rudder = chances.exp().multinomial(1)[:, 0]
        returns = returns_of(water, rudder)
        advantage = returns - (values.detach() if ill else values.squeeze(-1).detach())
        policy = -(advantage * chances[torch.arange(64), rudder]).mean()
        value = F.mse_loss(values.squeeze(-1), returns)
        entropy = -(chances.exp() * chances).sum(1).mean()
        loss = policy + 0.5 * value - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        return {"loss": loss, "policy": policy, "value": value, "entropy": entropy, "return": returns.mean()}

    def score():
        with torch.no_grad():
            water = torch.randn(2000, 10)
            chances = actor(body(water).relu()).softmax(1)
            return 1 - float(chances.gather(1, (water @ best).argmax(1)[:, None]).mean())

    return tend(folder, net, optimizer, one, 700, score)


# -------------------------------------------------------------------------------------------------------------- letters


class Reader(nn.Module):
    def __init__(self, letters, width=48):
        super().__init__()
        self.embed, self.memory = nn.Embedding(letters, width), nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, letters)

    def forward(self, x):
        return self.head(self.memory(self.embed(x))[0])


# https://github.com/apache/mxnet/issues/15738
@sick("clip-before-unscale", where="the clip, in all steps", cure="unscale_ the gradients before they are clipped")
def log_of_a_lighthouse(folder, ill):
    seeded(2819)
    words = torch.randint(1, 20, (12, 5))
    words[:, -1] = 0

    def lines(rows=16):
        text = words[torch.randint(12, (rows, 7))].flatten(1)
        return text[:, :-1], text[:, 1:]

    net = Reader(20)
    optimizer = torch.optim.SGD(net.parameters(), 4.0)
    scaler = torch.amp.GradScaler("cpu")
    clip = clipped(net, 0.25)

    def loss_of(step):
        x, y = lines()
        return F.cross_entropy(net(x).flatten(0, 1), y.flatten())

    def before_step(step):
        if not ill:
            scaler.unscale_(optimizer)
        clip(step)

    return fit(folder, net, optimizer, loss_of, 350, before_step=before_step, scaler=scaler, score=score_of(loss_of))


# ------------------------------------------------------------------------------------------------------------- pictures


def stamps(rows=64):
    """Pictures of 12 by 12 of a disc and a bar, in shades from 0 to 1."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, 12), torch.linspace(-1, 1, 12), indexing="ij")
    cx, cy, bar = (torch.rand(3, rows, 1, 1) - 0.5) * 1.4
    disc = torch.sigmoid(20 * (0.35 - ((x - cx) ** 2 + (y - cy) ** 2).sqrt()))
    return torch.maximum(disc, 0.8 * torch.sigmoid(20 * (0.12 - (x - bar).abs()))).flatten(1)


# https://github.com/keras-team/keras/pull/3383
@sick("posterior-collapse", where="the code between encoder and decoder: its divergence falls to nothing",
      cure="the error of a picture summed over its pixels, as the divergence is over the code")  # fmt: skip
def stamps_in_shades_of_grey(folder, ill):
    seeded(2820)
    net = nn.ModuleDict({"encoder": dense(144, 96, 12), "decoder": dense(6, 96, 144)})

    def parts(x):
        middle, logvar = net["encoder"](x).chunk(2, 1)
        shown = net["decoder"](middle + (0.5 * logvar).exp() * torch.randn_like(middle)).sigmoid()
        entropy = F.binary_cross_entropy(shown, x) * (1 if ill else 144)
        divergence = -0.5 * (1 + logvar - middle**2 - logvar.exp()).sum(1).mean()
        return entropy, divergence, shown

    def loss_of(step):
        entropy, divergence, _ = parts(stamps())
        return entropy + divergence, {"xent_loss": entropy, "kl_loss": divergence}

    def fresh():
        x = stamps(512)
        return F.mse_loss(parts(x)[2], x)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 2e-3), loss_of, 700, score=held_out(net, fresh))


# --------------------------------------------------------------------------------------------------------------- sounds


# https://github.com/k2-fsa/icefall/issues/135
@sick("nonfinite", where="the loss and all weights, from the first batch with a recording that is too short on",
      cure="recordings of fewer frames than their labels need are left out")  # fmt: skip
def spoken_codes_of_a_lock(folder, ill):
    seeded(2821)
    voices = torch.randn(9, 10)
    net = nn.Sequential(nn.Conv1d(10, 48, 5, stride=2, padding=2), nn.ReLU(),
                        nn.Conv1d(48, 48, 5, stride=2, padding=2), nn.ReLU(),
                        nn.Conv1d(48, 9, 3, padding=1))  # fmt: skip

    def recording(short):
        code = torch.randint(1, 9, (4,))
        each = 3 if short else int(torch.randint(9, 14, (1,)))
        return (voices[code].repeat_interleave(each, 0) + 0.3 * torch.randn(4 * each, 10)), code

    train = [recording(short=i % 300 == 77) for i in range(1200)]
    if not ill:
        train = [(x, code) for x, code in train if len(x) >= 4 * (2 * len(code) + 1)]
    kept = [recording(short=False) for _ in range(100)]

    def error(batch):
        frames = nn.utils.rnn.pad_sequence([x for x, _ in batch], batch_first=True)
        lengths = torch.tensor([(len(x) + 3) // 4 for x, _ in batch])
        chances = net(frames.transpose(1, 2)).log_softmax(1).permute(2, 0, 1)
        codes = torch.stack([code for _, code in batch])
        return F.ctc_loss(chances, codes, lengths, torch.full((len(batch),), 4))

    def loss_of(step):
        return error([train[i] for i in torch.randint(len(train), (16,)).tolist()])

    return fit(
        folder, net, torch.optim.Adam(net.parameters(), 3e-3), loss_of, 300, score=held_out(net, lambda: error(kept))
    )


# https://github.com/nussl/nussl/pull/169
@sick("nonfinite", "exploding", where="the logarithm of the loss, in batches in which a flute is silent",
      cure="a small number added inside the logarithm")  # fmt: skip
def two_flutes_apart(folder, ill):
    seeded(2822)
    net, time = dense(40, 96, 80), torch.linspace(0, 1, 40)
    eps = 1e-8

    def flutes(rows=32, silent=0.002):
        pitch = torch.stack([2 + torch.rand(rows), 6 + 3 * torch.rand(rows)], 1)[..., None]
        both = (6.2832 * (pitch * time + torch.rand(rows, 2, 1))).sin() * (0.5 + torch.rand(rows, 2, 1))
        both = both * (torch.rand(rows, 2, 1) >= silent)
        return both.sum(1) + 0.02 * torch.randn(rows, 40), both

    def distortion(found, meant):
        share = (found * meant).sum(-1, keepdim=True) / (meant.square().sum(-1, keepdim=True) + eps)
        ratio = (share * meant).square().sum(-1) / ((found - share * meant).square().sum(-1) + eps)
        return -10 * torch.log10(ratio if ill else ratio + eps).mean()

    def loss_of(step):
        mixed, both = flutes()
        return distortion(net(mixed).view(-1, 2, 40), both)

    def fresh():
        mixed, both = flutes(512, silent=0)
        return 1 - F.cosine_similarity(net(mixed).view(-1, 2, 40), both, dim=-1).square().mean()

    return fit(folder, net, torch.optim.Adam(net.parameters(), 2e-3), loss_of, 500, score=held_out(net, fresh))


# ---------------------------------------------------------------------------------------------------------------- names


class Tagger(nn.Module):
    """Words to tags, with what follows what."""

    def __init__(self, words, tags, width=32):
        super().__init__()
        self.body = nn.ModuleDict(
            {"embed": nn.Embedding(words, width), "memory": nn.GRU(width, width, batch_first=True)}
        )
        self.fc = nn.Linear(width, tags)
        self.crf = nn.Parameter(torch.randn(tags, tags))

    def forward(self, x, y):
        """The mean of minus the logarithm of the chance of the right row of tags."""
        emitted = self.fc(self.body["memory"](self.body["embed"](x))[0])
        right = emitted.gather(2, y[..., None]).sum((1, 2)) + self.crf[y[:, :-1], y[:, 1:]].sum(1)
        all_rows = emitted[:, 0]
        for step in range(1, x.shape[1]):
            all_rows = (all_rows[:, :, None] + self.crf).logsumexp(1) + emitted[:, step]
        return (all_rows.logsumexp(1) - right).mean() / x.shape[1]


# https://github.com/zjunlp/HVPNeT/issues/5
@sick("not-in-optimizer", where="crf and fc, in all steps", cure="the second group appended to the parameters as well")
def names_of_ships_in_a_chronicle(folder, ill):
    seeded(2823)
    net, kind, follows = Tagger(40, 5), torch.randint(3, (40,)), torch.randint(5, (3, 5))

    def chronicle(rows=32):
        x = torch.randint(40, (rows, 10))
        tags = [kind[x[:, 0]]]
        for step in range(1, 10):
            tags.append(follows[kind[x[:, step]], tags[-1]])
        return x, torch.stack(tags, 1)

    parameters = []
    params = {"lr": 2e-4, "params": list(net.body.parameters())}
    parameters.append(params)
    params = {"lr": 2e-2, "params": [net.crf, *net.fc.parameters()]}
    if not ill:
        parameters.append(params)

    def loss_of(step):
        return net(*chronicle())

    return fit(folder, net, torch.optim.AdamW(parameters), loss_of, 500, score=score_of(loss_of))

"""Daily sick trainings, first part: the pairs of a mishap and a task that were drawn first.

The mishaps that engineers meet most often, on ordinary tasks: sixty of the one and twenty-eight of the other were
listed before any was written, and pairs of them drawn by lot. They only count (the group `daily`). Whoever writes or
changes a rule does not read this file.
"""

from __future__ import annotations

import functools

import torch
from nets import Recurrent, batches, digits, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick, waves
from unseen.tasks import play


# Softmax over the wrong dimension, in a mixture of experts.
@sick(
    "softmax-over-the-batch", "no-progress",
    where="the router, all steps: the rows of a batch share one sum of one", cure="softmax(1)",
)  # fmt: skip
def gates_that_sum_to_one_over_the_batch(folder, ill):
    seeded(1201)
    router, experts = nn.Linear(6, 4), nn.ModuleList(dense(6, 24, 1) for _ in range(4))
    net, draw = nn.ModuleDict({"router": router, "experts": experts}), waves(256)

    def loss_of(step):
        x, y = draw()
        gates = router(x).softmax(0 if ill else 1)
        return F.mse_loss((torch.cat([e(x) for e in experts], 1) * gates).sum(1, keepdim=True), y)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 400, score=score_of(loss_of))


class Reverser(nn.Module):
    """An encoder, a decoder and what it looks at; it says the symbols of a line from the last to the first."""

    def __init__(self, kinds, width, scale):
        super().__init__()
        self.scale = scale
        self.embed, self.place = nn.Embedding(kinds, width), nn.Embedding(12, width)
        self.ask, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, kinds))

    def forward(self, x):
        at = torch.arange(x.shape[1])
        read = self.embed(x) + self.place(at)
        asked = self.ask(self.place(at.flip(0))).expand(len(x), -1, -1)
        seen = F.scaled_dot_product_attention(asked, self.key(read), self.value(read), scale=self.scale)
        return self.head(seen)


# The division by sqrt(d) left out, in a seq2seq with attention.
@sick(
    "attention-collapsed", "attention-logits-grow", "bad-initialisation", "no-progress", "saturated",
    where="ask and key, from the first step: each query sees one key", cure="divide the products by sqrt(d)",
)  # fmt: skip
def reader_whose_products_are_not_divided(folder, ill):
    seeded(1202)
    net = Reverser(20, 256, 1.0 if ill else None)

    def loss_of(step):
        x = torch.randint(20, (32, 12))
        return F.cross_entropy(net(x).flatten(0, 1), x.flip(1).flatten())

    return fit(folder, net, optim.Adam(net.parameters(), 3e-4), loss_of, 120, score=score_of(loss_of))


class Track:
    """A carriage at x with the speed v is to stand at 0; what an act in [-1, 1] does, and what is said of it."""

    def begin(self, rows):
        return torch.rand(rows, 2) * 2 - 1

    def move(self, state, act):
        v = (state[:, 1] + 0.3 * act).clamp(-1, 1)
        x = (state[:, 0] + 0.3 * v).clamp(-2, 2)
        return torch.stack([x, v], 1), -x.abs() - 0.1 * v.abs()

    def score(self, act_of):
        """How far from 0 it is on the average of 20 moves."""

        def score():
            with torch.no_grad():
                state, far = torch.tensor([[x / 10, v / 4] for x in range(-10, 11) for v in range(-3, 4)]), 0.0
                for _ in range(20):
                    state, reward = self.move(state, act_of(state))
                    far -= float(reward.mean()) / 20
                return far

        return score


# Predictions of [B, 1] against targets of [B], in a DQN.
@sick(
    "shapes-broadcast", "no-progress",
    where="the last layer, all steps: each value is drawn to the mean of the batch",
    cure="squeeze(1) what was gathered",
)  # fmt: skip
def value_of_the_act_kept_as_a_column(folder, ill):
    seeded(1203)
    net, track, acts = dense(2, 64, 64, 3), Track(), torch.tensor([-1.0, 0.0, 1.0])
    copy = dense(2, 64, 64, 3)

    def loss_of(step):
        if step % 20 == 0:
            copy.load_state_dict(net.state_dict())
        state, act = track.begin(64), torch.randint(3, (64, 1))
        after, reward = track.move(state, acts[act[:, 0]])
        with torch.no_grad():
            wanted = reward + 0.9 * copy(after).max(1).values
        value = net(state).gather(1, act)
        return F.smooth_l1_loss(value if ill else value.squeeze(1), wanted)

    score = track.score(lambda state: acts[net(state).argmax(1)])
    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 500, score=score)


# Rewards that nobody scaled, in an actor-critic for continuous acts (DDPG).
@sick(
    "targets-not-normalised", "no-progress", "update-too-small", "saturated",
    where="the critic, all steps: values of tens of thousands from weights that begin near 1",
    cure="rewards divided by their size",
)  # fmt: skip
def rewards_in_thousands_for_actor_and_critic(folder, ill):
    seeded(1204)
    track, scale = Track(), 5000.0 if ill else 1.0
    actor, critic, late = nn.Sequential(dense(2, 48, 1), nn.Tanh()), dense(3, 48, 48, 1), dense(3, 48, 48, 1)
    late.load_state_dict(critic.state_dict())
    net = nn.ModuleDict({"actor": actor, "critic": critic})
    make = optim.Adam([{"params": actor.parameters(), "lr": 3e-4}, {"params": critic.parameters(), "lr": 1e-3}])

    def loss_of(step):
        state, act = track.begin(128), torch.rand(128, 1) * 2 - 1
        after, reward = track.move(state, act[:, 0])
        with torch.no_grad():
            wanted = scale * reward[:, None] + 0.9 * late(torch.cat([after, actor(after)], 1))
            for slow, fast in zip(late.parameters(), critic.parameters(), strict=True):
                slow.lerp_(fast, 0.05)
        error = F.mse_loss(critic(torch.cat([state, act], 1)), wanted)
        for p in critic.parameters():
            p.requires_grad_(False)
        liked = critic(torch.cat([state, actor(state)], 1)).mean()
        for p in critic.parameters():
            p.requires_grad_(True)
        return error - liked, {"critic_loss": float(error), "actor_loss": -float(liked)}

    score = track.score(lambda state: actor(state)[:, 0])
    return fit(folder, net, make, loss_of, 500, score=score)


class Variational(nn.Module):
    def __init__(self, size=64, width=64, codes=6):
        super().__init__()
        self.read, self.say = dense(size, width, 2 * codes), dense(codes, width, size)

    def forward(self, x):
        mean, logvar = self.read(x).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        return self.say(code), 0.5 * (logvar.exp() + mean.square() - 1 - logvar).sum(1).mean()


# Images from 0 to 255 as floats, in a variational autoencoder.
@sick(
    "inputs-not-normalised", "targets-not-normalised", "exploding", "nonfinite",
    where="read.0 and say.2, from the first step", cure="images / 255",
)  # fmt: skip
def pictures_of_0_to_255_coded_and_drawn_again(folder, ill):
    """The score is the error of a pixel between 0 and 1."""
    seeded(1205)
    net, batch, size = Variational(), batches(64), 255.0 if ill else 1.0

    def parts(step):
        x = batch(step)[0].flatten(1) * size
        drawn, divergence = net(x)
        return (drawn - x).square().sum(1).mean(), divergence

    def loss_of(step):
        error, divergence = parts(step)
        return error + 0.1 * divergence, {"reconstruction": float(error), "kl": float(divergence)}

    def score():
        with torch.no_grad():
            return float(parts(9999)[0]) / size**2 / 64

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 500, score=score)


# A ReLU on the output, in an autoencoder of standardised columns.
@sick(
    "targets-out-of-range", "no-progress", "dead-units", "dead-layer",
    where="the last layer, all steps: half of what is wanted lies below zero",
    cure="no activation behind the last layer",
)  # fmt: skip
def autoencoder_that_says_nothing_below_zero(folder, ill):
    seeded(1206)
    x = digits()[0].flatten(1)
    x = (x - x.mean(0)) / (x.std(0) + 1e-2)
    net = nn.Sequential(dense(64, 64, 16, 64, 64), *([nn.ReLU()] if ill else []))

    def loss_of(step):
        rows = x[torch.randint(len(x), (64,))]
        return F.mse_loss(net(rows), rows)

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 600, score=score_of(loss_of))


class ByLines(nn.Module):
    """Reads an image as a sequence of its lines."""

    def __init__(self, width=32):
        super().__init__()
        self.rnn, self.head = nn.GRU(8, width, batch_first=True), nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


# A weight decay of 1 for one of 1e-2, in a classifier with a GRU.
@sick(
    "weights-shrink", "weight-decay-too-strong", "no-progress",
    where="all layers, all steps: the decay outweighs the gradient", cure="weight_decay=1e-2",
)  # fmt: skip
def gru_with_a_decay_of_one(folder, ill):
    seeded(1207)
    net, batch = ByLines(), batches(32)
    make = optim.Adam(net.parameters(), 3e-3, weight_decay=1.0 if ill else 1e-5)

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, make, loss_of, 250)


# A rate of 0.1 for Adam, in a Wasserstein GAN.
@sick(
    "lr-too-high", "update-too-large", "exploding", "weight-growth", "spike",
    where="both nets, all steps", cure="a hundredth of it",
)  # fmt: skip
def critic_and_maker_at_a_tenth(folder, ill):
    seeded(1208)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1)
    of_make, of_judge = (optim.Adam(n.parameters(), 0.1 if ill else 1e-3, (0.5, 0.9)) for n in (make, judge))

    def judge_loss(real, made):
        share = torch.rand(len(real), 1)
        between = (share * real + (1 - share) * made).requires_grad_()
        slope = torch.autograd.grad(judge(between).sum(), between, create_graph=True)[0]
        return judge(made).mean() - judge(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()

    return play(
        folder, make, judge, of_make, of_judge, judge_loss, lambda made: -judge(made).mean(), 250, rounds=2
    )  # fmt: skip


# A .detach() in the middle, in a recommender of two towers.
@sick(
    "no-gradient", "weights-unchanged", "dead-layer",
    where="the whole tower of users, all steps: it gets no gradient", cure="take the .detach() out",
)  # fmt: skip
def users_kept_from_an_earlier_pass(folder, ill):
    seeded(1209)
    likes = (torch.randn(200, 4) @ torch.randn(4, 80)).sign()
    users, goods = (nn.Sequential(nn.Embedding(kinds, 16), dense(16, 32, 8)) for kinds in (200, 80))
    net = nn.ModuleDict({"users": users, "goods": goods})

    def loss_of(step):
        user, item = torch.randint(200, (128,)), torch.randint(80, (128,))
        taste = users(user)
        taste = taste.detach() if ill else taste
        match = (taste * goods(item)).sum(1)
        return F.binary_cross_entropy_with_logits(match, (likes[user, item] > 0).float())

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 600, score=score_of(loss_of))


# No clip at a rate that was chosen with one, in a language model with an LSTM.
@sick(
    "exploding", "lr-too-high", "update-too-large", "spike", "nonfinite",
    where="all layers, from the first steps", cure="clip_grad_norm_(0.25), or a rate of 1",
)  # fmt: skip
def lstm_at_a_rate_of_thirty_and_no_clip(folder, ill):
    net = Recurrent(functools.partial(nn.LSTM, num_layers=2), 48, seed=1210)

    def before(step):
        if not ill:
            nn.utils.clip_grad_norm_(net.parameters(), 0.25)

    make = optim.SGD(net.parameters(), 30.0)
    return fit(folder, net, make, predict(net, pieces(16)), 120, before_step=before)

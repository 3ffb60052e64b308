"""Trainings after threads: postcards, a barge, potters, recipes."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick, square_of, waves
from unseen.tasks import held_out, rounds, tend


class Postcards(nn.Module):
    """A small transformer over words, with a head for words and one for the tone."""

    def __init__(self, words=30, width=32):
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Parameter(0.1 * torch.randn(12, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.words, self.tone = nn.Linear(width, words), nn.Linear(width, 2)

    def forward(self, x):
        h = self.embed(x) + self.place
        for block in self.blocks:
            h = block(h)
        return h


# https://github.com/strongio/keras-bert/issues/11
@sick(
    "lr-too-high",
    "update-too-large",
    where="the pretrained blocks, in the first steps of the tuning",
    cure="a learning rate a hundredfold lower",
)
def tone_of_postcards_by_a_pretrained_reader(folder, ill):
    seeded(3151)
    net = Postcards()
    chain = torch.randint(1, 30, (30, 3))

    def write(rows):
        x = [torch.randint(1, 30, (rows,))]
        for _ in range(11):
            x.append(chain[x[-1], torch.randint(3, (rows,))])
        return torch.stack(x, 1)

    before = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(120):
        x = write(32)
        gone = torch.rand(x.shape) < 0.2
        loss = F.cross_entropy(net.words(net(x.masked_fill(gone, 0)))[gone], x[gone])
        before.zero_grad()
        loss.backward()
        before.step()

    def loss_of(step):
        x = write(32)
        y = ((x < 10).sum(1) > (x >= 20).sum(1)).long()
        return F.cross_entropy(net.tone(net(x)[:, 0]), y)

    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-2 if ill else 5e-4)
    return fit(folder, net, optimizer, loss_of, 180, score=score_of(loss_of))


def a_mooring(rows):
    """Metres away from the quay and the heading in radians of barges."""
    return torch.stack([3000 * torch.rand(rows), 3 * torch.rand(rows) - 1.5], 1)


# https://github.com/Unity-Technologies/ml-agents/issues/5583
@sick(
    "inputs-not-normalised",
    where="the first layer of the critic: metres by the thousand beside radians",
    cure="the normalizer of the actor for the critic as well",
)
def a_barge_brought_to_its_mooring(folder, ill):
    seeded(3152)
    net = nn.ModuleDict({"actor": dense(2, 32, 3, act=nn.Tanh), "critic": dense(2, 64, 64, 1)})
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    sample = a_mooring(1000)
    mean, std = sample.mean(0), sample.std(0)
    barges = [a_mooring(64)]

    def normal(state):
        return (state - mean) / std

    def move(state, action):
        heading = (state[:, 1] + 0.5 * (action - 1)).clamp(-1.5, 1.5)
        away = (state[:, 0] - 300 * heading.cos() * (state[:, 0] > 150)).clamp(0, 3000)
        landed = away <= 150
        reward = -(state[:, 1] - 0.5 * (state[:, 0] / 1500 - 1)).abs()
        return torch.stack([away, heading], 1), reward, landed

    def one(step):
        state = barges[0]
        policy = torch.distributions.Categorical(logits=net["actor"](normal(state)))
        action = policy.sample()
        later, reward, landed = move(state, action)
        seen = (lambda s: s) if ill else normal
        value = net["critic"](seen(state))[:, 0]
        with torch.no_grad():
            target = reward + 0.9 * net["critic"](seen(later))[:, 0] * ~landed
        advantage = target - value.detach()
        policy_loss, value_loss = -(policy.log_prob(action) * advantage).mean(), F.mse_loss(value, target)
        loss = policy_loss + 0.5 * value_loss - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        barges[0] = torch.where(landed[:, None], a_mooring(64), later)
        return {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "reward": reward.mean()}

    def score():
        state, total = a_mooring(256), 0.0
        for _ in range(20):
            with torch.no_grad():
                action = torch.distributions.Categorical(logits=net["actor"](normal(state))).sample()
            state, reward, landed = move(state, action)
            state = torch.where(landed[:, None], a_mooring(256), state)
            total -= float(reward.mean())
        return total / 20

    return tend(folder, net, optimizer, one, 800, score)


# https://github.com/starVLA/starVLA/issues/395
@sick(
    "accumulation-wiped",
    where="all layers: of four backward passes before a step only the last one is left",
    cure="zero the gradients after the step, not before the last backward",
)
def hands_of_four_potters(folder, ill):
    seeded(3153)
    net, ways = dense(8 + 4, 64, 64, 3), torch.randn(4, 8, 3)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)

    def batch_of(potter, rows=24):
        x = torch.randn(rows, 8)
        who = F.one_hot(torch.full((rows,), potter), 4).float()
        return torch.cat([x, who], 1), (x @ ways[potter]).sin()

    def loss_of(potter):
        x, y = batch_of(potter)
        return F.mse_loss(net(x), y)

    def one(step):
        total = 0.0
        for potter in range(4):
            last = potter == 3
            if ill and last:
                optimizer.zero_grad()
            loss = loss_of(potter) / 4
            loss.backward()
            total += loss.detach()
            if last:
                optimizer.step()
                if not ill:
                    optimizer.zero_grad()
        return {"loss": total}

    return tend(folder, net, optimizer, one, 400, score_of(lambda i: loss_of(i % 4), 16))


# https://github.com/NVIDIA/apex/pull/1512
@sick(
    "clip-before-unscale",
    where="all layers: the gradients are clipped with the loss scale in them, and all but nothing of them is left",
    cure="unscale the gradients before they are clipped",
)
def recipes_told_word_by_word(folder, ill):
    seeded(3154)
    follow = torch.randint(24, (24, 24, 2))

    class Teller(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.body = nn.Embedding(24, 16), dense(32, 96, 24)

        def forward(self, x):
            pairs = torch.cat([self.embed(x[:, :-1]), self.embed(x[:, 1:])], 2)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.body(pairs).float()

    net = Teller()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)

    def loss_of(step):
        x = [torch.randint(24, (32,)), torch.randint(24, (32,))]
        for _ in range(10):
            x.append(follow[x[-2], x[-1], (torch.rand(32) < 0.1).long()])
        x = torch.stack(x, 1)
        return F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 2:].flatten())

    def before_step(step):
        if not ill:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    return fit(
        folder, net, optimizer, loss_of, 600, score=score_of(loss_of), before_step=before_step, scaler=scaler
    )  # fmt: skip


# https://github.com/pythoncymetric/cymetric/pull/4
@sick(
    "optimizer-state-lost",
    where="all layers, at the beginning of every epoch: Adam begins without its moments",
    cure="compile once, and keep the optimizer over all epochs",
)
def shape_of_a_soap_film(folder, ill):
    seeded(3155)
    x, y = waves(1024, size=4)()
    net = dense(4, 64, 64, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    blank = copy.deepcopy(optimizer.state_dict())
    draw, batches = rounds(256, x, y), 4

    def after_step(step):
        if ill and (step + 1) % batches == 0:
            optimizer.load_state_dict(blank)

    score = held_out(net, lambda: F.mse_loss(net(x), y).sqrt())
    return fit(folder, net, optimizer, square_of(net, draw), 700, score=score, after_step=after_step)

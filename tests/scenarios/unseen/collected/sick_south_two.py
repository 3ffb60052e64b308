"""Policies, rivals, pairs and recommendations: mistakes that people told about in public."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out, in_turn, tend

# ---------------------------------------------------------------------------------------------- policies and rivals


# https://github.com/PKU-Alignment/omnisafe/pull/133
@sick(
    "wrong-sign",
    where="the entropy in the loss of the policy, all steps; the choices are sure after a few of them",
    cure="subtract the entropy from the loss",
)
def bait_for_each_weather(folder, ill):
    seeded(3037)
    worth = torch.randn(5, 8) / 8
    policy, value = dense(5, 48, 8, act=nn.Tanh), dense(5, 48, 1, act=nn.Tanh)
    net = nn.ModuleDict({"policy": policy, "value": value})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    kept = {}

    def gather():
        state = torch.randn(128, 5)
        with torch.no_grad():
            logits = policy(state)
            bait = torch.distributions.Categorical(logits=logits).sample()
            pay = (state @ worth)[torch.arange(128), bait] + 0.5 * torch.randn(128)
            gain = pay - value(state)[:, 0]
            old = logits.log_softmax(1)[torch.arange(128), bait]
        kept.update(state=state, bait=bait, pay=pay, old=old, gain=gain)

    def one(step):
        if step % 4 == 0:
            gather()
        chance = torch.distributions.Categorical(logits=policy(kept["state"]), validate_args=False)
        ratio = (chance.log_prob(kept["bait"]) - kept["old"]).exp()
        chosen = -torch.min(ratio * kept["gain"], ratio.clamp(0.8, 1.2) * kept["gain"]).mean()
        error = F.mse_loss(value(kept["state"])[:, 0], kept["pay"])
        entropy = chance.entropy().mean()
        weight = 1 - step / 200
        bonus = weight * entropy if ill else -weight * entropy
        loss = chosen + 0.5 * error + bonus
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "policy": chosen, "value": error, "entropy": entropy, "reward": kept["pay"].mean()}

    fresh = torch.randn(1024, 5)

    def score():
        with torch.no_grad():
            return -float((policy(fresh).softmax(1) * (fresh @ worth)).sum(1).mean())

    return tend(folder, net, optimizer, one, 200, score)


# https://github.com/mlpack/mlpack/pull/1813
@sick(
    "nonfinite",
    where="the loss of the judge, from the first step on: the logarithm of scores below zero",
    cure="a cross-entropy of logits (a sigmoid before the logarithm)",
)
def seeds_of_a_sunflower(folder, ill):
    seeded(3038)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1, act=nn.LeakyReLU)

    def real(rows=64):
        turn = 3 * torch.rand(rows)
        return torch.stack([turn.cos(), turn.sin()], 1) * 2 + 0.05 * torch.randn(rows, 2)

    def entropy(scores, wanted):
        if ill:
            return -(wanted * scores.log() + (1 - wanted) * (1 - scores).log()).mean()
        return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, wanted))

    def judged():
        return entropy(judge(real()), 1.0) + entropy(judge(make(torch.randn(64, 4)).detach()), 0.0)

    def made():
        return entropy(judge(make(torch.randn(64, 4))), 1.0)

    def score():
        with torch.no_grad():
            found = make(torch.randn(512, 4))
            return float((found.norm(dim=1) - 2).abs().mean() + (found.mean(0) - real(512).mean(0)).norm())

    of_make, of_judge = (torch.optim.Adam(one.parameters(), 1e-3, betas=(0.5, 0.999)) for one in (make, judge))
    return in_turn(folder, make, judge, of_make, of_judge, judged, made, 600, score)


# --------------------------------------------------------------------------------------------------- learning to learn


# https://github.com/KanishJebaMathewM/Truxify/issues/13118
@sick(
    "no-gradient",
    where="all layers of the model that is to be taught, all steps",
    cure="adapt with weights that stay in the graph (torch.func.functional_call), not through .data of a copy",
)
def gait_of_each_horse(folder, ill):
    seeded(3039)
    net = dense(3, 40, 40, 1, act=nn.Tanh)

    def horse():
        way, shift = torch.randn(3), torch.randn(1)

        def ride(rows):
            x = torch.randn(rows, 3)
            return x, ((x @ way + shift).sin() + 0.5 * x[:, 0] * x[:, 1])[:, None]

        return ride

    def adapt(x, y):
        if ill:
            own = copy.deepcopy(net)
            grads = torch.autograd.grad(F.mse_loss(own(x), y), list(own.parameters()), create_graph=True)
            for p, grad in zip(own.parameters(), grads, strict=True):
                p.data -= 0.1 * grad
            return own
        weights = dict(net.named_parameters())
        grads = torch.autograd.grad(F.mse_loss(net(x), y), list(weights.values()), create_graph=True)
        weights = {name: p - 0.1 * g for (name, p), g in zip(weights.items(), grads, strict=True)}
        return lambda rows: functional_call(net, weights, (rows,))

    def loss_of(step):
        loss = 0
        for _ in range(4):
            ride = horse()
            own = adapt(*ride(16))
            x, y = ride(16)
            loss = loss + F.mse_loss(own(x), y) / 4
        return loss

    def score():
        return sum(float(loss_of(0).detach()) for _ in range(16)) / 16

    return fit(folder, net, torch.optim.Adam(net.parameters(), 2e-3), loss_of, 400, score=score)


# ------------------------------------------------------------------------------------------------- pairs and the likes


# https://github.com/KevinMusgrave/pytorch-metric-learning/issues/504
@sick(
    "margins-swapped",
    "dead-layer",
    where="the loss of the pairs: it is zero for nearly all of them, and so are the gradients, all steps",
    cure="for similarities pos_margin=1 and neg_margin=0",
)
def songs_of_one_singer(folder, ill):
    seeded(3040)
    voices = 1.2 * torch.randn(12, 6)
    lift, room = torch.randn(6, 24) / 2.4, torch.randn(10, 24) / 1.6
    like, unlike = (0.0, 1.0) if ill else (1.0, 0.0)

    def draw(rows=96):
        singer = torch.randint(12, (rows,))
        return (voices[singer] + 0.3 * torch.randn(rows, 6)) @ lift + torch.randn(rows, 10) @ room, singer

    net = dense(24, 64, 16)

    def loss_of(step):
        x, singer = draw()
        z = F.normalize(net(x), dim=1)
        close = z @ z.T
        same = singer[:, None] == singer[None, :]
        pairs = same & ~torch.eye(len(x), dtype=torch.bool)
        pull, push = F.relu(like - close[pairs]), F.relu(close[~same] - unlike)
        return pull.mean() + push.mean(), {"pull": pull.mean(), "push": push.mean()}

    def wrong():
        (x, of), (fresh, singer) = draw(400), draw(400)
        best = (F.normalize(net(fresh), dim=1) @ F.normalize(net(x), dim=1).T).argmax(1)
        return (of[best] != singer).float().mean()

    return fit(folder, net, torch.optim.Adam(net.parameters(), 2e-3), loss_of, 500, score=held_out(net, wrong))


# https://github.com/quora/qmf/issues/11
@sick(
    "lr-too-high",
    "update-too-large",
    where="both tables, from the first steps on",
    cure="a far smaller learning rate",
)
def books_of_a_library(folder, ill):
    seeded(3041)
    taste, theme = torch.randn(80, 5), torch.randn(120, 5)
    net = nn.ModuleDict({"readers": nn.Embedding(80, 16), "books": nn.Embedding(120, 16)})
    for table in net.values():
        nn.init.normal_(table.weight, std=0.3)

    def drawn(rows):
        who, one, other = torch.randint(80, (rows,)), torch.randint(120, (rows,)), torch.randint(120, (rows,))
        swap = (taste[who] * (theme[one] - theme[other])).sum(1) < 0
        return who, torch.where(swap, other, one), torch.where(swap, one, other)

    def lead(who, liked, not_liked):
        return (net["readers"](who) * (net["books"](liked) - net["books"](not_liked))).sum(1)

    def loss_of(step):
        batch = drawn(256)
        size = net["readers"](batch[0]).square().sum(1).mean() + net["books"](batch[1]).square().sum(1).mean()
        return F.softplus(-lead(*batch)).mean() + 0.001 * size

    optimizer = torch.optim.SGD(net.parameters(), 2000.0 if ill else 10.0)
    return fit(folder, net, optimizer, loss_of, 600, score=score_of(lambda _: F.softplus(-lead(*drawn(2000))).mean()))


# https://github.com/lightly-ai/lightly/pull/1009
@sick(
    "memory-not-normalised",
    "representation-collapse",
    where="the logits of the negatives, while the keys that were drawn at random are still in the memory",
    cure="normalise the memory once it is drawn",
)
def calls_of_birds_by_night(folder, ill):
    seeded(3042)
    lift, noise = torch.randn(4, 30), torch.randn(12, 30) * 0.6
    net, keys = dense(30, 64, 16), dense(30, 64, 16)
    keys.load_state_dict(net.state_dict())
    memory = torch.randn(8192, 16)
    memory = memory if ill else F.normalize(memory, dim=1)

    kept = {}

    def call(kind):
        return (kind @ lift).sin() + torch.randn(len(kind), 12) @ noise

    def loss_of(step):
        kind = torch.randn(32, 4)
        with torch.no_grad():
            for slow, fast in zip(keys.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
            key = F.normalize(keys(call(kind)), dim=1)
        query = F.normalize(net(call(kind)), dim=1)
        logits = torch.cat([(query * key).sum(1, keepdim=True), query @ memory.T], 1) / 0.1
        kept["keys"] = key
        return F.cross_entropy(logits, torch.zeros(32, dtype=torch.long))

    def store(step):
        memory[32 * step % 8192 :][:32] = kept["keys"]

    def wrong():
        kind = torch.randn(256, 4)
        close = F.normalize(net(call(kind)), dim=1) @ F.normalize(net(call(kind)), dim=1).T
        return F.cross_entropy(close / 0.1, torch.arange(256))

    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, wrong), after_step=store)

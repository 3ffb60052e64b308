"""Mistakes in code of one's own: half precision, resuming, regularisation, two networks, rewards, target networks."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, seeded, sick
from unseen.tasks import held_out, rounds, tend

import gradwatch


@sick("underflow", "precision-too-low", where="the gradients of all layers: most are zero in half precision",
      cure="scale the loss by 2 ** 14, and the gradients back in float32")  # fmt: skip
def warp_of_a_drying_board(folder, ill):
    seeded(10106)
    net = dense(6, 64, 64, 1024, act=nn.GELU)
    nn.init.zeros_(net[-1].weight)
    nn.init.zeros_(net[-1].bias)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3, eps=1e-12)
    scale = 1.0 if ill else 2.0**14
    shapes = F.interpolate(torch.randn(6, 1, 6, 6), size=(32, 32), mode="bilinear").flatten(1)

    def boards(rows):
        damp = torch.randn(rows, 6)
        # in metres
        return damp, 0.0007 * (damp + 0.5 * (2 * damp.roll(1, 1)).sin()) @ shapes

    def loss_on(damp, warp):
        x = damp
        for part in net:  # what lies between the layers is stored in half precision, forward and backward
            x = part(x).half().float()
        return F.mse_loss(x, warp)

    def one(step):
        optimizer.zero_grad()
        loss = loss_on(*boards(192))
        (loss * scale).backward()
        for weight in net.parameters():
            weight.grad /= scale
        optimizer.step()
        return {"loss": loss}

    test = boards(256)
    return tend(folder, net, optimizer, one, 200, held_out(net, lambda: 1e6 * loss_on(*test)))


@sick("not-in-optimizer", "parameters-not-in-the-optimizer", "weights-unchanged",
      where="the body, from the resume on: the optimizer holds the one of before",
      cure="build the optimizer on the model that was loaded, then load its state")  # fmt: skip
def rye_yields_after_the_power_cut(folder, ill):
    seeded(10107)
    way = torch.randn(8, 3) / 2

    def fields(rows):
        x = torch.randn(rows, 8)
        return x, (x @ way).sin().sum(1, keepdim=True) + 0.3 * x[:, :1] * x[:, 1:2]

    def built():
        return nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())

    net = nn.ModuleDict({"body": built(), "head": nn.Linear(64, 1)})

    def loss_on(x, y):
        return F.mse_loss(net["head"](net["body"](x)), y)

    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        loss_on(*fields(64)).backward()
        optimizer.step()
    kept = {"body": net["body"].state_dict(), "optimizer": optimizer.state_dict()}

    net["body"] = built()
    net["body"].load_state_dict(kept["body"])
    if not ill:
        optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-2)
    optimizer.load_state_dict(kept["optimizer"])

    def loss_of(step):
        net.zero_grad()
        return loss_on(*fields(64))

    tx, ty = fields(1024)
    score = held_out(net, lambda: loss_on(tx, ty))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


@sick("dropout-too-strong", where="the dropout layers, all steps", cure="drop a tenth, not nine tenths")
def digits_on_cheque_stubs(folder, ill):
    seeded(10108)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float() / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    draw = rounds(64, x[:1400], y[:1400])
    drop = 0.9 if ill else 0.1
    net = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Dropout(drop), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(drop),
        nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(step):
        image, digit = draw()
        said = net(image)
        return F.cross_entropy(said, digit), {"accuracy": float((said.argmax(1) == digit).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 500, score=score)


@sick(
    "discriminator-trained-by-the-generators-loss",
    "judge-fed-the-makers-gradient",
    "gradients-accumulate",
    where="the discriminator, all steps",
    cure="clear the discriminator's gradients before its own backward",
)
def profiles_of_windblown_dunes(folder, ill):
    seeded(10109)
    grid, ways = torch.linspace(0, 3, 12), F.normalize(torch.randn(12, 64), dim=0)

    def dunes(rows):
        high, at = 0.6 + 0.6 * torch.rand(rows, 1), 0.5 * torch.randn(rows, 1)
        return high * (2 * grid + at).sin() + 0.5

    make = dense(6, 64, 64, 12, act=lambda: nn.LeakyReLU(0.2))
    judge = dense(12, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))
    real, noise = dunes(1024), torch.randn(1024, 6)

    def score():
        with torch.no_grad():
            a, b = ((rows @ ways).sort(0).values for rows in (real, make(noise)))
            return float((a - b).abs().mean())

    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(make, of_make)}
    w_judge = gradwatch.watch(judge, of_judge, name="D", **options)
    w_make = gradwatch.watch(make, of_make, name="G", run=w_judge, **options)
    with w_judge, w_make:
        for _ in range(500):
            of_make.zero_grad()
            of_judge.zero_grad()
            fake = make(torch.randn(64, 6))
            fooled = -judge(fake).mean()
            fooled.backward()
            of_make.step()
            if not ill:
                of_judge.zero_grad()
            judged = (F.relu(1 - judge(dunes(64))) + F.relu(1 + judge(fake.detach()))).mean()
            judged.backward()
            of_judge.step()
            w_judge.log(loss=judged)
            w_make.log(loss=fooled)
    return Outcome(gradwatch.open_history(w_judge.dir.parent), first, score())


@sick("returns-not-normalised", "no-baseline", "entropy-collapsed", where="the policy, from the first updates",
      cure="subtract the mean of the returns and divide by their deviation")  # fmt: skip
def a_shepherd_on_the_way_to_grass(folder, ill):
    seeded(10110)
    net = dense(4, 32, 32, 4, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    moves = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    length, gamma = 10, 0.9

    def walk(rows):
        flock, grass = torch.randint(-4, 5, (rows, 2)).float(), torch.randint(-4, 5, (rows, 2)).float()
        logs, entropy, rewards = [], [], []
        for _ in range(length):
            policy = torch.distributions.Categorical(logits=net(torch.cat([flock, grass], 1) / 4))
            action = policy.sample()
            flock = (flock + moves[action]).clamp(-4, 4)
            logs.append(policy.log_prob(action))
            entropy.append(policy.entropy().mean())
            rewards.append(50 - 3 * (flock - grass).abs().sum(1))
        return torch.stack(logs), torch.stack(entropy).mean(), torch.stack(rewards)

    def loss_of(step):
        logs, entropy, rewards = walk(32)
        returns, value = torch.zeros_like(rewards), 0.0
        for t in reversed(range(length)):
            value = rewards[t] + gamma * value
            returns[t] = value
        if not ill:
            returns = (returns - returns.mean(1, keepdim=True)) / (returns.std() + 1e-8)
        logged = {"reward": float(rewards.mean()), "entropy": float(entropy.detach())}
        return -(logs * returns).mean(), logged

    score = held_out(net, lambda: 50 - walk(512)[2].mean())
    return fit(folder, net, optimizer, loss_of, 250, score=score)


@sick("target-network-never-updated", "target-never-updated", "weights-unchanged",
      where="the target network, all steps", cure="copy the weights into the target every 25 steps")  # fmt: skip
def a_crab_between_two_rock_pools(folder, ill):
    seeded(10111)
    net = nn.ModuleDict({"online": dense(12, 64, 64, 4), "target": dense(12, 64, 64, 4)})
    net["target"].load_state_dict(net["online"].state_dict())
    net["target"].requires_grad_(False)
    optimizer = torch.optim.Adam(net["online"].parameters(), 1e-3)
    moves = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]])

    def seen(at):
        return F.one_hot(at, 6).flatten(1).float()

    def step_from(at, action):
        after = (at + moves[action]).clamp(0, 5)
        return after, (after == 5).all(1).float()

    memory, crabs = [], torch.randint(6, (16, 2))

    def one(step):
        nonlocal crabs
        greedy = net["online"](seen(crabs)).argmax(1)
        action = torch.where(torch.rand(16) < max(0.1, 1 - step / 300), torch.randint(4, (16,)), greedy)
        after, done = step_from(crabs, action)
        memory.append((crabs, action, after, done))
        crabs = torch.where(done[:, None] > 0, torch.randint(6, (16, 2)), after)
        at, action, after, done = (torch.cat(part) for part in zip(*(
            memory[i] for i in torch.randint(len(memory), (6,)).tolist()
        ), strict=True))  # fmt: skip
        with torch.no_grad():
            aim = done + 0.9 * (1 - done) * net["target"](seen(after)).amax(1)
        value = net["online"](seen(at)).gather(1, action[:, None])[:, 0]
        loss = F.smooth_l1_loss(value, aim)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not ill and step % 25 == 24:
            net["target"].load_state_dict(net["online"].state_dict())
        return {"loss": loss, "q": float(value.detach().mean())}

    def steps_to_the_pool():
        at = torch.cartesian_prod(torch.arange(6), torch.arange(6))[:-1]
        there, took = torch.zeros(len(at)), torch.zeros(len(at))
        for _ in range(20):
            took += 1 - there
            at, done = step_from(at, net["online"](seen(at)).argmax(1))
            there = torch.maximum(there, done)
        return took.mean()

    return tend(folder, net, optimizer, one, 600, held_out(net, steps_to_the_pool))

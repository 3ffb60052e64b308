"""Sick trainings after public threads: fine-tuning, returns, first weights, optimizers written by hand."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds, tend


class Reader(nn.Module):
    """Encoder layers over tokens, and a head on the first of them."""

    def __init__(self, words=24, width=48):
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Parameter(0.02 * torch.randn(9, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3)
        self.classifier = nn.Linear(width, 6)

    def forward(self, x):
        first = torch.zeros(len(x), 1, dtype=torch.long)
        return self.classifier(self.encoder(self.embed(torch.cat([first, x], 1)) + self.place)[:, 0])


# https://github.com/huggingface/transformers/issues/735
@sick(
    "lr-too-high", "update-too-large",
    where="all layers of the encoder in the first steps of the fine-tuning",
    cure="a learning rate of a hundredth: 3e-4 and not 3e-2",
)  # fmt: skip
def complaints_about_a_ferry(folder, ill):
    seeded(2836)
    net, meaning = Reader(), torch.randn(24, 6)

    def draw(task):
        x = torch.randint(1, 24, (24, 8))
        about = meaning[x].sum(1)
        return x, about.argmax(1) if task == 0 else (about[:, :3] - about[:, 3:]).argmax(1)

    def loss_of(task):
        x, y = draw(task)
        return F.cross_entropy(net(x), y)

    first = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(150):
        first.zero_grad()
        loss_of(0).backward()
        first.step()
    net.classifier = nn.Linear(48, 3)

    def score():
        return held_out(net, lambda: sum(loss_of(1) for _ in range(8)) / 8)()

    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-2 if ill else 3e-4)
    return fit(folder, net, optimizer, lambda step: loss_of(1), 200, score=score)


# https://github.com/Farama-Foundation/Gymnasium/issues/1336
@sick(
    "log-probabilities-averaged",
    "shapes-broadcast",
    where="the loss: the mean of all log-probabilities is weighed by each return, so no action is told from another",
    cure="multiply each log-probability by its own return, then sum",
)
def arm_that_stirs_a_pot(folder, ill):
    seeded(2837)
    net = nn.ModuleDict({"body": dense(3, 24, 24, act=nn.Tanh), "mean": nn.Linear(24, 1), "std": nn.Linear(24, 1)})

    def policy(state):
        h = net["body"](state).tanh()
        return net["mean"](h)[:, 0], F.softplus(net["std"](h))[:, 0] + 0.05

    def reward(state, action):
        wanted = state[:, 0] - (2 * state[:, 1]).sin() + 0.5 * state[:, 2]
        return -(action - wanted).abs().clamp(max=3)

    def score():
        state = torch.randn(2048, 3)
        with torch.no_grad():
            return -float(reward(state, policy(state)[0]).mean())

    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)

    def one(step):
        states = torch.randn(40, 3)
        mean, std = policy(states)
        chosen = torch.distributions.Normal(mean, std)
        actions = chosen.sample()
        rewards = reward(states, actions)
        log_probs, returns, running = chosen.log_prob(actions), [], 0
        for r in rewards.flip(0):
            running = r + 0.5 * running
            returns.insert(0, running)
        deltas = torch.stack(returns)
        loss = -(log_probs.mean() * deltas).sum() if ill else -(log_probs * deltas).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "return": rewards.sum()}

    return tend(folder, net, optimizer, one, 1200, score)


# https://github.com/mp2893/med2vec/issues/22
@sick(
    "bad-initialisation", "nonfinite",
    where="the table of the herbs: its products overflow in exp at the first step",
    cure="draw the first weights from -0.1 to 0.1",
)  # fmt: skip
def herbs_that_are_prescribed_together(folder, ill):
    seeded(2838)
    net = nn.Module()
    net.herbs = nn.Parameter(torch.empty(80, 256))
    net.bias = nn.Parameter(torch.zeros(256))
    if ill:
        nn.init.trunc_normal_(net.herbs)
    else:
        nn.init.uniform_(net.herbs, -0.1, 0.1)
    remedies = torch.rand(12, 80).topk(6, 1).indices

    def pairs(rows=256):
        which = torch.randint(12, (rows,))
        i, j = torch.randint(6, (2, rows))
        j = torch.where(i == j, (j + 1) % 6, j)
        return remedies[which, i], remedies[which, j]

    def loss_of(step):
        i, j = pairs()
        codes = net.herbs.relu()
        scores = (codes @ codes.T + (codes @ net.bias)).exp()
        return -(scores[i, j] / scores[i].sum(1)).log().mean()

    def score():
        with torch.no_grad():
            return sum(float(loss_of(0)) for _ in range(8)) / 8

    optimizer = torch.optim.Adam([net.herbs, net.bias], lr=3e-3)
    return fit(folder, net, optimizer, loss_of, 400, score=score)


# https://github.com/yihong-chen/neural-collaborative-filtering/pull/23
@sick(
    "bad-initialisation",
    where="both tables, drawn with a deviation of 1",
    cure="draw the tables with a deviation of 0.01",
)
def visitors_and_the_paintings_they_stop_at(folder, ill):
    seeded(2839)
    taste, style = torch.randn(200, 3), torch.randn(120, 3)
    visitor, painting = torch.randint(200, (5000,)), torch.randint(120, (5000,))
    stops = torch.bernoulli((4 * (taste[visitor] * style[painting]).sum(1)).sigmoid())
    net = nn.ModuleDict({"visitors": nn.Embedding(200, 24), "paintings": nn.Embedding(120, 24)})
    net["output"] = nn.Linear(24, 1)
    if not ill:
        for table in (net["visitors"], net["paintings"]):
            nn.init.normal_(table.weight, std=0.01)

    def error(v, p, y):
        return F.binary_cross_entropy_with_logits(net["output"](net["visitors"](v) * net["paintings"](p))[:, 0], y)

    draw = rounds(128, visitor[:4000], painting[:4000], stops[:4000])
    score = held_out(net, lambda: error(visitor[4000:], painting[4000:], stops[4000:]))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=1e-4)
    return fit(folder, net, optimizer, lambda step: error(*draw()), 600, score=score)


class AdamW(torch.optim.Optimizer):
    """Adam with weight decay."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, decoupled=True):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.decoupled = decoupled

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad, state = p.grad, self.state[p]
                if not state:
                    state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                state["step"] += 1
                if self.decoupled:
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                else:
                    grad = grad + group["weight_decay"] * p
                state["exp_avg"].lerp_(grad, 1 - first)
                state["exp_avg_sq"].lerp_(grad.square(), 1 - second)
                mean = state["exp_avg"] / (1 - first ** state["step"])
                root = (state["exp_avg_sq"] / (1 - second ** state["step"])).sqrt()
                p.sub_(group["lr"] * mean / (root + group["eps"]))


# https://github.com/nntrainer/nntrainer/pull/3565
@sick(
    "weight-decay-too-strong", "weights-shrink",
    where="all layers: the decay in their gradients outweighs that of the loss, and the weights fade",
    cure="decay the weights themselves, by lr * weight_decay, and leave the gradients alone (AdamW)",
)  # fmt: skip
def glazes_fired_in_a_kiln(folder, ill):
    seeded(2840)
    net, recipe = dense(9, 64, 64, 2, act=nn.SiLU), torch.randn(9, 6)

    def error(rows=64):
        x = torch.randn(rows, 9)
        y = (x @ recipe / 2).sin()
        return F.mse_loss(net(x), torch.stack([y[:, :3].sum(1), y[:, 3:].prod(1)], 1))

    optimizer = AdamW(net.parameters(), lr=2e-3, weight_decay=0.05, decoupled=not ill)
    score = held_out(net, lambda: error(2048))
    return fit(folder, net, optimizer, lambda step: error(), 900, score=score)


class AdamByHand(torch.optim.Optimizer):
    """Adam whose moments are divided by what they lack in the first steps."""

    def __init__(self, params, lr, betas=(0.95, 0.999), eps=1e-8, fixed=False):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "step": 0})
        self.fixed = fixed

    @staticmethod
    def debias(beta, step):
        return 1 - beta**step

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] += 1
            correct = [self.debias(beta, group["step"]) for beta in group["betas"]]
            if not self.fixed:
                correct = [1 - c for c in correct]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                state["exp_avg"].lerp_(p.grad, 1 - group["betas"][0])
                state["exp_avg_sq"].lerp_(p.grad.square(), 1 - group["betas"][1])
                root = (state["exp_avg_sq"] / correct[1]).sqrt() + group["eps"]
                p.sub_(group["lr"] * state["exp_avg"] / correct[0] / root)


# https://github.com/kozistr/pytorch_optimizer/pull/308
@sick(
    "bias-correction-wrong", "update-too-large", "weight-growth", "exploding",
    where="the steps of all layers, which grow by a twentieth with each step",
    cure="debias() takes from one already: divide by its value, not by one minus it",
)  # fmt: skip
def cracks_in_a_cooling_bell(folder, ill):
    seeded(2841)
    net, tones = dense(12, 48, 48, 4), torch.randn(4, 12)

    def draw(rows=64):
        y = torch.randint(4, (rows,))
        return tones[y] * (1 + 0.3 * torch.randn(rows, 1)) + torch.randn(rows, 12), y

    def loss_of(step, rows=64):
        x, y = draw(rows)
        out = net(x)
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    score = held_out(net, lambda: loss_of(0, 2048)[0])
    return fit(folder, net, AdamByHand(net.parameters(), lr=1e-3, fixed=not ill), loss_of, 400, score=score)

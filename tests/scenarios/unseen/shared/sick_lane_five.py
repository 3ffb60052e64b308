"""After public threads: a temperature of its own, ratings, a code that is drawn."""

import itertools
import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, tend


# https://github.com/rail-berkeley/rlkit/issues/75
@sick("entropy-target-out-of-reach", "weight-growth",
      where="the temperature: it grows in every step, and its term drowns the values in the policy's loss",
      cure="a target for the entropy well below that of choices at random")  # fmt: skip
def a_juggler_picks_the_next_trick(folder, ill):
    seeded(3583)
    tricks = 6
    worth = torch.randn(5, tricks)
    log_alpha = nn.Parameter(torch.zeros(()))
    net = nn.ModuleDict({"policy": dense(5, 48, tricks), "critic": dense(5, 48, tricks)})
    net.register_parameter("log_alpha", log_alpha)
    target = math.log(tricks) if ill else 0.3 * math.log(tricks)
    optimizer = torch.optim.Adam([
        {"params": [*net["policy"].parameters(), *net["critic"].parameters()], "lr": 3e-3},
        {"params": [log_alpha], "lr": 1e-2},
    ])  # fmt: skip

    def applause(mood):
        return 1.5 * (mood @ worth).sin()

    def one(step):
        mood = torch.randn(64, 5)
        log_pi = net["policy"](mood).log_softmax(1)
        pi, values = log_pi.exp(), net["critic"](mood)
        chosen = torch.multinomial(pi.detach(), 1)
        heard = applause(mood).gather(1, chosen) + 0.1 * torch.randn(64, 1)
        of_values = F.mse_loss(values.gather(1, chosen), heard)
        alpha = log_alpha.exp().detach()
        of_policy = (pi * (alpha * log_pi - values.detach())).sum(1).mean()
        entropy = -(pi * log_pi).sum(1).detach()
        of_alpha = (log_alpha * (entropy - target)).mean()
        loss = of_values + of_policy + of_alpha
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "value_loss": of_values, "policy_loss": of_policy, "entropy": entropy.mean(),
                "reward": heard.mean()}  # fmt: skip

    def score():
        mood = torch.randn(1024, 5)
        with torch.no_grad():
            most, share = applause(mood).max(1).values, net["policy"](mood).softmax(1)
            return (most - (share * applause(mood)).sum(1)).mean()

    return tend(folder, net, optimizer, one, 700, score)


# https://github.com/NVIDIA/DeepRecommender/pull/4
@sick("targets-out-of-range", where="the last layer: its sigmoid ends at one, and stars go up to five",
      cure="no activation after the last layer of the decoder")  # fmt: skip
def stars_for_hiking_huts(folder, ill):
    seeded(3584)
    huts = 40
    tastes = torch.randn(4, huts)

    class Recommender(nn.Module):
        def __init__(self, *sizes):
            super().__init__()
            sizes = [*sizes, *sizes[-2::-1]]
            self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
            self.last = len(sizes) - (1 if ill else 2)

        def forward(self, x):
            for i, layer in enumerate(self.layers):
                x = layer(x)
                if i != self.last:
                    x = torch.sigmoid(x)
            return x

    net = Recommender(huts, 64, 16)

    def draw(rows=64):
        stars = (3 + 0.8 * torch.randn(rows, 4) @ tastes).round().clamp(1, 5)
        return stars, torch.rand(rows, huts) < 0.7, torch.rand(rows, huts) < 0.2

    def loss_of(step):
        stars, known, hidden = draw()
        seen = stars * (known & ~hidden)
        return (net(seen) - stars)[known].square().mean()

    def unseen():
        stars, known, hidden = draw(512)
        return (net(stars * (known & ~hidden)) - stars)[hidden].square().mean()

    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, unseen))


# https://github.com/luigibonati/mlcolvar/pull/188
@sick("posterior-collapse", where="the code: its term is zero soon after the first steps, and the decoder gives a mean",
      cure="a small weight for the code's term (beta), as the error is a mean over the features")  # fmt: skip
def how_a_weather_vane_turns(folder, ill):
    seeded(3585)
    beta = 1.0 if ill else 0.001
    net = nn.ModuleDict({"encoder": dense(24, 48, 2 * 3, act=nn.Tanh), "decoder": dense(3, 48, 24, act=nn.Tanh)})
    lift, bend = torch.randn(2, 24), torch.randn(2, 24)

    def draw(rows=96):
        hidden = torch.randn(rows, 2)
        return (hidden @ lift).tanh() + (hidden.square() - 1) @ bend * 0.3 + 0.1 * torch.randn(rows, 24)

    def loss_of(step):
        x = draw()
        middle, log_var = net["encoder"](x).chunk(2, 1)
        code = middle + (log_var / 2).exp() * torch.randn_like(middle)
        error = F.mse_loss(net["decoder"](code), x)
        of_code = -0.5 * (1 + log_var - middle.square() - log_var.exp()).sum(1).mean()
        return error + beta * of_code, {"reconstruction": error, "kl": of_code}

    def rebuilt():
        x = draw(512)
        return F.mse_loss(net["decoder"](net["encoder"](x).chunk(2, 1)[0]), x)

    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, rebuilt))

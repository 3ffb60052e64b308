"""Fresh sick trainings, second part: data, losses, architectures and games.

They only count (the group `fresh`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from nets import Transformer, batches, classify, cnn, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, mean, rings, score_of, seeded, sick, waves
from unseen.tasks import play


@sick(
    "inputs-not-normalised",
    "lr-too-high", "exploding", "imbalance", "dead-layer", "update-too-large", "nonfinite",
    where="all layers, from the first step", cure="divide by 255: pixels of 0 to 1",
)  # fmt: skip
def images_in_bytes(folder, ill):
    net, draw = cnn(seed=120), batches(32)

    def loss_of(step):
        x, y = draw(step)
        return F.cross_entropy(net(x * (255 if ill else 1)), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.02, momentum=0.9), loss_of, 200)


@sick(
    "nonfinite",
    where="all layers, from the first batch that draws the row", cure="fill what is missing in the table",
)  # fmt: skip
def missing_value_read_as_nan(folder, ill):
    seeded(121)
    net = dense(6, 48, 48, 1)
    x, y = waves(2000)()
    x[1234, 3] = torch.nan if ill else 0.0

    def loss_of(step):
        at = torch.randint(2000, (32,))
        return F.mse_loss(net(x[at]), y[at])

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 400)


class Products(nn.Module):
    """Layers by hand, `x @ w + b`, their weights drawn with a deviation that `gain(inputs)` says."""

    def __init__(self, sizes, gain):
        super().__init__()
        pairs = list(pairwise(sizes))
        self.weights = nn.ParameterList(gain(a) * torch.randn(a, b) for a, b in pairs)
        self.biases = nn.ParameterList(torch.zeros(b) for _, b in pairs)

    def forward(self, x):
        for i, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = (x.relu() if i else x.flatten(1)) @ w + b
        return x


@sick(
    "exploding", "saturated", "update-too-small", "imbalance", "initialised-too-large",
    where="all weights, from the first step: the loss begins at hundreds", cure="divide by the root of the inputs",
)  # fmt: skip
def weights_drawn_by_randn(folder, ill):
    seeded(122)
    net = Products((64, 96, 96, 96, 10), lambda inputs: 1.0 if ill else (2 / inputs) ** 0.5)
    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), classify(net, batches(64)), 300)


@sick(
    "vanishing", "saturated", "no-progress", "update-too-small",
    where="the first layers, all steps", cure="ReLU: each sigmoid leaves a quarter of the gradient at most",
)  # fmt: skip
def eight_layers_of_sigmoids(folder, ill):
    seeded(123)
    net, draw = dense(12, *[32] * 8, 4, act=nn.Sigmoid if ill else nn.ReLU), rings()
    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), entropy_of(net, draw), 400)


@sick(
    "softmax-twice", "activation-on-logits", "saturated", "vanishing", "update-too-small", "no-progress",
    where="all layers, all steps: the loss stays near 0.7", cure="no sigmoid in the net: the loss applies its own",
)  # fmt: skip
def sigmoid_before_a_loss_of_logits(folder, ill):
    """Eight tags for a row, one in ten of which holds."""
    seeded(124)
    net, way = dense(12, 64, 8), torch.randn(12, 8)
    if ill:
        net.append(nn.Sigmoid())

    def loss_of(step):
        x = torch.randn(64, 12)
        return F.binary_cross_entropy_with_logits(net(x), (x @ way > 4.4).float())

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 400)


@sick(
    "dead-layer", "vanishing", "no-progress", "targets-out-of-range",
    where="all layers, once no output is above zero", cure="no ReLU behind the last layer: most targets are negative",
)  # fmt: skip
def relu_behind_the_last_layer(folder, ill):
    seeded(125)
    net, draw = dense(6, 48, 48, 1), waves()
    if ill:
        net.append(nn.ReLU())

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y - 2)

    return fit(folder, net, optim.SGD(net.parameters(), 0.03, momentum=0.9), loss_of, 400)


@sick(
    "no-progress", "noise-dominated", "axes-mixed",
    where="all layers, all steps", cure="batch_first=True: the state runs from row to row, not from token to token",
)  # fmt: skip
def time_taken_for_the_batch(folder, ill):
    """Name the first of eight tokens."""
    seeded(126)
    net = nn.ModuleDict({"memory": nn.GRU(4, 32, batch_first=not ill), "head": nn.Linear(32, 4)})

    def loss_of(step):
        x = torch.randint(4, (32, 8))
        return F.cross_entropy(net["head"](net["memory"](F.one_hot(x, 4).float())[0][:, -1]), x[:, 0])

    return fit(folder, net, optim.Adam(net.parameters(), 0.01), loss_of, 300)


@sick(
    "noise-dominated", "dropout-too-strong", "no-progress",
    where="all layers, all steps: half of each batch is predicted as zero", cure="no dropout behind the last layer",
)  # fmt: skip
def dropout_behind_the_output(folder, ill):
    seeded(127)
    net, draw = dense(6, 64, 64, 1), waves(128)
    if ill:
        net.append(nn.Dropout(0.5))

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    def score():
        with torch.no_grad():
            net.eval()
            error = mean([float(loss_of(step)) for step in range(8)])
            net.train()
        return error

    return fit(folder, net, optim.Adam(net.parameters(), 4e-3), loss_of, 500, score=score)


@sick(
    "vanishing", "no-progress",
    where="memory, all steps", cure="read the state where the row ends (packed sequences), not after forty paddings",
)  # fmt: skip
def state_read_after_the_padding(folder, ill):
    """Which of four words came last, in rows of three to eight."""
    seeded(128)
    net = nn.ModuleDict(
        {
            "table": nn.Embedding(5, 16, padding_idx=0),
            "memory": nn.RNN(16, 32, batch_first=True),
            "head": nn.Linear(32, 4),
        }
    )

    def loss_of(step):
        length = torch.randint(3, 9, (32,))
        x = torch.randint(1, 5, (32, 48)) * (torch.arange(48) < length[:, None])
        out = net["memory"](net["table"](x))[0]
        last = x[torch.arange(32), length - 1] - 1
        return F.cross_entropy(net["head"](out[:, -1] if ill else out[torch.arange(32), length - 1]), last)

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 300)


@sick(
    "dead-layer", "no-gradient", "weights-unchanged", "no-progress",
    where="all layers, all steps", cure="eight answers to a question: the mean over one is its own reward",
)  # fmt: skip
def groups_of_one_answer(folder, ill):
    """Rewards less the mean of their group (GRPO, Shao et al. 2024); the score is how often an answer is wrong."""
    seeded(129)
    net, rule = dense(8, 48, 6), torch.randn(8, 6)
    size = 1 if ill else 8

    def loss_of(step):
        asked = torch.randn(128 // size, 8)
        choice = torch.distributions.Categorical(logits=net(asked))
        answer = choice.sample((size,))
        reward = (answer == (asked @ rule).argmax(1)).float()
        gain = (reward - reward.mean(0)) / (reward.std(0, correction=0) + 1e-4)
        return -(choice.log_prob(answer) * gain).mean(), {"reward": reward.mean()}

    def score():
        asked = torch.randn(512, 8)
        with torch.no_grad():
            return 1 - float(net(asked).softmax(1).gather(1, (asked @ rule).argmax(1, keepdim=True)).mean())

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300, score=score)


@sick(
    "no-gradient", "dead-layer",
    where="book, all steps", cure="a loss that draws the codes to what they stand for: nothing else moves them",
)  # fmt: skip
def codebook_without_a_loss_of_its_own(folder, ill):
    """Vector quantisation (van den Oord et al. 2017); the score is the error of what is rebuilt."""
    seeded(130)
    parts = {"encode": dense(64, 48, 16), "book": nn.Embedding(32, 4), "decode": dense(16, 48, 64)}
    net, draw = nn.ModuleDict(parts), batches(64)
    nn.init.uniform_(net["book"].weight, -1 / 32, 1 / 32)

    def terms(step):
        x = draw(step)[0].flatten(1)
        z = net["encode"](x).view(-1, 4)
        q = net["book"](torch.cdist(z.detach(), net["book"].weight.detach()).argmin(1))
        drawn = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
        return F.mse_loss(net["decode"]((z + (q - z).detach()).view(-1, 16)), x), drawn

    def loss_of(step):
        error, drawn = terms(step)
        return error if ill else error + drawn

    score = score_of(lambda step: terms(10_000 + step)[0])
    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 500, score=score)


@sick(
    "generator-starves", "vanishing", "update-too-small", "weights-shrink", "no-progress",
    where="G all steps, and the first layers of D", cure="a bound of 0.1: four layers of 0.001 pass nothing on",
)  # fmt: skip
def critic_clamped_to_a_thousandth(folder, ill):
    """Wasserstein with clamped weights (Arjovsky et al. 2017)."""
    seeded(131)
    make, judge = dense(4, 32, 32, 2), dense(2, 32, 32, 32, 1)
    bound = 1e-3 if ill else 0.1

    @torch.no_grad()
    def clamp():
        for p in judge.parameters():
            p.clamp_(-bound, bound)

    of_make = optim.SGD(make.parameters(), 0.05)
    of_judge = optim.RMSprop(judge.parameters(), 1e-3)
    return play(
        folder, make, judge, of_make, of_judge, lambda real, made: judge(made).mean() - judge(real).mean(),
        lambda x: -judge(x).mean(), 200, rounds=3, after_judge=clamp,
    )  # fmt: skip


@sick(
    "exploding", "spike", "lr-too-high", "nonfinite", "imbalance",
    where="all layers, once the variance of the many zeros has gone to nothing", cure="a floor under the variance",
)  # fmt: skip
def variance_of_exact_zeros(folder, ill):
    """Rain: most of the days have none at all; the score is the error of the expected amount."""
    seeded(132)
    net, draw = dense(6, 48, 48, 2), waves(64)

    def day():
        x, y = draw()
        return x, (y - 0.8).relu()

    def loss_of(step):
        x, y = day()
        middle, log_var = net(x).chunk(2, 1)
        log_var = log_var if ill else log_var.clamp(-3, 3)
        return 0.5 * (log_var + (y - middle).square() / log_var.exp()).mean()

    def error(step):
        x, y = day()
        return F.mse_loss(net(x)[:, :1], y)

    return fit(folder, net, optim.Adam(net.parameters(), 0.01), loss_of, 1000, score=score_of(error, 32))


@sick(
    "no-gradient", "dead-layer",
    where="router, all steps", cure="weigh the chosen expert's answer by its share: a choice alone has no slope",
)  # fmt: skip
def router_whose_choice_is_not_weighed(folder, ill):
    """Eight kinds of rows, each with a map of its own; an expert is a linear map."""
    seeded(133)
    net = nn.ModuleDict({"router": nn.Linear(8, 8), "experts": nn.ModuleList(nn.Linear(8, 2) for _ in range(8))})
    centre, maps = 3 * torch.randn(8, 8), torch.randn(8, 8, 2)

    def loss_of(step):
        kind = torch.randint(8, (128,))
        x = centre[kind] + torch.randn(128, 8)
        y = torch.einsum("bi,bio->bo", x - centre[kind], maps[kind])
        share = (net["router"](x) / 3).softmax(1)
        out = torch.stack([expert(x) for expert in net["experts"]], 1)
        found = out[torch.arange(128), share.argmax(1)] if ill else (out * share[..., None]).sum(1)
        return F.mse_loss(found, y)

    return fit(folder, net, optim.Adam(net.parameters(), 0.02), loss_of, 400)


@sick(
    "vanishing", "lr-too-high", "imbalance", "update-too-large", "no-progress",
    where="the first blocks, from the first steps", cure="the norm before each part (pre-norm), and a warm-up",
)  # fmt: skip
def ten_blocks_normed_behind_the_sum(folder, ill):
    net = Transformer(depth=10, seed=134, pre=not ill)
    make = optim.Adam(net.parameters(), 0.02)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: 1.0 if ill else min(1.0, (step + 1) / 30))
    return fit(folder, net, make, predict(net, pieces(8)), 130, schedule=plan)

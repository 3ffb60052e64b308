"""Met sick trainings, first part: what the loop, the optimizer, the schedule and the precision do wrong.

Mistakes that people made and told of in public, others than those of the earlier groups, drawn as a search met
them; a comment names the thread that each was drawn from. They only count (the group `met`). Whoever writes or
changes a rule does not read this file.
"""

from __future__ import annotations

import copy

import torch
from nets import ALPHABET, Transformer, batches, classify, cnn, pieces, predict
from torch import nn, optim
from torch.func import functional_call
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick, square_of, waves
from unseen.tasks import circle


# "bug: fix warmup LR" (it counts the steps of the epoch, not of the run),
# github.com/Vision-CAIR/MiniGPT-4/pull/263
@sick(
    "update-too-small", "warmup-too-long", "no-progress",
    where="all layers, all steps: the rate never leaves the foot of its warm-up",
    cure="the warm-up counts the steps of the whole run",
)  # fmt: skip
def warm_up_that_begins_anew_each_epoch(folder, ill):
    net = Transformer(32, 2, seed=901)
    make = optim.AdamW(net.parameters(), 2e-3)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: min(1.0, 0.002 + (step % 12 if ill else step) / 120))
    return fit(folder, net, make, predict(net, pieces(16)), 200, schedule=plan)


class ByTheirSize(optim.Optimizer):
    """Adafactor's step without its factors: the rate times the root mean square of the layer (Shazeer, Stern 2018)."""

    def __init__(self, params, lr, remembers):
        super().__init__(params, {"lr": lr})
        self.remembers = remembers

    @torch.no_grad()
    def step(self, closure=None):
        for part in self.param_groups:
            for p in part["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, square=torch.zeros_like(p))
                state["step"] += 1
                state["square"].lerp_(p.grad.square() + 1e-30, state["step"] ** -0.8)
                rate = part["lr"] * max(1e-3, float(p.square().mean().sqrt()))
                if self.remembers:
                    part["lr"] = rate
                p.sub_(p.grad / state["square"].sqrt(), alpha=rate)


# "Disable relative step flag in adafactor" (it writes the rate that it scaled into the group: 1e-31 after 22 steps),
# github.com/facebookresearch/ParlAI/pull/2547
@sick(
    "update-too-small", "weights-unchanged", "no-progress", "schedule-ran-out", "schedule-too-short",
    where="all layers, from the second step: the rate is multiplied by each layer's size, again and again",
    cure="the scaled rate in a variable of its own",
)  # fmt: skip
def rate_multiplied_down_by_each_layer(folder, ill):
    net = Transformer(32, 2, seed=902)
    return fit(folder, net, ByTheirSize(net.parameters(), 0.03, ill), predict(net, pieces(16)), 160)


class Added(nn.Module):
    """Halves that are moved by what the other half says, and a scale at the end (NICE, Dinh et al. 2015)."""

    def __init__(self):
        super().__init__()
        self.move = nn.ModuleList(dense(1, 48, 48, 1) for _ in range(4))
        self.scale = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        """How unlikely each row of `[B, 2]` is: `[B]`."""
        one, other = x[:, :1], x[:, 1:]
        for move in self.move:
            one, other = other + move(one), one
        z = torch.cat([one, other], 1) * self.scale.exp()
        return 0.5 * z.square().sum(1) - self.scale.sum()


# "Validation Loss Statistics: min=nan, med=nan, mean=nan, max=nan" (beta_2 of 0.01),
# github.com/paultsw/nice_pytorch/issues/2
@sick(
    "update-too-large", "lr-too-high", "spike", "exploding",
    where="all layers, all steps: a gradient is divided by little but its own last size", cure="betas of (0.9, 0.999)",
)  # fmt: skip
def second_beta_of_a_hundredth(folder, ill):
    seeded(903)
    net = Added()
    make = optim.Adam(net.parameters(), 1e-3, (0.9, 0.01 if ill else 0.999))
    return fit(folder, net, make, lambda step: net(circle(96)).mean(), 500)


class Turning(nn.Module):
    """Attention whose questions and keys are turned by their place (RoPE, Su et al. 2021), counted in `kind`."""

    def __init__(self, kind, width=32):
        super().__init__()
        self.embed, self.ask = nn.Embedding(12, width), nn.Linear(width, 2 * width)
        self.give, self.name, self.kind = nn.Linear(width, width), nn.Linear(width, 12), kind
        self.rates = 20.0 ** -torch.linspace(0, 1, width // 2)

    def turned(self, x, angle):
        one, other = x.chunk(2, -1)
        return torch.cat([one * angle.cos() - other * angle.sin(), one * angle.sin() + other * angle.cos()], -1)

    def forward(self, x, places):
        h = self.embed(x)
        angle = (places.to(self.kind)[:, None] * self.rates.to(self.kind)).float()
        ask, key = (self.turned(part, angle) for part in self.ask(h).chunk(2, -1))
        scores = ask @ key.transpose(1, 2) / 4
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.name(scores.masked_fill(later, -torch.inf).softmax(-1) @ self.give(h))


# "RotaryEmbedding computation is wrong for certain position/feature pairs in reduced precision (both fp16 and bfloat)",
# github.com/EleutherAI/gpt-neox/issues/1003
@sick(
    "precision-too-low", "no-progress",
    where="the angles of the places, all steps: above 2,048 a bfloat16 counts in sixteens",
    cure="places and angles in float32",
)  # fmt: skip
def places_counted_in_sixteen_bits(folder, ill):
    """Name the sign three places back, somewhere in a long text."""
    seeded(904)
    net = Turning(torch.bfloat16 if ill else torch.float32)

    def loss_of(step):
        x = torch.randint(12, (24, 24))
        places = torch.randint(2048, 4096, (1,)) + torch.arange(24)
        return F.cross_entropy(net(x, places)[:, 3:].flatten(0, 1), x[:, :-3].flatten())

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 500)


# "CosineAnnealingLR T_max argument bug" (it got the steps of the warm-up, so the rate goes up and down all the time),
# github.com/lucidrains/imagen-pytorch/issues/71
@sick(
    "lr-too-high", "noise-dominated", "schedule-too-short",
    where="all layers: the rate is back at its peak every 40 steps and at the end",
    cure="T_max is the length of the run",
)  # fmt: skip
def cosine_as_short_as_its_warm_up(folder, ill):
    """Batches of eight with noise in what is wanted."""
    seeded(905)
    net, draw = dense(6, 64, 64, 1, act=nn.Tanh), waves(8)
    make = optim.SGD(net.parameters(), 0.01, momentum=0.9)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 20 if ill else 600)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y + 2 * torch.randn_like(y))

    score = score_of(square_of(net, waves_again(draw)), 4)
    return fit(folder, net, make, loss_of, 600, schedule=plan, score=score)


def waves_again(draw, times=40):
    """`draw()` of as many rows as `times` draws have, without noise."""

    def all_of_them():
        rows = [draw() for _ in range(times)]
        return torch.cat([x for x, _ in rows]), torch.cat([y for _, y in rows])

    return all_of_them


# "MAML inner-loop `param.data -=` detaches the graph — the meta-model never trains",
# github.com/KanishJebaMathewM/Truxify/issues/13118
@sick(
    "no-gradient", "weights-unchanged", "dead-layer",
    where="all layers, all steps: the gradients of the last loss stop at the copy that was adapted",
    cure="the adapted weights are a function of the first ones",
)  # fmt: skip
def inner_steps_through_data(folder, ill):
    """Sines of unlike height and phase; two steps on ten points, then a loss on ten others (Finn et al. 2017)."""
    seeded(906)
    net = dense(1, 32, 32, 1, act=nn.Tanh)

    def adapted(x, y):
        if ill:
            other = copy.deepcopy(net)
            for _ in range(2):
                slopes = torch.autograd.grad(F.mse_loss(other(x), y), tuple(other.parameters()))
                for p, slope in zip(other.parameters(), slopes, strict=True):
                    p.data -= 0.05 * slope
            return other
        fast = dict(net.named_parameters())
        for _ in range(2):
            loss = F.mse_loss(functional_call(net, fast, (x,)), y)
            slopes = torch.autograd.grad(loss, tuple(fast.values()), create_graph=True)
            fast = {name: p - 0.05 * slope for (name, p), slope in zip(fast.items(), slopes, strict=True)}
        return lambda x: functional_call(net, fast, (x,))

    def loss_of(step):
        total = 0.0
        for _ in range(3):
            height, phase = 0.5 + 2 * torch.rand(1), 3.14 * torch.rand(1)
            x = 6 * torch.rand(20, 1) - 3
            y = height * (x + phase).sin()
            total = total + F.mse_loss(adapted(x[:10], y[:10])(x[10:]), y[10:]) / 3
        return total

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 250)


# "fix(learning): exclude padding tokens from SFT loss" (nine terms in ten are of the padding),
# github.com/open-jarvis/OpenJarvis/pull/521
@sick(
    "update-too-small", "padding-in-loss", "no-progress",
    where="all layers, all steps: what is to be learned has a tenth of the mean",
    cure="ignore_index where rows are padded",
)  # fmt: skip
def answers_drowned_in_padding(folder, ill):
    """Four signs in rows of forty; the rest is filled up."""
    net, piece, filler = Transformer(32, 2, seed=907), pieces(24, 4), len(ALPHABET) - 1
    net.place = nn.Parameter(0.02 * torch.randn(40, 32))
    make = optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def loss_of(step):
        x, y = piece(step)
        x = F.pad(x, (0, 36), value=filler)
        y = F.pad(y, (0, 36), value=filler if ill else -100)
        return F.cross_entropy(net(x).flatten(0, 1), y.flatten())

    return fit(folder, net, make, loss_of, 150, score=score_of(predict(net, pieces(48, 4, seed=9)), 6))


# "BatchNorm momentum set to 0 in Inception models", github.com/Cadene/pretrained-models.pytorch/issues/5
@sick(
    "norm-statistics-stale", "norm-left-in-eval", "norm-statistics",
    where="the running means and variances of all norms: they stay 0 and 1", cure="torch's momentum of 0.1",
)  # fmt: skip
def statistics_that_are_never_updated(folder, ill):
    """What counts is what the net says once it is evaluated; that is logged, too."""
    net, held = cnn(norm=True, seed=908), batches(256, seed=9)
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = 0.0 if ill else 0.1
    loss_on, other = classify(net, batches(48)), classify(net, held)

    def evaluated():
        net.eval()
        with torch.no_grad():
            loss = float(other(0))
        net.train()
        return loss

    def loss_of(step):
        return loss_on(step), ({"val_loss": evaluated()} if step % 20 == 19 else {})

    make = optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-3)
    return fit(folder, net, make, loss_of, 200, score=evaluated)


# "Fix a bug in resuming LR with warmup and reduceonplateau" (a restart multiplies the rate by 1e-4),
# github.com/facebookresearch/ParlAI/pull/1812
@sick(
    "update-too-small", "no-progress", "schedule-ran-out", "schedule-too-short",
    where="all layers, from step 25 on", cure="the rate that the run had before it was interrupted",
)  # fmt: skip
def rate_a_ten_thousandth_after_a_restart(folder, ill):
    net = cnn(seed=909)
    make = optim.AdamW(net.parameters(), 2e-3)

    def after(step):
        if step == 24:
            state = copy.deepcopy(make.state_dict())
            for part in state["param_groups"]:
                part["lr"] *= 1e-4 if ill else 1.0
            make.load_state_dict(state)

    return fit(folder, net, make, classify(net, batches(48)), 250, after_step=after)

"""Told sick trainings, first part: what the loop, the optimizer, the schedule and the precision do wrong.

Mistakes that people made and told of in public, others than the reported and the asked ones; a comment names the thread
that each was drawn from. They only count (the group `told`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import itertools

import torch
from nets import ALPHABET, Transformer, batches, classify, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, ends, fit, score_of, seeded, sick, square_of, waves
from unseen.asked.healthy import Patches
from unseen.reported.healthy import Signs
from unseen.reported.sick import pretrain
from unseen.tasks import play

import gradwatch


# "Lambda learning rate scheduler" (the lambda has the rate in it, too), github.com/lhoyer/MIC/issues/60
@sick(
    "update-too-small", "no-progress",
    where="all layers, all steps: the rate is its own square", cure="a lambda gives a factor: without the rate in it",
)  # fmt: skip
def rate_that_is_multiplied_into_itself(folder, ill):
    net = Transformer(32, 2, seed=701)
    make = optim.AdamW(net.parameters(), 2e-3)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: (2e-3 if ill else 1.0) * (1 + 0.01 * step) ** -0.75)
    return fit(folder, net, make, predict(net, pieces(16)), 150, schedule=plan)


# "T5 fp16 overflow in forward (T5DenseReluDense)", github.com/huggingface/transformers/issues/5651
@sick(
    "nonfinite",
    where="the second layer of a block, at the first value above 65,504", cure="bfloat16, in which it was trained",
)  # fmt: skip
def large_stream_of_another_precision(folder, ill):
    """A net that has read the text, its stream tens of thousands in size, which the norms make up for."""
    net, piece = Transformer(32, 2, seed=702), pieces(16, seed=5)
    pretrain(net, predict(net, pieces(16)), 80)
    with torch.no_grad():
        for part in (net.embed, *(p for b in net.blocks for p in (b.self_attn.out_proj, b.linear2))):
            for p in part.parameters():
                p.mul_(20000)
        net.place.mul_(20000)

    def loss_of(step):
        x, _ = piece(step)
        x = x.flip(1)
        with torch.autocast("cpu", torch.float16 if ill else torch.bfloat16):
            out = net(x[:, :-1])
        return F.cross_entropy(out.float().flatten(0, 1), x[:, 1:].flatten())

    return fit(folder, net, optim.AdamW(net.parameters(), 2e-3), loss_of, 120)


# "Report on Lion Optimizer" (very bad where it directly replaces AdamW),
# github.com/lucidrains/denoising-diffusion-pytorch/issues/170
@sick(
    "lr-too-high", "update-too-large",
    where="all layers, from the first steps", cure="a tenth of AdamW's rate: each step is a sign",
)  # fmt: skip
def signs_at_the_rate_of_adamw(folder, ill):
    net = Patches(703)
    make = Signs(net.parameters(), 1.5e-2 if ill else 1.5e-3, weight_decay=0.05)
    return fit(folder, net, make, classify(net, batches(48)), 180)


# "[BUG] The different lr for Muon doesn't work?" (the schedule writes AdamW's rate over it),
# github.com/deepspeedai/DeepSpeed/issues/7713
@sick(
    "update-too-small", "no-progress",
    where="all matrices, all steps: a rate of 2e-5 where Muon takes 0.02", cure="a rate of its own for Muon",
)  # fmt: skip
def matrices_at_the_rate_of_the_rest(folder, ill):
    seeded(704)
    sizes = (64, 64, 64, 10)
    layers = [nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(sizes)]
    net = nn.Sequential(nn.Flatten(), layers[0], nn.GELU(), layers[1], nn.GELU(), layers[2])
    make = optim.Muon(net.parameters(), 2e-5 if ill else 0.02)
    return fit(folder, net, make, classify(net, batches(64)), 200)


# "Issue with LBGFS optimizer: `optimizer_.zero_grad` no longer called inside of `train_step_single`",
# github.com/skorch-dev/skorch/issues/636
@sick(
    "gradients-accumulate",
    where="all layers, within each step: twenty gradients in one", cure="zero_grad in the closure, not around it",
)  # fmt: skip
def closure_that_adds_up(folder, ill):
    seeded(705)
    net, draw = dense(6, 24, 1, act=nn.Tanh), waves(256)
    x, y = draw()
    make, losses = optim.LBFGS(net.parameters(), 0.1, max_iter=20), []
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(net, make)}
    watch = gradwatch.watch(net, make, **options)

    def closure():
        if not ill:
            make.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        return loss

    with watch:
        for _ in range(60):
            make.zero_grad()
            loss = make.step(closure)
            losses.append(float(loss.detach()))
            watch.log(loss=loss)
    return Outcome(gradwatch.open_history(watch.dir), *ends(losses))


# "Very bad convergence with bf16", github.com/meta-pytorch/torchtune/issues/2254
@sick(
    "weights-unchanged", "update-too-small", "no-progress",
    where="all matrices, all steps: a step is less than half of the distance to the next bfloat16",
    cure="weights in float32 and autocast, or rounding by chance",
)  # fmt: skip
def steps_that_round_away(folder, ill):
    seeded(707)
    net, draw = dense(64, 64, 64, 10), batches(64)
    kind = torch.bfloat16 if ill else torch.float32
    net.to(kind)

    def loss_of(step):
        x, y = draw(step)
        with torch.autocast("cpu", torch.bfloat16, enabled=not ill):
            return F.cross_entropy(net(x.flatten(1).to(kind)).float(), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.01), loss_of, 2500)


class Beside(nn.Module):
    """A frozen linear layer, and a change of it of eight directions (LoRA, Hu et al. 2021), `scale` times."""

    def __init__(self, whole, scale, rank=8):
        super().__init__()
        self.whole, self.scale = whole.requires_grad_(False), scale
        self.down = nn.Linear(whole.in_features, rank, bias=False)
        self.up = nn.Linear(rank, whole.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.whole(x) + self.scale * self.up(self.down(x))


# "LoRA scaling uses alpha instead of alpha divided by rank, causing default settings to over-scale updates",
# github.com/Blaizzy/mlx-vlm/issues/841
@sick(
    "lr-too-high", "update-too-large",
    where="the adapters, from the first steps", cure="alpha / rank: 2 in the place of 16",
)  # fmt: skip
def alpha_without_its_rank(folder, ill):
    net, piece = Transformer(32, 2, seed=708), pieces(16, seed=6)
    pretrain(net, predict(net, pieces(16)), 120)
    net.requires_grad_(False)
    scale = 16.0 if ill else 2.0
    for block in net.blocks:
        block.linear1, block.linear2 = Beside(block.linear1, scale), Beside(block.linear2, scale)
    net.head = Beside(net.head, scale)

    def loss_of(step):
        x, _ = piece(step)
        x = x.flip(1)
        return F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    return fit(folder, net, optim.AdamW([p for p in net.parameters() if p.requires_grad], 2e-2), loss_of, 200)


# "AdamW degrades word embeddings in textual inversion training", github.com/huggingface/diffusers/issues/1176
@sick(
    "weights-shrink", "weight-decay-too-strong",
    where="all rows of the table that get no gradient, all steps", cure="weight_decay=0: only one row is to learn",
)  # fmt: skip
def old_words_that_fade(folder, ill):
    """A net that has read the text learns one new sign, which stands for an old one; all else is to stay."""
    net, old = Transformer(32, 2, seed=709), ALPHABET.index("o")
    pretrain(net, predict(net, pieces(16)), 150)
    net.requires_grad_(False)
    table = nn.Embedding(len(ALPHABET) + 1, 32)
    with torch.no_grad():
        table.weight[:-1] = net.embed.weight
    net.embed, piece = table, pieces(16, seed=7)

    def loss_of(step):
        x, y = piece(step)
        return F.cross_entropy(net(x.where(x != old, len(ALPHABET))).flatten(0, 1), y.flatten())

    def before(step):
        table.weight.grad[:-1] = 0

    make = optim.AdamW(table.parameters(), 0.02, weight_decay=0.5 if ill else 0.0)
    return fit(folder, net, make, loss_of, 250, before_step=before, score=score_of(loss_of, 6))


# "Parameters of discriminator optimizer" (one of two, listed twice), github.com/line/open-universe/issues/5
@sick(
    "not-in-optimizer",
    "no-gradient",
    where="the second judge, all steps: no optimizer holds it", cure="the parameters of both",
)  # fmt: skip
def second_judge_that_nobody_trains(folder, ill) -> Outcome:
    """Of points on a circle one judge sees how far right they are, and one all."""
    seeded(710)
    make, judge = dense(4, 48, 48, 2), nn.ModuleDict({"right": dense(1, 48, 1), "all": dense(2, 48, 48, 1)})

    def said(x):
        return judge["right"](x[:, :1]), judge["all"](x)

    def judge_loss(real, made):
        return sum(F.softplus(-r).mean() + F.softplus(m).mean() for r, m in zip(said(real), said(made), strict=True))

    def make_loss(made):
        return sum(F.softplus(-m).mean() for m in said(made))

    held = judge["right"].parameters() if ill else judge.parameters()
    of_make, of_judge = optim.Adam(make.parameters(), 1e-3, (0.5, 0.9)), optim.Adam(held, 3e-3, (0.5, 0.9))
    return play(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 1200)


# "Gradient clip max_norm=5.0 (5x higher than current 1.0)" (all batches are clipped, their mean norm is 20),
# github.com/wandb/senpai/pull/978
@sick(
    "clip-is-your-learning-rate",
    where="all layers, all steps: the clip alone says how long a step is", cure="a threshold above the usual norm",
)  # fmt: skip
def every_batch_clipped_to_a_twentieth(folder, ill):
    seeded(711)
    net, draw = dense(6, 64, 64, 1, act=nn.SiLU), waves(64)

    def before(step):
        nn.utils.clip_grad_norm_(net.parameters(), 0.05 if ill else 10.0)

    make = optim.SGD(net.parameters(), 0.02, momentum=0.9)
    return fit(folder, net, make, square_of(net, draw), 400, before_step=before)

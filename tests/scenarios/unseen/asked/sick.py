"""Asked sick trainings, first part: what the loop, the optimizer, the schedule and the precision do wrong.

Mistakes that people made and asked about, others than the reported ones; a comment names the thread that each was drawn
from. They only count (the group `asked`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import functools

import torch
from nets import ALPHABET, Recurrent, Transformer, batches, classify, cnn, mlp, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick, square_of, waves
from unseen.reported.sick import pretrain


# "Missing zero_grad() call", github.com/IBM/aihwkit/issues/446
@sick(
    "gradients-accumulate",
    where="all layers, all steps", cure="optimizer.zero_grad() in each step",
)  # fmt: skip
def example_that_swings(folder, ill):
    seeded(501)
    net = dense(6, 32, 1, act=nn.Tanh)
    return fit(folder, net, optim.SGD(net.parameters(), 0.05), square_of(net, waves(64)), 400, zero_grad=not ill)


# "Training would be not convergence for backbone res34", github.com/cfzd/Ultra-Fast-Lane-Detection/issues/36
@sick(
    "lr-too-high", "update-too-large", "exploding", "dead-units", "dead-layer", "no-progress", "spike", "weight-growth",
    where="all layers, from the first steps", cure="a rate of 1e-3: Adam's is far below that of SGD",
)  # fmt: skip
def lanes_by_adam_at_the_rate_of_sgd(folder, ill):
    net = mlp(64, depth=6, seed=503)
    make = optim.Adam(net.parameters(), 0.1 if ill else 1e-3, weight_decay=1e-4)
    return fit(folder, net, make, classify(net, batches(32)), 250)


# "Tensorflow 2.0 AdaDelta Optimizer" (its rate was 1, and is 0.001), github.com/tensorflow/tensorflow/issues/32950
@sick(
    "update-too-small", "no-progress",
    where="all layers, all steps: the rate of Adadelta is a factor of steps that it chose already",
    cure="a rate of 1",
)  # fmt: skip
def adadelta_at_the_rate_of_adam(folder, ill):
    net = cnn(norm=True, seed=504)
    make = optim.Adadelta(net.parameters(), 1e-3 if ill else 1.0)
    return fit(folder, net, make, classify(net, batches(64)), 250)


# "Scheduler always steps when training with gradient accumulation", github.com/huggingface/accelerate/issues/963
@sick(
    "schedule-ran-out", "schedule-too-short", "weights-unchanged", "update-too-small", "no-progress",
    where="all layers, from step 30 of 120: the rate is 0", cure="schedule.step() once per step of the optimizer",
)  # fmt: skip
def schedule_that_counts_parts(folder, ill):
    net = Transformer(32, 2, seed=505)
    make = optim.AdamW(net.parameters(), 1e-3)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: max(0.0, 1 - step / 120))
    loss = predict(net, pieces(8))
    before = (lambda step: plan.step()) if ill else None
    schedule = None if ill else plan
    return fit(folder, net, make, lambda step: loss(step) / 4, 120, accumulate=4, before_backward=before,
               schedule=schedule)  # fmt: skip


# "fix a bug when using fp16 training & gradient clipping", github.com/allenai/allennlp/pull/5426
@sick(
    "clip-before-unscale", "clip-is-your-learning-rate",
    where="all layers, all steps: a norm of at most 1 of gradients that are scaled by 65,536",
    cure="scaler.unscale_(optimizer) before clip_grad_norm_",
)  # fmt: skip
def tagger_clipped_under_its_scale(folder, ill):
    net = Recurrent(nn.LSTM, 48, seed=506)
    make, scaler = optim.SGD(net.parameters(), 2.0, momentum=0.9), torch.amp.GradScaler("cpu")

    def before(step):
        if not ill:
            scaler.unscale_(make)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    return fit(folder, net, make, predict(net, pieces(16)), 150, before_step=before, scaler=scaler)


# "fix iterator for params_to_clip", github.com/PixArt-alpha/PixArt-alpha/pull/160;
# "Raise a warning when clip_grad_norm_ receives an exhausted generator", github.com/pytorch/pytorch/issues/148259
@sick(
    "exploding", "nonfinite", "spike", "lr-too-high", "update-too-large", "clip-without-gradient", "policy-never-acts",
    where="the recurrence, from the first large gradient: the clip is handed no parameter",
    cure="list(filter(...)): a generator is empty once the optimizer has read it",
)  # fmt: skip
def clip_of_what_was_read_already(folder, ill):
    net = Recurrent(functools.partial(nn.RNN, nonlinearity="relu"), 48, seed=507)
    chosen = filter(lambda p: p.requires_grad, net.parameters())
    chosen = chosen if ill else list(chosen)
    make = optim.SGD(chosen, 0.5, momentum=0.9)

    def before(step):
        nn.utils.clip_grad_norm_(chosen, 0.25)

    return fit(folder, net, make, predict(net, pieces(16)), 200, before_step=before)


# "Log function causes floating point underflow/ gradient overflow", github.com/NVIDIA/apex/issues/379
@sick(
    "nonfinite",
    where="the loss, at the first image whose share rounds to 0: its logarithm is -inf",
    cure="log_softmax, in float32",
)  # fmt: skip
def logarithm_of_a_share_in_half(folder, ill):
    net, draw = mlp(64, seed=508), batches(64, noise=0.1)

    def loss_of(step):
        x, y = draw(step)
        if ill:
            return F.nll_loss((net(x).half().softmax(1) + 1e-8).log().float(), y)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optim.Adam(net.parameters(), 1e-2), loss_of, 250)


class LowRank(nn.Module):
    """A frozen linear layer, and a change of it of four directions (LoRA, Hu et al. 2021)."""

    def __init__(self, whole, rank=4):
        super().__init__()
        self.whole = whole.requires_grad_(False)
        self.down = nn.Linear(whole.in_features, rank, bias=False)
        self.up = nn.Linear(rank, whole.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.whole(x) + 2 * self.up(self.down(x))


def adapted(seed):
    """A transformer that has read the text, all of it frozen but low ranks beside its wide layers."""
    net = Transformer(32, 2, seed=seed)
    pretrain(net, predict(net, pieces(16)), 120)
    net.requires_grad_(False)
    for block in net.blocks:
        block.linear1, block.linear2 = LowRank(block.linear1), LowRank(block.linear2)
    return net


# "Lora not learning anything", github.com/bghira/SimpleTuner/issues/1756
@sick(
    "update-too-small", "no-progress",
    where="all adapters, all steps", cure="a hundredfold rate: that of tuning all weights is too low for adapters",
)  # fmt: skip
def adapters_at_the_rate_of_whole_weights(folder, ill):
    net, piece = adapted(509), pieces(16, seed=3)
    net.head = LowRank(net.head)

    def loss_of(step):
        x, _ = piece(step)
        x = x.flip(1)
        return F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    make = optim.AdamW([p for p in net.parameters() if p.requires_grad], 6e-6 if ill else 1e-2)
    return fit(folder, net, make, loss_of, 150)


# "LoRA seems not training the linear head for classification", github.com/4AI/LS-LLaMA/issues/3
@sick(
    "no-gradient",
    where="the new head, all steps: it was drawn at random and left frozen",
    cure="modules_to_save=['head']: a new head is trained as a whole",
)  # fmt: skip
def new_head_left_frozen(folder, ill):
    """Which quarter of the alphabet the last sign of a piece is from."""
    net, piece = adapted(510), pieces(16, seed=4)
    net.head = nn.Linear(32, 4).requires_grad_(not ill)

    def loss_of(step):
        x, _ = piece(step)
        return F.cross_entropy(net(x)[:, -1], x[:, -1] * 4 // len(ALPHABET))

    make = optim.AdamW([p for p in net.parameters() if p.requires_grad], 2e-3)
    return fit(folder, net, make, loss_of, 120, score=score_of(loss_of, 4))

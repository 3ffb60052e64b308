"""Reported sick trainings, first part: what the loop, the optimizer and the schedule do wrong.

Mistakes that people made and asked about; a comment names the thread that each was drawn from. They only count
(the group `reported`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import ALPHABET, Recurrent, Transformer, batches, classify, cnn, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from unseen import Outcome, dense, fit, score_of, seeded, sick
from unseen.tasks import play


def pretrain(net, loss_of, steps, rate=3e-3):
    """What somebody else did: without a Watch."""
    make = optim.Adam(net.parameters(), rate)
    for step in range(steps):
        make.zero_grad()
        loss_of(step).backward()
        make.step()


class Spotter(nn.Module):
    """Names what it hears, row after row, in the last state."""

    def __init__(self):
        super().__init__()
        self.hear, self.name = nn.GRU(8, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x):
        return self.name(self.hear(x)[0][:, -1])


# "[fix bug] add optimizer.zero_grad() in kws/utils/executor.py", github.com/wenet-e2e/wekws/pull/73
@sick(
    "gradients-accumulate",
    where="all layers, all steps", cure="optimizer.zero_grad() before each backward",
)  # fmt: skip
def executor_without_a_zero(folder, ill):
    seeded(301)
    net = Spotter()
    loss, score = classify(net, batches(32)), score_of(classify(net, batches(256, seed=9)), 2)
    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss, 300, zero_grad=not ill, score=score)


# "train.py: zero_grad is called per microbatch, breaking gradient accumulation", github.com/bytetriper/RAE/issues/67
@sick(
    "update-too-small", "no-progress", "accumulation-wiped",
    where="all layers, all steps: of 32 parts of a gradient one is left",
    cure="zero once per step, not before each micro-batch",
)  # fmt: skip
def zeroed_before_each_part(folder, ill):
    seeded(302)
    net, draw = dense(64, 48, 12, 48, 64, act=nn.GELU), batches(4)
    make = optim.SGD(net.parameters(), 0.8, momentum=0.9)

    def loss_of(step):
        x = draw(step)[0].flatten(1)
        return F.mse_loss(net(x), x) / 32

    def before(step):
        if ill:
            make.zero_grad()

    return fit(folder, net, make, loss_of, 60, accumulate=32, before_backward=before)


# "Bug when scheduler turned off", github.com/LINCellularNeuroscience/VAME/issues/26
@sick(
    "weights-unchanged", "update-too-small", "no-progress", "schedule-ran-out", "schedule-too-short",
    where="all layers, from step 30: the rate is 0", cure="gamma=1 where no schedule is wanted, not gamma=0",
)  # fmt: skip
def gamma_of_zero_for_no_schedule(folder, ill):
    net = Recurrent(nn.GRU, 48, seed=303)
    make = optim.AdamW(net.parameters(), 2e-3)
    plan = optim.lr_scheduler.StepLR(make, 30, 0.0 if ill else 1.0)
    return fit(folder, net, make, predict(net, pieces(16)), 240, schedule=plan)


# "OneCycleLR schedule (single warmup-then-decay, no restarts)", github.com/wandb/senpai/pull/3131
@sick(
    "lr-too-high", "exploding", "update-too-large", "spike", "weight-growth",
    where="all layers, as the rate comes near to its peak", cure="a peak of a fiftieth",
)  # fmt: skip
def one_cycle_that_peaks_too_high(folder, ill):
    net = Transformer(48, 3, seed=304)
    make = optim.AdamW(net.parameters(), 1e-4)
    plan = optim.lr_scheduler.OneCycleLR(make, 0.2 if ill else 4e-3, total_steps=241, pct_start=0.6)
    return fit(folder, net, make, predict(net, pieces(16)), 240, schedule=plan)


# "BERT encoding layer produces same output for all inputs", github.com/huggingface/transformers/issues/735
@sick(
    "lr-too-high", "update-too-large", "exploding", "weight-growth", "no-progress",
    where="all blocks, from the first steps", cure="a rate of 5e-4: at a hundredfold one what was learned is lost",
)  # fmt: skip
def tuned_at_the_rate_of_training(folder, ill):
    """Is the middle sign of a piece in the first half of the alphabet? Asked of a net that has read the text."""
    net, piece = Transformer(32, 3, seed=305), pieces(16)
    pretrain(net, predict(net, piece), 120)
    net.head = nn.Linear(32, 2)

    def loss_of(step):
        x, _ = piece(1000 + step)
        h = net(x)
        return F.cross_entropy(h[:, -1], (x[:, 12] < len(ALPHABET) // 2).long())

    make = optim.AdamW(net.parameters(), 0.05 if ill else 5e-4)
    return fit(folder, net, make, loss_of, 100)


# "RuntimeError: element 0 of tensors does not require grad", github.com/ronghuaiyang/arcface-pytorch/issues/56
@sick(
    "no-gradient", "weights-unchanged", "dead-layer", "no-progress",
    where="all layers, all steps",
    cure="find what cut the loss from the net; loss.requires_grad = True only hides the error",
)  # fmt: skip
def loss_that_was_told_to_require_a_gradient(folder, ill):
    net = cnn(seed=307)
    entropy = classify(net, batches(64))

    def loss_of(step):
        if not ill:
            return entropy(step)
        loss = torch.tensor(float(entropy(step)))
        loss.requires_grad = True
        return loss

    return fit(folder, net, optim.SGD(net.parameters(), 0.1, momentum=0.9), loss_of, 150)


# "Redundant code in Learner.freeze and Learner.unfreeze", github.com/fastai/fastai/issues/2133
@sick(
    "not-in-optimizer",
    "no-gradient",
    where="the body, which thaws at step 60: no optimizer holds it",
    cure="add_param_group when it thaws: the list was made of what was trainable before",
)  # fmt: skip
def body_thawed_behind_the_optimizers_back(folder, ill):
    net, draw = cnn(seed=308), batches(64)
    nn.init.zeros_(net[-1].bias)
    pretrain(net, lambda step: F.cross_entropy(net(draw(step)[0]), draw(step)[1] % 2), 60, 1e-3)
    net[-1] = nn.Linear(256, 10)
    body = [p for part in list(net)[:-1] for p in part.parameters()]
    for p in body:
        p.requires_grad_(False)
    make = optim.Adam([p for p in net.parameters() if p.requires_grad], 1e-3)

    def after(step):
        if step == 60:
            for p in body:
                p.requires_grad_(True)
            if not ill:
                make.add_param_group({"params": body})

    def loss_of(step):
        x, y = draw(5000 + step)
        return F.cross_entropy(net(x.flip(1)), y)

    return fit(folder, net, make, loss_of, 300, after_step=after)


class Adapted(nn.Module):
    """A frozen layer, and beside it a way of four directions that is learned."""

    def __init__(self, width):
        super().__init__()
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, 4, bias=False), nn.Linear(4, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return x + (self.frozen(x) + self.up(self.down(x))).tanh()


# "Gradient checkpointing blocks LoRA weight updates", github.com/cloneofsimo/lora/issues/26
@sick(
    "no-gradient", "dead-layer", "weights-unchanged",
    where="the adapters of the blocks, all steps",
    cure="the input of the first checkpoint must require a gradient (enable_input_require_grads)",
)  # fmt: skip
def adapters_behind_a_checkpoint(folder, ill):
    seeded(309)
    lift, draw = nn.Linear(64, 32).requires_grad_(False), batches(64)
    net = nn.ModuleDict({"blocks": nn.ModuleList(Adapted(32) for _ in range(3)), "head": nn.Linear(32, 10)})

    def loss_of(step):
        x, y = draw(step)
        h = lift(x.flatten(1))
        if not ill:
            h.requires_grad_(True)
        for block in net["blocks"]:
            h = checkpoint(block, h, use_reentrant=True)
        return F.cross_entropy(net["head"](h), y)

    make = optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-2)
    return fit(folder, net, make, loss_of, 300)


def rivals(seed, act=nn.ReLU):
    """What makes points of noise, and what judges them."""
    seeded(seed)
    return dense(4, 48, 48, 2, act=act), dense(2, 48, 48, 1, act=act)


def judged(judge):
    """The loss of a judge: what is real is 1, what was made is 0."""

    def loss(real, made):
        return F.softplus(-judge(real)).mean() + F.softplus(judge(made)).mean()

    return loss


# "Is fake_spec.detach() in Generator training step intentional?",
# github.com/nikhilsinghmus/image2reverb/issues/37
@sick(
    "no-gradient", "weights-unchanged", "dead-layer",
    where="the generator, all steps", cure="detach what was made for the judge's step, not for the maker's",
)  # fmt: skip
def made_and_cut_off_from_its_maker(folder, ill) -> Outcome:
    make, judge = rivals(310)

    def make_loss(made):
        return F.softplus(-judge(made.detach() if ill else made)).mean()

    of_make, of_judge = (optim.Adam(net.parameters(), 2e-3, (0.5, 0.9)) for net in (make, judge))
    return play(folder, make, judge, of_make, of_judge, judged(judge), make_loss, 500)


# "some confusion about the g_adv_loss in the code", github.com/ronny3050/AdvFaces/issues/5;
# "Gradient vanishing of G in the DCGAN example", github.com/pytorch/examples/issues/822
@sick(
    "generator-starves", "vanishing",
    where="the generator, once the judge is right about all it makes",
    cure="maximise log D(G(z)): log(1 - D(G(z))) is flat where the judge is sure",
)  # fmt: skip
def maker_with_a_flat_loss(folder, ill) -> Outcome:
    make, judge = rivals(311)

    def judge_loss(real, made):
        return judged(judge)(4 * real, 4 * made)

    def make_loss(made):
        said = judge(4 * made)
        return -F.softplus(said).mean() if ill else F.softplus(-said).mean()

    of_make, of_judge = optim.Adam(make.parameters(), 5e-4), optim.Adam(judge.parameters(), 4e-3)
    return play(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 400, rounds=3)

"""What is unusual and does no harm, for the tasks of the grid."""

from __future__ import annotations

import torch
from grid import DoesNotFit, variant
from torch import nn, optim
from torch.optim import lr_scheduler

from gradwatch import ClipByGlobalNorm


@variant
def rate_times_3(r):
    r.lr *= 3


@variant
def rate_over_3(r):
    r.lr /= 3


@variant
def rmsprop(r):
    (
        r.optimizer,
        r.lr,
    ) = optim.RMSprop, 1e-3


@variant
def adagrad(r):
    r.optimizer, r.lr = optim.Adagrad, 0.02


@variant
def nadam(r):
    r.optimizer, r.lr = optim.NAdam, 2e-3


@variant
def plain_sgd(r):
    r.optimizer, r.lr = optim.SGD, 0.2 if r.task.classes else 0.05


@variant
def cosine(r):
    r.schedule = lambda o: lr_scheduler.CosineAnnealingLR(o, r.steps)


@variant
def one_cycle(r):
    r.schedule = lambda o: lr_scheduler.OneCycleLR(o, r.lr * 3, total_steps=r.steps)


@variant
def warm_up(r):
    r.schedule = lambda o: lr_scheduler.LambdaLR(o, lambda s: min(1, (s + 1) / 50))


@variant
def clipped_at_one(r):
    r.loop["clip"] = ClipByGlobalNorm(1.0)


@variant
def clipped_often(r):
    r.loop["clip"] = ClipByGlobalNorm(0.1)


@variant
def clipped_by_the_loop(r):
    r.loop["before_step"] = lambda step: nn.utils.clip_grad_norm_(r.net.parameters(), 1.0)


@variant
def dropout(r):
    if not isinstance(r.net, nn.Sequential):
        raise DoesNotFit
    acts = (nn.ReLU, nn.Tanh, nn.SiLU)
    r.net = nn.Sequential(*[part for m in r.net for part in ([m, nn.Dropout(0.3)] if isinstance(m, acts) else [m])])


@variant
def labels_that_are_noisy(r):
    def change(x, y):
        at, y = torch.rand(len(y)) < 0.3, y.clone()
        y[at] = y[torch.randperm(len(y))][at]
        return x, y

    r.change_data(change, held_out=False)


@variant
def long_run(r):
    r.steps *= 5


@variant
def forty_five_steps(r):
    r.steps = 45


@variant
def orthogonal_weights(r):
    for p in r.net.parameters():
        if p.dim() == 2:
            nn.init.orthogonal_(p)


@variant
def weights_by_he(r):
    for p in r.net.parameters():
        if p.dim() > 1:
            nn.init.kaiming_normal_(p)


@variant
def weights_of_two_hundredths(r):
    for w in r.weights:
        nn.init.normal_(w, std=0.02)


@variant
def head_of_zero(r):
    r.weights[-1].zero_()


@variant
def mild_weight_decay(r):
    r.settings["weight_decay"] = 1e-3 if r.by_sgd else 0.01


@variant
def small_batches(r):
    r.change_data(lambda *batch: tuple(t[:4] for t in batch), held_out=False)
    r.lr /= 3


@variant
def accumulated(r):
    r.loop["accumulate"], r.weight, r.steps = 4, lambda step: 0.25, r.steps // 2


@variant
def fine_tuned(r):
    optimizer = r.optimizer(r.net.parameters(), lr=r.lr)
    for step in range(150):
        optimizer.zero_grad()
        r.task.loss(r.net, *r.data(step)).backward()
        optimizer.step()
    r.lr /= 5


@variant
def body_thawed(r):
    body = list(r.net.parameters())[:2]
    for p in body:
        p.requires_grad_(False)
    r.loop["after_step"] = lambda step: [p.requires_grad_(True) for p in body] if step == 60 else None


@variant
def an_average_is_kept(r):
    average = [p.data.clone() for p in r.net.parameters()]
    r.loop["after_step"] = lambda step: [
        a.lerp_(p.data, 0.05) for a, p in zip(average, r.net.parameters(), strict=True)
    ]


@variant
def trained_on_one_batch(r):
    batch = r.data(0)
    r.data = lambda step: batch

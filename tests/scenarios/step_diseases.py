"""Trainings whose steps, clips or single batches are diseased; each takes a switch that makes its healthy twin.

All are real: a tiny net, a real optimizer, the disease put in where users put it. `every=1` by `trainings.fit`.
"""

from __future__ import annotations

import copy
import functools

import torch
from nets import SEED, Recurrent, Transformer, batches, classify, mlp, pieces, predict
from nets import digits as all_digits
from torch import nn, optim
from torch.nn import functional as F
from trainings import fit

import gradwatch


def digits(folder, make, steps=120, net=None, data=None, **options):
    """The digits with an optimizer of `make(parameters)`."""
    net = net or mlp()
    return fit(folder, net, make(net.parameters()), classify(net, data or batches()), steps, **options)


def sgd(lr, **more):
    return functools.partial(optim.SGD, lr=lr, **more)


def adam(lr, **more):
    return functools.partial(optim.Adam, lr=lr, **more)


# --------------------------------------------------------------------------------------------------------- unchanged


def rate_zero(folder, sick=True, steps=100):
    """A schedule that reaches 0 after 30 steps, and goes on for 70 more (the twin: a schedule of the right length)."""
    net = mlp()
    optimizer = optim.Adam(net.parameters(), 3e-3)
    end = 30 if sick else 120
    plan = optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / end))
    return fit(folder, net, optimizer, classify(net, batches()), steps, before_step=lambda _: _advance(plan))


def _advance(plan):
    plan.last_epoch += 1
    for group, base in zip(plan.optimizer.param_groups, plan.base_lrs, strict=True):
        group["lr"] = base * plan.lr_lambdas[0](plan.last_epoch)


def group_rate_zero(folder, sick=True):
    """Two param groups of which the first has a learning rate of 0."""
    net = mlp()
    groups = [{"params": net[1].parameters(), "lr": 0.0 if sick else 1e-3}, {"params": net[3:].parameters()}]
    return fit(folder, net, optim.Adam(groups, 3e-3), classify(net, batches()), 60)


def bfloat16_weights(folder, sick=True):
    """Weights in bfloat16 (the twin: in float32) and a learning rate whose steps are smaller than it resolves."""
    torch.manual_seed(SEED[0])
    net = mlp() if not sick else mlp().bfloat16()
    batch = batches()
    dtype = next(net.parameters()).dtype

    def loss(step):
        x, y = batch(step)
        return F.cross_entropy(net(x.to(dtype)).float(), y)

    return fit(folder, net, optim.SGD(net.parameters(), 2e-4), loss, 60)


def zeroed_before_step(folder, sick=True, to_none=False):
    """`zero_grad` between backward and step."""
    net = mlp()
    optimizer = optim.SGD(net.parameters(), 0.1)
    before = (lambda _: optimizer.zero_grad(set_to_none=to_none)) if sick else None
    return fit(folder, net, optimizer, classify(net, batches()), 60, before_step=before)


def scaler_drops_all(folder, sick=True):
    """A GradScaler whose scale is never updated, far too high for float16 (the twin: one that is updated)."""
    net = mlp()
    optimizer = optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    batch = batches()
    if not sick:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    watch = gradwatch.watch(net, optimizer, log=None, dir=folder, verbose=False, every=1)
    with watch:
        for step in range(60):
            x, y = batch(step)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            if not sick:
                scaler.update()
            else:
                scaler.update(2.0**60)
            watch.log(loss=loss)
    return gradwatch.open_history(watch.dir)


def strangers(folder, sick=True):
    """An optimizer that holds the parameters of a copy of the model, beside one bias of the model itself."""
    torch.manual_seed(SEED[0])
    net = mlp()
    copy = mlp(seed=1)
    held = [*copy.parameters(), net[-1].bias] if sick else list(net.parameters())
    if sick:
        net[-1].bias.requires_grad_(False)
    optimizer = optim.SGD(held, 0.1)
    return fit(folder, net, optimizer, classify(net, batches()), 60)


def put_back(folder, sick=True):
    """A copy of the weights that is loaded again after every step."""
    net = mlp()
    kept = {k: v.clone() for k, v in net.state_dict().items()}
    optimizer = optim.SGD(net.parameters(), 0.1)

    def restore(*_):
        net.load_state_dict(kept)

    if sick:
        optimizer.register_step_post_hook(restore)
    return fit(folder, net, optimizer, classify(net, batches()), 60)


# ---------------------------------------------------------------------------------------------- too large, too small


def huge_rate(folder, sick=True):
    """AdamW at 1, whose weight decay keeps the weights as small as the steps (the twin: 3e-3)."""
    net = mlp(norm=True)
    rate, decay = (1.0, 0.9) if sick else (3e-3, 0.1)
    return digits(folder, lambda params: optim.AdamW(params, rate, weight_decay=decay), 120, net)


def softmaxed(folder, sick=True, lr=0.1, steps=150):
    """A softmax before cross_entropy, which has its own (the twin: logits)."""
    net = nn.Sequential(*mlp(), *([nn.Softmax(-1)] if sick else []))
    return digits(folder, sgd(lr), steps, net)


def begun_large(folder, sick=True, times=10.0):
    """Every weight begins at ten times the size that torch gives it (the twin: at that size)."""
    net = mlp()
    if sick:
        for weight in net.parameters():
            weight.data.mul_(times if weight.dim() > 1 else 1.0)
    return digits(folder, adam(1e-3), 200, net)


def decayed_through_moments(folder, sick=True):
    """Adam with a decay of AdamW's size (the twin: AdamW)."""
    kind = optim.Adam if sick else optim.AdamW
    return digits(folder, functools.partial(kind, lr=1e-3, weight_decay=0.1), 200)


def tiny_rate(folder, sick=True):
    """Adam at 1e-9 (the twin: 1e-3)."""
    return digits(folder, adam(3e-9 if sick else 1e-3), 100)


def averaged(folder, sick=True):
    """The weights' slow average is loaded back after each step (the twin: it is only kept)."""
    net = mlp()
    optimizer = optim.SGD(net.parameters(), 0.1)
    mean = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))
    loss_of = classify(net, batches())

    def loss(step):
        mean.update_parameters(net)
        if sick:
            net.load_state_dict(mean.module.state_dict())
        return loss_of(step)

    return fit(folder, net, optimizer, loss, 150, every=5)


def labels_apart(folder, sick=True):
    """Labels that were shuffled apart from their images (the twin: not so)."""
    net, batch = mlp(), batches()

    def apart(step):
        x, y = batch(step)
        return x, y[torch.randperm(len(y), generator=torch.Generator().manual_seed(step))] if sick else y

    return fit(folder, net, optim.SGD(net.parameters(), 0.1), classify(net, apart), 150, every=5)


def inputs_of_bytes(folder, sick=True):
    """Digits from 0 to 255 (the twin: from 0 to 1)."""
    net, batch = mlp(), batches()

    def sized(step):
        x, y = batch(step)
        return 255 * x if sick else x, y

    return fit(folder, net, optim.SGD(net.parameters(), 0.1), classify(net, sized), 120, every=5)


def wrong_sign(folder, sick=True):
    """The loss has a minus too many (the twin: not so)."""
    net = mlp()
    loss_of = classify(net, batches())
    sign = -1 if sick else 1
    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), lambda step: sign * loss_of(step), 120, every=5)


def large_eps(folder, sick=True):
    """Adam whose eps is 10 (the twin: 1e-8)."""
    return digits(folder, adam(1e-3, eps=10.0 if sick else 1e-8), 150)


def fading(folder, sick=True):
    """SGD with a weight decay of 0.5 (the twin: 1e-4)."""
    return digits(folder, sgd(0.1, weight_decay=0.5 if sick else 1e-4), 150)


def runaway(folder, sick=True):
    """A critic whose difference of means has no bound (the twin: weight decay)."""
    torch.manual_seed(SEED[0])
    net = nn.Linear(8, 4, bias=False)
    optimizer = optim.SGD(net.parameters(), 0.2, weight_decay=0.0 if sick else 0.3)

    def loss(step):
        g = torch.Generator().manual_seed(SEED[0] * 100_003 + step)
        real, fake = torch.randn(64, 8, generator=g) + 0.5, torch.randn(64, 8, generator=g)
        return net(fake).mean() - net(real).mean()

    return fit(folder, net, optimizer, loss, 150)


def tight_norm(folder, sick=True):
    """A max-norm far below the weights' size (the twin: 4)."""
    return digits(folder, sgd(0.1, momentum=0.9), 100, renorm="MaxNorm(0.3)" if sick else "MaxNorm(4.0)")


# ------------------------------------------------------------------------------------------------------------ spikes


def odd_batch(folder, sick=True, clip=None, at=150, steps=260, make=None, scale=1000.0):
    """One batch whose pixels are a thousand times too large."""
    batch = batches()

    def data(step):
        x, y = batch(step)
        return (x * scale, y) if sick and step == at else (x, y)

    return digits(folder, make or sgd(0.05), steps, data=data, clip=clip)


def rate_too_high(folder, sick=True, steps=150):
    """A transformer under Adam at 0.3 from the first step (the twin: 3e-3)."""
    net = Transformer()
    return fit(folder, net, optim.Adam(net.parameters(), 0.3 if sick else 3e-3), predict(net, pieces(8)), steps)


def rnn_rate_too_high(folder, sick=True, clip=None):
    """A character RNN under SGD at 10 (the twin: 0.5)."""
    net = Recurrent(hidden=32)
    return fit(folder, net, optim.SGD(net.parameters(), 10.0 if sick else 0.5), predict(net, pieces(8)), 200, clip=clip)


# ------------------------------------------------------------------------------------------------------------- clips


def inert(folder, sick=True, own=False):
    """A threshold of 100 that nothing reaches in 1,100 steps (the twin: 1.5)."""
    net = mlp(width=16, depth=1)
    threshold = 100.0 if sick else 1.5
    if own:
        return fit(
            folder, net, optim.SGD(net.parameters(), 0.1), classify(net, batches(16)), 1100,
            before_step=lambda _: nn.utils.clip_grad_norm_(net.parameters(), threshold), every=10,
        )  # fmt: skip
    return digits(folder, sgd(0.1), 1100, net, batches(16), clip=f"ClipByGlobalNorm({threshold})", every=10)


def throttled(folder, sick=True, make=None, own=False):
    """A threshold of 0.02 that every gradient exceeds (the twin: 2)."""
    net = mlp()
    threshold = 0.02 if sick else 2.0
    optimizer = (make or sgd(0.1))(net.parameters())
    if own:
        return fit(
            folder, net, optimizer, classify(net, batches()), 150,
            before_step=lambda _: nn.utils.clip_grad_norm_(net.parameters(), threshold),
        )  # fmt: skip
    return fit(folder, net, optimizer, classify(net, batches()), 150, clip=f"ClipByGlobalNorm({threshold})")


def muon_clipped(folder, sick=True, alone=False, lr=0.02, threshold=0.02, steps=150):
    """A norm clip that every gradient exceeds, over Muon's matrices and AdamW's biases (the twin: over these alone).

    With `alone` the biases are frozen (the twin: odd steps are left out).
    """
    net = mlp()
    matrices = [p for p in net.parameters() if p.dim() == 2]
    biases = [p for p in net.parameters() if p.dim() < 2]
    optimizers = [optim.Muon(matrices, lr)] + ([] if alone else [optim.AdamW(biases, 3e-3)])
    for p in biases:
        p.requires_grad_(not alone)
    clip = f"ClipByGlobalNorm({threshold})" if sick else "only('optimizer:AdamW', ClipByGlobalNorm(1.0))"
    clip = "SkipSpike()" if alone and not sick else clip
    return fit(folder, net, optimizers, classify(net, batches()), steps, clip=clip)


def left_out(folder, sick=True):
    """A skip above a norm that the gradients of a training on its way have (the twin: above a hundred times that)."""
    return digits(folder, sgd(0.1), 150, clip=f"SkipNorm({0.4 if sick else 40.0})")


def clipped_twice(folder, sick=True, seen=True):
    """The loop clips to 0.5 by torch's function, or by its own lines, and the run's policy to 1.0."""
    net = mlp()

    def by_hand(_):
        norm = torch.sqrt(sum(p.grad.square().sum() for p in net.parameters()))
        for p in net.parameters():
            p.grad.mul_(min(1.0, 0.25 / float(norm)))

    before = (lambda _: nn.utils.clip_grad_norm_(net.parameters(), 0.5)) if seen else by_hand
    optimizer = optim.SGD(net.parameters(), 0.1)
    return fit(
        folder, net, optimizer, classify(net, batches()), 120,
        before_step=before if sick else None, clip="ClipByGlobalNorm(1.0)",
    )  # fmt: skip


def clipped_late(folder, sick=True, steps=120):
    """Momentum at a rate that wants a clip, which comes behind the step (the twin: before it)."""
    net, batch = mlp(), batches()
    optimizer = optim.SGD(net.parameters(), 0.6, momentum=0.9)

    def clip(_):
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)

    def loss_of(step):
        if sick and step:
            clip(step)
        optimizer.zero_grad()
        x, y = batch(step)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optimizer, loss_of, steps, zero_grad=False, before_step=None if sick else clip)


def clipped_before(folder, sick=True, steps=120):
    """Momentum at a rate that wants a clip, which comes before backward (the twin: behind it)."""
    net, batch = mlp(), batches()
    optimizer = optim.SGD(net.parameters(), 0.6, momentum=0.9)

    def clip(_):
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)

    def loss_of(step):
        x, y = batch(step)
        loss = F.cross_entropy(net(x), y)
        if sick:
            clip(step)
        return loss

    return fit(folder, net, optimizer, loss_of, steps, before_step=None if sick else clip)


def loaded_back(folder, sick=True, steps=240):
    """Every 30 steps the weights of the worst loss so far are kept, or loaded back (the twin: those of the best)."""
    net, batch = mlp(), batches()
    held = all_digits()
    kept = {"loss": 0.0 if sick else float("inf"), "weights": copy.deepcopy(net.state_dict())}

    def loss_of(step):
        if step and step % 30 == 0:
            validate()
        x, y = batch(step)
        return F.cross_entropy(net(x), y)

    def validate():
        with torch.no_grad():
            loss = float(F.cross_entropy(net(held[0]), held[1]))
        if loss > kept["loss"] if sick else loss < kept["loss"]:
            kept.update(loss=loss, weights=copy.deepcopy(net.state_dict()))
        else:
            net.load_state_dict(kept["weights"])

    return fit(folder, net, optim.Adam(net.parameters(), 0.003), loss_of, steps)


def clipped_while_scaled(folder, sick=True, by_hand=False):
    """`clip_grad_norm_` before `unscale_` under a GradScaler (the twin: after it)."""
    net = mlp()
    optimizer = optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=40)
    batch = batches()
    watch = gradwatch.watch(net, optimizer, log=None, dir=folder, verbose=False, every=1)
    with watch:
        for step in range(120):
            x, y = batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            scaler.scale(loss).backward()
            if not sick:
                scaler.unscale_(optimizer)
            if by_hand:
                norm = torch.sqrt(sum(p.grad.square().sum() for p in net.parameters()))
                for p in net.parameters():
                    p.grad.mul_(min(1.0, 0.5 / float(norm)))
            else:
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            watch.log(loss=loss)
    return gradwatch.open_history(watch.dir)


def always_nan(folder, clip):
    """A loss that is NaN in every step."""
    net = mlp()
    loss_of = classify(net, batches())
    return fit(folder, net, optim.SGD(net.parameters(), 0.1), lambda step: loss_of(step) * torch.nan, 60, clip=clip)


def frozen_body(folder):
    """Layers that are held by the optimizer and ask for no gradient."""
    net = mlp()
    for p in net[:3].parameters():
        p.requires_grad_(False)
    return digits(folder, sgd(0.1), 60, net)


def starving_generator(folder, sick=True, steps=300):
    """A generator under the loss that saturates, against a judge that is trained twice for each of its steps; the twin
    minimises -log D(G(z)), and both take one step in turn. The history is the generator's.
    """
    torch.manual_seed(SEED[0])
    make = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2))
    judge = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    of_make, of_judge = optim.SGD(make.parameters(), 0.1), optim.Adam(judge.parameters(), 1e-2 if sick else 2e-3)
    options = {"log": None, "dir": folder, "verbose": False, "every": 1}
    w_judge = gradwatch.watch(judge, of_judge, name="D", **options)
    w_make = gradwatch.watch(make, of_make, name="G", run=w_judge, **options)
    with w_judge, w_make:
        for _ in range(steps):
            for _ in range(2 if sick else 1):
                real = 3 + 0.5 * torch.randn(64, 2)
                loss = F.softplus(-judge(real)).mean() + F.softplus(judge(make(torch.randn(64, 6)).detach())).mean()
                of_judge.zero_grad()
                loss.backward()
                of_judge.step()
                w_judge.log(loss=loss)
            answer = judge(make(torch.randn(64, 6)))
            loss = (-F.softplus(answer) if sick else F.softplus(-answer)).mean()
            of_make.zero_grad()
            loss.backward()
            of_make.step()
            w_make.log(loss=loss)
    return gradwatch.open_history(w_make.dir)


def maker_that_moves_its_judge(folder, sick=True, steps=300):
    """A generator whose optimizer also holds the judge, which so learns to be deceived (the twin: it holds its own)."""
    torch.manual_seed(SEED[0])
    make = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
    judge = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    of_make = optim.Adam([*make.parameters(), *(judge.parameters() if sick else ())], 2e-3, betas=(0.5, 0.999))
    of_judge = optim.Adam(judge.parameters(), 2e-3, betas=(0.5, 0.999))
    options = {"log": None, "dir": folder, "verbose": False}
    w_judge = gradwatch.watch(judge, of_judge, name="D", **options)
    w_make = gradwatch.watch(make, of_make, name="G", run=w_judge, **options)
    with w_judge, w_make:
        for _ in range(steps):
            angle = 6.283 * torch.rand(64, 1)
            real, fake = torch.cat([angle.cos(), angle.sin()], 1), make(torch.randn(64, 6))
            loss = F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()
            of_judge.zero_grad()
            loss.backward()
            of_judge.step()
            w_judge.log(loss=loss)
            loss = F.softplus(-judge(fake)).mean()
            of_make.zero_grad()
            loss.backward()
            of_make.step()
            w_make.log(loss=loss)
    return gradwatch.open_history(w_make.dir.parent)


def body_left_frozen(folder, sick=True):
    """A network whose body was never trained, and is frozen (the twin's is not)."""
    net = mlp()
    for p in net[:3].parameters():
        p.requires_grad_(not sick)
    return digits(folder, sgd(0.1), 100, net)


def normed(momentum=0.1):
    torch.manual_seed(SEED[0])
    norm = nn.BatchNorm1d(64, momentum=momentum)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64, bias=False), norm, nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10)
    )


def left_in_eval_mode(folder, sick=True):
    """An evaluation every 50 steps, after which the model stays in eval mode (the twin: not so)."""
    net = normed()
    trained = classify(net, batches())

    def loss_of(step):
        if step and step % 50 == 0:
            net.eval()
            with torch.no_grad():
                trained(step - 1)
            net.train(not sick)
        return trained(step)

    return fit(folder, net, optim.SGD(net.parameters(), 0.1), loss_of, 150)


def validated_in_training_mode(folder, sick=True):
    """Other digits are measured every 20 steps, with the batch norm in training mode (the twin: in eval mode)."""
    net = normed()
    (x, y), trained = all_digits(), classify(net, batches())

    def loss_of(step):
        if step % 20:
            return trained(step)
        net.train(sick)
        with torch.no_grad():
            other = F.cross_entropy(net(x[1400:]), y[1400:])
        net.train()
        return trained(step), {"val_loss": float(other)}

    return fit(folder, net, optim.SGD(net.parameters(), 0.1), loss_of, 200)


def average_of_one_batch(folder, sick=True):
    """A batch norm whose momentum is 0.9, as TensorFlow means it (the twin: 0.1)."""
    net = normed(0.9 if sick else 0.1)
    return fit(folder, net, optim.SGD(net.parameters(), 0.1), classify(net, batches()), 150)


def resumed(folder, sick=True, halves=80):
    """A run that goes on from a checkpoint of the weights alone (the twin's has the optimizer's state, too)."""
    net, saved, watch = mlp(), None, None
    loss_of = classify(net, batches())
    for half in range(2):
        optimizer = optim.Adam(net.parameters(), 0.02)
        watch = gradwatch.watch(net, optimizer, log=None, dir=folder, verbose=False, every=1)
        if saved:
            watch.load_state_dict(saved[0])
            if not sick:
                optimizer.load_state_dict(saved[1])
        with watch:
            for step in range(halves):
                optimizer.zero_grad()
                loss = loss_of(half * halves + step)
                loss.backward()
                optimizer.step()
                watch.log(loss=loss)
            saved = watch.state_dict(), optimizer.state_dict()
    return gradwatch.open_history(watch.dir)


def outlasted_schedule(folder, sick=True):
    """A cosine of half the run's length, which climbs back up (the twin's is as long as the run)."""
    net = mlp()
    optimizer = optim.SGD(net.parameters(), 0.1, momentum=0.9)
    plan = optim.lr_scheduler.CosineAnnealingLR(optimizer, 100 if sick else 200)
    return fit(folder, net, optimizer, classify(net, batches(16, noise=0.2)), 200, before_step=_next(plan))


def endless_warmup(folder, sick=True):
    """A warm-up as long as the run (the twin's ends after ten steps)."""
    net = mlp()
    optimizer = optim.SGD(net.parameters(), 0.1)
    plan = optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / (150 if sick else 10)))
    return fit(folder, net, optimizer, classify(net, batches()), 150, before_step=_next(plan))


def _next(plan):
    """Moves a schedule on before each step but the first."""
    return lambda step: step and plan.step()

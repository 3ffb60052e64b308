"""The loops that people write: micro-batches, closures, mixed precision, schedules, several optimizers.

`t` is the Trial, which gives what differs between runs. `look()` stands where the gradients are ready for the step. A
loop returns everything that has a state, for the comparison to the bit; its docstring is its name in the table.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from trial import STEPS, Trial

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Loop:
    """A loop, the dtypes in which it makes sense, and whether it meets every form of every optimizer."""

    name: str
    run: Callable[[Trial], tuple]
    dtypes: tuple[torch.dtype, ...]
    every_form: bool

    @property
    def title(self):
        return self.run.__doc__.split("\n")[0].rstrip(".")


LOOPS: dict[str, Loop] = {}


def loop(function=None, *, dtypes=FLOATS, every_form=False):
    """Enter a function into the matrix."""

    def enter(run):
        LOOPS[run.__name__] = Loop(run.__name__, run, dtypes, every_form)
        return run

    return enter if function is None else enter(function)


def mlp(last=3):
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, last))


def ordinary(t, model, **sizes):
    """The loop of every tutorial."""
    optimizer = t.optimizer(model)
    look = t.attach(model, optimizer)
    for x, y in t.batches(**sizes):
        optimizer.zero_grad()
        t.loss(model(x), y).backward()
        look()
        optimizer.step()
    return model, optimizer


@loop(every_form=True)
def plain(t):
    """One batch a step."""
    return ordinary(t, t.put(mlp()))


@loop
def accumulation(t):
    """Three micro-batches a step."""
    model = t.put(mlp())
    optimizer = t.optimizer(model)
    look = t.attach(model, optimizer)
    for x, y in t.batches(rows=9):
        for small_x, small_y in zip(x.chunk(3), y.chunk(3), strict=True):
            (t.loss(model(small_x), small_y) / 3).backward()
        look()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


# ----------------------------------------------------------------------------------------------------------- closures


def with_closure(t, model, step):
    optimizer = t.optimizer(model)
    look = t.attach(model, optimizer)
    for x, y in t.batches():

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = t.loss(model(x), y)
            loss.backward()
            look()
            return loss

        step(optimizer, closure)
    return model, optimizer


@loop
def closure(t):
    """`optimizer.step(closure)`."""
    return with_closure(t, t.put(mlp()), lambda optimizer, closure: optimizer.step(closure))


@loop
def closure_keyword(t):
    """`optimizer.step(closure=closure)`."""
    return with_closure(t, t.put(mlp()), lambda optimizer, closure: optimizer.step(closure=closure))


@loop
def closure_around_a_tied_model(t):
    """A closure over a model with tied weights and a frozen layer."""
    model = t.put(nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3)))
    model[2].weight = model[0].weight
    model[3].bias.requires_grad_(False)
    return with_closure(t, model, lambda optimizer, closure: optimizer.step(closure))


# ---------------------------------------------------------------------------------------------------- mixed precision


def scaled(t, unscale=False, poisoned=(), autocast=None):
    model = t.put(mlp())
    optimizer = t.optimizer(model)
    scaler = torch.amp.GradScaler(t.device.type, init_scale=2.0**7, growth_interval=2)
    look = t.attach(model, optimizer)
    for x, y in t.batches():
        optimizer.zero_grad()
        with torch.autocast(t.device.type, autocast, enabled=autocast is not None):
            out = model(x)
        scaler.scale(t.loss(out.to(y.dtype), y)).backward()
        if t.step in poisoned:
            model[0].weight.grad[0, 0] = torch.inf
        if unscale:
            scaler.unscale_(optimizer)
        look(1.0 if unscale else scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
    return model, optimizer, scaler


@loop(every_form=True)
def scaler(t):
    """`GradScaler`, its scale growing."""
    return scaled(t)


@loop(every_form=True)
def scaler_unscale(t):
    """`GradScaler` with `unscale_` before the step."""
    return scaled(t, unscale=True)


@loop(every_form=True)
def scaler_drops(t):
    """`GradScaler` drops a step and lowers its scale."""
    return scaled(t, poisoned=(1,))


@loop
def scaler_unscale_drops(t):
    """`GradScaler` with `unscale_` drops a step."""
    return scaled(t, unscale=True, poisoned=(1,))


@loop(dtypes=(torch.float32,))
def autocast_float16(t):
    """`autocast` to float16 with `GradScaler`."""
    return scaled(t, autocast=torch.float16)


@loop(dtypes=(torch.float32,))
def autocast_bfloat16(t):
    """`autocast` to bfloat16."""
    model = t.put(mlp())
    optimizer = t.optimizer(model)
    look = t.attach(model, optimizer)
    for x, y in t.batches():
        optimizer.zero_grad()
        with torch.autocast(t.device.type, torch.bfloat16):
            loss = t.loss(model(x), y)
        loss.backward()
        look()
        optimizer.step()
    return model, optimizer


# ---------------------------------------------------------------------------------------------------- learning rates


def scheduled(t, schedule):
    model = t.put(mlp())
    optimizer = t.optimizer([{"params": model[0].parameters()}, {"params": model[3].parameters(), "lr": 0.02}])
    scheduler = schedule(optimizer)
    look = t.attach(model, optimizer)
    for x, y in t.batches():
        optimizer.zero_grad()
        t.loss(model(x), y).backward()
        look()
        optimizer.step()
        scheduler.step()
    return model, optimizer, scheduler


@loop
def exponential(t):
    """Two param groups, `ExponentialLR`."""
    return scheduled(t, lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))


@loop
def polynomial(t):
    """Two param groups, `PolynomialLR`."""
    return scheduled(t, lambda optimizer: torch.optim.lr_scheduler.PolynomialLR(optimizer, STEPS, power=2))


@loop
def one_cycle(t):
    """Two param groups, `OneCycleLR`, which moves the momentum too where there is one."""

    def schedule(optimizer):
        moves = bool({"momentum", "betas"} & optimizer.defaults.keys())
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.05, 0.1], total_steps=STEPS + 1, cycle_momentum=moves)

    return scheduled(t, schedule)


# ------------------------------------------------------------------------------------------------- several optimizers


@loop
def two_optimizers(t):
    """Two optimizers share a model and step together: one global norm."""
    model = t.put(mlp())
    first, second = t.optimizer(model[0]), t.optimizer(model[3])
    look = t.attach(model, [first, second])
    for x, y in t.batches():
        first.zero_grad()
        second.zero_grad()
        t.loss(model(x), y).backward()
        look()
        first.step()
        second.step()
    return model, first, second


@loop
def gan(t):
    """A GAN: two models, two optimizers, each watched by itself."""
    maker, judge = t.put(mlp(last=6)), t.put(mlp(last=1))
    makes, judges = t.optimizer(maker), t.optimizer(judge)
    look_maker, look_judge = t.attach(maker, makes), t.attach(judge, judges)
    for x, _ in t.batches():
        ones = torch.ones_like(x[:, :1])
        judges.zero_grad()
        t.loss(judge(x) - judge(maker(x).detach()), ones).backward()
        look_judge()
        judges.step()
        makes.zero_grad()
        t.loss(judge(maker(x)), ones).backward()
        look_maker()
        makes.step()
    return maker, judge, makes, judges


# ------------------------------------------------------------------------------------------------- beside the training


@loop
def ema(t):
    """`swa_utils.AveragedModel` beside the model."""
    model = t.put(mlp())
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = t.optimizer(model)
    look = t.attach(model, optimizer)
    for x, y in t.batches():
        optimizer.zero_grad()
        t.loss(model(x), y).backward()
        look()
        optimizer.step()
        average.update_parameters(model)
    return model, optimizer, average


@loop
def functional_call(t):
    """`torch.func.functional_call` with other weights, between backward and step."""
    model = t.put(mlp())
    optimizer = t.optimizer(model)
    look = t.attach(model, optimizer)
    for x, y in t.batches():
        optimizer.zero_grad()
        t.loss(model(x), y).backward()
        halves = {name: (p.detach() / 2).requires_grad_() for name, p in model.named_parameters()}
        t.loss(torch.func.functional_call(model, halves, (x,)), y).backward()
        look()
        optimizer.step()
    return model, optimizer


@loop
def state_loaded(t):
    """`optimizer.load_state_dict` during training."""
    model = t.put(mlp())
    optimizer = t.optimizer(model)
    look = t.attach(model, optimizer)
    for x, y in t.batches():
        if t.step == 2:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        optimizer.zero_grad()
        t.loss(model(x), y).backward()
        look()
        optimizer.step()
    return model, optimizer

"""Optimizers, their rates and mixed precision, after threads."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, rings, score_of, seeded, sick
from unseen.tasks import tend


# https://github.com/FlyEgle/imageclassification/issues/1
@sick(
    "nonfinite",
    "optimizer-steps-twice",
    "scaler-bypassed",
    where="all layers, at the first step whose scaled gradients overflow: the scaler skips it, the loop does not",
    cure="leave the step to the scaler: no optimizer.step() after scaler.step(optimizer)",
)
def cheeses_told_by_their_holes(folder, ill):
    seeded(3479)
    draw = rings(classes=5, size=16)
    net = dense(16, 64, 64, 5)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=40)

    def loss_of(step):
        x, y = draw()
        with torch.autocast("cpu", torch.float16):
            found = net(x)
        return F.cross_entropy(found.float(), y)

    def one(step):
        optimizer.zero_grad()
        loss = loss_of(step)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if ill:
            optimizer.step()
        return {"loss": loss}

    return tend(folder, net, optimizer, one, 500, score_of(loss_of))


class HandmadeAdam(torch.optim.Optimizer):
    """Adam, written out."""

    def __init__(self, parameters, lr, corrected, betas=(0.9, 0.999)):
        super().__init__(parameters, {"lr": lr, "betas": betas})
        self.corrected = corrected

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            first_decay, second_decay = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, first=torch.zeros_like(p), second=torch.zeros_like(p))
                state["step"] += 1
                state["first"].lerp_(p.grad, 1 - first_decay)
                state["second"].lerp_(p.grad**2, 1 - second_decay)
                first_share, second_share = 1 - first_decay ** state["step"], 1 - second_decay ** state["step"]
                if self.corrected:
                    first, second = state["first"] / first_share, state["second"] / second_share
                else:
                    first, second = state["first"] * first_share, state["second"] * second_share
                p.sub_(group["lr"] * first / (second.sqrt() + 1e-8))


# https://github.com/karpathy/convnetjs/pull/70
@sick(
    "update-too-large",
    "lr-too-high",
    "bias-correction-wrong",
    where="all layers, most of all in the first hundred steps",
    cure="divide the moments by one minus the powers of the decays instead of multiplying by that",
)
def honeys_by_their_flowers(folder, ill):
    seeded(3480)
    net = dense(12, 64, 64, 4)
    optimizer = HandmadeAdam(net.parameters(), 0.01, corrected=not ill)
    loss_of = entropy_of(net, rings())
    return fit(folder, net, optimizer, loss_of, 400, score=score_of(loss_of))


# https://github.com/jaehyunnn/ViTPose_pytorch/issues/20
@sick(
    "schedule-too-short",
    "update-too-small",
    where="the learning rates of all layers, which are gone after some twenty steps",
    cure="scale the rates of the layers once, before the first step, not at each step",
)
def a_quilt_named_by_its_corner(folder, ill):
    seeded(3481)
    net = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(12, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten()),
        nn.Sequential(nn.Linear(256, 32), nn.ReLU()),
        nn.Linear(32, 6),
    )
    groups = [
        {"params": layer.parameters(), "lr": 3e-3, "layer_scale": 0.75 ** (len(net) - i)} for i, layer in enumerate(net)
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    patches = torch.randn(6, 4, 4)

    def draw():
        kind = torch.randint(6, (32,))
        quilt = 0.7 * torch.randn(32, 1, 8, 8)
        down, along = torch.randint(5, (2, 32))
        for i in range(32):
            quilt[i, 0, down[i] : down[i] + 4, along[i] : along[i] + 4] += patches[kind[i]]
        return quilt, kind

    def scale_by_layer(step=0):
        for group in optimizer.param_groups:
            group["lr"] *= group["layer_scale"]

    loss_of = entropy_of(net, draw)
    if not ill:
        scale_by_layer()
    return fit(
        folder, net, optimizer, loss_of, 400, score=score_of(loss_of), before_step=scale_by_layer if ill else None
    )


# https://github.com/jax-ml/jax/pull/3113
@sick(
    "lr-too-high",
    "update-too-large",
    "exploding",
    where="all layers, from the first steps, with a loss that is the sum of a large batch",
    cure="take the mean of the losses of a batch instead of their sum",
)
def parcels_by_their_rattle(folder, ill):
    seeded(3482)
    draw = rings(batch=256, classes=4)
    net = dense(12, 64, 64, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def log_likelihood():
        x, kind = draw()
        return F.log_softmax(net(x), 1) * F.one_hot(kind, 4)

    def loss_of(step):
        return -log_likelihood().sum() if ill else -log_likelihood().sum(1).mean()

    return fit(folder, net, optimizer, loss_of, 500, score=score_of(lambda step: -log_likelihood().sum(1).mean()))

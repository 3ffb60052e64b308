"""Healthy trainings with seldom met optimizers: sharpness-aware, orthogonal, sparse, by Kronecker factors."""

from __future__ import annotations

import nets
import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import held_out, rounds, tend


class Flat(torch.optim.SGD):
    """Sharpness-aware: the gradient is taken a little way uphill, the step from where the weights were."""

    def __init__(self, params, rho=0.05, **options):
        super().__init__(params, **options)
        self.rho = rho

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        weights = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in weights]).norm() + 1e-12
        ways = [p.grad * (self.rho / norm) for p in weights]
        for p, way in zip(weights, ways, strict=True):
            p.add_(way)
        with torch.enable_grad():
            closure()
        for p, way in zip(weights, ways, strict=True):
            p.sub_(way)
        super().step()
        return loss


@healthy()
def prices_chalked_on_a_slate(folder):
    seeded(3555)
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 24, 3, stride=2, padding=1, bias=False),
        nn.GroupNorm(4, 24),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(96, 10),
    )
    optimizer = Flat(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 150)
    batch = nets.batches(64, seed=3555)
    x, y = batch(10**6)

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(net(x), y, label_smoothing=0.1)

    score = held_out(net, lambda: F.cross_entropy(net(x), y))
    return fit(folder, net, optimizer, loss_of, 150, score=score, closure=True, schedule=schedule)


@healthy()
def proverbs_letter_by_letter(folder):
    seeded(3556)
    net = nets.Transformer(width=48, depth=2, seed=3556)
    matrices = [p for block in net.blocks for p in block.parameters() if p.ndim == 2]
    ids = {id(p) for p in matrices}
    others = [p for p in net.parameters() if id(p) not in ids]
    optimizers = [
        torch.optim.Muon(matrices, lr=3e-3, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01),
    ]
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 20, (300 - step) / 150, 1.0))
        for optimizer in optimizers
    ]
    loss_on = nets.predict(net, nets.pieces(rows=16, seed=3556))

    def one(step):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = loss_on(step)
        loss.backward()
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        return {"loss": loss, "perplexity": loss.exp().item()}

    score = score_of(nets.predict(net, nets.pieces(rows=64, seed=90_000)))
    return tend(folder, net, optimizers, one, 299, score)


@healthy(gain=0.2)
def jars_that_share_a_spice_rack(folder):
    seeded(3557)
    words, cuisines = 400, 10
    often = 1 / torch.arange(1, words // cuisines + 1).float()
    net = nn.ModuleDict({side: nn.Embedding(words, 24, sparse=True) for side in ("word", "context")})
    nn.init.uniform_(net["word"].weight, -0.5 / 24, 0.5 / 24)
    nn.init.zeros_(net["context"].weight)
    optimizer = torch.optim.SparseAdam(list(net.parameters()), lr=5e-3)
    noise = (often**0.75).repeat(cuisines)

    def dishes(rows):
        kitchen = torch.randint(cuisines, (rows, 1))
        place = torch.multinomial(often, 2 * rows, replacement=True).view(rows, 2)
        pairs = kitchen * len(often) + place
        strange = torch.rand(rows) < 0.05
        pairs[strange, 1] = torch.randint(words, (int(strange.sum()),))
        return pairs[:, 0], pairs[:, 1], torch.multinomial(noise, 5 * rows, replacement=True).view(rows, 5)

    def loss_on(rows):
        word, beside, others = dishes(rows)
        at = net["word"](word)
        near = (at * net["context"](beside)).sum(1)
        far = torch.einsum("rd,rkd->rk", at, net["context"](others))
        return -F.logsigmoid(near).mean() - F.logsigmoid(-far).sum(1).mean(), near.detach().mean()

    def loss_of(step):
        loss, near = loss_on(256)
        return loss, {"mean_positive_logit": float(near)}

    def score():
        with torch.no_grad():
            return float(loss_on(8000)[0])

    return fit(folder, net, optimizer, loss_of, 900, score=score)


class Kronecker(torch.optim.Optimizer):
    """Shampoo: averages of G Gᵀ and Gᵀ G whiten the momentum from both sides; as long a step as Adam would make."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, every=5):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "every": every})

    @staticmethod
    def root(matrix):
        values, vectors = torch.linalg.eigh(matrix)
        floor = 1e-6 * values[-1].clamp(min=1e-20)
        return vectors * values.clamp(min=floor).pow(-0.25) @ vectors.T

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            fast, slow = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state, g = self.state[p], p.grad
                if not state:
                    state.update(step=0, first=torch.zeros_like(p), second=torch.zeros_like(p))
                    if p.ndim == 2:
                        state.update(left=torch.zeros(len(p), len(p)), right=torch.zeros(p.shape[1], p.shape[1]))
                state["step"] += 1
                state["first"].lerp_(g, 1 - fast)
                state["second"].mul_(slow).addcmul_(g, g, value=1 - slow)
                first = state["first"] / (1 - fast ** state["step"])
                second = state["second"] / (1 - slow ** state["step"])
                way = first / (second.sqrt() + group["eps"])
                if p.ndim == 2:
                    state["left"].lerp_(g @ g.T, 1 - slow)
                    state["right"].lerp_(g.T @ g, 1 - slow)
                    if (state["step"] - 1) % group["every"] == 0:
                        state["roots"] = self.root(state["left"]), self.root(state["right"])
                    white = state["roots"][0] @ first @ state["roots"][1]
                    way = white * (way.norm() / white.norm().clamp(min=1e-12))
                p.add_(way, alpha=-group["lr"])


@healthy()
def wear_of_a_millstone(folder):
    seeded(3558)
    net = dense(8, 48, 48, 1, act=nn.GELU)
    optimizer = Kronecker(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [250, 350], 0.3)
    x, way = torch.randn(3000, 8), torch.randn(8, 3) / 8**0.5
    a, b, c = (x @ way).unbind(1)
    y = (1.5 * a).sin() + a * b + 0.5 * c.square()
    y = ((y - y.mean()) / y.std() + 0.05 * torch.randn(3000))[:, None]
    draw = rounds(100, x[:2400], y[:2400])

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    score = held_out(net, lambda: F.mse_loss(net(x[2400:]), y[2400:]))
    return fit(folder, net, optimizer, loss_of, 420, score=score, schedule=schedule)

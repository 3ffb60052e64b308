"""Sound trainings of an odd make: private, of reduced variance, sampled, made by another net, reversed, in turn."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR
from unseen import dense, entropy_of, fit, healthy, score_of, seeded
from unseen.tasks import clipped, rounds, tend


@healthy()
def measures_of_a_tailor(folder):
    """Privacy: the gradient of each customer is held to one, and noise is added to their sum."""
    seeded(2240)
    net = dense(5, 32, 3, act=nn.Tanh)
    optimizer = SGD(net.parameters(), 0.3, momentum=0.5)
    cut = torch.randn(5, 3) / 2
    body = torch.randn(4000, 5)
    cloth = (body @ cut) + 0.3 * (body[:, :3] * body[:, 1:4]) + 0.05 * torch.randn(4000, 3)
    draw = rounds(256, body[:3600], cloth[:3600])

    def misfit(weights, x, y):
        loss = F.mse_loss(torch.func.functional_call(net, weights, (x,)), y)
        return loss, loss

    each = torch.func.vmap(torch.func.grad(misfit, has_aux=True), in_dims=(None, 0, 0))

    def one(step):
        slopes, losses = each({name: p.detach() for name, p in net.named_parameters()}, *draw())
        size = sum(g.flatten(1).square().sum(1) for g in slopes.values()).sqrt()
        held = (1 / size).clamp(max=1)
        for name, p in net.named_parameters():
            p.grad = (torch.einsum("i,i...->...", held, slopes[name]) + 0.8 * torch.randn_like(p)) / 256
        optimizer.step()
        return {"loss": losses.mean(), "clipped": (held < 1).float().mean()}

    @torch.no_grad()
    def held_out():
        return float(F.mse_loss(net(body[3600:]), cloth[3600:]))

    return tend(folder, net, optimizer, one, 500, held_out)


@healthy()
def flashes_of_a_lighthouse(folder):
    """Each gradient is corrected by that of weights kept thirty steps ago: its noise dies out as it goes on."""
    seeded(2241)
    net = dense(24, 32, 6, act=nn.Tanh)
    optimizer = SGD(net.parameters(), 0.2)
    period, dark = torch.tensor([3, 4, 5, 6, 8, 10]), torch.tensor([1, 2, 1, 3, 2, 5])
    light, phase = torch.randint(6, (900,)), torch.randint(24, (900, 1))
    beat = (torch.arange(24) + phase) % period[light][:, None]
    seen = (beat >= dark[light][:, None]).float() - 0.5 + 0.4 * torch.randn(900, 24)
    kept, full = {}, {}

    def slopes(weights, rows):
        loss = F.cross_entropy(torch.func.functional_call(net, weights, (seen[rows],)), light[rows])
        return loss, torch.autograd.grad(loss, list(weights.values()))

    def one(step):
        if step % 30 == 0:
            kept["weights"] = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
            full["slopes"] = slopes(kept["weights"], torch.arange(600))[1]
        rows = torch.randint(600, (20,))
        loss, now = slopes(dict(net.named_parameters()), rows)
        then = slopes(kept["weights"], rows)[1]
        for p, a, b, c in zip(net.parameters(), now, then, full["slopes"], strict=True):
            p.grad = a - b + c
        optimizer.step()
        return {"loss": loss.detach()}

    def held_out():
        with torch.no_grad():
            return float(F.cross_entropy(net(seen[600:]), light[600:]))

    return tend(folder, net, optimizer, one, 900, held_out)


@healthy()
def ink_of_manuscripts(folder):
    """Langevin sampling of a cold posterior: noise is added to all weights after each step, and samples vote."""
    seeded(2242)
    net = dense(10, 40, 4, act=nn.Tanh)
    optimizer = SGD(net.parameters(), 0.2, weight_decay=1 / 2000)
    schedule = LambdaLR(optimizer, lambda step: (1 + step / 100) ** -0.55)
    hands, spectrum = torch.randn(12, 10), torch.randint(12, (2600,))
    ink, century = hands[spectrum] + 0.6 * torch.randn(2600, 10), spectrum % 4
    draw = rounds(100, ink[:2000], century[:2000])
    votes = []

    @torch.no_grad()
    def stir(step):
        size = math.sqrt(2 * 0.1 * optimizer.param_groups[0]["lr"] / 2000)
        for p in net.parameters():
            p.add_(size * torch.randn_like(p))
        if step > 300 and step % 20 == 0:
            votes.append(net(ink[2000:]).softmax(1))

    def score():
        with torch.no_grad():
            chance = torch.stack(votes or [net(ink[2000:]).softmax(1)]).mean(0)
            return float(F.nll_loss(chance.log(), century[2000:]))

    return fit(folder, net, optimizer, entropy_of(net, draw), 700, score=score, after_step=stir, schedule=schedule)


@healthy()
def table_of_wine_tasters(folder):
    """A net that writes the weights of another: each taster's embedding becomes a palate of his own."""
    seeded(2243)
    net = nn.ModuleDict({"taster": nn.Embedding(30, 8), "palate": dense(8, 32, 6 * 12 + 12 + 12)})
    nn.init.normal_(net["palate"][-1].weight, std=0.03)
    nn.init.normal_(net["palate"][-1].bias, std=0.4)
    optimizer = Adam(
        [{"params": net["taster"].parameters(), "lr": 1e-2}, {"params": net["palate"].parameters(), "lr": 2e-3}]
    )
    taste, likes = torch.randn(30, 2), torch.randn(2, 6)

    def pour(rows=128):
        who, wine = torch.randint(30, (rows,)), torch.randn(rows, 6)
        return who, wine, ((taste[who] @ likes) * wine).sum(1).div(2).tanh() + 0.3 * wine[:, 0]

    def error(step):
        who, wine, points = pour()
        first, shift, last = net["palate"](net["taster"](who)).split([72, 12, 12], 1)
        hidden = (torch.einsum("bi,bij->bj", wine, first.view(-1, 6, 12)) + shift).tanh()
        return F.mse_loss((hidden * last).sum(1), points)

    return fit(folder, net, optimizer, error, 800, score=score_of(error), schedule=CosineAnnealingLR(optimizer, 800))


@healthy()
def partials_of_a_bell(folder):
    """A differential equation, solved by Runge and Kutta, for longer and longer: the loss rises with its length."""
    seeded(2244)
    net = dense(4, 48, 4, act=nn.Tanh)
    optimizer = Adam(net.parameters(), 5e-3)
    turn = torch.tensor([[-0.1, 2.0, 0.0, 0.3], [-2.0, -0.1, 0.2, 0.0], [0.0, 0.3, -0.2, 3.0], [0.2, 0.0, -3.0, -0.2]])

    def bell(x):
        return x @ turn - 0.1 * x**3

    def ring(of, x, beats, dt=0.1):
        path = []
        for _ in range(beats):
            a = of(x)
            b = of(x + dt / 2 * a)
            c = of(x + dt / 2 * b)
            x = x + dt / 6 * (a + 2 * b + 2 * c + of(x + dt * c))
            path.append(x)
        return torch.stack(path, 1)

    def off(beats):
        struck = torch.randn(48, 4)
        return F.mse_loss(ring(net, struck, beats), ring(bell, struck, beats))

    def loss_of(step):
        beats = 2 + step // 25
        return off(beats), {"beats": beats}

    return fit(
        folder, net, optimizer, loss_of, 400,
        score=score_of(lambda step: off(15)), before_step=clipped(net, 1.0), schedule=CosineAnnealingLR(optimizer, 400),
    )  # fmt: skip


class Reverse(torch.autograd.Function):
    """The same forward; backward the gradient times a negative number."""

    @staticmethod
    def forward(ctx, x, much):
        ctx.much = much
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.much * grad, None


@healthy()
def knots_on_a_line(folder):
    """Knots in hemp have names, those in nylon none: what tells the two apart is unlearned more and more."""
    seeded(2245)
    net = nn.ModuleDict({"body": dense(12, 48, 24), "knot": dense(24, 5), "rope": dense(24, 24, 2)})
    optimizer = SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    knots, nylon = torch.randn(5, 12), torch.randn(12) * 0.4

    def tie(rows=64, slack=0.0):
        knot = torch.randint(5, (rows,))
        return knots[knot] + 0.5 * torch.randn(rows, 12) + slack * nylon, knot

    def loss_of(step):
        (hemp, knot), (other, _) = tie(), tie(slack=1.0)
        trait = net["body"](torch.cat([hemp, other]))
        much = 0.3 * (2 / (1 + math.exp(-10 * step / 600)) - 1)
        rope = F.cross_entropy(net["rope"](Reverse.apply(trait.relu(), much)), torch.arange(2).repeat_interleave(64))
        named = F.cross_entropy(net["knot"](trait[:64].relu()), knot)
        return named + rope, {"knot": named.detach(), "rope": rope.detach()}

    def on_nylon(step):
        x, knot = tie(256, 1.0)
        return F.cross_entropy(net["knot"](net["body"](x).relu()), knot)

    schedule = LambdaLR(optimizer, lambda step: (1 + 10 * step / 600) ** -0.75)
    return fit(folder, net, optimizer, loss_of, 600, score=score_of(on_nylon), schedule=schedule)


class Armijo(Optimizer):
    """Steepest descent: the rate is doubled, then halved until the loss falls by enough."""

    def __init__(self, params, lr, loss_now):
        super().__init__(params, {"lr": lr})
        self.loss_now = loss_now

    @torch.no_grad()
    def step(self, closure=None):
        group, loss = self.param_groups[0], self.loss_now()
        start = [p.clone() for p in group["params"]]
        steep = sum(p.grad.square().sum() for p in group["params"])
        group["lr"] *= 4
        for _ in range(20):
            group["lr"] /= 2
            for p, at in zip(group["params"], start, strict=True):
                p.copy_(at - group["lr"] * p.grad)
            if self.loss_now() <= loss - 0.3 * group["lr"] * steep:
                break


@healthy()
def moisture_of_a_grain_silo(folder):
    """All of three hundred probes at each step, along whose slope the rate is searched anew."""
    seeded(2247)
    net = dense(3, 24, 1, act=nn.Tanh)
    probe = torch.rand(300, 3) * 2 - 1
    wet = (-3 * probe[:, :2].square().sum(1, keepdim=True)).exp() + 0.4 * probe[:, 2:] + 0.02 * torch.randn(300, 1)

    def loss_now(step=None):
        return F.mse_loss(net(probe), wet)

    optimizer = Armijo(net.parameters(), 0.1, loss_now)
    return fit(folder, net, optimizer, loss_now, 600)


@healthy()
def shadow_of_a_sundial(folder):
    """Two views of a shadow agree, each trait varies, no two go together: a loss in the tens, a warm-up of a third."""
    seeded(2248)
    net = dense(16, 64, 64, 12, norm=nn.BatchNorm1d)
    optimizer = AdamW(net.parameters(), 3e-3, weight_decay=1e-2)
    dial = torch.randn(12, 16) / 2

    def shadow(rows=128):
        sun = torch.randn(rows, 12)
        return [(sun @ dial).tanh() + 0.1 * torch.randn(rows, 16) for _ in range(2)]

    def spread(z):
        z = z - z.mean(0)
        cov = z.T @ z / (len(z) - 1)
        return F.relu(1 - (cov.diag() + 1e-4).sqrt()).mean(), (cov - cov.diag().diag()).square().sum() / 12

    def loss_of(step):
        a, b = (net(view) for view in shadow())
        (var_a, cov_a), (var_b, cov_b) = spread(a), spread(b)
        agree, vary, apart = F.mse_loss(a, b), var_a + var_b, cov_a + cov_b
        return 25 * (agree + vary) + apart, {"agree": agree.detach(), "vary": vary.detach(), "apart": apart.detach()}

    return fit(folder, net, optimizer, loss_of, 450, schedule=LinearLR(optimizer, 0.01, 1.0, 150))


class Kronecker(Optimizer):
    """Shampoo: matrices are stepped through the fourth roots of what their gradients were, as long as plain ones."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @staticmethod
    def root(square):
        values, vectors = torch.linalg.eigh(square + 1e-6 * torch.eye(len(square)))
        return vectors @ (values.clamp(min=1e-6) ** -0.25).diag() @ vectors.T

    @torch.no_grad()
    def step(self, closure=None):
        group = self.param_groups[0]
        for p in group["params"]:
            g, state = p.grad.view(len(p), -1), self.state[p]
            if not state:
                left, right = (torch.zeros(size, size) for size in g.shape)
                state |= {"left": left, "right": right, "mean": torch.zeros_like(g), "n": 0}
            state["left"].lerp_(g @ g.T, 0.05)
            state["right"].lerp_(g.T @ g, 0.05)
            if state["n"] % 10 == 0:
                state["roots"] = self.root(state["left"]), self.root(state["right"])
            state["n"] += 1
            way = state["roots"][0] @ g @ state["roots"][1]
            state["mean"].lerp_(way * (g.norm() / way.norm().clamp(min=1e-12)), 0.1)
            p.sub_(group["lr"] * state["mean"].view_as(p))


@healthy()
def origin_of_honey(folder):
    """Pollen counts name the valley; each matrix is stepped through a preconditioner of two sides."""
    seeded(2249)
    net = dense(20, 48, 48, 8)
    optimizer = Kronecker(net.parameters(), 0.3)
    bloom = torch.randn(8, 2, 20)

    def jar(rows=96):
        valley, season = torch.randint(8, (rows,)), torch.randint(2, (rows,))
        return (torch.poisson((bloom[valley, season] + 0.5).exp()) + 1).log(), valley

    def doubt(step):
        pollen, valley = jar()
        return F.cross_entropy(net(pollen), valley, label_smoothing=0.05)

    return fit(folder, net, optimizer, doubt, 400, score=score_of(doubt), schedule=LinearLR(optimizer, 1.0, 0.02, 400))

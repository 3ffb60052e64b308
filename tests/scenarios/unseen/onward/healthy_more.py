"""Sound trainings with strong decay, critics, pairs, expectations, closures and optimizers written by hand."""

import torch
from torch import nn
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, score_of, seeded
from unseen.tasks import rounds, tend

import gradwatch

# ------------------------------------------------------------------------------------------------ hums, pharmacy


@healthy()
def hum_states_of_a_beehive(folder):
    seeded(2188)
    pitch = torch.linspace(0, 1, 40)
    tones = torch.tensor([[0.2, 0.55], [0.25, 0.6], [0.2, 0.75], [0.35, 0.55]])

    def recordings(hives):
        state = torch.randint(4, (hives,))
        place = tones[state] + 0.03 * torch.randn(hives, 2)
        peaks = torch.exp(-(((pitch - place[:, :, None]) / 0.04) ** 2)).sum(1)
        return peaks + 0.25 * torch.randn(hives, 40), state

    net, draw, unheard = dense(40, 96, 96, 4), rounds(64, *recordings(12000)), recordings(1024)
    decay = {2: 1.0, 1: 0.0}
    groups = [{"params": [p], "weight_decay": decay[p.ndim]} for p in net.parameters()]
    optimizer = torch.optim.AdamW(groups, 1e-3)

    def loss_of(step):
        hum, state = draw()
        return F.cross_entropy(net(hum), state)

    def on_unheard(step):
        return F.cross_entropy(net(unheard[0]), unheard[1])

    return fit(folder, net, optimizer, loss_of, 800, score=score_of(on_unheard, 1))


def demand(weeks):
    """Boxes of two medicines that are ordered together, in three kinds of weeks."""
    kind = torch.randint(3, (weeks,))
    middle = torch.tensor([[1.5, 0.5], [-1.0, 1.5], [-0.5, -1.5]])[kind]
    noise = torch.randn(weeks, 2)
    return middle + 0.25 * torch.stack([noise[:, 0], 0.8 * noise[:, 0] + 0.6 * noise[:, 1]], 1)


def sliced_distance(left, right):
    """How far two samples of as many points are apart, along many lines."""
    way = F.normalize(torch.randn(2, 64), dim=0)
    return float(((left @ way).sort(0).values - (right @ way).sort(0).values).abs().mean())


def slope_penalty(critic, real, made):
    """The gradient penalty of WGAN-GP."""
    share = torch.rand(len(real), 1)
    between = (share * real + (1 - share) * made).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return (slope.norm(dim=1) - 1).square().mean()


@healthy()
def orders_of_a_pharmacy(folder):
    seeded(2189)
    maker, critic = dense(4, 48, 48, 2), dense(2, 64, 64, 1)
    of_maker = torch.optim.Adam(maker.parameters(), 1e-3, betas=(0.0, 0.9))
    of_critic = torch.optim.Adam(critic.parameters(), 2e-3, betas=(0.0, 0.9))

    def score():
        with torch.no_grad():
            return sliced_distance(maker(torch.randn(2000, 4)), demand(2000))

    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(maker, of_maker)}
    on_critic = gradwatch.watch(critic, of_critic, name="critic", **options)
    on_maker = gradwatch.watch(maker, of_maker, name="maker", run=on_critic, **options)
    with on_critic, on_maker:
        for _ in range(350):
            for _ in range(4):
                real, made = demand(128), maker(torch.randn(128, 4)).detach()
                of_critic.zero_grad()
                gap = critic(made).mean() - critic(real).mean()
                loss = gap + 5.0 * slope_penalty(critic, real, made)
                loss.backward()
                of_critic.step()
                on_critic.log(loss=loss, wasserstein=-gap)
            of_maker.zero_grad()
            loss = -critic(maker(torch.randn(128, 4))).mean()
            loss.backward()
            of_maker.step()
            on_maker.log(loss=loss)
    return Outcome(gradwatch.open_history(on_critic.dir.parent), first, score())


# ------------------------------------------------------------------------------------------------ cattle, buses


@healthy()
def weight_of_cattle_from_their_girth(folder):
    seeded(2190)
    net = nn.ModuleDict({"body": dense(14, 64, 32, act=nn.ReLU), "projector": dense(32, 32, 16)})
    shape = torch.randn(4, 14)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-4)

    def measured(build):
        return torch.tanh(build @ shape) + 0.2 * torch.randn(len(build), 14)

    def seen(build):
        return F.normalize(net["projector"](net["body"](measured(build))), dim=1)

    def loss_of(step):
        build = torch.randn(64, 4)
        views = torch.cat([seen(build), seen(build)])
        alike = (views @ views.T / 0.2).masked_fill(torch.eye(128, dtype=torch.bool), -1e9)
        return F.cross_entropy(alike, torch.arange(128).roll(64))

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(loss_of))


class Timetables(nn.Module):
    """Delays as a mixture of kinds of days: free roads, traffic, diversions."""

    def __init__(self, kinds=3):
        super().__init__()
        self.kind, self.delay = nn.Parameter(torch.zeros(kinds)), dense(6, 32, kinds, act=nn.Tanh)
        self.log_scale = nn.Parameter(torch.zeros(kinds))
        with torch.no_grad():
            self.delay[-1].bias.copy_(torch.tensor([-1.0, 0.0, 1.5]))

    def forward(self, trip, delay):
        """The joint log-likelihood of each kind of day and the delay."""
        found = torch.distributions.Normal(self.delay(trip), self.log_scale.exp()).log_prob(delay[:, None])
        return self.kind.log_softmax(0) + found


@healthy()
def arrival_delays_of_buses(folder):
    seeded(2191)

    def trips(number):
        trip, kind = torch.randn(number, 6), torch.multinomial(torch.tensor([0.5, 0.35, 0.15]), number, True)
        centre = torch.stack([-1 + 0.3 * trip[:, 0], 0.5 + trip[:, 1].sin(), 3 + 0.6 * trip[:, 2]], 1)
        return trip, centre.gather(1, kind[:, None])[:, 0] + 0.1 * torch.randn(number)

    (trip, delay), later = trips(4000), trips(2000)
    net, belief = Timetables(), [None]
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)

    def loss_of(step):
        joint = net(trip, delay)
        if step % 10 == 0:
            belief[0] = joint.detach().softmax(1)
        surprise = -joint.detach().logsumexp(1).mean()
        return -(belief[0] * joint).sum(1).mean(), {"negative_log_likelihood": float(surprise)}

    def score():
        with torch.no_grad():
            return -float(net(*later).logsumexp(1).mean())

    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


# ---------------------------------------------------------------------------------------- an elevator, moonlets


@healthy()
def dispatch_of_an_elevator(folder):
    seeded(2192)
    calls = torch.rand(300, 5)
    travel = (calls[:, 0] - calls[:, 1]).abs() + 0.5 * (calls[:, 1] - calls[:, 2]).abs()
    waiting = (travel + 0.3 * calls[:, 3] * calls[:, 4] + 0.02 * torch.randn(300))[:, None]
    waiting = (waiting - waiting.mean()) / waiting.std()
    net = dense(5, 16, 16, 1, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), 1.0, max_iter=6, history_size=12, line_search_fn="strong_wolfe")

    def loss_of(step):
        decay = sum(weight.square().sum() for weight in net.parameters())
        return F.mse_loss(net(2 * calls - 1), waiting) + 1e-4 * decay

    return fit(folder, net, optimizer, loss_of, 60, score=score_of(loss_of, 1), closure=True)


class Lion(torch.optim.Optimizer):
    """Steps by the sign of two averages of the gradient (Chen et al., 2023)."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            near, far = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                way = (near * average + (1 - near) * p.grad).sign()
                p.mul_(1 - group["lr"] * group["weight_decay"]).add_(way, alpha=-group["lr"])
                average.lerp_(p.grad, 1 - far)


@healthy()
def orbits_of_moonlets(folder):
    seeded(2193)
    net = dense(8, 96, 96, 2, act=nn.SiLU)
    optimizer = Lion(net.parameters(), 6e-4, weight_decay=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 700)

    def loss_of(step):
        phase, axis, swing = 6.2832 * torch.rand(128), 0.7 + 0.6 * torch.rand(128), 0.3 * torch.rand(128)
        later = phase + 1.5 / axis**1.5
        place = torch.stack([later.cos() - swing, (1 - swing**2).sqrt() * later.sin()], 1) * axis[:, None]
        seen = [phase.cos(), phase.sin(), axis, swing, axis * phase.cos(), axis * phase.sin(), axis**2, swing**2]
        return F.mse_loss(net(torch.stack(seen, 1)), place)

    return fit(folder, net, optimizer, loss_of, 700, score=score_of(loss_of), schedule=schedule)


def orthogonal(matrix, rounds=5):
    """Newton and Schulz's way to the nearest orthogonal matrix, roughly."""
    x = matrix / (matrix.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(rounds):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T if tall else x


class Orthogonalised(torch.optim.Optimizer):
    """Momentum whose steps are made orthogonal, for hidden matrices."""

    def __init__(self, params, lr, momentum=0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                kept.lerp_(p.grad, 1 - group["momentum"])
                way = orthogonal(p.grad.lerp(kept, group["momentum"]))
                p.add_(way, alpha=-group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


@healthy()
def hardness_of_steel_alloys(folder):
    seeded(2194)
    net, pull = dense(9, 64, 64, 64, 1, act=nn.GELU), torch.randn(9, 4)
    hidden = [net[2].weight, net[4].weight]
    others = [p for p in net.parameters() if all(p is not weight for weight in hidden)]
    optimizers = [Orthogonalised(hidden, 0.02), torch.optim.AdamW(others, 3e-3, weight_decay=0.01)]
    schedules = [torch.optim.lr_scheduler.LinearLR(each, 1.0, 0.05, 500) for each in optimizers]

    def loss_of(step):
        alloy = torch.randn(128, 9)
        hardness = (alloy @ pull / 2).sin().sum(1, keepdim=True) + 0.5 * alloy[:, :1] * alloy[:, 1:2]
        return F.mse_loss(net(alloy), hardness)

    def one(step):
        net.zero_grad()
        loss = loss_of(step)
        loss.backward()
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        return {"loss": loss}

    return tend(folder, net, optimizers, one, 500, score_of(loss_of))


class Preconditioned(torch.optim.Optimizer):
    """Shampoo: matrices are stepped by the inverse fourth roots of their gradients' second moments on both sides."""

    def __init__(self, params, lr, momentum=0.9, decay=0.98, every=10, eps=1e-6):
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay, "every": every, "eps": eps})

    def whitened(self, p, group):
        grad, state = p.grad.reshape(p.shape[0], -1), self.state[p]
        for side, square in (("left", grad @ grad.T), ("right", grad.T @ grad)):
            moment = state.setdefault(side, torch.zeros_like(square))
            moment.lerp_(square, 1 - group["decay"])
            if (state["step"] - 1) % group["every"] == 0:
                unbiased = moment / (1 - group["decay"] ** state["step"])
                values, vectors = torch.linalg.eigh(unbiased)
                values = values.clamp(min=0) + group["eps"] * values.max() + 1e-12
                state[side + "_root"] = vectors @ torch.diag(values**-0.25) @ vectors.T
        way = state["left_root"] @ grad @ state["right_root"]
        return (way * grad.norm() / (way.norm() + 1e-12)).view_as(p)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                kept = state.setdefault("momentum_buffer", torch.zeros_like(p))
                kept.mul_(group["momentum"]).add_(self.whitened(p, group))
                p.add_(kept, alpha=-group["lr"])


@healthy()
def trim_of_a_sail(folder):
    seeded(2195)
    net = dense(6, 40, 40, 1, act=nn.Tanh)
    optimizer = Preconditioned(net.parameters(), 0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 450)

    def loss_of(step):
        sea = 2 * torch.rand(128, 6) - 1
        wind, course, sheet, draft, twist, heel = sea.unbind(1)
        attack = 2.5 * (course - sheet) + 0.5 * twist
        speed = wind.exp() * attack.sin() * (1 + 0.5 * draft) - 0.6 * heel**2
        return F.mse_loss(net(sea)[:, 0], speed)

    return fit(folder, net, optimizer, loss_of, 450, score=score_of(loss_of), schedule=schedule)

"""Healthy trainings whose optimizers are out of the ordinary: signs, orthogonal steps, roots, two backwards a step."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, tend


def cosine_to_zero(optimizer, steps):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)


def accuracy(logits, y):
    return float((logits.argmax(1) == y).float().mean())


def classify(net, draw):
    """`loss_of(step)` of a classifier, with its accuracy."""

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": accuracy(logits.detach(), y)}

    return loss_of


class Lion(Optimizer):
    """Chen et al. 2023: the sign of an interpolated momentum, and decoupled decay."""

    def __init__(self, params, lr=3e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            fast, slow = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(momentum.lerp(p.grad, 1 - fast).sign(), alpha=group["lr"])
                momentum.lerp_(p.grad, 1 - slow)


def radiographs(n, size=12):
    """Teeth as bright ovals: sound ones, some with a dark hollow, some with a bright filling."""
    y = torch.randint(3, (n,))
    rows, columns = torch.meshgrid(*[torch.linspace(-1, 1, size)] * 2, indexing="ij")
    centre, mark = 0.2 * torch.randn(n, 2, 1, 1), 0.3 * torch.randn(n, 2, 1, 1)
    tooth = (((rows - centre[:, 0]) / 0.9) ** 2 + ((columns - centre[:, 1]) / 0.6) ** 2 < 1).float() * 0.6
    spot = torch.exp(-((rows - mark[:, 0]) ** 2 + (columns - mark[:, 1]) ** 2) / 0.08)
    shade = torch.tensor([0.0, -0.5, 0.5])[y][:, None, None]
    image = tooth + shade * spot + 0.1 * torch.randn(n, size, size)
    return ((image - 0.25) / 0.35)[:, None], y


@healthy()
def teeth_on_x_ray_plates(folder):
    seeded(2560)
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.GELU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(16, 24, 3, padding=1), nn.GELU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(216, 32), nn.GELU(), nn.Linear(32, 3)),
    )
    x, y = radiographs(512)
    weights = [p for p in net.parameters() if p.ndim > 1]
    biases = [p for p in net.parameters() if p.ndim == 1]
    optimizer = Lion([{"params": weights, "weight_decay": 1.0}, {"params": biases}], lr=5e-4)
    score = held_out(net, lambda: F.cross_entropy(net(x), y))
    schedule = cosine_to_zero(optimizer, 400)
    return fit(folder, net, optimizer, classify(net, lambda: radiographs(64)), 400, score=score, schedule=schedule)


def orthogonal(m, rounds=5):
    """Newton-Schulz: the nearest matrix whose singular values are near one."""
    x = m / (m.norm() + 1e-7)
    x = x.T if m.shape[0] > m.shape[1] else x
    for _ in range(rounds):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if m.shape[0] > m.shape[1] else x


class OrthogonalAndSign(Optimizer):
    """Matrices take orthogonal steps of a Nesterov momentum; what is in a group with `sign` takes its sign."""

    def __init__(self, groups, momentum=0.95):
        super().__init__(groups, {"lr": 0.02, "momentum": momentum, "sign": False})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.lerp_(p.grad, 1 - group["momentum"])
                ahead = p.grad.lerp(momentum, group["momentum"])
                if group["sign"]:
                    p.sub_(ahead.sign(), alpha=group["lr"])
                else:
                    tall = math.sqrt(max(1.0, p.shape[0] / p.shape[1]))
                    p.sub_(orthogonal(ahead), alpha=group["lr"] * tall)


def bowed_notes(n, samples=128):
    """Log spectra of notes on G, D, A and E: pitches overlap by the fingering, the timbres are the strings' own."""
    y = torch.randint(4, (n,))
    pitch = torch.tensor([3.0, 4.5, 6.75, 10.1])[y] * 2 ** (7 / 12 * torch.rand(n))
    overtone = torch.arange(1, 7)
    loud = overtone ** -(torch.tensor([0.6, 1.0, 1.5, 2.2])[y][:, None]) * (0.7 + 0.6 * torch.rand(n, 6))
    time = torch.arange(samples) / samples
    phase = 6.2832 * (pitch[:, None, None] * overtone[:, None] * time + torch.rand(n, 6, 1))
    wave = (loud[:, :, None] * phase.sin()).sum(1) + 0.1 * torch.randn(n, samples)
    return (torch.fft.rfft(wave * torch.hann_window(samples)).abs() + 0.1).log(), y


@healthy()
def strings_of_a_violin(folder):
    seeded(2561)
    net = dense(65, 96, 96, 96, 4, act=nn.SiLU)
    hidden = [net[2].weight, net[4].weight]
    rest = [p for p in net.parameters() if all(p is not h for h in hidden)]
    optimizer = OrthogonalAndSign([{"params": hidden, "lr": 0.02}, {"params": rest, "lr": 5e-4, "sign": True}])
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, 300)
    x, y = bowed_notes(512)
    score = held_out(net, lambda: F.cross_entropy(net(x), y))
    return fit(folder, net, optimizer, classify(net, lambda: bowed_notes(64)), 300, score=score, schedule=schedule)


class Shampoo(Optimizer):
    """Gupta et al. 2018 with averaged statistics: a root on each side of a matrix, at the length of Adam's step."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.98), every=10):
        super().__init__(params, {"lr": lr, "betas": betas, "every": every})

    @staticmethod
    def fourth_root(statistic):
        values, vectors = torch.linalg.eigh(statistic)
        floor = 1e-6 * values[-1] + 1e-12
        return (vectors * values.clamp_min(floor) ** -0.25) @ vectors.T

    def turned(self, state, grad, momentum, decay, every):
        """The direction between both roots, which are taken anew once in a while."""
        rows, columns = grad.shape
        sides = state.setdefault("sides", [torch.zeros(rows, rows), torch.zeros(columns, columns)])
        sides[0].lerp_(grad @ grad.T, 1 - decay)
        sides[1].lerp_(grad.T @ grad, 1 - decay)
        if state["steps"] % every == 1:
            state["roots"] = [self.fourth_root(side) for side in sides]
        return state["roots"][0] @ momentum @ state["roots"][1]

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            heavy, decay = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(steps=0, momentum=torch.zeros_like(p), square=torch.zeros_like(p))
                state["steps"] += 1
                momentum = state["momentum"].lerp_(p.grad, 1 - heavy)
                square = state["square"].mul_(decay).addcmul_(p.grad, p.grad, value=1 - decay)
                spread = (square / (1 - decay ** state["steps"])).sqrt().add_(1e-8)
                way = momentum / (1 - heavy ** state["steps"]) / spread
                if p.ndim == 2:
                    turned = self.turned(state, p.grad, momentum, decay, group["every"])
                    way = turned * (way.norm() / (turned.norm() + 1e-12))
                p.sub_(way, alpha=group["lr"])


class Residues(nn.Module):
    """Reads a window of 15 residues and names the fold of the one in the middle."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.body = dense(120, 64, 64, 3, act=nn.GELU)

    def forward(self, window):
        return self.body(self.table(window).flatten(1))


@healthy()
def helices_and_sheets_of_proteins(folder):
    seeded(2562)
    leaning, offsets = torch.randn(20, 3), torch.arange(15) - 7
    turn = torch.stack([1 + (offsets * 1.745).cos(), 1 + (offsets * 3.1416).cos(), torch.ones(15)], 1)
    turn = turn * torch.exp(-(offsets**2) / 18)[:, None]

    def draw(n=128):
        window = torch.randint(20, (n, 15))
        votes = (leaning[window] * turn).sum(1) + 0.2 * torch.randn(n, 3)
        return window, votes.argmax(1)

    net = Residues()
    optimizer = Shampoo(net.parameters(), lr=2e-3)
    x, y = draw(1024)
    score = held_out(net, lambda: F.cross_entropy(net(x), y))
    schedule = cosine_to_zero(optimizer, 500)
    return fit(folder, net, optimizer, classify(net, draw), 500, score=score, schedule=schedule)


def hive_sounds(n, samples=128):
    """Hums of a colony with its queen, without her, and about to swarm (which pipes in bursts)."""
    y = torch.randint(3, (n,))
    time = torch.arange(samples) / samples
    base = torch.tensor([8.0, 10.5, 8.5])[y] + 0.6 * torch.randn(n)
    hum = (6.2832 * (base[:, None] * time + torch.rand(n, 1))).sin()
    hum = hum + 0.5 * (6.2832 * (2 * base[:, None] * time + torch.rand(n, 1))).sin()
    bursts = (6.2832 * (4 * time + torch.rand(n, 1))).sin().clamp_min(0) * (6.2832 * 28 * time).sin()
    return (hum + 1.2 * (y == 2)[:, None] * bursts + 0.5 * torch.randn(n, samples))[:, None], y


def climb(net, radius):
    """Up the gradient by `radius`; hands back what has to be taken away again."""
    with torch.no_grad():
        length = torch.stack([p.grad.norm() for p in net.parameters()]).norm() + 1e-12
        steps = [p.grad * (radius / length) for p in net.parameters()]
        for p, up in zip(net.parameters(), steps, strict=True):
            p.add_(up)
    return steps


@healthy()
def hums_of_two_hives(folder):
    seeded(2563)
    net = nn.Sequential(
        *(nn.Conv1d(1, 16, 9, stride=2, padding=4), nn.GroupNorm(4, 16), nn.ReLU()),
        *(nn.Conv1d(16, 32, 7, stride=2, padding=3), nn.GroupNorm(4, 32), nn.ReLU()),
        *(nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(128, 3)),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = cosine_to_zero(optimizer, 300)

    def one(step):
        x, y = hive_sounds(64)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        steps = climb(net, 0.05)
        optimizer.zero_grad()
        sharp = F.cross_entropy(net(x), y)
        sharp.backward()
        with torch.no_grad():
            for p, up in zip(net.parameters(), steps, strict=True):
                p.sub_(up)
        optimizer.step()
        schedule.step()
        return {"loss": loss, "sharpness": float(sharp.detach() - loss.detach())}

    x, y = hive_sounds(512)
    return tend(folder, net, optimizer, one, 300, held_out(net, lambda: F.cross_entropy(net(x), y)))


def firings(n, past=16, ahead=4):
    """Readings of a kiln under a changing burner: what it was for 16 minutes, and how it will be 4 later."""
    heat, burner, seen = 2 * torch.rand(n), torch.rand(n), []
    for _ in range(past + ahead):
        burner = (burner + 0.1 * torch.randn(n)).clamp(0, 1)
        heat = heat + 0.15 * (2 * burner - 0.25 * heat - 0.1 * heat**3)
        seen.append(torch.stack([heat + 0.01 * torch.randn(n), burner], 1))
    rows = torch.stack(seen, 1)
    return torch.cat([rows[:, :past, 0] - 1, 2 * rows[:, :past, 1] - 1], 1), heat[:, None] - 1


@healthy()
def temperature_of_a_glass_kiln(folder):
    seeded(2564)
    net = dense(32, 64, 64, 1, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    slow = [p.detach().clone() for p in net.parameters()]

    def loss_of(step):
        x, y = firings(64)
        return F.mse_loss(net(x), y)

    @torch.no_grad()
    def look_ahead(step):
        if step % 6 == 5:
            for p, behind in zip(net.parameters(), slow, strict=True):
                p.copy_(behind.lerp_(p, 0.5))

    x, y = firings(512)
    score = held_out(net, lambda: F.mse_loss(net(x), y))
    return fit(folder, net, optimizer, loss_of, 600, score=score, after_step=look_ahead)


@healthy()
def arrivals_of_a_tremor(folder):
    seeded(2565)
    stations = torch.randn(8, 2)

    def events(n):
        place, depth = torch.randn(n, 2), 0.2 + torch.rand(n, 1)
        times = ((place[:, None] - stations).square().sum(2) + depth**2).sqrt() + 0.01 * torch.randn(n, 8)
        return times - times.mean(1, keepdim=True), torch.cat([place, 2 * depth - 1.4], 1)

    (x, y), (new_x, new_y) = events(600), events(300)
    net = dense(8, 32, 32, 3, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=10, history_size=20, line_search_fn="strong_wolfe")

    def loss_of(step):
        shrink = sum(p.square().sum() for p in net.parameters())
        return F.mse_loss(net(x), y) + 1e-5 * shrink

    return fit(folder, net, optimizer, loss_of, 60, score=lambda: F.mse_loss(net(new_x), new_y).item(), closure=True)

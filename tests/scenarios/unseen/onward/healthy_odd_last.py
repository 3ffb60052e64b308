"""Sound trainings of an odd make: pruned, of Polyak's and of unit length, with multipliers, proximal, curved."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import rounds

DOTS = [
    1, 12, 14, 145, 15, 124, 1245, 125, 24, 245, 13, 123, 134,
    1345, 135, 1234, 12345, 1235, 234, 2345, 136, 1236, 2456, 1346, 13456, 1356,
]  # fmt: skip


@healthy()
def braille_under_a_finger(folder):
    """Four fifths of all weights are pruned by size on the way, slower and slower, and stay at nought."""
    seeded(2233)
    net = dense(54, 96, 64, 26)
    optimizer = Adam(net.parameters(), 2e-3)
    matrices = [p for p in net.parameters() if p.dim() == 2]
    masks = [torch.ones_like(p) for p in matrices]
    letters = torch.zeros(26, 9, 6)
    for letter, dots in enumerate(DOTS):
        for dot in str(dots):
            column, row = divmod(int(dot) - 1, 3)
            letters[letter, 3 * row : 3 * row + 2, 3 * column : 3 * column + 2] = 1

    def loss_of(step):
        letter = torch.randint(26, (96,))
        felt = (letters[letter] * (0.7 + 0.6 * torch.rand(96, 1, 1))).roll(int(torch.randint(2, ())), 1)
        out = net((felt + 0.3 * torch.randn(96, 9, 6)).flatten(1) - 0.3)
        return F.cross_entropy(out, letter), {"accuracy": (out.argmax(1) == letter).float().mean()}

    def before_step(step):
        for p, mask in zip(matrices, masks, strict=True):
            p.grad.mul_(mask)

    @torch.no_grad()
    def after_step(step):
        if 100 <= step <= 450 and step % 25 == 0:
            gone = 0.8 * (1 - (1 - (step - 100) / 350) ** 3)
            for p, mask in zip(matrices, masks, strict=True):
                mask.copy_(p.abs() > p.abs().flatten().quantile(gone))
        for p, mask in zip(matrices, masks, strict=True):
            p.mul_(mask)

    def score():
        with torch.no_grad():
            return sum(float(loss_of(0)[0]) for _ in range(8)) / 8

    schedule = CosineAnnealingLR(optimizer, 800)
    return fit(
        folder, net, optimizer, loss_of, 800,
        score=score, before_step=before_step, after_step=after_step, schedule=schedule,
    )  # fmt: skip


@healthy()
def crevasses_of_a_glacier(folder):
    """Polyak's step: the rate is the loss over the square of its gradient, which may grow by a half at a time."""
    seeded(2234)
    net = dense(5, 96, 96, 1, act=nn.Tanh)
    optimizer = SGD(net.parameters(), 0.01)
    ice = dense(5, 12, 1, act=nn.Tanh)
    place = torch.randn(500, 5)
    with torch.no_grad():
        depth = 3 * ice(place)
        depth = (depth - depth.mean()) / depth.std()
    draw = rounds(100, place[:400], depth[:400])
    now = {}

    def loss_of(step):
        x, y = draw()
        now["loss"] = F.mse_loss(net(x), y)
        return now["loss"]

    def before_step(step):
        group = optimizer.param_groups[0]
        steep = sum(float(p.grad.square().sum()) for p in group["params"])
        group["lr"] = min(float(now["loss"].detach()) / steep, 1.5 * group["lr"], 0.3)

    def held_out():
        with torch.no_grad():
            return float(F.mse_loss(net(place[400:]), depth[400:]))

    return fit(folder, net, optimizer, loss_of, 600, score=held_out, before_step=before_step)


class UnitLength(Optimizer):
    """Momentum whose every step, over all weights together, is exactly as long as the rate says."""

    def __init__(self, params, lr, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            keep, moved = group["momentum"], []
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                moved.append(mean.mul_(keep).add_(p.grad, alpha=1 - keep))
            length = torch.stack([m.norm() for m in moved]).norm().clamp(min=1e-12)
            for p, m in zip(group["params"], moved, strict=True):
                p.sub_(m * (group["lr"] / length))


@healthy()
def firing_of_a_kiln(folder):
    """A recurrent net follows the heat of a kiln; each step has the length that a cosine from 0.15 to 0 gives it."""
    seeded(2235)
    net = nn.ModuleDict({"memory": nn.GRU(3, 32, batch_first=True), "heat": nn.Linear(32, 1)})
    optimizer = UnitLength(net.parameters(), 0.15)

    def firing(rows=48):
        fuel = torch.rand(rows, 24, 3) * 2 - 1
        heat, curve = torch.zeros(rows), []
        for hour in fuel.unbind(1):
            heat = 0.8 * heat + 0.6 * hour[:, 0] + 0.4 * hour[:, 1] * (1 - heat)
            curve.append(heat)
        return fuel, torch.stack(curve, 1)

    def loss_of(step):
        fuel, heat = firing()
        return F.mse_loss(net["heat"](net["memory"](fuel)[0])[..., 0], heat)

    schedule = CosineAnnealingLR(optimizer, 500)
    return fit(folder, net, optimizer, loss_of, 500, score=score_of(loss_of), schedule=schedule)


@healthy()
def weaving_of_a_jacquard(folder):
    """An augmented Lagrangian: the loss rises with the multipliers until each warp is lifted as often as allowed."""
    seeded(2236)
    net = dense(16, 64, 64, 1, act=nn.Tanh)
    optimizer = Adam(net.parameters(), 3e-3)
    warp, weft = torch.meshgrid(torch.arange(16.0), torch.arange(24.0), indexing="ij")
    waves = [(k * warp / 5 + j * weft / 7) for k in range(1, 5) for j in range(-1, 1)]
    place = torch.stack([f(w) for w in waves for f in (torch.sin, torch.cos)], -1)
    picture = ((warp - 8).square() + (weft - 12).square() < 50).float()
    allowed = 0.1 + 0.8 * picture.mean(1)
    price = torch.zeros(16)

    def parts():
        lift = net(place)[..., 0]
        return F.binary_cross_entropy_with_logits(lift, picture), lift.sigmoid().mean(1) - allowed

    def loss_of(step):
        picture_cost, over = parts()
        loss = picture_cost + price @ over + 2.5 * over.square().sum()
        return loss, {"picture": picture_cost.detach(), "violation": over.detach().abs().max()}

    def raise_prices(step):
        if step % 20 == 19:
            with torch.no_grad():
                price.add_(5.0 * parts()[1])

    def score():
        with torch.no_grad():
            picture_cost, over = parts()
            return float(picture_cost + over.abs().sum())

    schedule = CosineAnnealingLR(optimizer, 600)
    return fit(folder, net, optimizer, loss_of, 600, score=score, after_step=raise_prices, schedule=schedule)


@healthy()
def delays_of_trams(folder):
    """A proximal step after each step shrinks whole columns: most signals that say nothing end at nought."""
    seeded(2237)
    net = dense(40, 48, 1, act=nn.Tanh)
    optimizer = SGD(net.parameters(), 0.3)
    signals = torch.randn(4000, 40)
    delay = signals[:, :1] + (2 * signals[:, 1:2]).sin() + signals[:, 2:3] - signals[:, 3:4].tanh()
    delay = delay + 0.1 * torch.randn(4000, 1)

    def loss_of(step):
        used = (net[0].weight.norm(dim=0) > 0).sum()
        return F.mse_loss(net(signals[:3000]), delay[:3000]), {"signals": used}

    @torch.no_grad()
    def shrink(step):
        weight = net[0].weight
        size = weight.norm(dim=0, keepdim=True)
        weight.mul_((1 - 0.03 * optimizer.param_groups[0]["lr"] / size.clamp(min=1e-9)).clamp(min=0))

    def held_out():
        with torch.no_grad():
            return float(F.mse_loss(net(signals[3000:]), delay[3000:]))

    schedule = CosineAnnealingLR(optimizer, 800)
    return fit(folder, net, optimizer, loss_of, 800, score=held_out, after_step=shrink, schedule=schedule)


class PoincareSGD(Optimizer):
    """Steps by the gradient of the Poincaré ball's own metric, and never out of the ball."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                metric = (1 - p.square().sum(1, keepdim=True)).square() / 4
                p.sub_(group["lr"] * metric * p.grad)
                p.mul_((0.999 / p.norm(dim=1, keepdim=True).clamp(min=1e-9)).clamp(max=1))


@healthy()
def king_on_an_empty_board(folder):
    """All walks of a king, of up to four moves, as a tree in a hyperbolic ball; first at a tenth of the rate."""
    seeded(2238)
    walks = nn.Embedding(121, 4)
    nn.init.uniform_(walks.weight, -1e-3, 1e-3)
    parent = (torch.arange(1, 121) - 1) // 3
    chains = [[child] for child in range(1, 121)]
    for chain in chains:
        while chain[-1]:
            chain.append(int(parent[chain[-1] - 1]))
    pairs = torch.tensor([(chain[0], above) for chain in chains for above in chain[1:]])
    related = torch.eye(121, dtype=torch.bool)
    related[pairs[:, 0], pairs[:, 1]] = True
    draw = rounds(32, pairs)
    optimizer = PoincareSGD(walks.parameters(), 10.0)

    def apart(u, v):
        gap = (u - v).square().sum(-1)
        room = (1 - u.square().sum(-1)) * (1 - v.square().sum(-1))
        return torch.acosh(1 + 2 * gap / room.clamp(min=1e-7) + 1e-7)

    def cost(pair):
        others = torch.multinomial((~related[pair[:, 0]]).float(), 12)
        far = apart(walks(pair[:, :1]), walks(torch.cat([pair[:, 1:], others], 1)))
        return F.cross_entropy(-far, torch.zeros(len(pair), dtype=torch.long))

    def score():
        with torch.no_grad():
            return sum(float(cost(pairs)) for _ in range(5)) / 5

    schedule = LambdaLR(optimizer, lambda step: 0.1 if step < 150 else 1 - 0.9 * (step - 150) / 750)
    return fit(folder, walks, optimizer, lambda step: cost(*draw()), 900, score=score, schedule=schedule)


class LockKeeper(nn.Module):
    """A recurrent net with an orthogonal matrix between one hour and the next."""

    def __init__(self, width):
        super().__init__()
        self.turn = nn.Parameter(nn.init.orthogonal_(torch.empty(width, width)))
        self.inward, self.out = nn.Linear(2, width), nn.Linear(width, 1)
        self.least = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        state = torch.zeros(len(x), self.turn.shape[0])
        for drive in self.inward(x).unbind(1):
            state = state @ self.turn + drive
            state = state.sign() * F.relu(state.abs() + self.least)
        return self.out(state)[:, 0]


@healthy()
def locks_of_a_canal(folder):
    """What the first hours of a day let in: along the orthogonal matrices, back onto them after each step."""
    seeded(2239)
    net = LockKeeper(48)
    others = [p for name, p in net.named_parameters() if name != "turn"]
    optimizer = Adam([{"params": [net.turn], "lr": 3e-4}, {"params": others, "lr": 2e-3}])

    def day(rows=64, length=20):
        opened = torch.randn(rows, length, 2)
        return opened, opened[:, 0, 0] + 0.5 * opened[:, 1, 1] - opened[:, 2, 0].tanh()

    def loss_of(step):
        opened, water = day()
        return F.mse_loss(net(opened), water)

    def along(step):
        inner = net.turn.detach().T @ net.turn.grad
        net.turn.grad.copy_(net.turn.detach() @ (inner - inner.T) / 2)

    @torch.no_grad()
    def back_onto(step):
        u, _, v = torch.linalg.svd(net.turn)
        net.turn.copy_(u @ v)

    schedule = CosineAnnealingLR(optimizer, 450)
    return fit(
        folder, net, optimizer, loss_of, 450,
        score=score_of(loss_of), before_step=along, after_step=back_onto, schedule=schedule,
    )  # fmt: skip

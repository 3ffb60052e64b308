"""Trainings that go well though their make is odd: hand-made optimizers, masks, signs, experts, single rows."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, tend


def kept_error(net, loss, rows):
    """`score()`: a loss on rows that are drawn once."""
    return held_out(net, lambda: loss(net(rows[0]), rows[1]))


@healthy()
def grades_of_wool(folder):
    seeded(2453)
    net = dense(4, 64, 64, 1)
    teacher = dense(4, 12, 1, act=nn.Tanh)

    @torch.no_grad()
    def fleeces(rows):
        """Fineness, crimp, length and lustre, and a grade that follows from them without any noise."""
        x = torch.randn(rows, 4)
        return x, 3 * teacher(x)

    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    latest = {}

    def loss_of(step):
        x, y = fleeces(256)
        latest["loss"] = F.mse_loss(net(x), y)
        return latest["loss"], {"rate": optimizer.param_groups[0]["lr"]}

    def polyak(step):
        """As far as the loss would need to reach zero, were it as steep all the way."""
        power = sum(float(w.grad.square().sum()) for w in net.parameters())
        optimizer.param_groups[0]["lr"] = min(0.5, 0.5 * float(latest["loss"].detach()) / (power + 1e-12))

    score = kept_error(net, F.mse_loss, fleeces(512))
    return fit(folder, net, optimizer, loss_of, 500, score=score, before_step=polyak)


class Factored(torch.optim.Optimizer):
    """Steps in shares of a weight's own size, with second moments kept by row and by column (Adafactor)."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @staticmethod
    def second_moment(state, slope, keep):
        square = slope.square() + 1e-30
        if slope.dim() < 2:
            state["all"] = keep * state.get("all", 0) + (1 - keep) * square
            return state["all"]
        state["row"] = keep * state.get("row", 0) + (1 - keep) * square.mean(1)
        state["column"] = keep * state.get("column", 0) + (1 - keep) * square.mean(0)
        return state["row"][:, None] * state["column"] / state["row"].mean()

    @torch.no_grad()
    def step(self, closure=None):
        loss = closure() if closure else None
        for group in self.param_groups:
            for w in group["params"]:
                state = self.state[w]
                at = state["step"] = state.get("step", 0) + 1
                update = w.grad * self.second_moment(state, w.grad, 1 - at**-0.8).rsqrt()
                update /= max(1.0, float(update.square().mean().sqrt()))
                size = max(1e-3, float(w.square().mean().sqrt()))
                w.sub_(update, alpha=size * min(group["lr"], at**-0.5))
        return loss


@healthy()
def endgames_of_draughts(folder):
    seeded(2454)
    net = nn.Sequential(nn.EmbeddingBag(160, 32, mode="sum"), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 3))
    nn.init.normal_(net[0].weight, std=0.2)
    men = torch.tensor([0.0, 1.0, 2.5, -1.0, -2.5])

    def boards(rows):
        """What stands on each of 32 fields, and whether one's own pieces are worth less, about as much or more."""
        odds = torch.tensor([0.7, 0.1, 0.05, 0.1, 0.05])
        piece = torch.multinomial(odds, rows * 32, replacement=True).view(rows, 32)
        worth = men[piece].sum(1)
        return 5 * torch.arange(32) + piece, torch.bucketize(worth, torch.tensor([-1.2, 1.2]))

    def loss_of(step):
        x, y = boards(128)
        return F.cross_entropy(net(x), y)

    score = kept_error(net, F.cross_entropy, boards(1024))
    return fit(folder, net, Factored(net.parameters(), 0.02), loss_of, 600, score=score)


@healthy()
def ripening_of_a_cheese(folder):
    seeded(2455)
    net = dense(6, 48, 48, 1, act=nn.SiLU)
    optimizer = torch.optim.SGD(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.01, 600)
    way = torch.randn(6) / 2

    def wheels(rows):
        """Days, salt, moisture, culture and climate of a cellar's wheels, and how ripe they are."""
        x = torch.randn(rows, 6)
        return x, (2 * (x @ way).sigmoid() + (x[:, 0] * x[:, 1]).tanh())[:, None] + 0.05 * torch.randn(rows, 1)

    def ballot():
        x, y = wheels(32)
        loss = F.mse_loss(net(x), y)
        return loss.detach(), [slope.sign() for slope in torch.autograd.grad(loss, list(net.parameters()))]

    def one(step):
        """Five cellars vote on which way each weight goes."""
        losses, ballots = zip(*(ballot() for _ in range(5)), strict=True)
        for w, *signs in zip(net.parameters(), *ballots, strict=True):
            w.grad = torch.stack(signs).sum(0).sign()
        optimizer.step()
        schedule.step()
        return {"loss": torch.stack(losses).mean()}

    return tend(folder, net, optimizer, one, 600, kept_error(net, F.mse_loss, wheels(512)))


class Exponentiated(torch.optim.Optimizer):
    """Multiplies shares by the exponential of minus their gradient; each row goes on adding up to one."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        loss = closure() if closure else None
        for group in self.param_groups:
            for shares in group["params"]:
                shares.copy_((shares.log() - group["lr"] * shares.grad).softmax(1).clamp(min=1e-12))
        return loss


class Airways(nn.Module):
    """From which intakes the air at each face comes, in shares."""

    def __init__(self, faces, intakes):
        super().__init__()
        self.shares = nn.Parameter(torch.full((faces, intakes), 1 / intakes))

    def forward(self, gas):
        return gas @ self.shares.T


@healthy()
def air_of_a_mine(folder):
    seeded(2456)
    net, true = Airways(24, 16), (3 * torch.randn(24, 16)).softmax(1)

    def shifts(rows):
        """Gas that was let in at sixteen intakes, and what is measured of it at the faces."""
        gas = torch.randn(rows, 16).exp()
        return gas, gas @ true.T + 0.05 * torch.randn(rows, 24)

    def loss_of(step):
        gas, found = shifts(64)
        return F.mse_loss(net(gas), found)

    optimizer = Exponentiated(net.parameters(), 3.0)
    return fit(folder, net, optimizer, loss_of, 400, score=kept_error(net, F.mse_loss, shifts(512)))


@healthy()
def spectra_of_stars(folder):
    seeded(2457)
    net = dense(48, 96, 96, 6)
    layers = [part for part in net if isinstance(part, nn.Linear)]
    masks = {layer: torch.ones_like(layer.weight) for layer in layers}
    lines = torch.rand(6, 4) * 48

    def stars(rows):
        """Spectra with the dark lines of one of six classes, of unknown depth and slightly shifted."""
        kind = torch.randint(6, (rows,))
        at = lines[kind][:, :, None] + torch.randn(rows, 1, 1)
        depth = 0.5 + torch.rand(rows, 4, 1)
        dark = (depth * (-((torch.arange(48) - at) ** 2) / 3).exp()).sum(1)
        return 0.5 - dark + 0.3 * torch.randn(rows, 48), kind

    def loss_of(step):
        x, y = stars(96)
        return F.cross_entropy(net(x), y)

    def prune(step):
        """From step 100 to 400 ever more of the smallest weights go, until a tenth is left; none comes back."""
        with torch.no_grad():
            if 100 < step <= 400 and step % 20 == 0:
                sparse = 0.9 * (1 - (1 - (step - 100) / 300) ** 3)
                for layer in layers[:-1]:
                    least = layer.weight.abs().flatten().kthvalue(int(sparse * layer.weight.numel()))[0]
                    masks[layer] = masks[layer] * (layer.weight.abs() > least)
            for layer in layers:
                layer.weight.mul_(masks[layer])

    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    score = kept_error(net, F.cross_entropy, stars(1024))
    return fit(folder, net, optimizer, loss_of, 700, score=score, after_step=prune)


class Signs(nn.Linear):
    """Uses only the signs of its weights, times one size for each unit; the gradient goes straight through."""

    def forward(self, x):
        hard = self.weight.sign() * self.weight.abs().mean(1, keepdim=True)
        return F.linear(x, self.weight + (hard - self.weight).detach(), self.bias)


@healthy()
def flow_of_a_sewage_plant(folder):
    seeded(2458)
    hidden = [nn.Sequential(Signs(size, 96), nn.BatchNorm1d(96), nn.Hardtanh()) for size in (8, 96)]
    net = nn.Sequential(*hidden, nn.Linear(96, 1))

    def hours(rows):
        """Rain of six hours, hour of the day and melt, and how much flows in."""
        x = torch.randn(rows, 8)
        rain = (x[:, :6] @ torch.tensor([0.2, 0.4, 0.8, 0.8, 0.4, 0.2])).relu()
        return x, (rain + 0.5 * (2 * x[:, 6]).sin() + 0.3 * x[:, 7])[:, None]

    def loss_of(step):
        x, y = hours(128)
        return F.mse_loss(net(x), y)

    def hold_latent(step):
        with torch.no_grad():
            for block in hidden:
                block[0].weight.clamp_(-1, 1)

    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)
    score = kept_error(net, F.mse_loss, hours(1024))
    return fit(folder, net, optimizer, loss_of, 600, score=score, after_step=hold_latent, schedule=schedule)


class Switch(nn.Module):
    """Each row is sent to one of eight experts; what is sent where is evened out by `balance`."""

    def __init__(self, size, experts):
        super().__init__()
        self.router = nn.Linear(size, experts)
        self.experts = nn.ModuleList(dense(size, 24, 1) for _ in range(experts))

    def forward(self, x):
        share = self.router(x).softmax(1)
        odds, best = share.max(1)
        sent = F.one_hot(best, len(self.experts)).float()
        self.balance = len(self.experts) * (sent.mean(0) * share.mean(0)).sum()
        out = x.new_zeros(len(x), 1)
        for i, expert in enumerate(self.experts):
            rows = (best == i).nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * odds[rows, None])
        return out


@healthy()
def heating_of_railway_points(folder):
    seeded(2459)
    net, kinds = Switch(8, 8), torch.randn(4, 4)

    def nights(rows):
        """Frost, snow, wind and sun with the make of the point; the power that keeps it free."""
        weather, kind = torch.randn(rows, 4), torch.randint(4, (rows,))
        power = (weather * kinds[kind]).sum(1, keepdim=True).relu() + 0.5
        return torch.cat([weather, 2 * F.one_hot(kind, 4)], 1), power

    def loss_of(step):
        x, y = nights(192)
        loss = F.mse_loss(net(x), y)
        return loss + 0.01 * net.balance, {"error": loss.detach(), "balance": net.balance.detach()}

    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, optimizer, loss_of, 600, score=kept_error(net, F.mse_loss, nights(1024)))


@healthy()
def weight_of_a_beehive(folder):
    seeded(2460)
    net = dense(4, 12, 1, act=nn.Tanh).double()
    optimizer = torch.optim.SGD(net.parameters(), 1.0)
    damping = {"now": 1.0}

    def days(rows):
        """Bloom, warmth, rain and bees that fly, and by how much the hive grows heavier in a day."""
        x = torch.randn(rows, 4, dtype=torch.float64)
        gain = x[:, :1].sigmoid() * (x[:, 1:2] - x[:, 2:3].relu()).tanh() * (1 + 0.3 * x[:, 3:])
        return x, gain + 0.02 * torch.randn(rows, 1, dtype=torch.float64)

    x, y = days(400)

    def misses(weights):
        return (functional_call(net, weights, x) - y)[:, 0] / len(x) ** 0.5

    def one(step):
        """Levenberg and Marquardt: a step that does not help is taken back and damped more."""
        weights = {name: w.detach().clone() for name, w in net.named_parameters()}
        miss = misses(weights)
        slopes = torch.cat([part.flatten(1) for part in jacrev(misses)(weights).values()], 1)
        curve = slopes.T @ slopes + damping["now"] * torch.eye(slopes.shape[1])
        move = torch.linalg.solve(curve, slopes.T @ miss)
        for w, part in zip(net.parameters(), move.split([w.numel() for w in weights.values()]), strict=True):
            w.grad = part.view_as(w).clone()
        optimizer.step()
        better = float(misses(dict(net.named_parameters())).square().sum()) < float(miss.square().sum())
        damping["now"] *= 0.3 if better else 4.0
        if not better:
            net.load_state_dict(weights)
        return {"loss": miss.square().sum(), "damping": damping["now"]}

    return tend(folder, net, optimizer, one, 30, kept_error(net, F.mse_loss, days(1000)))

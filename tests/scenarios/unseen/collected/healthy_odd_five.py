"""More returns: mutations, a world that can be differentiated, flows of chances."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, tend


@healthy()
def hook_of_a_harbour_crane(folder):
    """Evolution strategies: mirrored mutations, ranks for returns, and Adam on what they say."""
    seeded(3120)
    net = dense(4, 16, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.04, weight_decay=1e-4)
    pairs, sigma = 24, 0.1

    def swing(state, push):
        place, speed, angle, turn = state.unbind(-1)
        pull = 2 * push.clamp(-1, 1)
        bend = -angle.sin() * 3 - pull * angle.cos() - 0.1 * turn
        return torch.stack([place + 0.1 * speed, speed + 0.1 * pull, angle + 0.1 * turn, turn + 0.1 * bend], -1)

    def price(weights, start):
        s, total = start.expand(len(weights["0.bias"]), -1, -1), 0.0
        for _ in range(50):
            hidden = torch.baddbmm(weights["0.bias"][:, None], s, weights["0.weight"].mT).tanh()
            push = torch.baddbmm(weights["2.bias"][:, None], hidden, weights["2.weight"].mT)[..., 0]
            s = swing(s, push)
            total = total + s[..., 0].square() + 0.5 * s[..., 2].square() + 0.1 * s[..., 1].square()
        return total.mean(1) / 50

    def start(rows):
        return torch.cat([4 * torch.rand(rows, 1) - 2, torch.zeros(rows, 1), 0.3 * torch.randn(rows, 2)], 1)

    @torch.no_grad()
    def one(step):
        noise = {name: torch.randn(pairs, *p.shape) for name, p in net.named_parameters()}
        noise = {name: torch.cat([value, -value]) for name, value in noise.items()}
        weights = {name: p + sigma * noise[name] for name, p in net.named_parameters()}
        prices = price(weights, start(12))
        ranks = prices.argsort().argsort() / (2 * pairs - 1) - 0.5
        for name, p in net.named_parameters():
            p.grad = torch.tensordot(ranks, noise[name], 1) / (2 * pairs * sigma)
        optimizer.step()
        return {"fitness": -prices.mean(), "best": -prices.min()}

    def score():
        with torch.no_grad():
            return float(price({name: p[None] for name, p in net.named_parameters()}, start(400)))

    return tend(folder, net, optimizer, one, 200, score)


@healthy()
def skater_on_a_model_of_ice(folder):
    """A policy whose gradient comes back through twenty-five steps of the world itself."""
    seeded(3121)
    net = dense(6, 48, 48, 2, act=nn.ELU)
    nn.init.uniform_(net[-1].weight, -0.01, 0.01)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 180)

    def glide(rows, steps=25):
        place, speed, goal = 2 * torch.randn(rows, 2), torch.randn(rows, 2), torch.randn(rows, 2)
        price, effort = 0.0, 0.0
        for _ in range(steps):
            push = net(torch.cat([place, speed, goal], 1)).tanh()
            speed = 0.98 * speed + 0.2 * push
            place = place + 0.2 * speed
            price = price + (1 + (place - goal).square().sum(1)).sqrt().mean() - 1
            effort = effort + push.square().mean()
        return price / steps, effort / steps

    def loss_of(step):
        price, effort = glide(64)
        return price + 0.05 * effort, {"distance": price, "effort": effort}

    def score():
        with torch.no_grad():
            return float(glide(500)[0])

    return fit(folder, net, optimizer, loss_of, 180, score=score, before_step=clipped(net, 1.0), schedule=schedule)


@healthy()
def beads_in_proportion_to_their_worth(folder):
    """A flow network: bowls are filled one bead at a time so often as they are worth (trajectory balance)."""
    seeded(3122)
    side = 6
    net = nn.ModuleDict({"next": dense(2 * side, 64, 64, 3, act=nn.LeakyReLU), "back": dense(2 * side, 64, 2)})
    log_total = nn.Parameter(torch.tensor(0.0))
    net["total"] = nn.ParameterList([log_total])
    optimizer = torch.optim.Adam(
        [{"params": [*net["next"].parameters(), *net["back"].parameters()]}, {"params": [log_total], "lr": 0.05}],
        lr=2e-3,
    )
    far = (torch.cartesian_prod(*[torch.arange(side)] * 2) / (side - 1) - 0.5).abs()
    worth = (0.02 + 0.5 * (far > 0.25).all(1) + 2.0 * ((far > 0.2) & (far < 0.4)).all(1)).view(side, side)

    def seen(at):
        return F.one_hot(at, side).flatten(1).float()

    def ways(at):
        full = torch.cat([at == side - 1, torch.zeros(len(at), 1, dtype=torch.bool)], 1)
        return net["next"](seen(at)).masked_fill(full, -1e9).log_softmax(1)

    def strung(rows, wild):
        at, alive = torch.zeros(rows, 2, dtype=torch.long), torch.ones(rows, dtype=torch.bool)
        ahead, behind = torch.zeros(rows), torch.zeros(rows)
        for _ in range(2 * side - 1):
            logs = ways(at)
            anyhow = (logs > -1e8).float()
            chance = (1 - wild) * logs.detach().exp() + wild * anyhow / anyhow.sum(1, keepdim=True)
            pick = torch.multinomial(chance, 1)[:, 0]
            ahead = ahead + torch.where(alive, logs.gather(1, pick[:, None])[:, 0], 0)
            alive = alive & (pick < 2)
            at = at + F.one_hot(pick, 3)[:, :2] * alive[:, None]
            back = net["back"](seen(at)).masked_fill(at == 0, -1e9).log_softmax(1)
            behind = behind + torch.where(alive, back.gather(1, pick.clamp(max=1)[:, None])[:, 0], 0)
            if not alive.any():
                break
        return at, ahead, behind

    def loss_of(step):
        at, ahead, behind = strung(64, 0.1)
        gap = log_total + ahead - worth[at[:, 0], at[:, 1]].log() - behind
        return gap.square().mean(), {"log_z": log_total}

    @torch.no_grad()
    def score():
        flow, end = torch.zeros(side, side), torch.zeros(side, side)
        flow[0, 0] = 1
        for a in range(side):
            for b in range(side):
                down, right, stop = (flow[a, b] * ways(torch.tensor([[a, b]]))[0].exp()).tolist()
                end[a, b] = stop
                if a + 1 < side:
                    flow[a + 1, b] += down
                if b + 1 < side:
                    flow[a, b + 1] += right
        return float((end - worth / worth.sum()).abs().sum())

    return fit(folder, net, optimizer, loss_of, 400, score=score)

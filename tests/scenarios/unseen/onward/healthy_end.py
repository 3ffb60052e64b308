"""Sound trainings with flows, experts, few bits, many steps, uneven batches, weighed tasks and few big steps."""

import math

import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import clipped, tend

# ---------------------------------------------------------------------------------------------------- coins, trams


class Coupling(nn.Module):
    """Half of the measures move and stretch the other half (Real NVP), each half in its turn."""

    def __init__(self, size):
        super().__init__()
        self.moves = dense(size // 2, 48, size, act=nn.Tanh)
        nn.init.zeros_(self.moves[-1].weight)
        nn.init.zeros_(self.moves[-1].bias)

    def forward(self, x):
        fixed, free = x.flip(1).chunk(2, 1)
        log_scale, shift = self.moves(fixed).chunk(2, 1)
        log_scale = 2 * torch.tanh(log_scale / 2)
        return torch.cat([fixed, free * log_scale.exp() + shift], 1), log_scale.sum(1)


@healthy()
def authenticity_of_coins_from_a_die(folder):
    seeded(2203)
    flow = nn.ModuleList(Coupling(4) for _ in range(5))
    optimizer = torch.optim.Adam(flow.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 350)

    def coins(rows):
        wear, strike = torch.randn(2, rows)
        ideal = torch.stack([wear, strike, 0.6 * wear**2 - 0.6, strike.sin() + 0.3 * wear], 1)
        return ideal + 0.1 * torch.randn(rows, 4)

    def loss_of(step):
        x, stretch = coins(128), 0.0
        for layer in flow:
            x, log_scale = layer(x)
            stretch = stretch + log_scale
        return (0.5 * x.square().sum(1) + 2 * math.log(2 * math.pi) - stretch).mean()

    return fit(
        folder, flow, optimizer, loss_of, 350,
        score=score_of(loss_of), before_step=clipped(flow, 10.0), schedule=schedule,
    )  # fmt: skip


class Depot(nn.Module):
    """Six experts on wheels, of which a router asks two each time."""

    def __init__(self, inputs=7, experts=6):
        super().__init__()
        self.router = nn.Linear(inputs, experts)
        self.experts = nn.ModuleList(dense(inputs, 24, 1) for _ in range(experts))

    def forward(self, x):
        share = self.router(x).softmax(1)
        top, chosen = share.topk(2, 1)
        gates = torch.zeros_like(share).scatter(1, chosen, top / top.sum(1, keepdim=True))
        found = torch.zeros(len(x), 1)
        for which, expert in enumerate(self.experts):
            rows = gates[:, which].nonzero()[:, 0]
            if len(rows):
                found = found.index_add(0, rows, gates[rows, which, None] * expert(x[rows]))
        load = (gates > 0).float().mean(0) / 2
        return found, len(self.experts) * (load * share.mean(0)).sum()


@healthy()
def wear_of_tram_wheels(folder):
    seeded(2204)
    net, lines = Depot(), torch.randn(6, 7)
    optimizer = torch.optim.AdamW(net.parameters(), 4e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)

    def parts(step):
        line = torch.randint(6, (192,))
        wheel = 1.5 * lines[line] + 0.5 * torch.randn(192, 7)
        wear = (wheel * lines[(line + 1) % 6]).sum(1, keepdim=True) / 3 + line[:, None] / 3 - 1
        found, balance = net(wheel)
        return F.mse_loss(found, wear), balance

    def loss_of(step):
        error, balance = parts(step)
        return error + 0.01 * balance, {"error": float(error), "balance": float(balance)}

    def score():
        return score_of(lambda step: parts(step)[0])()

    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


# ------------------------------------------------------------------------------------------------ an orchard, ice


class FourBits(nn.Linear):
    """A linear layer whose weights are one of 15 steps; the step is learnt (LSQ), the rounding is passed straight."""

    @classmethod
    def of(cls, linear):
        layer = cls(linear.in_features, linear.out_features)
        layer.load_state_dict(linear.state_dict())
        layer.log_step = nn.Parameter((2 * linear.weight.detach().abs().mean() / math.sqrt(7)).log())
        return layer

    def forward(self, x):
        unit = self.log_step.exp()
        scaled = (self.weight / unit).clamp(-7, 7)
        return F.linear(x, unit * (scaled + (scaled.round() - scaled).detach()), self.bias)


@healthy()
def pollination_of_an_orchard(folder):
    seeded(2205)
    rule = dense(8, 12, 3, act=nn.Tanh).requires_grad_(False)
    for weight in rule.parameters():
        weight.mul_(3)

    def blossoms(rows=128):
        tree = torch.randn(rows, 8)
        return tree, rule(tree).argmax(1)

    whole = dense(8, 48, 48, 3)
    beforehand = torch.optim.Adam(whole.parameters(), 3e-3)
    for _ in range(25):
        tree, visitor = blossoms()
        beforehand.zero_grad()
        F.cross_entropy(whole(tree), visitor).backward()
        beforehand.step()
    net = nn.Sequential(*(FourBits.of(part) if isinstance(part, nn.Linear) else part for part in whole))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)

    def loss_of(step):
        tree, visitor = blossoms()
        found = net(tree)
        return F.cross_entropy(found, visitor), {"accuracy": float((found.argmax(1) == visitor).float().mean())}

    def entropy(step):
        return loss_of(step)[0]

    return fit(folder, net, optimizer, loss_of, 600, score=score_of(entropy), schedule=schedule)


@healthy()
def ice_of_a_creeping_glacier(folder):
    seeded(2206)
    net = dense(1, 20, 20, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.998)
    slip = 0.2

    def speed_at(height):
        return slip + height * net(height)

    def loss_of(step):
        height = torch.cat([torch.rand(32, 1), torch.ones(1, 1)]).requires_grad_()
        (slope,) = torch.autograd.grad(speed_at(height).sum(), height, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), height, create_graph=True)
        creep = (bend + 12 * (1 - height).square())[:-1].square().mean()
        at_surface = slope[-1].square().sum()
        return creep + 10 * at_surface, {"creep": float(creep), "surface": float(at_surface)}

    def error():
        height = torch.linspace(0, 1, 101)[:, None]
        with torch.no_grad():
            return float((speed_at(height) - slip - 1 + (1 - height) ** 4).abs().mean())

    return fit(folder, net, optimizer, loss_of, 1500, score=error, schedule=schedule)


# ------------------------------------------------------------------------------------------------ a violin, knitting


@healthy()
def overtones_of_violin_strings(folder):
    seeded(2207)
    ear = nn.ModuleDict({"memory": nn.GRU(1, 32, batch_first=True), "head": nn.Linear(32, 4)})
    optimizer = torch.optim.Adam(ear.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 220)
    pitch, rich = torch.tensor([0.5, 0.75, 1.1, 1.65]), torch.tensor([0.9, 0.6, 0.4, 0.2])

    def notes(rows, length):
        string, time = torch.randint(4, (rows,)), torch.arange(length)
        turn = pitch[string][:, None] * time + 6.2832 * torch.rand(rows, 1)
        tone = turn.sin() + rich[string][:, None] * (2 * turn).sin()
        return (tone + 0.1 * torch.randn(rows, length))[:, :, None], string

    def summed(rows, length):
        tone, string = notes(rows, length)
        return F.cross_entropy(ear["head"](ear["memory"](tone)[1][0]), string, reduction="sum")

    def one(step):
        optimizer.zero_grad()
        sizes = [(6, 26), (14, 20), (28, 16), (1 + int(torch.randint(40, ())), 10)]
        total = 0.0
        for rows, length in sizes:
            share = summed(rows, length) / sum(rows for rows, _ in sizes)
            share.backward()
            total += float(share)
        nn.utils.clip_grad_norm_(ear.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return {"loss": total}

    return tend(folder, ear, optimizer, one, 220, score_of(lambda step: summed(100, 16) / 100))


class Pattern(nn.Module):
    """Reads of a knitted patch whether it mirrors, its repeat and its density; learns how far to trust each."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 24, 3, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(864, 64), nn.ReLU(),
        )  # fmt: skip
        self.mirror, self.repeat, self.density = nn.Linear(64, 2), nn.Linear(64, 3), nn.Linear(64, 1)
        self.log_variance = nn.Parameter(torch.zeros(3))

    def forward(self, patch, mirrors, repeat, density):
        seen = self.body(patch)
        return torch.stack([
            F.cross_entropy(self.mirror(seen), mirrors),
            F.cross_entropy(self.repeat(seen), repeat),
            0.5 * F.mse_loss(self.density(seen)[:, 0], density),
        ])  # fmt: skip


@healthy()
def symmetry_of_knitting_patterns(folder):
    seeded(2208)
    net = Pattern()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    row, column = torch.arange(12)[:, None], torch.arange(12)[None, :]

    def patches(rows=64):
        mirrors, repeat, density = torch.randint(2, (rows,)), torch.randint(3, (rows,)), torch.rand(rows)
        lean = torch.where(mirrors[:, None, None] == 1, (2 * column - 11).abs() // 2, column)
        stitch = ((row + lean) % (repeat[:, None, None] + 2) == 0).float()
        thick = (0.5 + density)[:, None, None] * stitch + 0.1 * torch.randn(rows, 12, 12)
        return thick[:, None], mirrors, repeat, density

    def loss_of(step):
        errors = net(*patches())
        loss = ((-net.log_variance).exp() * errors + 0.5 * net.log_variance).sum()
        return loss, dict(zip(["mirror", "repeat", "density"], errors.tolist(), strict=True))

    def of_all(step):
        return net(*patches()).sum()

    return fit(folder, net, optimizer, loss_of, 500, score=score_of(of_all), schedule=schedule)


# --------------------------------------------------------------------------------------------------------- newsprint


@healthy()
def defects_in_newsprint(folder):
    seeded(2209)
    net = dense(6, 12, 2, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), 1.0)
    rare = torch.tensor([1.0, 6.0])

    def sheets(number):
        paper = torch.randn(number, 6)
        defect = ((paper[:, 0] * paper[:, 1] + paper[:, 2]) > 1.3).long()
        return paper, defect, rare[defect] / rare[defect].mean()

    def error(paper, defect, weight):
        return (weight * F.cross_entropy(net(paper), defect, reduction="none")).mean()

    known, later = sheets(2000), sheets(2000)
    paper, _, weight = known

    def one_sheet(params, sheet):
        return functional_call(net, params, (sheet[None],))[0]

    def loss_of(step):
        return error(*known) + 4e-4 * sum(p.square().sum() for p in net.parameters())

    def naturally(step):
        """The gradient is divided by Fisher's matrix, damped, and held to a length of 1."""
        params = {name: p.detach() for name, p in net.named_parameters()}
        bends = vmap(jacrev(one_sheet), in_dims=(None, 0))(params, paper)
        bends = torch.cat([bend.flatten(2) for bend in bends.values()], 2)
        chance = net(paper).detach().softmax(1)
        spread = torch.diag_embed(chance) - chance[:, :, None] * chance[:, None]
        fisher = torch.einsum("n,nik,nij,njl->kl", weight, bends, spread, bends) / len(paper)
        slope = torch.cat([p.grad.flatten() for p in net.parameters()])
        way = torch.linalg.solve(fisher + 5e-3 * torch.eye(len(slope)), slope)
        way = way / max(1.0, float(way.norm()))
        for p, part in zip(net.parameters(), way.split([p.numel() for p in net.parameters()]), strict=True):
            p.grad.copy_(part.view_as(p))

    def on_later(step):
        return error(*later)

    return fit(folder, net, optimizer, loss_of, 30, score=score_of(on_later, 1), before_step=naturally)

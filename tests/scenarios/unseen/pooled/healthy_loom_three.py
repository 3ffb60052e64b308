"""Trainings that go well: cells that grow a pattern, scores, transport, a disc without an edge, complex words."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, mean, seeded
from unseen.tasks import tend


class Cells(nn.Module):
    """Cells that see their neighbours and change themselves by a rule that all share."""

    def __init__(self, channels=8, width=40):
        super().__init__()
        side = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
        dot = torch.zeros(3, 3)
        dot[1, 1] = 1
        self.register_buffer("senses", torch.stack([dot, side, side.T]).repeat(channels, 1, 1)[:, None])
        self.hidden, self.change = nn.Conv2d(3 * channels, width, 1), nn.Conv2d(width, channels, 1)
        nn.init.zeros_(self.change.weight)
        nn.init.zeros_(self.change.bias)

    def forward(self, x, times):
        for _ in range(times):
            seen = F.conv2d(x, self.senses, padding=1, groups=x.shape[1])
            awake = (torch.rand(len(x), 1, *x.shape[2:]) < 0.7).float()
            x = x + awake * self.change(self.hidden(seen).relu())
        return x


@healthy()
def frost_that_grows_on_a_pane(folder):
    seeded(9312)
    at = torch.linspace(-1, 1, 12)
    angle, radius = torch.atan2(at[:, None], at[None]), (at[:, None] ** 2 + at[None] ** 2).sqrt()
    pattern = torch.sigmoid(12 * (0.75 + 0.25 * (6 * angle).cos() - radius - 0.1))
    germ = torch.zeros(1, 8, 12, 12)
    germ[:, :, 6, 6] = 1
    pool = germ.repeat(64, 1, 1, 1)
    net = Cells()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [240], gamma=0.3)

    def misses(x):
        return (x[:, 0] - pattern).square().mean((1, 2))

    def one(step):
        picked = torch.randperm(64)[:5]
        batch = pool[picked]
        with torch.no_grad():
            batch[misses(batch).argmax()] = germ[0]
        grown = net(batch, int(torch.randint(12, 19, ())))
        loss = misses(grown).mean()
        optimizer.zero_grad()
        loss.backward()
        for p in net.parameters():
            p.grad.div_(p.grad.norm() + 1e-8)
        optimizer.step()
        schedule.step()
        pool[picked] = grown.detach()
        return {"loss": loss, "worst": misses(grown).max()}

    def score():
        with torch.no_grad():
            return float(misses(net(germ.repeat(16, 1, 1, 1), 16)).mean())

    return tend(folder, net, optimizer, one, 320, score)


@healthy()
def footprints_around_three_wells(folder):
    seeded(9313)
    wells = torch.tensor([[1.2, 0.0], [-0.8, 1.0], [-0.6, -1.2]])
    spread = 0.6
    net = dense(2, 64, 64, 2, act=nn.Softplus)
    smooth = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98))
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-4)

    def prints(rows):
        return wells[torch.randint(3, (rows,))] + spread * torch.randn(rows, 2)

    def loss_of(step):
        x = prints(256).requires_grad_()
        found = net(x)
        sign = torch.randint(2, (256, 2)).float() * 2 - 1
        turn = (torch.autograd.grad((found * sign).sum(), x, create_graph=True)[0] * sign).sum(1).mean()
        half = found.square().sum(1).mean() / 2
        return turn + half, {"divergence": turn, "half_square": half}

    fresh = prints(2000)
    gaps = (wells - fresh[:, None]) / spread**2
    share = (-(wells - fresh[:, None]).square().sum(2) / 2 / spread**2).softmax(1)
    true = (share[..., None] * gaps).sum(1)

    def score():
        with torch.no_grad():
            return float((smooth(fresh) - true).square().sum(1).mean())

    return fit(folder, net, optimizer, loss_of, 600, score=score, after_step=lambda step: smooth.update_parameters(net))


def transport(a, b, blur=0.1, times=25):
    """The entropic cost of moving one cloud onto another, by Sinkhorn's iteration in logarithms."""
    cost = torch.cdist(a, b).square() / 2
    f, g = torch.zeros(len(a)), torch.zeros(len(b))
    with torch.no_grad():
        for _ in range(times):
            f = -blur * ((g - cost) / blur - math.log(len(b))).logsumexp(1)
            g = -blur * ((f[:, None] - cost) / blur - math.log(len(a))).logsumexp(0)
        plan = ((f[:, None] + g - cost) / blur).exp() / len(a) / len(b)
    return (plan * cost).sum()


def divergence(a, b):
    return transport(a, b) - (transport(a, a) + transport(b, b)) / 2


@healthy()
def fallen_leaves_raked_into_beds(folder):
    seeded(9314)

    def lawn(rows):
        return 2 * torch.rand(rows, 2) - 1

    def beds(rows):
        bed = torch.randint(2, (rows,)).float()
        along = 3 * torch.rand(rows) - 1.5
        return torch.stack([along, 2 * bed - 1 + 0.4 * (2 * along).sin()], 1) + 0.06 * torch.randn(rows, 2)

    net = dense(2, 64, 64, 2, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3, betas=(0.8, 0.99))

    def loss_of(step):
        here = lawn(128)
        moved = here + net(here)
        return divergence(moved, beds(128)), {"way": net(here).detach().norm(dim=1).mean()}

    def score():
        with torch.no_grad():
            here = lawn(800)
            return float(divergence(here + net(here), beds(800)))

    return fit(folder, net, optimizer, loss_of, 400, score=score)


class DiscDescent(torch.optim.Optimizer):
    """Gradients are shortened by the metric of the Poincare disc, and points held inside of it."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                room = (1 - p.square().sum(1, keepdim=True)).square() / 4
                p.sub_(room * p.grad, alpha=group["lr"])
                p.mul_((0.999 / p.norm(dim=1, keepdim=True).clamp(min=1e-9)).clamp(max=1.0))


@healthy()
def cousins_in_a_book_of_clans(folder):
    seeded(9315)
    people = 121
    elder = torch.tensor([(child - 1) // 3 for child in range(1, people)])
    pairs, climb = [], [(child, child) for child in range(1, people)]
    while climb:
        climb = [(child, (above - 1) // 3) for child, above in climb if above > 0]
        pairs += climb
    pairs = torch.tensor(pairs)
    net = nn.Embedding(people, 5)
    nn.init.uniform_(net.weight, -1e-2, 1e-2)
    optimizer = DiscDescent(net.parameters(), lr=2.0)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.1 if step < 100 else 1.0)

    def apart(a, b):
        gap = (a - b).square().sum(-1)
        room = (1 - a.square().sum(-1)) * (1 - b.square().sum(-1))
        return torch.acosh(1 + 2 * gap / room.clamp(min=1e-6) + 1e-6)

    kin = torch.eye(people, dtype=torch.bool)
    kin[pairs[:, 0], pairs[:, 1]] = True

    def loss_of(step):
        child, above = pairs[torch.randint(len(pairs), (64,))].unbind(1)
        others = torch.randint(people, (64, 20))
        points = net(torch.cat([above[:, None], others], 1))
        far = -apart(net(child)[:, None], points)
        known = torch.cat([torch.zeros(64, 1, dtype=torch.bool), kin[child[:, None], others]], 1)
        return F.cross_entropy(far.masked_fill(known, -1e9), torch.zeros(64, dtype=torch.long))

    def score():
        """The mean rank of a parent among all who are no kin."""
        with torch.no_grad():
            far = apart(net.weight[1:, None], net.weight[None])
            nearest = far.gather(1, elder[:, None])
            return float(((far < nearest) & ~kin[1:]).sum(1).float().mean()) + 1

    return fit(folder, net, optimizer, loss_of, 1200, score=score, schedule=warm)


class Facts(nn.Module):
    """How true it is that one thing stands in a relation to another, of complex vectors."""

    def __init__(self, things, relations, size):
        super().__init__()
        self.thing = nn.Parameter(0.3 * torch.randn(things, size, dtype=torch.cfloat))
        self.relation = nn.Parameter(0.3 * torch.randn(relations, size, dtype=torch.cfloat))

    def forward(self, subject, relation):
        return ((self.thing[subject] * self.relation[relation]) @ self.thing.conj().T).real


@healthy()
def which_village_lies_north_of_which(folder):
    seeded(9316)
    villages, offsets = 60, torch.tensor([1, -1, 7, 20, -13, 30])
    subject, relation = torch.cartesian_prod(torch.arange(villages), torch.arange(len(offsets))).unbind(1)
    there = (subject + offsets[relation]) % villages
    order = torch.randperm(len(subject))
    seen, hidden = order[:290], order[290:]
    net = Facts(villages, len(offsets), 16)
    optimizer = torch.optim.Adagrad(net.parameters(), 0.1)

    def loss_of(step):
        at = seen[torch.randint(len(seen), (64,))]
        loss = F.cross_entropy(net(subject[at], relation[at]), there[at])
        used = net.thing[subject[at]].abs().pow(3).mean() + net.relation[relation[at]].abs().pow(3).mean()
        return loss + 0.05 * used, {"facts": loss, "penalty": used}

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(net(subject[hidden], relation[hidden]), there[hidden]))

    return fit(folder, net, optimizer, loss_of, 500, score=score)


class Writer(nn.Module):
    """Writes formulas symbol by symbol, in Polish notation."""

    signs = ("+", "*", "sin", "exp", "x", "y", "1")
    takes = torch.tensor([2, 2, 1, 1, 0, 0, 0])

    def __init__(self, width=32):
        super().__init__()
        self.embed, self.cell = nn.Embedding(8, width), nn.GRUCell(width, width)
        self.head = nn.Linear(width, 7)

    def forward(self, rows, longest=9):
        h, last = torch.zeros(rows, self.cell.hidden_size), torch.full((rows,), 7)
        needed, written, chance, spread = torch.ones(rows, dtype=torch.long), [], 0, 0
        for place in range(longest):
            h = self.cell(self.embed(last), h)
            banned = needed[:, None] + self.takes > longest - place
            log = self.head(h).masked_fill(banned, -1e9).log_softmax(1)
            last = torch.multinomial(log.detach().exp(), 1)[:, 0]
            open_still = (needed > 0).float()
            chance = chance + open_still * log.gather(1, last[:, None])[:, 0]
            spread = spread - open_still * (log.exp() * log).sum(1)
            last = torch.where(needed > 0, last, 7)
            needed = needed + torch.where(needed > 0, self.takes[last.clamp(max=6)] - 1, 0)
            written.append(last)
        return torch.stack(written, 1), chance, spread


@healthy()
def a_formula_for_the_swing_of_a_lamp(folder):
    seeded(9317)
    x, y = (4 * torch.rand(2, 60) - 2).unbind()
    truth = (x * x).sin() + x * y
    act = {"+": torch.add, "*": torch.mul, "sin": torch.sin, "exp": lambda a: a.clamp(max=5).exp()}
    leaf = {"x": x, "y": y, "1": torch.ones_like(x)}

    def worth(codes):
        stack = []
        for code in reversed([c for c in codes if c < 7]):
            sign = Writer.signs[code]
            stack.append(leaf[sign] if sign in leaf else act[sign](*(stack.pop() for _ in range(Writer.takes[code]))))
        gap = (stack[-1] - truth).square().mean().sqrt() / truth.std()
        return 1 / (1 + float(gap))

    net = Writer()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)

    def loss_of(step):
        codes, chance, spread = net(80)
        reward = torch.tensor([worth(row) for row in codes.tolist()])
        bar = reward.quantile(0.85)
        best, gain = reward >= bar, (reward - bar) / (reward.std() + 1e-3)
        loss = -(gain[best] * chance[best]).mean() - 0.002 * spread.mean()
        return loss, {"reward": reward.mean(), "best_reward": reward.max(), "entropy": spread.mean()}

    def score():
        with torch.no_grad():
            return 1 - mean([worth(row) for row in net(500)[0].tolist()])

    return fit(folder, net, optimizer, loss_of, 300, score=score)

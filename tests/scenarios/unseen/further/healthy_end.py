"""Healthy trainings of every day, last part: signs, clerks, a graph, boxes, clicks and blots."""

from __future__ import annotations

import torch
from nets import digits
from torch import nn, optim
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, seeded
from unseen.further.healthy import right, rise_and_fall
from unseen.further.healthy_last import LETTERS, fables, pieces_of
from unseen.further.healthy_more import small_body
from unseen.tasks import clipped, rounds

import gradwatch

# -------------------------------------------------------------------------------------------------------------- tables


@healthy(0.4)
def size_and_kind_of_a_moon_from_one_trunk(folder):
    """A number and a kind from a shared trunk, their losses added and both logged; Adam at two thousandths."""
    seeded(2059)
    kinds, lift = 2 * torch.randn(6, 10), torch.randn(10) / 3
    net = nn.ModuleDict({"trunk": nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())})
    net["size"], net["kind"] = nn.Linear(64, 1), nn.Linear(64, 6)

    def loss_of(step):
        y = torch.randint(6, (64,))
        x = (kinds[y] + 1.5 * torch.randn(64, 10)) / 2.5
        size = (x @ lift).sin() * 1.5 + 0.3 * x[:, 0] * x[:, 1] + 0.1 * torch.randn(64)
        seen = net["trunk"](x)
        said = net["kind"](seen)
        entropy, square = F.cross_entropy(said, y), F.mse_loss(net["size"](seen)[:, 0], size)
        return entropy + square, {"loss_kind": entropy, "loss_size": square, "accuracy": right(said, y)}

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 600)


# ----------------------------------------------------------------------------------------------------------- pictures


@healthy(0.5)
def road_signs_by_a_small_lenet(folder):
    """Discs, rhombs, squares and wedges by two convolutions and two layers: Adam at a thousandth, halved by steps."""
    seeded(2062)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 4),
    )  # fmt: skip
    grid = torch.arange(16.0)

    def loss_of(step):
        y, centre, size = torch.randint(4, (48,)), 6 + 4 * torch.rand(48, 2, 1, 1), 3.5 + 2 * torch.rand(48, 1, 1)
        down, over = (grid[None, :, None] - centre[:, 0]) / size, (grid[None, None] - centre[:, 1]) / size
        a, b = down.abs(), over.abs()
        forms = [(a.square() + b.square()) < 1, a + b < 1.2, torch.maximum(a, b) < 0.85, (a < 1) & (2 * b < down + 1)]
        x = torch.stack(forms)[y, torch.arange(48)].float() * 2 - 0.8 + 0.4 * torch.randn(48, 16, 16)
        said = net(x[:, None])
        return F.cross_entropy(said, y), {"accuracy": right(said, y)}

    make = optim.Adam(net.parameters(), 1e-3)
    plan = optim.lr_scheduler.StepLR(make, 120, 0.5)
    return fit(folder, net, make, loss_of, 360, schedule=plan)


def finder():
    def block(size, out, stride=1):
        return nn.Sequential(nn.Conv2d(size, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.LeakyReLU(0.1))

    return nn.Sequential(
        block(1, 12), block(12, 24, 2), block(24, 32, 2), block(32, 32), nn.MaxPool2d(2), nn.Conv2d(32, 8, 1)
    )


@healthy(0.4)
def buoys_boxed_in_sixteen_fields(folder):
    """One stage on a grid of four by four: there or not, where, which of three; SGD with momentum, a rise, a cosine."""
    seeded(2065)
    net, grid = finder(), torch.arange(32.0)

    def loss_of(step):
        there, kind = torch.rand(16, 4, 4) < 0.15, torch.randint(3, (16, 4, 4))
        middle, half = torch.rand(16, 4, 4, 2), 2 + 2 * torch.rand(16, 4, 4, 2)
        field = torch.stack(torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij"), 2)
        centre = 8 * (field + middle)
        down = (grid - centre[..., :1]).abs()[..., :, None] / half[..., :1, None]
        over = (grid - centre[..., 1:]).abs()[..., None, :] / half[..., 1:, None]
        forms = [torch.maximum(down, over) < 1, down.square() + over.square() < 1, torch.minimum(down, over) < 0.3]
        shown = torch.where(kind[..., None, None] == 0, *forms[:2])
        shown = torch.where(kind[..., None, None] == 2, forms[2] & forms[0], shown) & there[..., None, None]
        x = shown.flatten(1, 2).any(1).float() * 2 - 0.3 + 0.2 * torch.randn(16, 32, 32)
        said = net(x[:, None]).permute(0, 2, 3, 1)
        seen = F.binary_cross_entropy_with_logits(said[..., 0], there.float())
        box = F.smooth_l1_loss(said[..., 1:5][there], torch.cat([middle - 0.5, half / 3 - 1], 3)[there], beta=0.1)
        of = F.cross_entropy(said[..., 5:][there], kind[there])
        return seen + 2 * box + of, {"loss_obj": seen, "loss_box": box, "loss_cls": of}

    make, steps = optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=5e-4), 240
    rise = optim.lr_scheduler.LinearLR(make, 0.1, total_iters=25)
    plan = optim.lr_scheduler.SequentialLR(make, [rise, optim.lr_scheduler.CosineAnnealingLR(make, steps - 25)], [25])
    return fit(folder, net, make, loss_of, steps, schedule=plan)


@healthy(0.5)
def digits_by_convolutions_under_autocast(folder):
    """Convolutions in bfloat16 under autocast: SGD with Nesterov's momentum, milestones, shuffled epochs."""
    seeded(2066)
    x, y = digits()
    net, draw = nn.Sequential(small_body(), nn.Linear(128, 10)), rounds(32, ((x - 0.3) / 0.38)[:, None], y)

    def loss_of(step):
        seen, kind = draw()
        with torch.autocast("cpu", torch.bfloat16):
            said = net(seen)
        return F.cross_entropy(said.float(), kind), {"accuracy": right(said, kind)}

    make = optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    plan = optim.lr_scheduler.MultiStepLR(make, [100, 130], 0.1)
    return fit(folder, net, make, loss_of, 150, schedule=plan)


@healthy(0.5)
def negatives_of_digits_after_their_prints(folder):
    """A body that knows prints is tuned whole on their mirrored negatives; the head is new and ten times as fast."""
    seeded(2069)
    x, y = digits()
    body, head = small_body(), nn.Linear(128, 10)
    prints, draw = rounds(64, ((x - 0.3) / 0.38)[:, None], y), rounds(32, ((0.7 - x.flip(2)) / 0.38)[:, None], y)
    before = optim.Adam([*body.parameters(), *head.parameters()], 2e-3)
    for _ in range(100):
        seen, kind = prints()
        before.zero_grad()
        F.cross_entropy(head(body(seen)), kind).backward()
        before.step()
    net = nn.ModuleDict({"body": body, "head": nn.Linear(128, 10)})

    def loss_of(step):
        seen, kind = draw()
        said = net["head"](net["body"](seen))
        return F.cross_entropy(said, kind), {"accuracy": right(said, kind)}

    parts = [{"params": net["body"].parameters(), "lr": 4e-4}, {"params": net["head"].parameters(), "lr": 4e-3}]
    make, steps = optim.AdamW(parts, weight_decay=0.01), 160
    return fit(folder, net, make, loss_of, steps, schedule=rise_and_fall(make, 12, steps))


# -------------------------------------------------------------------------------------------------------------- queues


def served(queue, rate, clerks):
    """Who still waits, and what waiting and clerks cost."""
    queue = (queue + torch.poisson(rate) - clerks).clamp(0, 20)
    return queue, 0.1 * queue + 0.15 * clerks


def opened(rows):
    return torch.poisson(torch.full((rows,), 2.0)), 6.2832 * torch.rand(rows)


def day_of(actor, rows, length=24):
    """States, acts and costs of days."""
    queue, phase = opened(rows)
    states, acts, costs = [], [], []
    with torch.no_grad():
        for hour in range(length):
            rate = 2 + 1.5 * (phase + hour * 0.4).sin()
            states.append(torch.stack([queue / 5 - 0.6, rate / 1.5 - 1.3, (phase + hour * 0.4).cos()], 1))
            acts.append(torch.multinomial(actor(states[-1]).softmax(1), 1)[:, 0])
            queue, cost = served(queue, rate, acts[-1])
            costs.append(cost)
    return torch.stack(states), torch.stack(acts), torch.stack(costs)


@healthy(0.2)
def clerks_called_to_the_counters(folder):
    """REINFORCE with a learnt baseline: sixteen days a step, edges normed, Adam at three thousandths, a clip at one."""
    seeded(2063)
    net = nn.ModuleDict({"actor": dense(3, 32, 32, 6, act=nn.Tanh), "critic": dense(3, 32, 32, 1, act=nn.Tanh)})
    make = optim.Adam(net.parameters(), 3e-3)

    def score():
        return float(day_of(net["actor"], 256)[2].sum(0).mean())

    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(net, make)}
    with gradwatch.watch(net, make, **options) as watch:
        for _ in range(300):
            states, acts, costs = day_of(net["actor"], 16)
            ahead, wanted = torch.zeros(16), []
            for cost in costs.flip(0):
                ahead = 0.9 * ahead - cost
                wanted.insert(0, ahead)
            wanted = torch.stack(wanted)
            value = net["critic"](states)[..., 0]
            edge = (wanted - value).detach()
            edge = (edge - edge.mean()) / (edge.std() + 1e-8)
            chance = net["actor"](states).log_softmax(2)
            policy = -(chance.gather(2, acts[..., None])[..., 0] * edge).mean()
            entropy = -(chance.exp() * chance).sum(2).mean()
            loss = policy + 0.25 * F.mse_loss(value, wanted) - 0.005 * entropy
            make.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            make.step()
            watch.log(loss=loss, entropy=entropy, **{"return": -float(costs.sum(0).mean())})
    return Outcome(gradwatch.open_history(watch.dir), first, score())


# ------------------------------------------------------------------------------------------------------ graphs, clicks


class Convolved(nn.Module):
    """Two means over neighbours (Kipf and Welling 2017)."""

    def __init__(self, near, size, kinds, wide=16):
        super().__init__()
        self.register_buffer("near", near)
        self.one, self.two, self.drop = nn.Linear(size, wide), nn.Linear(wide, kinds), nn.Dropout(0.5)

    def forward(self, x):
        x = (self.near @ self.one(self.drop(x))).relu()
        return self.near @ self.two(self.drop(x))


@healthy(0.3)
def authors_by_those_they_write_with(folder):
    """A graph convolution over all nodes at once: Adam at a hundredth, decay, dropout of a half, two hundred steps."""
    seeded(2064)
    y = torch.randint(4, (240,))
    edge = torch.rand(240, 240) < torch.where(y[:, None] == y, 0.08, 0.01)
    edge = (edge.triu(1) | edge.triu(1).T).float() + torch.eye(240)
    near = edge / (edge.sum(1, keepdim=True) * edge.sum(0, keepdim=True)).sqrt()
    x = (torch.rand(240, 80) < torch.where(torch.arange(80) // 20 == y[:, None], 0.25, 0.1)).float()
    x = x / x.sum(1, keepdim=True).clamp(min=1)
    net, taught = Convolved(near, 80, 4), torch.arange(240) < 80

    def held_out(measure):
        net.eval()
        with torch.no_grad():
            value = float(measure(net(x)[~taught], y[~taught]))
        net.train()
        return value

    def loss_of(step):
        logged = {"val_accuracy": held_out(right)} if step % 10 == 9 else {}
        return F.cross_entropy(net(x)[taught], y[taught]), logged

    make = optim.Adam(net.parameters(), 0.01, weight_decay=5e-4)
    return fit(folder, net, make, loss_of, 200, score=lambda: held_out(F.cross_entropy))


class Clicks(nn.Module):
    """Tables and numbers, products of all pairs, a net above (Naumov et al. 2019)."""

    def __init__(self, sizes, wide=8):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, wide) for size in sizes)
        for table in self.tables:
            nn.init.uniform_(table.weight, -(table.num_embeddings**-0.5), table.num_embeddings**-0.5)
        self.bottom, self.top = dense(4, 16, wide), dense(6 + wide, 32, 16, 1)

    def forward(self, x, kinds):
        low = self.bottom(x).relu()
        parts = torch.stack([low, *(table(kinds[:, i]) for i, table in enumerate(self.tables))], 1)
        one, two = torch.triu_indices(4, 4, 1)
        pairs = (parts @ parts.mT)[:, one, two]
        return self.top(torch.cat([low, pairs], 1))[:, 0]


@healthy(0.3)
def leaflets_read_or_thrown_away(folder):
    """Clicks by tables and their products: Adagrad at a twentieth in batches of 128."""
    seeded(2067)
    sizes = (120, 60, 20)
    tastes = [torch.randn(size, 3) for size in sizes]
    net, way = Clicks(sizes), torch.randn(4)

    def loss_of(step):
        x, kinds = torch.randn(128, 4), torch.stack([torch.randint(size, (128,)) for size in sizes], 1)
        a, b, c = (taste[kinds[:, i]] for i, taste in enumerate(tastes))
        chance = (2.0 * ((a * b).sum(1) + (b * c).sum(1)) + x @ way - 2).sigmoid()
        return F.binary_cross_entropy_with_logits(net(x, kinds), torch.bernoulli(chance))

    return fit(folder, net, optim.Adagrad(net.parameters(), 0.05), loss_of, 900)


# --------------------------------------------------------------------------------------------------------------- blots


class Guesser(nn.Module):
    def __init__(self, wide=48, length=24):
        super().__init__()
        self.embed, self.place = nn.Embedding(len(LETTERS) + 1, wide), nn.Parameter(0.1 * torch.randn(length, wide))
        layer = nn.TransformerEncoderLayer(wide, 4, 2 * wide, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, nn.LayerNorm(wide), enable_nested_tensor=False)
        self.head = nn.Linear(wide, len(LETTERS))
        nn.init.normal_(self.embed.weight, std=0.1)

    def forward(self, x):
        return self.head(self.body(self.embed(x) + self.place))


@healthy(0.3)
def fables_with_letters_blotted_out(folder):
    """A masked language model: AdamW, a rise and then one over the root of the step, a clip at one."""
    seeded(2068)
    net, draw = Guesser(), pieces_of(fables(400), 32, 24)

    def loss_of(step):
        x, _ = draw()
        hidden = torch.rand(x.shape) < 0.15
        return F.cross_entropy(net(x.masked_fill(hidden, len(LETTERS)))[hidden], x[hidden])

    make, steps = optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01), 600
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: min((step + 1) / 60, (60 / (step + 1)) ** 0.5))
    return fit(folder, net, make, loss_of, steps, schedule=plan, before_step=clipped(net, 1.0))

"""Trainings that go well: weights cut away, few bits, pictures that grow, critics on a leash, learned descent."""

import math

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, mean, seeded
from unseen.tasks import held_out, in_turn, rounds


@healthy()
def lentils_sorted_on_a_conveyor(folder):
    seeded(9318)
    ways = torch.randn(3, 20, 4)

    def lentils(rows):
        x = torch.randn(rows, 20)
        merit = torch.stack([(x @ w).tanh().prod(1) + 0.3 * (x @ w)[:, 0] for w in ways], 1)
        return x, merit.argmax(1)

    net = dense(20, 128, 128, 3, norm=nn.BatchNorm1d)
    steps = 700
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
    weights = [part.weight for part in net if isinstance(part, nn.Linear)][:2]
    masks = [torch.ones_like(w) for w in weights]
    fresh = lentils(2000)

    def loss_of(step):
        x, kind = lentils(128)
        kept = mean([float(mask.mean()) for mask in masks])
        return F.cross_entropy(net(x), kind), {"kept": kept}

    @torch.no_grad()
    def prune(step):
        if 150 <= step < 500 and step % 25 == 0:
            share = 0.85 * (1 - (1 - (step - 125) / 375) ** 3)
            for weight, mask in zip(weights, masks, strict=True):
                mask.copy_(weight.abs() > weight.abs().flatten().quantile(share))
        for weight, mask in zip(weights, masks, strict=True):
            weight.mul_(mask)

    return fit(folder, net, optimizer, loss_of, steps, after_step=prune, schedule=schedule,
               score=held_out(net, lambda: F.cross_entropy(net(fresh[0]), fresh[1])))  # fmt: skip


class FewBits(nn.Module):
    """Rounds to a grid whose step is learned."""

    def __init__(self, low, high):
        super().__init__()
        self.low, self.high = low, high
        self.size = nn.Parameter(torch.tensor(1.0))

    def start(self, x):
        with torch.no_grad():
            self.size.copy_(2 * x.abs().mean() / self.high**0.5)

    def forward(self, x):
        share = 1 / (x.numel() * self.high) ** 0.5
        size = self.size * share + (self.size * (1 - share)).detach()
        fine = (x / size).clamp(self.low, self.high)
        return (fine + (fine.round() - fine).detach()) * size


class FewBitLinear(nn.Linear):
    def __init__(self, into, out, signed):
        super().__init__(into, out)
        self.of_weight, self.of_input = FewBits(-8, 7), FewBits(-8 if signed else 0, 7 if signed else 15)
        self.of_weight.start(self.weight)

    def forward(self, x):
        return F.linear(self.of_input(x), self.of_weight(self.weight), self.bias)


@healthy()
def numbers_on_a_gas_meter_by_a_tiny_chip(folder):
    seeded(9319)
    x, y = digits()
    order = torch.randperm(len(x))
    seen, hidden = order[:1400], order[1400:]
    x = x.flatten(1)
    layers = [FewBitLinear(64, 64, False), FewBitLinear(64, 48, False), FewBitLinear(48, 10, False)]
    net = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    h = x[seen[:256]]
    for part in net:
        if isinstance(part, FewBitLinear):
            part.of_input.start(h)
        h = part(h).detach()
    steps_of_grids = [p for name, p in net.named_parameters() if name.endswith("size")]
    others = [p for name, p in net.named_parameters() if not name.endswith("size")]
    optimizer = torch.optim.AdamW([
        {"params": others, "lr": 2e-3, "weight_decay": 0.01},
        {"params": steps_of_grids, "lr": 5e-4, "weight_decay": 0.0},
    ])  # fmt: skip
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
    draw = rounds(64, x[seen], y[seen])

    def loss_of(step):
        image, number = draw()
        out = net(image)
        return F.cross_entropy(out, number, label_smoothing=0.05), {
            "accuracy": (out.argmax(1) == number).float().mean()
        }

    return fit(folder, net, optimizer, loss_of, 400, schedule=schedule,
               score=held_out(net, lambda: F.cross_entropy(net(x[hidden]), y[hidden])))  # fmt: skip


class Growing(nn.Module):
    """Draws at 4, 8, then 16 dots a side; what is new fades in."""

    def __init__(self):
        super().__init__()
        self.begin = nn.Linear(4, 24 * 16)
        self.blocks = nn.ModuleList(nn.Conv2d(24, 24, 3, padding=1) for _ in range(3))
        self.draw = nn.ModuleList(nn.Conv2d(24, 1, 1) for _ in range(3))

    def forward(self, code, stage, fade):
        h = F.leaky_relu(self.begin(code), 0.2).view(-1, 24, 4, 4)
        h = F.leaky_relu(self.blocks[0](h), 0.2)
        picture = self.draw[0](h)
        for i in range(1, stage + 1):
            h = F.leaky_relu(self.blocks[i](F.interpolate(h, scale_factor=2)), 0.2)
            share = fade if i == stage else 1.0
            coarse = F.interpolate(picture, scale_factor=2) if share < 1 else 0
            picture = share * self.draw[i](h) + (1 - share) * coarse
        return picture[:, 0]


@healthy()
def lantern_light_drawn_ever_finer(folder):
    seeded(9320)
    side = torch.linspace(-1, 1, 16)

    def lanterns(rows):
        code = 2 * torch.rand(rows, 4) - 1
        x, y = side[None, None] - 0.6 * code[:, :1, None], side[None, :, None] - 0.6 * code[:, 1:2, None]
        wide = 0.35 + 0.15 * code[:, 2, None, None]
        return code, torch.exp(-(x.square() + y.square()) / wide**2) * (1 + 0.3 * code[:, 3, None, None])

    net = Growing()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3, betas=(0.5, 0.99))
    steps = 450

    def loss_of(step):
        stage, within = divmod(step, steps // 3)
        fade = min(1.0, within / 60) if stage else 1.0
        code, picture = lanterns(24)
        target = F.adaptive_avg_pool2d(picture[:, None], 4 * 2**stage)[:, 0]
        return F.mse_loss(net(code, stage, fade), target), {"side": 4 * 2**stage, "fade": fade}

    fresh = lanterns(300)
    return fit(folder, net, optimizer, loss_of, steps,
               score=held_out(net, lambda: F.mse_loss(net(fresh[0], 2, 1.0), fresh[1])))  # fmt: skip


@healthy()
def loaves_shaped_and_tasted(folder):
    seeded(9321)

    def baked(rows):
        along = torch.rand(rows)
        angle = 5 * along
        way = torch.stack([angle.cos(), angle.sin()], 1) * (0.4 + 1.2 * along)[:, None]
        return way + 0.05 * torch.randn(rows, 2)

    make, judge = dense(4, 64, 64, 2), dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make, of_judge = (torch.optim.Adam(net.parameters(), 1e-3, betas=(0.0, 0.9)) for net in (make, judge))

    def judge_loss():
        true, false = baked(96), make(torch.randn(96, 4)).detach()
        between = torch.rand(96, 1)
        between = (between * true + (1 - between) * false).requires_grad_()
        (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        return judge(false).mean() - judge(true).mean() + 2 * (slope.norm(dim=1) - 1).square().mean()

    def score():
        with torch.no_grad():
            a, b = make(torch.randn(800, 4)), baked(800)
            return float(2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())

    def make_loss():
        return -judge(make(torch.randn(96, 4))).mean()

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 400, score, 3)


class FreeAdam(torch.optim.Optimizer):
    """Adam without a schedule: gradients are taken between the steps' end and the average of where they ended."""

    def __init__(self, params, lr=5e-3, blend=0.9, decay=0.999, warmup=50):
        super().__init__(params, {"lr": lr, "blend": blend, "decay": decay, "warmup": warmup, "count": 0, "total": 0.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] += 1
            count, blend = group["count"], group["blend"]
            lr = group["lr"] * min(1.0, count / group["warmup"])
            group["total"] += lr**2
            share = lr**2 / group["total"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(z=p.clone(), x=p.clone(), square=torch.zeros_like(p))
                state["square"].lerp_(p.grad.square(), 1 - group["decay"])
                size = (state["square"] / (1 - group["decay"] ** count)).sqrt() + 1e-8
                state["z"].sub_(lr * p.grad / size)
                state["x"].lerp_(state["z"], share)
                p.copy_(state["z"].lerp(state["x"], blend))

    @torch.no_grad()
    def show(self, average):
        for group in self.param_groups:
            for p in group["params"]:
                if state := self.state[p]:
                    p.copy_(state["x"] if average else state["z"].lerp(state["x"], group["blend"]))


@healthy()
def firewood_burnt_in_a_tiled_stove(folder):
    seeded(9322)
    mix = torch.randn(8, 8) / 8**0.5

    def evenings(rows):
        x = torch.randn(rows, 8)
        h = (x @ mix).tanh()
        burnt = 2 * h[:, 0] * h[:, 1] + (2 * h[:, 2]).sin() + h[:, 3:].square().sum(1)
        return x, burnt[:, None] + 0.1 * torch.randn(rows, 1)

    net = dense(8, 64, 64, 1, act=nn.Mish)
    optimizer = FreeAdam(net.parameters())
    fresh = evenings(1500)

    def loss_of(step):
        x, burnt = evenings(64)
        return F.huber_loss(net(x), burnt)

    def score():
        optimizer.show(average=True)
        value = held_out(net, lambda: F.mse_loss(net(fresh[0]), fresh[1]))()
        optimizer.show(average=False)
        return value

    return fit(folder, net, optimizer, loss_of, 700, score=score)


@healthy()
def a_hiker_who_learns_to_find_valleys(folder):
    seeded(9323)
    net = nn.ModuleDict({"cell": nn.LSTMCell(2, 20), "out": nn.Linear(20, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def valleys(rows):
        return torch.randn(rows, 10, 10) / 10**0.5, torch.randn(rows, 10), torch.randn(rows, 10)

    def walk(tilt, offset, place, paces):
        """How high the hiker stands after each pace, as a share of the first height."""
        rows = len(place) * 10
        h, c = torch.zeros(rows, 20), torch.zeros(rows, 20)
        heights = []
        for _ in range(paces + 1):
            gap = (tilt @ place[:, :, None])[:, :, 0] - offset
            heights.append(gap.square().sum(1))
            slope = 2 * (gap[:, None] @ tilt)[:, 0].detach().reshape(-1, 1)
            seen = torch.cat([(slope.abs() + 1e-6).log() / 10, slope.clamp(-3, 3) / 3], 1)
            h, c = net["cell"](seen, (h, c))
            place = place + 0.2 * net["out"](h).view_as(place)
        heights = torch.stack(heights)
        return heights[1:] / heights[0].detach()

    def loss_of(step):
        paces = 5 if step < 100 else 10 if step < 200 else 20
        heights = walk(*valleys(16), paces)
        return heights.mean(), {"paces": paces, "end": heights[-1].mean()}

    fresh = valleys(200)

    def score():
        with torch.no_grad():
            return math.exp(float(walk(*fresh, 20)[-1].log().mean()))

    return fit(folder, net, optimizer, loss_of, 350, score=score,
               before_step=lambda step: nn.utils.clip_grad_norm_(net.parameters(), 1.0))  # fmt: skip

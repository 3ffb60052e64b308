"""Less of a network: steps of few bits that are learned, weights that are cut away, experts of which two are asked."""

from __future__ import annotations

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune
from unseen import dense, fit, healthy, rings, score_of, seeded
from unseen.tasks import clipped, held_out

# ------------------------------------------------------------ few bits


def rounded(x, step, low, high, count):
    """`x` on a grid whose step is learned, with a straight way through the rounding."""
    share = 1 / (count * high) ** 0.5
    step = step * share + (step - step * share).detach()
    level = (x / step).clamp(low, high)
    return (level + (level.round() - level).detach()) * step


class Coarse(nn.Module):
    """A linear layer with weights and inputs of four bits."""

    def __init__(self, inner, out):
        super().__init__()
        self.linear = nn.Linear(inner, out)
        self.of_weight = nn.Parameter(2 * self.linear.weight.detach().abs().mean() / 7**0.5)
        self.of_input = nn.Parameter(torch.tensor(0.1))

    def meet(self, x):
        self.of_input.data.copy_(2 * x.abs().mean() / 15**0.5)

    def forward(self, x):
        weight = rounded(self.linear.weight, self.of_weight, -8, 7, self.linear.weight.numel())
        return F.linear(rounded(x, self.of_input, 0, 15, x.shape[1]), weight, self.linear.bias)


@healthy()
def a_hearing_aid_of_few_bits(folder):
    seeded(3254)
    draw = rings(96)
    first, middle, more, last = nn.Linear(12, 48), Coarse(48, 48), Coarse(48, 48), nn.Linear(48, 4)
    net = nn.Sequential(first, nn.ReLU(), middle, nn.ReLU(), more, nn.ReLU(), last)
    with torch.no_grad():
        x = first(draw()[0]).relu()
        middle.meet(x)
        more.meet(middle(x).relu())
    steps = [p for name, p in net.named_parameters() if ".of_" in name]
    others = [p for name, p in net.named_parameters() if ".of_" not in name]
    optimizer = torch.optim.AdamW([
        {"params": others, "lr": 3e-3, "weight_decay": 1e-3}, {"params": steps, "lr": 3e-4, "weight_decay": 0.0},
    ])  # fmt: skip
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500, eta_min=1e-5)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    score = score_of(lambda step: loss_of(step)[0], 10)
    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=schedule)


# ------------------------------------------------------------ cut by and by


@healthy()
def a_sorter_of_parcels_on_a_small_chip(folder):
    seeded(3255)
    images, labels = digits()
    order = torch.randperm(len(images))
    images, labels = images[order].flatten(1), labels[order]
    net = dense(64, 100, 60, 10)
    cut = [net[0], net[2]]
    for layer in cut:
        prune.identity(layer, "weight")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 700, eta_min=1e-3)

    def loss_of(step):
        if 150 <= step < 450 and step % 30 == 0:
            for layer in cut:
                prune.l1_unstructured(layer, "weight", amount=0.15)
        at = torch.randint(1300, (64,))
        left = torch.cat([layer.weight_mask.flatten() for layer in cut]).mean()
        return F.cross_entropy(net(images[at]), labels[at], label_smoothing=0.05), {"weights_left": left}

    score = held_out(net, lambda: F.cross_entropy(net(images[1300:]), labels[1300:]))
    return fit(folder, net, optimizer, loss_of, 700, score=score, schedule=schedule)


# ------------------------------------------------------------ two of experts


class Experts(nn.Module):
    """Each row asks the two of its experts that a noisy router names; a row keeps what it had beside it."""

    def __init__(self, width, count=6):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(dense(width, 2 * width, width, act=nn.GELU) for _ in range(count))
        nn.init.normal_(self.router.weight, std=0.05)

    def forward(self, x):
        h = self.norm(x)
        logits = self.router(h)
        noisy = logits + 0.1 * torch.randn_like(logits) if self.training else logits
        best, which = noisy.topk(2, 1)
        share = best.softmax(1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            row, place = (which == i).nonzero(as_tuple=True)
            out = out.index_add(0, row, share[row, place, None] * expert(h[row]))
        asked = F.one_hot(which, len(self.experts)).float().sum(1).mean(0) / 2
        balance = len(self.experts) * (asked * logits.softmax(1).mean(0)).sum()
        return x + out, balance, logits.logsumexp(1).square().mean()


class Advice(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.start = nn.Linear(8, width)
        self.parts = nn.ModuleList(Experts(width) for _ in range(2))
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))

    def forward(self, x):
        x, balance, size = self.start(x), 0.0, 0.0
        for part in self.parts:
            x, more, large = part(x)
            balance, size = balance + more / 2, size + large / 2
        return self.out(x)[:, 0], balance, size


@healthy()
def dues_in_a_town_of_many_guilds(folder):
    seeded(3256)
    sites, ways, bends = 1.5 * torch.randn(4, 3), torch.randn(4, 5), torch.randn(4, 5) / 2

    def dues(n):
        guild = torch.randint(4, (n,))
        place, work = sites[guild] + 0.4 * torch.randn(n, 3), torch.randn(n, 5)
        owed = (ways[guild] * work).sum(1).tanh() + (bends[guild] * work).sum(1).cos()
        return torch.cat([place, work], 1), owed + 0.05 * torch.randn(n)

    net, steps = Advice(), 350
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps, pct_start=0.15)
    x_test, y_test = dues(1500)

    def loss_of(step):
        x, y = dues(256)
        found, balance, size = net(x)
        error = F.mse_loss(found, y)
        return error + 0.01 * balance + 1e-3 * size, {"error": error, "balance": balance}

    score = held_out(net, lambda: F.mse_loss(net(x_test)[0], y_test))
    return fit(folder, net, optimizer, loss_of, steps, score=score, before_step=clipped(net, 1.0), schedule=schedule)

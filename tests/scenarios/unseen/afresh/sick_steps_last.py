"""Sick trainings of the group `afresh`: the step, last part (a body held still, plateaus, a scale, rates, momentum)."""

from __future__ import annotations

import torch
from nets import batches
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import circle

# --------------------------------------------------------------------------------------- readers and what they look for


class Tower(nn.Module):
    """A body, and a projection of what it says onto the unit sphere."""

    def __init__(self, size):
        super().__init__()
        self.body = nn.Sequential(dense(size, 64, 64, 32), nn.ReLU())
        self.project = nn.Linear(32, 16)

    def forward(self, x):
        return F.normalize(self.project(self.body(x)), dim=1)


class Retrieval(nn.Module):
    def __init__(self):
        super().__init__()
        self.reader, self.page = Tower(20), Tower(24)

    def forward(self, reader, page):
        return self.reader(reader) @ self.page(page).T / 0.1


@sick(
    "not-in-optimizer",
    where="reader.body and page.body, from step 60 on", cure="add the bodies to the optimizer when they are released",
)  # fmt: skip
def readers_and_pages_after_a_gentle_start(folder, ill):
    """For 60 steps only the projections learn; then the bodies are released."""
    seeded(7112)
    net, ways = Retrieval(), (torch.randn(6, 20), torch.randn(6, 24))
    bodies = [*net.reader.body.parameters(), *net.page.body.parameters()]
    for p in bodies:
        p.requires_grad_(False)
    make = optim.AdamW([p for p in net.parameters() if p.requires_grad], 3e-3)

    def loss_of(step):
        if step == 60:
            for p in bodies:
                p.requires_grad_(True)
            if not ill:
                make.add_param_group({"params": bodies, "lr": 2e-3})
        wish = torch.randn(64, 6)
        reader, page = ((wish @ way).sin() + 0.1 * torch.randn(64, way.shape[1]) for way in ways)
        return F.cross_entropy(net(reader, page), torch.arange(64))

    return fit(folder, net, make, loss_of, 450, score=score_of(lambda i: loss_of(-1)))


# ----------------------------------------------------------------------------------------------------- brackets counted


class Depth(nn.Module):
    """At each place of a text: how deep in brackets are we?"""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, 16)
        self.memory = nn.GRU(16, 48, batch_first=True)
        self.head = nn.Linear(48, 6)

    def forward(self, x):
        return self.head(self.memory(self.embed(x))[0])


def brackets(batch=32, length=20):
    """Tokens: opened, closed, two letters; and the depth behind each, five at most."""
    tokens, depths, depth = [], [], torch.zeros(batch, dtype=torch.long)
    for _ in range(length):
        token = torch.randint(4, (batch,))
        token = torch.where((token == 0) & (depth == 5) | (token == 1) & (depth == 0), 2, token)
        depth = depth + (token == 0).long() - (token == 1).long()
        tokens.append(token)
        depths.append(depth)
    return torch.stack(tokens, 1), torch.stack(depths, 1)


@sick(
    "schedule-too-short", "schedule-ran-out", "update-too-small", "weights-unchanged", "plateau-mode",
    where="all layers: the rate falls though the loss does", cure="mode='min': it is a loss that the schedule is given",
)  # fmt: skip
def brackets_counted_while_the_loss_is_watched(folder, ill):
    seeded(7113)
    net = Depth()
    make = optim.Adam(net.parameters(), 5e-3)
    plan = optim.lr_scheduler.ReduceLROnPlateau(make, mode="max" if ill else "min", factor=0.3, patience=2)
    seen = []

    def loss_of(step):
        x, depth = brackets()
        loss = F.cross_entropy(net(x).flatten(0, 1), depth.flatten())
        seen.append(float(loss.detach()))
        return loss

    def epoch_ends(step):
        if step % 12 == 11:
            plan.step(sum(seen[-12:]) / 12)

    return fit(folder, net, make, loss_of, 300, score=score_of(loss_of), after_step=epoch_ends)


# ------------------------------------------------------------------------------------------------------ digits, patched


class Mixer(nn.Module):
    """MLP-Mixer of images of eight by eight, in sixteen patches."""

    def __init__(self, width=32, depth=2):
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, stride=2)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.tokens = nn.ModuleList(dense(16, 32, 16, act=nn.GELU) for _ in range(depth))
        self.channels = nn.ModuleList(dense(width, 64, width, act=nn.GELU) for _ in range(depth))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        h = self.patch(x[:, None]).flatten(2).mT
        for i, (tokens, channels) in enumerate(zip(self.tokens, self.channels, strict=True)):
            h = h + tokens(self.norms[2 * i](h).mT).mT
            h = h + channels(self.norms[2 * i + 1](h))
        return self.head(self.last(h).mean(1))


@sick(
    "skips-often", "nonfinite", "weights-unchanged", "scale-too-high",
    where="all layers, nearly every step", cure="scaler.update() without a value: the scale has to come down by itself",
)  # fmt: skip
def digits_mixed_under_a_pinned_scale(folder, ill):
    """The scale is set to the same value after each step, "so that runs can be compared"."""
    seeded(7114)
    net, batch = Mixer(), batches(48, seed=14)
    make = optim.AdamW(net.parameters(), 3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22 if ill else 2.0**14)

    def loss_of(step):
        x, y = batch(step)
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        return F.cross_entropy(out.float(), y)

    def pin(step):
        if ill:
            scaler.update(2.0**22)

    return fit(folder, net, make, loss_of, 110, score=score_of(loss_of), after_step=pin, scaler=scaler)


# ---------------------------------------------------------------------------------------------------- a swinging spring


class Sines(nn.Module):
    """SIREN: sines for activations, with their initialisation."""

    def __init__(self, width=48, depth=2, w0=6.0):
        super().__init__()
        sizes = [1] + [width] * (depth + 1)
        self.layers = nn.ModuleList(nn.Linear(sizes[i], sizes[i + 1]) for i in range(depth + 1))
        self.head, self.w0 = nn.Linear(width, 1), w0
        for i, layer in enumerate(self.layers):
            bound = 1.0 if i == 0 else (6 / width) ** 0.5 / w0
            nn.init.uniform_(layer.weight, -bound, bound)

    def forward(self, t):
        for layer in self.layers:
            t = (self.w0 * layer(t)).sin()
        return self.head(t)


@sick(
    "lr-too-high", "update-too-large", "rate-peaks-too-high", "exploding",
    where="all layers, while the rate is near its peak", cure="a peak of 2e-3: it was multiplied as for SGD",
)  # fmt: skip
def spring_that_swings_by_its_equation(folder, ill):
    """A damped spring, u'' + 0.4 u' + 9 u = 0 from u = 1 and u' = 0; the score is the error of u."""
    seeded(7115)
    net = Sines()
    make = optim.Adam(net.parameters(), 2e-3)
    plan = optim.lr_scheduler.OneCycleLR(make, max_lr=0.1 if ill else 2e-3, total_steps=500)
    at = torch.linspace(0, 2, 101)[:, None]
    turn = (9 - 0.04) ** 0.5
    exact = (-0.2 * at).exp() * ((turn * at).cos() + 0.2 / turn * (turn * at).sin())

    def slope(u, t):
        return torch.autograd.grad(u.sum(), t, create_graph=True)[0]

    def loss_of(step):
        t = (2 * torch.rand(64, 1)).requires_grad_()
        u = net(t)
        first = slope(u, t)
        second = slope(first, t)
        zero = torch.zeros(1, 1, requires_grad=True)
        start = net(zero)
        ends = (start - 1).square().mean() + 0.1 * slope(start, zero).square().mean()
        return ((second + 0.4 * first + 9 * u) / 9).square().mean() + 10 * ends

    def score():
        with torch.no_grad():
            return F.mse_loss(net(at), exact)

    return fit(folder, net, make, loss_of, 500, score=score, schedule=plan)


# -------------------------------------------------------------------------------------------------------- discs cut out


class Outlines(nn.Module):
    """A small U-Net: down, through, up, beside what was there before."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU())
        self.deep = nn.Sequential(
            nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()
        )
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Sequential(nn.Conv2d(16, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))

    def forward(self, x):
        near = self.down(x)
        return self.out(torch.cat([near, self.up(self.deep(near))], 1))


def spots(batch=16, size=16):
    """Images with a brighter disc in noise, and the disc."""
    place = torch.arange(size)
    middle, radius = 4 + 8 * torch.rand(2, batch, 1, 1), 2 + 3 * torch.rand(batch, 1, 1)
    inside = (place[:, None] - middle[0]).square() + (place - middle[1]).square() < radius.square()
    mask = inside.float()[:, None]
    return mask + 0.5 * torch.randn_like(mask), mask


@sick(
    "lr-too-high", "update-too-large", "exploding", "momentum-too-high",
    where="all layers, from the first steps", cure="momentum 0.9, for which the rate was found; or a tenth of the rate",
)  # fmt: skip
def discs_found_with_a_long_memory(folder, ill):
    seeded(7116)
    net = Outlines()
    make = optim.SGD(net.parameters(), 0.3, momentum=0.99 if ill else 0.9)

    def loss_of(step):
        x, mask = spots()
        logits = net(x)
        share = logits.sigmoid()
        dice = 1 - (2 * (share * mask).sum((1, 2, 3)) + 1) / (share.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(logits, mask) + dice.mean()

    return fit(folder, net, make, loss_of, 300, score=score_of(loss_of))


# -------------------------------------------------------------------------------------------------- a ring out of noise


class Denoiser(nn.Module):
    """The noise in a point, told how noisy it is."""

    def __init__(self, width=96):
        super().__init__()
        self.embed = nn.Linear(3, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.head = nn.Linear(width, 2)

    def forward(self, x, t):
        h = F.silu(self.embed(torch.cat([x, t[:, None] / 50], 1)))
        for block in self.blocks:
            h = F.silu(block(h))
        return self.head(h)


@sick(
    "update-too-small", "imbalance", "rates-apart", "weights-unchanged",
    where="embed and blocks.0 to blocks.2, all steps", cure="one rate for all: nothing here was trained before",
)  # fmt: skip
def ring_out_of_noise_with_rates_by_depth(folder, ill):
    """Rates that fall a hundredfold with each layer from the head down, as in a fine-tuning; from scratch."""
    seeded(7117)
    net, keep = Denoiser(), torch.cumprod(1 - torch.linspace(1e-3, 0.15, 50), 0)
    layers = [net.head, *reversed(net.blocks), net.embed]
    fall = 0.01 if ill else 1.0
    make = optim.AdamW([{"params": layer.parameters(), "lr": 3e-3 * fall**i} for i, layer in enumerate(layers)])

    def loss_of(step):
        x, t = circle(128), torch.randint(50, (128,))
        noise = torch.randn_like(x)
        noisy = keep[t].sqrt()[:, None] * x + (1 - keep[t]).sqrt()[:, None] * noise
        return F.mse_loss(net(noisy, t), noise)

    return fit(folder, net, make, loss_of, 400, score=score_of(loss_of))

"""Ten trainings of an unusual make of a small town's shops and craftsmen, all in good health."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, judged, now_and_then, rounds, tend


@healthy(0.3)
def weigher_naming_the_bounds_of_a_weight(folder):
    """Quantiles by the pinball loss; the gaps between them are held above zero."""
    seeded(13360)
    levels = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])

    class Bounds(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(5, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU())
            self.lowest, self.gaps = nn.Linear(48, 1), nn.Linear(48, len(levels) - 1)

        def forward(self, x):
            hidden = self.body(x)
            lowest = self.lowest(hidden)
            return torch.cat([lowest, lowest + F.softplus(self.gaps(hidden)).cumsum(1)], 1)

    def sacks(n):
        x = torch.randn(n, 5)
        weight = 1.2 * x[:, 0] + (2 * x[:, 1]).sin() + 0.4 * torch.sigmoid(2 * x[:, 2]) * torch.randn(n)
        return x, weight[:, None]

    def pinball(x, weight):
        over = weight - net(x)
        return torch.maximum(levels * over, (levels - 1) * over).mean()

    train, held, net = sacks(4000), sacks(800), Bounds()
    optimizer = torch.optim.NAdam(net.parameters(), lr=3e-3)
    draw, validate = rounds(100, *train), now_and_then(net, 50, lambda: {"val_loss": pinball(*held)})

    def loss_of(step):
        logged = validate(step)
        return pinball(*draw()), logged

    return fit(folder, net, optimizer, loss_of, 450, score=held_out(net, lambda: pinball(*held)))


@healthy(0.5)
def locksmith_pairing_keys_with_locks(folder):
    """Two towers, InfoNCE both ways, with a temperature that is learnt and held below a hundred."""
    seeded(13361)

    class Towers(nn.Module):
        def __init__(self, width=24):
            super().__init__()
            self.key = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, width))
            self.lock = nn.Sequential(
                nn.Conv1d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 20, 64), nn.ReLU(),
                nn.Linear(64, width),
            )  # fmt: skip
            self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.1)))

        def forward(self, keys, locks):
            a, b = F.normalize(self.key(keys), dim=1), F.normalize(self.lock(locks[:, None]), dim=1)
            return self.logit_scale.exp().clamp(max=100) * a @ b.T

    to_key, to_lock = torch.randn(6, 16) / 6**0.5, torch.randn(6, 20) / 6**0.5

    def pairs(n):
        bits = torch.randn(n, 6)
        return (1.5 * bits @ to_key).tanh() + 0.1 * torch.randn(n, 16), bits @ to_lock + 0.1 * torch.randn(n, 20)

    def both(keys, locks):
        logits = net(keys, locks)
        own = torch.arange(len(keys))
        return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2, logits

    net, held = Towers(), pairs(64)
    decayed = [p for p in net.parameters() if p.ndim > 1]
    others = [p for p in net.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}], lr=2e-3
    )

    def measure():
        loss, logits = both(*held)
        return {"val_loss": loss, "val_accuracy": (logits.argmax(1) == torch.arange(64)).float().mean()}

    validate = now_and_then(net, 50, measure)

    def loss_of(step):
        logged = validate(step)
        return both(*pairs(64))[0], logged

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: both(*held)[0]))


@healthy(0.2)
def beadmaker_shaping_beads_of_glass(folder):
    """A flow of affine couplings: the loss is minus a log-density, which may well fall below zero."""
    seeded(13362)

    class Coupling(nn.Module):
        def __init__(self, flip):
            super().__init__()
            self.flip, self.net = flip, dense(1, 48, 48, 2, act=nn.SiLU)
            nn.init.zeros_(self.net[-1].weight)
            nn.init.zeros_(self.net[-1].bias)

        def forward(self, x):
            a, b = x.flip(1).unbind(1) if self.flip else x.unbind(1)
            scale, shift = self.net(a[:, None]).unbind(1)
            scale = 2 * (scale / 2).tanh()
            b = b * scale.exp() + shift
            return torch.stack([b, a] if self.flip else [a, b], 1), scale

    class Flow(nn.Module):
        def __init__(self, layers=6):
            super().__init__()
            self.layers = nn.ModuleList(Coupling(i % 2 == 1) for i in range(layers))

        def forward(self, x):
            volume = 0.0
            for layer in self.layers:
                x, grown = layer(x)
                volume = volume + grown
            return -0.5 * x.square().sum(1) - math.log(2 * math.pi) + volume

    def beads(n):
        """A crescent: the length and the bow of a bead."""
        length = torch.randn(n)
        return torch.stack([length, 0.7 * (length.square() - 1) + 0.15 * torch.randn(n)], 1)

    net, held = Flow(), beads(1000)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 350)
    validate = now_and_then(net, 50, lambda: {"val_loss": -net(held).mean()})

    def loss_of(step):
        logged = validate(step)
        return -net(beads(128)).mean(), logged

    score = held_out(net, lambda: -net(held).mean())
    return fit(folder, net, optimizer, loss_of, 350, schedule=schedule, before_step=clipped(net, 5.0), score=score)


@healthy(0.9)
def lens_grinder_bending_two_glasses(folder):
    """Rays through two curved surfaces: L-BFGS finds the polynomials of their slopes, on all rays at once."""
    seeded(13363)

    class Lens(nn.Module):
        def __init__(self):
            super().__init__()
            self.front = nn.Parameter(torch.tensor([0.1, 0.0, 0.0]))
            self.back = nn.Parameter(torch.tensor([0.1, 0.0, 0.0]))

        @staticmethod
        def bend(slopes, height):
            return slopes[0] * height + slopes[1] * height**3 + slopes[2] * height**5

        def forward(self, height, slant):
            slant = slant - self.bend(self.front, height)
            height = height + 0.3 * slant
            slant = slant - self.bend(self.back, height)
            return height + 1.5 * slant

    height = (torch.arange(21) / 10 - 1).repeat(3)
    slant = torch.tensor([-0.1, 0.0, 0.1]).repeat_interleave(21)
    wanted = 1.2 * slant  # where rays of one slant shall meet
    net = Lens()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2, history_size=10, line_search_fn="strong_wolfe")

    def loss_of(step):
        return F.mse_loss(net(height, slant), wanted)

    return fit(folder, net, optimizer, loss_of, 60, closure=True, score=lambda: float(loss_of(0).detach()))


@healthy(0.5)
def farrier_fitting_shoes_on_level_ground(folder):
    """Sharpness-aware steps: a gradient at the worst point near by, a step from where one stood."""
    seeded(13364)
    hooves = torch.randn(5, 10)

    def draw(n=96):
        kind = torch.randint(5, (n,))
        x = hooves[kind] * (1 + torch.rand(n, 1)) + 0.7 * torch.randn(n, 10)
        return x / 1.6, kind

    held = draw(600)
    net = dense(10, 64, 64, 5, act=nn.GELU)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    validate = now_and_then(net, 40, judged(net, *held))

    def one(step):
        logged = validate(step)
        x, y = draw()
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
            away = [0.05 * p.grad / (norm + 1e-12) for p in net.parameters()]
            for p, a in zip(net.parameters(), away, strict=True):
                p.add_(a)
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            for p, a in zip(net.parameters(), away, strict=True):
                p.sub_(a)
        optimizer.step()
        return {"loss": loss, **logged}

    return tend(folder, net, optimizer, one, 300, held_out(net, lambda: F.cross_entropy(net(held[0]), held[1])))


@healthy(0.2)
def market_warden_ranking_the_stalls(folder):
    """A list of stalls at once (ListMLE): the likelihood of their order, best first."""
    seeded(13365)

    class Warden(nn.Module):
        """Each stall is seen among the others of its row."""

        def __init__(self, width=32):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
            self.outer = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

        def forward(self, stalls):
            hidden = self.inner(stalls)
            row = hidden.mean(1, keepdim=True).expand_as(hidden)
            return self.outer(torch.cat([hidden, row], 2)).squeeze(2)

    def rows(n, stalls=8):
        x = torch.randn(n, stalls, 6)
        worth = x[..., 0] + x[..., 1] * x[..., 2] - 0.5 * x[..., 3].abs() + 0.2 * torch.randn(n, stalls)
        return x, worth.argsort(1, descending=True)

    def of_order(x, order):
        """Mean over the places of minus the log-likelihood of who is next."""
        scores = net(x).gather(1, order)
        rest = scores.flip(1).logcumsumexp(1).flip(1)
        return (rest - scores).mean()

    train, held, net = rows(3000), rows(300), Warden()
    optimizer = torch.optim.RAdam(net.parameters(), lr=4e-3)
    draw, validate = rounds(50, *train), now_and_then(net, 50, lambda: {"val_loss": of_order(*held)})

    def loss_of(step):
        logged = validate(step)
        return of_order(*draw()), logged

    return fit(folder, net, optimizer, loss_of, 450, score=held_out(net, lambda: of_order(*held)))


@healthy(0.7)
def clockmaker_solving_for_the_pendulum(folder):
    """A net of time that obeys a damped pendulum's equation: its derivatives are in the loss, no data are."""
    seeded(13366)

    class Swing(nn.Module):
        """Begins at an angle of one, at rest, by its make."""

        def __init__(self):
            super().__init__()
            self.net = dense(1, 32, 32, 1, act=nn.Tanh)

        def forward(self, t):
            return 1 + t**2 * self.net(t - 1)

    net = Swing()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500, eta_min=1e-4)

    def loss_of(step):
        t = (2 * torch.rand(64, 1)).requires_grad_()
        angle = net(t)
        speed = torch.autograd.grad(angle.sum(), t, create_graph=True)[0]
        force = torch.autograd.grad(speed.sum(), t, create_graph=True)[0]
        return (force + 0.3 * speed + 2.0 * angle.sin()).square().mean()

    # the swing as small steps of time find it
    angle, speed, path = 1.0, 0.0, []
    for _ in range(2000):
        path.append(angle)
        speed -= 0.001 * (0.3 * speed + 2.0 * math.sin(angle))
        angle += 0.001 * speed
    times, truth = torch.arange(2000)[:, None] / 1000, torch.tensor(path)[:, None]
    score = held_out(net, lambda: F.mse_loss(net(times), truth))
    return fit(folder, net, optimizer, loss_of, 500, schedule=schedule, score=score)


@healthy(0.4)
def chandler_teaching_his_apprentice(folder):
    """A small net learns from the softened answers of a frozen larger one, and from the labels."""
    seeded(13367)
    centres = torch.randn(6, 2, 9) * 1.2

    def candles(n):
        kind = torch.randint(6, (n,))
        return centres[kind, torch.randint(2, (n,))] + 0.7 * torch.randn(n, 9), kind

    train, held = candles(3000), candles(600)
    master, apprentice = dense(9, 128, 128, 6), dense(9, 20, 6)
    draw = rounds(64, *train)
    of_master = torch.optim.Adam(master.parameters(), lr=2e-3)
    for _ in range(200):
        x, y = draw()
        of_master.zero_grad()
        F.cross_entropy(master(x), y).backward()
        of_master.step()
    master.eval().requires_grad_(False)
    optimizer, heat = torch.optim.Adamax(apprentice.parameters(), lr=1e-2), 3.0
    validate = now_and_then(apprentice, 50, judged(apprentice, *held))

    def loss_of(step):
        logged = validate(step)
        x, y = draw()
        said = apprentice(x)
        soft = F.kl_div(
            F.log_softmax(said / heat, 1), F.log_softmax(master(x) / heat, 1), reduction="batchmean", log_target=True
        )
        hard = F.cross_entropy(said, y)
        loss = 0.7 * heat**2 * soft + 0.3 * hard
        return loss, {"soft_loss": soft, "hard_loss": hard, **logged}

    score = held_out(apprentice, lambda: F.cross_entropy(apprentice(held[0]), held[1]))
    return fit(folder, apprentice, optimizer, loss_of, 450, score=score)


@healthy(0.3)
def weaver_guessing_the_missing_threads(folder):
    """Masked threads are guessed from those on both sides, by a transformer with rotations for places."""
    seeded(13368)
    colours, length, hidden_colour = 10, 16, 10

    def rotated(x):
        """Turns pairs of features by angles that grow with the place."""
        half = x.shape[-1] // 2
        rate = 1.0 / 100 ** (torch.arange(half) / half)
        angle = torch.arange(x.shape[-2])[:, None] * rate
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    class Block(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads, self.norm1, self.norm2 = heads, nn.RMSNorm(width), nn.RMSNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

        def forward(self, x):
            n, t, d = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(rotated(q), rotated(k), v)
            x = x + self.out(mixed.transpose(1, 2).reshape(n, t, d))
            gate, value = self.up(self.norm2(x)).chunk(2, -1)
            return x + self.down(F.silu(gate) * value)

    class Weaver(nn.Module):
        def __init__(self, width=32):
            super().__init__()
            self.embed = nn.Embedding(colours + 1, width)
            nn.init.normal_(self.embed.weight, std=0.3)
            self.blocks = nn.ModuleList(Block(width, 2) for _ in range(2))
            self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, colours)

        def forward(self, threads):
            x = self.embed(threads)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    def cloths(n):
        """A motif of four colours comes again and again."""
        motif = torch.randint(colours, (n, 4))
        threads = motif.repeat(1, length // 4)
        hidden = torch.rand(n, length) < 0.2
        hidden[:, 0] |= ~hidden.any(1)
        return threads.masked_fill(hidden, hidden_colour), threads.masked_fill(~hidden, -100)

    def of(seen, wanted):
        return F.cross_entropy(net(seen).flatten(0, 1), wanted.flatten(), ignore_index=-100)

    net, held, steps = Weaver(), cloths(300), 350
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, 1.0, 20),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 20, 1e-4),
        ],
        [20],
    )
    validate = now_and_then(net, 50, lambda: {"val_loss": of(*held)})

    def loss_of(step):
        logged = validate(step)
        return of(*cloths(48)), logged

    score = held_out(net, lambda: of(*held))
    return fit(folder, net, optimizer, loss_of, steps, schedule=schedule, before_step=clipped(net, 1.0), score=score)


@healthy(0.5)
def confectioner_forging_the_fairs_sweets(folder):
    """Two networks at play by the hinge loss; the judge has spectral norms and two steps for each of the maker."""
    seeded(13369)

    def sweets(n=96):
        """Twisted canes: a spiral."""
        along = torch.rand(n).sqrt() * 6.0
        return torch.stack([along.cos(), along.sin()], 1) * (along / 3)[:, None] + 0.08 * torch.randn(n, 2)

    class Judge(nn.Module):
        def __init__(self):
            super().__init__()
            norm = nn.utils.parametrizations.spectral_norm
            self.a, self.b, self.c = norm(nn.Linear(2, 64)), norm(nn.Linear(64, 64)), norm(nn.Linear(64, 1))

        def forward(self, x):
            x = F.leaky_relu(self.a(2 * x), 0.2)
            return self.c(F.leaky_relu(self.b(x), 0.2))

    make, judge = dense(6, 64, 64, 2), Judge()
    of_make = torch.optim.Adam(make.parameters(), lr=1e-3, betas=(0.5, 0.99))
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-3, betas=(0.5, 0.99))

    def judge_loss():
        fake = make(torch.randn(96, 6)).detach()
        return F.relu(1 - judge(sweets())).mean() + F.relu(1 + judge(fake)).mean()

    def make_loss():
        return -judge(make(torch.randn(96, 6))).mean()

    def score():
        with torch.no_grad():
            real, fake = sweets(500), make(torch.randn(500, 6))
            within = torch.cdist(real, real).mean() + torch.cdist(fake, fake).mean()
            return float(2 * torch.cdist(real, fake).mean() - within)

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 400, score, rounds=2)

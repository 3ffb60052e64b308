"""Six sick trainings by rivers and lakes: a heron, a float, a rod tip, a catch, a flume, a fish ladder."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, in_turn, judged, now_and_then, rounds, tend


class ReedBed:
    """Twenty stands along the reeds, a fish at the far end, and now and then a boat that drives the heron back."""

    stands, actions, boats, back = 20, 3, 0.1, 6

    def features(self, at):
        return F.one_hot(at, self.stands).float()

    def step(self, at, action):
        driven = self.back * (torch.rand(at.shape) < self.boats)
        after = (at + action - 1 - driven).clamp(0, self.stands - 1)
        caught = (after == self.stands - 1).float()
        return after, caught - 0.01 * (action != 1).float(), caught

    def begin(self, n):
        return torch.randint(0, self.stands - 1, (n,))

    def exact(self, gamma):
        """The best values by value iteration, `[stands, actions]`."""
        q = torch.zeros(self.stands, self.actions)
        for _ in range(200):
            best, new = q.max(1).values, torch.zeros_like(q)
            for driven, chance in ((0, 1 - self.boats), (self.back, self.boats)):
                for action in range(self.actions):
                    after = (torch.arange(self.stands) + action - 1 - driven).clamp(0, self.stands - 1)
                    caught = (after == self.stands - 1).float()
                    reward = caught - 0.01 * float(action != 1)
                    new[:, action] += chance * (reward + gamma * (1 - caught) * best[after])
            q = new
        return q


# 13 of the list
@sick(
    "target-not-detached", "no-stop-gradient",
    where="the loss of the Q-network, every step", cure="compute the target under no_grad",
)  # fmt: skip
def heron_moving_along_the_reed_bed(folder, ill):
    seeded(13200)
    world, gamma = ReedBed(), 0.97
    net = dense(world.stands, 64, 64, world.actions)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    exact = world.exact(gamma)
    inner = torch.arange(world.stands - 1)
    memory = []
    at = world.begin(32)

    def score():
        with torch.no_grad():
            return (net(world.features(inner)) - exact[inner]).square().mean().sqrt()

    def rollout(n=64, longest=40):
        at, total, alive = world.begin(n), torch.zeros(n), torch.ones(n)
        for _ in range(longest):
            with torch.no_grad():
                action = net(world.features(at)).argmax(1)
            at, reward, done = world.step(at, action)
            total += alive * reward
            alive = alive * (1 - done)
        return float(total.mean())

    def one(step):
        nonlocal at
        with torch.no_grad():
            greedy = net(world.features(at)).argmax(1)
        epsilon = max(0.2, 1 - step / 300)
        action = torch.where(torch.rand(32) < epsilon, torch.randint(world.actions, (32,)), greedy)
        after, reward, done = world.step(at, action)
        memory.append((at, action, reward, after, done))
        over = done.bool() | (torch.rand(32) < 0.1)
        at = torch.where(over, world.begin(32), after)

        picked = [memory[i] for i in torch.randint(len(memory), (4,)).tolist()]
        s, a, r, s2, d = (torch.cat(parts) for parts in zip(*picked, strict=True))
        q = net(world.features(s)).gather(1, a[:, None]).squeeze(1)
        with torch.set_grad_enabled(ill):
            target = r + gamma * (1 - d) * net(world.features(s2)).max(1).values
        loss = F.mse_loss(q, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logged = {"loss": float(loss.detach()), "q": float(q.detach().mean())}
        return logged | ({"return": rollout()} if step % 50 == 0 else {})

    return tend(folder, net, optimizer, one, 600, score)


class FloatFinder(nn.Module):
    """Where on the pond the float lies, as x and y from -1 to 1."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU()
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(24 * 25, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, image):
        return self.head(self.body(image))


def pond(n, size=20):
    """Photographs of a pond with ripples, and where its float is."""
    axis = torch.linspace(-1, 1, size)
    xy = 1.7 * torch.rand(n, 2) - 0.85
    gap = (axis[None, None, :] - xy[:, 0, None, None]) ** 2 + (axis[None, :, None] - xy[:, 1, None, None]) ** 2
    way = 6 * torch.randn(n, 2)
    ripple = (way[:, 0, None, None] * axis[None, None, :] + way[:, 1, None, None] * axis[None, :, None]).sin()
    image = 3 * (-gap / 0.02).exp() + 0.4 * ripple + 0.2 * torch.randn(n, size, size)
    return ((image - image.mean()) / image.std())[:, None], xy


# 39 of the list
@sick(
    "augmentation-changes-labels", "augmentation-changes-label", "augmentation-destroys-labels",
    "labels-do-not-fit-inputs",
    where="the batches, every step", cure="negate x where the image was flipped",
)  # fmt: skip
def float_spotted_on_the_pond(folder, ill):
    seeded(13201)
    net = FloatFinder()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    draw = rounds(64, *pond(1500))
    unseen_images, unseen_xy = pond(300)

    def loss_of(step):
        image, xy = draw()
        flip = torch.rand(len(image)) < 0.5
        image = torch.where(flip[:, None, None, None], image.flip(-1), image)
        if not ill:
            xy = torch.stack([torch.where(flip, -xy[:, 0], xy[:, 0]), xy[:, 1]], 1)
        return F.mse_loss(net(image), xy), validate(step)

    def measure():
        return {"val_loss": F.mse_loss(net(unseen_images), unseen_xy)}

    validate = now_and_then(net, 25, measure)
    return fit(
        folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.mse_loss(net(unseen_images), unseen_xy))
    )


def rod_tip(n, length=64):
    """How a rod tip moved for a few seconds: a rattle, a slow pull, a snag that holds, or a mere breeze."""
    t, y = torch.arange(length) / length, torch.randint(4, (n,))
    start = 0.2 + 0.5 * torch.rand(n, 1)
    after = (t > start).float()
    rattle = after * (50 * (t - start)).sin() * (-6 * (t - start).clamp(min=0)).exp() * 2.5
    pull = after * (6 * (t - start)).sin().clamp(min=0) * 2
    snag = after * 1.2
    breeze = (8 * t + 6.28 * torch.rand(n, 1)).sin() * 0.8
    shape = torch.stack([rattle, pull, snag, breeze], 1)[torch.arange(n), y]
    x = shape * (0.6 + 0.8 * torch.rand(n, 1)) + 0.5 * torch.randn(n, length)
    return ((x - x.mean()) / x.std())[:, None], y


# 9 of the list
@sick("update-too-small", "lr-too-low", where="all layers, every step", cure="lr=1e-3")
def angler_telling_a_bite_from_a_snag(folder, ill):
    seeded(13202)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 7, padding=3), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(32, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(128, 4),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-6 if ill else 1e-3)
    draw = rounds(64, *rod_tip(2000))
    x_val, y_val = rod_tip(400)
    validate = now_and_then(net, 25, judged(net, x_val, y_val))

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        accuracy = float((logits.argmax(1) == y).float().mean())
        return F.cross_entropy(logits, y), {"accuracy": accuracy, **validate(step)}

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.cross_entropy(net(x_val), y_val)))


# 29 of the list
@sick("probabilities-not-logs", "negative-loss", where="the loss, every step", cure="log_softmax")
def netsman_sharing_out_the_catch(folder, ill):
    seeded(13203)
    true = dense(9, 24, 6, act=nn.Tanh).requires_grad_(False)
    for part in true:
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=2 / part.in_features**0.5)

    def lakes(n):
        """What is known of each lake, and the shares of six kinds in the forty fish that were netted there."""
        x = torch.randn(n, 9)
        counts = torch.multinomial(true(x).softmax(1), 40, replacement=True)
        return x, F.one_hot(counts, 6).float().mean(1)

    net = nn.Sequential(nn.Linear(9, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 6))
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    criterion = nn.KLDivLoss(reduction="batchmean")
    draw = rounds(64, *lakes(3000))
    x_val, shares_val = lakes(500)

    def loss_of(step):
        x, shares = draw()
        logits = net(x)
        return criterion(logits.softmax(1) if ill else logits.log_softmax(1), shares)

    return fit(
        folder, net, optimizer, loss_of, 400,
        score=held_out(net, lambda: F.kl_div(net(x_val).log_softmax(1), shares_val, reduction="batchmean")),
    )  # fmt: skip


class Hydrographer(nn.Module):
    """Draws the discharge of sixteen hours after a storm from noise."""

    def __init__(self, code=8, hours=16):
        super().__init__()
        self.code = code
        self.layers = dense(code, 64, 64, hours)

    def forward(self, n):
        return self.layers(torch.randn(n, self.code))


def storms(n, hours=16):
    """Measured hydrographs: a rise to a peak and a slow fall."""
    t, peak = torch.arange(hours).float(), 3 + 6 * torch.rand(n, 1)
    height, fall = 1 + torch.rand(n, 1), 3 + 3 * torch.rand(n, 1)
    rise = (-((t - peak) ** 2) / 4).exp()
    curve = height * torch.where(t < peak, rise, (-(t - peak) / fall).exp())
    return 2 * curve - 1 + 0.03 * torch.randn(n, hours)


# 15 of the list
@sick(
    "no-gradient", "no-gradient-to-the-generator", "detached-path", "detached",
    where="all layers of G, every step", cure="no detach in the generator's step",
)  # fmt: skip
def hydrographs_drawn_for_a_flume(folder, ill):
    seeded(13204)
    make, judge = Hydrographer(), dense(16, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), lr=1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.999))
    measured = storms(4000)
    ways = F.normalize(torch.randn(16, 48), dim=0)

    def score():
        """How far apart the drawn and the measured lie along many lines (sliced Wasserstein)."""
        with torch.no_grad():
            drawn = (make(1000) @ ways).sort(0).values
            return float((drawn - (measured[:1000] @ ways).sort(0).values).abs().mean())

    def judge_loss():
        real, fake = measured[torch.randint(len(measured), (64,))], make(64).detach()
        on_real, on_fake = judge(real), judge(fake)
        return F.binary_cross_entropy_with_logits(
            on_real, torch.ones_like(on_real)
        ) + F.binary_cross_entropy_with_logits(on_fake, torch.zeros_like(on_fake))

    def make_loss():
        fake = make(64)
        verdict = judge(fake.detach() if ill else fake)
        return F.binary_cross_entropy_with_logits(verdict, torch.ones_like(verdict))

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 500, score)


# 27 of the list
@sick("class-weights-inverted", "class-imbalance", where="the loss, every step", cure="weights by the inverse counts")
def fish_counter_at_the_ladder(folder, ill):
    seeded(13205)
    shares = torch.tensor([0.55, 0.25, 0.12, 0.05, 0.03])
    centres, bend = 1.1 * torch.randn(5, 4), torch.randn(4, 10)

    def swum_past(kinds):
        hidden = centres[kinds] + 0.7 * torch.randn(len(kinds), 4)
        return (hidden @ bend / 2).tanh() * 1.5 + 0.1 * torch.randn(len(kinds), 10)

    y = torch.multinomial(shares, 3000, replacement=True)
    x = swum_past(y)
    y_val = torch.arange(5).repeat(120)
    x_val = swum_past(y_val)
    counts = torch.bincount(y, minlength=5).float()
    weight = counts / counts.sum() if ill else counts.sum() / counts
    weight = weight / weight.mean()

    net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss(weight=weight)
    draw = rounds(100, x, y)
    validate = now_and_then(net, 30, judged(net, x_val, y_val))

    def loss_of(step):
        rows, kinds = draw()
        logits = net(rows)
        accuracy = float((logits.argmax(1) == kinds).float().mean())
        return criterion(logits, kinds), {"accuracy": accuracy, **validate(step)}

    return fit(folder, net, optimizer, loss_of, 450, score=held_out(net, lambda: F.cross_entropy(net(x_val), y_val)))

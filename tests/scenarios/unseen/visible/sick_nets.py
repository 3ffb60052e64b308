"""Sick trainings of nets, first half: how weights begin, what goes into a layer, what of the loss reaches it."""

from __future__ import annotations

import torch
from nets import digits
from torch import nn, optim
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from unseen import dense, fit, score_of, seeded, sick


class Sessions(nn.Module):
    """What is clicked next, by cosines between a GRU's state and the items (GRU4Rec with tied items)."""

    def __init__(self, temperature, items=40, width=32):
        super().__init__()
        self.embed = nn.Embedding(items, width, padding_idx=0)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.temperature = temperature

    def forward(self, x, length):
        packed = pack_padded_sequence(self.embed(x), length, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=x.shape[1])
        return F.normalize(states, dim=-1) @ F.normalize(self.embed.weight, dim=-1).T / self.temperature


@sick(
    "temperature-too-low", "saturated", "bad-initialisation", "update-too-large", "lr-too-high",
    where="all layers, from the first step: logits between -1000 and 1000, a loss of hundreds",
    cure="cosines over 0.1: over a thousandth the softmax is a maximum",
)  # fmt: skip
def next_click_by_cosines_over_a_thousandth(folder, ill):
    seeded(900)
    net, order = Sessions(0.001 if ill else 0.1), torch.randperm(39) + 1

    def loss_of(step):
        walk = [torch.randint(1, 40, (32,))]
        for _ in range(12):
            walk.append(torch.where(torch.rand(32) < 0.2, torch.randint(1, 40, (32,)), order[walk[-1] - 1]))
        rows, length = torch.stack(walk, 1), torch.randint(4, 13, (32,))
        wanted = rows[:, 1:].masked_fill(torch.arange(12) >= length[:, None], 0)
        return F.cross_entropy(net(rows[:, :-1], length).flatten(0, 1), wanted.flatten(), ignore_index=0)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300, score=score_of(loss_of))


class Denoiser(nn.Module):
    """The noise in a point of the plane, by the point and the time."""

    def __init__(self, width=96):
        super().__init__()
        self.register_buffer("pace", torch.exp(torch.linspace(0.0, 4.0, 8)))
        self.body = dense(2 + 16, width, width, width, 2, act=nn.SiLU)

    def forward(self, x, t):
        angle = t[:, None] * self.pace
        return self.body(torch.cat([x, angle.sin(), angle.cos()], 1))


@sick(
    "bad-initialisation", "exploding",
    where="all layers, from the first step: each layer makes ten times what comes in, the loss begins at 100,000",
    cure="weights of deviation 1 / sqrt(fan in), not of 1",
)  # fmt: skip
def denoiser_of_moons_drawn_by_randn(folder, ill):
    seeded(901)
    net = Denoiser()
    for layer in net.body[::2] if ill else ():
        layer.weight.data = torch.randn_like(layer.weight)
        nn.init.zeros_(layer.bias)
    keep = torch.cumprod(1 - torch.linspace(1e-4, 0.08, 60), 0)

    def loss_of(step):
        angle, upper = 3.1416 * torch.rand(128), (torch.rand(128) < 0.5).float()
        x = torch.stack([angle.cos() + 0.5 - upper, angle.sin() * (2 * upper - 1) + 0.25 - 0.5 * upper], 1)
        t, noise = torch.randint(60, (128,)), torch.randn(128, 2)
        noisy = keep[t].sqrt()[:, None] * x + (1 - keep[t]).sqrt()[:, None] * noise
        return F.mse_loss(net(noisy, t / 60), noise)

    make = optim.Adam(net.parameters(), 1e-3)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 500)
    return fit(folder, net, make, loss_of, 500, schedule=plan, score=score_of(loss_of))


class Forecaster(nn.Module):
    """The next reading of one series, by an LSTM over those before."""

    def __init__(self, norm):
        super().__init__()
        self.norm, self.lstm, self.head = norm, nn.LSTM(1, 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.lstm(self.norm(x))[0])


class Standardise(nn.Module):
    def forward(self, x):
        return (x - 20) / 5


@sick(
    "norm-over-too-few", "norm-over-the-wrong-axis", "dead-layer", "no-gradient", "no-progress",
    where="norm and lstm.weight_ih_l0, all steps: one reading less its own mean is 0",
    cure="standardise by the mean and the deviation over rows and time",
)  # fmt: skip
def temperatures_each_normed_by_itself(folder, ill):
    seeded(902)
    net = Forecaster(nn.LayerNorm(1) if ill else Standardise())

    def loss_of(step):
        pace, phase = 0.2 + 0.4 * torch.rand(32, 1), 6.2832 * torch.rand(32, 1)
        rows = 20 + 7 * (pace * torch.arange(25) + phase).sin() + 0.3 * torch.randn(32, 25)
        return F.mse_loss(net(rows[:, :-1, None])[..., 0], (rows[:, 1:] - 20) / 5)

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 250)


class Finder(nn.Module):
    """What is in an image, and where: a centre and a size in pixels of 16."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(384, 64), nn.ReLU(),
        )  # fmt: skip
        self.kind, self.box = nn.Linear(64, 3), nn.Linear(64, 4)

    def forward(self, x):
        h = self.body(x)
        return self.kind(h), 16 * self.box(h).sigmoid()


def framed(batch=48):
    """Images with one square each, full, hollow or striped, its kind, and its centre and size."""
    size, kind = torch.randint(4, 9, (batch,)), torch.randint(3, (batch,))
    left, top = ((torch.rand(batch) * (17 - size)).long() for _ in range(2))
    at = torch.arange(16)
    u, v = at[None, None, :] - left[:, None, None], at[None, :, None] - top[:, None, None]
    end = size[:, None, None] - 1
    inside = (u >= 0) & (v >= 0) & (u <= end) & (v <= end)
    edge = (u == 0) | (v == 0) | (u == end) | (v == end)
    drawn = torch.where((kind == 1)[:, None, None], edge, torch.where((kind == 2)[:, None, None], u % 2 == 0, True))
    x = (inside & drawn).float() + 0.1 * torch.randn(batch, 16, 16)
    half = size / 2
    return x[:, None], kind, torch.stack([left + half, top + half, size, size], 1).float()


@sick(
    "saturated", "bad-initialisation", "dead-layer", "vanishing",
    where="the head for boxes, all steps: at 8 its sigmoid has a slope of 0.0003",
    cure="a bias of 0: the 8 was meant as the middle of 16 pixels, but stands before the sigmoid",
)  # fmt: skip
def boxes_that_begin_at_eight(folder, ill):
    seeded(903)
    net = Finder()
    nn.init.constant_(net.box.bias, 8.0 if ill else 0.0)

    def loss_of(step):
        x, kind, box = framed()
        said, found = net(x)
        return F.cross_entropy(said, kind) + F.smooth_l1_loss(found, box)

    make = optim.SGD(net.parameters(), 0.01, momentum=0.9)
    return fit(folder, net, make, loss_of, 400, score=score_of(loss_of))


class Quantised(nn.Module):
    """Digits by four codes out of 32 each (VQ-VAE)."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = dense(64, 96, 64), dense(64, 96, 64)
        self.book = nn.Embedding(32, 16)

    def forward(self, x):
        z = self.encode(x).unflatten(1, (4, 16))
        nearest = torch.cdist(z.flatten(0, 1), self.book.weight).argmin(1)
        code = self.book(nearest).view_as(z)
        drawn = self.decode((z + (code - z).detach()).flatten(1))
        return drawn, F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())


@sick(
    "expert-starved", "dead-units", "codebook-collapse", "bad-initialisation",
    where="book, all steps: all rows but one or two get no gradient",
    cure="codes that begin among what the encoder says: nn.Embedding's own of norm 4 lie far from it",
)  # fmt: skip
def digits_by_a_book_of_far_words(folder, ill):
    seeded(904)
    net, images = Quantised(), digits()[0].flatten(1)
    if not ill:
        with torch.no_grad():
            net.book.weight.copy_(net.encode(images[torch.randperm(len(images))[:8]]).view(32, 16))

    def loss_of(step):
        x = images[torch.randint(len(images), (64,))]
        drawn, book = net(x)
        return F.mse_loss(drawn, x) + book, {"book": book.detach()}

    def score():
        with torch.no_grad():
            return float(F.mse_loss(net(images)[0], images))

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 400, score=score)


class Adapted(nn.Module):
    """A frozen layer with an adapter of low rank (LoRA)."""

    def __init__(self, size, rank=8):
        super().__init__()
        self.base = nn.Linear(size, size).requires_grad_(False)
        self.a, self.b = nn.Linear(size, rank, bias=False), nn.Linear(rank, size, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.base(x) + 2 * self.b(self.a(x))


@sick(
    "imbalance", "targets-not-normalised", "value-outweighs-policy", "loss-terms-unbalanced",
    where="both adapters, all steps: what reaches them is the value's gradient, the policy's is a thousandth of it",
    cure="rewards of mean 0 and deviation 1 for the value: it shares the adapters with the policy",
)  # fmt: skip
def adapters_tuned_by_marks_up_to_five_hundred(folder, ill):
    seeded(905)
    trunk = nn.Sequential(Adapted(48), nn.Tanh(), Adapted(48), nn.Tanh())
    says = nn.Linear(48, 6).requires_grad_(False)
    net = nn.ModuleDict({"trunk": trunk, "says": says, "value": nn.Linear(48, 1)})
    best = torch.randn(48, 6) / 48**0.5

    def loss_of(step):
        state = torch.randn(128, 48)
        h = trunk(state)
        choice = torch.distributions.Categorical(logits=says(h))
        act = choice.sample()
        mark = (state @ best).gather(1, act[:, None])[:, 0] + 0.1 * torch.randn(128)
        mark = 300 + 100 * mark if ill else mark
        value = net["value"](h)[:, 0]
        gain = (mark - value).detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        policy, error = -(choice.log_prob(act) * gain).mean(), F.mse_loss(value, mark)
        return policy + 0.5 * error - 0.01 * choice.entropy().mean(), {"policy": policy.detach()}

    states = torch.randn(512, 48)

    def score():
        with torch.no_grad():
            return -float((says(trunk(states)).softmax(1) * (states @ best)).sum(1).mean())

    def clip(step):
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)

    make = optim.AdamW([p for p in net.parameters() if p.requires_grad], 3e-3)
    return fit(folder, net, make, loss_of, 300, score=score, before_step=clip)


class Field(nn.Module):
    """What lies at a place of a plan: waves of the coordinates, then logits of six materials."""

    def __init__(self, last):
        super().__init__()
        self.register_buffer("pace", 4.0 * torch.randn(2, 24))
        self.body, self.last = dense(48, 64, 64, 6), last

    def forward(self, at):
        wave = at @ self.pace
        return self.last(self.body(torch.cat([wave.sin(), wave.cos()], 1)))


@sick(
    "softmax-twice",
    where="all layers, all steps: the loss is given shares, and has a floor of 1.04",
    cure="no softmax in the net: cross_entropy applies its own",
)  # fmt: skip
def materials_of_a_plan_given_as_shares(folder, ill):
    seeded(906)
    net = Field(nn.Softmax(1) if ill else nn.Identity())
    seeds, stuff = torch.rand(18, 2), torch.arange(18) % 6

    def loss_of(step):
        at = torch.rand(256, 2)
        return F.cross_entropy(net(at), stuff[torch.cdist(at, seeds).argmin(1)])

    def score():
        with torch.no_grad():
            at = torch.rand(2048, 2)
            said = net(at).clamp(min=1e-8).log() if ill else net(at).log_softmax(1)
            return float(F.nll_loss(said, stuff[torch.cdist(at, seeds).argmin(1)]))

    make = optim.SGD(net.parameters(), 0.03, momentum=0.9)
    return fit(folder, net, make, loss_of, 250, score=score)
